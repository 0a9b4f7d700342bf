"""Counting: bins of integers, and histograms."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.index import flat
from graphport.onnx.lowerings.scatter import spread
from graphport.onnx.lowerings.sort import position
from graphport.onnx.registry import lower
from graphport.symbolic import prod

aten = torch.ops.aten

_END = (1 << 63) - 1


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
    x = b.Compress(x, _inside(b, x, low, high), axis=0)
    part = b.cast(b.Div(b.Mul(b.Sub(x, low), bins), b.Sub(high, low)), torch.int64)
    return _counted(b, b.Min(part, bins - 1), bins, spread(b, 1, x))


@lower(aten.histogram.bin_ct)
def histogram(
    b: Builder, self: Value, bins: int, range: Sequence[float] | None, weight: Value | None,
    density: bool,
) -> tuple[Value, Value]:  # fmt: skip
    x = flat(b, self)
    edges = _edges(b, x, bins, range)
    return _histogram(b, [x], [edges], weight, density), edges


@lower(aten.histogram.bins_tensor)
def histogram_by_edges(
    b: Builder, self: Value, bins: Value, weight: Value | None, density: bool
) -> tuple[Value, Value]:
    return _histogram(b, [flat(b, self)], [bins], weight, density), bins


@lower(aten._histogramdd_bin_edges.default)
def histogramdd_edges(
    b: Builder, self: Value, bins: Sequence[int], range: Sequence[float] | None,
    weight: Value | None, density: bool,
) -> list[Value]:  # fmt: skip
    ranges = [
        None if range is None else range[2 * d : 2 * d + 2] for d in builtins.range(len(bins))
    ]
    return [_edges(b, *given) for given in zip(_columns(b, self), bins, ranges, strict=True)]


@lower(aten._histogramdd_from_bin_cts.default)
def histogramdd(
    b: Builder, self: Value, bins: Sequence[int], range: Sequence[float] | None,
    weight: Value | None, density: bool,
) -> Value:  # fmt: skip
    edges = histogramdd_edges(b, self, bins, range, weight, density)
    return _histogram(b, _columns(b, self), edges, weight, density)


@lower(aten._histogramdd_from_bin_tensors.default)
def histogramdd_by_edges(
    b: Builder, self: Value, bins: Sequence[Value], weight: Value | None, density: bool
) -> Value:
    return _histogram(b, _columns(b, self), bins, weight, density)


def _columns(b: Builder, x: Value) -> list[Value]:
    """The coordinates of points, each by itself."""
    sizes: Any = x.shape
    rows = b.reshape(x, (prod(sizes[:-1]), sizes[-1]))
    return [b.Gather(rows, b.scalar(d, torch.int64), axis=1) for d in builtins.range(sizes[-1])]


def _edges(b: Builder, x: Value, bins: int, given: Sequence[float] | None) -> Value:
    low, high = _limits(b, x, given, 0.5)
    if low.tensor is None or high.tensor is None:
        return _spaced(b, low, high, bins)
    ends = (low.tensor.item(), high.tensor.item(), bins + 1)
    return b.constant(torch.linspace(*ends, dtype=x.dtype))


def _histogram(
    b: Builder, columns: Sequence[Value], edges: Sequence[Value], weight: Value | None,
    density: bool,
) -> Value:  # fmt: skip
    """How many points, or how much of their weight, are in each box between edges."""
    bins: list[Any] = [(e.shape or ())[0] - 1 for e in edges]  # type: ignore[operator]
    inside = _all(b, (
        _inside(b, x, b.Slice(e, [0], [1], [0]), b.Slice(e, [-1], [_END], [0]))
        for x, e in zip(columns, edges, strict=True)
    ))  # fmt: skip
    place: Value | None = None
    for x, e, count in zip(columns, edges, bins, strict=True):
        found = b.Sub(position(b, e, b.Compress(x, inside, axis=0), right=True), 1)
        found = b.Min(found, b.sizes.number(count - 1))
        place = found if place is None else b.Add(b.Mul(place, b.sizes.number(count)), found)
    assert place is not None
    if weight is None:
        ones = spread(b, 1, place, edges[0].dtype)
    else:
        ones = b.Compress(flat(b, weight), inside, axis=0)
    out = b.reshape(_counted(b, place, prod(bins), ones), bins)
    if not density:
        return out
    out = b.Div(out, b.ReduceSum(out, keepdims=0))
    for d, e in enumerate(edges):
        widths = b.Sub(b.Slice(e, [1], [_END], [0]), b.Slice(e, [0], [-1], [0]))
        out = b.Div(out, b.unsqueeze(widths, *builtins.range(1, len(bins) - d)))
    return out


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


def _inside(b: Builder, x: Value, low: Value, high: Value) -> Value:
    """What lies in the bins; NaN does not."""
    return b.And(b.GreaterOrEqual(x, low), b.LessOrEqual(x, high))


def _all(b: Builder, truths: Iterable[Value]) -> Value:
    first, *others = truths
    for other in others:
        first = b.And(first, other)
    return first


def _counted(b: Builder, place: Value, bins: Any, ones: Value) -> Value:
    zeros = b.expand(b.scalar(0, ones.dtype), (bins,))
    out = b.ScatterElements(zeros, place, ones, axis=0, reduction="add")
    return b.shaped(out, (bins,))
