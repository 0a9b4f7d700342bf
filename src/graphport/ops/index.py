"""Shape rules of gather, scatter and indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops.registry import RULES, overloads, shape_rule
from graphport.ops.sizes import (
    broadcast,
    establish,
    establish_equal,
    establish_expandable,
    establish_sizes,
    numel,
    wrap_dim,
)
from graphport.symbolic import Expr, ge, le
from graphport.tensors.abstract import Abstract, Size, Sizes, elementwise_strides, preserve_strides

MASK_DTYPES = (torch.bool, torch.uint8)
INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def infer_index_sizes(self: Abstract, indices: Sequence[Abstract | None]) -> Sizes:
    """Sizes of `self[indices]` for integer indices: where the broadcast index dims go."""
    used = [d for d, i in enumerate(indices) if i is not None]
    common = broadcast(*[i.sizes for i in indices if i is not None])
    adjacent = used == list(range(used[0], used[-1] + 1))
    rest_before = self.sizes[: used[0]] if adjacent else ()
    rest_after = tuple(
        s for d, s in enumerate(self.sizes) if d not in used and not (adjacent and d < used[0])
    )
    return (*rest_before, *common, *rest_after)


def check_masks(self: Abstract, indices: Sequence[Abstract | None]) -> int:
    """A mask has the sizes of the dims that it stands for. How many dims are indexed in all."""
    at = 0
    for i in indices:
        if i is None or i.dtype not in MASK_DTYPES:
            at += 1
        else:
            if not establish_sizes(i.sizes, self.sizes[at : at + i.rank]):
                raise ShapeError(
                    f"The shape of the mask {i} does not match the shape of the indexed tensor "
                    f"{self}"
                )
            at += i.rank
    return at


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
        return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))
    sizes = infer_index_sizes(self, indices)
    return Abstract(sizes, self.dtype, self.device, _infer_index_strides(self, indices, sizes))


def _infer_index_strides(
    self: Abstract, indices: Sequence[Abstract | None], sizes: Sizes
) -> Sizes | None:
    """The result is mapped over the tensor and the indices, each standing still along the other."""
    used = [d for d, i in enumerate(indices) if i is not None]
    found = [i for i in indices if i is not None]
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
    used = [i for i in indices if i is not None]
    for i in used:
        if i.dtype not in INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if any(i.dtype in MASK_DTYPES for i in used):
        rest = self.sizes[check_masks(self, indices) :]
        if not establish_expandable(values.sizes[max(0, values.rank - len(rest)) :], rest):
            raise ShapeError(
                f"shape mismatch: value tensor {values} cannot be broadcast to what is indexed of "
                f"{self}"
            )
    elif used:
        sizes = infer_index_sizes(self, indices)
        if not establish_expandable(values.sizes, sizes):
            raise ShapeError(
                f"shape mismatch: value tensor {values} cannot be broadcast to indexing result of "
                f"shape {list(sizes)}"
            )
    return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))


@shape_rule(aten._unsafe_masked_index.default)
def _unsafe_masked_index(
    self: Abstract, mask: Abstract, indices: Sequence[Abstract | None], fill: object
) -> Abstract:
    return self.like(broadcast(infer_index_sizes(self, indices), mask.sizes))


@shape_rule(aten.index_select.default)
def index_select(self: Abstract, dim: int, index: Abstract) -> Abstract:
    _require_row(index, "index_select")
    dim = wrap_dim(dim, self.rank)
    count = index.sizes[0] if index.rank else 1
    return self.like((*self.sizes[:dim], count, *self.sizes[dim + 1 :]) if self.rank else ())


@shape_rule(aten.gather.default)
def gather(self: Abstract, dim: int, index: Abstract, **_: object) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    _require_positions(self, index, "gather")
    _require_within(index, self, dim, "gather")
    return self.like(index.sizes)


def _require_positions(self: Abstract, index: Abstract, what: str) -> None:
    """An index into one dim, for each element of the others; an empty one may be anything."""
    if 0 in index.sizes:
        return
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"{what}(): Expected dtype int32/int64 for index")
    if index.rank != self.rank and index.rank and self.rank:
        raise ShapeError(f"{what}: index {index} must have as many dims as the input {self}")


def _require_row(index: Abstract, what: str) -> None:
    if index.rank > 1:
        raise ShapeError(f"{what}: the index must be a vector or a number, got {index}")


def _require_within(index: Abstract, other: Abstract, dim: int | None, what: str) -> None:
    """An index is nowhere longer than what it is about, but for the dim that it chooses in."""
    if 0 in index.sizes:
        return
    for d, (have, most) in enumerate(zip(index.sizes, other.sizes, strict=False)):
        if d != dim and have is not most:
            if not establish(le(have, most)):
                raise ShapeError(f"{what}: index {index} is larger than {other} in dim {d}")


@shape_rule(*overloads("scatter.src,value,reduce,value_reduce scatter_add scatter_reduce.two"))
def scatter(
    self: Abstract, dim: int, index: Abstract, src: object, *_: object, **__: object
) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    _require_positions(self, index, "scatter")
    _require_within(index, self, dim, "scatter")
    if isinstance(src, Abstract):
        if src.dtype is not self.dtype:
            raise ShapeError(
                f"scatter(): Expected self.dtype to be equal to src.dtype: {self}, {src}"
            )
        _require_within(index, src, None, "scatter")
    return self.like()


@shape_rule(aten.index_add.default, aten.index_copy.default, aten.index_reduce.default)
def index_add(
    self: Abstract, dim: int, index: Abstract, source: Abstract, *_: object, **__: object
) -> Abstract:
    """A slice of `source` for each element of `index`."""
    if self.dtype is not source.dtype:
        raise ShapeError(f"index_add: self {self} and source {source} must have the same dtype")
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"index_add: Expected dtype int32/int64 for index but got {index}")
    dim = wrap_dim(dim, self.rank)
    _require_row(index, "index_add")
    if self.rank and source.rank:
        count = index.sizes[0] if index.rank else 1
        if not establish_sizes(source.sizes, (*self.sizes[:dim], count, *self.sizes[dim + 1 :])):
            raise ShapeError(
                f"{count} slices of {self} in dim {dim} are to be written, but the source is "
                f"{source}"
            )
    return self.like()


@shape_rule(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: Abstract, dim: int, index: Abstract, value: object) -> Abstract:
    _require_row(index, "index_fill")
    wrap_dim(dim, self.rank)
    return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))


@shape_rule(aten.masked_scatter.default)
def masked_scatter(self: Abstract, mask: Abstract, source: Abstract) -> Abstract:
    if mask.dtype is not torch.bool:
        raise ShapeError(f"masked_scatter only supports boolean masks, but got {mask}")
    return self.like(broadcast(self.sizes, mask.sizes))


@shape_rule(aten.put.default)
def put(self: Abstract, index: Abstract, source: Abstract, accumulate: bool) -> Abstract:
    if not establish_equal(numel(index.sizes), numel(source.sizes)):
        raise ShapeError(f"put: index {index} and source {source} differ in the number of elements")
    return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))


@shape_rule(aten.take.default)
def take(self: Abstract, index: Abstract) -> Abstract:
    return self.like(index.sizes)


@shape_rule(aten.take_along_dim.default)
def take_along_dim(self: Abstract, indices: Abstract, dim: int | None) -> Abstract:
    if dim is None:
        return self.like((numel(indices.sizes),))
    dim = wrap_dim(dim, self.rank)
    own: list[Size] = list(
        broadcast(
            tuple(1 if d == dim else s for d, s in enumerate(self.sizes)),
            tuple(1 if d == dim else s for d, s in enumerate(indices.sizes)),
        )
    )
    own[dim] = indices.sizes[dim]
    return self.like(tuple(own))


@shape_rule(aten.embedding.default)
def embedding(weight: Abstract, indices: Abstract, *_: object) -> Abstract:
    if indices.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"embedding: indices must be int64 or int32, got {indices}")
    if weight.rank != 2:
        raise ShapeError(f"embedding: 'weight' must be 2-D, got {weight}")
    return weight.like((*indices.sizes, *weight.sizes[1:]))


@shape_rule(aten.one_hot.default)
def one_hot(self: Abstract, num_classes: Size) -> Abstract:
    if isinstance(num_classes, Expr):
        if not establish(ge(num_classes, 1)):
            raise ShapeError(f"one_hot: {num_classes} classes")
    elif num_classes < 0:
        raise ShapeError(
            "one_hot: the number of classes depends on the data; pass num_classes explicitly"
        )
    return self.like((*self.sizes, num_classes), torch.int64)


@shape_rule(aten.bucketize.Tensor)
def bucketize(self: Abstract, boundaries: Abstract, *, out_int32: bool, right: bool) -> Abstract:
    if boundaries.rank != 1:
        raise ShapeError(f"boundaries tensor must be 1 dimension, but got {boundaries}")
    return self.like(dtype=torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.bucketize.Scalar)
def bucketize_number(
    self: float, boundaries: Abstract, *, out_int32: bool, right: bool
) -> Abstract:
    return boundaries.like((), torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.searchsorted.Tensor)
def searchsorted(
    sorted_sequence: Abstract,
    self: Abstract,
    *,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Abstract | None,
) -> Abstract:
    if sorted_sequence.rank > 1:
        if not establish_sizes(self.sizes[:-1], sorted_sequence.sizes[:-1]):
            raise ShapeError(
                f"searchsorted: {sorted_sequence} and {self} differ in another dim than the last"
            )
    if sorter is not None:
        if not establish_sizes(sorter.sizes, sorted_sequence.sizes):
            raise ShapeError(
                f"searchsorted: sorter {sorter} and sequence {sorted_sequence} differ in size"
            )
    return self.like(dtype=torch.int32 if out_int32 else torch.int64)


@shape_rule(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar)
def isin(elements: Abstract, test_elements: object, **_: object) -> Abstract:
    return elements.like(dtype=torch.bool)


_SUM, _MAX = 0, 2  # how embedding_bag joins the rows of a bag; 1 is the mean


@shape_rule(aten._embedding_bag.default)
def _embedding_bag(
    weight: Abstract,
    indices: Abstract,
    offsets: Abstract,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Abstract | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Abstract, ...]:
    """The bags, and what the backward pass needs: the bag of each index, sizes of bags, maxima."""
    if per_sample_weights is not None:
        if not establish_sizes(per_sample_weights.sizes, indices.sizes):
            raise ShapeError(
                f"embedding_bag: per_sample_weights {per_sample_weights} and indices {indices} "
                "differ in size"
            )
    bags = offsets.sizes[0] - int(include_last_offset)
    out = weight.like((bags, weight.sizes[1]))
    fast = mode == _SUM and padding_idx < 0 and weight.dtype is not torch.float64
    bag_of = offsets.like((0,) if fast else indices.sizes)
    maxima = offsets.like(out.sizes if mode == _MAX else (bags,))
    return out, bag_of, offsets.like((bags,)), maxima


@shape_rule(aten._embedding_bag_forward_only.default)
def _embedding_bag_forward_only(
    weight: Abstract,
    indices: Abstract,
    offsets: Abstract,
    scale_grad_by_freq: bool,
    mode: int,
    *rest: object,
) -> tuple[Abstract, ...]:
    rule = RULES[aten._embedding_bag.default]
    out, bag_of, counts, maxima = rule(weight, indices, offsets, scale_grad_by_freq, mode, *rest)
    if mode == _SUM:  # neither is computed
        return out, bag_of, offsets.like(), offsets.like()
    return out, bag_of, counts, maxima


@shape_rule(aten.nonzero_static.default)
def nonzero_static(self: Abstract, *, size: Size, fill_value: int) -> Abstract:
    return self.like((size, self.rank), torch.int64)
