"""Where a slice starts and how long it is, as Python clamps them, for sizes that may be symbolic.

Whether a bound lies within the size is taken from the example and written down, for a `Dim` to say.
Where the example is a size of 0 or 1 that others would depart from, or data decides, nothing is
assumed: the result is a minimum or maximum. So it is while a scope is `unassuming`, and where an
end lies within or beyond as several dims have it, which no `Dim` can say. A start is always taken
to lie as in the example: `x[past:]` is to be `total - past` long.
"""

from __future__ import annotations

from collections.abc import Callable

from graphport.ops.abstract import Size
from graphport.ops.sizes import known, same, taken
from graphport.symbolic import Expr, ge, ite, le, lt, max_, min_, symbols

_NO_END = (1 << 63) - 1  # what Python's `x[a:]` passes as the end


def slice_bounds(size: Size, start: Size | None, end: Size | None, step: int) -> tuple[Size, Size]:
    """The first element and the number of elements."""
    if start is None:
        start = 0
    if end is None or (type(end) is int and end >= _NO_END):
        end = size
    if all(type(x) is int for x in (size, start, end)):
        first, stop, _ = slice(start, end, step).indices(size)
        return first, max(0, -((first - stop) // step))
    first = _clamped(start, size, _followed)
    stop = size if end is size else _clamped(end, size, _followed_in_one_dim)
    length = _at_least_zero(stop - first)
    return first, length if step == 1 else (length + (step - 1)) // step


def _clamped(bound: Size, size: Size, followed: Callable[[bool | Expr], bool | None]) -> Size:
    """A bound as a position in [0, size]; `followed` says whether it lies within."""
    if (type(bound) is int and bound == 0) or same(bound, size):
        return bound if type(bound) is int else size
    from_front = _sign(bound)
    if from_front is None:
        return ite(ge(bound, 0), min_(bound, size), max_(bound + size, 0))
    if not from_front:
        return _at_least_zero(bound + size)
    inside = followed(le(bound, size))
    return min_(bound, size) if inside is None else bound if inside else size


def _sign(bound: Size) -> bool | None:
    """Whether a bound counts from the front."""
    if type(bound) is int or known(ge(bound, 0)):
        return type(bound) is not int or bound >= 0
    return False if known(lt(bound, 0)) else _followed(ge(bound, 0))


def _followed(cond: bool | Expr) -> bool | None:
    """Which way the example has it, if that may be taken for granted; see `taken`."""
    if isinstance(cond, bool) or cond.scope.following:
        return taken(cond)
    return cond.scope.decide(cond)


def _followed_in_one_dim(cond: bool | Expr) -> bool | None:
    """As `_followed`, but nothing is taken for granted that several dims decide."""
    if isinstance(cond, bool) or len(symbols(cond.scope.simplify(cond))) < 2:
        return _followed(cond)
    return cond.scope.decide(cond)


def _at_least_zero(x: Size) -> Size:
    """max(x, 0), or x where the example has it so; an empty slice ties nothing down."""
    if type(x) is int:
        return max(x, 0)
    positive = x.scope.hint(ge(x, 0)) and _followed(ge(x, 0))
    return x if positive or known(ge(x, 0)) else max_(x, 0)
