"""Storages, versions and views of traced tensors, and aliasing that depends on sizes.

The user's code holds an `AbstractTensor`; its `Value` says which node of the graph computes it.

Every storage has one base value and a version. A view remembers its parent and the operator that
made it. Writing through a view writes a new base and raises the version; a value whose version is
behind is remade from its parent when it is next read. So the graph never mutates anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from graphport import source
from graphport.compat.operators import aten
from graphport.compat.torch import DisableTorchFunction, OpOverload, disable_current_modes
from graphport.errors import MutationError
from graphport.ops import Abstract
from graphport.ops.sizes import expect_condition
from graphport.symbolic import Expr, eq, lt, not_
from graphport.tensors.abstract import Size, Sizes, is_contiguous_by
from graphport.tensors.concrete import offset_of, sizes_of, strides_of
from graphport.types import Argument


class Storage:
    """Memory that several values may share."""

    __slots__ = """
        base elements has_offset layout_dependent mutated origin possible_aliases version
    """.split()

    def __init__(self, base: Value, origin: object = None) -> None:
        self.base = base
        self.version = 0
        self.origin = origin
        """The placeholder that the storage came from: inputs and module state."""
        self.mutated = False
        self.has_offset = False
        """Whether the tensor from outside has a storage offset."""
        self.elements: int | None = None
        """Elements of the storage from where the tensor from outside begins, in the example."""
        self.possible_aliases: tuple[Any, ...] = ()
        """Other storages that may be this one at some sizes; see `PossibleAlias`."""
        self.layout_dependent: tuple[Value, ...] = ()
        """Views that are copies in another layout of the inputs, and that were written through."""


class Value:
    """The current meaning of a tensor that the user holds."""

    __slots__ = """
        abstract args constant node number op parent storage version viewed
    """.split()

    def __init__(self, abstract: Abstract, node: Node, origin: object = None) -> None:
        self.abstract = abstract
        self.node = node
        self.version = 0
        self.storage = Storage(self, origin)
        self.parent: Value | None = None
        self.op: OpOverload | None = None
        self.args: tuple[Any, ...] = ()
        self.constant: torch.Tensor | None = None
        """The data, when it is a literal of the program."""
        self.number: Any = None
        """The value as an expression, when it is an integer scalar made from sizes."""
        self.viewed: Node | None = None
        """Of a view that is a copy where its parent has another layout: the node that it viewed."""

    @classmethod
    def view(
        cls,
        parent: Value,
        abstract: Abstract,
        node: Node,
        op: OpOverload,
        args: tuple[Argument, ...],
    ) -> Value:
        value = cls.__new__(cls)
        value.abstract = abstract
        value.node = node
        value.storage = parent.storage
        value.version = parent.storage.version
        value.parent = parent
        value.op = op
        value.args = args
        value.constant = None
        value.number = None
        value.viewed = None
        return value

    def ancestry(self) -> Iterator[Value]:
        """The value, what it is a view of, and so on to the base."""
        value: Value | None = self
        while value is not None:
            yield value
            value = value.parent

    @property
    def literal(self) -> torch.Tensor | None:
        """The data, unless something has been written over it since."""
        return self.constant if self.version == self.storage.version else None


# Possible aliases: copies that eager makes at some sizes only. `x.mT.reshape(-1)` is a view where
# x is one row.
#
# Capture records a copy where a view is not possible for sizes in general. Whether the two tensors
# share memory at other sizes is seen only by a program that writes to one and reads the other
# later, or that writes to a copy of its input. Only then does it matter, and only then is it
# settled: as the example has it, and checked when the program runs. Whether `reshape` copies also
# depends on the strides of inputs; where that matters the program demands the layout of the
# example.
#
# Inputs and state that overlap in memory, and of which none is a view of another, are refused then.
# So is a write to a tensor of which several elements are one piece of memory, as in eager.

Condition = Callable[[], bool]


@dataclass(eq=False)
class PossibleAlias:
    """Two storages that are one where `shared` is true."""

    storages: tuple[Storage, Storage]
    shared: Condition
    message: tuple[str, str]
    """The error where they are one, and its fix."""
    outlives_call: bool = True
    """Whether a write to one must show in the other after the program has ended."""
    where: source.Location | None = None
    """The line that wrote last."""
    is_resolved: bool = False
    stale: set[Storage] = field(default_factory=set)
    """The storage that must not be read before the alias is resolved."""

    def resolve(self) -> None:
        if self.is_resolved:
            return
        self.is_resolved = True
        if self.shared():
            what, fix = self.message
            raise MutationError(what, where=self.where, fix=fix)


_ALIASES_AT_SOME_SIZES = (
    "the program writes to a tensor and reads another that is a view of it at the sizes of the "
    "example, but a copy at others",
    "say which is meant: .clone() for a copy, .view(...) for a view",
)


def note_possible_alias(
    base: Value,
    copy: Value,
    shared: Condition,
    message: tuple[str, str] = _ALIASES_AT_SOME_SIZES,
    outlives_call: bool = True,
) -> None:
    """Remember that a copy may be a view at other sizes."""
    found = PossibleAlias((base.storage, copy.storage), shared, message, outlives_call)
    for storage in found.storages:
        storage.possible_aliases = (*storage.possible_aliases, found)


def mark_aliases_stale(storage: Storage) -> None:
    """After a write: possible aliases, and theirs, are stale until they are resolved."""
    where = source.locate_user_line()
    written, waiting, seen = storage, [storage], set[PossibleAlias]()
    while waiting:
        storage = waiting.pop()
        for found in storage.possible_aliases:
            other = found.storages[found.storages[0] is storage]
            if found.is_resolved or found in seen or other is written:
                continue
            seen.add(found)
            found.where = where
            if other.origin is not None and found.outlives_call:
                found.resolve()
                continue
            other.version += 1
            found.stale.add(other)
            waiting.append(other)


def resolve_stale_aliases(storage: Storage) -> None:
    for found in storage.possible_aliases:
        if storage in found.stale:
            found.resolve()


def resolve_aliases(storage: Storage) -> None:
    """In training form, where writes stay: tensors must alias as in the example."""
    for found in storage.possible_aliases:
        found.where = source.locate_user_line()
        found.resolve()


def resolve_for_as_strided(storage: Storage) -> None:
    """For as_strided, which reads the storage: a copy must be one at every size."""
    for found in storage.possible_aliases:
        if storage is found.storages[1] and not found.is_resolved:
            found.message = _AS_STRIDED_OF_ALIAS
            found.where = source.locate_user_line()
            found.resolve()


_AS_STRIDED_OF_ALIAS = (
    "as_strided of a tensor that is a view at the sizes of the example, but a copy at others",
    "say which is meant: .clone() for a copy, .view(...) for a view",
)


def note_overlap(
    a: Value, b: Value, tensors: tuple[torch.Tensor, torch.Tensor], what: str, outlives_call: bool
) -> None:
    """Note that two tensors from outside have one storage."""
    message = (
        f"the program writes to one of {what}, which share memory, and the other must show it",
        "pass or keep a copy: x.clone()",
    )
    note_possible_alias(a, b, lambda: _has_common_bytes(*tensors), message, outlives_call)


def _has_common_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage overlap."""
    with disable_current_modes(), DisableTorchFunction():
        return bool(torch.isin(_list_byte_addresses(a), _list_byte_addresses(b)).any())


def _list_byte_addresses(t: torch.Tensor) -> torch.Tensor:
    """Where the bytes of a tensor are."""
    places = torch.tensor([offset_of(t) * t.itemsize])
    for size, stride in zip(sizes_of(t), strides_of(t), strict=True):
        places = (places[:, None] + torch.arange(size) * (stride * t.itemsize)).unique()
    return (places[:, None] + torch.arange(t.itemsize)).flatten()


# Internal overlap

_REPEATING = {aten.expand.default, aten.unfold.default, aten.as_strided.default}
"""Views in which one element of what is viewed may be several."""


def iterate_to_base(v: Value) -> Iterator[tuple[list[Value], Value]]:
    """How a write to a view goes on to the base: the views that it passes, and where it arrives.

    From view to view, but past those that repeat elements in one go: in what is between, a write
    to one element is seen in others.
    """
    path = list(v.ancestry())
    last = max((i for i, x in enumerate(path) if x.op in _REPEATING), default=-1)
    if last >= 0:
        yield path[last::-1], path[last + 1]
    for below, above in itertools.pairwise(path[last + 1 :]):
        yield [below], above


def refuse_internal_overlap(v: Value, uniform: bool = False) -> None:
    """Refuse a write to a tensor with internal overlap, as eager does.

    Where all elements get the same number it makes no difference.
    """
    path = list(v.ancestry())
    if path[-1].storage.origin is not None and not _is_non_overlapping_in_example(
        path[-1].abstract
    ):
        raise _internal_overlap_error("the input or state written to")
    repeats = any(x.op in _REPEATING for x in path)
    if repeats and not uniform and not _is_non_overlapping(v.abstract):
        raise _internal_overlap_error("the written-to tensor")


def refuse_overlapping_windows(v: Value) -> None:
    """Refuse `select_scatter` and the like of windows that overlap: eager writes into a copy that
    overlaps in the same way, and its decompositions do not."""
    windows = (aten.unfold.default, aten.as_strided.default)
    path = list(v.ancestry())
    overlapping = any(x.op in windows for x in path) and not _is_non_overlapping(v.abstract)
    given = path[-1].abstract
    repeated = 0 in given.strides  # of which eager makes a copy that is not
    if overlapping or not (repeated or _is_non_overlapping_in_example(given)):
        raise _internal_overlap_error("the tensor that is scattered to")


def _internal_overlap_error(whose: str) -> MutationError:
    return MutationError(
        f"unsupported operation: more than one element of {whose} refers to a single memory "
        "location",
        where=source.locate_user_line(),
        fix="write to a copy: x = x.clone()",
    )


def _is_non_overlapping_in_example(a: Abstract) -> bool:
    """The same of a tensor from outside; of others it is checked when the program is called."""
    sizes, strides = (tuple(map(_example_size, some)) for some in (a.sizes, a.strides))
    return _is_non_overlapping(Abstract(sizes, a.dtype, a.device, strides))


def _is_non_overlapping(a: Abstract) -> bool:
    """Whether no two elements share memory."""
    if a._strides is None or 0 in a.sizes:
        return True
    pairs = [(step, size) for step, size in zip(a.strides, a.sizes, strict=True) if size != 1]
    reach: Size = 0
    for step, size in sorted(pairs, key=lambda pair: _example_size(pair[0])):
        if (step == 0 or not _holds_in_example(lt(reach, step))) and not _holds_in_example(
            eq(size, 1)
        ):
            return _is_non_overlapping_by_enumeration(pairs)
        reach = reach + step * (size - 1)
    return True


def _is_non_overlapping_by_enumeration(pairs: list[tuple[Size, Size]]) -> bool:
    """The same where strides interleave, at the sizes of the example, which are then fixed."""
    if not all(type(x) is int for pair in pairs for x in pair):
        return False
    with disable_current_modes(), DisableTorchFunction():
        places = torch.zeros(1, dtype=torch.int64)
        for stride, size in pairs:
            places = (places[:, None] + torch.arange(size) * stride).flatten()
        return places.numel() == places.unique().numel()


def _example_size(size: Size) -> int:
    return int(size.scope.hint(size) or 0) if type(size) is Expr else size


# Whether eager shares memory, step by step as torch decides it


def has_strides(a: Abstract, strides: Sizes) -> bool:
    """Whether a tensor has these strides already; those of a single element do not matter."""
    return all(
        _holds_in_example(eq(size, 1)) or _holds_in_example(eq(have, want))
        for size, have, want in zip(a.sizes, a.strides, strides, strict=True)
    )


def lies_in_order(a: Abstract) -> bool:
    """Whether a tensor is contiguous."""
    return is_contiguous_by(a, _holds_in_example)


def can_view_as(a: Abstract, sizes: Sizes) -> bool:
    """Whether a view of a tensor with these sizes is possible."""
    at = len(sizes) - 1
    if not a.rank:
        return True
    base, old, new = a.strides[-1], 1, 1
    for d in range(a.rank - 1, -1, -1):
        old = old * a.sizes[d]
        if d and (
            _holds_in_example(eq(a.sizes[d - 1], 1))
            or _holds_in_example(eq(a.strides[d - 1], old * base))
        ):
            continue
        while at >= 0 and (_holds_in_example(lt(new, old)) or _holds_in_example(eq(sizes[at], 1))):
            new = new * sizes[at]
            at -= 1
        if not _holds_in_example(eq(new, old)):
            return False
        if d:
            base, old, new = a.strides[d - 1], 1, 1
    return at == -1


def _holds_in_example(cond: bool | Expr) -> bool:
    """As the example has it, to be checked when run; data is taken to make no difference."""
    if isinstance(cond, bool):
        return cond
    scope = cond.scope
    answer = scope.decide(cond)
    if answer is None:
        answer = bool(scope.hint(cond))
        expect_condition(cond if answer else not_(cond))
    return answer
