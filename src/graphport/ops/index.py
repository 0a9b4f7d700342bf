"""Reading and writing at positions given by tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.errors import ShapeError
from graphport.ops.abstract import Abstract, Size, Sizes
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import broadcast, numel, wrap_dim
from graphport.ops.strides import elementwise_strides, preserved

aten = torch.ops.aten

INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def indexed_sizes(self: Abstract, indices: Sequence[Abstract | None]) -> Sizes:
    """Sizes of `self[indices]` for integer indices: where the broadcast index dims go."""
    used = [d for d, i in enumerate(indices) if i is not None]
    common = broadcast(*[indices[d].sizes for d in used])
    adjacent = used == list(range(used[0], used[-1] + 1))
    rest_before = self.sizes[: used[0]] if adjacent else ()
    rest_after = tuple(
        s for d, s in enumerate(self.sizes) if d not in used and not (adjacent and d < used[0])
    )
    return (*rest_before, *common, *rest_after)


@shape_rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self: Abstract, indices: Sequence[Abstract | None]) -> Abstract:
    """Boolean masks are turned into integers before this rule is asked."""
    if len(indices) > self.rank:
        raise IndexError(
            f"too many indices for tensor of dimension {self.rank} (got {len(indices)})"
        )
    for i in indices:
        if i is not None and i.dtype not in INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if all(i is None for i in indices):
        return Abstract(self.sizes, self.dtype, self.device, preserved(self))
    sizes = indexed_sizes(self, indices)
    return Abstract(sizes, self.dtype, self.device, _index_layout(self, indices, sizes))


def _index_layout(self: Abstract, indices: Sequence[Abstract | None], sizes: Sizes) -> Sizes | None:
    """The result is mapped over the tensor and the indices, each standing still along the other."""
    used = [d for d, i in enumerate(indices) if i is not None]
    found = [indices[d] for d in used]
    if self._strides is None and all(i._strides is None for i in found):
        return None
    rest = [s for d, s in enumerate(self.strides) if d not in used]
    depth = len(sizes) - len(rest)
    at = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    moved = (*rest[:at], *(0,) * depth, *rest[at:])
    operands = [Abstract(sizes, self.dtype, self.device, moved)]
    for i in found:
        own = tuple(0 if size == 1 else s for size, s in zip(i.sizes, i.strides, strict=True))
        still = (*(0,) * (at + depth - i.rank), *own, *(0,) * (len(sizes) - at - depth))
        operands.append(Abstract(sizes, i.dtype, i.device, still))
    return elementwise_strides(sizes, operands)


@shape_rule(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    self: Abstract, indices: Sequence[Abstract | None], values: Abstract, accumulate: bool
) -> Abstract:
    if self.dtype is not values.dtype:
        raise ShapeError(
            f"Index put requires the source and destination dtypes match, got {self.dtype} for "
            f"the destination and {values.dtype} for the source."
        )
    return Abstract(self.sizes, self.dtype, self.device, preserved(self))


@shape_rule(aten.index_select.default)
def index_select(self: Abstract, dim: int, index: Abstract) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    count = index.sizes[0] if index.rank else 1
    return self.like((*self.sizes[:dim], count, *self.sizes[dim + 1 :]) if self.rank else ())


@shape_rule(aten.gather.default)
def gather(self: Abstract, dim: int, index: Abstract, **_: Any) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    _require_positions(self, index, "gather")
    for d, (have, most) in enumerate(zip(index.sizes, self.sizes, strict=False)):
        if d != dim and type(have) is int and type(most) is int and have > most:
            raise ShapeError(f"gather: index {index} is larger than the input {self} in dim {d}")
    return self.like(index.sizes)


def _require_positions(self: Abstract, index: Abstract, what: str) -> None:
    """An index into one dim, for each element of the others; an empty one may be anything."""
    if 0 in index.sizes:
        return
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"{what}(): Expected dtype int32/int64 for index")
    if index.rank != self.rank and index.rank and self.rank:
        raise ShapeError(f"{what}: index {index} must have as many dims as the input {self}")


@shape_rule(
    aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce,
    aten.scatter_add.default, aten.scatter_reduce.two,
)  # fmt: skip
def scatter(self: Abstract, dim: int, index: Abstract, src: Any, *_: Any, **__: Any) -> Abstract:
    wrap_dim(dim, self.rank)
    _require_positions(self, index, "scatter")
    if isinstance(src, Abstract) and src.dtype is not self.dtype:
        raise ShapeError(f"scatter(): Expected self.dtype to be equal to src.dtype: {self}, {src}")
    return self.like()


@shape_rule(aten.index_add.default, aten.index_copy.default, aten.index_reduce.default)
def index_add(self: Abstract, dim: int, index: Abstract, *_: Any, **__: Any) -> Abstract:
    wrap_dim(dim, self.rank)
    return self.like()


@shape_rule(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: Abstract, dim: int, index: Abstract, value: Any) -> Abstract:
    wrap_dim(dim, self.rank)
    return Abstract(self.sizes, self.dtype, self.device, preserved(self))


@shape_rule(aten.masked_scatter.default)
def masked_scatter(self: Abstract, mask: Abstract, source: Abstract) -> Abstract:
    return self.like(broadcast(self.sizes, mask.sizes))


@shape_rule(aten.take.default)
def take(self: Abstract, index: Abstract) -> Abstract:
    return self.like(index.sizes)


@shape_rule(aten.take_along_dim.default)
def take_along_dim(self: Abstract, indices: Abstract, dim: int | None) -> Abstract:
    if dim is None:
        return self.like((numel(indices.sizes),))
    dim = wrap_dim(dim, self.rank)
    own: list[Size] = list(broadcast(
        tuple(1 if d == dim else s for d, s in enumerate(self.sizes)),
        tuple(1 if d == dim else s for d, s in enumerate(indices.sizes)),
    ))  # fmt: skip
    own[dim] = indices.sizes[dim]
    return self.like(tuple(own))


@shape_rule(aten.embedding.default)
def embedding(weight: Abstract, indices: Abstract, *_: Any) -> Abstract:
    if indices.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"embedding: indices must be int64 or int32, got {indices}")
    if weight.rank != 2:
        raise ShapeError(f"embedding: 'weight' must be 2-D, got {weight}")
    return weight.like((*indices.sizes, *weight.sizes[1:]))


@shape_rule(aten.one_hot.default)
def one_hot(self: Abstract, num_classes: int) -> Abstract:
    if num_classes < 0:
        raise ShapeError(
            "one_hot: the number of classes depends on the data; pass num_classes explicitly"
        )
    return self.like((*self.sizes, num_classes), torch.int64)


@shape_rule(aten.bucketize.Tensor)
def bucketize(self: Abstract, boundaries: Abstract, *, out_int32: bool, right: bool) -> Abstract:
    return self.like(dtype=torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.bucketize.Scalar)
def bucketize_number(
    self: float, boundaries: Abstract, *, out_int32: bool, right: bool
) -> Abstract:
    return boundaries.like((), torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.searchsorted.Tensor)
def searchsorted(
    sorted_sequence: Abstract, self: Abstract, *, out_int32: bool, right: bool,
    side: str | None, sorter: Abstract | None,
) -> Abstract:  # fmt: skip
    return self.like(dtype=torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.isin.Tensor_Tensor)
def isin(elements: Abstract, test_elements: Abstract, **_: Any) -> Abstract:
    return elements.like(dtype=torch.bool)


_SUM, _MAX = 0, 2  # how embedding_bag joins the rows of a bag; 1 is the mean


@shape_rule(aten._embedding_bag.default)
def _embedding_bag(
    weight: Abstract, indices: Abstract, offsets: Abstract, scale_grad_by_freq: bool, mode: int,
    sparse: bool, per_sample_weights: Abstract | None, include_last_offset: bool,
    padding_idx: int,
) -> tuple[Abstract, ...]:  # fmt: skip
    """The bags, and what the backward pass needs: the bag of each index, sizes of bags, maxima."""
    bags = offsets.sizes[0] - int(include_last_offset)
    out = weight.like((bags, weight.sizes[1]))
    fast = mode == _SUM and padding_idx < 0 and weight.dtype is not torch.float64
    bag_of = offsets.like((0,) if fast else indices.sizes)
    maxima = offsets.like(out.sizes if mode == _MAX else (bags,))
    return out, bag_of, offsets.like((bags,)), maxima


@shape_rule(aten._embedding_bag_forward_only.default)
def _embedding_bag_forward_only(
    weight: Abstract, indices: Abstract, offsets: Abstract, scale_grad_by_freq: bool, mode: int,
    sparse: bool, per_sample_weights: Abstract | None, include_last_offset: bool,
    padding_idx: int,
) -> tuple[Abstract, ...]:  # fmt: skip
    out, bag_of, counts, maxima = _embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, padding_idx,
    )  # fmt: skip
    if mode == _SUM:  # neither is computed
        return out, bag_of, offsets.like(), offsets.like()
    return out, bag_of, counts, maxima


@shape_rule(aten.nonzero_static.default)
def nonzero_static(self: Abstract, *, size: Size, fill_value: int) -> Abstract:
    return self.like((size, self.rank), torch.int64)
