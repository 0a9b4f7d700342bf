"""Views and other changes of shape: the same elements, elsewhere.

Values have no memory, so a view is what it shows. The sizes of results are those that capture
knows: what is left to say is where elements come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.registry import lower
from graphport.onnx.types import ONNX_OF
from graphport.ops.abstract import Abstract, permuted
from graphport.ops.tensor import AbstractTensor
from graphport.symbolic import Expr, eq, ge, lt, max_, mod, prod

aten = torch.ops.aten

LAST = (1 << 63) - 1
"""Beyond the end of every dim, as in torch and in ONNX."""


def wrapped(dim: int, rank: int) -> int:
    """A dim counted from the front; a tensor without dims has one in torch's eyes."""
    return dim % max(rank, 1)


@lower(
    aten.clone.default, aten.alias.default, aten.alias_copy.default, aten.detach.default,
    aten.detach_copy.default, aten.contiguous.default, aten.lift_fresh.default,
    aten.lift_fresh_copy.default, aten.lift.default, aten.resolve_conj.default,
    aten.resolve_neg.default, torch.ops.prims.device_put.default,
)  # fmt: skip
def clone(b: Builder, self: Value) -> Value:
    """Values have no memory: a copy is the same value."""
    return self


@lower(
    aten.reshape.default, aten.view.default, aten.view_copy.default, aten._unsafe_view.default,
    aten._reshape_alias.default, aten._reshape_copy.default,
)  # fmt: skip
def reshape(b: Builder, self: Value, shape: Any) -> Value:
    return b.reshape(self, b.result.sizes)


_BIT_CAST = 26


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
        if torch.bool not in kinds and b.opset < _BIT_CAST:
            raise UnsupportedError(
                f"ONNX cannot read the bits of {self.dtype} as {dtype} before opset {_BIT_CAST}",
                fix=f"opset={_BIT_CAST}",
            )
    raise UnsupportedError(f"ONNX cannot read the bits of {self.dtype} as {dtype}")


# Dims


@lower(aten.permute.default, aten.permute_copy.default)
def permute(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    return b.transpose(self, [wrapped(d, self.rank) for d in dims])


@lower(aten.transpose.int, aten.transpose_copy.int)
def transpose(b: Builder, self: Value, dim0: int, dim1: int) -> Value:
    return swapped(b, self, dim0, dim1)


@lower(aten.t.default, aten.t_copy.default)
def t(b: Builder, self: Value) -> Value:
    return swapped(b, self, 0, -1)


def swapped(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
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
    return _squeezed(b, self, range(self.rank))


@lower(
    aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
)  # fmt: skip
def squeeze_dim(b: Builder, self: Value, dim: int | Sequence[int]) -> Value:
    dims = [dim] if isinstance(dim, int) else dim
    return _squeezed(b, self, [wrapped(d, self.rank) for d in dims] if self.rank else [])


def _squeezed(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Without the dims that are 1; capture has decided which of the dynamic ones are."""
    ones = [d for d in dims if b.scope.decide(eq(x.sizes[d], 1))]
    if x.rank - len(ones) != b.result.rank:
        return b.reshape(x, b.result.sizes)
    return b.squeeze(x, *ones)


@lower(aten.expand.default, aten.expand_copy.default)
def expand(b: Builder, self: Value, size: Any, implicit: bool) -> Value:
    return b.expand(self, b.result.sizes)


@lower(aten.copy.default)
def copy(b: Builder, self: Value, src: Value) -> Value:
    """What is written over all of a tensor; what was there is gone."""
    return b.expand(b.cast(src, b.result.dtype), b.result.sizes)


# Parts


@lower(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice(b: Builder, self: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    dim = wrapped(dim, self.rank)
    if step == 1 and same_size(b, b.result.sizes[dim], self.sizes[dim]):
        return self
    return sliced(b, self, dim, start, end, step)


def same_size(b: Builder, a: Any, c: Any) -> bool:
    return a is not None and c is not None and b.scope.same(a, c)


def sliced(b: Builder, x: Value, dim: int, start: Any, end: Any, step: Any = 1) -> Value:
    """x[start:end:step] of a dim: ONNX clamps bounds, and counts negative ones, as torch does."""
    size = (x.shape or ())[dim]
    bounds = 0 if start is None else start, LAST if end is None else end
    start, end = (_from_end(b, bound, size) for bound in bounds)
    if end == size and type(end) is Expr:
        end = LAST
    source = x.producer
    if source is not None and source.op == "Slice":
        joined = _also_sliced(b, x, (start, end, dim, step))
        if joined is not None:
            return joined
    return b.Slice(x, [start], [end], [dim], *([] if step == 1 else [[step]]))


def _from_end(b: Builder, bound: Any, size: Any) -> Any:
    """A bound `size - n` is written -n, which needs no arithmetic."""
    if type(bound) is not Expr or size is None:
        return bound
    offset = b.scope.simplify(bound - size)
    if type(offset) is int and offset < 0 and (offset == -1 or b.scope.decide(ge(bound, 0))):
        return offset
    return bound


def _also_sliced(b: Builder, x: Value, cut: tuple[Any, ...]) -> Value | None:
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
    return b.Gather(self, b.sizes.number(index), axis=wrapped(dim, self.rank))


@lower(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: Builder, self: Value, dim: int) -> tuple[Value, ...]:
    return tuple(select(b, self, dim, i) for i in range(len(b.result)))


@lower(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(b: Builder, self: Value, split_size: Any, dim: int) -> tuple[Value, ...]:
    return _pieces(b, self, wrapped(dim, self.rank))


@lower(
    aten.split_with_sizes.default, aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)  # fmt: skip
def split_with_sizes(b: Builder, self: Value, split_sizes: Any, dim: int) -> tuple[Value, ...]:
    return _pieces(b, self, wrapped(dim, self.rank))


def _pieces(b: Builder, x: Value, dim: int) -> tuple[Value, ...]:
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
    dim = wrapped(dim, rank)
    fitting = [x for x in tensors if x.rank == rank]
    parts = [x for x in fitting if x.sizes[dim] != 0]
    return joined(b, parts or fitting[:1], dim)


@lower(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    dim = wrapped(dim, b.result.rank)
    return joined(b, [b.unsqueeze(x, dim) for x in tensors], dim)


def joined(b: Builder, parts: Sequence[Value], dim: int) -> Value:
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
    return flipped(b, self, [wrapped(d, self.rank) for d in dims] if self.rank else [])


def flipped(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x
    count = len(dims)
    turned = b.Slice(x, [-1] * count, [-LAST - 1] * count, list(dims), [-1] * count)
    turned.shape = x.shape
    return turned


@lower(aten.rot90.default)
def rot90(b: Builder, self: Value, k: int, dims: Sequence[int]) -> Value:
    first, second = (wrapped(d, self.rank) for d in dims)
    turned = flipped(b, self, {0: [], 1: [second], 2: [first, second], 3: [first]}[k % 4])
    return swapped(b, turned, first, second) if k % 2 else turned


@lower(aten.roll.default)
def roll(b: Builder, self: Value, shifts: Sequence[Any], dims: Sequence[int]) -> Value:
    if not self.rank:
        return self
    if not dims:
        flat = b.reshape(self, [prod(self.sizes)])
        return b.reshape(_rolled(b, flat, shifts[0], 0), b.result.sizes)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(b, self, shift, wrapped(dim, self.rank))
    return self


def _rolled(b: Builder, x: Value, shift: Any, dim: int) -> Value:
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
    parts = sliced(b, x, dim, place, None), sliced(b, x, dim, 0, place)
    return b.shaped(b.Concat(*parts, axis=dim), sizes)


# By memory


@lower(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    b: Builder, self: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any
) -> Value:
    flat, index, _ = _in_memory(b, self, size, stride, storage_offset)
    return b.Gather(flat, index, axis=0)


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder, self: Value, src: Value, size: Sequence[Any], stride: Sequence[Any],
    storage_offset: Any,
) -> Value:  # fmt: skip
    flat, index, order = _in_memory(b, self, size, stride, storage_offset)
    rows = b.unsqueeze(index, len(size))
    out = b.ScatterND(flat, rows, b.expand(b.cast(src, self.dtype), size))
    sizes = self.sizes
    packed = b.reshape(out, [sizes[d] for d in order])
    return b.transpose(packed, [order.index(d) for d in range(self.rank)])


def _in_memory(
    b: Builder, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> tuple[Value, Value, list[int]]:
    """The elements of a tensor in the order of its memory, positions, and the order of its dims."""
    about = b.origin.args[0].meta["val"]
    assert isinstance(about, AbstractTensor)
    known: Abstract = about._abstract
    order = sorted(range(known.rank), key=lambda d: _rank_of_stride(b, known, d))
    if not all(map(b.scope.same, known.strides, permuted(known.sizes, order))):
        raise UnsupportedError(f"as_strided of a tensor that has gaps in its memory: {known}")
    first = (known.offset if offset is None else offset) - known.offset
    last = first + sum((s - 1) * step for s, step in zip(size, stride, strict=True))
    count = prod(known.sizes)
    # What cannot be told here ONNX Runtime refuses, but for negative positions.
    if b.scope.decide(lt(last, count)) is False or not b.scope.decide(ge(first, 0)):
        raise UnsupportedError("as_strided may reach memory outside of the tensor it is called on")
    flat = b.reshape(b.transpose(x, order), [count])
    return flat, _positions(b, size, stride, first), order


def _rank_of_stride(b: Builder, x: Abstract, dim: int) -> Any:
    """Slow dims first; by example where strides are symbolic."""
    hint = b.scope.hint(x.strides[dim])
    return -(hint if hint is not None else 0), dim


def _positions(b: Builder, size: Sequence[Any], stride: Sequence[Any], first: Any) -> Value:
    """first + i * stride + ..., over all dims."""
    if all(type(n) is int for n in (*size, *stride, first)):
        index = torch.tensor(first)
        for n, step in zip(size, stride, strict=True):
            index = index.unsqueeze(-1) + torch.arange(n) * step
        return b.constant(index)
    total = b.sizes.number(first)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = b.Mul(counting(b, n), b.sizes.number(step))
        total = b.Add(total, b.unsqueeze(along, *range(1, len(size) - d)))
    return b.shaped(total, tuple(size))


def counting(b: Builder, count: Any) -> Value:
    """0, 1, ... as int64."""
    if type(count) is int:
        return b.constant(torch.arange(count))
    zero, one = (b.scalar(n, torch.int64) for n in (0, 1))
    return b.shaped(b.Range(zero, b.sizes.number(count), one), (count,))
