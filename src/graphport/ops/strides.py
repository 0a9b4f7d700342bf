"""Strides of results as torch's TensorIterator chooses them, and whether layouts are fixed.

This is the rule of torch's TensorIterator: equal layouts are kept, otherwise dims are ordered by
the strides of the operands, from the first operand that tells two dims apart. Symbolic strides are
compared at the example sizes: layout decides neither values nor sizes, and a graph that depends on
it is recorded with `reshape` instead of `view`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphport.symbolic import Expr, eq, evaluate, symbols
from graphport.tensors.abstract import (
    Abstract,
    Size,
    Sizes,
    channels_last_strides,
    matches,
    permute_strides,
)

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
        0 if size == 1 and target != 1 else get_typical_size(stride) for size, stride, target in own
    ]


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
