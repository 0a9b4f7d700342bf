"""Boolean expressions: comparisons, connectives, and choice.

A comparison of integers becomes `ge0(e)` (e >= 0) or `eq0(e)` (e == 0), with e divided by the
greatest common divisor of its coefficients, so that `2*n > 6`, `n >= 4` and `3 < n` are one node.
Negation is pushed inwards until only `not eq0` and the negation of float comparisons are left (for
floats `not (a < b)` is not `a >= b`: there is NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from graphport.symbolic import floats, integers
from graphport.symbolic.floats import Real
from graphport.symbolic.integers import split_terms
from graphport.symbolic.nodes import Expr, Size, Truth, Value, atom, polynomial, record_factors


def ge0(e: Size) -> Truth:
    """e >= 0. Rounding the constant down keeps the integer solutions and no others."""
    if type(e) is not Expr:
        return e >= 0
    if e.span.lower >= 0:
        return True
    if e.span.upper < 0:
        return False
    g = math.gcd(*(coef for _, coef in split_terms(e)[0]))
    if g > 1:
        return ge0(_divide(e, g))
    return atom("ge0", bool, e)


def _divide(e: Expr, g: int) -> Size:
    """e with its coefficients divided by g and its constant rounded down."""
    terms, const = split_terms(e)
    result = polynomial(e.arena, {mono: coef // g for mono, coef in terms}, const // g)
    if e.factors and g > 0 and const % g == 0:
        record_factors(result, e.factors)
    return result


def eq0(e: Size) -> Truth:
    """e == 0, with the first coefficient positive."""
    if type(e) is not Expr:
        return e == 0
    terms, const = split_terms(e)
    g = math.gcd(*(coef for _, coef in terms))
    if const % g or 0 not in e.span:
        return False
    if terms[0][1] < 0:
        g = -g
    if g != 1:
        return eq0(_divide(e, g))
    for mono, coef in terms:
        if mono.kind in _EXTREMES and abs(coef) == 1:
            # a == max(a, b) says a >= b.
            other = integers.sub(mono, integers.scale(e, coef))
            if any(other is part or (type(part) is int and other == part) for part in mono.args):
                return connect("and", tuple(_EXTREMES[mono.kind](other, x) for x in mono.args))
    return atom("eq0", bool, e)


_EXTREMES: dict[str, Callable[[Size, Size], Truth]] = {
    "max": lambda a, b: ge0(integers.sub(a, b)),
    "min": lambda a, b: ge0(integers.sub(b, a)),
}


def feq(a: Real, b: Real) -> Truth:
    """a == b for floats; integers in disguise compare as integers."""
    if type(a) is not Expr and type(b) is not Expr:
        return a == b
    x, y = floats.as_integer(a), floats.as_integer(b)
    if x is not None and y is not None:
        return eq0(integers.sub(x, y))
    for whole, other in ((x, b), (y, a)):
        if type(whole) is Expr and type(other) is float and abs(other) < 2**53:
            return False
    return atom("feq", bool, a, b)


def flt(a: Real, b: Real) -> Truth:
    """a < b for floats."""
    if type(a) is not Expr and type(b) is not Expr:
        return a < b
    bounds = _integer_sides(a, b, strict=True)
    return atom("flt", bool, a, b) if bounds is None else ge0(integers.sub(bounds[1], bounds[0]))


def fle(a: Real, b: Real) -> Truth:
    """a <= b for floats."""
    if type(a) is not Expr and type(b) is not Expr:
        return a <= b
    bounds = _integer_sides(a, b, strict=False)
    return atom("fle", bool, a, b) if bounds is None else ge0(integers.sub(bounds[1], bounds[0]))


def _integer_sides(a: Real, b: Real, *, strict: bool) -> tuple[Size, Size] | None:
    """Integers x, y such that x <= y says the same as a < b (strict) or a <= b."""
    x, y = floats.as_integer(a), floats.as_integer(b)
    if x is not None and y is not None:
        return integers.add(x, int(strict)), y
    if x is not None and type(b) is float and abs(b) < 2**53:
        return x, math.floor(b)  # b is not an integer, so < and <= agree
    if y is not None and type(a) is float and abs(a) < 2**53:
        return math.ceil(a), y
    return None


def not_(a: Truth) -> Truth:
    if type(a) is not Expr:
        return not a
    if a.kind == "not":
        return a.args[0]
    if a.kind == "ge0":
        return ge0(integers.sub(-1, a.args[0]))
    if a.kind == "and":
        return connect("or", tuple(map(not_, a.args)))
    if a.kind == "or":
        return connect("and", tuple(map(not_, a.args)))
    return atom("not", bool, a)


def and_(a: Truth, b: Truth) -> Truth:
    return connect("and", (a, b))


def or_(a: Truth, b: Truth) -> Truth:
    return connect("or", (a, b))


def connect(kind: str, values: Sequence[Truth]) -> Truth:
    """`and` / `or`: flattened, without duplicates, sorted; x and not x is False."""
    absorbing = kind == "or"
    parts: dict[Expr, None] = {}
    for value in values:
        if type(value) is not Expr:
            if bool(value) is absorbing:
                return absorbing
            continue
        for part in value.args if value.kind == kind else (value,):
            parts[part] = None
    if any(not_(part) in parts for part in parts):
        return absorbing
    if not parts:
        return not absorbing
    if len(parts) == 1:
        return next(iter(parts))
    return atom(kind, bool, *sorted(parts, key=lambda p: p.key))


def ite(cond: Truth, a: Any, b: Any) -> Any:
    """a if cond else b."""
    if type(cond) is not Expr:
        return a if cond else b
    type_a, type_b = (x.type if type(x) is Expr else type(x) for x in (a, b))
    if type_a is not type_b:
        raise TypeError(f"ite: one side is {type_a.__name__}, the other {type_b.__name__}")
    if a is b or (type(a) is not Expr and type(b) is not Expr and repr(a) == repr(b)):
        return a
    if type_a is bool:
        return or_(and_(cond, a), and_(not_(cond), b))
    if cond.kind == "not":
        cond, a, b = cond.args[0], b, a
    return atom("ite", type_a, cond, a, b)


def to_integer(a: Value) -> Size:
    """A bool as 0 or 1."""
    if type(a) is Expr:
        return ite(a, 1, 0) if a.type is bool else a
    return int(a)
