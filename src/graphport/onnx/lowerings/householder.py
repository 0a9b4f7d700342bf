"""Reflections, as LAPACK has them: QR, the products of reflections, least squares.

A reflection is I - tau * v @ v.T, with a v that has 0 before its own row and 1 in it: below the
diagonal of a matrix there is room for the rest of all of them.
"""

from __future__ import annotations

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.columns import (
    at,
    column,
    downward,
    identity,
    numbers,
    repeat,
    row,
    substituted,
    swapped,
    wide,
)
from graphport.onnx.lowerings.linalg import product
from graphport.onnx.lowerings.reduce import extreme
from graphport.onnx.registry import lower
from graphport.symbolic import ge, min_

aten = torch.ops.aten


@lower(aten.geqrf.default)
def geqrf(b: Builder, self: Value) -> tuple[Value, Value]:
    """Column by column: what is below the diagonal is reflected to 0."""
    *batch, m, n = self.sizes
    k = min_(m, n)
    rows, columns, steps = numbers(b, m), numbers(b, n), numbers(b, k)

    def step(j: Value, a: Value, taus: Value) -> list[Value]:
        own, after = b.Equal(rows, j), b.Greater(rows, j)
        x = at(b, a, j, -1)
        head = column(b, at(b, x, j, -1))
        tail = b.Where(after, x, 0.0)
        rest = extreme(b, "ReduceMax", b.Abs(tail), [x.rank - 1], True)
        none = b.Equal(rest, 0.0)
        most = b.Max(rest, b.Abs(head))  # squares of what is not near 1 would be 0 or infinite
        size = b.Mul(b.ReduceL2(b.Div(b.Where(own, x, tail), most), [x.rank - 1]), most)
        end = b.Where(none, head, b.Where(b.Less(head, 0.0), size, b.Neg(size)))
        tau = b.Where(none, 0.0, b.Div(b.Sub(end, head), end))
        v = b.Where(own, 1.0, b.Where(none, 0.0, b.Div(tail, b.Sub(head, end))))
        moved = product(b, row(b, v), a)
        moved = b.Where(b.Greater(columns, j), b.Mul(column(b, tau), moved), 0.0)
        kept = b.Where(own, end, b.Where(after, v, x))
        a = b.Where(b.Equal(columns, j), column(b, kept), b.Sub(a, b.Mul(column(b, v), moved)))
        return [a, b.Where(b.Equal(steps, j), tau, taus)]

    start = b.expand(b.scalar(0.0, self.dtype), (*batch, k))
    a, taus = repeat(b, k, [self, start], step)
    return a, taus


def _reflected(b: Builder, a: Value, tau: Value, x: Value, first: bool = False) -> Value:
    """Q @ x, of the reflections in a; their product the other way, Q.T @ x, from the first on."""
    rows = numbers(b, a.sizes[-2])
    count = tau.sizes[-1]
    place = (lambda i: i) if first or count == 0 else downward(b, count)

    def step(i: Value, x: Value) -> list[Value]:
        i = place(i)
        tail = b.Where(b.Greater(rows, i), at(b, a, i, -1), 0.0)
        v = b.Where(b.Equal(rows, i), 1.0, tail)
        scale = column(b, column(b, at(b, tau, i, -1)))
        moved = product(b, row(b, v), x)
        return [b.Sub(x, b.Mul(column(b, v), b.Mul(scale, moved)))]

    return repeat(b, count, [x], step)[0]


@lower(aten.linalg_householder_product.default)
def linalg_householder_product(b: Builder, input: Value, tau: Value) -> Value:
    *batch, m, n = input.sizes
    return _reflected(b, input, tau, identity(b, batch, m, input.dtype, n))


@lower(aten.ormqr.default)
def ormqr(
    b: Builder, self: Value, input2: Value, input3: Value, left: bool, transpose: bool
) -> Value:
    """C @ Q is (Q.T @ C.T).T."""
    x = input3 if left else swapped(b, input3)
    out = _reflected(b, self, input2, x, first=left is transpose)
    return out if left else swapped(b, out)


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
    return _reflected(b, a, tau, identity(b, batch, m, A.dtype, k)), r


# Least squares


@lower(aten.linalg_lstsq.default)
def linalg_lstsq(
    build: Builder, self: Value, b: Value, rcond: float | None, driver: str | None
) -> tuple[Value, ...]:
    """Of matrices of full rank: one driver takes that for granted, the others find the rank."""
    if driver != "gels":
        raise UnsupportedError(
            f"torch.linalg.lstsq with driver={driver!r}, which looks for the rank, has no ONNX"
            " lowering",
            fix='driver="gels", if the matrices have full rank',
        )
    solution, residuals, *_ = build.result
    vector = b.rank == self.rank - 1
    batch = solution.sizes[: -1 if vector else -2]
    right = wide(build, column(build, b) if vector else b, batch)
    *_, m, n = self.sizes
    tall = build.scope.decide(ge(m, n))
    assert tall is not None, "the sizes of the results say which side is longer"
    x, rest = (_tall if tall else _flat)(build, wide(build, self, batch), right)
    x = build.squeeze(x, -1) if vector else x
    nothing = build.constant(torch.zeros(0, dtype=self.dtype))
    ranks = build.constant(torch.zeros(0, dtype=torch.int64))
    return x, nothing if residuals.sizes == (0,) else rest, ranks, nothing


def _tall(b: Builder, a: Value, right: Value) -> tuple[Value, Value]:
    """R @ x is the head of Q.T @ right; the rest of it is what cannot be met."""
    *batch, m, n = a.sizes
    k, axis = right.sizes[-1], right.rank - 2
    a, tau = geqrf(b, a)
    y = _reflected(b, a, tau, right, first=True)
    head, tail = b.Slice(y, [0], [n], [axis]), b.Slice(y, [n], [m], [axis])
    r = b.shaped(b.Slice(a, [0], [n], [axis]), (*batch, n, n))
    x = substituted(b, r, b.shaped(head, (*batch, n, k)), upper=True)
    return x, b.shaped(b.ReduceSumSquare(tail, [axis], keepdims=0), (*batch, k))


def _flat(b: Builder, a: Value, right: Value) -> tuple[Value, Value]:
    """Of all solutions the smallest: Q @ y where R.T @ y is right, and 0 in the rest of y."""
    *batch, m, n = a.sizes
    k, rank = right.sizes[-1], right.rank
    a, tau = geqrf(b, swapped(b, a))
    r = b.shaped(b.Slice(a, [0], [m], [rank - 2]), (*batch, m, m))
    y = substituted(b, swapped(b, r), right, upper=False)
    zeros = b.expand(b.scalar(0.0, y.dtype), (*batch, n - m, k))
    y = b.shaped(b.Concat(y, zeros, axis=rank - 2), (*batch, n, k))
    return _reflected(b, a, tau, y), y
