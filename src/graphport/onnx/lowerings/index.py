"""Lowers reads by index: gather, advanced indexing, masks, embedding, diagonals.

Positions below zero count from the end in ONNX too, so they are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.inference import broadcast_shapes
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.factory import emit_full
from graphport.ops.sizes import wrap_dim
from graphport.symbolic import max_, prod

Indices = Sequence["Value | None"]

_INDEX_DTYPES = (torch.int64, torch.int32)


def cast_index(b: Builder, index: Value) -> Value:
    """An index in a dtype that ONNX takes."""
    return index if index.dtype in _INDEX_DTYPES else b.cast(index, torch.int64)


def flatten_value(b: Builder, x: Value) -> Value:
    """All elements in one dim."""
    if x.rank == 1:
        return x
    sizes: Any = x.shape or ()
    return b.shaped(b.Reshape(x, [-1]), (None if None in sizes else prod(sizes),))


def at_least_1d(b: Builder, x: Value) -> Value:
    """ONNX has no axis in a tensor of no dims, where torch takes 0 and -1."""
    return b.Reshape(x, [1]) if x.rank == 0 else x


# One position per element, or per slice


@lower(aten.gather.default)
def gather(b: Builder, self: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    if 0 in b.result.sizes:
        return b.expand(b.scalar(0, self.dtype), b.result.sizes)
    data = at_least_1d(b, self)
    out = b.GatherElements(
        data, cast_index(b, at_least_1d(b, index)), axis=wrap_dim(dim, data.rank)
    )
    return b.reshape(out, b.result.sizes)


@lower(aten.take_along_dim.default)
def take_along_dim(b: Builder, self: Value, indices: Value, dim: int | None) -> Value:
    if dim is None:
        return b.Gather(flatten_value(b, self), cast_index(b, flatten_value(b, indices)), axis=0)
    dim = wrap_dim(dim, self.rank)
    own = tuple(self.shape[d] if d == dim else s for d, s in enumerate(b.result.sizes))  # type: ignore[index]
    index = b.expand(cast_index(b, indices), b.result.sizes)
    return b.GatherElements(b.expand(self, own), index, axis=dim)


@lower(aten.index_select.default)
def index_select(b: Builder, self: Value, dim: int, index: Value) -> Value:
    data = at_least_1d(b, self)
    out = b.Gather(data, cast_index(b, at_least_1d(b, index)), axis=wrap_dim(dim, data.rank))
    return b.reshape(out, b.result.sizes)


@lower(aten.take.default)
def take(b: Builder, self: Value, index: Value) -> Value:
    return b.Gather(flatten_value(b, self), cast_index(b, index), axis=0)


@lower(aten.embedding.default, ignores="padding_idx scale_grad_by_freq sparse")
def embedding(b: Builder, weight: Value, indices: Value) -> Value:
    """The row of the padding is a row like others; only its gradient is not."""
    return b.Gather(weight, cast_index(b, indices), axis=0)


@lower(aten.one_hot.default)
def one_hot(b: Builder, self: Value, num_classes: Any) -> Value:
    index = at_least_1d(b, self)
    if type(num_classes) is int and num_classes < 0:
        count = b.Add(b.ReduceMax(index, keepdims=0), 1)
    else:
        count = b.sizes.number(num_classes)
    out = b.OneHot(index, count, torch.tensor([0, 1]), dtype=torch.int64)
    return out if self.rank else b.squeeze(out, 0)


# Several indices


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, self: Value, indices: Indices) -> Value:
    if all(i is None for i in indices):
        return self
    places = AdvancedIndex(b, indices)
    if places.mask is not None and len(places.dims) in (1, self.rank):
        axis = places.dims[0] if places.mask.rank == 1 else None
        return b.Compress(self, flatten_value(b, places.mask), axis=axis)
    if len(places.parts) == 1:
        return b.Gather(self, places.parts[0], axis=places.dims[0])
    outer = _gather_outer(b, self, places)
    if outer is not None:
        return outer
    data = b.transpose(self, places.order(self.rank))
    return b.transpose(b.GatherND(data, places.stack_positions()), places.back(self.rank))


class AdvancedIndex:
    """Where `x[indices]` reads: an integer tensor for each of some dims, to be broadcast."""

    def __init__(self, b: Builder, indices: Indices) -> None:
        self.b = b
        self.dims: list[int] = []
        self.parts: list[Value] = []
        self.mask: Value | None = None
        """The only index, if it is a mask; there are no parts then."""
        given = [i for i in indices if i is not None]
        dim = 0
        for i in indices:
            if i is None:
                dim += 1
                continue
            if not is_mask(i):
                self.parts.append(cast_index(b, i))
            elif len(given) == 1:
                self.mask = b.cast(i, torch.bool)
            else:
                self.parts.extend(_mask_positions(b, i))
            count = i.rank if is_mask(i) else 1
            self.dims.extend(range(dim, dim + count))
            dim += count
        self.depth = max((p.rank for p in self.parts), default=1)
        """How many dims the positions have together."""
        self.adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.at = self.dims[0] if self.adjacent else 0
        """Where these are among the dims of the result: where they were, if side by side."""

    def stack_positions(self) -> Value:
        """The positions of each element in a row, as GatherND and ScatterND take them."""
        b = self.b
        if self.mask is not None:
            return b.Transpose(b.NonZero(self.mask), perm=[1, 0])
        parts = [b.cast(p, torch.int64) for p in self.parts]
        constants = [p.tensor for p in parts if p.tensor is not None]
        if len(constants) == len(parts):
            return b.constant(torch.stack(torch.broadcast_tensors(*constants), -1))
        if len(parts) > 1:
            parts = _broadcast_indices(b, parts)
        parts = [b.unsqueeze(p, self.depth) for p in parts]
        return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=self.depth)

    def order(self, rank: int) -> list[int]:
        """The dims of the tensor, those with positions first."""
        return [*self.dims, *(d for d in range(rank) if d not in self.dims)]

    def back(self, rank: int) -> list[int]:
        """The dims of what is read in torch's order, from those of the positions first."""
        rest = list(range(self.depth, self.depth + rank - len(self.dims)))
        return [*rest[: self.at], *range(self.depth), *rest[self.at :]]


def is_mask(index: Value) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _mask_positions(b: Builder, mask: Value) -> list[Value]:
    """The positions of the ones of a mask in each of its dims."""
    found = b.NonZero(b.cast(mask, torch.bool))
    if mask.rank == 1:
        return [b.squeeze(found, 0)]
    return [b.Gather(found, d, axis=0) for d in range(mask.rank)]


def _broadcast_indices(b: Builder, parts: list[Value]) -> list[Value]:
    """Indices in one shape. How many ones a mask has is not known before it runs."""
    shape = broadcast_shapes([p.shape for p in parts])
    if shape is not None and None not in shape:
        return [b.expand(p, shape) for p in parts]
    total = parts[0]
    for p in parts[1:]:
        total = b.Add(total, p)
    return [b.shaped(b.Expand(p, b.Shape(total)), (None,) * total.rank) for p in parts]


def _gather_outer(b: Builder, self: Value, places: AdvancedIndex) -> Value | None:
    """x[i, j] where each index varies in dims of its own: one Gather after the other."""
    if places.mask is not None or not places.adjacent:
        return None
    own = [
        [d for d, s in enumerate(p.shape or (), places.depth - p.rank) if s != 1]
        for p in places.parts
    ]
    varying = [d for dims in own for d in dims]
    if any(x >= y for x, y in pairwise(varying)):
        return None
    out = self
    for dim, part, dims in reversed(list(zip(places.dims, places.parts, own, strict=True))):
        still = [d for d in range(part.rank) if d + places.depth - part.rank not in dims]
        out = b.Gather(out, b.squeeze(part, *still), axis=dim)
    return b.unsqueeze(out, *(places.at + d for d in range(places.depth) if d not in varying))


# Positions that depend on data


@lower(aten.nonzero.default)
def nonzero(b: Builder, self: Value) -> Value:
    found = b.Transpose(b.NonZero(b.cast(self, torch.bool)), perm=[1, 0])
    # Of no dims there are no positions; ONNX counts one dim.
    return found if self.rank else b.Slice(found, [0], [0], [1])


@lower(aten.nonzero_static.default)
def nonzero_static(b: Builder, self: Value, size: Size, fill_value: int) -> Value:
    """As many rows as are asked for: the first ones, then rows of the value."""
    filler = b.expand(b.scalar(fill_value, torch.int64), (size, self.rank))
    return b.Slice(b.Concat(nonzero(b, self), filler, axis=0), [0], [size], [0])


@lower(aten.masked_select.default)
def masked_select(b: Builder, self: Value, mask: Value) -> Value:
    shape = broadcast_shapes([self.shape, mask.shape])
    x, mask = (_expand_like(b, v, o, shape) for v, o in ((self, mask), (mask, self)))
    return b.Compress(flatten_value(b, x), flatten_value(b, mask))


def _expand_like(b: Builder, x: Value, other: Value, shape: Any) -> Value:
    return b.expand(x, shape) if None not in shape else b.Expand(x, b.Shape(other))


@lower(aten.item.default, aten._local_scalar_dense.default)
def item(b: Builder, self: Value) -> Value:
    """A number of the program: sizes are made from int64, other numbers from float64."""
    kind = torch.float64 if self.dtype.is_floating_point else torch.int64
    return b.cast(self, kind)


@lower(aten.repeat_interleave.Tensor)
def repeat_interleave(b: Builder, repeats: Value, output_size: object) -> Value:
    """Each position as often as it says: how many of the running totals are no larger."""
    repeats = b.cast(repeats, torch.int64)
    count = b.ReduceSum(repeats, [0]) if output_size is None else b.sizes.element(output_size)
    return b.Slice(count_not_above(b, b.CumSum(repeats, 0), count), [0], count, [0])


def count_not_above(b: Builder, ends: Value, count: Value) -> Value:
    """For each number up to and with `count`, how many of the given ones are no larger."""
    zeros = b.Expand(b.scalar(0, torch.int64), b.Add(count, 1))
    ones = b.Expand(b.scalar(1, torch.int64), b.Shape(ends))
    return b.CumSum(b.ScatterElements(zeros, ends, ones, axis=0, reduction="add"), 0)


# Diagonals and triangles of matrices.


def _order_dims_last(rank: int, dim1: int, dim2: int) -> list[int]:
    """An order of dims in which these two are the last."""
    return [*(d for d in range(rank) if d not in (dim1, dim2)), dim1, dim2]


def _move_dims_back(b: Builder, x: Value, dim1: int, dim2: int) -> Value:
    order = _order_dims_last(x.rank, dim1, dim2)
    return b.transpose(x, [order.index(d) for d in range(x.rank)])


@lower(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    """Of the matrix as one row: every (columns + 1)th element, as many as there are columns."""
    order = _order_dims_last(self.rank, wrap_dim(dim1, self.rank), wrap_dim(dim2, self.rank))
    x = b.transpose(self, order)
    *lead, rows, columns = x.sizes
    step: Any = columns + 1
    start = offset if offset >= 0 else -offset * columns
    end = start + max_(columns - max(offset, 0), 0) * step
    flat = b.reshape(x, [*lead, rows * columns])
    return b.Slice(flat, [start], [end], [len(lead)], [step])


@lower(aten.diag_embed.default)
def diag_embed(b: Builder, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    rank = self.rank + 1
    size = self.sizes[-1] + abs(offset)
    return _move_dims_back(b, _embed_diagonal(b, self, size, offset), dim1 % rank, dim2 % rank)


def _embed_diagonal(b: Builder, x: Value, size: Size, offset: int) -> Value:
    """Rows of `x` as diagonals of square matrices that are zero elsewhere."""
    if offset:
        zeros = [0] * (x.rank - 1)
        x = b.Pad(x, [*zeros, 0, *zeros, abs(offset)])
    # Above the main diagonal an element keeps its row, below it its column.
    x = b.unsqueeze(x, x.rank if offset >= 0 else x.rank - 1)
    return b.Where(_diagonal_mask(b, size, offset), x, 0)


def _diagonal_mask(b: Builder, size: Size, offset: int) -> Value:
    if type(size) is int:
        return b.constant(torch.arange(size) == torch.arange(size)[:, None] + offset)
    along = emit_arange(b, size)
    down = b.unsqueeze(along, 1)
    return b.Equal(along, b.Add(down, offset) if offset else down)


@lower(aten.tril.default)
def tril(b: Builder, self: Value, diagonal: Size) -> Value:
    return b.Trilu(self, _diagonal_number(b, diagonal), upper=0)


@lower(aten.triu.default)
def triu(b: Builder, self: Value, diagonal: Size) -> Value:
    return b.Trilu(self, _diagonal_number(b, diagonal), upper=1)


def _diagonal_number(b: Builder, diagonal: Size) -> Value | None:
    return None if diagonal == 0 else b.sizes.number(diagonal)


@lower(aten.tril_indices.default)
def tril_indices(b: Builder, row: Size, col: Size, offset: Size) -> Value:
    return _triangle_indices(b, row, col, offset, 0)


@lower(aten.triu_indices.default)
def triu_indices(b: Builder, row: Size, col: Size, offset: Size) -> Value:
    return _triangle_indices(b, row, col, offset, 1)


def _triangle_indices(b: Builder, row: Size, col: Size, offset: Size, upper: int) -> Value:
    ones = emit_full(b, [row, col], True, torch.bool)
    return b.NonZero(b.Trilu(ones, _diagonal_number(b, offset), upper=upper))


@lower(aten.block_diag.default)
def block_diag(b: Builder, tensors: Sequence[Value]) -> Value:
    """Every block between the zeros of its rows."""
    dtype, columns = b.result.dtype, b.result.sizes[1]
    rows, left = [], 0
    for x in tensors:
        sizes = (1,) * (2 - x.rank) + x.sizes
        block = b.cast(b.reshape(x, sizes), dtype)
        right = columns - left - sizes[1]
        if left != 0 or right != 0:
            block = b.Pad(block, [0, left, 0, right])
        rows.append(block)
        left = left + sizes[1]
    return rows[0] if len(rows) == 1 else b.Concat(*rows, axis=0)
