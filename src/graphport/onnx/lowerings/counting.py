"""Counting: bins of integers, and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.index import flat
from graphport.onnx.lowerings.scatter import spread
from graphport.onnx.lowerings.sort import position
from graphport.onnx.registry import lower

aten = torch.ops.aten


@lower(aten.bincount.default)
def bincount(b: Builder, self: Value, weights: Value | None, minlength: int) -> Value:
    index = b.cast(self, torch.int64)
    largest = b.ReduceMax(b.Concat(index, [minlength - 1], axis=0), [0])
    zeros = b.Expand(b.scalar(0, b.result.dtype), b.Add(largest, 1))
    ones = spread(b, 1, index) if weights is None else b.cast(weights, b.result.dtype)
    return b.ScatterElements(zeros, index, ones, axis=0, reduction="add")


@lower(aten.histc.default)
def histc(b: Builder, self: Value, bins: int, min: Any, max: Any) -> Value:
    """Bins by proportion; the last has its upper end too."""
    x = b.cast(flat(b, self), _computed_in(self.dtype))
    low, high = _limits(b, x, None if min == max else (min, max), 1.0)
    x, _ = _within(b, x, None, low, high)
    part = b.Div(b.Mul(b.Sub(x, low), bins), b.Sub(high, low))
    return _counted(b, b.cast(part, torch.int64), bins, spread(b, 1, x))


@lower(aten.histogram.bin_ct)
def histogram(
    b: Builder, self: Value, bins: int, range: Sequence[float] | None, weight: Value | None,
    density: bool,
) -> tuple[Value, Value]:  # fmt: skip
    x = flat(b, self)
    low, high = _limits(b, x, range, 0.5)
    if low.tensor is not None and high.tensor is not None:
        ends = (low.tensor.item(), high.tensor.item(), bins + 1)
        edges = b.constant(torch.linspace(*ends, dtype=x.dtype))
    else:
        edges = _spaced(b, low, high, bins)
    return _histogram(b, x, edges, bins, weight, density), edges


@lower(aten.histogram.bins_tensor)
def histogram_by_edges(
    b: Builder, self: Value, bins: Value, weight: Value | None, density: bool
) -> tuple[Value, Value]:
    return _histogram(b, flat(b, self), bins, (bins.shape or ())[0] - 1, weight, density), bins  # type: ignore[operator]


def _histogram(
    b: Builder, x: Value, edges: Value, bins: Any, weight: Value | None, density: bool
) -> Value:
    low, high = b.Slice(edges, [0], [1], [0]), b.Slice(edges, [-1], [_END], [0])
    x, weight = _within(b, x, None if weight is None else flat(b, weight), low, high)
    place = b.Sub(position(b, edges, x, right=True), 1)
    out = _counted(b, place, bins, spread(b, 1, x) if weight is None else weight)
    if not density:
        return out
    widths = b.Sub(b.Slice(edges, [1], [_END], [0]), b.Slice(edges, [0], [-1], [0]))
    return b.Div(b.Div(out, b.ReduceSum(out, [0])), widths)


_END = (1 << 63) - 1


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _limits(
    b: Builder, x: Value, given: Sequence[Any] | None, margin: float
) -> tuple[Value, Value]:
    """Where the first bin starts and the last ends: as given, or the smallest and the largest."""
    if given is not None:
        low, high = given
        if low == high:
            low, high = low - margin, high + margin
        return tuple(b.constant(torch.tensor([v], dtype=x.dtype)) for v in (low, high))  # type: ignore[return-value]
    low, high = b.ReduceMin(x, [0]), b.ReduceMax(x, [0])
    size = (x.shape or (None,))[0]
    if not (type(size) is int and size):
        none = b.Equal(b.Shape(x), 0)
        low, high = b.Where(none, 0.0, low), b.Where(none, 1.0, high)
    extra = b.Where(b.Equal(low, high), margin, b.scalar(0.0, x.dtype))
    return b.Sub(low, extra), b.Add(high, extra)


def _spaced(b: Builder, low: Value, high: Value, bins: int) -> Value:
    """Equally spaced edges, from the nearer end, as torch.linspace has them."""
    step = b.cast(b.Div(b.Sub(high, low), bins), torch.float64)
    first, last = b.cast(low, torch.float64), b.cast(high, torch.float64)
    up = torch.arange(bins + 1, dtype=torch.float64)
    below = b.Add(b.Mul(step, up), first)
    above = b.Sub(last, b.Mul(step, bins - up))
    nearer = torch.arange(bins + 1) < (bins + 1) // 2
    return b.cast(b.Where(nearer, below, above), low.dtype)


def _within(
    b: Builder, x: Value, weight: Value | None, low: Value, high: Value
) -> tuple[Value, Value | None]:
    """What lies in the bins; NaN does not."""
    inside = b.And(b.GreaterOrEqual(x, low), b.LessOrEqual(x, high))
    kept = b.Compress(x, inside, axis=0)
    return kept, None if weight is None else b.Compress(weight, inside, axis=0)


def _counted(b: Builder, place: Value, bins: Any, ones: Value) -> Value:
    zeros = b.expand(b.scalar(0, ones.dtype), (bins,))
    last = b.sizes.number(bins - 1)
    return b.ScatterElements(zeros, b.Min(place, last), ones, axis=0, reduction="add")
