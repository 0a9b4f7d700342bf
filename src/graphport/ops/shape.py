"""Shape rules of operators that rearrange: views first, then copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.registry import overloads, shape_rule
from graphport.ops.sizes import (
    establish,
    establish_equal,
    expect_condition,
    guard_as_stated,
    is_false_at_example,
    is_first_of,
    is_provably_equal,
    is_proven,
    numel,
    require_branch,
    require_nonempty,
    scope_of,
    slice_bounds,
    wrap_dim,
    wrap_dims,
    wrap_distinct,
    wrap_index,
)
from graphport.symbolic import Expr, eq, ge, le, max_, min_, ne, symbols
from graphport.tensors.abstract import (
    Abstract,
    Size,
    Sizes,
    channels_last_strides,
    preserve_strides,
)


class CopiedResult(Abstract):
    """The result of an operator that may return a view, but here had to copy."""

    __slots__ = ()


@shape_rule(aten.view.default, aten._unsafe_view.default)
def view(self: Abstract, size: Sequence[Size]) -> Abstract:
    sizes = infer_size(self, size)
    strides = view_strides(self, sizes)
    if strides is None:
        # Where the layout is a matter of symbolic sizes the recorded operator copies if it must.
        if all(type(s) is int for s in (*self.sizes, *self.strides)):
            raise ShapeError(
                "view size is not compatible with input tensor's size and stride (at least one "
                "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
            )
        return CopiedResult(sizes, self.dtype, self.device)
    return self.view(sizes, _keep_contiguous(sizes, strides, self))


@shape_rule(aten.reshape.default)
def reshape(self: Abstract, shape: Sequence[Size]) -> Abstract:
    sizes = infer_size(self, shape)
    strides = view_strides(self, sizes)
    if strides is None:
        return CopiedResult(sizes, self.dtype, self.device)
    return self.view(sizes, _keep_contiguous(sizes, strides, self))


def _keep_contiguous(sizes: Sizes, strides: Sizes, source: Abstract) -> Sizes | None:
    return None if source._strides is None else strides


def infer_size(self: Abstract, shape: Sequence[Size]) -> Sizes:
    """The target sizes with -1 worked out; the number of elements must agree."""
    total = numel(self.sizes)
    for s in shape:
        if type(s) is Expr and any(map(s.scope.is_fresh, symbols(s))):
            expect_condition(ge(s, 0))  # data might be the -1 of "work it out"
    unknown = [i for i, s in enumerate(shape) if type(s) is int and s == -1]
    if not unknown:
        sizes = tuple(shape)
        count = numel(sizes)
        if count is not total:
            if not establish_equal(count, total):
                raise ShapeError(f"shape {list(sizes)} is invalid for input of size {total}")
        return sizes
    if len(unknown) > 1:
        raise ShapeError("only one dimension can be inferred")
    at = unknown[0]
    rest = numel(s for i, s in enumerate(shape) if i != at)
    if type(rest) is int and rest == 0:
        raise ShapeError(
            f"cannot reshape tensor of {total} elements into shape {list(shape)} because the "
            "unspecified dimension size -1 can be any value and is ambiguous"
        )
    expect_condition(ne(rest, 0))
    if rest is not total:
        if not establish(eq(total % rest, 0)):
            raise ShapeError(f"shape {list(shape)} is invalid for input of size {total}")
        inferred: Size = total // rest
        if isinstance(inferred, Expr):
            inferred = inferred.scope.simplify(inferred)
    else:
        inferred = 1
    return tuple(inferred if i == at else s for i, s in enumerate(shape))


def view_strides(self: Abstract, sizes: Sizes) -> Sizes | None:
    """Strides under which the same memory has these sizes, or None when that is not provable."""
    if self._strides is None:
        return ()
    if not self.sizes:
        return tuple(1 for _ in sizes)
    if any(type(s) is int and s == 0 for s in self.sizes):
        return Abstract(sizes, self.dtype, self.device).strides
    strides: list[Size] = [0] * len(sizes)
    old_strides = self.strides
    at = len(sizes) - 1
    base = old_strides[-1]
    old_span: Size = 1
    new_span: Size = 1
    for d in range(self.rank - 1, -1, -1):
        old_span = old_span * self.sizes[d]
        breaks = d == 0 or (
            self.sizes[d - 1] != 1 and not is_provably_equal(old_strides[d - 1], old_span * base)
        )
        if not breaks:
            continue
        while at >= 0 and (not is_provably_equal(new_span, old_span) or sizes[at] == 1):
            strides[at] = new_span * base
            new_span = new_span * sizes[at]
            at -= 1
        if not is_provably_equal(new_span, old_span):
            return None
        if d > 0:
            base = old_strides[d - 1]
            old_span = new_span = 1
    return tuple(strides) if at == -1 else None


@shape_rule(aten.permute.default)
def permute(self: Abstract, dims: Sequence[int]) -> Abstract:
    order = [wrap_dim(d, self.rank) for d in dims]
    if sorted(order) != list(range(self.rank)):
        raise ShapeError(f"permute: {list(dims)} is not an order of {self.rank} dims")
    if order == list(range(self.rank)):
        return self.view(self.sizes, self._strides)
    strides = self.strides
    return self.view(tuple(self.sizes[d] for d in order), tuple(strides[d] for d in order))


@shape_rule(aten.transpose.int)
def transpose(self: Abstract, dim0: int, dim1: int) -> Abstract:
    a, b = wrap_dim(dim0, self.rank), wrap_dim(dim1, self.rank)
    if a == b:
        return self.view(self.sizes, self._strides)
    sizes, strides = list(self.sizes), list(self.strides)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    strides[a], strides[b] = strides[b], strides[a]
    return self.view(tuple(sizes), tuple(strides))


@shape_rule(aten.t.default)
def t(self: Abstract) -> Abstract:
    if self.rank > 2:
        raise ShapeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.rank}D")
    return self.view(self.sizes[::-1], self.strides[::-1])


@shape_rule(aten.expand.default)
def expand(self: Abstract, size: Sequence[Size], **_: object) -> Abstract:
    lead = len(size) - self.rank
    if lead < 0:
        raise ShapeError(
            f"expand: the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({self.rank})"
        )
    sizes: list[Size] = []
    strides: list[Size] = []
    own_strides = self.strides
    moved = lead > 0
    for i, want in enumerate(map(_resolve_expand_size, size)):
        if i < lead:
            sizes.append(want)
            strides.append(0)
            continue
        have, step = self.sizes[i - lead], own_strides[i - lead]
        if (type(want) is int and want == -1) or want is have or is_provably_equal(want, have):
            sizes.append(have)
            strides.append(step)
        elif _is_expanded(have, want):
            sizes.append(want)
            strides.append(0)
            moved = True
        else:
            if not establish_equal(want, have):
                raise ShapeError(
                    f"The expanded size of the tensor ({want}) must match the existing size "
                    f"({have}) at non-singleton dimension {i}"
                )
            sizes.append(have)
            strides.append(step)
    return self.view(tuple(sizes), tuple(strides) if moved else self._strides)


def _resolve_expand_size(want: Size) -> Size:
    """A number of the program may be the -1 of "as it is": then only if its example is."""
    if type(want) is int or expect_condition(ge(want, 0)):
        return want
    if not establish_equal(want, -1):
        raise ShapeError(f"expand: {want} is not a size")
    return -1


def _is_expanded(have: Size, want: Size) -> bool:
    """Whether a dim is repeated; a dynamic one is where its example is 1 and the target's not."""
    if type(have) is int:
        return have == 1
    if is_first_of(have, want):
        return True
    scope = scope_of(have)
    if scope.hint(have) != 1 or scope.hint(want) == 1:
        return False
    scope.specialize(have)
    return True


@shape_rule(aten.unsqueeze.default)
def unsqueeze(self: Abstract, dim: int) -> Abstract:
    dim = wrap_dim(dim, self.rank + 1)
    sizes = (*self.sizes[:dim], 1, *self.sizes[dim:])
    if self._strides is None:
        return self.view(sizes, None)
    own = self.strides
    step = self.sizes[dim] * own[dim] if dim < self.rank else 1
    return self.view(sizes, (*own[:dim], step, *own[dim:]))


@shape_rule(aten.squeeze.default)
def squeeze(self: Abstract) -> Abstract:
    return _remove_dims(self, [d for d in range(self.rank) if is_one(self.sizes[d])])


@shape_rule(aten.squeeze.dim, aten.squeeze.dims)
def squeeze_dim(self: Abstract, dim: int | Sequence[int]) -> Abstract:
    dims = wrap_distinct((dim,) if isinstance(dim, int) else dim, self.rank)
    if not self.rank:
        return self
    return _remove_dims(self, [d for d in dims if is_one(self.sizes[d])])


def is_one(size: Size) -> bool:
    """Whether a dim can be squeezed. A dynamic dim is taken not to be 1, and checked when run."""
    if type(size) is int:
        return size == 1
    scope = scope_of(size)
    if is_proven(eq(size, 1)):
        return True
    if scope.hint(size) == 1:
        scope.specialize(size)
        return True
    if scope.hint(size) is None and is_proven(le(size, 1)):
        return guard_as_stated(eq(size, 1))  # 0 or 1, as data decides: an error
    expect_condition(ne(size, 1))
    return False


def _remove_dims(self: Abstract, dims: list[int]) -> Abstract:
    keep = [d for d in range(self.rank) if d not in dims]
    sizes = tuple(self.sizes[d] for d in keep)
    if self._strides is None:
        return self.view(sizes, None)
    return self.view(sizes, tuple(self._strides[d] for d in keep))


@shape_rule(aten.select.int)
def select(self: Abstract, dim: int, index: Size) -> Abstract:
    if not self.rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, self.rank)
    index = wrap_index(index, self.sizes[dim], "select")
    strides = self.strides
    sizes = self.sizes[:dim] + self.sizes[dim + 1 :]
    return self.view(
        sizes,
        None if dim == 0 and self._strides is None else strides[:dim] + strides[dim + 1 :],
        self.offset + index * strides[dim],
    )


@shape_rule(aten.slice.Tensor)
def slice_(self: Abstract, dim: int, start: Size | None, end: Size | None, step: int) -> Abstract:
    dim = wrap_dim(dim, self.rank)
    size = self.sizes[dim]
    first, length = slice_bounds(size, start, end, step)
    if length is size and step == 1:
        return self.view(self.sizes, self._strides)
    strides = self.strides
    sizes = (*self.sizes[:dim], length, *self.sizes[dim + 1 :])
    return self.view(
        sizes,
        None
        if dim == 0 and step == 1 and self._strides is None
        else (*strides[:dim], strides[dim] * step, *strides[dim + 1 :]),
        self.offset + first * strides[dim],
    )


@shape_rule(aten.split.Tensor)
def split(self: Abstract, split_size: Size, dim: int) -> list[Abstract]:
    dim = wrap_dim(dim, self.rank)
    return [
        slice_at(self, dim, first, length)
        for first, length in split_bounds(self.sizes[dim], split_size)
    ]


def split_bounds(size: Size, split_size: Size) -> list[tuple[Size, Size]]:
    """Offsets and lengths of equal pieces; the number of pieces becomes a fact."""
    if is_provably_equal(size, split_size):
        return [(0, size)]
    if type(split_size) is int and split_size < 1:
        if split_size < 0:
            raise ShapeError(
                f"split expects split_size be non-negative, but got split_size={split_size}"
            )
        if not establish_equal(size, 0):
            raise ShapeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return [(0, 0)]
    count = (size + (split_size - 1)) // split_size
    if isinstance(count, Expr):
        count = count.scope.simplify(count)
    pieces = count if type(count) is int else scope_of(count).specialize(count)
    if require_branch(eq(split_size, 0)):  # one piece, then, however many there are of others
        return [(0, 0)]
    bounds = [(i * split_size, split_size) for i in range(pieces - 1)]
    last = max(pieces - 1, 0) * split_size
    return [*bounds, (last, size - last)]


@shape_rule(aten.split_with_sizes.default)
def split_with_sizes(self: Abstract, split_sizes: Sequence[Size], dim: int) -> list[Abstract]:
    dim = wrap_dim(dim, self.rank)
    total: Size = 0
    out = []
    for length in split_sizes:
        out.append(slice_at(self, dim, total, length))
        total = total + length
    if not establish_equal(total, self.sizes[dim]):
        raise ShapeError(
            f"split_with_sizes expects split_sizes to sum to {self.sizes[dim]} (the size at "
            f"dimension {dim}), but got {total}"
        )
    return out


def slice_at(self: Abstract, dim: int, first: Size, length: Size) -> Abstract:
    strides = self.strides
    sizes = (*self.sizes[:dim], length, *self.sizes[dim + 1 :])
    keep = self._strides is None and (dim == 0 or length is self.sizes[dim])
    return self.view(sizes, None if keep else strides, self.offset + first * strides[dim])


@shape_rule(aten.unsafe_split.Tensor)
def unsafe_split(self: Abstract, split_size: Size, dim: int) -> list[Abstract]:
    """Pieces that autograd treats as new tensors, so that they may be written to."""
    return [_mark_copied(piece) for piece in split(self, split_size, dim)]


@shape_rule(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(
    self: Abstract, split_sizes: Sequence[Size], dim: int
) -> list[Abstract]:
    return [_mark_copied(piece) for piece in split_with_sizes(self, split_sizes, dim)]


def _mark_copied(piece: Abstract) -> Abstract:
    return Abstract(piece.sizes, piece.dtype, piece.device, piece._strides)


@shape_rule(aten.diag_embed.default)
def diag_embed(self: Abstract, offset: int, dim1: int, dim2: int) -> Abstract:
    rank = self.rank + 1
    extent = self.sizes[-1] + abs(offset)
    places = {wrap_dim(dim1, rank), wrap_dim(dim2, rank)}
    rest = iter(self.sizes[:-1])
    return self.like(tuple(extent if d in places else next(rest) for d in range(rank)))


@shape_rule(aten.unbind.int)
def unbind(self: Abstract, dim: int) -> list[Abstract]:
    dim = wrap_dim(dim, self.rank)
    size = self.sizes[dim]
    count = size if type(size) is int else scope_of(size).specialize(size)
    return [select(self, dim, i) for i in range(count)]


@shape_rule(aten.diagonal.default)
def diagonal(self: Abstract, offset: int, dim1: int, dim2: int) -> Abstract:
    a, b = wrap_dim(dim1, self.rank), wrap_dim(dim2, self.rank)
    if a == b:
        raise ShapeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = self.sizes[a], self.sizes[b]
    below, right = (0, offset) if offset >= 0 else (-offset, 0)
    tall, wide = rows - below, columns - right
    length = tall if is_provably_equal(tall, wide) else min_(tall, wide)
    if not is_proven(ge(length, 0)):
        length = max_(length, 0)
    strides = self.strides
    keep = [d for d in range(self.rank) if d not in (a, b)]
    skipped = below * strides[a] + right * strides[b]
    if offset and not is_proven(ge(length, 1)):
        skipped = skipped * min_(length, 1)  # without elements it begins where the tensor does
    return self.view(
        (*(self.sizes[d] for d in keep), length),
        (*(strides[d] for d in keep), strides[a] + strides[b]),
        self.offset + skipped,
    )


@shape_rule(aten.unfold.default)
def unfold(self: Abstract, dimension: int, size: Size, step: Size) -> Abstract:
    dim = wrap_dim(dimension, self.rank)
    extent = self.sizes[dim] if self.rank else 1
    if is_false_at_example(ge(size, 0)):
        raise ShapeError(f"size is {size} but must be >= 0")
    if is_false_at_example(ge(step, 1)):
        raise ShapeError(f"step is {step} but must be > 0")
    if not establish(le(size, extent)):
        raise ShapeError(
            f"maximum size for tensor at dimension {dim} is {extent} but size is {size}"
        )
    if not self.rank:
        return self.view((size,), (1,))
    count = (self.sizes[dim] - size) // step + 1
    strides = self.strides
    return self.view(
        (*self.sizes[:dim], count, *self.sizes[dim + 1 :], size),
        (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]),
    )


@shape_rule(aten.as_strided.default)
def as_strided(
    self: Abstract, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None
) -> Abstract:
    offset = self.offset if storage_offset is None else storage_offset
    if len(size) != len(stride):
        raise ShapeError(f"mismatch in length of strides and shape: {list(size)}, {list(stride)}")
    for s in stride:
        if is_false_at_example(ge(s, 0)):
            raise ShapeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{list(stride)}"
            )
    if is_false_at_example(ge(offset, 0)):
        raise ShapeError(f"Tensor: invalid storage offset {offset}")
    return self.view(tuple(size), tuple(stride), offset)


@shape_rule(aten.alias.default, aten.detach.default)
def alias(self: Abstract) -> Abstract:
    return self.view(self.sizes, self._strides)


@shape_rule(aten.view_as_real.default)
def view_as_real(self: Abstract) -> Abstract:
    strides = None if self._strides is None else (*(s * 2 for s in self._strides), 1)
    return Abstract((*self.sizes, 2), promote.REAL_OF[self.dtype], self.device, strides)


@shape_rule(aten.view_as_complex.default)
def view_as_complex(self: Abstract) -> Abstract:
    if self.dtype not in promote.COMPLEX_OF:
        raise ShapeError(
            f"view_as_complex is only supported for half, float and double tensors, "
            f"but got a tensor of scalar type: {self.dtype}"
        )
    if not self.rank:
        raise ShapeError("Input tensor must have one or more dimensions")
    if not establish_equal(self.sizes[-1], 2):
        raise ShapeError("view_as_complex: the last dimension must have size 2")
    strides = None if self._strides is None else tuple(s // 2 for s in self._strides[:-1])
    return Abstract(self.sizes[:-1], promote.COMPLEX_OF[self.dtype], self.device, strides)


@shape_rule(aten.cat.default)
def cat(tensors: Sequence[Abstract], dim: int) -> Abstract:
    # torch lets 1-d tensors of size 0 stand beside anything.
    rank = max(t.rank for t in tensors)
    own = [t for t in tensors if not (t.rank == 1 and _is_empty(t.sizes[0], rank))]
    own = own or list(tensors)
    first = own[0]
    dim = wrap_dim(dim, first.rank)
    total: Size = 0
    for t in own:
        if t.rank != first.rank:
            raise ShapeError(
                f"Tensors must have same number of dimensions: got {first.rank} and {t.rank}"
            )
        for d in range(first.rank):
            if d != dim and t.sizes[d] is not first.sizes[d]:
                if not establish_equal(t.sizes[d], first.sizes[d]):
                    raise ShapeError(
                        f"Sizes of tensors must match except in dimension {dim}: {t} and {first}"
                    )
        total = total + t.sizes[dim]
    sizes = (*first.sizes[:dim], total, *first.sizes[dim + 1 :])
    dtype = promote.result_type(tensors)
    layout = channels_last_strides(sizes) if all(t.is_channels_last for t in own) else None
    return Abstract(sizes, dtype, first.device, layout)


def _is_empty(size: Size, rank: int) -> bool:
    """Whether a 1-d tensor of this size has no elements; beside others of `rank` it must not."""
    if type(size) is int:
        return size == 0
    return rank > 1 and expect_condition(eq(size, 0))


@shape_rule(aten.stack.default)
def stack(tensors: Sequence[Abstract], dim: int) -> Abstract:
    first = tensors[0]
    dim = wrap_dim(dim, first.rank + 1)
    for t in tensors[1:]:
        if t.rank != first.rank:
            raise ShapeError(f"stack expects each tensor to be equal size, but got {first} and {t}")
        for a, b in zip(t.sizes, first.sizes, strict=True):
            if not establish_equal(a, b):
                raise ShapeError(
                    f"stack expects each tensor to be equal size, but got {first} and {t}"
                )
    sizes = (*first.sizes[:dim], len(tensors), *first.sizes[dim:])
    if dim == first.rank:
        return cat([unsqueeze(t, dim) for t in tensors], dim).like(sizes)
    joined = cat(tensors, dim)
    if joined._strides is None:
        return joined.like(sizes)
    own = joined.strides  # of one dim, which is then split
    return joined.view(sizes, (*own[:dim], own[dim] * first.sizes[dim], *own[dim:]))


@shape_rule(aten.block_diag.default)
def block_diag(tensors: Sequence[Abstract]) -> Abstract:
    """Numbers and rows stand for matrices of one row."""
    rows: Size = 0
    columns: Size = 0
    for t in tensors:
        if t.rank > 2:
            raise ShapeError(f"block_diag takes tensors of at most 2 dims, got {t}")
        height, width = (1,) * (2 - t.rank) + t.sizes
        rows, columns = rows + height, columns + width
    return Abstract((rows, columns), promote.result_type(tensors), tensors[0].device)


@shape_rule(aten.repeat.default)
def repeat(self: Abstract, repeats: Sequence[Size]) -> Abstract:
    lead = len(repeats) - self.rank
    if lead < 0:
        raise ShapeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions "
            "of tensor"
        )
    for r in repeats:
        if is_false_at_example(ge(r, 0)):
            raise ShapeError(
                f"Trying to create tensor with negative dimension: {self} repeated {list(repeats)}"
            )
    own = (1,) * lead + self.sizes
    return self.like(tuple(s * r for s, r in zip(own, repeats, strict=True)))


@shape_rule(aten.flip.default)
def flip(self: Abstract, dims: Sequence[int]) -> Abstract:
    wrap_distinct(dims, self.rank)
    return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))


@shape_rule(aten.rot90.default)
def rot90(self: Abstract, k: int, dims: Sequence[int]) -> Abstract:
    """Flipped, then transposed; by no turn a contiguous copy."""
    if len(dims) != 2 or self.rank < 2:
        raise ShapeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    first, second = wrap_distinct(dims, self.rank)
    if k % 4 == 0:
        return self.like()
    flipped = flip(self, dims)
    return flipped if k % 2 == 0 else transpose(flipped, first, second)


@shape_rule(aten.roll.default)
def roll(self: Abstract, shifts: Sequence[Size], dims: Sequence[int]) -> Abstract:
    if not shifts or (len(dims) or 1) != len(shifts):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(dims)} dims")
    wrap_dims(dims, self.rank)
    return self.like()


@shape_rule(aten.tril.default, aten.triu.default)
def triangle(self: Abstract, diagonal: int) -> Abstract:
    if self.rank < 2:
        raise ShapeError(f"tril, triu: the input must have at least 2 dimensions, got {self}")
    return self.like()


@shape_rule(aten.constant_pad_nd.default)
def constant_pad_nd(self: Abstract, pad: Sequence[Size], value: object) -> Abstract:
    if len(pad) % 2:
        raise ShapeError(f"Length of pad must be even but instead it equals {len(pad)}")
    if len(pad) > 2 * self.rank:
        raise ShapeError(
            f"Length of pad should be no more than twice the number of dimensions of "
            f"the input. Pad length is {len(pad)}, the input is {self}"
        )
    sizes = list(self.sizes)
    for i in range(len(pad) // 2):
        ends = pad[2 * i : 2 * i + 2]
        removed = sum(p for p in ends if type(p) is int and p < 0)
        if not establish(ge(sizes[-1 - i] + removed, 0)):
            raise ShapeError(f"padding {list(pad)} of {self} cuts off more than there is")
        sizes[-1 - i] = sizes[-1 - i] + ends[0] + ends[1]
        if not establish(ge(sizes[-1 - i], 0)):
            raise ShapeError(f"padding {list(pad)} of {self} leaves a negative size")
    out = tuple(sizes)
    if all(type(p) is int and p <= 0 for p in pad):  # then it is a copy of a slice
        cut = Abstract(out, self.dtype, self.device, self._strides)
        return Abstract(out, self.dtype, self.device, preserve_strides(cut))
    strides = channels_last_strides(out) if self.is_channels_last else None
    return Abstract(out, self.dtype, self.device, strides)


@shape_rule(
    aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default
)
def reflection_pad(self: Abstract, padding: Sequence[Size]) -> Abstract:
    for i, p in enumerate(padding):
        if not establish(le(p + 1, self.sizes[-1 - i // 2])):
            raise ShapeError(
                f"Padding size should be less than the corresponding input dimension, but got {p} "
                f"at dimension {self.rank - 1 - i // 2} of {self}"
            )
    return replication_pad(self, padding)


@shape_rule(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(self: Abstract, padding: Sequence[Size]) -> Abstract:
    n = len(padding) // 2
    require_nonempty("padding", self, self.sizes[self.rank - n - 1 :])
    padded = [self.sizes[-1 - i] + padding[2 * i] + padding[2 * i + 1] for i in range(n)]
    for size in padded:
        if not establish(ge(size, 1)):
            raise ShapeError(f"padding {list(padding)} of {self} leaves nothing")
    sizes = (*self.sizes[:-n], *reversed(padded))
    layout = channels_last_strides(sizes) if self.is_channels_last else None
    return Abstract(sizes, self.dtype, self.device, layout)


@shape_rule(aten._pad_circular.default)
def _pad_circular(self: Abstract, pad: Sequence[Size]) -> Abstract:
    for i, p in enumerate(pad):
        if not establish(le(p, self.sizes[-1 - i // 2])):
            raise ShapeError("Padding value causes wrapping around more than once.")
    return self.like(constant_pad_nd(self, pad, 0).sizes)


@shape_rule(aten.clone.default)
def clone(self: Abstract, *, memory_format: torch.memory_format | None) -> Abstract:
    return Abstract(self.sizes, self.dtype, self.device, apply_memory_format(self, memory_format))


def apply_memory_format(self: Abstract, memory_format: torch.memory_format | None) -> Sizes | None:
    """Strides of a copy of `self` in a memory format; None asks to preserve."""
    if memory_format in (None, torch.preserve_format):
        return preserve_strides(self)
    if memory_format is torch.contiguous_format:
        return None
    return channels_last_strides(self.sizes)


@shape_rule(aten.copy.default)
def copy(self: Abstract, src: Abstract, non_blocking: bool) -> Abstract:
    """The strides of `self` are kept, also if it is not dense."""
    return Abstract(self.sizes, self.dtype, self.device, self._strides)


@shape_rule(aten._to_copy.default)
def _to_copy(
    self: Abstract,
    *,
    dtype: torch.dtype | None,
    device: torch.device | None,
    memory_format: torch.memory_format | None,
    **_: object,
) -> Abstract:
    return Abstract(
        self.sizes,
        dtype or self.dtype,
        device or self.device,
        apply_memory_format(self, memory_format),
    )


@shape_rule(*overloads("select_scatter slice_scatter diagonal_scatter as_strided_scatter"))
def scatter_view(self: Abstract, src: Abstract, *_: object, **__: object) -> Abstract:
    """A new base with a view of it replaced; its strides are kept, also if it is not dense."""
    overlaps = any(
        step == 0 and size != 1 for step, size in zip(self.strides, self.sizes, strict=True)
    )
    layout = preserve_strides(self) if overlaps else self._strides
    return Abstract(self.sizes, self.dtype, self.device, layout)
