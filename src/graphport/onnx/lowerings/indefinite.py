"""Symmetric matrices that need not be definite: L D L.T, by the method of Bunch and Kaufman.

D has blocks of one row or two, as the pivots of LAPACK have it: a positive one is the row, counted
from 1, that was swapped with its own; two that are equal and negative stand for a block of two
rows, of which the second was swapped. Only the lower triangle of the matrix is read.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.columns import (
    at,
    column,
    downward,
    eye,
    numbers,
    repeat,
    row,
    swapped,
    wide,
)
from graphport.onnx.lowerings.linalg import product
from graphport.onnx.registry import lower

aten = torch.ops.aten

_ALPHA = (1 + math.sqrt(17)) / 8


@lower(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(b: Builder, self: Value, hermitian: bool, check_errors: bool) -> Any:
    *batch, n, _ = self.sizes
    rows = numbers(b, n)
    zero, false = b.scalar(0, torch.int64), b.scalar(False, torch.bool)

    def step(k: Value, a: Value, pivots: Value, info: Value, taken: Value) -> list[Value]:
        """One column, or two; the second of two is left as it is."""
        double, p = _pivot(b, a, k, rows)
        own = b.Add(k, b.cast(double, torch.int64))
        moved = _moved(b, a, k, own, p, rows)
        none = b.Equal(b.ReduceMax(b.Where(b.Less(rows, k), 0.0, b.Abs(at(b, a, k, -1))),
                                   [a.rank - 2]), 0.0)  # fmt: skip
        made = _eliminated(b, moved, k, own, double, rows)
        number = b.Add(p, 1)
        mine = b.And(b.GreaterOrEqual(rows, k), b.LessOrEqual(rows, own))
        marked = b.Where(mine, b.Where(double, b.Neg(number), number), pivots)
        first = b.And(b.Not(taken), b.And(none, b.Equal(info, zero)))
        return [
            b.shaped(b.Where(column(b, taken), a, made), self.sizes),
            b.shaped(b.Where(taken, pivots, marked), (*batch, n)),
            b.shaped(b.Where(first, b.Add(k, 1), info), (*batch, 1)),
            b.shaped(b.And(double, b.Not(taken)), (*batch, 1)),
        ]

    low = b.Trilu(self, upper=0)
    whole = b.Where(eye(b, n), self, b.Add(low, swapped(b, b.shaped(low, self.sizes))))
    starts = [b.expand(rows, (*batch, n)), b.expand(zero, (*batch, 1)),
              b.expand(false, (*batch, 1))]  # fmt: skip
    a, pivots, info, _ = repeat(b, n, [b.shaped(whole, self.sizes), *starts], step)
    return b.Trilu(a, upper=0), pivots, b.squeeze(info, -1)


def _pivot(b: Builder, a: Value, k: Value, rows: Value) -> tuple[Value, Value]:
    """Whether two rows are taken, and which row the last of them is swapped with."""
    last = [a.rank - 2]
    here = b.Abs(at(b, a, k, -1))
    below = b.Where(b.Greater(rows, k), here, -1.0)
    most = b.Max(b.ReduceMax(below, last), 0.0)
    place = b.ArgMax(below, axis=last[0], keepdims=1)
    line = b.Abs(_picked(b, a, place, rows))
    others = b.And(b.GreaterOrEqual(rows, k), b.Not(b.Equal(rows, place)))
    rest = b.ReduceMax(b.Where(others, line, 0.0), last)
    head = column(b, at(b, here, k, -1))
    there = b.ReduceSum(b.Where(b.Equal(rows, place), line, 0.0), last)
    near = b.GreaterOrEqual(head, b.Mul(most, _ALPHA))
    good = b.GreaterOrEqual(head, b.Mul(b.Mul(most, _ALPHA), b.Div(most, rest)))
    stays = b.Or(near, good)
    single = b.Or(stays, b.GreaterOrEqual(there, b.Mul(rest, _ALPHA)))
    return b.Not(single), b.Where(stays, k, place)


def _picked(b: Builder, a: Value, place: Value, rows: Value) -> Value:
    """A row of each matrix."""
    found = b.Equal(column(b, rows), row(b, place))
    return b.ReduceSum(b.Where(found, a, 0.0), [a.rank - 2], keepdims=0)


def _order(b: Builder, own: Value, p: Value, rows: Value) -> Value:
    return b.Where(b.Equal(rows, own), p, b.Where(b.Equal(rows, p), own, rows))


def _moved(b: Builder, a: Value, k: Value, own: Value, p: Value, rows: Value) -> Value:
    """Two rows swapped, and the columns of the same numbers; columns that are done stay."""
    order = b.shaped(_order(b, own, p, rows), a.sizes[:-1])
    turned = b.GatherElements(a, b.expand(column(b, order), a.sizes), axis=a.rank - 2)
    turned = b.Where(b.Less(rows, k), a, turned)
    return b.GatherElements(turned, b.expand(row(b, order), a.sizes), axis=a.rank - 1)


def _eliminated(b: Builder, a: Value, k: Value, own: Value, double: Value, rows: Value) -> Value:
    """What the block leaves of the matrix, and the columns of L in the place of its own."""
    after = b.Greater(rows, own)
    follower = b.Min(b.Add(k, 1), b.Sub(b.sizes.number(rows.sizes[0]), 1))
    p, q = at(b, a, k, -1), at(b, a, follower, -1)
    first, second = column(b, at(b, p, k, -1)), column(b, at(b, q, follower, -1))
    side = column(b, at(b, p, follower, -1))
    d1, d2 = b.Div(second, side), b.Div(first, side)
    scale = b.Div(b.Div(1.0, b.Sub(b.Mul(d1, d2), 1.0)), side)
    one = b.Where(b.Equal(first, 0.0), p, b.Div(p, first))
    u = b.Where(double, b.Mul(scale, b.Sub(b.Mul(d1, p), q)), one)
    v = b.Where(double, b.Mul(scale, b.Sub(b.Mul(d2, q), p)), 0.0)
    less = b.Mul(column(b, q), row(b, v))
    less = b.Add(b.Mul(column(b, p), row(b, u)), b.Where(column(b, double), less, 0.0))
    corner = b.And(column(b, after), row(b, after))
    a = b.Where(corner, b.Sub(a, less), a)
    a = b.Where(b.And(column(b, after), b.Equal(rows, k)), column(b, u), a)
    both = b.And(column(b, double), b.Equal(rows, b.Add(k, 1)))
    return b.Where(b.And(column(b, after), both), column(b, v), a)


@lower(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(b: Builder, LD: Value, pivots: Value, B: Value, hermitian: bool) -> Value:
    """L y = B from the first row on, D z = y, L.T x = z from the last on, with rows swapped."""
    *batch, n, _ = b.result.sizes
    ld, x = wide(b, LD, batch), wide(b, B, batch)
    rows = numbers(b, n)
    pivots = b.expand(b.cast(pivots, torch.int64), (*batch, n))
    firsts, seconds = _blocks(b, pivots, rows)

    def parts(k: Value) -> tuple[Value, Value]:
        """The column of L, and the order of rows that goes with it."""
        p = b.Sub(b.Abs(column(b, at(b, pivots, k, -1))), 1)
        own = b.Add(k, b.cast(column(b, at(b, firsts, k, -1)), torch.int64))
        order = b.Where(column(b, at(b, seconds, k, -1)), rows, _order(b, own, p, rows))
        order = b.shaped(order, (*batch, n))
        return column(b, b.Where(b.Greater(rows, own), at(b, ld, k, -1), 0.0)), order

    def turned(x: Value, order: Value) -> Value:
        index = b.expand(column(b, order), x.sizes)
        return b.shaped(b.GatherElements(x, index, axis=x.rank - 2), x.sizes)

    def down(k: Value, x: Value) -> list[Value]:
        lower_part, order = parts(k)
        x = turned(x, order)
        return [b.Sub(x, b.Mul(lower_part, row(b, at(b, x, k, -2))))]

    place = downward(b, n) if n != 0 else None

    def up(i: Value, x: Value) -> list[Value]:
        assert place is not None
        k = place(i)
        lower_part, order = parts(k)
        less = product(b, swapped(b, lower_part), x)
        return [turned(b.Where(column(b, b.Equal(rows, k)), b.Sub(x, less), x), order)]

    (y,) = repeat(b, n, [x], down)
    return repeat(b, n, [_by_blocks(b, ld, y, firsts, seconds, rows)], up)[0]


def _blocks(b: Builder, pivots: Value, rows: Value) -> tuple[Value, Value]:
    """The first rows of blocks of two, and the second ones."""
    *batch, n = pivots.sizes
    negative = b.Less(pivots, 0)

    def step(k: Value, firsts: Value, taken: Value) -> list[Value]:
        first = b.And(column(b, at(b, negative, k, -1)), b.Not(taken))
        return [b.Where(b.Equal(rows, k), first, firsts), first]

    false = b.scalar(False, torch.bool)
    starts = [b.expand(false, (*batch, n)), b.expand(false, (*batch, 1))]
    firsts, _ = repeat(b, n, starts, step)
    return firsts, b.shaped(b.And(negative, b.Not(firsts)), pivots.sizes)


def _by_blocks(
    b: Builder, ld: Value, y: Value, firsts: Value, seconds: Value, rows: Value
) -> Value:
    """The z of D z = y: each row on its own, or with the other of its block."""

    def other(x: Value, axis: int) -> Value:
        index = places if x.rank == places.rank else b.expand(column(b, places), x.sizes)
        return b.shaped(b.GatherElements(x, index, axis=axis), x.sizes)

    def line(below: int) -> Value:
        on = b.Equal(column(b, rows), b.Add(rows, below) if below else rows)
        found = b.ReduceSum(b.Where(on, ld, 0.0), [ld.rank - 2], keepdims=0)
        return b.shaped(found, firsts.sizes)

    first, second = (b.cast(v, torch.int64) for v in (firsts, seconds))
    places = b.shaped(b.Sub(b.Add(rows, first), second), firsts.sizes)
    axis = ld.rank - 2
    diagonal, side = line(0), line(1)
    side = column(b, b.Where(firsts, side, other(side, axis)))
    mine, theirs = (b.Div(column(b, v), side) for v in (diagonal, other(diagonal, axis)))
    pair = b.Sub(b.Mul(theirs, b.Div(y, side)), b.Div(other(y, axis), side))
    pair = b.Div(pair, b.Sub(b.Mul(mine, theirs), 1.0))
    out = b.Where(column(b, b.Or(firsts, seconds)), pair, b.Div(y, column(b, diagonal)))
    return b.shaped(out, y.sizes)
