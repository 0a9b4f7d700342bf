"""Factors of symmetric matrices, with the pivots that LAPACK chooses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import check_dynamic, check_static
from tests.ops.rows import Row, row, square


def symmetric(size: list[int]) -> torch.Tensor:
    a = torch.randn(size)
    return a + a.mT


def hollow(size: list[int]) -> torch.Tensor:
    """Without a diagonal: all blocks are of two rows."""
    a = symmetric(size)
    return a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))


def doubles(size: list[int]) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def solved(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a)
    return torch.linalg.ldl_solve(factors, pivots, x)


def factors(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.linalg.ldl_factor_ex(a))


ROWS = [
    row(factors, "b n n", make=symmetric, name="factor"),
    row(factors, "n n", make=hollow, name="factor_hollow"),
    row(factors, "b n n", make=square, name="factor_definite"),
    row(factors, "b n n", make=doubles, name="factor_of_the_lower_triangle"),
    row(factors, "2 b n n", make=torch.zeros, name="factor_of_nothing"),
    row(solved, "b n n", "b n k", make=[symmetric, torch.randn], name="solve"),
    row(
        solved,
        "b n n",
        "n 3",
        make=[hollow, torch.randn],
        least={"n": 2},
        fixed="n",
        name="solve_one_right_side",
    ),
    row(
        solved,
        "n n",
        "b n k",
        make=[hollow, torch.randn],
        least={"n": 2},
        fixed="n",
        name="solve_one_matrix",
    ),
    row(solved, "n n", "n k", make=doubles, name="solve_double"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    torch.manual_seed(0)
    check_static(case, scale=10.0)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    torch.manual_seed(0)
    check_dynamic(case, scale=10.0)


@pytest.mark.parametrize("make", [symmetric, hollow, doubles])
def test_pivots_of_many_matrices(make: Any) -> None:
    """Blocks of one row and of two, in all orders, and more rows than LAPACK takes at a time."""
    torch.manual_seed(0)
    a = make([50, 9, 9])
    large = make([1, 80, 80])
    sizes = {0: gp.Dim("batch"), 1: gp.Dim("n"), 2: gp.Dim("n")}
    program = gp.onnx.export(factors, (a,), dynamic_shapes=(sizes,))
    for x in (a, large):
        assert torch.equal(program(x)[1], factors(x)[1])


def test_a_matrix_that_is_singular() -> None:
    a = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0]])
    check_onnx(factors, (a,), others=[(torch.zeros(3, 3),)])
