"""Lowers writes by index: scatter, index_put, masked writes, bags, segments.

Where positions repeat, what is written last stays, as in torch, or all is brought together by a
reduction. ONNX Runtime reduces neither halves nor bools, and loses NaN in a maximum: those
are put right here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import emit_arange, floor_quotient
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.index import (
    AdvancedIndex,
    Indices,
    at_least_1d,
    cast_index,
    count_not_above,
    flatten_value,
)
from graphport.onnx.lowerings.reduce import norm, widen_input
from graphport.ops.sizes import invert_permutation, wrap_dim
from graphport.symbolic import eq, ge, ite, max_

Write = Callable[[Value, Value, str], Value]
"""Data with updates written to it, by a reduction of ONNX."""

_REDUCTIONS = {
    "none": "none",
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}
_BOOL_REDUCTIONS = {"add": "max", "mul": "min", "max": "max", "min": "min"}
_END = (1 << 63) - 1
_COMPUTE_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
}


def expand_number(b: Builder, number: Any, like: Value, dtype: torch.dtype | None = None) -> Value:
    """A number in the sizes of a value."""
    scalar = number if type(number) is Value else b.scalar(number, dtype or like.dtype)
    if like.shape is not None and all(type(s) is int for s in like.shape):
        return b.expand(scalar, like.shape)
    return b.shaped(b.Expand(scalar, b.Shape(like)), like.shape or ())


# Reductions


def write_updates(
    b: Builder, write: Write, data: Value, updates: Value, reduce: str, include_self: bool = True
) -> Value:
    """Data with updates written to it, by a reduction of torch."""
    if reduce == "none":
        return write(data, updates, "none")
    dtype = data.dtype
    wide = _COMPUTE_DTYPES.get(dtype, dtype)
    data, updates = b.cast(data, wide), b.cast(updates, wide)
    reduction = _REDUCTIONS[reduce]
    if dtype is torch.bool:
        reduction = _BOOL_REDUCTIONS[reduction]
    if not include_self:
        data = write(data, expand_number(b, _neutral_value(reduction, wide), updates), "none")
    out = write(data, updates, reduction)
    if reduction in ("max", "min") and wide.is_floating_point:
        # Where a NaN is added the sum is NaN, in whatever order.
        marks = b.Where(b.IsNaN(updates), float("nan"), b.scalar(0.0, wide))
        sums = write(data, marks, "add")
        out = b.Where(b.IsNaN(sums), sums, out)
    if reduce == "mean":
        out = _divide_by_count(b, out, _count_updates(b, write, data, updates, include_self))
    return b.cast(out, dtype)


def _neutral_value(reduction: str, dtype: torch.dtype) -> Any:
    """What a reduction starts from."""
    if reduction in ("add", "mul"):
        return 0 if reduction == "add" else 1
    if dtype.is_floating_point:
        return float("-inf") if reduction == "max" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduction == "max" else limits.max


def _count_updates(
    b: Builder, write: Write, data: Value, updates: Value, include_self: bool
) -> Value:
    """How many numbers come together at each position, at least one."""
    count = write(expand_number(b, int(include_self), data), expand_number(b, 1, updates), "add")
    return count if include_self else b.Max(count, 1)


def _divide_by_count(b: Builder, total: Value, count: Value) -> Value:
    """Integers are rounded down, where ONNX rounds to zero."""
    if total.dtype.is_floating_point:
        return b.Div(total, count)
    return floor_quotient(b, total, count, natural=True)


# One position per element


@lower(aten.scatter.src)
def scatter_src(b: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, self, dim, index, src, "none")


@lower(aten.scatter.value)
def scatter_value(b: Builder, self: Value, dim: int, index: Value, value: Number) -> Value:
    return _scatter(b, self, dim, index, expand_number(b, value, index, self.dtype), "none")


@lower(aten.scatter.reduce)
def scatter_reduce_src(
    b: Builder, self: Value, dim: int, index: Value, src: Value, reduce: str
) -> Value:
    return _scatter(b, self, dim, index, src, reduce)


@lower(aten.scatter.value_reduce)
def scatter_reduce_value(
    b: Builder, self: Value, dim: int, index: Value, value: Number, reduce: str
) -> Value:
    return _scatter(b, self, dim, index, expand_number(b, value, index, self.dtype), reduce)


@lower(aten.scatter_add.default)
def scatter_add(b: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, self, dim, index, src, "sum")


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool
) -> Value:
    return _scatter(b, self, dim, index, src, reduce, include_self)


def _scatter(
    b: Builder,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if 0 in (index.shape or ()):
        return self
    data, index, src = (
        at_least_1d(b, self),
        cast_index(b, at_least_1d(b, index)),
        at_least_1d(b, src),
    )
    write = make_element_writer(b, wrap_dim(dim, data.rank), index)
    out = write_updates(b, write, data, _trim_source(b, src, index), reduce, include_self)
    return b.reshape(out, b.result.sizes)


def make_element_writer(b: Builder, axis: int, index: Value) -> Write:
    """To the positions of an index that has one for every update, along an axis."""

    def write(data: Value, updates: Value, reduction: str) -> Value:
        return b.ScatterElements(data, index, updates, axis=axis, reduction=reduction)

    return write


def _trim_source(b: Builder, src: Value, index: Value) -> Value:
    """The part of a source that has positions."""
    wanted = index.shape or ()
    dims = [d for d, s in enumerate(src.shape or ()) if s != wanted[d]]
    if not dims:
        return src
    return b.Slice(src, [0] * len(dims), [wanted[d] for d in dims], dims)


@lower(aten.put.default)
def put(b: Builder, self: Value, index: Value, source: Value, accumulate: bool) -> Value:
    write = make_element_writer(b, 0, cast_index(b, flatten_value(b, index)))
    how = "sum" if accumulate else "none"
    return b.reshape(
        write_updates(b, write, flatten_value(b, self), flatten_value(b, source), how),
        b.result.sizes,
    )


# One position per slice


def _make_slice_writer(b: Builder, axis: int, index: Value, source: Value) -> Write:
    """Whole rows where these are what is written, elements otherwise."""
    if axis == 0:
        rows = b.unsqueeze(b.cast(index, torch.int64), 1)
        return lambda data, updates, how: b.ScatterND(data, rows, updates, reduction=how)
    others = [d for d in range(source.rank) if d != axis]
    return make_element_writer(b, axis, b.expand(b.unsqueeze(index, *others), source.shape or ()))


def _index_write(
    b: Builder,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    data, index, source = (
        at_least_1d(b, self),
        cast_index(b, at_least_1d(b, index)),
        at_least_1d(b, source),
    )
    write = _make_slice_writer(b, wrap_dim(dim, data.rank), index, source)
    return b.reshape(write_updates(b, write, data, source, reduce, include_self), b.result.sizes)


@lower(aten.index_add.default)
def index_add(
    b: Builder, self: Value, dim: int, index: Value, source: Value, alpha: Number
) -> Value:
    if alpha != 1:
        source = b.Mul(*b.common(source, alpha, dtype=source.dtype))
    return _index_write(b, self, dim, index, source, "sum")


@lower(aten.index_copy.default)
def index_copy(b: Builder, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _index_write(b, self, dim, index, source, "none")


@lower(aten.index_reduce.default)
def index_reduce(
    b: Builder, self: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    return _index_write(b, self, dim, index, source, reduce, include_self)


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, self: Value, dim: int, index: Value, value: Number) -> Value:
    data = at_least_1d(b, self)
    dim = wrap_dim(dim, data.rank)
    sizes = list(data.shape or ())
    sizes[dim] = at_least_1d(b, index).shape[0]  # type: ignore[index]
    (number,) = b.common(value, dtype=self.dtype)
    return _index_write(b, self, dim, index, b.expand(number, sizes), "none")


# Several indices


@lower(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, self: Value, indices: Indices, values: Value, accumulate: bool) -> Value:
    reduce = "sum" if accumulate else "none"
    if all(i is None for i in indices):
        return _write_all(b, self, values, accumulate)
    places = AdvancedIndex(b, indices)
    if places.mask is not None and not accumulate:
        chosen = _write_masked(b, self, places, values)
        if chosen is not None:
            return chosen
    if places.dims == [places.at] and places.parts and places.parts[0].rank == 1:
        sizes = list(self.shape or ())
        sizes[places.at] = (places.parts[0].shape or ())[0]
        if None not in sizes:
            return _index_write(
                b, self, places.at, places.parts[0], b.expand(values, sizes), reduce
            )
    order, rows = places.order(self.rank), places.stack_positions()
    updates = _expand_updates(b, self, places, rows, values)
    out = write_updates(
        b,
        lambda data, new, how: b.ScatterND(data, rows, new, reduction=how),
        b.transpose(self, order),
        updates,
        reduce,
    )
    return b.transpose(out, invert_permutation(order))


def _write_all(b: Builder, self: Value, values: Value, accumulate: bool) -> Value:
    new = b.expand(values, b.result.sizes)
    if not accumulate:
        return new
    return b.Or(self, new) if self.dtype is torch.bool else b.Add(self, new)


def _write_masked(b: Builder, self: Value, places: AdvancedIndex, values: Value) -> Value | None:
    """A mask and values that are the same for each of its ones need no positions."""
    mask = places.mask
    assert mask is not None
    after = self.rank - places.at - mask.rank
    if values.rank > after:
        if (values.shape or ())[values.rank - after - 1] != 1:
            return None
        first = values.rank - after
        values = b.unsqueeze(values, *range(first, first + mask.rank - 1))
    return b.Where(b.unsqueeze(mask, *range(mask.rank, mask.rank + after)), values, self)


def _expand_updates(
    b: Builder, self: Value, places: AdvancedIndex, rows: Value, values: Value
) -> Value:
    """Values in the sizes of what is written, the dims of the positions first."""
    depth, at = places.depth, places.at
    rest = [s for d, s in enumerate(self.shape or ()) if d not in places.dims]
    own = list(rows.shape or (None,) * (depth + 1))[:-1]
    if values.rank <= len(rest) - at:
        at = 0  # they are the same for all dims before
    sizes = [*rest[:at], *own, *rest[at:]]
    if None not in own:
        out = b.expand(values, sizes)
    else:
        parts = [b.sizes.vector(rest[:at])] if at else []
        parts.append(b.Shape(rows, start=0, end=depth))
        parts += [b.sizes.vector(rest[at:])] if rest[at:] else []
        out = b.Expand(values, parts[0] if len(parts) == 1 else b.Concat(*parts, axis=0))
    return b.transpose(out, invert_permutation(places.back(self.rank))) if at else out


# Masks


@lower(aten.masked_scatter.default)
def masked_scatter(b: Builder, self: Value, mask: Value, source: Value) -> Value:
    """As many elements of the source as the mask has ones, in their order."""
    data, mask = (at_least_1d(b, b.expand(x, b.result.sizes)) for x in (self, mask))
    found = b.NonZero(b.cast(mask, torch.bool))
    count = b.Shape(found, start=1, end=2)
    updates = b.Slice(flatten_value(b, source), [0], count, [0])
    out = b.ScatterND(data, b.Transpose(found, perm=[1, 0]), updates)
    return b.reshape(out, b.result.sizes)


# Views written back


@lower(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, self: Value, src: Value, dim: int, start: object, end: object, step: object
) -> Value:
    dim = wrap_dim(dim, self.rank)
    sizes = list(self.shape or ())
    size, count = sizes[dim], (src.shape or ())[dim]
    sizes[dim] = count
    src = b.expand(b.cast(src, self.dtype), sizes)
    if _is_same_size(b, count, size):
        return src
    first = _slice_start(b, 0 if start is None else start, size)
    if step == 1:
        return _insert_slice(b, self, dim, first, src)
    index = b.Add(b.Mul(emit_arange(b, count), step), b.sizes.number(first))
    return _index_write(b, self, dim, b.shaped(index, (count,)), src, "none")


@lower(aten.select_scatter.default)
def select_scatter(b: Builder, self: Value, src: Value, dim: int, index: object) -> Value:
    dim = wrap_dim(dim, self.rank)
    row = b.unsqueeze(b.cast(src, self.dtype), dim)
    sizes = list(self.shape or ())
    first = _slice_start(b, index, sizes[dim])
    sizes[dim] = 1
    return _insert_slice(b, self, dim, first, b.expand(row, sizes))


@lower(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, self: Value, src: Value, offset: int, dim1: int, dim2: int
) -> Value:
    dims = [wrap_dim(dim1, self.rank), wrap_dim(dim2, self.rank)]
    order = [*dims, *(d for d in range(self.rank) if d not in dims)]
    step = emit_arange(b, (src.shape or ())[-1])
    rows = b.Concat(
        *(b.unsqueeze(b.Add(step, max(start, 0)), 1) for start in (-offset, offset)), axis=1
    )
    new = b.transpose(b.cast(src, self.dtype), [src.rank - 1, *range(src.rank - 1)])
    return b.transpose(b.ScatterND(b.transpose(self, order), rows, new), invert_permutation(order))


def _slice_start(b: Builder, start: Any, size: Any) -> Any:
    """Where a slice starts, counted from the front."""
    if type(start) is int:
        return start if start >= 0 else max_(start + size, 0)
    return b.scope.simplify(ite(ge(start, 0), start, max_(start + size, 0)))


def _insert_slice(b: Builder, self: Value, dim: int, first: Any, src: Value) -> Value:
    """A part between what is before and after it."""
    count, size = (src.shape or ())[dim], (self.shape or ())[dim]
    parts = [src]
    if not _is_same_size(b, first, 0):
        parts.insert(0, b.Slice(self, [0], [first], [dim]))
    if not _is_same_size(b, first + count, size):
        parts.append(b.Slice(self, [first + count], [_END], [dim]))
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=dim)


def _is_same_size(b: Builder, x: object, y: object) -> bool:
    return x == y or b.scope.decide(eq(x, y)) is True


@lower(aten.embedding_renorm.default)
def embedding_renorm(
    b: Builder, self: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    """The rows that are looked up, scaled to the largest norm where theirs is larger."""
    places = flatten_value(b, cast_index(b, indices))
    rows = b.Gather(self, places, axis=0)
    length = norm(b, widen_input(b, rows), norm_type, [1], True)
    length = b.cast(b.cast(length, self.dtype), torch.float64)
    factor = b.Where(b.Greater(length, max_norm), b.Div(max_norm, b.Add(length, 1e-7)), 1.0)
    wide = widen_input(b, rows)
    scaled = b.cast(b.Mul(wide, b.cast(factor, wide.dtype)), self.dtype)
    return b.ScatterND(self, b.unsqueeze(places, 1), scaled)


# Bags of embeddings

_SUM, _MEAN, _MAX = 0, 1, 2


@lower(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Any, ...]:
    """Rows reduced by the bag that they are in."""
    if any(user.args[1] for user in b.origin.users):
        raise UnsupportedError("what embedding_bag gives besides the bags is for gradients only")
    if include_last_offset:
        offsets = b.Slice(offsets, [0], [-1], [0])
    indices, offsets = (b.cast(x, torch.int64) for x in (indices, offsets))
    count = b.Shape(indices)
    if b.scope.decide(ge(b.result[0].sizes[0], 1)) is not True:  # without bags nothing is in one
        count = b.Mul(count, b.Min(b.Shape(offsets), [1]))
        indices = b.Slice(indices, [0], count, [0])
        if per_sample_weights is not None:
            per_sample_weights = b.Slice(per_sample_weights, [0], count, [0])
    bags = b.Slice(b.Sub(count_not_above(b, offsets, count), 1), [0], count, [0])
    if padding_idx >= 0:
        kept = b.Not(b.Equal(indices, padding_idx))
        indices, bags = b.Compress(indices, kept, axis=0), b.Compress(bags, kept, axis=0)
        if per_sample_weights is not None:
            per_sample_weights = b.Compress(per_sample_weights, kept, axis=0)
    rows = b.Gather(weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = b.Mul(rows, b.unsqueeze(per_sample_weights, 1))
    where = b.unsqueeze(bags, 1)
    result = b.result[0]
    start = b.expand(b.scalar(0, weight.dtype), result.sizes)
    reduce = {_SUM: "sum", _MEAN: "mean", _MAX: "amax"}[mode]
    out = write_updates(
        b,
        lambda data, new, how: b.ScatterND(data, where, new, reduction=how),
        start,
        rows,
        reduce,
        include_self=mode == _SUM,
    )
    return (out, *(None for _ in b.result[1:]))


# `segment_reduce`.

# The reduction under its name elsewhere, and what it starts from.
_SEGMENT_REDUCTIONS = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "max": ("amax", float("-inf")),
    "min": ("amin", float("inf")),
}


@lower(aten.segment_reduce.default)
def segment_reduce(
    b: Builder,
    data: Value,
    reduce: str,
    lengths: Value | None,
    offsets: Value | None,
    axis: int,
    unsafe: bool,
    initial: Any,
) -> Value:
    """Every element is written to the place of its segment.

    What is before the first segment and after the last goes to places of its own, which are left
    out. That lengths or offsets fit the data, eager checks unless it is told not to.
    """
    sizes, axis = data.shape or (), axis % data.rank
    lead, size, rest = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    count = b.result.sizes[axis]
    edges = _segment_edges(b, lengths, axis) if offsets is None else b.cast(offsets, torch.int64)
    edges = b.shaped(edges, (*lead, count + 1))
    index = b.unsqueeze(_count_passed_edges(b, edges, size), *range(axis + 1, data.rank))
    index = b.expand(index, sizes)

    how, start = _SEGMENT_REDUCTIONS[reduce]
    number = b.scalar(start if initial is None else initial, data.dtype)
    places = b.expand(number, (*lead, count + 2, *rest))
    out = b.Slice(
        write_updates(b, make_element_writer(b, axis, index), places, data, how),
        [1],
        [count + 1],
        [axis],
    )
    if reduce != "mean":
        return out
    if lengths is None:
        lengths = b.Sub(
            b.Slice(edges, [1], [count + 1], [axis]), b.Slice(edges, [0], [count], [axis])
        )
    length = b.unsqueeze(b.cast(lengths, data.dtype), *range(axis + 1, data.rank))
    # Of no elements the mean is what it starts from, or 0 / 0.
    return b.Div(out, length if initial is None else b.Max(length, 1.0))


def _segment_edges(b: Builder, lengths: Any, axis: int) -> Value:
    """Where segments begin, and the last ends."""
    ends = b.CumSum(b.cast(lengths, torch.int64), b.scalar(axis, torch.int64))
    return b.Pad(ends, [*[0] * axis, 1, *[0] * (axis + 1)])


def _count_passed_edges(b: Builder, edges: Value, size: Any) -> Value:
    """How many edges each position has behind it."""
    *lead, _ = edges.shape or ()
    axis = len(lead)
    marks = b.ScatterElements(
        b.expand(b.scalar(0, torch.int64), (*lead, size + 1)),
        edges,
        expand_number(b, 1, edges),
        axis=axis,
        reduction="add",
    )
    counts = b.CumSum(marks, b.scalar(axis, torch.int64))
    return b.shaped(b.Slice(counts, [0], [size], [axis]), (*lead, size))
