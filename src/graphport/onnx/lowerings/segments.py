"""Runs along a dim brought together: `segment_reduce`."""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.scatter import elements, spread, written
from graphport.onnx.registry import lower

aten = torch.ops.aten

# The reduction under its name elsewhere, and what it starts from.
_REDUCTIONS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "prod": ("prod", 1.0),
               "max": ("amax", float("-inf")), "min": ("amin", float("inf"))}  # fmt: skip


@lower(aten.segment_reduce.default)
def segment_reduce(
    b: Builder, data: Value, reduce: str, lengths: Value | None, offsets: Value | None,
    axis: int, unsafe: bool, initial: Any,
) -> Value:  # fmt: skip
    """Every element is written to the place of its segment.

    What is before the first segment and after the last goes to places of its own, which are left
    out. That lengths or offsets fit the data, eager checks unless it is told not to.
    """
    sizes, axis = data.shape or (), axis % data.rank
    lead, size, rest = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    count = b.result.sizes[axis]
    edges = _edges(b, lengths, axis) if offsets is None else b.cast(offsets, torch.int64)
    edges = b.shaped(edges, (*lead, count + 1))
    index = b.unsqueeze(_passed(b, edges, size), *range(axis + 1, data.rank))
    index = b.expand(index, sizes)

    how, start = _REDUCTIONS[reduce]
    number = b.scalar(start if initial is None else initial, data.dtype)
    places = b.expand(number, (*lead, count + 2, *rest))
    out = b.Slice(written(b, elements(b, axis, index), places, data, how), [1], [count + 1], [axis])
    if reduce != "mean":
        return out
    if lengths is None:
        lengths = b.Sub(b.Slice(edges, [1], [count + 1], [axis]),
                        b.Slice(edges, [0], [count], [axis]))  # fmt: skip
    length = b.unsqueeze(b.cast(lengths, data.dtype), *range(axis + 1, data.rank))
    # Of no elements the mean is what it starts from, or 0 / 0.
    return b.Div(out, length if initial is None else b.Max(length, 1.0))


def _edges(b: Builder, lengths: Any, axis: int) -> Value:
    """Where segments begin, and the last ends."""
    ends = b.CumSum(b.cast(lengths, torch.int64), b.scalar(axis, torch.int64))
    return b.Pad(ends, [*[0] * axis, 1, *[0] * (axis + 1)])


def _passed(b: Builder, edges: Value, size: Any) -> Value:
    """How many edges each position has behind it."""
    *lead, _ = edges.shape or ()
    axis = len(lead)
    marks = b.ScatterElements(
        b.expand(b.scalar(0, torch.int64), (*lead, size + 1)), edges, spread(b, 1, edges),
        axis=axis, reduction="add",
    )  # fmt: skip
    counts = b.CumSum(marks, b.scalar(axis, torch.int64))
    return b.shaped(b.Slice(counts, [0], [size], [axis]), (*lead, size))
