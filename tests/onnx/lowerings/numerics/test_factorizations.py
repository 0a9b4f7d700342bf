"""QR and what else is made of reflections."""

from __future__ import annotations

import pytest
import torch

from tests.onnx.helpers import check_onnx
from tests.onnx.rows import check_dynamic, check_static
from tests.ops.rows import Row, row


def doubles(size: list[int]) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def packed(size: list[int]) -> torch.Tensor:
    """Reflections under the diagonal of a matrix, as geqrf leaves them."""
    return torch.geqrf(torch.randn(size))[0]


def zeros_below(size: list[int]) -> torch.Tensor:
    """Columns that need no reflection."""
    return torch.randn(size).triu()


def orthogonal(a: torch.Tensor, c: torch.Tensor, **how: bool) -> torch.Tensor:
    return torch.ormqr(*torch.geqrf(a), c, **how)


def least(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.linalg.lstsq(a, b, driver="gels"))


ROWS = [
    row(torch.geqrf, "b t 3", name="geqrf"),
    row(torch.geqrf, "3 n", name="geqrf_flat"),
    row(torch.geqrf, "b n n", make=doubles, name="geqrf_double"),
    row(torch.geqrf, "b t 3", make=zeros_below, name="geqrf_of_a_triangle"),
    row(torch.geqrf, "0 t", name="geqrf_of_nothing"),
    row(
        torch.linalg.householder_product,
        "b 9 n",
        "b n",
        name="householder_product",
        make=[packed, torch.randn],
    ),
    row(torch.orgqr, "9 4", "3", make=[packed, torch.randn], name="orgqr_fewer"),
    row(lambda a, c: orthogonal(a, c), "b t 3", "b t k", name="ormqr"),
    row(lambda a, c: orthogonal(a, c, transpose=True), "b t 3", "b t k", name="ormqr_turned"),
    row(lambda a, c: orthogonal(a, c, left=False), "b t 3", "b k t", name="ormqr_right"),
    row(
        lambda a, c: orthogonal(a, c, left=False, transpose=True),
        "t n",
        "k t",
        make=doubles,
        name="ormqr_right_turned",
    ),
    row(lambda a: torch.linalg.qr(a, mode="r"), "b t 3", name="qr_r"),
    row(lambda a: torch.linalg.qr(a), "3 n", name="qr_flat"),
    row(lambda a: torch.linalg.qr(a, mode="complete"), "n 3", make=doubles, name="qr_complete"),
    row(least, "b t 3", "b t k", least={"t": 4}, name="lstsq"),
    row(least, "b 5 3", "b 5", name="lstsq_vectors"),
    row(least, "b n n", "b n k", name="lstsq_square"),
    row(least, "5 3", "5", name="lstsq_vector"),
    row(least, "b 3 t", "b 3 k", least={"t": 4}, name="lstsq_flat"),
    row(least, "1 5 3", "b 5 k", make=doubles, name="lstsq_of_one_matrix"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    torch.manual_seed(0)
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    torch.manual_seed(0)
    check_dynamic(case)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_numbers_without_squares(scale: float) -> None:
    def fn(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (q, r), (packed, tau) = torch.linalg.qr(a), torch.geqrf(a)
        return q, r / scale, tau, packed.tril(-1)

    check_onnx(fn, (torch.randn(4, 3) * scale,))


def test_columns_of_zeros() -> None:
    a = torch.randn(4, 3)
    a[:, 1] = 0
    check_onnx(lambda a: torch.linalg.qr(a), (a,), others=[(torch.zeros(4, 3),)])
