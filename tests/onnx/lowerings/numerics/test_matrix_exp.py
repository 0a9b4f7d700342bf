"""The exponential of matrices."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import check_dynamic, check_static
from tests.ops.rows import Row, row


def doubles(size: list[int]) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


ROWS = [
    row(torch.matrix_exp, "n n", name="one"),
    row(torch.linalg.matrix_exp, "b n n", make=lambda size: torch.randn(size) / 2, name="batch"),
    row(torch.linalg.matrix_exp, "b t n n", make=doubles, name="double"),
    row(torch.linalg.matrix_exp, "b 0 0", name="nothing"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    torch.manual_seed(0)
    check_static(case, scale=4.0)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    torch.manual_seed(0)
    check_dynamic(case, scale=4.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_large_and_small_together(dtype: torch.dtype) -> None:
    """Each is halved as often as it needs; turns keep what is computed within 1."""
    turns = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=dtype)
    angles = torch.tensor([0.0, 1e-30, 1e-3, 0.7, 3.2, 40.0, 700.0], dtype=dtype)
    scales = (angles[:, None, None] * turns,)
    check_onnx(torch.linalg.matrix_exp, scales, scale=10.0)


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite(wrong: float) -> None:
    x = torch.eye(2).repeat(3, 1, 1)
    x[1, 0, 1] = wrong
    check_onnx(torch.linalg.matrix_exp, (x,), dynamic_shapes=(({0: gp.Dim("b")},),))


def test_nilpotent() -> None:
    check_onnx(torch.linalg.matrix_exp, (torch.tensor([[0.0, 1e20], [0.0, 0.0]]),))


def test_halves() -> None:
    """They are computed in float32; eager, in halves, is far off."""
    x = torch.randn(3, 4, 4).half() / 4
    program = gp.onnx.export(torch.linalg.matrix_exp, (x,))
    want = torch.linalg.matrix_exp(x.float()).half()
    torch.testing.assert_close(program(x), want, rtol=2e-3, atol=1e-3)
