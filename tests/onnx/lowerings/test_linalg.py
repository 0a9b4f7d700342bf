"""Products of matrices, einsum, what linear algebra has an exact formula for."""

from __future__ import annotations

import functools
from typing import Any

import torch

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import brains, doubles, dynamic_test, halves, static_test
from tests.ops.rows import ints, row, square

F = torch.nn.functional


def bytes_(size: Any) -> torch.Tensor:
    """Products of these do not fit: they wrap."""
    return torch.randint(-128, 128, tuple(size)).to(torch.int8)


def einsum(equation: str, *specs: str, **options: Any) -> Any:
    fn = functools.partial(_einsum, equation)
    return row(fn, *specs, name=f"einsum {equation}{' of int64' * ('make' in options)}", **options)


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
    row(torch.matmul, "b t", "t k", make=brains, name="matmul_bfloat16"),
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
    row(
        lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=0.25),
        "1 k",
        "b t",
        "t k",
        name="addmm_factors",
    ),
    row(
        lambda a, b, c: torch.addmm(a, b, c, beta=0.1, alpha=0.3),
        "k",
        "b t",
        "t k",
        make=doubles,
        name="addmm_double",
    ),
    row(
        lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=3),
        "k",
        "b t",
        "t k",
        make=ints(5),
        name="addmm_int_factors",
    ),
    row(lambda a, b, c: torch.addmm(a / 0, b, c, beta=0), "k", "b t", "t k", name="addmm_no_nan"),
    row(torch.addmv, "b", "b t", "t"),
    row(lambda a, b, c: torch.addmv(a, b, c, beta=0, alpha=2), "b", "b t", "t", name="addmv_0"),
    row(torch.addr, "b t", "b", "t"),
    row(lambda a, b, c: torch.addr(a, b, c, beta=0.5, alpha=3), "t", "b", "t", name="addr_factors"),
    row(torch.addbmm, "t k", "b t 4", "b 4 k"),
    row(
        lambda a, b, c: torch.addbmm(a, b, c, beta=2, alpha=3),
        "t k",
        "b t 4",
        "b 4 k",
        make=ints(5),
        name="addbmm_int",
    ),
    row(torch.baddbmm, "b t k", "b t 4", "b 4 k"),
    row(
        lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=2),
        "1 t k",
        "b t 4",
        "b 4 k",
        name="baddbmm_factors",
    ),
    row(torch.outer, "b", "t"),
    row(lambda x, y: torch.outer(x, y.double()), "b", "t", name="outer_mixed"),
    row(torch.outer, "b", "t", make=ints(5), name="outer_int"),
    row(torch.kron, "b 2", "t 3"),
    row(torch.kron, "b", "t 3", name="kron_ranks"),
    row(lambda a, b: torch.tensordot(a, b, dims=([1], [0])), "b t", "t k", name="tensordot"),
    row(
        lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])),
        "b t 3",
        "t 3 k",
        name="tensordot_two",
    ),
    row(lambda a, b: torch.cross(a, b, dim=-1), "b 3", "b 3", name="cross"),
    row(lambda a, b: torch.linalg.cross(a, b, dim=0), "3 b", "3 1", name="cross_broadcast"),
    row(torch.trace, "b t"),
    row(torch.trace, "b t", make=ints(5), name="trace_int"),
    row(torch.linalg.vecdot, "b t 4", "b 1 4"),
    row(lambda a: torch.linalg.matrix_power(a, 5), "b n n", name="matrix_power"),
    row(lambda a, b: torch.linalg.multi_dot([a, b, a]), "b t", "t b", fixed="bt", name="multi_dot"),
    row(torch.cov, "b t", least={"b": 2, "t": 2}),
    row(torch.cov, "t", least={"t": 2}, name="cov_vector"),
    row(torch.corrcoef, "b t", least={"b": 2, "t": 2}),
    row(torch.linalg.inv, "b n n", make=square, least={"n": 1}),
    row(torch.linalg.det, "b n n", least={"n": 1}),
    row(torch.linalg.det, "n n", make=doubles, name="det_double"),
    row(torch.linalg.slogdet, "b n n", least={"n": 1}),
    row(torch.linalg.cholesky, "b n n", make=square, least={"n": 1}),
    row(
        lambda a: torch.linalg.cholesky(a, upper=True),
        "b n n",
        make=square,
        least={"n": 1},
        name="cholesky_upper",
    ),
    row(torch.linalg.solve, "b n n", "b n k", make=[square, torch.randn], least={"n": 1, "k": 1}),
    row(
        torch.linalg.solve,
        "n n",
        "n",
        make=[square, torch.randn],
        least={"n": 1},
        name="solve_vector",
    ),
    row(
        lambda a, b: torch.linalg.solve(a, b, left=False),
        "b n n",
        "b k n",
        make=[square, torch.randn],
        least={"n": 1, "k": 1},
        name="solve_right",
    ),
    row(torch.linalg.lu_factor, "b n n", least={"n": 1}),
    row(torch.linalg.lu, "b t 3", least={"t": 1}),
    row(
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
        "b n n",
        "b n k",
        make=[square, torch.randn],
        least={"n": 1, "k": 1},
        name="lu_solve",
    ),
    row(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        "b n n",
        "b n k",
        make=[square, torch.randn],
        least={"n": 1},
        name="solve_triangular",
    ),
    row(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, left=False),
        "n n",
        "b k n",
        make=[square, torch.randn],
        least={"n": 1},
        name="solve_triangular_right",
    ),
    row(lambda a: torch.linalg.qr(a), "b t 3", least={"t": 1}, name="qr"),
    row(lambda a: torch.linalg.qr(a, mode="complete"), "b t 3", least={"t": 1}, name="qr_complete"),
    einsum("bij,bjk->bik", "b t 4", "b 4 k"),
    einsum("bhid,bhjd->bhij", "b 2 t 4", "b 2 k 4"),
    einsum("bhij,bjhd->bihd", "b 2 t k", "b k 2 4"),
    einsum("...i,ji->...j", "b t 4", "k 4"),
    einsum("...i,...i->...", "b t 4", "t 4"),
    einsum("i,j->ij", "b", "t"),
    einsum("i,j->ij", "b", "t", make=[ints(5), torch.randn]),
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

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


def grouped(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    return F.grouped_mm(x, w, offs=offsets)


def offsets(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def test_products_of_groups() -> None:
    """Of rows, of columns, of what is summed over, of whole matrices."""
    x, w = brains((8, 16)), brains((3, 16, 8))
    check_onnx(grouped, (x, w, offsets(2, 2, 8)), others=[(x, w, offsets(0, 5, 8))])
    check_onnx(
        grouped,
        (x, w, offsets(2, 2, 8)),
        dynamic_shapes=({0: gp.Dim("rows", min=3)}, None, None),
        others=[(brains((9, 16)), w, offsets(1, 3, 9))],
    )
    check_onnx(grouped, (brains((3, 8, 16)), brains((16, 24)), offsets(8, 8, 24)))
    check_onnx(grouped, (brains((8, 24)), brains((24, 16)), offsets(8, 8, 24)))
    check_onnx(grouped, (brains((3, 8, 16)), w))


def test_products_in_another_dtype() -> None:
    """torch has no kernel for this on the CPU: the oracle is the product of wider operands."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.mm(x, y, out_dtype=torch.float32)
        return x.float() @ y.float()

    check_onnx(fn, (brains((3, 4)), brains((4, 5))))


def test_whole_numbers_do_not_go_through_floats() -> None:
    x = torch.tensor([[7_000_000_049, 1]])
    check_onnx(lambda x, y: x @ y, (x, x.mT.contiguous() * 0 + 1))
    check_onnx(lambda x, y: torch.einsum("ij,jk->ik", x, y), (x, x.mT.contiguous() * 0 + 1))


def test_weighted_covariance() -> None:
    f, a = torch.tensor([1, 2, 3, 4, 1]), torch.rand(5)
    x = torch.randn(3, 5)
    check_onnx(lambda x, f, a: torch.cov(x, fweights=f, aweights=a), (x, f, a))
    check_onnx(lambda x, f: torch.cov(x, correction=0, fweights=f), (x, f))


def test_transposed_matrices_and_vectors() -> None:
    """ONNX Runtime makes one operator of both, which is not right for every vector."""
    w, batch, v = torch.randn(4, 6), torch.randn(2, 4, 6), torch.randn(4)
    for target in ("onnx", "ort"):
        check_onnx(lambda w, v: w.T @ v, (w, v), target=target)
        check_onnx(lambda w, v: torch.mv(w.mT, v), (w, v), target=target)
        check_onnx(lambda w, v: torch.addmv(v[0].expand(6), w.T, v), (w, v), target=target)
        check_onnx(lambda w, v: w.mT @ v, (batch, v), target=target)
        check_onnx(lambda w, v: w.permute(0, 2, 1) @ v, (batch, v), target=target)
        check_onnx(lambda w, v: v @ w.T, (w.T.contiguous(), v), target=target)
        check_onnx(lambda w, v: v @ w.mT, (batch.mT.contiguous(), v), target=target)
        check_onnx(lambda w: w.T @ (w @ w[0]), (w,), target=target)
        check_onnx(
            lambda w, v: w.T @ v,
            (w, v),
            dynamic_shapes=({0: gp.Dim("n"), 1: gp.Dim("m")}, {0: gp.Dim("n")}),
            others=[(torch.randn(5, 3), torch.randn(5))],
            target=target,
        )


def test_a_cast_between_a_transpose_and_a_product() -> None:
    """ONNX Runtime fuses all three, and for operands of different ranks ends the process."""
    x, w = torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(4, 6)
    wide = torch.randn(2, 5, 4, 6)
    n = gp.Dim("n")
    turned = lambda x: x.permute(1, 2, 0).float()
    for target in ("onnx", "ort"):
        check_onnx(lambda x, w: turned(x) @ w, (x, w), target=target)
        check_onnx(lambda x, w: w.mT @ x.permute(1, 0, 2).float(), (x, w), target=target)
        check_onnx(lambda x, w: turned(x) @ w, (x, wide), target=target)
        check_onnx(lambda x, w: F.linear(turned(x), w), (x, w.mT.contiguous()), target=target)
        check_onnx(
            lambda x, w: turned(x) @ w,
            (x, w),
            dynamic_shapes=({0: n}, {0: n}),
            others=[(x[:0], w[:0]), (x[:2], w[:2])],
            target=target,
        )
    grid = lambda x: torch.ops.aten.affine_grid_generator(turned(x), (5, 1, 1, 6), True)
    check_onnx(grid, (x[:3, :, :2],))
    check_onnx(lambda x: torch.fft.fft(turned(x)).real, (x,))
    check_onnx(lambda x, y, w: F.bilinear(turned(x), turned(x), w), (x, x, torch.randn(2, 4, 4)))


def test_a_product_of_what_a_scan_gives() -> None:
    """Its sizes are known of the result alone; fused with its transpose, 0 ends the process."""
    x = torch.randn(2, 3, 4)
    for target in ("onnx", "ort"):
        for turn in (lambda t: t, lambda t: t.mT):
            check_onnx(
                lambda x, turn=turn: turn(x.cummax(2).values) @ turn(x.mT),
                (x,),
                dynamic_shapes=({1: gp.Dim("n"), 2: gp.Dim("m")},),
                others=[(x[:, :0],), (x[..., :0],), (x[:, :0, :0],), (x[:, :1, :1],)],
                target=target,
            )


def test_products_over_nothing_are_zero() -> None:
    """Of a batch ONNX Runtime clears the first one only: the others are what memory was."""
    n = gp.Dim("n")

    def check(fn: Any, shapes: Any, *sizes: tuple[int | None, ...]) -> None:
        others = [
            tuple(torch.randn([k if s is None else s for s in size]) for size in sizes)
            for k in (7, 0, 1, 0)
        ]
        check_onnx(fn, others[0], dynamic_shapes=shapes, others=others)

    check(lambda x: x.mT @ x, ({1: n},), (3, None, 2))
    check(lambda x: x @ x.mT, ({3: n},), (2, 3, 4, None))
    check(lambda x, y: x @ y, ({0: n}, {1: n}), (None,), (3, None, 2))
    check(lambda x, y: x @ y, ({1: n}, {1: n}), (5, None), (3, None, 2))
    check(
        lambda x, y: torch.einsum("bij,bjk->bik", x, y),
        ({2: n}, {1: n}),
        (3, 5, None),
        (3, None, 2),
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    check(lambda q, k: attention(q, k, k), ({}, {2: n}), (2, 3, 4, 8), (2, 3, None, 8))


def test_a_product_that_is_empty_with_its_sum_needs_no_choice() -> None:
    dims = ({1: gp.Dim("n")},)
    program = gp.onnx.export(lambda x: x @ x.mT @ x, (torch.randn(2, 3, 4),), dynamic_shapes=dims)
    assert "Where" not in [n.op_type for n in program.model_proto.graph.node]
