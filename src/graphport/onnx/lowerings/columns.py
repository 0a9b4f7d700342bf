"""Batches of matrices by columns and rows: loops over them, and what those are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.control import close, within
from graphport.onnx.lowerings.linalg import product


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
    trips = count if isinstance(count, Value) else b.sizes.number(count)
    made = b.Loop(trips, None, *first, outputs=len(first), dtype=first[0].dtype, body=graph)
    out = [made] if len(first) == 1 else list(made)
    for value, start in zip(out, first, strict=True):
        value.dtype, value.shape = start.dtype, start.shape
    return out


def downward(b: Builder, count: Any) -> Callable[[Value], Value]:
    """The numbers below count from the last one on, of those from the first on."""
    last = b.Sub(b.sizes.number(count), 1)
    return lambda i: b.Sub(last, i)


def numbers(b: Builder, n: Any) -> Value:
    """0, 1, ..., n - 1."""
    if isinstance(n, int):
        return b.constant(torch.arange(n))
    return b.shaped(b.Range(b.scalar(0, torch.int64), b.sizes.number(n), 1), (n,))


def at(b: Builder, x: Value, i: Value, axis: int) -> Value:
    return b.Gather(x, i, axis=x.rank + axis)


def column(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank)


def row(b: Builder, x: Value) -> Value:
    return b.unsqueeze(x, x.rank - 1)


def swapped(b: Builder, x: Value) -> Value:
    """The matrices transposed."""
    last = x.rank - 1
    return b.transpose(x, [*range(last - 1), last, last - 1])


def wide(b: Builder, x: Value, batch: Sequence[Any]) -> Value:
    """The matrices for each of a batch."""
    return b.expand(x, (*batch, *(x.shape or ())[-2:]))


def eye(b: Builder, n: Any, m: Any = None) -> Value:
    return b.Equal(column(b, numbers(b, n)), numbers(b, n if m is None else m))


def identity(b: Builder, batch: Sequence[Any], n: Any, dtype: torch.dtype, m: Any = None) -> Value:
    m = n if m is None else m
    return b.expand(b.cast(eye(b, n, m), dtype), (*batch, n, m))


def substituted(b: Builder, a: Value, right: Value, upper: bool, unit: bool = False) -> Value:
    """The x of a @ x = right, from the last row up or from the first one down."""
    *_, n, _k = right.shape or ()
    rows = column(b, numbers(b, n))
    a = b.shaped(b.Trilu(a, upper=1 if upper else 0), a.shape or ())
    place = downward(b, n) if upper else lambda i: i

    def step(i: Value, x: Value) -> list[Value]:
        i = place(i)
        line = at(b, a, i, -2)
        rest = b.Sub(row(b, at(b, right, i, -2)), product(b, row(b, line), x))
        if not unit:
            rest = b.Div(rest, column(b, column(b, at(b, line, i, -1))))
        return [b.Where(b.Equal(rows, i), rest, x)]

    (x,) = repeat(b, n, [b.expand(b.scalar(0.0, right.dtype), right.shape or ())], step)
    return x
