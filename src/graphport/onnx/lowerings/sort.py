"""Order: sorting, the largest, the distinct, places in a sorted sequence.

TopK is stable by the standard, in both directions. NaN is the largest number to torch and nothing
in particular to ONNX Runtime: floats are sorted by keys that say where NaN is.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.builder import Builder, Operand
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.index import flat, one_dim, wrapped
from graphport.onnx.registry import lower

aten = torch.ops.aten

_INF = float("inf")
_END = (1 << 63) - 1
_KEYS = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
"""What has room for NaN between the largest number of a dtype and infinity."""


def ranked(
    b: Builder, self: Value, dim: int, descending: bool, count: Any = None
) -> tuple[Value, Value]:
    """The elements of a dim in order, the first ones if there is a count, and where they were."""
    data = one_dim(b, self)
    dim = wrapped(dim, data.rank)
    size = (data.shape or ())[dim]
    taken = size if count is None else count
    largest = int(descending)
    if not data.dtype.is_floating_point:
        values, places = b.TopK(data, [taken], axis=dim, largest=largest, outputs=2)
    else:
        places = _float_order(b, data, dim, largest, size, taken)
        values = b.GatherElements(data, places, axis=dim)
    sizes = [taken if d == dim else s for d, s in enumerate(data.shape or ())]
    return b.shaped(values, sizes), b.shaped(places, sizes)


def _float_order(b: Builder, x: Value, dim: int, largest: int, size: Any, taken: Any) -> Value:
    """Where the elements are in order, NaN as the largest."""
    nan = b.IsNaN(x)
    wide = _KEYS.get(x.dtype)
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


def _shaped(b: Builder, found: tuple[Value, Value]) -> tuple[Value, ...]:
    return tuple(b.reshape(x, r.sizes) for x, r in zip(found, b.result, strict=True))


@lower(aten.sort.default)
def sort(b: Builder, self: Value, dim: int, descending: bool) -> tuple[Value, ...]:
    return _shaped(b, ranked(b, self, dim, descending))


@lower(aten.sort.stable)
def sort_stable(
    b: Builder, self: Value, stable: bool | None, dim: int, descending: bool
) -> tuple[Value, ...]:
    return _shaped(b, ranked(b, self, dim, descending))


@lower(aten.argsort.default)
def argsort(b: Builder, self: Value, dim: int, descending: bool) -> Value:
    return b.reshape(ranked(b, self, dim, descending)[1], b.result.sizes)


@lower(aten.argsort.stable)
def argsort_stable(b: Builder, self: Value, stable: bool, dim: int, descending: bool) -> Value:
    return b.reshape(ranked(b, self, dim, descending)[1], b.result.sizes)


@lower(aten.topk.default)
def topk(
    b: Builder, self: Value, k: Any, dim: int, largest: bool, sorted: bool
) -> tuple[Value, ...]:
    """In order also where any order would do."""
    return _shaped(b, ranked(b, self, dim, largest, k))


@lower(aten.kthvalue.default)
def kthvalue(b: Builder, self: Value, k: Any, dim: int, keepdim: bool) -> tuple[Value, ...]:
    dim = wrapped(dim, self.rank)
    last = b.sizes.number(k - 1)
    found = (b.Gather(x, last, axis=dim) for x in ranked(b, self, dim, False, k))
    return tuple(b.unsqueeze(x, dim) if keepdim and self.rank else x for x in found)


# The distinct


@lower(aten._unique2.default)
def unique(
    b: Builder, self: Value, sorted: bool, return_inverse: bool, return_counts: bool
) -> tuple[Value, ...]:
    x = flat(b, self)
    if not x.dtype.is_floating_point:
        values, _, inverse, counts = b.Unique(x, sorted=1, outputs=4)
        return _distinct(b, values, inverse, counts, return_inverse, return_counts)
    values, inverse, counts = _distinct_floats(b, x)
    return _distinct(b, values, inverse, counts, return_inverse, return_counts)


@lower(aten.unique_dim.default)
def unique_dim(
    b: Builder, self: Value, dim: int, sorted: bool, return_inverse: bool, return_counts: bool
) -> tuple[Value, ...]:
    dim = wrapped(dim, self.rank)
    if not self.dtype.is_floating_point:
        values, _, inverse, counts = b.Unique(self, axis=dim, sorted=1, outputs=4)
        return values, inverse, counts
    numbers = b.reshape(_distinct_floats(b, flat(b, self))[1], self.shape or ())
    _, first, inverse, counts = b.Unique(numbers, axis=dim, sorted=1, outputs=4)
    return b.Gather(self, first, axis=dim), inverse, counts


def _distinct_floats(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """As Unique has them, which takes NaN to be equal to everything: to torch it is to nothing."""
    ordered, places = ranked(b, x, 0, False)
    values, run, counts = _runs(b, ordered, _starts(b, ordered, 0), 0)
    return values, b.ScatterElements(places, places, run, axis=0), counts


@lower(aten.unique_consecutive.default)
def unique_consecutive(
    b: Builder, self: Value, return_inverse: bool, return_counts: bool, dim: int | None
) -> tuple[Value, ...]:
    x = flat(b, self) if dim is None else one_dim(b, self)
    dim = 0 if dim is None else wrapped(dim, x.rank)
    values, run, counts = _runs(b, x, _starts(b, x, dim), dim)
    return _distinct(b, values, run, counts, return_inverse, return_counts)


def _starts(b: Builder, x: Value, dim: int) -> Value:
    """Which slices along a dim differ from the one before; the first does."""
    size = (x.shape or ())[dim]
    differ = b.Not(b.Equal(b.Slice(x, [1], [_END], [dim]), b.Slice(x, [0], [-1], [dim])))
    others = [d for d in range(x.rank) if d != dim]
    if others:
        total = b.ReduceSum(b.cast(differ, torch.int32), others, keepdims=0)
        differ = b.cast(total, torch.bool)
    starts = b.Concat(torch.tensor([True]), differ, axis=0)
    return starts if type(size) is int and size else b.Slice(starts, [0], [size], [0])


def _runs(b: Builder, x: Value, starts: Value, dim: int) -> tuple[Value, Value, Value]:
    """The first slice of each run, the run that each slice is in, and how long the runs are."""
    values = b.Compress(x, starts, axis=dim)
    run = b.Sub(b.CumSum(b.cast(starts, torch.int64), 0), 1)
    zeros = b.Expand(b.scalar(0, torch.int64), b.Shape(values, start=dim, end=dim + 1))
    ones = b.Expand(b.scalar(1, torch.int64), b.Shape(run))
    return values, run, b.ScatterElements(zeros, run, ones, axis=0, reduction="add")


def _distinct(
    b: Builder, values: Value, inverse: Value, counts: Value, return_inverse: bool,
    return_counts: bool,
) -> tuple[Value, ...]:  # fmt: skip
    nothing = b.constant(torch.empty(0, dtype=torch.int64))
    if return_inverse and b.result[1].rank != 1:
        inverse = b.reshape(inverse, b.result[1].sizes)
    inverse = inverse if return_inverse else nothing
    return values, inverse, counts if return_counts else nothing


# Places in a sorted sequence


@lower(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder, sorted_sequence: Value, self: Operand, out_int32: bool, right: bool,
    side: str | None, sorter: Value | None,
) -> Value:  # fmt: skip
    if sorter is not None:
        sorted_sequence = b.GatherElements(sorted_sequence, sorter, axis=-1)
    return position(b, sorted_sequence, self, right or side == "right")


@lower(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(b: Builder, self: Operand, boundaries: Value, out_int32: bool, right: bool) -> Value:
    return position(b, boundaries, self, right)


def position(b: Builder, sequence: Value, x: Operand, right: bool) -> Value:
    """How many of a sequence come before each number: all of them before NaN."""
    sequence, number = b.common(sequence, x)
    if number.rank:
        number = b.unsqueeze(number, number.rank)
        if sequence.rank > 1:
            sequence = b.unsqueeze(sequence, sequence.rank - 1)
    after = b.Greater(sequence, number) if right else b.GreaterOrEqual(sequence, number)
    return _count(b, b.Not(after))


def _count(b: Builder, truths: Value) -> Value:
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
        equal = b.Equal(b.unsqueeze(x, x.rank), flat(b, tests))
        same = b.cast(_count(b, equal), torch.bool)
    return b.Not(same) if invert else same
