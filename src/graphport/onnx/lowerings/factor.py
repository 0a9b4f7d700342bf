"""Factorisations and what is solved with them, as the textbooks have them.

ONNX has none. Each is a Loop over columns or rows, on whole batches: LU with the pivots that LAPACK
chooses, Cholesky, QR with its signs, and substitution. What is singular gives infinite or undefined
numbers, where eager may raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.control import close, within
from graphport.onnx.lowerings.linalg import product
from graphport.onnx.registry import lower
from graphport.symbolic import min_

aten = torch.ops.aten


# Loops over columns and rows


def repeat(
    b: Builder,
    count: Any,
    first: Sequence[Value],
    step: Callable[..., Sequence[Value]],
) -> list[Value]:
    """What values have become after `step(number, *values)` for each number below count."""
    if count == 0:
        return list(first)
    with within(b, "body") as graph:
        number, goes = Value("number", torch.int64, (), graph), Value("goes", torch.bool, (), graph)
        carried = [Value(f"carried_{i}", v.dtype, v.shape, graph) for i, v in enumerate(first)]
        graph.inputs += [number, goes, *carried]
        close(b, graph, [goes, *step(number, *carried)])
    made = b.Loop(
        b.sizes.number(count), None, *first, outputs=len(first), dtype=first[0].dtype, body=graph
    )
    out = [made] if len(first) == 1 else list(made)
    for value, start in zip(out, first, strict=True):
        value.dtype, value.shape = start.dtype, start.shape
    return out


def _count(b: Builder, n: Any) -> Value:
    """0, 1, ..., n - 1."""
    if isinstance(n, int):
        return b.constant(torch.arange(n))
    return b.shaped(b.Range(b.scalar(0, torch.int64), b.sizes.number(n), 1), (n,))


def _at(b: Builder, x: Value, i: Value, axis: int) -> Value:
    return b.Gather(x, i, axis=x.rank + axis)


def _column(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank)


def _row(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank - 1)


def _swapped(b: Builder, x: Value) -> Value:
    """The matrices transposed."""
    last = x.rank - 1
    return b.transpose(x, [*range(last - 1), last, last - 1])


def _eye(b: Builder, n: Any, m: Any = None) -> Value:
    return b.Equal(_column(b, _count(b, n)), _count(b, n if m is None else m))


def _diagonal(b: Builder, x: Value) -> Value:
    """Of matrices, without what is off it."""
    *_, n, m = x.shape or ()
    return b.ReduceSum(b.Where(_eye(b, n, m), x, 0), [x.rank - 1], keepdims=0)


def _permuted(b: Builder, x: Value, perm: Value) -> Value:
    """Rows in another order."""
    return b.GatherElements(x, b.expand(_column(b, perm), x.shape or ()), axis=x.rank - 2)


# LU


def _lu(b: Builder, a: Value, pivot: bool = True) -> tuple[Value, Value, Value, Value]:
    """L and U in one, the rows that were swapped, the order of rows that results, the first 0."""
    *batch, m, n = a.shape or ()
    rows, columns, steps = _count(b, m), _count(b, n), _count(b, min_(m, n))
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, a: Value, pivots: Value, perm: Value, info: Value) -> list[Value]:
        if pivot:
            size = b.Where(b.GreaterOrEqual(rows, j), b.Abs(_at(b, a, j, -1)), -1.0)
            p = b.ArgMax(size, axis=size.rank - 1, keepdims=1)
            order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
            a = b.shaped(_permuted(b, a, order), a.shape or ())
            perm = b.GatherElements(perm, order, axis=perm.rank - 1)
            pivots = b.Where(b.Equal(steps, j), p, pivots)
        top = _at(b, a, j, -2)
        head = _column(b, _at(b, top, j, -1))
        none = b.Equal(head, 0.0)
        below = b.Greater(rows, j)
        factor = _column(b, b.Where(b.And(below, b.Not(none)), b.Div(_at(b, a, j, -1), head), 0.0))
        rest = b.Where(b.Greater(columns, j), top, 0.0)
        a = b.Sub(a, b.Mul(factor, _row(b, rest)))
        a = b.Where(b.And(_column(b, below), b.Equal(columns, j)), factor, a)
        first = b.And(b.Equal(info, zero), b.squeeze(none, none.rank - 1))
        return [a, pivots, perm, b.Where(first, b.Add(j, one), info)]

    starts = [b.expand(steps, (*batch, min_(m, n))), b.expand(rows, (*batch, m)),
              b.expand(zero, batch)]  # fmt: skip
    lu, pivots, perm, info = repeat(b, min_(m, n), [a, *starts], step)
    return lu, pivots, perm, info


def _parity(b: Builder, pivots: Value, dtype: torch.dtype) -> Value:
    """1, or -1 for an odd number of swaps."""
    moved = b.cast(b.Not(b.Equal(pivots, _count(b, (pivots.shape or ())[-1]))), torch.int64)
    odd = b.Mod(b.ReduceSum(moved, [pivots.rank - 1], keepdims=0), 2)
    return b.Sub(1.0, b.Mul(b.cast(odd, dtype), 2.0))


def _lu_solved(b: Builder, lu: Value, perm: Value, right: Value) -> Value:
    *batch, n, _ = right.shape or ()
    perm = b.expand(perm, (*batch, n))
    right = b.shaped(_permuted(b, right, perm), right.shape or ())
    return _substituted(b, lu, _substituted(b, lu, right, upper=False, unit=True), upper=True)


def _substituted(b: Builder, a: Value, right: Value, upper: bool, unit: bool = False) -> Value:
    """The x of a @ x = right, from the last row up or from the first one down."""
    *_, n, _k = right.shape or ()
    rows = _column(b, _count(b, n))
    a = b.shaped(b.Trilu(a, upper=1 if upper else 0), a.shape or ())
    last = b.Sub(b.sizes.number(n), 1) if upper else None

    def step(i: Value, x: Value) -> list[Value]:
        i = i if last is None else b.Sub(last, i)
        row = _at(b, a, i, -2)
        rest = b.Sub(_row(b, _at(b, right, i, -2)), product(b, _row(b, row), x))
        if not unit:
            rest = b.Div(rest, _column(b, _column(b, _at(b, row, i, -1))))
        return [b.Where(b.Equal(rows, i), rest, x)]

    (x,) = repeat(b, n, [b.expand(b.scalar(0.0, right.dtype), right.shape or ())], step)
    return x


def _wide(b: Builder, x: Value, batch: Sequence[Any]) -> Value:
    return b.expand(x, (*batch, *(x.shape or ())[-2:]))


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
    return b.cast(b.Equal(_row(b, perm), _column(b, _count(b, n))), dtype)


def _unpacked(b: Builder, lu: Value) -> tuple[Value, Value]:
    *_, m, n = lu.shape or ()
    k, axis = min_(m, n), lu.rank - 1
    lower_part = b.Trilu(b.Slice(lu, [0], [k], [axis]), b.scalar(-1, torch.int64), upper=0)
    upper_part = b.Trilu(b.Slice(lu, [0], [k], [axis - 1]), upper=1)
    return b.Where(_eye(b, m, k), 1.0, b.cast(lower_part, lu.dtype)), upper_part


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
    rows = _count(b, m)

    def step(j: Value, perm: Value) -> list[Value]:
        p = _column(b, _at(b, pivots, j, -1))
        order = b.Where(b.Equal(rows, j), p, b.Where(b.Equal(rows, p), j, rows))
        return [b.GatherElements(perm, order, axis=perm.rank - 1)]

    return repeat(b, k, [b.expand(rows, (*batch, m))], step)[0]


@lower(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    b: Builder, LU: Value, pivots: Value, B: Value, left: bool, adjoint: bool
) -> Value:
    """X A = B is A.T X.T = B.T; A.T is U.T L.T P.T."""
    right = B if left else _swapped(b, B)
    sizes = b.result.sizes
    batch = sizes[:-2]
    right = _wide(b, right, batch)
    perm = _order(b, pivots, (LU.shape or ())[-1])
    if adjoint is left:
        turned = _swapped(b, LU)
        # The diagonal of ones is that of L: after the turn, of the upper part.
        y = _substituted(b, turned, right, upper=False)
        y = _substituted(b, turned, y, upper=True, unit=True)
        out = _permuted(b, y, b.expand(_inverse(b, perm), (*batch, *(perm.shape or ())[-1:])))
    else:
        out = _lu_solved(b, LU, perm, right)
    return out if left else _swapped(b, b.shaped(out, right.shape or ()))


def _inverse(b: Builder, perm: Value) -> Value:
    """The order that undoes another."""
    n = (perm.shape or ())[-1]
    found = b.Equal(_row(b, perm), _column(b, _count(b, n)))
    return b.ArgMax(b.cast(found, torch.int32), axis=perm.rank, keepdims=0)


@lower(aten._linalg_solve_ex.default)
def _linalg_solve_ex(b: Builder, A: Value, B: Value, left: bool, check_errors: bool) -> Any:
    sizes = b.result[0].sizes
    vector = len(sizes) == A.rank - 1 or B.rank == 1
    right = _column(b, B) if vector else B
    whole = (*sizes, 1) if vector else sizes
    if not left:
        right, whole = _swapped(b, right), (*whole[:-2], whole[-1], whole[-2])
    right = b.expand(right, whole)
    lu, pivots, perm, info = _lu(b, A)
    if left:
        out = _lu_solved(b, lu, perm, right)
    else:
        turned, _, order, _ = _lu(b, _swapped(b, A))
        out = _swapped(b, b.shaped(_lu_solved(b, turned, order, right), whole))
    if vector:
        out = b.squeeze(out, len(whole) - 1)
    return out, lu, b.Add(pivots, 1), info


@lower(aten.linalg_inv_ex.default)
def linalg_inv_ex(b: Builder, A: Value, check_errors: bool) -> Any:
    *batch, n, _ = A.shape or ()
    lu, _, perm, info = _lu(b, A)
    return _lu_solved(b, lu, perm, _identity(b, batch, n, A.dtype)), info


def _identity(b: Builder, batch: Sequence[Any], n: Any, dtype: torch.dtype) -> Value:
    return b.expand(b.cast(_eye(b, n), dtype), (*batch, n, n))


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
        return _substituted(b, self, _wide(b, B, batch), upper, unitriangular)
    right = _wide(b, _swapped(b, B), batch)
    return _swapped(b, _substituted(b, _swapped(b, self), right, not upper, unitriangular))


@lower(aten.triangular_solve.default)
def triangular_solve(
    b: Builder, self: Value, A: Value, upper: bool, transpose: bool, unitriangular: bool
) -> Any:
    batch = b.result[0].sizes[:-2]
    a = _swapped(b, A) if transpose else A
    x = _substituted(b, a, _wide(b, self, batch), upper is not transpose, unitriangular)
    return x, b.expand(A, b.result[1].sizes)


# Cholesky


@lower(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(b: Builder, self: Value, upper: bool, check_errors: bool) -> Any:
    """Column by column, of the triangle that is asked for."""
    a = _swapped(b, self) if upper else self
    *batch, n, _ = a.shape or ()
    rows = _count(b, n)
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)

    def step(j: Value, l: Value, info: Value) -> list[Value]:  # noqa: E741
        done = product(b, l, _column(b, _at(b, l, j, -2)))
        left = b.Sub(_at(b, a, j, -1), b.squeeze(done, l.rank - 1))
        head = _column(b, _at(b, left, j, -1))
        made = b.Where(b.GreaterOrEqual(rows, j), b.Div(left, b.Sqrt(head)), 0.0)
        l = b.Where(b.Equal(rows, j), _column(b, made), l)  # noqa: E741
        bad = b.squeeze(b.Not(b.Greater(head, 0.0)), head.rank - 1)
        return [l, b.Where(b.And(bad, b.Equal(info, zero)), b.Add(j, one), info)]

    start = b.expand(b.scalar(0.0, a.dtype), a.shape or ())
    out, info = repeat(b, n, [start, b.expand(zero, batch)], step)
    return (_swapped(b, out) if upper else out), info


@lower(aten.cholesky.default)
def cholesky(b: Builder, self: Value, upper: bool) -> Value:
    return linalg_cholesky_ex(b, self, upper, False)[0]


@lower(aten.cholesky_solve.default)
def cholesky_solve(b: Builder, self: Value, input2: Value, upper: bool) -> Value:
    right = _wide(b, self, b.result.sizes[:-2])
    first = _swapped(b, input2) if upper else input2
    return _substituted(b, _swapped(b, first), _substituted(b, first, right, False), True)


@lower(aten.cholesky_inverse.default)
def cholesky_inverse(b: Builder, self: Value, upper: bool) -> Value:
    *batch, n, _ = self.shape or ()
    return cholesky_solve(b, _identity(b, batch, n, self.dtype), self, upper)


# QR


@lower(aten.linalg_qr.default)
def linalg_qr(b: Builder, A: Value, mode: str) -> tuple[Value, Value]:
    """Reflections that make columns zero below the diagonal, one after another."""
    *batch, m, n = A.shape or ()
    rows = _count(b, m)

    def step(j: Value, r: Value, q: Value) -> list[Value]:
        column = b.Where(b.GreaterOrEqual(rows, j), _at(b, r, j, -1), 0.0)
        head = _column(b, _at(b, column, j, -1))
        size = b.ReduceL2(column, [column.rank - 1])
        rest = b.ReduceL2(b.Where(b.Equal(rows, j), 0.0, column), [column.rank - 1])
        end = b.Where(b.Less(head, 0.0), size, b.Neg(size))
        none = b.Equal(rest, 0.0)
        tau = b.Where(none, 0.0, b.Div(b.Sub(end, head), end))
        v = b.Where(b.Equal(rows, j), 1.0, b.Where(none, 0.0, b.Div(column, b.Sub(head, end))))
        v, tau = _column(b, v), _column(b, tau)
        r = b.Sub(r, b.Mul(tau, product(b, v, product(b, _swapped(b, v), r))))
        q = b.Sub(q, b.Mul(tau, product(b, product(b, q, v), _swapped(b, v))))
        return [r, q]

    r, q = repeat(b, min_(m, n), [A, _identity(b, batch, m, A.dtype)], step)
    r, axis = b.Trilu(r, upper=1), A.rank - 1
    if mode == "complete":
        return q, r
    k = min_(m, n)
    nothing = b.constant(torch.zeros(0, dtype=A.dtype))
    r = b.Slice(r, [0], [k], [axis - 1])
    return (nothing if mode == "r" else b.Slice(q, [0], [k], [axis])), r
