"""Lowers sort, topk, unique, searchsorted, `bincount` and histograms.

TopK is stable by the standard, in both directions. NaN is the largest number to torch and nothing
in particular to ONNX Runtime: floats are sorted by keys that say where NaN is.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder, Number, Operand
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.index import at_least_1d, flatten_value
from graphport.onnx.lowerings.scatter import expand_number
from graphport.ops.sizes import wrap_dim
from graphport.symbolic import prod

_INF = float("inf")
_END = (1 << 63) - 1
_KEY_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
}
"""What has room for NaN between the largest number of a dtype and infinity."""


def sort_dim(
    b: Builder, self: Value, dim: int, descending: bool, count: Any = None
) -> tuple[Value, Value]:
    """The elements of a dim in order, the first ones if there is a count, and where they were."""
    data = at_least_1d(b, self)
    dim = wrap_dim(dim, data.rank)
    size = (data.shape or ())[dim]
    taken = size if count is None else count
    largest = int(descending)
    if not data.dtype.is_floating_point:
        values, places = b.TopK(data, [taken], axis=dim, largest=largest, outputs=2)
    else:
        places = _sort_floats(b, data, dim, largest, size, taken)
        values = b.GatherElements(data, places, axis=dim)
    sizes = [taken if d == dim else s for d, s in enumerate(data.shape or ())]
    return b.shaped(values, sizes), b.shaped(places, sizes)


def _sort_floats(b: Builder, x: Value, dim: int, largest: int, size: Any, taken: Any) -> Value:
    """Where the elements are in order, NaN as the largest."""
    nan = b.IsNaN(x)
    wide = _KEY_DTYPES.get(x.dtype)
    if wide is not None:
        finite = b.Min(b.cast(x, wide), torch.finfo(wide).max)
        key = b.Where(nan, _INF, finite)
        return b.TopK(key, [taken], axis=dim, largest=largest, outputs=2)[1]
    # NaN among the infinite ones, then these apart: both sorts are stable.
    key = b.Where(nan, _INF, x)
    first = b.TopK(key, [size], axis=dim, largest=largest, outputs=2)[1]
    last = b.GatherElements(b.cast(nan, torch.uint8), first, axis=dim)
    second = b.TopK(last, [taken], axis=dim, largest=largest, outputs=2)[1]
    return b.GatherElements(first, second, axis=dim)


def _reshape_results(b: Builder, found: tuple[Value, Value]) -> tuple[Value, ...]:
    return tuple(b.reshape(x, r.sizes) for x, r in zip(found, b.result, strict=True))


@lower(aten.sort.default)
def sort(b: Builder, self: Value, dim: int, descending: bool) -> tuple[Value, ...]:
    return _reshape_results(b, sort_dim(b, self, dim, descending))


@lower(aten.sort.stable)
def sort_stable(
    b: Builder, self: Value, stable: bool | None, dim: int, descending: bool
) -> tuple[Value, ...]:
    return _reshape_results(b, sort_dim(b, self, dim, descending))


@lower(aten.argsort.default)
def argsort(b: Builder, self: Value, dim: int, descending: bool) -> Value:
    return b.reshape(sort_dim(b, self, dim, descending)[1], b.result.sizes)


@lower(aten.argsort.stable)
def argsort_stable(b: Builder, self: Value, stable: bool, dim: int, descending: bool) -> Value:
    return b.reshape(sort_dim(b, self, dim, descending)[1], b.result.sizes)


@lower(aten.topk.default)
def topk(
    b: Builder, self: Value, k: Size, dim: int, largest: bool, sorted: bool
) -> tuple[Value, ...]:
    """In order also where any order would do."""
    return _reshape_results(b, sort_dim(b, self, dim, largest, k))


@lower(aten.kthvalue.default)
def kthvalue(b: Builder, self: Value, k: Size, dim: int, keepdim: bool) -> tuple[Value, ...]:
    dim = wrap_dim(dim, self.rank)
    last = b.sizes.number(k - 1)
    found = (b.Gather(x, last, axis=dim) for x in sort_dim(b, self, dim, False, k))
    return tuple(b.unsqueeze(x, dim) if keepdim and self.rank else x for x in found)


# `unique`


@lower(aten._unique2.default)
def unique(
    b: Builder, self: Value, sorted: bool, return_inverse: bool, return_counts: bool
) -> tuple[Value, ...]:
    x = flatten_value(b, self)
    if not x.dtype.is_floating_point:
        values, _, inverse, counts = b.Unique(x, sorted=1, outputs=4)
        return _arrange_unique(b, values, inverse, counts, return_inverse, return_counts)
    values, inverse, counts = _unique_floats(b, x)
    return _arrange_unique(b, values, inverse, counts, return_inverse, return_counts)


@lower(aten.unique_dim.default)
def unique_dim(
    b: Builder, self: Value, dim: int, sorted: bool, return_inverse: bool, return_counts: bool
) -> tuple[Value, ...]:
    dim = wrap_dim(dim, self.rank)
    if not self.dtype.is_floating_point:
        values, _, inverse, counts = b.Unique(self, axis=dim, sorted=1, outputs=4)
        return values, inverse, counts
    numbers = b.reshape(_unique_floats(b, flatten_value(b, self))[1], self.shape or ())
    _, first, inverse, counts = b.Unique(numbers, axis=dim, sorted=1, outputs=4)
    return b.Gather(self, first, axis=dim), inverse, counts


def _unique_floats(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """As Unique has them, which takes NaN to be equal to everything: to torch it is to nothing."""
    ordered, places = sort_dim(b, x, 0, False)
    values, run, counts = _collapse_runs(b, ordered, _find_run_starts(b, ordered, 0), 0)
    return values, b.ScatterElements(places, places, run, axis=0), counts


@lower(aten.unique_consecutive.default)
def unique_consecutive(
    b: Builder, self: Value, return_inverse: bool, return_counts: bool, dim: int | None
) -> tuple[Value, ...]:
    x = flatten_value(b, self) if dim is None else at_least_1d(b, self)
    dim = 0 if dim is None else wrap_dim(dim, x.rank)
    values, run, counts = _collapse_runs(b, x, _find_run_starts(b, x, dim), dim)
    return _arrange_unique(b, values, run, counts, return_inverse, return_counts)


def _find_run_starts(b: Builder, x: Value, dim: int) -> Value:
    """Which slices along a dim differ from the one before; the first does."""
    size = (x.shape or ())[dim]
    differ = b.Not(b.Equal(b.Slice(x, [1], [_END], [dim]), b.Slice(x, [0], [-1], [dim])))
    others = [d for d in range(x.rank) if d != dim]
    if others:
        total = b.ReduceSum(b.cast(differ, torch.int32), others, keepdims=0)
        differ = b.cast(total, torch.bool)
    starts = b.Concat(torch.tensor([True]), differ, axis=0)
    return starts if type(size) is int and size else b.Slice(starts, [0], [size], [0])


def _collapse_runs(b: Builder, x: Value, starts: Value, dim: int) -> tuple[Value, Value, Value]:
    """The first slice of each run, the run that each slice is in, and how long the runs are."""
    values = b.Compress(x, starts, axis=dim)
    run = b.Sub(b.CumSum(b.cast(starts, torch.int64), 0), 1)
    zeros = b.Expand(b.scalar(0, torch.int64), b.Shape(values, start=dim, end=dim + 1))
    ones = b.Expand(b.scalar(1, torch.int64), b.Shape(run))
    return values, run, b.ScatterElements(zeros, run, ones, axis=0, reduction="add")


def _arrange_unique(
    b: Builder,
    values: Value,
    inverse: Value,
    counts: Value,
    return_inverse: bool,
    return_counts: bool,
) -> tuple[Value, ...]:
    nothing = b.constant(torch.empty(0, dtype=torch.int64))
    if return_inverse and b.result[1].rank != 1:
        inverse = b.reshape(inverse, b.result[1].sizes)
    inverse = inverse if return_inverse else nothing
    return values, inverse, counts if return_counts else nothing


# `searchsorted` and `bucketize`


@lower(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder,
    sorted_sequence: Value,
    self: Operand,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    if sorter is not None:
        sorted_sequence = b.GatherElements(sorted_sequence, sorter, axis=-1)
    return count_before(b, sorted_sequence, self, right or side == "right")


@lower(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(b: Builder, self: Operand, boundaries: Value, out_int32: bool, right: bool) -> Value:
    return count_before(b, boundaries, self, right)


def count_before(b: Builder, sequence: Value, x: Operand, right: bool) -> Value:
    """How many of a sequence come before each number: all of them before NaN."""
    sequence, number = b.common(sequence, x)
    if number.rank:
        number = b.unsqueeze(number, number.rank)
        if sequence.rank > 1:
            sequence = b.unsqueeze(sequence, sequence.rank - 1)
    after = b.Greater(sequence, number) if right else b.GreaterOrEqual(sequence, number)
    return _count_true(b, b.Not(after))


def _count_true(b: Builder, truths: Value) -> Value:
    """How many are true along the last dim, which may be empty."""
    return b.ReduceSum(b.cast(truths, torch.int64), [truths.rank - 1], keepdims=0)


@lower(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    b: Builder, elements: Operand, test_elements: Operand, assume_unique: bool, invert: bool
) -> Value:
    x, tests = b.common(elements, test_elements)
    if tests.rank == 0:
        same = b.Equal(x, tests)
    else:
        equal = b.Equal(b.unsqueeze(x, x.rank), flatten_value(b, tests))
        same = b.cast(_count_true(b, equal), torch.bool)
    return b.Not(same) if invert else same


# `bincount` and histograms.

_LAST = (1 << 63) - 1


@lower(aten.bincount.default)
def bincount(b: Builder, self: Value, weights: Value | None, minlength: int) -> Value:
    index = b.cast(self, torch.int64)
    largest = b.ReduceMax(b.Concat(index, [minlength - 1], axis=0), [0])
    zeros = b.Expand(b.scalar(0, b.result.dtype), b.Add(largest, 1))
    ones = expand_number(b, 1, index) if weights is None else b.cast(weights, b.result.dtype)
    return b.ScatterElements(zeros, index, ones, axis=0, reduction="add")


@lower(aten.histc.default)
def histc(b: Builder, self: Value, bins: int, min: Number, max: Number) -> Value:
    """Bins by proportion; the last has its upper end too."""
    x = b.cast(flatten_value(b, self), _compute_dtype(self.dtype))
    low, high = _bin_limits(b, x, None if min == max else (min, max), 1.0)
    x = b.Compress(x, _is_inside(b, x, low, high), axis=0)
    part = b.cast(b.Div(b.Mul(b.Sub(x, low), bins), b.Sub(high, low)), torch.int64)
    return _count_bins(b, b.Min(part, bins - 1), bins, expand_number(b, 1, x))


@lower(aten.histogram.bin_ct)
def histogram(
    b: Builder,
    self: Value,
    bins: int,
    range: Sequence[float] | None,
    weight: Value | None,
    density: bool,
) -> tuple[Value, Value]:
    x = flatten_value(b, self)
    edges = _bin_edges(b, x, bins, range)
    return _histogram(b, [x], [edges], weight, density), edges


@lower(aten.histogram.bins_tensor)
def histogram_by_edges(
    b: Builder, self: Value, bins: Value, weight: Value | None, density: bool
) -> tuple[Value, Value]:
    return _histogram(b, [flatten_value(b, self)], [bins], weight, density), bins


@lower(aten._histogramdd_bin_edges.default, ignores="weight density")
def histogramdd_edges(
    b: Builder, self: Value, bins: Sequence[int], range: Sequence[float] | None
) -> list[Value]:
    ranges = [
        None if range is None else range[2 * d : 2 * d + 2] for d in builtins.range(len(bins))
    ]
    return [
        _bin_edges(b, *given)
        for given in zip(_split_coordinates(b, self), bins, ranges, strict=True)
    ]


@lower(aten._histogramdd_from_bin_cts.default)
def histogramdd(
    b: Builder,
    self: Value,
    bins: Sequence[int],
    range: Sequence[float] | None,
    weight: Value | None,
    density: bool,
) -> Value:
    edges = histogramdd_edges(b, self, bins, range)
    return _histogram(b, _split_coordinates(b, self), edges, weight, density)


@lower(aten._histogramdd_from_bin_tensors.default)
def histogramdd_by_edges(
    b: Builder, self: Value, bins: Sequence[Value], weight: Value | None, density: bool
) -> Value:
    return _histogram(b, _split_coordinates(b, self), bins, weight, density)


def _split_coordinates(b: Builder, x: Value) -> list[Value]:
    """The coordinates of points, each by itself."""
    sizes: Any = x.shape
    rows = b.reshape(x, (prod(sizes[:-1]), sizes[-1]))
    return [b.Gather(rows, b.scalar(d, torch.int64), axis=1) for d in builtins.range(sizes[-1])]


def _bin_edges(b: Builder, x: Value, bins: int, given: Sequence[float] | None) -> Value:
    low, high = _bin_limits(b, x, given, 0.5)
    if low.tensor is None or high.tensor is None:
        return _space_edges(b, low, high, bins)
    ends = (low.tensor.item(), high.tensor.item(), bins + 1)
    return b.constant(torch.linspace(*ends, dtype=x.dtype))


def _histogram(
    b: Builder,
    columns: Sequence[Value],
    edges: Sequence[Value],
    weight: Value | None,
    density: bool,
) -> Value:
    """How many points, or how much of their weight, are in each box between edges."""
    bins: list[Any] = [(e.shape or ())[0] - 1 for e in edges]  # type: ignore[operator]
    inside = _and_all(
        b,
        (
            _is_inside(b, x, b.Slice(e, [0], [1], [0]), b.Slice(e, [-1], [_LAST], [0]))
            for x, e in zip(columns, edges, strict=True)
        ),
    )
    place: Value | None = None
    for x, e, count in zip(columns, edges, bins, strict=True):
        found = b.Sub(count_before(b, e, b.Compress(x, inside, axis=0), right=True), 1)
        found = b.Min(found, b.sizes.number(count - 1))
        place = found if place is None else b.Add(b.Mul(place, b.sizes.number(count)), found)
    assert place is not None
    if weight is None:
        ones = expand_number(b, 1, place, edges[0].dtype)
    else:
        ones = b.Compress(flatten_value(b, weight), inside, axis=0)
    out = b.reshape(_count_bins(b, place, prod(bins), ones), bins)
    if not density:
        return out
    out = b.Div(out, b.ReduceSum(out, keepdims=0))
    for d, e in enumerate(edges):
        widths = b.Sub(b.Slice(e, [1], [_LAST], [0]), b.Slice(e, [0], [-1], [0]))
        out = b.Div(out, b.unsqueeze(widths, *builtins.range(1, len(bins) - d)))
    return out


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _bin_limits(
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


def _space_edges(b: Builder, low: Value, high: Value, bins: int) -> Value:
    """Equally spaced edges, from the nearer end, as torch.linspace has them."""
    step = b.cast(b.Div(b.Sub(high, low), bins), torch.float64)
    first, last = b.cast(low, torch.float64), b.cast(high, torch.float64)
    up = torch.arange(bins + 1, dtype=torch.float64)
    below = b.Add(b.Mul(step, up), first)
    above = b.Sub(last, b.Mul(step, bins - up))
    nearer = torch.arange(bins + 1) < (bins + 1) // 2
    return b.cast(b.Where(nearer, below, above), low.dtype)


def _is_inside(b: Builder, x: Value, low: Value, high: Value) -> Value:
    """What lies in the bins; NaN does not."""
    return b.And(b.GreaterOrEqual(x, low), b.LessOrEqual(x, high))


def _and_all(b: Builder, truths: Iterable[Value]) -> Value:
    first, *others = truths
    for other in others:
        first = b.And(first, other)
    return first


def _count_bins(b: Builder, place: Value, bins: Any, ones: Value) -> Value:
    zeros = b.expand(b.scalar(0, ones.dtype), (bins,))
    out = b.ScatterElements(zeros, place, ones, axis=0, reduction="add")
    return b.shaped(out, (bins,))
