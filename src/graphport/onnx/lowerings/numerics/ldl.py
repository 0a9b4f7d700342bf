"""Lowers LDL factorisation and its solve, by the Bunch-Kaufman method.

D has blocks of one row or two, as the pivots of LAPACK have it: a positive one is the row, counted
from 1, that was swapped with its own; two that are equal and negative stand for a block of two
rows, of which the second was swapped. Only the lower triangle of the matrix is read.
"""

from __future__ import annotations

import math

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import Lowered, lower
from graphport.onnx.lowerings.control import emit_counted_loop
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.numerics.factorizations import (
    as_column,
    as_row,
    expand_batch,
    eye_mask,
    reverse_index,
    take_at,
    transpose_matrices,
)

_ALPHA = (1 + math.sqrt(17)) / 8


@lower(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(b: Builder, self: Value, hermitian: bool, check_errors: bool) -> Lowered:
    *batch, n, _ = self.sizes
    rows = emit_arange(b, n)
    zero, false = b.scalar(0, torch.int64), b.scalar(False, torch.bool)

    def step(k: Value, a: Value, pivots: Value, info: Value, taken: Value) -> list[Value]:
        """One column, or two; the second of two is left as it is."""
        double, p = _choose_pivot(b, a, k, rows)
        own = b.Add(k, b.cast(double, torch.int64))
        moved = _swap_rows(b, a, k, own, p, rows)
        none = b.Equal(
            b.ReduceMax(b.Where(b.Less(rows, k), 0.0, b.Abs(take_at(b, a, k, -1))), [a.rank - 2]),
            0.0,
        )
        made = _eliminate_block(b, moved, k, own, double, rows)
        number = b.Add(p, 1)
        mine = b.And(b.GreaterOrEqual(rows, k), b.LessOrEqual(rows, own))
        marked = b.Where(mine, b.Where(double, b.Neg(number), number), pivots)
        first = b.And(b.Not(taken), b.And(none, b.Equal(info, zero)))
        return [
            b.shaped(b.Where(as_column(b, taken), a, made), self.sizes),
            b.shaped(b.Where(taken, pivots, marked), (*batch, n)),
            b.shaped(b.Where(first, b.Add(k, 1), info), (*batch, 1)),
            b.shaped(b.And(double, b.Not(taken)), (*batch, 1)),
        ]

    low = b.Trilu(self, upper=0)
    whole = b.Where(
        eye_mask(b, n), self, b.Add(low, transpose_matrices(b, b.shaped(low, self.sizes)))
    )
    starts = [
        b.expand(rows, (*batch, n)),
        b.expand(zero, (*batch, 1)),
        b.expand(false, (*batch, 1)),
    ]
    a, pivots, info, _ = emit_counted_loop(b, n, [b.shaped(whole, self.sizes), *starts], step)
    return b.Trilu(a, upper=0), pivots, b.squeeze(info, -1)


def _choose_pivot(b: Builder, a: Value, k: Value, rows: Value) -> tuple[Value, Value]:
    """Whether two rows are taken, and which row the last of them is swapped with."""
    last = [a.rank - 2]
    here = b.Abs(take_at(b, a, k, -1))
    below = b.Where(b.Greater(rows, k), here, -1.0)
    most = b.Max(b.ReduceMax(below, last), 0.0)
    place = b.ArgMax(below, axis=last[0], keepdims=1)
    line = b.Abs(_gather_row(b, a, place, rows))
    others = b.And(b.GreaterOrEqual(rows, k), b.Not(b.Equal(rows, place)))
    rest = b.ReduceMax(b.Where(others, line, 0.0), last)
    head = as_column(b, take_at(b, here, k, -1))
    there = b.ReduceSum(b.Where(b.Equal(rows, place), line, 0.0), last)
    near = b.GreaterOrEqual(head, b.Mul(most, _ALPHA))
    good = b.GreaterOrEqual(head, b.Mul(b.Mul(most, _ALPHA), b.Div(most, rest)))
    stays = b.Or(near, good)
    single = b.Or(stays, b.GreaterOrEqual(there, b.Mul(rest, _ALPHA)))
    return b.Not(single), b.Where(stays, k, place)


def _gather_row(b: Builder, a: Value, place: Value, rows: Value) -> Value:
    """A row of each matrix."""
    found = b.Equal(as_column(b, rows), as_row(b, place))
    return b.ReduceSum(b.Where(found, a, 0.0), [a.rank - 2], keepdims=0)


def _swap_order(b: Builder, own: Value, p: Value, rows: Value) -> Value:
    return b.Where(b.Equal(rows, own), p, b.Where(b.Equal(rows, p), own, rows))


def _swap_rows(b: Builder, a: Value, k: Value, own: Value, p: Value, rows: Value) -> Value:
    """Two rows swapped, and the columns of the same numbers; columns that are done stay."""
    order = b.shaped(_swap_order(b, own, p, rows), a.sizes[:-1])
    turned = b.GatherElements(a, b.expand(as_column(b, order), a.sizes), axis=a.rank - 2)
    turned = b.Where(b.Less(rows, k), a, turned)
    return b.GatherElements(turned, b.expand(as_row(b, order), a.sizes), axis=a.rank - 1)


def _eliminate_block(
    b: Builder, a: Value, k: Value, own: Value, double: Value, rows: Value
) -> Value:
    """What the block leaves of the matrix, and the columns of L in the place of its own."""
    after = b.Greater(rows, own)
    follower = b.Min(b.Add(k, 1), b.Sub(b.sizes.number(rows.sizes[0]), 1))
    p, q = take_at(b, a, k, -1), take_at(b, a, follower, -1)
    first, second = as_column(b, take_at(b, p, k, -1)), as_column(b, take_at(b, q, follower, -1))
    side = as_column(b, take_at(b, p, follower, -1))
    d1, d2 = b.Div(second, side), b.Div(first, side)
    scale = b.Div(b.Div(1.0, b.Sub(b.Mul(d1, d2), 1.0)), side)
    one = b.Where(b.Equal(first, 0.0), p, b.Div(p, first))
    u = b.Where(double, b.Mul(scale, b.Sub(b.Mul(d1, p), q)), one)
    v = b.Where(double, b.Mul(scale, b.Sub(b.Mul(d2, q), p)), 0.0)
    less = b.Mul(as_column(b, q), as_row(b, v))
    less = b.Add(b.Mul(as_column(b, p), as_row(b, u)), b.Where(as_column(b, double), less, 0.0))
    corner = b.And(as_column(b, after), as_row(b, after))
    a = b.Where(corner, b.Sub(a, less), a)
    a = b.Where(b.And(as_column(b, after), b.Equal(rows, k)), as_column(b, u), a)
    both = b.And(as_column(b, double), b.Equal(rows, b.Add(k, 1)))
    return b.Where(b.And(as_column(b, after), both), as_column(b, v), a)


@lower(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(b: Builder, LD: Value, pivots: Value, B: Value, hermitian: bool) -> Value:
    """L y = B from the first row on, D z = y, L.T x = z from the last on, with rows swapped."""
    *batch, n, _ = b.result.sizes
    ld, x = expand_batch(b, LD, batch), expand_batch(b, B, batch)
    rows = emit_arange(b, n)
    pivots = b.expand(b.cast(pivots, torch.int64), (*batch, n))
    firsts, seconds = _find_blocks(b, pivots, rows)

    def parts(k: Value) -> tuple[Value, Value, Value]:
        """The column of L, where it is below the diagonal, and the order of rows with it."""
        p = b.Sub(b.Abs(as_column(b, take_at(b, pivots, k, -1))), 1)
        own = b.Add(k, b.cast(as_column(b, take_at(b, firsts, k, -1)), torch.int64))
        order = b.Where(
            as_column(b, take_at(b, seconds, k, -1)), rows, _swap_order(b, own, p, rows)
        )
        order = b.shaped(order, (*batch, n))
        below = b.Greater(rows, own)
        column = b.Where(below, take_at(b, ld, k, -1), 0.0)
        return as_column(b, column), as_column(b, below), order

    def turned(x: Value, order: Value) -> Value:
        index = b.expand(as_column(b, order), x.sizes)
        return b.shaped(b.GatherElements(x, index, axis=x.rank - 2), x.sizes)

    def down(k: Value, x: Value) -> list[Value]:
        lower_part, _, order = parts(k)
        x = turned(x, order)
        return [b.Sub(x, b.Mul(lower_part, as_row(b, take_at(b, x, k, -2))))]

    place = reverse_index(b, n) if n != 0 else None

    def up(i: Value, x: Value) -> list[Value]:
        assert place is not None
        k = place(i)
        lower_part, below, order = parts(k)
        # A row that is infinite, as of a singular matrix, is no part of the products above it.
        less = emit_matmul(b, transpose_matrices(b, lower_part), b.Where(below, x, 0.0))
        return [turned(b.Where(as_column(b, b.Equal(rows, k)), b.Sub(x, less), x), order)]

    (y,) = emit_counted_loop(b, n, [x], down)
    return emit_counted_loop(b, n, [_solve_blocks(b, ld, y, firsts, seconds, rows)], up)[0]


def _find_blocks(b: Builder, pivots: Value, rows: Value) -> tuple[Value, Value]:
    """The first rows of blocks of two, and the second ones."""
    *batch, n = pivots.sizes
    negative = b.Less(pivots, 0)

    def step(k: Value, firsts: Value, taken: Value) -> list[Value]:
        first = b.And(as_column(b, take_at(b, negative, k, -1)), b.Not(taken))
        return [b.Where(b.Equal(rows, k), first, firsts), first]

    false = b.scalar(False, torch.bool)
    starts = [b.expand(false, (*batch, n)), b.expand(false, (*batch, 1))]
    firsts, _ = emit_counted_loop(b, n, starts, step)
    return firsts, b.shaped(b.And(negative, b.Not(firsts)), pivots.sizes)


def _solve_blocks(
    b: Builder, ld: Value, y: Value, firsts: Value, seconds: Value, rows: Value
) -> Value:
    """The z of D z = y: each row on its own, or with the other of its block."""

    def other(x: Value, axis: int) -> Value:
        index = places if x.rank == places.rank else b.expand(as_column(b, places), x.sizes)
        return b.shaped(b.GatherElements(x, index, axis=axis), x.sizes)

    def line(below: int) -> Value:
        on = b.Equal(as_column(b, rows), b.Add(rows, below) if below else rows)
        found = b.ReduceSum(b.Where(on, ld, 0.0), [ld.rank - 2], keepdims=0)
        return b.shaped(found, firsts.sizes)

    first, second = (b.cast(v, torch.int64) for v in (firsts, seconds))
    places = b.shaped(b.Sub(b.Add(rows, first), second), firsts.sizes)
    axis = ld.rank - 2
    diagonal, side = line(0), line(1)
    side = as_column(b, b.Where(firsts, side, other(side, axis)))
    mine, theirs = (b.Div(as_column(b, v), side) for v in (diagonal, other(diagonal, axis)))
    pair = b.Sub(b.Mul(theirs, b.Div(y, side)), b.Div(other(y, axis), side))
    pair = b.Div(pair, b.Sub(b.Mul(mine, theirs), 1.0))
    out = b.Where(as_column(b, b.Or(firsts, seconds)), pair, b.Div(y, as_column(b, diagonal)))
    return b.shaped(out, y.sizes)
