"""Memory layout of sizes and strides that may be symbolic.

Every question is answered True only when it provably holds, and never records a fact: a tensor that
is not provably contiguous is treated as one that is not. Where a size of zero would make a
difference (an empty tensor is contiguous whatever its strides) the answer is the one for sizes that
are not, so `max(1, n)` in a stride counts as `n`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphport.symbolic import expr
from graphport.symbolic.expr import Expr, Size, Value
from graphport.symbolic.nodes import operands
from graphport.symbolic.scope import Scope

CHANNELS_LAST_2D = (1, 3, 2, 0)
CHANNELS_LAST_3D = (1, 4, 3, 2, 0)


def contiguous_strides(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous tensor."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        step = expr.mul(step, size)
    return tuple(reversed(strides))


def is_contiguous(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    return _nested(scope, sizes, strides, range(len(sizes) - 1, -1, -1))


def is_channels_last(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Contiguous in the order N..., C; for four and five dimensions."""
    order = {4: CHANNELS_LAST_2D, 5: CHANNELS_LAST_3D}.get(len(sizes))
    return order is not None and _nested(scope, sizes, strides, order)


def _nested(
    scope: Scope, sizes: Sequence[Size], strides: Sequence[Size], order: Sequence[int]
) -> bool:
    """Each stride is the product of the sizes inside it; a size of one has no say."""
    if any(scope.simplify(size) == 0 for size in sizes):
        return True
    step: Size = 1
    for d in order:
        size = scope.simplify(sizes[d])
        if size == 1:
            continue
        if not _same(scope, strides[d], step):
            return False
        step = expr.mul(step, size)
    return True


def is_channels_last_strides(scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Strides in the order of channels last, gaps allowed. PyTorch's rule, step by step."""
    order = {4: CHANNELS_LAST_2D, 5: CHANNELS_LAST_3D}.get(len(sizes))
    if order is None or scope.simplify(strides[1]) == 0:
        return False
    least: Size = 0
    for d in order:
        size, stride = scope.simplify(sizes[d]), scope.simplify(strides[d])
        if size == 0 or scope.decide(expr.ge(_plain(stride), _plain(least))) is not True:
            return False
        if d == 0 and scope.same(least, strides[1]):
            return False
        least = stride if size == 1 else expr.mul(stride, size)
    return True


def is_non_overlapping_and_dense(
    scope: Scope, sizes: Sequence[Size], strides: Sequence[Size]
) -> bool:
    """Some order of the dimensions is contiguous."""
    left = [d for d in range(len(sizes)) if scope.simplify(sizes[d]) != 1]
    step: Size = 1
    while left:
        match = next((d for d in left if _same(scope, strides[d], step)), None)
        if match is None:
            return False
        left.remove(match)
        step = expr.mul(step, sizes[match])
    return True


def _same(scope: Scope, stride: Size, step: Size) -> bool:
    if stride is step or scope.same(stride, step):
        return True
    return scope.same(_plain(stride), _plain(step))


def _plain(stride: Size) -> Size:
    """`stride` with max(1, n) read as n."""
    if type(stride) is not Expr:
        return stride
    found: dict[Expr, Size] = {}
    _collect(stride, found)
    return expr.substitute(stride, found) if found else stride


def _collect(e: Value, found: dict[Expr, Size]) -> None:
    if type(e) is not Expr:
        return
    if e.kind == "max" and len(e.args) == 2 and e.args[0] == 1:
        found[e] = _plain(e.args[1])
    elif e.kind in ("add", "mul"):
        for part in operands(e):
            _collect(part, found)
