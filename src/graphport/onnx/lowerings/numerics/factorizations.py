"""Lowers LU, Cholesky and QR, linear and triangular solves, and least squares of full rank.

ONNX has none of them. Each is a Loop over columns or rows, on whole batches: LU with the pivots
that LAPACK chooses, Cholesky, reflections, and what is solved by substitution. What is singular
gives infinite or undefined numbers, where eager may raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.control import emit_counted_loop
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.reduce import reduce_extreme
from graphport.symbolic import min_


def reverse_index(b: Builder, count: object) -> Callable[[Value], Value]:
    """The numbers below count from the last one on, of those from the first on."""
    last = b.Sub(b.sizes.number(count), 1)
    return lambda i: b.Sub(last, i)


def take_at(b: Builder, x: Value, i: Value, axis: int) -> Value:
    return b.Gather(x, i, axis=x.rank + axis)


def as_column(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank)


def as_row(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank - 1)


def transpose_matrices(b: Builder, x: Value) -> Value:
    """The matrices transposed."""
    last = x.rank - 1
    return b.transpose(x, [*range(last - 1), last, last - 1])


def expand_batch(b: Builder, x: Value, batch: Sequence[object]) -> Value:
    """The matrices for each of a batch."""
    return b.expand(x, (*batch, *(x.shape or ())[-2:]))


def eye_mask(b: Builder, n: object, m: object = None) -> Value:
    return b.Equal(as_column(b, emit_arange(b, n)), emit_arange(b, n if m is None else m))


def emit_identity(
    b: Builder, batch: Sequence[object], n: object, dtype: torch.dtype, m: Any = None
) -> Value:
    m = n if m is None else m
    return b.expand(b.cast(eye_mask(b, n, m), dtype), (*batch, n, m))


def solve_triangular(b: Builder, a: Value, right: Value, upper: bool, unit: bool = False) -> Value:
    """The x of a @ x = right, from the last row up or from the first one down."""
    *_, n, _k = right.shape or ()
    rows = as_column(b, emit_arange(b, n))
    a = b.shaped(b.Trilu(a, upper=1 if upper else 0), a.shape or ())
    place = reverse_index(b, n) if upper else lambda i: i

    def step(i: Value, x: Value) -> list[Value]:
        i = place(i)
        line = take_at(b, a, i, -2)
        rest = b.Sub(as_row(b, take_at(b, right, i, -2)), emit_matmul(b, as_row(b, line), x))
        if not unit:
            rest = b.Div(rest, as_column(b, as_column(b, take_at(b, line, i, -1))))
        return [b.Where(b.Equal(rows, i), rest, x)]

    (x,) = emit_counted_loop(b, n, [b.expand(b.scalar(0.0, right.dtype), right.shape or ())], step)
    return x


# LU


def read_diagonal(b: Builder, x: Value) -> Value:
    """Of matrices, without what is off it."""
    *_, n, m = x.shape or ()
    return b.ReduceSum(b.Where(eye_mask(b, n, m), x, 0), [x.rank - 1], keepdims=0)


def _permute_rows(b: Builder, x: Value, perm: Value) -> Value:
    """Rows in another order."""
    return b.GatherElements(x, b.expand(as_column(b, perm), x.shape or ()), axis=x.rank - 2)


def _factor_lu(b: Builder, a: Value, pivot: bool = True) -> tuple[Value, Value, Value, Value]:
    """L and U in one, the rows that were swapped, the order of rows that results, the first 0."""
    *batch, m, n = a.shape or ()
    rows, columns, steps = emit_arange(b, m), emit_arange(b, n), emit_arange(b, min_(m, n))
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, a: Value, pivots: Value, perm: Value, info: Value) -> list[Value]:
        if pivot:
            size = b.Where(b.GreaterOrEqual(rows, j), b.Abs(take_at(b, a, j, -1)), -1.0)
            p = b.ArgMax(size, axis=size.rank - 1, keepdims=1)
            order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
            a = b.shaped(_permute_rows(b, a, order), a.shape or ())
            perm = b.GatherElements(perm, order, axis=perm.rank - 1)
            pivots = b.Where(b.Equal(steps, j), p, pivots)
        top = take_at(b, a, j, -2)
        head = as_column(b, take_at(b, top, j, -1))
        none = b.Equal(head, 0.0)
        below = b.Greater(rows, j)
        factor = as_column(
            b, b.Where(b.And(below, b.Not(none)), b.Div(take_at(b, a, j, -1), head), 0.0)
        )
        rest = b.Where(b.Greater(columns, j), top, 0.0)
        a = b.Sub(a, b.Mul(factor, as_row(b, rest)))
        a = b.Where(b.And(as_column(b, below), b.Equal(columns, j)), factor, a)
        first = b.And(b.Equal(info, zero), b.squeeze(none, none.rank - 1))
        return [a, pivots, perm, b.Where(first, b.Add(j, one), info)]

    starts = [
        b.expand(steps, (*batch, min_(m, n))),
        b.expand(rows, (*batch, m)),
        b.expand(zero, batch),
    ]
    lu, pivots, perm, info = emit_counted_loop(b, min_(m, n), [a, *starts], step)
    return lu, pivots, perm, info


def _permutation_sign(b: Builder, pivots: Value, dtype: torch.dtype) -> Value:
    """1, or -1 for an odd number of swaps."""
    moved = b.cast(b.Not(b.Equal(pivots, emit_arange(b, (pivots.shape or ())[-1]))), torch.int64)
    odd = b.Mod(b.ReduceSum(moved, [pivots.rank - 1], keepdims=0), 2)
    return b.Sub(1.0, b.Mul(b.cast(odd, dtype), 2.0))


def _solve_lu(b: Builder, lu: Value, perm: Value, right: Value) -> Value:
    *batch, n, _ = right.shape or ()
    perm = b.expand(perm, (*batch, n))
    right = b.shaped(_permute_rows(b, right, perm), right.shape or ())
    return solve_triangular(
        b, lu, solve_triangular(b, lu, right, upper=False, unit=True), upper=True
    )


@lower(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(b: Builder, A: Value, pivot: bool, check_errors: bool) -> Any:
    lu, pivots, _, info = _factor_lu(b, A, pivot)
    return lu, b.Add(pivots, 1), info


@lower(aten.linalg_lu.default)
def linalg_lu(b: Builder, A: Value, pivot: bool) -> Any:
    lu, _, perm, _ = _factor_lu(b, A, pivot)
    nothing = b.constant(torch.zeros(0, dtype=A.dtype))
    matrix = _permutation_matrix(b, perm, A.dtype) if pivot else nothing
    return matrix, *_unpack_lu(b, lu)


def _permutation_matrix(b: Builder, perm: Value, dtype: torch.dtype) -> Value:
    """The P of P @ L @ U: row perm[i] has its 1 at i."""
    n = (perm.shape or ())[-1]
    return b.cast(b.Equal(as_row(b, perm), as_column(b, emit_arange(b, n))), dtype)


def _unpack_lu(b: Builder, lu: Value) -> tuple[Value, Value]:
    *_, m, n = lu.shape or ()
    k, axis = min_(m, n), lu.rank - 1
    lower_part = b.Trilu(b.Slice(lu, [0], [k], [axis]), b.scalar(-1, torch.int64), upper=0)
    upper_part = b.Trilu(b.Slice(lu, [0], [k], [axis - 1]), upper=1)
    return b.Where(eye_mask(b, m, k), 1.0, b.cast(lower_part, lu.dtype)), upper_part


@lower(aten.lu_unpack.default)
def lu_unpack(
    b: Builder, LU_data: Value, LU_pivots: Value, unpack_data: bool, unpack_pivots: bool
) -> Any:
    nothing = b.constant(torch.zeros(0, dtype=LU_data.dtype))
    m = (LU_data.shape or ())[-2]
    perm = _pivots_to_permutation(b, LU_pivots, m) if unpack_pivots else None
    matrix = nothing if perm is None else _permutation_matrix(b, perm, LU_data.dtype)
    parts = _unpack_lu(b, LU_data) if unpack_data else (nothing, nothing)
    return matrix, *parts


def _pivots_to_permutation(b: Builder, pivots: Value, m: object) -> Value:
    """The order of rows after swaps, which count from 1."""
    pivots = b.Sub(b.cast(pivots, torch.int64), 1)
    *batch, k = pivots.shape or ()
    rows = emit_arange(b, m)

    def step(j: Value, perm: Value) -> list[Value]:
        p = as_column(b, take_at(b, pivots, j, -1))
        order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
        return [b.GatherElements(perm, order, axis=perm.rank - 1)]

    return emit_counted_loop(b, k, [b.expand(rows, (*batch, m))], step)[0]


@lower(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    b: Builder, LU: Value, pivots: Value, B: Value, left: bool, adjoint: bool
) -> Value:
    """X A = B is A.T X.T = B.T; A.T is U.T L.T P.T."""
    right = B if left else transpose_matrices(b, B)
    sizes = b.result.sizes
    batch = sizes[:-2]
    right = expand_batch(b, right, batch)
    perm = _pivots_to_permutation(b, pivots, (LU.shape or ())[-1])
    if adjoint is left:
        turned = transpose_matrices(b, LU)
        # The diagonal of ones is that of L: after the turn, of the upper part.
        y = solve_triangular(b, turned, right, upper=False)
        y = solve_triangular(b, turned, y, upper=True, unit=True)
        out = _permute_rows(
            b, y, b.expand(_emit_inverse_permutation(b, perm), (*batch, *(perm.shape or ())[-1:]))
        )
    else:
        out = _solve_lu(b, LU, perm, right)
    return out if left else transpose_matrices(b, b.shaped(out, right.shape or ()))


def _emit_inverse_permutation(b: Builder, perm: Value) -> Value:
    """The order that undoes another."""
    n = (perm.shape or ())[-1]
    found = b.Equal(as_row(b, perm), as_column(b, emit_arange(b, n)))
    return b.ArgMax(b.cast(found, torch.int32), axis=perm.rank, keepdims=0)


@lower(aten._linalg_solve_ex.default)
def _linalg_solve_ex(b: Builder, A: Value, B: Value, left: bool, check_errors: bool) -> Any:
    sizes = b.result[0].sizes
    vector = len(sizes) == A.rank - 1 or B.rank == 1
    right = as_column(b, B) if vector else B
    whole = (*sizes, 1) if vector else sizes
    if not left:
        right, whole = transpose_matrices(b, right), (*whole[:-2], whole[-1], whole[-2])
    right = b.expand(right, whole)
    lu, pivots, perm, info = _factor_lu(b, A)
    if left:
        out = _solve_lu(b, lu, perm, right)
    else:
        turned, _, order, _ = _factor_lu(b, transpose_matrices(b, A))
        out = transpose_matrices(b, b.shaped(_solve_lu(b, turned, order, right), whole))
    if vector:
        out = b.squeeze(out, len(whole) - 1)
    return out, lu, b.Add(pivots, 1), info


@lower(aten.linalg_inv_ex.default)
def linalg_inv_ex(b: Builder, A: Value, check_errors: bool) -> Any:
    *batch, n, _ = A.shape or ()
    lu, _, perm, info = _factor_lu(b, A)
    return _solve_lu(b, lu, perm, emit_identity(b, batch, n, A.dtype)), info


@lower(aten._linalg_det.default)
def _linalg_det(b: Builder, A: Value) -> Any:
    lu, pivots, _, _ = _factor_lu(b, A)
    diagonal = read_diagonal(b, lu)
    size = b.ReduceProd(diagonal, [diagonal.rank - 1], keepdims=0)
    return b.Mul(size, _permutation_sign(b, pivots, A.dtype)), lu, b.Add(pivots, 1)


@lower(aten._linalg_slogdet.default)
def _linalg_slogdet(b: Builder, A: Value) -> Any:
    lu, pivots, _, _ = _factor_lu(b, A)
    diagonal = read_diagonal(b, lu)
    last = [diagonal.rank - 1]
    sign = b.Mul(
        b.ReduceProd(b.Sign(diagonal), last, keepdims=0), _permutation_sign(b, pivots, A.dtype)
    )
    size = b.ReduceSum(b.Log(b.Abs(diagonal)), last, keepdims=0)
    return sign, size, lu, b.Add(pivots, 1)


# Triangles


@lower(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    b: Builder, self: Value, B: Value, upper: bool, left: bool, unitriangular: bool
) -> Value:
    batch = b.result.sizes[:-2]
    if left:
        return solve_triangular(b, self, expand_batch(b, B, batch), upper, unitriangular)
    right = expand_batch(b, transpose_matrices(b, B), batch)
    return transpose_matrices(
        b, solve_triangular(b, transpose_matrices(b, self), right, not upper, unitriangular)
    )


@lower(aten.triangular_solve.default)
def triangular_solve(
    b: Builder, self: Value, A: Value, upper: bool, transpose: bool, unitriangular: bool
) -> Any:
    batch = b.result[0].sizes[:-2]
    a = transpose_matrices(b, A) if transpose else A
    x = solve_triangular(b, a, expand_batch(b, self, batch), upper is not transpose, unitriangular)
    return x, b.expand(A, b.result[1].sizes)


# Cholesky


@lower(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(b: Builder, self: Value, upper: bool, check_errors: bool) -> Any:
    """Column by column, of the triangle that is asked for."""
    a = transpose_matrices(b, self) if upper else self
    *batch, n, _ = a.shape or ()
    rows = emit_arange(b, n)
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, l: Value, info: Value) -> list[Value]:  # noqa: E741
        done = emit_matmul(b, l, as_column(b, take_at(b, l, j, -2)))
        left = b.Sub(take_at(b, a, j, -1), b.squeeze(done, l.rank - 1))
        head = as_column(b, take_at(b, left, j, -1))
        made = b.Where(b.GreaterOrEqual(rows, j), b.Div(left, b.Sqrt(head)), 0.0)
        l = b.Where(b.Equal(rows, j), as_column(b, made), l)  # noqa: E741
        bad = b.squeeze(b.Not(b.Greater(head, 0.0)), head.rank - 1)
        return [l, b.Where(b.And(bad, b.Equal(info, zero)), b.Add(j, one), info)]

    start = b.expand(b.scalar(0.0, a.dtype), a.shape or ())
    out, info = emit_counted_loop(b, n, [start, b.expand(zero, batch)], step)
    return (transpose_matrices(b, out) if upper else out), info


@lower(aten.cholesky.default)
def cholesky(b: Builder, self: Value, upper: bool) -> Value:
    return linalg_cholesky_ex(b, self, upper, False)[0]


@lower(aten.cholesky_solve.default)
def cholesky_solve(b: Builder, self: Value, input2: Value, upper: bool) -> Value:
    right = expand_batch(b, self, b.result.sizes[:-2])
    first = transpose_matrices(b, input2) if upper else input2
    return solve_triangular(
        b, transpose_matrices(b, first), solve_triangular(b, first, right, False), True
    )


@lower(aten.cholesky_inverse.default)
def cholesky_inverse(b: Builder, self: Value, upper: bool) -> Value:
    *batch, n, _ = self.shape or ()
    return cholesky_solve(b, emit_identity(b, batch, n, self.dtype), self, upper)


# Householder reflections, as LAPACK has them: QR, products of reflections, least squares.
#
# A reflection is I - tau * v @ v.T, with a v that has 0 before its own row and 1 in it: below the
# diagonal of a matrix there is room for the rest of all of them.


@lower(aten.geqrf.default)
def geqrf(b: Builder, self: Value) -> tuple[Value, Value]:
    """Column by column: what is below the diagonal is reflected to 0."""
    *batch, m, n = self.sizes
    k = min_(m, n)
    rows, columns, steps = emit_arange(b, m), emit_arange(b, n), emit_arange(b, k)

    def step(j: Value, a: Value, taus: Value) -> list[Value]:
        own, after = b.Equal(rows, j), b.Greater(rows, j)
        x = take_at(b, a, j, -1)
        head = as_column(b, take_at(b, x, j, -1))
        tail = b.Where(after, x, 0.0)
        rest = reduce_extreme(b, "ReduceMax", b.Abs(tail), [x.rank - 1], True)
        none = b.Equal(rest, 0.0)
        most = b.Max(rest, b.Abs(head))  # squares of what is not near 1 would be 0 or infinite
        size = b.Mul(b.ReduceL2(b.Div(b.Where(own, x, tail), most), [x.rank - 1]), most)
        end = b.Where(none, head, b.Where(b.Less(head, 0.0), size, b.Neg(size)))
        tau = b.Where(none, 0.0, b.Div(b.Sub(end, head), end))
        v = b.Where(own, 1.0, b.Where(none, 0.0, b.Div(tail, b.Sub(head, end))))
        moved = emit_matmul(b, as_row(b, v), a)
        moved = b.Where(b.Greater(columns, j), b.Mul(as_column(b, tau), moved), 0.0)
        kept = b.Where(own, end, b.Where(after, v, x))
        a = b.Where(
            b.Equal(columns, j), as_column(b, kept), b.Sub(a, b.Mul(as_column(b, v), moved))
        )
        return [a, b.Where(b.Equal(steps, j), tau, taus)]

    start = b.expand(b.scalar(0.0, self.dtype), (*batch, k))
    a, taus = emit_counted_loop(b, k, [self, start], step)
    return a, taus


def apply_reflections(b: Builder, a: Value, tau: Value, x: Value, first: bool = False) -> Value:
    """Q @ x, of the reflections in a; their product the other way, Q.T @ x, from the first on."""
    rows = emit_arange(b, a.sizes[-2])
    count = tau.sizes[-1]
    place = (lambda i: i) if first or count == 0 else reverse_index(b, count)

    def step(i: Value, x: Value) -> list[Value]:
        i = place(i)
        tail = b.Where(b.Greater(rows, i), take_at(b, a, i, -1), 0.0)
        v = b.Where(b.Equal(rows, i), 1.0, tail)
        scale = as_column(b, as_column(b, take_at(b, tau, i, -1)))
        moved = emit_matmul(b, as_row(b, v), x)
        return [b.Sub(x, b.Mul(as_column(b, v), b.Mul(scale, moved)))]

    return emit_counted_loop(b, count, [x], step)[0]


@lower(aten.linalg_householder_product.default)
def linalg_householder_product(b: Builder, input: Value, tau: Value) -> Value:
    *batch, m, n = input.sizes
    return apply_reflections(b, input, tau, emit_identity(b, batch, m, input.dtype, n))


@lower(aten.ormqr.default)
def ormqr(
    b: Builder, self: Value, input2: Value, input3: Value, left: bool, transpose: bool
) -> Value:
    """C @ Q is (Q.T @ C.T).T."""
    x = input3 if left else transpose_matrices(b, input3)
    out = apply_reflections(b, self, input2, x, first=left is transpose)
    return out if left else transpose_matrices(b, out)


@lower(aten.linalg_qr.default)
def linalg_qr(b: Builder, A: Value, mode: str) -> tuple[Value, Value]:
    *batch, m, n = A.sizes
    a, tau = geqrf(b, A)
    k = m if mode == "complete" else min_(m, n)
    r = b.Trilu(a, upper=1)
    if k != m:
        r = b.Slice(r, [0], [k], [A.rank - 2])
    if mode == "r":
        return b.constant(torch.zeros(0, dtype=A.dtype)), r
    return apply_reflections(b, a, tau, emit_identity(b, batch, m, A.dtype, k)), r


# Least squares of matrices of full rank


def solve_overdetermined(b: Builder, a: Value, right: Value) -> tuple[Value, Value]:
    """R @ x is the head of Q.T @ right; the rest of it is what cannot be met."""
    *batch, m, n = a.sizes
    k, axis = right.sizes[-1], right.rank - 2
    a, tau = geqrf(b, a)
    y = apply_reflections(b, a, tau, right, first=True)
    head, tail = b.Slice(y, [0], [n], [axis]), b.Slice(y, [n], [m], [axis])
    r = b.shaped(b.Slice(a, [0], [n], [axis]), (*batch, n, n))
    x = solve_triangular(b, r, b.shaped(head, (*batch, n, k)), upper=True)
    return x, b.shaped(b.ReduceSumSquare(tail, [axis], keepdims=0), (*batch, k))


def solve_underdetermined(b: Builder, a: Value, right: Value) -> tuple[Value, Value]:
    """Of all solutions the smallest: Q @ y where R.T @ y is right, and 0 in the rest of y."""
    *batch, m, n = a.sizes
    k, rank = right.sizes[-1], right.rank
    a, tau = geqrf(b, transpose_matrices(b, a))
    r = b.shaped(b.Slice(a, [0], [m], [rank - 2]), (*batch, m, m))
    y = solve_triangular(b, transpose_matrices(b, r), right, upper=False)
    zeros = b.expand(b.scalar(0.0, y.dtype), (*batch, n - m, k))
    y = b.shaped(b.Concat(y, zeros, axis=rank - 2), (*batch, n, k))
    return apply_reflections(b, a, tau, y), y
