"""Products of matrices, einsum, what linear algebra has an exact formula for."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx
from tests.onnx.rows import check_dynamic, check_static
from tests.ops.rows import Row, ints, row

F = torch.nn.functional


def halves(size: Any) -> torch.Tensor:
    return torch.randn(tuple(size)).half()


def bfloats(size: Any) -> torch.Tensor:
    return torch.randn(tuple(size)).bfloat16()


def doubles(size: Any) -> torch.Tensor:
    return torch.randn(tuple(size)).double()


def bytes_(size: Any) -> torch.Tensor:
    """Products of these do not fit: they wrap."""
    return torch.randint(-128, 128, tuple(size)).to(torch.int8)


def einsum(equation: str, *specs: str, **options: Any) -> Any:
    fn = functools.partial(_einsum, equation)
    return row(fn, *specs, name=f"einsum {equation}", **options)


def _einsum(equation: str, *tensors: torch.Tensor) -> torch.Tensor:
    return torch.einsum(equation, *tensors)


ROWS = [
    row(torch.mm, "b t", "t k"),
    row(torch.bmm, "b t 4", "b 4 k"),
    row(lambda a, b: torch.bmm(a.transpose(0, 1), b), "t b 4", "b 4 k", name="bmm_left_moved"),
    row(lambda a, b: torch.bmm(b, a.permute(1, 2, 0)), "t b 4", "b k 4", name="bmm_right_moved"),
    row(lambda a, b: torch.matmul(a.transpose(0, 1), b), "t b 4", "n b 4 k", name="matmul_moved"),
    row(torch.mv, "b t", "t"),
    row(torch.dot, "t", "t"),
    row(torch.vdot, "t", "t"),
    row(torch.inner, "b t", "k t"),
    row(torch.matmul, "b t 8", "8 k", name="matmul_2d"),
    row(torch.matmul, "b 1 t 8", "n 8 k", name="matmul_broadcast"),
    row(torch.matmul, "8", "b 8 k", name="matmul_vector"),
    row(torch.matmul, "b t", "t k", make=ints(5), name="matmul_int64"),
    row(torch.matmul, "b t", "t k", make=bytes_, name="matmul_int8"),
    row(torch.matmul, "b t", "t k", make=halves, name="matmul_half"),
    row(torch.matmul, "b t", "t k", make=bfloats, name="matmul_bfloat16"),
    row(torch.matmul, "b t", "t k", make=doubles, name="matmul_double"),
    row(F.linear, "b t 8", "k 8", "k", name="linear"),
    row(F.linear, "b 8", "k 8", "k", name="linear_2d"),
    row(F.linear, "b 8", "8", name="linear_vector"),
    row(F.linear, "8", "k 8", "k", name="linear_of_vector"),
    row(F.linear, "b 8", "k 8", "k", make=ints(5), name="linear_int"),
    row(F.bilinear, "b 3", "b 4", "5 3 4", name="bilinear"),
    row(F.bilinear, "b t 3", "b t 4", "5 3 4", "5", name="bilinear_bias"),
    row(torch.addmm, "k", "b t", "t k"),
    row(torch.addmm, "b k", "b t", "t k", make=ints(5), name="addmm_int"),
    row(lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=0.25), "1 k", "b t", "t k",
        name="addmm_factors"),
    row(lambda a, b, c: torch.addmm(a, b, c, beta=0.1, alpha=0.3), "k", "b t", "t k", make=doubles,
        name="addmm_double"),
    row(lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=3), "k", "b t", "t k", make=ints(5),
        name="addmm_int_factors"),
    row(lambda a, b, c: torch.addmm(a / 0, b, c, beta=0), "k", "b t", "t k", name="addmm_no_nan"),
    row(torch.addmv, "b", "b t", "t"),
    row(lambda a, b, c: torch.addmv(a, b, c, beta=0, alpha=2), "b", "b t", "t", name="addmv_0"),
    row(torch.addr, "b t", "b", "t"),
    row(lambda a, b, c: torch.addr(a, b, c, beta=0.5, alpha=3), "t", "b", "t", name="addr_factors"),
    row(torch.addbmm, "t k", "b t 4", "b 4 k"),
    row(lambda a, b, c: torch.addbmm(a, b, c, beta=2, alpha=3), "t k", "b t 4", "b 4 k",
        make=ints(5), name="addbmm_int"),
    row(torch.baddbmm, "b t k", "b t 4", "b 4 k"),
    row(lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=2), "1 t k", "b t 4", "b 4 k",
        name="baddbmm_factors"),
    row(torch.outer, "b", "t"),
    row(torch.outer, "b", "t", make=ints(5), name="outer_int"),
    row(torch.kron, "b 2", "t 3"),
    row(torch.kron, "b", "t 3", name="kron_ranks"),
    row(lambda a, b: torch.tensordot(a, b, dims=([1], [0])), "b t", "t k", name="tensordot"),
    row(lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])), "b t 3", "t 3 k",
        name="tensordot_two"),
    row(lambda a, b: torch.cross(a, b, dim=-1), "b 3", "b 3", name="cross"),
    row(lambda a, b: torch.linalg.cross(a, b, dim=0), "3 b", "3 1", name="cross_broadcast"),
    row(torch.trace, "b t"),
    row(torch.trace, "b t", make=ints(5), name="trace_int"),
    row(torch.linalg.vecdot, "b t 4", "b 1 4"),
    row(lambda a: torch.linalg.matrix_power(a, 5), "b n n", name="matrix_power"),
    row(lambda a, b: torch.linalg.multi_dot([a, b, a]), "b t", "t b", fixed="bt", name="multi_dot"),
    einsum("bij,bjk->bik", "b t 4", "b 4 k"),
    einsum("bhid,bhjd->bhij", "b 2 t 4", "b 2 k 4"),
    einsum("bhij,bjhd->bihd", "b 2 t k", "b k 2 4"),
    einsum("...i,ji->...j", "b t 4", "k 4"),
    einsum("...i,...i->...", "b t 4", "t 4"),
    einsum("i,j->ij", "b", "t"),
    einsum("i,i->", "t", "t"),
    einsum("ij,ij->ij", "b t", "b t"),
    einsum("bij,bj->bi", "b t 4", "b 4"),
    einsum("bi,bji->bj", "b 4", "b t 4"),
    einsum("btd,dhk->bhtk", "b t 4", "4 2 3"),
    einsum("bthk,hkd->btd", "b t 2 3", "2 3 4"),
    einsum("ijk,kl,lm->ijm", "b t 4", "4 3", "3 k"),
    einsum("bn,anm,bm->ba", "b 3", "k 3 4", "b 4"),
    einsum("ii->i", "n n"),
    einsum("bii->b", "b n n"),
    einsum("ii,ij", "n n", "n k"),
    einsum("ij->ji", "b t"),
    einsum("ij->", "b t"),
    einsum("b a ... -> ... a", "b t 4"),
    einsum("ij,jk", "b t", "t k"),
    einsum("ij,jk->ik", "b 1", "t k"),
    einsum("ibnd,jbnd->bnij", "t b 2 4", "k b 2 4"),
    einsum("ij,jk->ik", "b t", "t k", make=ints(5)),
    einsum("bijk,bil->bjkl", "b t 2 3", "b t k"),
    einsum("zij,zjk->ik", "b t 4", "b 4 k"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
