"""Factorisations and what is solved with them, as the textbooks have them.

ONNX has none. Each is a Loop over columns or rows, on whole batches: LU with the pivots that LAPACK
chooses, Cholesky, and what is solved by substitution. What is singular gives infinite or undefined
numbers, where eager may raise an error.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.columns import (
    at,
    column,
    eye,
    identity,
    numbers,
    repeat,
    row,
    substituted,
    swapped,
    wide,
)
from graphport.onnx.lowerings.linalg import product
from graphport.onnx.registry import lower
from graphport.symbolic import min_

aten = torch.ops.aten


# LU


def _diagonal(b: Builder, x: Value) -> Value:
    """Of matrices, without what is off it."""
    *_, n, m = x.shape or ()
    return b.ReduceSum(b.Where(eye(b, n, m), x, 0), [x.rank - 1], keepdims=0)


def _permuted(b: Builder, x: Value, perm: Value) -> Value:
    """Rows in another order."""
    return b.GatherElements(x, b.expand(column(b, perm), x.shape or ()), axis=x.rank - 2)


def _lu(b: Builder, a: Value, pivot: bool = True) -> tuple[Value, Value, Value, Value]:
    """L and U in one, the rows that were swapped, the order of rows that results, the first 0."""
    *batch, m, n = a.shape or ()
    rows, columns, steps = numbers(b, m), numbers(b, n), numbers(b, min_(m, n))
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, a: Value, pivots: Value, perm: Value, info: Value) -> list[Value]:
        if pivot:
            size = b.Where(b.GreaterOrEqual(rows, j), b.Abs(at(b, a, j, -1)), -1.0)
            p = b.ArgMax(size, axis=size.rank - 1, keepdims=1)
            order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
            a = b.shaped(_permuted(b, a, order), a.shape or ())
            perm = b.GatherElements(perm, order, axis=perm.rank - 1)
            pivots = b.Where(b.Equal(steps, j), p, pivots)
        top = at(b, a, j, -2)
        head = column(b, at(b, top, j, -1))
        none = b.Equal(head, 0.0)
        below = b.Greater(rows, j)
        factor = column(b, b.Where(b.And(below, b.Not(none)), b.Div(at(b, a, j, -1), head), 0.0))
        rest = b.Where(b.Greater(columns, j), top, 0.0)
        a = b.Sub(a, b.Mul(factor, row(b, rest)))
        a = b.Where(b.And(column(b, below), b.Equal(columns, j)), factor, a)
        first = b.And(b.Equal(info, zero), b.squeeze(none, none.rank - 1))
        return [a, pivots, perm, b.Where(first, b.Add(j, one), info)]

    starts = [b.expand(steps, (*batch, min_(m, n))), b.expand(rows, (*batch, m)),
              b.expand(zero, batch)]  # fmt: skip
    lu, pivots, perm, info = repeat(b, min_(m, n), [a, *starts], step)
    return lu, pivots, perm, info


def _parity(b: Builder, pivots: Value, dtype: torch.dtype) -> Value:
    """1, or -1 for an odd number of swaps."""
    moved = b.cast(b.Not(b.Equal(pivots, numbers(b, (pivots.shape or ())[-1]))), torch.int64)
    odd = b.Mod(b.ReduceSum(moved, [pivots.rank - 1], keepdims=0), 2)
    return b.Sub(1.0, b.Mul(b.cast(odd, dtype), 2.0))


def _lu_solved(b: Builder, lu: Value, perm: Value, right: Value) -> Value:
    *batch, n, _ = right.shape or ()
    perm = b.expand(perm, (*batch, n))
    right = b.shaped(_permuted(b, right, perm), right.shape or ())
    return substituted(b, lu, substituted(b, lu, right, upper=False, unit=True), upper=True)


@lower(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(b: Builder, A: Value, pivot: bool, check_errors: bool) -> Any:
    lu, pivots, _, info = _lu(b, A, pivot)
    return lu, b.Add(pivots, 1), info


@lower(aten.linalg_lu.default)
def linalg_lu(b: Builder, A: Value, pivot: bool) -> Any:
    lu, _, perm, _ = _lu(b, A, pivot)
    nothing = b.constant(torch.zeros(0, dtype=A.dtype))
    matrix = _permutation(b, perm, A.dtype) if pivot else nothing
    return matrix, *_unpacked(b, lu)


def _permutation(b: Builder, perm: Value, dtype: torch.dtype) -> Value:
    """The P of P @ L @ U: row perm[i] has its 1 at i."""
    n = (perm.shape or ())[-1]
    return b.cast(b.Equal(row(b, perm), column(b, numbers(b, n))), dtype)


def _unpacked(b: Builder, lu: Value) -> tuple[Value, Value]:
    *_, m, n = lu.shape or ()
    k, axis = min_(m, n), lu.rank - 1
    lower_part = b.Trilu(b.Slice(lu, [0], [k], [axis]), b.scalar(-1, torch.int64), upper=0)
    upper_part = b.Trilu(b.Slice(lu, [0], [k], [axis - 1]), upper=1)
    return b.Where(eye(b, m, k), 1.0, b.cast(lower_part, lu.dtype)), upper_part


@lower(aten.lu_unpack.default)
def lu_unpack(
    b: Builder, LU_data: Value, LU_pivots: Value, unpack_data: bool, unpack_pivots: bool
) -> Any:
    nothing = b.constant(torch.zeros(0, dtype=LU_data.dtype))
    m = (LU_data.shape or ())[-2]
    perm = _order(b, LU_pivots, m) if unpack_pivots else None
    matrix = nothing if perm is None else _permutation(b, perm, LU_data.dtype)
    parts = _unpacked(b, LU_data) if unpack_data else (nothing, nothing)
    return matrix, *parts


def _order(b: Builder, pivots: Value, m: Any) -> Value:
    """The order of rows after swaps, which count from 1."""
    pivots = b.Sub(b.cast(pivots, torch.int64), 1)
    *batch, k = pivots.shape or ()
    rows = numbers(b, m)

    def step(j: Value, perm: Value) -> list[Value]:
        p = column(b, at(b, pivots, j, -1))
        order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
        return [b.GatherElements(perm, order, axis=perm.rank - 1)]

    return repeat(b, k, [b.expand(rows, (*batch, m))], step)[0]


@lower(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    b: Builder, LU: Value, pivots: Value, B: Value, left: bool, adjoint: bool
) -> Value:
    """X A = B is A.T X.T = B.T; A.T is U.T L.T P.T."""
    right = B if left else swapped(b, B)
    sizes = b.result.sizes
    batch = sizes[:-2]
    right = wide(b, right, batch)
    perm = _order(b, pivots, (LU.shape or ())[-1])
    if adjoint is left:
        turned = swapped(b, LU)
        # The diagonal of ones is that of L: after the turn, of the upper part.
        y = substituted(b, turned, right, upper=False)
        y = substituted(b, turned, y, upper=True, unit=True)
        out = _permuted(b, y, b.expand(_inverse(b, perm), (*batch, *(perm.shape or ())[-1:])))
    else:
        out = _lu_solved(b, LU, perm, right)
    return out if left else swapped(b, b.shaped(out, right.shape or ()))


def _inverse(b: Builder, perm: Value) -> Value:
    """The order that undoes another."""
    n = (perm.shape or ())[-1]
    found = b.Equal(row(b, perm), column(b, numbers(b, n)))
    return b.ArgMax(b.cast(found, torch.int32), axis=perm.rank, keepdims=0)


@lower(aten._linalg_solve_ex.default)
def _linalg_solve_ex(b: Builder, A: Value, B: Value, left: bool, check_errors: bool) -> Any:
    sizes = b.result[0].sizes
    vector = len(sizes) == A.rank - 1 or B.rank == 1
    right = column(b, B) if vector else B
    whole = (*sizes, 1) if vector else sizes
    if not left:
        right, whole = swapped(b, right), (*whole[:-2], whole[-1], whole[-2])
    right = b.expand(right, whole)
    lu, pivots, perm, info = _lu(b, A)
    if left:
        out = _lu_solved(b, lu, perm, right)
    else:
        turned, _, order, _ = _lu(b, swapped(b, A))
        out = swapped(b, b.shaped(_lu_solved(b, turned, order, right), whole))
    if vector:
        out = b.squeeze(out, len(whole) - 1)
    return out, lu, b.Add(pivots, 1), info


@lower(aten.linalg_inv_ex.default)
def linalg_inv_ex(b: Builder, A: Value, check_errors: bool) -> Any:
    *batch, n, _ = A.shape or ()
    lu, _, perm, info = _lu(b, A)
    return _lu_solved(b, lu, perm, identity(b, batch, n, A.dtype)), info


@lower(aten._linalg_det.default)
def _linalg_det(b: Builder, A: Value) -> Any:
    lu, pivots, _, _ = _lu(b, A)
    diagonal = _diagonal(b, lu)
    size = b.ReduceProd(diagonal, [diagonal.rank - 1], keepdims=0)
    return b.Mul(size, _parity(b, pivots, A.dtype)), lu, b.Add(pivots, 1)


@lower(aten._linalg_slogdet.default)
def _linalg_slogdet(b: Builder, A: Value) -> Any:
    lu, pivots, _, _ = _lu(b, A)
    diagonal = _diagonal(b, lu)
    last = [diagonal.rank - 1]
    sign = b.Mul(b.ReduceProd(b.Sign(diagonal), last, keepdims=0), _parity(b, pivots, A.dtype))
    size = b.ReduceSum(b.Log(b.Abs(diagonal)), last, keepdims=0)
    return sign, size, lu, b.Add(pivots, 1)


# Triangles


@lower(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    b: Builder, self: Value, B: Value, upper: bool, left: bool, unitriangular: bool
) -> Value:
    batch = b.result.sizes[:-2]
    if left:
        return substituted(b, self, wide(b, B, batch), upper, unitriangular)
    right = wide(b, swapped(b, B), batch)
    return swapped(b, substituted(b, swapped(b, self), right, not upper, unitriangular))


@lower(aten.triangular_solve.default)
def triangular_solve(
    b: Builder, self: Value, A: Value, upper: bool, transpose: bool, unitriangular: bool
) -> Any:
    batch = b.result[0].sizes[:-2]
    a = swapped(b, A) if transpose else A
    x = substituted(b, a, wide(b, self, batch), upper is not transpose, unitriangular)
    return x, b.expand(A, b.result[1].sizes)


# Cholesky


@lower(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(b: Builder, self: Value, upper: bool, check_errors: bool) -> Any:
    """Column by column, of the triangle that is asked for."""
    a = swapped(b, self) if upper else self
    *batch, n, _ = a.shape or ()
    rows = numbers(b, n)
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, l: Value, info: Value) -> list[Value]:  # noqa: E741
        done = product(b, l, column(b, at(b, l, j, -2)))
        left = b.Sub(at(b, a, j, -1), b.squeeze(done, l.rank - 1))
        head = column(b, at(b, left, j, -1))
        made = b.Where(b.GreaterOrEqual(rows, j), b.Div(left, b.Sqrt(head)), 0.0)
        l = b.Where(b.Equal(rows, j), column(b, made), l)  # noqa: E741
        bad = b.squeeze(b.Not(b.Greater(head, 0.0)), head.rank - 1)
        return [l, b.Where(b.And(bad, b.Equal(info, zero)), b.Add(j, one), info)]

    start = b.expand(b.scalar(0.0, a.dtype), a.shape or ())
    out, info = repeat(b, n, [start, b.expand(zero, batch)], step)
    return (swapped(b, out) if upper else out), info


@lower(aten.cholesky.default)
def cholesky(b: Builder, self: Value, upper: bool) -> Value:
    return linalg_cholesky_ex(b, self, upper, False)[0]


@lower(aten.cholesky_solve.default)
def cholesky_solve(b: Builder, self: Value, input2: Value, upper: bool) -> Value:
    right = wide(b, self, b.result.sizes[:-2])
    first = swapped(b, input2) if upper else input2
    return substituted(b, swapped(b, first), substituted(b, first, right, False), True)


@lower(aten.cholesky_inverse.default)
def cholesky_inverse(b: Builder, self: Value, upper: bool) -> Value:
    *batch, n, _ = self.shape or ()
    return cholesky_solve(b, identity(b, batch, n, self.dtype), self, upper)
