"""Singular values, eigenvalues of symmetric matrices, pseudo-inverses and least squares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphport as gp
from tests.onnx.helpers import assert_close, check_onnx

B, M, N = gp.Dim("b", min=0), gp.Dim("m", min=0), gp.Dim("n", min=0)


def matrices(*sizes: int, rank: int | None = None) -> Tensor:
    torch.manual_seed(0)
    if rank is None:
        return torch.randn(sizes)
    *batch, m, n = sizes
    return torch.randn(*batch, m, rank) @ torch.randn(*batch, rank, n)


def require_svd(program: Any, a: Tensor, full: bool) -> None:
    """The values are eager's, the vectors orthonormal, and the product is the matrix."""
    u, s, vh = program(a)
    want = torch.linalg.svd(a, full_matrices=full)
    assert [t.shape for t in (u, s, vh)] == [t.shape for t in want]
    k = s.shape[-1]
    close = (
        {"rtol": 1e-4, "atol": 2e-5} if a.dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    )
    torch.testing.assert_close(s, want[1], **close)
    torch.testing.assert_close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, **close)
    for q in (u.mT @ u, vh @ vh.mT):
        torch.testing.assert_close(q, torch.eye(q.shape[-1], dtype=a.dtype).expand_as(q), **close)


SHAPES = [(2, 4, 3), (1, 3, 5), (3, 1, 1), (0, 3, 2), (1, 7, 2), (1, 0, 3), (1, 3, 0)]


@pytest.mark.parametrize("full", [False, True])
def test_svd_at_open_sizes(full: bool) -> None:
    program = gp.onnx.export(
        lambda a: tuple(torch.linalg.svd(a, full_matrices=full)),
        (matrices(2, 4, 3),),
        dynamic_shapes=({0: B, 1: M, 2: N},),
    )
    for sizes in SHAPES:
        require_svd(program, matrices(*sizes), full)
    require_svd(program, matrices(1, 5, 4, rank=2), full)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_svd(full: bool) -> None:
    """Tall and wide, of less than full rank, of zeros, with equal values, in doubles."""
    for a in (
        matrices(3, 6),
        matrices(5, 4, rank=2),
        torch.zeros(3, 2),
        torch.eye(4),
        matrices(6, 4).double() * 1e-12,
        matrices(12, 12),
    ):
        program = gp.onnx.export(lambda a: tuple(torch.linalg.svd(a, full_matrices=full)), (a,))
        require_svd(program, a, full)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(uplo: str) -> None:
    """Of the triangle that is asked for; the other one is not read."""
    program = gp.onnx.export(
        lambda a: tuple(torch.linalg.eigh(a, UPLO=uplo)),
        (matrices(2, 4, 4),),
        dynamic_shapes=({0: B, 1: N, 2: N},),
    )
    for a in (
        *(matrices(b, n, n) for b, n in [(2, 4), (1, 1), (0, 3), (2, 0)]),
        torch.eye(3)[None],
    ):
        w, v = program(a)
        assert_close(w, torch.linalg.eigvalsh(a, UPLO=uplo), "values differ")
        half = torch.tril(a, -1) if uplo == "L" else torch.triu(a, 1)
        symmetric = half + half.mT + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))
        assert_close((v * w[..., None, :]) @ v.mT, symmetric, "products differ", scale=10)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "svdvals": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "pinv with a relative tolerance": lambda a: torch.linalg.pinv(a, rtol=0.3),
    "pinv with an absolute tolerance": lambda a: torch.linalg.pinv(a, atol=0.7),
    "hermitian pinv": lambda a: torch.linalg.pinv(a.mT @ a, hermitian=True),
    "rank": torch.linalg.matrix_rank,
    "hermitian rank": lambda a: torch.linalg.matrix_rank(a.mT @ a, hermitian=True),
    "eigvalsh": lambda a: torch.linalg.eigvalsh(a.mT @ a),
    "cond": torch.linalg.cond,
    "nuclear norm": lambda a: torch.linalg.matrix_norm(a, "nuc"),
    "largest": lambda a: torch.linalg.matrix_norm(a, 2),
    "smallest": lambda a: torch.linalg.matrix_norm(a, -2),
}


QUICK = ("svdvals", "hermitian rank")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS]
)
def test_what_is_made_of_them(name: str) -> None:
    others = [(matrices(b, 4, 3),) for b in (0, 1, 5)]
    fn, a = FUNCTIONS[name], matrices(2, 4, 3)
    check_onnx(lambda a: fn(a), (a,), dynamic_shapes=({0: B},), others=others, scale=20)


@pytest.mark.parametrize("rank", [1, 2])
def test_rank_deficient(rank: int) -> None:
    a = matrices(2, 5, 4, rank=rank)
    program = check_onnx(lambda a: torch.linalg.matrix_rank(a), (a,))
    assert program(a).tolist() == [rank, rank]
    check_onnx(lambda a: torch.linalg.pinv(a), (a,), scale=20)
    check_onnx(lambda a, c: torch.linalg.lstsq(a, c).solution, (a, matrices(2, 5, 2)), scale=20)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize(("a", "right"), [((4, 3), (4, 2)), ((3, 5), (3, 2)), ((2, 4, 3), (2, 4))])
def test_lstsq(driver: str, a: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_onnx(
        lambda a, c: tuple(torch.linalg.lstsq(a, c, driver=driver)),
        (matrices(*a), matrices(*right)),
        scale=20,
    )
