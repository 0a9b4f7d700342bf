"""Products of matrices, factorisations, solvers."""

from __future__ import annotations

import pytest
import torch

from tests.ops.rows import Row, check_dynamic, check_static, complexes, ints, row, square

ROWS = [
    row(torch.mm, "b t", "t k"),
    row(torch.bmm, "b t 4", "b 4 k"),
    row(torch.mv, "b t", "t"),
    row(torch.dot, "t", "t"),
    row(torch.matmul, "b t 8", "8 k", name="matmul_2d"),
    row(torch.matmul, "b 1 t 8", "n 8 k", name="matmul_broadcast"),
    row(torch.matmul, "8", "b 8 k", name="matmul_vector"),
    row(torch.matmul, "b t", "t k", make=ints(5), name="matmul_int"),
    row(torch.matmul, "b t", "t k", make=complexes, name="matmul_complex"),
    row(torch.nn.functional.linear, "b t 8", "k 8", "k", name="linear"),
    row(torch.nn.functional.bilinear, "b 3", "b 4", "5 3 4", name="bilinear"),
    row(torch.addmm, "k", "b t", "t k"),
    row(torch.addmv, "b", "b t", "t"),
    row(torch.addr, "b t", "b", "t"),
    row(torch.addbmm, "t k", "b t 4", "b 4 k"),
    row(torch.baddbmm, "b t k", "b t 4", "b 4 k"),
    row(torch.outer, "b", "t"),
    row(lambda x, y: torch.outer(x, y.double()), "b", "t", name="outer_mixed"),
    row(torch.kron, "b 2", "t 3"),
    row(lambda a, b: torch.tensordot(a, b, dims=([1], [0])), "b t", "t k", name="tensordot"),
    row(lambda a, b: torch.einsum("bij,bjk->bik", a, b), "b t 4", "b 4 k", name="einsum"),
    row(lambda a, b: torch.einsum("...i,ji->...j", a, b), "b t 4", "k 4", name="einsum_dots"),
    row(lambda a: torch.einsum("ii->i", a), "n n", layout=False, name="einsum_diagonal"),
    row(lambda a, b: torch.cross(a, b, dim=-1), "b 3", "b 3", name="cross"),
    row(torch.trace, "b t"),
    row(torch.cdist, "b t 3", "b k 3", layout=False),
    row(torch.pdist, "t 3", least={"t": 2}),
    row(lambda a: torch.linalg.multi_dot([a, a.mT, a]), "b t", name="multi_dot"),
    row(torch.linalg.matrix_norm, "b t k", least={"t": 1, "k": 1}),
    row(lambda a: torch.linalg.matrix_power(a, 3), "b n n", name="matrix_power"),
    row(torch.linalg.inv, "b n n", make=square, least={"n": 1}),
    row(torch.linalg.det, "b n n", make=square, least={"n": 1}),
    row(torch.linalg.slogdet, "b n n", make=square, least={"n": 1}),
    row(torch.linalg.cholesky, "b n n", make=square, least={"n": 1}),
    row(torch.linalg.solve, "b n n", "b n k", make=[square, torch.randn], least={"n": 1, "k": 1}),
    row(
        torch.linalg.solve,
        "n n",
        "n",
        make=[square, torch.randn],
        least={"n": 1},
        name="solve_vector",
    ),
    row(torch.linalg.qr, "b t 3", least={"t": 1}),
    row(lambda a: torch.linalg.svdvals(a), "b t 3", least={"t": 1}, name="svdvals"),
    row(lambda a: torch.linalg.svd(a, full_matrices=False)[1], "b t 3", least={"t": 1}, name="svd"),
    row(lambda a: torch.linalg.eigh(a)[0], "b n n", make=square, least={"n": 1}, name="eigh"),
    row(
        lambda a: torch.linalg.eigvals(a).abs().sort()[0],
        "b n n",
        make=square,
        least={"n": 1},
        name="eigvals",
        tolerance=1e-3,
    ),
    row(torch.linalg.lu_factor, "b n n", make=square, least={"n": 1}),
    row(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        "b n n",
        "b n k",
        make=[square, torch.randn],
        least={"n": 1},
        name="solve_triangular",
    ),
    row(
        lambda a: torch.linalg.pinv(a),
        "b n n",
        make=square,
        least={"n": 1},
        name="pinv",
        tolerance=1e-3,
    ),
    row(
        lambda a: torch.linalg.lstsq(a, a[..., :1]).solution,
        "b 6 3",
        least={"b": 1},
        name="lstsq",
        tolerance=1e-3,
    ),
    row(torch.linalg.matrix_exp, "b n n"),
    row(torch.cov, "b t", least={"b": 2, "t": 2}),
    row(torch.corrcoef, "b t", least={"b": 2, "t": 2}),
    row(lambda a, b: torch.matmul(a, b), "t t", "t t", view=lambda t: t.t(), name="transposed"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
