"""Lower bounds of a sum by way of what is known of one of its atoms.

A relaxation looks at `rest + weight * part`, where `part` is an opaque atom and `weight` is never
negative (`positive`) or never positive, and yields lists of expressions: if all of a list are never
negative, neither is the sum. Each is one fact about Python's integers, stated in the docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from graphport.symbolic import division, integers
from graphport.symbolic.nodes import Expr, Size

Cases: TypeAlias = Iterator[list[Size]]

# Side conditions ("n is at least 1") are proven with this little effort.
_EFFORT = 1


def _with(rest: Size, weight: Size, value: Size) -> Size:
    return integers.add(rest, integers.mul(weight, value))


def minimum(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """min(x, y) is one of x and y, and at most either."""
    cases = [_with(rest, weight, a) for a in part.args]
    if positive:
        yield cases
    else:
        yield from ([case] for case in cases)


def maximum(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """max(x, y) is one of x and y, and at least either."""
    yield from minimum(prover, part, rest, weight, not positive)


def quotient(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """n * (a // n) == a - a % n; and 0 <= a // n <= a where a >= 0 and n >= 1."""
    a, n = part.args
    if type(n) is int:
        remainder = prover.range(division.mod(a, n))
        most = remainder.upper if positive else remainder.lower
        yield [_with(integers.scale(rest, n), weight, integers.sub(a, int(most)))]
        return
    if not prover.bounded_below(integers.sub(n, 1), _EFFORT):
        return
    ratio = division.divide_exactly(weight, n)
    if ratio is not None:
        yield [_with(rest, ratio, integers.sub(a, integers.sub(n, 1)) if positive else a)]
    if prover.bounded_below(a, _EFFORT):
        yield [rest if positive else _with(rest, weight, a)]


def remainder(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """a % n == a - n * (a // n); 0 <= a % n <= n - 1 where n >= 1, and <= a where a >= 0."""
    a, n = part.args
    if not prover.bounded_below(integers.sub(n, 1), _EFFORT):
        return
    if positive:
        yield [rest]
    else:
        yield [_with(rest, weight, integers.sub(n, 1))]
        if prover.bounded_below(a, _EFFORT):
            yield [_with(rest, weight, a)]
    yield [_with(rest, weight, integers.sub(a, integers.mul(n, division.floordiv(a, n))))]


def absolute(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """abs(x) is one of x and -x, and at least either."""
    (a,) = part.args
    cases = [_with(rest, weight, a), _with(rest, weight, integers.neg(a))]
    if positive:
        yield from ([case] for case in cases)
    else:
        yield cases


def choice(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """x if c else y is one of x and y."""
    yield [_with(rest, weight, side) for side in part.args[1:]]


RELAXATIONS: dict[str, Callable[[Any, Expr, Size, Size, bool], Cases]] = {
    "min": minimum,
    "max": maximum,
    "floordiv": quotient,
    "mod": remainder,
    "abs": absolute,
    "ite": choice,
}
