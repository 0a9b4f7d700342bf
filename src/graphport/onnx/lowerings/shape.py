"""Lowers views, other changes of shape, and padding.

Values have no memory, so a view is what it shows. The sizes of results are those that capture
knows: what is left to say is where elements come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten, prims
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.emit.schemas import ONNX_OF
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.conv import list_dims
from graphport.ops.registry import overloads
from graphport.ops.sizes import wrap_dim
from graphport.symbolic import Expr, eq, ge, lt, max_, min_, mod, prod
from graphport.tensors.abstract import Abstract, AbstractTensor, get_val, permute_strides

SLICE_END = (1 << 63) - 1
"""Beyond the end of every dim, as in torch and in ONNX."""


@lower(
    *overloads("clone alias alias_copy detach detach_copy contiguous lift_fresh lift_fresh_copy"),
    *overloads("lift resolve_conj resolve_neg"),
    prims.device_put.default,
)
def clone(b: Builder, self: Value) -> Value:
    """Values have no memory: a copy is the same value."""
    return self


@lower(*overloads("reshape view view_copy _unsafe_view _reshape_alias _reshape_copy"))
def reshape(b: Builder, self: Value, shape: object) -> Value:
    return b.reshape(self, b.result.sizes)


_BIT_CAST_OPSET = 26


@lower(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(b: Builder, self: Value, dtype: torch.dtype) -> Value:
    """The same bits as another type: integers of one width wrap around when they are cast."""
    if self.dtype is dtype:
        return self
    kinds = {self.dtype, dtype}
    if self.dtype.itemsize == dtype.itemsize:
        if dtype is not torch.bool and not any(t.is_floating_point for t in kinds):
            return b.cast(self, dtype)
        if torch.bool not in kinds and b.has("BitCast", self.dtype):
            return b.BitCast(self, to=ONNX_OF[dtype], dtype=dtype)
        if torch.bool not in kinds and b.opset < _BIT_CAST_OPSET:
            raise UnsupportedError(
                f"ONNX cannot read the bits of {self.dtype} as {dtype} before opset "
                f"{_BIT_CAST_OPSET}",
                fix=f"opset={_BIT_CAST_OPSET}",
            )
    raise UnsupportedError(f"ONNX cannot read the bits of {self.dtype} as {dtype}")


# Dims


@lower(aten.permute.default, aten.permute_copy.default)
def permute(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    return b.transpose(self, [wrap_dim(d, self.rank) for d in dims])


@lower(aten.transpose.int, aten.transpose_copy.int)
def transpose(b: Builder, self: Value, dim0: int, dim1: int) -> Value:
    return swap_dims(b, self, dim0, dim1)


@lower(aten.t.default, aten.t_copy.default)
def t(b: Builder, self: Value) -> Value:
    return swap_dims(b, self, 0, -1)


def swap_dims(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    if not x.rank:
        return x
    perm = list(range(x.rank))
    perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return b.transpose(x, perm)


@lower(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(b: Builder, self: Value, dim: int) -> Value:
    return b.unsqueeze(self, dim)


@lower(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(b: Builder, self: Value) -> Value:
    return _squeeze_dims(b, self, range(self.rank))


@lower(*overloads("squeeze.dim,dims squeeze_copy.dim,dims"))
def squeeze_dim(b: Builder, self: Value, dim: int | Sequence[int]) -> Value:
    dims = [dim] if isinstance(dim, int) else dim
    return _squeeze_dims(b, self, [wrap_dim(d, self.rank) for d in dims] if self.rank else [])


def _squeeze_dims(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Without the dims that are 1; capture has decided which of the dynamic ones are."""
    ones = [d for d in dims if b.scope.decide(eq(x.sizes[d], 1))]
    if x.rank - len(ones) != b.result.rank:
        return b.reshape(x, b.result.sizes)
    return b.squeeze(x, *ones)


@lower(aten.expand.default, aten.expand_copy.default)
def expand(b: Builder, self: Value, size: object, implicit: bool) -> Value:
    return b.expand(self, b.result.sizes)


@lower(aten.copy.default)
def copy(b: Builder, self: Value, src: Value) -> Value:
    """What is written over all of a tensor; what was there is gone."""
    return b.expand(b.cast(src, b.result.dtype), b.result.sizes)


# Parts


@lower(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice(b: Builder, self: Value, dim: int, start: Number, end: Number, step: int) -> Value:
    dim = wrap_dim(dim, self.rank)
    if step == 1 and is_same_size(b, b.result.sizes[dim], self.sizes[dim]):
        return self
    return slice_dim(b, self, dim, start, end, step)


def is_same_size(b: Builder, a: Any, c: Any) -> bool:
    return a is not None and c is not None and b.scope.same(a, c)


def slice_dim(b: Builder, x: Value, dim: int, start: Any, end: Any, step: Any = 1) -> Value:
    """x[start:end:step] of a dim: ONNX clamps bounds, and counts negative ones, as torch does."""
    size = (x.shape or ())[dim]
    bounds = 0 if start is None else start, SLICE_END if end is None else end
    start, end = (_count_from_end(b, bound, size) for bound in bounds)
    if end == size and type(end) is Expr:
        end = SLICE_END
    source = x.producer
    if source is not None and source.op == "Slice":
        joined = _merge_slices(b, x, (start, end, dim, step))
        if joined is not None:
            return joined
    return b.Slice(x, [start], [end], [dim], *([] if step == 1 else [[step]]))


def _count_from_end(b: Builder, bound: Any, size: Any) -> Any:
    """A bound `size - n` is written -n, which needs no arithmetic."""
    if type(bound) is not Expr or size is None:
        return bound
    offset = b.scope.simplify(bound - size)
    if type(offset) is int and offset < 0 and (offset == -1 or b.scope.decide(ge(bound, 0))):
        return offset
    return bound


def _merge_slices(b: Builder, x: Value, cut: tuple[Any, ...]) -> Value | None:
    """One Slice for cuts in different dims, if all their bounds are numbers."""
    assert x.producer is not None
    data, *given = x.producer.inputs
    known = [None if v is None or v.tensor is None else v.tensor.tolist() for v in given]
    if data is None or None in known or any(type(c) is Expr for c in cut) or cut[2] in known[2]:  # type: ignore[operator]
        return None
    columns = [*known, [1] * len(known[0])] if len(known) == 3 else known  # type: ignore[arg-type]
    starts, ends, axes, steps = ([*column, c] for column, c in zip(columns, cut, strict=True))  # type: ignore[misc]
    return b.Slice(data, starts, ends, axes, *([] if set(steps) == {1} else [steps]))


@lower(aten.select.int, aten.select_copy.int)
def select(b: Builder, self: Value, dim: int, index: Any) -> Value:
    return b.Gather(self, b.sizes.number(index), axis=wrap_dim(dim, self.rank))


@lower(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: Builder, self: Value, dim: int) -> tuple[Value, ...]:
    return tuple(select(b, self, dim, i) for i in range(len(b.result)))


@lower(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(b: Builder, self: Value, split_size: object, dim: int) -> tuple[Value, ...]:
    return _emit_split(b, self, wrap_dim(dim, self.rank))


@lower(*overloads("split_with_sizes split_with_sizes_copy unsafe_split_with_sizes"))
def split_with_sizes(b: Builder, self: Value, split_sizes: object, dim: int) -> tuple[Value, ...]:
    return _emit_split(b, self, wrap_dim(dim, self.rank))


def _emit_split(b: Builder, x: Value, dim: int) -> tuple[Value, ...]:
    """Sizes of pieces are said, unless they are equal and symbolic: then their number is."""
    count = len(b.result)
    if count < 2:
        return (x,) * count
    sizes = [b.scope.simplify(piece.sizes[dim]) for piece in b.result]
    first = sizes[0]
    # ONNX Runtime wants a size of at least the number of pieces then.
    if type(first) is Expr and all(s == first for s in sizes) and b.scope.decide(ge(first, 1)):
        return b.Split(x, axis=dim, num_outputs=count, outputs=count)
    return b.Split(x, sizes, axis=dim, outputs=count)


# Joining and repeating


@lower(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    """torch lets 1-d tensors of size 0 stand beside anything; other empty ones add nothing."""
    rank = b.result.rank
    dim = wrap_dim(dim, rank)
    fitting = [x for x in tensors if x.rank == rank]
    parts = [x for x in fitting if x.sizes[dim] != 0]
    return emit_concat(b, parts or fitting[:1], dim)


@lower(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    dim = wrap_dim(dim, b.result.rank)
    return emit_concat(b, [b.unsqueeze(x, dim) for x in tensors], dim)


def emit_concat(b: Builder, parts: Sequence[Value], dim: int) -> Value:
    parts = [b.cast(x, b.result.dtype) for x in parts]
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=dim)


@lower(aten.repeat.default)
def repeat(b: Builder, self: Value, repeats: Sequence[Any]) -> Value:
    """Tile; where only dims of 1 are repeated they are broadcast."""
    lead = len(repeats) - self.rank
    own = (1,) * lead + self.sizes
    if all(r == 1 or s == 1 for r, s in zip(repeats, own, strict=True)):
        return b.expand(self, b.result.sizes)
    return b.Tile(b.unsqueeze(self, *range(lead)), repeats)


# Order


@lower(aten.flip.default)
def flip(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    return flip_dims(b, self, [wrap_dim(d, self.rank) for d in dims] if self.rank else [])


def flip_dims(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x
    count = len(dims)
    turned = b.Slice(x, [-1] * count, [-SLICE_END - 1] * count, list(dims), [-1] * count)
    turned.shape = x.shape
    return turned


@lower(aten.rot90.default)
def rot90(b: Builder, self: Value, k: int, dims: Sequence[int]) -> Value:
    first, second = (wrap_dim(d, self.rank) for d in dims)
    turned = flip_dims(b, self, {0: [], 1: [second], 2: [first, second], 3: [first]}[k % 4])
    return swap_dims(b, turned, first, second) if k % 2 else turned


@lower(aten.roll.default)
def roll(b: Builder, self: Value, shifts: Sequence[Any], dims: Sequence[int]) -> Value:
    if not self.rank:
        return self
    if not dims:
        flat = b.reshape(self, [prod(self.sizes)])
        return b.reshape(_roll_dim(b, flat, shifts[0], 0), b.result.sizes)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _roll_dim(b, self, shift, wrap_dim(dim, self.rank))
    return self


def _roll_dim(b: Builder, x: Value, shift: Any, dim: int) -> Value:
    """The part behind a place goes to the front: the place is -shift, within the size."""
    sizes = x.sizes
    size = sizes[dim]
    place = -shift
    if type(size) is int and type(place) is int:
        place = place % max(size, 1)
    elif place not in (1, -1) and not b.scope.decide(ge(size, max_(place, -place))):
        place = mod(place, max_(size, 1))
    if place == 0:
        return x
    parts = slice_dim(b, x, dim, place, None), slice_dim(b, x, dim, 0, place)
    return b.shaped(b.Concat(*parts, axis=dim), sizes)


# By stride


@lower(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    b: Builder, self: Value, size: Sequence[Size], stride: Sequence[int], storage_offset: Any
) -> Value:
    flat, index, _ = _flatten_storage(b, self, size, stride, storage_offset)
    return b.Gather(flat, index, axis=0)


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder,
    self: Value,
    src: Value,
    size: Sequence[Size],
    stride: Sequence[int],
    storage_offset: Any,
) -> Value:
    flat, index, order = _flatten_storage(b, self, size, stride, storage_offset)
    rows = b.unsqueeze(index, len(size))
    out = b.ScatterND(flat, rows, b.expand(b.cast(src, self.dtype), size))
    sizes = self.sizes
    packed = b.reshape(out, [sizes[d] for d in order])
    return b.transpose(packed, [order.index(d) for d in range(self.rank)])


def _flatten_storage(
    b: Builder, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> tuple[Value, Value, list[int]]:
    """The elements of a tensor in storage order, their positions, and the order of its dims."""
    about = get_val(b.origin.args[0])
    assert isinstance(about, AbstractTensor)
    known: Abstract = about._abstract
    order = sorted(range(known.rank), key=lambda d: _stride_key(b, known, d))
    if not all(map(b.scope.same, known.strides, permute_strides(known.sizes, order))):
        raise UnsupportedError(f"as_strided of a tensor that is not dense: {known}")
    first = (known.offset if offset is None else offset) - known.offset
    last = first + sum((s - 1) * step for s, step in zip(size, stride, strict=True))
    count = prod(known.sizes)
    # What is not known here ONNX Runtime checks, but for negative positions.
    if b.scope.decide(lt(last, count)) is False or not b.scope.decide(ge(first, 0)):
        raise UnsupportedError("as_strided may reach memory outside of the tensor it is called on")
    flat = b.reshape(b.transpose(x, order), [count])
    return flat, _strided_positions(b, size, stride, first), order


def _stride_key(b: Builder, x: Abstract, dim: int) -> Any:
    """Slow dims first; by example where strides are symbolic."""
    hint = b.scope.hint(x.strides[dim])
    return -(hint if hint is not None else 0), dim


def _strided_positions(
    b: Builder, size: Sequence[Size], stride: Sequence[int], first: Any
) -> Value:
    """first + i * stride + ..., over all dims."""
    if all(type(n) is int for n in (*size, *stride, first)):
        index = torch.tensor(first)
        for n, step in zip(size, stride, strict=True):
            index = index.unsqueeze(-1) + torch.arange(n) * step
        return b.constant(index)
    total = b.sizes.number(first)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = b.Mul(emit_arange(b, n), b.sizes.number(step))
        total = b.Add(total, b.unsqueeze(along, *range(1, len(size) - d)))
    return b.shaped(total, tuple(size))


# Padding: with a constant, by reflection, with the edge, around the other side.
#
# torch lists the padding of the last dim first, before and behind. What is negative crops.


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, self: Value, pad: Sequence[Any], value: Number) -> Value:
    """Pad crops too; where that is all there is to do it is a slice."""
    before, behind = split_padding(pad, self.rank)
    if all(type(p) is int and p <= 0 for p in pad):
        return crop(b, self, before, behind)
    fill = None if value == 0 else b.scalar(value, like=self)
    return b.Pad(self, [*before, *behind], fill, list_dims(self.rank))


def split_padding(pad: Sequence[Any], rank: int) -> tuple[list[Any], list[Any]]:
    """What is added before and behind each dim, from the first dim on."""
    rest = [0] * (rank - len(pad) // 2)
    return [*rest, *pad[-2::-2]], [*rest, *pad[:0:-2]]


def crop(b: Builder, x: Value, before: Sequence[Any], behind: Sequence[Any]) -> Value:
    """Without what negative padding takes away."""
    dims = [d for d in range(x.rank) if before[d] != 0 or behind[d] != 0]
    if not dims:
        return x
    stops = [_slice_stop(b, behind[d], b.result.sizes[d] - before[d]) for d in dims]
    return b.Slice(x, [-before[d] for d in dims], stops, dims)


def _slice_stop(b: Builder, behind: Any, size: Size) -> Any:
    if type(behind) is int:
        return behind or SLICE_END
    return size


@lower(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: Builder, self: Value, padding: Sequence[int]) -> Value:
    return _pad_by_mode(b, self, padding, "reflect")


@lower(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(b: Builder, self: Value, padding: Sequence[int]) -> Value:
    return _pad_by_mode(b, self, padding, "edge")


def _pad_by_mode(b: Builder, x: Value, padding: Sequence[int], mode: str) -> Value:
    """First what is added, which may come from what is cropped, then what is cropped."""
    added = [max_(p, 0) for p in padding]
    if any(a != 0 for a in added):
        before, behind = split_padding(added, x.rank)
        x = b.Pad(x, [*before, *behind], mode=mode)
    return crop(b, x, *split_padding([min_(p, 0) for p in padding], x.rank))


@lower(aten._pad_circular.default)
def _pad_circular(b: Builder, self: Value, pad: Sequence[Any]) -> Value:
    """What is cropped is gone first; then ends of each dim go to its other side."""
    sizes = self.sizes
    positive = all(b.scope.decide(ge(s, 1)) for s in sizes)  # Pad of nothing fails
    if b.opset >= 19 and positive and all(b.scope.decide(ge(p, 0)) for p in pad):
        before, behind = split_padding(pad, self.rank)
        return b.Pad(self, [*before, *behind], mode="wrap")
    x = self
    for i in range(len(pad) // 2):
        dim, (left, right) = x.rank - 1 - i, pad[2 * i : 2 * i + 2]
        x = _pad_circular_dim(b, x, dim, sizes[dim], left, right)
    return x


def _pad_circular_dim(b: Builder, x: Value, dim: int, size: Size, left: Any, right: Any) -> Value:
    rest = size + min_(left, 0) + min_(right, 0)
    if not all(p == 0 or b.scope.decide(ge(rest, p)) for p in (left, right)):
        raise UnsupportedError(f"circular padding of {left} and {right} where {rest} are left")
    if left < 0 or right < 0:
        x = slice_dim(b, x, dim, max(-left, 0), min(right, 0) or None)
    parts = [x]
    if left > 0:
        parts.insert(0, slice_dim(b, x, dim, -left, None))
    if right > 0:
        parts.append(slice_dim(b, x, dim, 0, right))
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=dim)
