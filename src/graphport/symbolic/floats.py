"""Floating-point expressions, and how they simplify back to integers.

Floats are opaque to arithmetic: addition is not associative, so nothing is reordered. What is
simplified is the way back to integers, because that is how programs compute sizes: `int(n / 2)`,
`math.floor(h * 2.0)`, `torch.sym_sqrt(n * n)`. These equations hold while the integers involved are
exactly representable, that is below 2**53 in magnitude; a tensor size is.

Takes floats and float expressions; `to_float` makes one out of an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphport.symbolic import division, integers
from graphport.symbolic.nodes import Expr, Size, atom, is_nonneg

Real = float | Expr

FUNCTIONS: dict[str, Callable[[float], float]] = {
    name: getattr(math, name)
    for name in (
        *("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh"),
    )
}

# A float factor is exact when it is p / 2**k with small p and k: the product of it and a size then
# needs no rounding.
_EXACT_BITS = 20


def to_float(a: Size) -> Real:
    return atom("to_float", float, a) if type(a) is Expr else float(a)


def as_integer(a: Real) -> Size | None:
    """The integer that `a` is the float of, if that is plain."""
    if type(a) is Expr:
        return a.args[0] if a.kind == "to_float" else None
    return int(a) if math.isfinite(a) and a.is_integer() and abs(a) < 2**53 else None


def _on_integers(a: Real, b: Real, operation: Callable[[Size, Size], Size]) -> Real | None:
    x, y = as_integer(a), as_integer(b)
    return to_float(operation(x, y)) if x is not None and y is not None else None


def add(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return a + b
    whole = _on_integers(a, b, integers.add)
    return whole if whole is not None else atom("fadd", float, a, b)


def neg(a: Real) -> Real:
    if type(a) is not Expr:
        return -a
    if a.kind == "fneg":
        return a.args[0]
    whole = as_integer(a)
    return atom("fneg", float, a) if whole is None else to_float(integers.neg(whole))


def sub(a: Real, b: Real) -> Real:
    return add(a, neg(b))


def mul(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return a * b
    whole = _on_integers(a, b, integers.mul)
    return whole if whole is not None else atom("fmul", float, a, b)


def int_truediv(a: Size, b: Size) -> Real:
    """a / b for integers: Python rounds the exact quotient once."""
    if type(a) is not Expr and type(b) is not Expr:
        return a / b
    if b == 0:
        raise ZeroDivisionError("division by zero")
    exact = division.divide_exactly(a, b)
    if exact is not None:
        return to_float(exact)
    return atom("truediv", float, a, b)


def truediv(a: Real, b: Real) -> Real:
    """a / b; a quotient of integers becomes one of ints, which is the same number."""
    if type(a) is not Expr and type(b) is not Expr:
        return a / b
    x, y = as_integer(a), as_integer(b)
    if x is not None and y is not None and y != 0:
        return int_truediv(x, y)
    return atom("fdiv", float, a, b)


def floordiv(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return a // b
    whole = _on_integers(a, b, division.floordiv)
    return whole if whole is not None else atom("ffloordiv", float, a, b)


def mod(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return a % b
    whole = _on_integers(a, b, division.mod)
    return whole if whole is not None else atom("fmod", float, a, b)


def pow_(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return a**b
    if b == 1.0:
        return a
    if b == 2.0:
        return mul(a, a)
    return atom("fpow", float, a, b)


def min_(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return min(a, b)
    whole = _on_integers(a, b, integers.min_)
    return whole if whole is not None else atom("fmin", float, a, b)


def max_(a: Real, b: Real) -> Real:
    if type(a) is not Expr and type(b) is not Expr:
        return max(a, b)
    whole = _on_integers(a, b, integers.max_)
    return whole if whole is not None else atom("fmax", float, a, b)


def abs_(a: Real) -> Real:
    if type(a) is not Expr:
        return abs(a)
    whole = as_integer(a)
    if whole is not None:
        return to_float(integers.abs_(whole))
    return a if is_nonneg(a) else atom("fabs", float, a)


def func(name: str, a: Real) -> Real:
    """A function of `math` by name."""
    if type(a) is not Expr:
        return FUNCTIONS[name](a)
    if name == "sqrt":
        root = _perfect_root(as_integer(a))
        if root is not None:
            return to_float(root)
    return atom(name, float, a)


def _perfect_root(a: Size | None) -> Size | None:
    """The root of c**2 * x**2 * y**2 ..., for atoms that are never negative."""
    if type(a) is not Expr:
        return None
    terms, const = integers.split_terms(a)
    if len(terms) != 1 or const or terms[0][1] < 0:
        return None
    mono, coef = terms[0]
    outer = math.isqrt(coef)
    powers = integers.powers_of(mono)
    if outer * outer != coef or any(n % 2 or not is_nonneg(part) for part, n in powers):
        return None
    root: Size = outer
    for part, n in powers:
        root = integers.mul(root, integers.pow_(part, n // 2))
    return root


def _as_fraction(a: Expr) -> tuple[Size, int] | None:
    """(x, d) with a == x / d exactly, for an integer x and a constant d > 0."""
    if a.kind == "to_float":
        return a.args[0], 1
    if a.kind == "truediv":
        x, d = a.args
        if type(d) is int:
            return (x, d) if d > 0 else (integers.neg(x), -d)
    if a.kind == "fmul":
        for x, factor in (a.args, a.args[::-1]):
            if type(factor) is float and type(x) is Expr and math.isfinite(factor):
                p, d = factor.as_integer_ratio()
                inner = _as_fraction(x)
                if inner is not None and inner[1] == 1 and max(abs(p), d) < 2**_EXACT_BITS:
                    return integers.scale(inner[0], p), d
    return None


def floor(a: Real) -> Size:
    if type(a) is not Expr:
        return math.floor(a)
    fraction = _as_fraction(a)
    if fraction is not None:
        return division.floordiv(*fraction)
    return atom("floor", int, a)


def ceil(a: Real) -> Size:
    if type(a) is not Expr:
        return math.ceil(a)
    fraction = _as_fraction(a)
    if fraction is not None:
        return integers.neg(division.floordiv(integers.neg(fraction[0]), fraction[1]))
    return atom("ceil", int, a)


def trunc(a: Real) -> Size:
    """Towards zero, which is down where the sign is known."""
    if type(a) is not Expr:
        return math.trunc(a)
    fraction = _as_fraction(a)
    if fraction is not None and (fraction[1] == 1 or is_nonneg(a)):
        return division.floordiv(*fraction)
    return floor(a) if is_nonneg(a) else atom("trunc", int, a)


def round_(a: Real) -> Size:
    """To the nearest integer, halves to the even one."""
    if type(a) is not Expr:
        return round(a)
    whole = as_integer(a)
    return whole if whole is not None else atom("round", int, a)


def round_to(a: Real, digits: int) -> Real:
    if type(a) is not Expr:
        return round(a, digits)
    whole = as_integer(a)
    return a if whole is not None and digits >= 0 else atom("round_to", float, a, digits)
