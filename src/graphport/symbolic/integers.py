"""Integer arithmetic in canonical form.

Every integer expression is a polynomial with integer coefficients over atoms, fully expanded, terms
in a fixed order. Floor division and modulo have Python's meaning and are rewritten only by
equations that hold for all integers (for a divisor of zero there is nothing to preserve, because
Python raises).

Takes ints and integer expressions only; `expr` converts what users pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphport.symbolic.nodes import (
    Arena,
    Expr,
    Size,
    arena_of,
    atom,
    is_nonneg,
    key_of,
    monomial,
    polynomial,
)

# A power of a sum beyond this stays opaque: expansion would cost more than it can prove.
_MAX_POWER = 6
_MAX_TERMS = 256


def split(e: Size) -> tuple[tuple[tuple[Expr, int], ...], int]:
    """The terms and the constant of a polynomial."""
    if type(e) is not Expr:
        return (), e
    if e.kind == "add":
        return e.args, e.const
    return ((e, 1),), 0


def powers_of(mono: Expr) -> tuple[tuple[Expr, int], ...]:
    """The atoms of a monomial with their powers."""
    return mono.args if mono.kind == "mul" else ((mono, 1),)


def add(a: Size, b: Size) -> Size:
    if type(a) is not Expr and type(b) is not Expr:
        return a + b
    (left, c), (right, d) = split(a), split(b)
    terms = dict(left)
    for mono, coef in right:
        terms[mono] = terms.get(mono, 0) + coef
    return polynomial(arena_of(a, b), terms, c + d)


def scale(a: Size, k: int) -> Size:
    """k * a for a constant k."""
    if type(a) is not Expr:
        return a * k
    if k == 1:
        return a
    terms, const = split(a)
    result = polynomial(a.arena, {mono: coef * k for mono, coef in terms}, const * k)
    if k > 0 and a.factors and type(result) is Expr and result.factors is None:
        result.factors = a.factors
    return result


def neg(a: Size) -> Size:
    return scale(a, -1)


def sub(a: Size, b: Size) -> Size:
    return add(a, scale(b, -1))


def sum_(values: Iterable[Size]) -> Size:
    """The sum of many, without the intermediate sums."""
    values = list(values)
    terms: dict[Expr, int] = {}
    const = 0
    for value in values:
        if type(value) is not Expr:
            const += value
        else:
            parts, c = split(value)
            const += c
            for mono, coef in parts:
                terms[mono] = terms.get(mono, 0) + coef
    return polynomial(arena_of(*values), terms, const) if terms else const


def _times(arena: Arena, a: Expr, b: Expr) -> Expr:
    """The product of two monomials."""
    powers = dict(powers_of(a))
    for part, power in powers_of(b):
        powers[part] = powers.get(part, 0) + power
    return monomial(arena, tuple(sorted(powers.items(), key=lambda p: p[0].key)))


def mul(a: Size, b: Size) -> Size:
    """a * b, expanded.

    When both are sums the result remembers its factors: that n*(h - 2) is not negative is plain from
    the factors and hard to see in n*h - 2*n.
    """
    if type(a) is not Expr:
        return scale(b, a) if type(b) is Expr else a * b
    if type(b) is not Expr:
        return scale(a, b)
    arena = arena_of(a, b)
    (left, c), (right, d) = split(a), split(b)
    terms: dict[Expr, int] = {}
    for m, x in left:
        for n, y in right:
            both = _times(arena, m, n)
            terms[both] = terms.get(both, 0) + x * y
        if d:
            terms[m] = terms.get(m, 0) + x * d
    if c:
        for n, y in right:
            terms[n] = terms.get(n, 0) + c * y
    result = polynomial(arena, terms, c * d)
    if type(result) is Expr and result.kind == "add" and result.factors is None:
        result.factors = (*(a.factors or (a,)), *(b.factors or (b,)))
    return result


def pow_(a: Size, n: Size) -> Size:
    """a ** n for n >= 0."""
    if type(n) is not Expr:
        if type(a) is not Expr:
            return int(a**n)
        if n == 0:
            return 1
        if a.kind != "add" or n == 1:
            return _expand_power(a, n)
        if n <= _MAX_POWER and len(a.args) ** n <= _MAX_TERMS:
            return _expand_power(a, n)
        return atom("pow", int, a, n)
    if a == 1:
        return 1
    return atom("pow", int, a, n)


def _expand_power(a: Expr, n: int) -> Size:
    if a.kind != "add":
        powers = tuple((part, power * n) for part, power in powers_of(a))
        return monomial(a.arena, powers)
    result: Size = a
    for _ in range(n - 1):
        result = mul(result, a)
    return result


def _cofactor(mono: Expr, divisor: Expr) -> Expr | int | None:
    """mono / divisor for monomials, or None when it is not a monomial."""
    powers = dict(powers_of(mono))
    for part, power in powers_of(divisor):
        left = powers.get(part, 0) - power
        if left < 0:
            return None
        powers[part] = left
    kept = tuple((part, power) for part, power in powers.items() if power)
    return monomial(mono.arena, kept) if kept else 1


def divide_exactly(a: Size, b: Size) -> Size | None:
    """The polynomial q with a == q * b, or None. Long division in graded lexicographic order."""
    if type(a) is not Expr:
        return a // b if type(b) is not Expr and a % b == 0 else (0 if a == 0 else None)
    if type(b) is not Expr:
        terms, const = split(a)
        if const % b or any(coef % b for _, coef in terms):
            return None
        return polynomial(a.arena, {mono: coef // b for mono, coef in terms}, const // b)
    (lead, lead_coef), *_ = split(b)[0]
    quotient: Size = 0
    rest: Size = a
    while type(rest) is Expr:
        (mono, coef), *_ = split(rest)[0]
        ratio = _cofactor(mono, lead)
        if ratio is None or coef % lead_coef:
            return None
        step = scale(ratio, coef // lead_coef)
        quotient = add(quotient, step)
        rest = sub(rest, mul(step, b))
    return quotient if rest == 0 else None


def common_factor(terms: Iterable[Expr]) -> Expr | None:
    """The largest monomial that divides every term, or None when that is 1."""
    powers: dict[Expr, int] | None = None
    for mono in terms:
        mine = dict(powers_of(mono))
        if powers is None:
            powers = mine
        else:
            powers = {p: min(n, mine[p]) for p, n in powers.items() if p in mine}
        if not powers:
            return None
        arena = mono.arena
    return monomial(arena, tuple(powers.items())) if powers else None


def content(a: Size) -> int:
    """The greatest common divisor of the coefficients and the constant."""
    terms, const = split(a)
    return math.gcd(const, *(coef for _, coef in terms))


def _take_multiples(a: Expr, b: Size) -> tuple[Size, Size]:
    """(q, r) with a == q * b + r, where q collects the terms that b divides on sight."""
    if type(b) is not Expr:
        terms, const = split(a)
        whole = {mono: coef // b for mono, coef in terms if coef % b == 0}
        rest = {mono: coef for mono, coef in terms if coef % b}
        q, r = divmod(const, b)
        return polynomial(a.arena, whole, q), polynomial(a.arena, rest, r)
    exact = divide_exactly(a, b)
    if exact is not None:
        return exact, 0
    divisors, offset = split(b)
    if len(divisors) != 1 or offset:
        return 0, a
    (mono, coef), terms = divisors[0], split(a)[0]
    quotient: Size = 0
    for m, c in terms:
        ratio = _cofactor(m, mono) if c % coef == 0 else None
        if ratio is not None:
            quotient = add(quotient, scale(ratio, c // coef))
    return quotient, (sub(a, mul(quotient, b)) if quotient != 0 else a)


def _cancel(a: Expr, b: Expr) -> tuple[Size, Size]:
    """Cancel what numerator and denominator share: floor(g*x / (g*y)) == floor(x / y)."""
    g = math.gcd(content(a), content(b))
    if g > 1:
        a, b = divide_exactly(a, g), divide_exactly(b, g)  # type: ignore[assignment]
    if type(a) is Expr and type(b) is Expr and not split(a)[1] and not split(b)[1]:
        shared = common_factor(mono for part in (a, b) for mono, _ in split(part)[0])
        if shared is not None:
            return divide_exactly(a, shared), divide_exactly(b, shared)  # type: ignore[return-value]
    return a, b


def floordiv(a: Size, b: Size) -> Size:
    """a // b, rounding down.

    (q*b + r) // b == q + r // b;  (g*x + c) // (g*m) == (x + c//g) // m;
    (x // m + c) // n == (x + c*m) // (m*n) for constants m, n > 0.
    """
    if type(a) is not Expr:
        if type(b) is not Expr:
            return a // b
        return 0 if a == 0 else atom("floordiv", int, a, b)
    if type(b) is not Expr and b < 0:
        return floordiv(neg(a), -b)
    if b == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if b == 1:
        return a
    whole, rest = _take_multiples(a, b)
    if rest == 0:
        return whole
    if type(rest) is not Expr:
        return add(whole, _floordiv_atom(rest, b))
    reduce = _reduce_by_constant if type(b) is int else _cancel
    x, y = reduce(rest, b)  # type: ignore[operator]
    if x is rest and y is b:
        return add(whole, _floordiv_atom(rest, b))
    return add(whole, floordiv(x, y))


def _reduce_by_constant(a: Expr, b: int) -> tuple[Size, int]:
    terms, const = split(a)
    g = math.gcd(b, *(coef for _, coef in terms))
    if g > 1:
        reduced = polynomial(a.arena, {mono: coef // g for mono, coef in terms}, const // g)
        return reduced, b // g
    if len(terms) == 1 and terms[0][1] == 1:
        inner = terms[0][0]
        if inner.kind == "floordiv" and type(inner.args[1]) is int:
            x, m = inner.args
            return add(x, const * m), m * b
    return a, b


def _floordiv_atom(a: Size, b: Size) -> Size:
    if type(a) is not Expr and type(b) is not Expr:
        return a // b
    if type(a) is Expr and type(b) is not Expr and a.kind == "mod":
        modulus = a.args[1]
        if type(modulus) is int and 0 < modulus <= b:
            return 0
    return atom("floordiv", int, a, b)


def mod(a: Size, b: Size) -> Size:
    """a % b, with the sign of b.

    (q*b + r) % b == r % b;  (g*x + c) % (g*m) == g*((x + c//g) % m) + c % g;  a % -n == -(-a % n).
    """
    if type(b) is not Expr:
        if type(a) is not Expr:
            return a % b
        if b == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        if b < 0:
            return neg(mod(neg(a), -b))
        return _mod_constant(a, b)
    if type(a) is not Expr:
        return 0 if a == 0 else atom("mod", int, a, b)
    rest = _take_multiples(a, b)[1]
    if rest == 0:
        return 0
    if type(rest) is Expr and rest.kind == "mod" and rest.args[1] is b:
        return rest
    return atom("mod", int, rest, b)


def _mod_constant(a: Expr, b: int) -> Size:
    if b == 1:
        return 0
    terms, const = split(a)
    # Reduce towards zero, so that (-n) % 4 keeps reading as it was written.
    reduced = {mono: coef % b if coef > 0 else -(-coef % b) for mono, coef in terms if coef % b}
    if not reduced:
        return const % b
    g = math.gcd(b, *reduced.values())
    high, low = divmod(const % b, g)
    x = polynomial(a.arena, {mono: coef // g for mono, coef in reduced.items()}, high)
    m = b // g
    if m == 1:
        return low
    return add(scale(_mod_atom(x, m), g), low)


def _mod_atom(a: Size, b: int) -> Size:
    if type(a) is not Expr:
        return a % b
    if a.kind == "mod":
        x, modulus = a.args
        if type(modulus) is int and modulus > 0:
            if modulus <= b:
                return a
            if modulus % b == 0:
                return mod(x, b)
    return atom("mod", int, a, b)


def _extremum(kind: str, a: Size, b: Size) -> Size:
    """min or max: flattened, without duplicates, sorted, with at most one constant."""
    best = min if kind == "min" else max
    if type(a) is not Expr and type(b) is not Expr:
        return best(a, b)
    parts: dict[Expr, None] = {}
    const: int | None = None
    for value in (a, b):
        for part in value.args if type(value) is Expr and value.kind == kind else (value,):
            if type(part) is Expr:
                parts[part] = None
            else:
                const = part if const is None else best(const, part)
    kept: list[Size] = []
    for part in parts:
        if not any(o is not part and _beats(kind, o, part) for o in parts):
            kept.append(part)
    if const is not None and not any(_beats(kind, part, const) for part in kept):
        kept = [part for part in kept if not _beats(kind, const, part)]
        kept.append(const)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=key_of)
    return atom(kind, int, *kept)


def _beats(kind: str, a: Size, b: Size) -> bool:
    """a makes b superfluous in a min (a <= b) or max (a >= b), from declared signs alone."""
    return is_nonneg(sub(b, a) if kind == "min" else sub(a, b))


def min_(a: Size, b: Size) -> Size:
    return _extremum("min", a, b)


def max_(a: Size, b: Size) -> Size:
    return _extremum("max", a, b)


def abs_(a: Size) -> Size:
    if type(a) is not Expr:
        return abs(a)
    if is_nonneg(a):
        return a
    negated = neg(a)
    if is_nonneg(negated):
        return negated
    leading_negative = a.kind == "add" and a.args[0][1] < 0
    return atom("abs", int, negated if leading_negative else a)


def lshift(a: Size, b: Size) -> Size:
    """a << b; by a constant it is a multiplication."""
    if type(b) is not Expr:
        return mul(a, 1 << b)
    return 0 if a == 0 else atom("lshift", int, a, b)


def rshift(a: Size, b: Size) -> Size:
    """a >> b; by a constant it is a floor division."""
    if type(b) is not Expr:
        return floordiv(a, 1 << b)
    return 0 if a == 0 else atom("rshift", int, a, b)


def _bitwise(kind: str, a: Size, b: Size) -> Size:
    a, b = sorted((a, b), key=key_of)
    return atom(kind, int, a, b)


def bitand(a: Size, b: Size) -> Size:
    if type(a) is not Expr and type(b) is not Expr:
        return a & b
    if a is b or a == -1:
        return b
    if b == -1:
        return a
    return 0 if a == 0 or b == 0 else _bitwise("bitand", a, b)


def bitor(a: Size, b: Size) -> Size:
    if type(a) is not Expr and type(b) is not Expr:
        return a | b
    if a is b or a == 0:
        return b
    return a if b == 0 else _bitwise("bitor", a, b)


def bitxor(a: Size, b: Size) -> Size:
    if type(a) is not Expr and type(b) is not Expr:
        return a ^ b
    if a is b:
        return 0
    if a == 0 or b == 0:
        return b if a == 0 else a
    return _bitwise("bitxor", a, b)
