"""Integer arithmetic in canonical form.

Every integer expression is a polynomial with integer coefficients over atoms, fully expanded, terms
in a fixed order. `division` continues this module.

Takes ints and integer expressions only; `expr` converts what users pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    record_factors,
)

# A power of a sum beyond this stays opaque: expansion would cost more than it can prove.
_MAX_POWER = 6
_MAX_TERMS = 256
# Products of sums are written out, and the sums may come from a file.
_MAX_PRODUCTS = 4096


def split_terms(e: Size) -> tuple[tuple[tuple[Expr, int], ...], int]:
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
    (left, c), (right, d) = split_terms(a), split_terms(b)
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
    terms, const = split_terms(a)
    result = polynomial(a.arena, {mono: coef * k for mono, coef in terms}, const * k)
    if k > 0 and a.factors:
        record_factors(result, a.factors)
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
            parts, c = split_terms(value)
            const += c
            for mono, coef in parts:
                terms[mono] = terms.get(mono, 0) + coef
    return polynomial(arena_of(*values), terms, const) if terms else const


def _multiply_monomials(arena: Arena, a: Expr, b: Expr) -> Expr:
    """The product of two monomials."""
    powers = dict(powers_of(a))
    for part, power in powers_of(b):
        powers[part] = powers.get(part, 0) + power
    return monomial(arena, tuple(sorted(powers.items(), key=lambda p: p[0].key)))


def mul(a: Size, b: Size) -> Size:
    """a * b, expanded."""
    if type(a) is not Expr:
        return scale(b, a) if type(b) is Expr else a * b
    if type(b) is not Expr:
        return scale(a, b)
    arena = arena_of(a, b)
    (left, c), (right, d) = split_terms(a), split_terms(b)
    if len(left) * len(right) > _MAX_PRODUCTS:
        raise OverflowError("a product of sums has too many terms to be written out")
    terms: dict[Expr, int] = {}
    for m, x in left:
        for n, y in right:
            both = _multiply_monomials(arena, m, n)
            terms[both] = terms.get(both, 0) + x * y
        if d:
            terms[m] = terms.get(m, 0) + x * d
    if c:
        for n, y in right:
            terms[n] = terms.get(n, 0) + c * y
    result = polynomial(arena, terms, c * d)
    record_factors(result, (*(a.factors or (a,)), *(b.factors or (b,))))
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


def extremum(kind: str, values: Sequence[Size]) -> Size:
    """min or max: flattened, without duplicates, sorted, with at most one constant."""
    best = min if kind == "min" else max
    if all(type(value) is not Expr for value in values):
        return best(values)
    parts: dict[Expr, None] = {}
    const: int | None = None
    for value in values:
        for part in value.args if type(value) is Expr and value.kind == kind else (value,):
            if type(part) is Expr:
                parts[part] = None
            else:
                const = part if const is None else best(const, part)
    kept: list[Size] = []
    for part in parts:
        if not any(o is not part and _is_dominated_by(kind, o, part) for o in parts):
            kept.append(part)
    if const is not None and not any(_is_dominated_by(kind, part, const) for part in kept):
        kept = [part for part in kept if not _is_dominated_by(kind, const, part)]
        kept.append(const)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=key_of)
    return atom(kind, int, *kept)


def _is_dominated_by(kind: str, a: Size, b: Size) -> bool:
    """a makes b superfluous in a min (a <= b) or max (a >= b), from declared signs alone."""
    return is_nonneg(sub(b, a) if kind == "min" else sub(a, b))


def min_(a: Size, b: Size) -> Size:
    return extremum("min", (a, b))


def max_(a: Size, b: Size) -> Size:
    return extremum("max", (a, b))


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
