"""Division of polynomials: exact, rounding down, and its remainder.

Floor division and modulo have Python's meaning and are rewritten only by equations that hold for
all integers. Where the divisor is zero there is nothing to preserve, because Python raises: so
(a*b) // a is b.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphport.symbolic.integers import add, mul, neg, powers_of, scale, split_terms, sub
from graphport.symbolic.nodes import Expr, Size, atom, monomial, polynomial


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
        terms, const = split_terms(a)
        if const % b or any(coef % b for _, coef in terms):
            return None
        return polynomial(a.arena, {mono: coef // b for mono, coef in terms}, const // b)
    (lead, lead_coef), *_ = split_terms(b)[0]
    quotient: Size = 0
    rest: Size = a
    while type(rest) is Expr:
        (mono, coef), *_ = split_terms(rest)[0]
        ratio = _cofactor(mono, lead)
        if ratio is None or coef % lead_coef:
            return None
        step = scale(ratio, coef // lead_coef)
        quotient = add(quotient, step)
        rest = sub(rest, mul(step, b))
    return quotient if rest == 0 else None


def quotient(a: Size, b: Size) -> Size:
    """a / b where b is known to divide a."""
    result = divide_exactly(a, b)
    assert result is not None
    return result


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
    terms, const = split_terms(a)
    return math.gcd(const, *(coef for _, coef in terms))


def _take_multiples(a: Expr, b: Size) -> tuple[Size, Size]:
    """(q, r) with a == q * b + r, where q collects the terms that b divides on sight."""
    if type(b) is not Expr:
        terms, const = split_terms(a)
        divisible = {mono: coef // b for mono, coef in terms if coef % b == 0}
        rest = {mono: coef for mono, coef in terms if coef % b}
        q, r = divmod(const, b)
        return polynomial(a.arena, divisible, q), polynomial(a.arena, rest, r)
    exact = divide_exactly(a, b)
    if exact is None:
        divisor = expand_mods(b)
        spread = divisor is not b and divisor != 0
        exact = divide_exactly(expand_mods(a), divisor) if spread else None
    if exact is not None:
        return exact, 0
    divisors, offset = split_terms(b)
    if len(divisors) != 1 or offset:
        return 0, a
    (mono, coef), terms = divisors[0], split_terms(a)[0]
    whole: Size = 0
    for m, c in terms:
        ratio = _cofactor(m, mono) if c % coef == 0 else None
        if ratio is not None:
            whole = add(whole, scale(ratio, c // coef))
    return whole, (sub(a, mul(whole, b)) if whole != 0 else a)


def _cancel(a: Expr, b: Expr) -> tuple[Size, Size]:
    """Cancel what numerator and denominator share: floor(g*x / (g*y)) == floor(x / y)."""
    g = math.gcd(content(a), content(b))
    if g > 1:
        return quotient(a, g), quotient(b, g)
    if not split_terms(a)[1] and not split_terms(b)[1]:
        shared = common_factor(mono for part in (a, b) for mono, _ in split_terms(part)[0])
        if shared is not None:
            return quotient(a, shared), quotient(b, shared)
    return a, b


def floordiv(a: Size, b: Size) -> Size:
    """a // b, rounding down.

    (q*b + r) // b == q + r // b;  (g*x + c) // (g*m) == (x + c//g) // m;
    (x // m + c) // n == (x + c*m) // (m*n) for constants m, n > 0; (x + -x % m) // m == -(-x // m).
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
    if type(b) is int:
        spread = expand_mods(rest)
        more, left = _take_multiples(spread, b) if type(spread) is Expr else (0, spread)
        if spread is not rest and type(left) is not Expr:
            return add(add(whole, more), left // b)
    x, y = _cancel(rest, b) if type(b) is Expr else _reduce_by_constant(rest, b)
    if x is rest and y is b:
        return add(whole, _floordiv_atom(rest, b))
    return add(whole, floordiv(x, y))


def expand_mods(a: Size) -> Size:
    """`a` with each x % m, for a constant m, written as x - m*(x // m), within products too."""
    if type(a) is not Expr:
        return a
    terms, const = split_terms(a)
    if not any(_is_by_constant(part) for mono, _ in terms for part, _ in powers_of(mono)):
        return a
    total: Size = const
    for mono, coef in terms:
        product: Size = coef
        for part, power in powers_of(mono):
            whole: Size = part
            if _is_by_constant(part):
                x, m = part.args
                whole = sub(x, scale(floordiv(x, m), m))
            for _ in range(power):
                product = mul(product, whole)
        total = add(total, product)
    return total


def _is_by_constant(part: Expr) -> bool:
    return part.kind == "mod" and type(part.args[1]) is int


def _reduce_by_constant(a: Expr, b: int) -> tuple[Size, int]:
    terms, const = split_terms(a)
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

    (q*b + r) % b == r % b;  (g*x) % (g*y) == g*(x % y);  a % -n == -(-a % n);
    (g*x + c) % (g*m) == g*((x + c//g) % m) + c % g for constants g > 0, m > 0, c;
    (a + k*(x % m)) % b == (a + k*x) % b where b divides k*m: (7 - x % 7) % 7 == -x % 7.
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
    if type(rest) is not Expr:
        return mod(rest, b)
    x, y = _cancel(rest, b)
    if x is not rest:
        return mul(quotient(rest, x), mod(x, y))
    if rest.kind == "mod" and rest.args[1] is b:
        return rest
    return atom("mod", int, rest, b)


def _mod_constant(a: Expr, b: int) -> Size:
    if b == 1:
        return 0
    terms, const = split_terms(a)
    for mono, coef in terms:
        if _is_by_constant(mono) and coef * mono.args[1] % b == 0:
            return mod(add(a, scale(sub(mono.args[0], mono), coef)), b)
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


def rshift(a: Size, b: Size) -> Size:
    """a >> b; by a constant it is a floor division."""
    if type(b) is not Expr:
        return floordiv(a, 1 << b)
    return 0 if a == 0 else atom("rshift", int, a, b)
