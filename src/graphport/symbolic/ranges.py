"""Interval arithmetic for every kind of node.

A bound is an int (a float for float expressions) or plus or minus `math.inf`; an infinite bound
means *no bound is known*. Interval arithmetic is sound, not tight: it forgets that two occurrences
of a symbol have the same value. `prove` makes up for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

inf = math.inf

# Beyond this an exact power is not worth computing: the bound is as good as infinite.
_MAX_EXPONENT = 64


class Range:
    """The integers (or floats) from `lower` to `upper`, both included."""

    __slots__ = ("lower", "upper")

    def __init__(self, lower: float, upper: float) -> None:
        self.lower = lower
        self.upper = upper

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __and__(self, other: Range) -> Range:
        return Range(max(self.lower, other.lower), min(self.upper, other.upper))

    def __or__(self, other: Range) -> Range:
        return Range(min(self.lower, other.lower), max(self.upper, other.upper))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Range):
            return NotImplemented
        return self.lower == other.lower and self.upper == other.upper

    def __hash__(self) -> int:
        return hash((self.lower, self.upper))

    @property
    def empty(self) -> bool:
        return self.lower > self.upper

    @property
    def is_single(self) -> bool:
        return self.lower == self.upper

    def __repr__(self) -> str:
        return f"[{_format_bound(self.lower)}, {_format_bound(self.upper)}]"


def _format_bound(value: float) -> str:
    return {inf: "oo", -inf: "-oo"}.get(value) or str(value)


FULL = Range(-inf, inf)
TRUTH = Range(0, 1)


def product(x: float, y: float) -> float:
    """x * y for bounds: nothing times no-bound is nothing."""
    if x == 0 or y == 0:
        return 0
    if x in (inf, -inf) or y in (inf, -inf):
        return inf if (x > 0) == (y > 0) else -inf
    return x * y


def add(a: Range, b: Range) -> Range:
    return Range(a.lower + b.lower, a.upper + b.upper)


def neg(a: Range) -> Range:
    return Range(-a.upper, -a.lower)


def mul(a: Range, b: Range) -> Range:
    corners = [product(x, y) for x in (a.lower, a.upper) for y in (b.lower, b.upper)]
    return Range(min(corners), max(corners))


def power(a: Range, n: int) -> Range:
    """a ** n for a constant n >= 1."""
    low, high = (_bounded_power(x, n) for x in (a.lower, a.upper))
    if n % 2:
        return Range(low, high)
    top = max(low, high)
    return Range(0, top) if 0 in a else Range(min(low, high), top)


def _bounded_power(x: float, n: float) -> float:
    if x in (0, 1):
        return x
    if x in (inf, -inf) or n > _MAX_EXPONENT:
        return inf if x > 0 or n % 2 == 0 else -inf
    return x ** int(n)


def _positive_divisor(b: Range) -> Range:
    """Dividing by zero raises, so a bound of zero is a bound of one."""
    return Range(b.lower or 1, b.upper or -1)


def floordiv(a: Range, b: Range) -> Range:
    b = _positive_divisor(b)
    if b.lower < 0 < b.upper:
        most = max(abs(a.lower), abs(a.upper))
        return Range(-most, most)
    quotients = [
        _floordiv(x, y)
        for x in (a.lower, a.upper)
        for y in (b.lower, b.upper)
        if not (abs(x) == inf and abs(y) == inf)
    ]
    return Range(min(quotients), max(quotients))


def _floordiv(x: float, y: float) -> float:
    if abs(y) == inf:
        return 0 if x == 0 or (x > 0) == (y > 0) else -1
    if abs(x) == inf:
        return x if y > 0 else -x
    return x // y


def mod(a: Range, b: Range) -> Range:
    b = _positive_divisor(b)
    if b.lower > 0:
        if a.lower >= 0 and a.upper < b.lower:
            return a
        return Range(0, min(b.upper - 1, a.upper) if a.lower >= 0 else b.upper - 1)
    return Range(min(b.lower + 1, 0), max(b.upper - 1, 0) if b.upper > 0 else 0)


def minimum(*args: Range) -> Range:
    return Range(min(a.lower for a in args), min(a.upper for a in args))


def maximum(*args: Range) -> Range:
    return Range(max(a.lower for a in args), max(a.upper for a in args))


def absolute(a: Range) -> Range:
    low, high = abs(a.lower), abs(a.upper)
    return Range(0 if 0 in a else min(low, high), max(low, high))


def pow_(a: Range, n: Range) -> Range:
    if n.is_single and n.lower not in (inf, -inf) and n.lower >= 1:
        return power(a, int(n.lower))
    if a.lower >= 1 and n.lower >= 0:
        return Range(_bounded_power(a.lower, n.lower), _any_power(a.upper, n.upper))
    return Range(0, inf) if a.lower >= 0 else FULL


def _any_power(x: float, n: float) -> float:
    return inf if n == inf and x > 1 else _bounded_power(x, n)


def lshift(a: Range, b: Range) -> Range:
    return mul(a, pow_(Range(2, 2), b)) if b.lower >= 0 else FULL


def rshift(a: Range, b: Range) -> Range:
    return floordiv(a, pow_(Range(2, 2), b)) if b.lower >= 0 else FULL


def _all_ones(x: float) -> float:
    return (1 << int(x).bit_length()) - 1 if x != inf else inf


def bitand(a: Range, b: Range) -> Range:
    tops = [r.upper for r in (a, b) if r.lower >= 0]
    return Range(0, min(tops)) if tops else FULL


def bitor(a: Range, b: Range) -> Range:
    if a.lower < 0 or b.lower < 0:
        return FULL
    return Range(max(a.lower, b.lower), _all_ones(max(a.upper, b.upper)))


def bitxor(a: Range, b: Range) -> Range:
    if a.lower < 0 or b.lower < 0:
        return FULL
    return Range(0, _all_ones(max(a.upper, b.upper)))


def _make_corners(operation: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    """A float operation that is monotone in each operand; rounding to nearest keeps that."""

    def interval(a: Range, b: Range) -> Range:
        try:
            values = [operation(x, y) for x in (a.lower, a.upper) for y in (b.lower, b.upper)]
        except (OverflowError, ZeroDivisionError):
            return FULL
        return FULL if any(map(math.isnan, values)) else Range(min(values), max(values))

    return interval


_float_mul = _make_corners(lambda x, y: float(product(x, y)))


def _quotient(a: Range, b: Range) -> Range:
    b = _positive_divisor(b) if type(b.lower) is int and type(b.upper) is int else b
    if b.lower <= 0 <= b.upper:
        return FULL
    return _true_corners(a, b)


def _truediv(x: float, y: float) -> float:
    if abs(y) == inf:
        return 0.0
    return x if abs(x) == inf and y > 0 else (-x if abs(x) == inf else x / y)


_true_corners = _make_corners(_truediv)


def _make_monotone(
    function: Callable[[float], float], *, low: float = -inf
) -> Callable[[Range], Range]:
    """A function that never falls, on its domain from `low` upwards."""

    def at(x: float) -> float:
        return x if abs(x) == inf else function(x)

    def interval(a: Range) -> Range:
        if a.upper < low:
            return FULL  # nowhere defined
        try:
            return Range(at(max(a.lower, low)), at(a.upper))
        except OverflowError:
            return FULL

    return interval


def _to_float(a: Range) -> Range:
    try:
        return Range(float(a.lower), float(a.upper))
    except OverflowError:
        return FULL


def _choose(cond: Range, a: Range, b: Range) -> Range:
    return a | b


def _unknown(*args: Range) -> Range:
    return FULL


INTERVALS: dict[str, Callable[..., Range]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "pow": pow_,
    "abs": absolute,
    "lshift": lshift,
    "rshift": rshift,
    "bitand": bitand,
    "bitor": bitor,
    "bitxor": bitxor,
    "floor": _make_monotone(math.floor),
    "ceil": _make_monotone(math.ceil),
    "trunc": _make_monotone(math.trunc),
    "round": _make_monotone(round),
    "to_float": _to_float,
    "truediv": _quotient,
    "fadd": _make_corners(lambda x, y: x + y),
    "fneg": neg,
    "fmul": _float_mul,
    "fdiv": _quotient,
    "ffloordiv": _unknown,
    "fmod": _unknown,
    "fpow": _unknown,
    "fmin": minimum,
    "fmax": maximum,
    "fabs": absolute,
    "round_to": _unknown,
    "sqrt": _make_monotone(math.sqrt, low=0.0),
    **dict.fromkeys(("exp", "cosh", "acos"), lambda a: Range(0.0, inf)),
    **dict.fromkeys(("sin", "cos", "tanh"), lambda a: Range(-1.0, 1.0)),
    **dict.fromkeys(("log", "log2", "log10", "tan", "asin", "atan", "sinh"), _unknown),
    "ite": _choose,
}


def constant_range(value: float) -> Range:
    return Range(value, value)


def linear(terms: Iterable[tuple[Range, int]], const: int) -> Range:
    """The interval of a sum of coefficient * term."""
    low: float = const
    high: float = const
    for r, coef in terms:
        if coef > 0:
            low, high = low + coef * r.lower, high + coef * r.upper
        else:
            low, high = low + coef * r.upper, high + coef * r.lower
    return Range(low, high)


def monomial(parts: Iterable[tuple[Range, int]]) -> Range:
    """The interval of a product of powers."""
    result: Range | None = None
    for r, n in parts:
        factor = r if n == 1 else power(r, n)
        result = factor if result is None else mul(result, factor)
    return result or constant_range(1)
