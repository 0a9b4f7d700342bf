"""`Abstract` and `AbstractTensor`: sizes, strides, dtype and device without data.

Sizes and strides are plain ints or symbolic expressions. A contiguous tensor keeps no strides: they
are computed when asked for, because almost nobody asks and the products are what costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch
from torch.fx import Node
from torch.overrides import handle_torch_function, has_torch_function_unary

from graphport import source
from graphport.compat.operators import aten
from graphport.compat.torch import (
    OpOverload,
    disabled_torch_function_impl,
    make_wrapper_subclass,
    pytree,
)
from graphport.errors import DataDependentError, UnsupportedError
from graphport.symbolic import Expr, eq, evaluate, symbols
from graphport.symbolic.bridge import NUMBERS, to_expression, to_torch
from graphport.types import Args, Argument, Kwargs

Size = int | Expr
Sizes = tuple[Size, ...]


@overload
def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]: ...
@overload
def contiguous_strides(sizes: Sequence[Size]) -> Sizes: ...
def contiguous_strides(sizes: Sequence[Size]) -> Sizes:
    """Strides of a contiguous tensor; like torch, a size of 0 counts as 1."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * (size or 1) if type(size) is int else step * size
    strides.reverse()
    return tuple(strides)


def channels_last_strides(sizes: Sequence[Size]) -> Sizes:
    """Strides of an N,C,spatial... tensor whose channels vary fastest."""
    order = [0, *range(2, len(sizes)), 1]
    return permute_strides(sizes, order)


def permute_strides(sizes: Sequence[Size], order: Sequence[int]) -> Sizes:
    """Dense strides in which `order` lists the dims from the slowest to the fastest."""
    packed = contiguous_strides([sizes[i] for i in order])
    strides: list[Size] = [0] * len(sizes)
    for stride, dim in zip(packed, order, strict=True):
        strides[dim] = stride
    return tuple(strides)


class Abstract:
    """Sizes, strides, dtype and device of a tensor. Immutable by convention."""

    __slots__ = ("_strides", "device", "dtype", "offset", "sizes")

    sizes: Sizes
    _strides: Sizes | None
    dtype: torch.dtype
    device: torch.device
    offset: Size

    def __init__(
        self,
        sizes: Sizes,
        dtype: torch.dtype,
        device: torch.device,
        strides: Sizes | None = None,
        offset: Size = 0,
    ) -> None:
        self.sizes = sizes
        self.dtype = dtype
        self.device = device
        self._strides = strides
        self.offset = offset

    @property
    def strides(self) -> Sizes:
        if self._strides is None:
            return contiguous_strides(self.sizes)
        return self._strides

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def size(self, dim: int) -> Size:
        return self.sizes[dim]

    def like(self, sizes: Sizes | None = None, dtype: torch.dtype | None = None) -> Abstract:
        """A fresh contiguous tensor; sizes and dtype as here unless given."""
        return Abstract(self.sizes if sizes is None else sizes, dtype or self.dtype, self.device)

    def view(self, sizes: Sizes, strides: Sizes | None, offset: Size | None = None) -> Abstract:
        """A view of the same storage with other sizes and strides."""
        return Abstract(
            sizes, self.dtype, self.device, strides, self.offset if offset is None else offset
        )

    @property
    def is_contiguous(self) -> bool:
        """Provably contiguous: sizes of 1 do not matter."""
        return self._strides is None or matches(
            self.sizes, self._strides, contiguous_strides(self.sizes)
        )

    @property
    def is_channels_last(self) -> bool:
        """Channels-last as torch's kernels find by strides; of symbolic sizes, provably so."""
        if self._strides is None or self.rank not in (4, 5):
            return False
        # Of volumes, kernels differ where both formats fit.
        if self.rank == 4 and all(type(n) is int for n in (*self.sizes, *self._strides)):
            return _channels_vary_fastest(self.sizes, self._strides)  # type: ignore[arg-type]
        if not matches(self.sizes, self._strides, channels_last_strides(self.sizes)):
            return False
        typical = [[*map(get_typical_size, n)] for n in (self.sizes, self._strides)]
        return not self.is_contiguous and _channels_vary_fastest(*typical)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, self.sizes))}]"


def matches(sizes: Sizes, strides: Sizes, expected: Sizes) -> bool:
    """Whether strides are those expected, wherever a size is not 1."""
    return all(
        stride is want or stride == want or size == 1
        for size, stride, want in zip(sizes, strides, expected, strict=True)
    )


def _channels_vary_fastest(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """torch's `suggest_memory_format`, which has an answer also where sizes of 1 allow several."""
    if strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * sizes[d]
    return True


# `AbstractTensor`: a real torch.Tensor with sizes, strides, dtype and device but without data.
#
# It is what the user's code holds during capture, and what describes the result of a node (`val`).


class AbstractTensor(torch.Tensor):
    """A tensor without data. See the module."""

    _abstract: Abstract
    _value: Any = None
    """What capture knows of the tensor, while it lasts."""
    _node: Any = None
    """The node whose metadata this very tensor is."""

    __torch_function__ = disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Argument:
        if not all(issubclass(kind, AbstractTensor) for kind in types):
            return NotImplemented  # the other class knows what to do
        if op is aten.alias.default:  # Tensor.as_subclass
            raise UnsupportedError(
                "a tensor of the program cannot become one of a subclass",
                where=source.locate_user_line(),
                fix="compute with plain tensors: __torch_function__ may return them as they are",
            )
        raise UnsupportedError(
            f"{op} of a tensor that has no data, where capture does not see it: in another thread, "
            "or after the capture",
            where=source.locate_user_line(),
            fix="compute in the thread that calls the program, while it is captured",
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"AbstractTensor({self._abstract!r})"

    def __format__(self, spec: str) -> str:
        """Text of the user's own: there is no number to format, and no reason to fail for it."""
        return repr(self)

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        if self._value is not None and has_torch_function_unary(self):  # in the user's program
            return handle_torch_function(torch.Tensor.__deepcopy__, (self,), self, memo)
        return make_abstract_tensor(self._abstract, self.requires_grad)

    def __copy__(self) -> Any:
        """What `copy.copy` gives shares the memory."""
        return aten.alias.default(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise DataDependentError(
            "a tensor that has no data cannot be pickled or saved",
            where=source.locate_user_line(),
            fix="return it, and save what the program gives",
        )


def make_abstract_tensor(abstract: Abstract, requires_grad: bool = False) -> AbstractTensor:
    """A tensor for the user to hold, or for a node's metadata."""
    sizes: Any = abstract.sizes
    offset = abstract.offset
    plain = type(offset) is int and offset == 0
    strides: Any = abstract._strides if plain else abstract.strides
    for s in sizes:
        if type(s) is not int:
            sizes = [to_torch(s) for s in sizes]
            strides = [to_torch(s) for s in abstract.strides]
            break
    else:
        if strides is not None:
            strides = [to_torch(s) for s in strides]
    t = make_wrapper_subclass(
        AbstractTensor,
        sizes,
        strides=strides,
        dtype=abstract.dtype,
        device=abstract.device,
        requires_grad=requires_grad,
        storage_size=0,
        storage_offset=None if plain else to_torch(offset),
    )
    # storage_size: or C++ works out the number of bytes, through a dozen calls on symbolic sizes.
    t._abstract = abstract
    return t


# What a node holds, in `node.meta["val"]`: read and written here alone.


def get_val(node: Node) -> Any:
    """In torch's terms: tensors without data, numbers, tuples of them; None if it is not known."""
    return node.meta.get("val")


def has_val(node: Node) -> bool:
    """Whether it is known, and be it that there is no result."""
    return "val" in node.meta


def set_val(node: Node, val: Any, others: Mapping[str, Any] | None = None) -> None:
    """Note what a node holds; its other metadata stay, or are those given."""
    if others is not None:
        node.meta = dict(others)
    node.meta["val"] = val


def get_other_metadata(node: Node) -> dict[str, Any]:
    return {k: v for k, v in node.meta.items() if k != "val"}


def describe(node: Any) -> Any:
    """What a node holds in our own terms: `Abstract` tensors, numbers, tuples of them."""
    val = node.meta.get("val")
    return val._abstract if isinstance(val, AbstractTensor) else _describe(val)


def _describe(val: Any) -> Any:
    if isinstance(val, AbstractTensor):
        return val._abstract
    if isinstance(val, (tuple, list)):
        return tuple(map(_describe, val))
    return to_expression(val)


def holds_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def get_shape(node: Node) -> tuple[Any, ...] | None:
    """The sizes of a tensor: numbers and expressions; None for what is no tensor."""
    val = get_val(node)
    return tuple(map(to_expression, val.shape)) if isinstance(val, torch.Tensor) else None


def iter_numbers(node: Node) -> Iterator[object]:
    """The sizes of the tensors that a node gives, and the numbers."""
    for part in pytree.tree_leaves(get_val(node)):
        if isinstance(part, torch.Tensor):
            yield from map(to_expression, part.shape)
        else:
            yield to_expression(part)


def collect_symbols(node: Node) -> set[Expr]:
    return {s for e in iter_numbers(node) if isinstance(e, Expr) for s in symbols(e)}


# Strides of results as torch's TensorIterator chooses them, and whether layouts are fixed.
#
# Equal layouts are kept, otherwise dims are ordered by the strides of the operands, from the first
# operand that tells two dims apart. Symbolic strides are compared at the example sizes: layout
# decides neither values nor sizes, and a graph that depends on it is recorded with `reshape`
# instead of `view`.

_LARGE = 1 << 20  # stands in for a data-dependent size, which has no example value


def get_example_size(size: Size) -> int:
    if type(size) is not Expr:
        return size
    value = size.scope.hint(size)
    return _LARGE if value is None else int(value)


def get_typical_size(size: Size) -> int:
    """At the example sizes, with 2 for a dynamic size of 0 or 1: there the layout says nothing.

    A batch of one at capture must not decide the strides of a batch of several.
    """
    if type(size) is not Expr:
        return size
    scope = size.scope
    size = scope.simplify(size)
    found = {s: scope.hint(s) for s in symbols(size)}
    hints = {s: hint for s, hint in found.items() if hint is not None}
    if len(hints) < len(found):
        return _LARGE
    if all(h >= 2 for h in hints.values()):
        return get_example_size(size)
    return int(evaluate(size, {s: max(h, 2) for s, h in hints.items()}))


def is_contiguous_by(a: Abstract, ask: Callable[[bool | Expr], bool]) -> bool:
    """Whether a tensor is contiguous, by questions about its sizes that `ask` answers."""
    step: Size = 1
    for size, stride in zip(reversed(a.sizes), reversed(a.strides), strict=True):
        if ask(eq(size, 1)):
            continue
        if not ask(eq(stride, step)):
            return any(ask(eq(s, 0)) for s in a.sizes)
        step = step * size
    return True


def elementwise_strides(
    sizes: Sizes, operands: Sequence[Abstract], alone: bool = True
) -> Sizes | None:
    """Strides of the result, or None when it is contiguous.

    Unless they are `alone`, there are numbers among the operands: tensors without dims to torch.
    """
    odd = [a for a in operands if a._strides is not None]
    if not odd:
        # A contiguous operand that is broadcast cannot reorder the dims of the result.
        return None
    rank = len(sizes)
    full = [a for a in operands if a.sizes == sizes]
    if alone and len(full) == len(operands):
        if all(a.is_contiguous for a in full):
            return None
        if rank == 4 and all(matches(sizes, a.strides, channels_last_strides(sizes)) for a in full):
            return channels_last_strides(sizes)
        first = full[0].strides
        if is_dense(full[0]) and all(a.strides == first for a in full[1:]):
            return first
    laid_out = [_align_strides(a, sizes) for a in operands]
    extent = [get_typical_size(s) for s in sizes]
    order = list(range(rank - 1, -1, -1))
    for i in range(1, rank):
        moving = i
        for j in range(i - 1, -1, -1):
            answer = _compare_dims(order[j], order[moving], laid_out, extent)
            if answer > 0:
                order[j], order[moving] = order[moving], order[j]
                moving = j
            elif answer < 0:
                break
    order.reverse()
    if order == list(range(rank)):
        return None
    return permute_strides(sizes, order)


def _align_strides(a: Abstract, sizes: Sizes) -> list[int]:
    """Strides at the example sizes, 0 where the operand is broadcast."""
    lead = len(sizes) - a.rank
    own = zip(a.sizes, a.strides, sizes[lead:], strict=True)
    return [0] * lead + [
        0 if _is_one(size) and not _is_one(target) else get_typical_size(stride)
        for size, stride, target in own
    ]


def _is_one(size: Size) -> bool:
    """Also of a symbol, once it has been broadcast."""
    return (size.scope.simplify(size) if type(size) is Expr else size) == 1


def _compare_dims(dim0: int, dim1: int, operands: list[list[int]], extent: list[int]) -> int:
    for strides in operands:
        s0, s1 = strides[dim0], strides[dim1]
        if s0 == 0 or s1 == 0:
            continue
        if s0 != s1:
            return -1 if s0 < s1 else 1
        if extent[dim0] > extent[dim1]:
            return 1
    return 0


def is_dense(a: Abstract) -> bool:
    """Every element of the memory span belongs to exactly one index, at the example sizes."""
    if a._strides is None:
        return True
    pairs = sorted(
        (get_typical_size(stride), get_typical_size(size))
        for stride, size in zip(a.strides, a.sizes, strict=True)
        if size != 1
    )
    expected = 1
    for stride, size in pairs:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def preserve_strides(a: Abstract, sizes: Sizes | None = None) -> Sizes | None:
    """Strides of a copy of `a` that preserves its layout (torch.preserve_format)."""
    if a._strides is None:
        return None
    if is_dense(a):
        return a.strides
    return elementwise_strides(a.sizes if sizes is None else sizes, [a])
