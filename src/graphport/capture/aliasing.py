"""Copies that eager does not make at every size: `x.mT.reshape(-1)` is a view where x is one row.

Capture records a copy where a view is not possible for sizes in general. Whether the two tensors
share memory at other sizes is seen only by a program that writes to one and reads the other later,
or that writes to a copy of its input. Only then does it matter, and only then is it settled: as the
example has it, and checked when the program runs. Whether `reshape` copies also depends on how
inputs lie in memory; where that matters the program demands the layout of the example.

Inputs and state that overlap in memory, and of which none is a view of another, are refused then.
So is a write to a tensor of which several elements are one piece of memory, as in eager.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphport import source
from graphport.capture.fake_tensors import offset_of, sizes_of, strides_of
from graphport.capture.values import Storage, Value
from graphport.errors import MutationError
from graphport.ops import Abstract, strides
from graphport.ops.abstract import Size, Sizes
from graphport.ops.sizes import expected
from graphport.symbolic import Expr, eq, lt, not_

aten = torch.ops.aten
Asks = Callable[[], bool]


@dataclass(eq=False)
class Doubt:
    """Two storages that are one where `shared` says so."""

    storages: tuple[Storage, Storage]
    shared: Asks
    said: tuple[str, str]
    """What is wrong when they are one, and what to write instead."""
    lasts: bool = True
    """Whether what is written to one must be seen in the other when the program has ended."""
    where: source.Location | None = None
    """The line that wrote last."""
    settled: bool = False
    behind: set[Storage] = field(default_factory=set)
    """What has to be settled before it is read."""

    def settle(self) -> None:
        if self.settled:
            return
        self.settled = True
        if self.shared():
            what, fix = self.said
            raise MutationError(what, where=self.where, fix=fix)


_AT_SOME_SIZES = (
    "the program writes to a tensor and reads another that is a view of it at the sizes of the "
    "example, but a copy at others",
    "say which is meant: .clone() for a copy, .view(...) for a view",
)


def doubt(
    base: Value, copy: Value, shared: Asks, said: tuple[str, str] = _AT_SOME_SIZES,
    lasts: bool = True,
) -> None:  # fmt: skip
    """Remember that a copy may be a view at other sizes."""
    found = Doubt((base.storage, copy.storage), shared, said, lasts)
    for storage in found.storages:
        storage.doubts = (*storage.doubts, found)


def written(storage: Storage) -> None:
    """After a write: what may share the memory is out of date until it is settled."""
    for found in storage.doubts:
        found.where = source.here()
        other = found.storages[found.storages[0] is storage]
        if other.origin is not None and found.lasts:
            found.settle()
        else:
            other.version += 1
            found.behind.add(other)


def settle(storage: Storage) -> None:
    for found in storage.doubts:
        if storage in found.behind:
            found.settle()


def settle_written(storage: Storage) -> None:
    """Where writes happen in memory: what is written to must be what it is in the example."""
    for found in storage.doubts:
        found.where = source.here()
        found.settle()


def settle_memory(storage: Storage) -> None:
    """For as_strided, which looks at memory: a copy must be one at every size."""
    for found in storage.doubts:
        if storage is found.storages[1] and not found.settled:
            found.said = _IN_MEMORY
            found.where = source.here()
            found.settle()


_IN_MEMORY = (
    "as_strided of a tensor that is a view at the sizes of the example, but a copy at others",
    "say which is meant: .clone() for a copy, .view(...) for a view",
)


def doubt_overlap(
    a: Value, b: Value, tensors: tuple[torch.Tensor, torch.Tensor], what: str, lasts: bool
) -> None:
    """Remember that two tensors from outside lie in the same piece of memory."""
    said = (
        f"the program writes to one of {what}, which share memory, and the other must show it",
        "pass or keep a copy: x.clone()",
    )
    doubt(a, b, lambda: _overlap(*tensors), said, lasts)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors in one piece of memory have bytes in common."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return bool(torch.isin(_bytes(a), _bytes(b)).any())


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """Where the bytes of a tensor are."""
    places = torch.tensor([offset_of(t) * t.itemsize])
    for size, stride in zip(sizes_of(t), strides_of(t), strict=True):
        places = (places[:, None] + torch.arange(size) * (stride * t.itemsize)).unique()
    return (places[:, None] + torch.arange(t.itemsize)).flatten()


# Elements that share memory

_REPEATING = {aten.expand.default, aten.unfold.default, aten.as_strided.default}
"""Views in which one element of what is viewed may be several."""


def ways_up(v: Value) -> Iterator[tuple[list[Value], Value]]:
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


def require_distinct(v: Value, uniform: bool = False) -> None:
    """Refuse a write to a tensor whose elements are not all memory of their own, as eager does.

    Where all elements get the same number it makes no difference.
    """
    path = list(v.ancestry())
    if path[-1].storage.origin is not None and not _distinct_in_example(path[-1].abstract):
        raise _shared_elements("the input or state written to")
    repeats = any(x.op in _REPEATING for x in path)
    if repeats and not uniform and not _distinct(v.abstract):
        raise _shared_elements("the written-to tensor")


def require_distinct_windows(v: Value) -> None:
    """Refuse `select_scatter` and the like of windows that overlap: eager writes into a copy that
    overlaps in the same way, and its decompositions do not."""
    windows = (aten.unfold.default, aten.as_strided.default)
    path = list(v.ancestry())
    overlapping = any(x.op in windows for x in path) and not _distinct(v.abstract)
    given = path[-1].abstract
    repeated = 0 in given.strides  # of which eager makes a copy that is not
    if overlapping or not (repeated or _distinct_in_example(given)):
        raise _shared_elements("the tensor that is scattered to")


def _shared_elements(whose: str) -> MutationError:
    return MutationError(
        f"unsupported operation: more than one element of {whose} refers to a single memory "
        "location",
        where=source.here(),
        fix="write to a copy: x = x.clone()",
    )


def _distinct_in_example(a: Abstract) -> bool:
    """The same of a tensor from outside; of others it is checked when the program is called."""
    sizes, strides = (tuple(map(_example, some)) for some in (a.sizes, a.strides))
    return _distinct(Abstract(sizes, a.dtype, a.device, strides))


def _distinct(a: Abstract) -> bool:
    """Whether no two elements are one piece of memory."""
    if a._strides is None or 0 in a.sizes:
        return True
    pairs = [(step, size) for step, size in zip(a.strides, a.sizes, strict=True) if size != 1]
    reach: Size = 0
    for step, size in sorted(pairs, key=lambda pair: _example(pair[0])):
        if (step == 0 or not _is(lt(reach, step))) and not _is(eq(size, 1)):
            return _enumerated(pairs)
        reach = reach + step * (size - 1)
    return True


def _enumerated(pairs: list[tuple[Size, Size]]) -> bool:
    """The same where strides interleave, at the sizes of the example, which are then fixed."""
    if not all(type(x) is int for pair in pairs for x in pair):
        return False
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        places = torch.zeros(1, dtype=torch.int64)
        for stride, size in pairs:
            places = (places[:, None] + torch.arange(size) * stride).flatten()
        return places.numel() == places.unique().numel()


def _example(size: Size) -> int:
    return size if type(size) is int else int(size.scope.hint(size) or 0)


# Whether eager shares memory, step by step as torch decides it


def laid_out_as(a: Abstract, strides: Sizes) -> bool:
    """Whether a tensor has these strides already; those of a single element do not matter."""
    return all(
        _is(eq(size, 1)) or _is(eq(have, want))
        for size, have, want in zip(a.sizes, a.strides, strides, strict=True)
    )


def lies_in_order(a: Abstract) -> bool:
    """Whether a tensor is contiguous."""
    return strides.lies_in_order(a, _is)


def viewable_as(a: Abstract, sizes: Sizes) -> bool:
    """Whether the memory of a tensor can be seen with these sizes."""
    at = len(sizes) - 1
    if not a.rank:
        return True
    base, old, new = a.strides[-1], 1, 1
    for d in range(a.rank - 1, -1, -1):
        old = old * a.sizes[d]
        if d and (_is(eq(a.sizes[d - 1], 1)) or _is(eq(a.strides[d - 1], old * base))):
            continue
        while at >= 0 and (_is(lt(new, old)) or _is(eq(sizes[at], 1))):
            new = new * sizes[at]
            at -= 1
        if not _is(eq(new, old)):
            return False
        if d:
            base, old, new = a.strides[d - 1], 1, 1
    return at == -1


def _is(cond: bool | Expr) -> bool:
    """As the example has it, to be checked when run; data is taken to make no difference."""
    if isinstance(cond, bool):
        return cond
    scope = cond.scope
    answer = scope.decide(cond)
    if answer is None:
        answer = bool(scope.hint(cond))
        expected(cond if answer else not_(cond))
    return answer
