"""Deciding conditions from what is known.

`Prover.decide` answers True or False only with a proof, else None. Integers are decided by showing
that a polynomial is never negative: by intervals first, then by the relaxations below, each of which
replaces the polynomial by a simpler one that is nowhere larger. Depth is bounded, so an answer comes
quickly, and None is always allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from graphport.symbolic import integers, logic, ranges
from graphport.symbolic.facts import Facts
from graphport.symbolic.integers import powers_of, split
from graphport.symbolic.nodes import Expr, Size, Truth, symbols
from graphport.symbolic.ranges import FULL, INTERVALS, TRUTH, Range, inf

_DEPTH = 4
# Sums beyond this are only looked at with intervals.
_MAX_TERMS = 24


class Prover:
    """Answers from `facts`. Proven answers are kept for good, unknown ones until facts change."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._proven: dict[Expr, bool] = {}
        self._unknown: set[Expr] = set()
        self._ranges: dict[Expr, Range] = {}
        self._nonneg: dict[tuple[Expr, int], bool] = {}
        self._generation = 0

    def _refresh(self) -> None:
        if self._generation != self.facts.generation:
            self._generation = self.facts.generation
            self._unknown.clear()
            self._ranges.clear()
            self._nonneg.clear()

    def decide(self, cond: Truth) -> bool | None:
        """True or False if proven, else None."""
        if type(cond) is not Expr:
            return bool(cond)
        known = self._proven.get(cond)
        if known is not None:
            return known
        self._refresh()
        if cond in self._unknown:
            return None
        answer = self._decide(self.facts.simplify(cond))
        if answer is None:
            self._unknown.add(cond)
        else:
            self._proven[cond] = answer
        return answer

    def _decide(self, cond: Truth) -> bool | None:
        if type(cond) is not Expr:
            return bool(cond)
        known = self.facts.truths.get(cond)
        if known is not None:
            return known
        kind = cond.kind
        if kind == "ge0":
            return self._decide_nonneg(cond.args[0])
        if kind == "eq0":
            return self._decide_zero(cond.args[0])
        if kind == "not":
            inner = self.decide(cond.args[0])
            return None if inner is None else not inner
        if kind in ("and", "or"):
            return self._decide_connective(cond, absorbing=kind == "or")
        if kind in ("feq", "flt", "fle"):
            return self._decide_float(cond)
        return None

    def _decide_connective(self, cond: Expr, *, absorbing: bool) -> bool | None:
        answers = [self.decide(part) for part in cond.args]
        if absorbing in answers:
            return absorbing
        return None if None in answers else not absorbing

    def _decide_nonneg(self, e: Expr) -> bool | None:
        if self.nonneg(e):
            return True
        return False if self.nonneg(integers.sub(-1, e)) else None

    def _decide_zero(self, e: Expr) -> bool | None:
        if e in self.facts.nonzero:
            return False
        r = self.range(e)
        if 0 not in r:
            return False
        if r.lower == r.upper == 0 or e in self.facts.zero:
            return True
        above, below = self.nonneg(e), self.nonneg(integers.neg(e))
        if above and below:
            return True
        if not below and self.nonneg(integers.sub(e, 1)):
            return False
        if not above and self.nonneg(integers.sub(-1, e)):
            return False
        return self._zero_by_parts(e)

    def _zero_by_parts(self, e: Expr) -> bool | None:
        """A product is zero where a factor is, and never where all are not; so is a multiple."""
        terms, const = split(e)
        if e.factors:
            answers = [self.decide(logic.eq0(factor)) for factor in e.factors]
            if all(answer is False for answer in answers):
                return False
            if True in answers:
                return True
        if not const:
            shared = integers.common_factor(mono for mono, _ in terms)
            if shared is not None and shared is not e:
                rest = integers.divide_exactly(e, shared)
                answers = [self.decide(logic.eq0(part)) for part, _ in powers_of(shared)]
                answers.append(self.decide(logic.eq0(rest)))  # type: ignore[arg-type]
                if True in answers:
                    return True
                return False if all(answer is False for answer in answers) else None
        return None

    def _decide_float(self, cond: Expr) -> bool | None:
        # A float symbol may be NaN, about which ranges say nothing.
        if any(s.type is float for s in symbols(cond)):
            return None
        a, b = (self.range(part) for part in cond.args)
        if FULL in (a, b):
            return None
        if cond.kind == "feq":
            return False if a.upper < b.lower or b.upper < a.lower else None
        strict = cond.kind == "flt"
        if a.upper < b.lower or (not strict and a.upper <= b.lower):
            return True
        return False if b.upper < a.lower or (strict and b.upper <= a.lower) else None

    # Ranges

    def range(self, e: Any) -> Range:
        """The interval of `e`, by interval arithmetic over what is known of its parts."""
        if type(e) is not Expr:
            return ranges.of_constant(e)
        self._refresh()
        known = self._ranges.get(e)
        if known is None:
            simple = self.facts.simplify(e)
            known = self._range(simple) if simple is e else self.range(simple) & self.facts.bound(e)
            self._ranges[e] = known
        return known

    def _range(self, e: Expr) -> Range:
        bound = self.facts.bound(e)
        kind = e.kind
        if kind == "symbol":
            return bound
        if e.type is bool:
            return TRUTH
        if kind == "add":
            r = ranges.linear(((self.range(mono), coef) for mono, coef in e.args), e.const)
            return self._sharpen(e, r)
        if kind == "mul":
            r = ranges.monomial((self.range(part), power) for part, power in e.args)
            return r & bound
        return INTERVALS[kind](*[self.range(part) for part in e.args]) & bound

    def _sharpen(self, e: Expr, r: Range) -> Range:
        """Also look at the sum as a product of what is common, and at stored inequalities."""
        if e.factors and not e.const:
            whole = ranges.of_constant(1)
            for factor in e.factors:
                whole = ranges.mul(whole, self.range(factor))
            # `factors` is exact only up to a positive constant: its sign counts, not its size.
            if whole.lower >= 0:
                r = r & Range(0, inf)
        terms, const = split(e)
        if len(terms) > 1:
            shared = integers.common_factor(mono for mono, _ in terms)
            if shared is not None:
                rest = integers.divide_exactly(integers.sub(e, const), shared)
                inner = ranges.mul(self.range(shared), self.range(rest))
                r = r & ranges.add(inner, ranges.of_constant(const))
        return r

    # Never negative

    def nonneg(self, e: Size, depth: int = _DEPTH) -> bool:
        """Whether e >= 0 is proven."""
        if type(e) is not Expr:
            return e >= 0
        if e.span.lower >= 0:
            return True
        self._refresh()
        key = (e, depth)
        known = self._nonneg.get(key)
        if known is None:
            self._nonneg[key] = False  # cuts cycles
            known = self._nonneg[key] = self._prove_nonneg(e, depth)
        return known

    def _prove_nonneg(self, e: Expr, depth: int) -> bool:
        r = self.range(e)
        if r.lower >= 0:
            return True
        if r.upper < 0 or depth == 0:
            return False
        terms, const = split(e)
        if len(terms) > _MAX_TERMS:
            return False
        if e.factors and all(self.nonneg(factor, depth - 1) for factor in e.factors):
            return True
        if not const and len(terms) > 1:
            shared = integers.common_factor(mono for mono, _ in terms)
            if shared is not None and self.nonneg(shared, depth - 1):
                rest = integers.divide_exactly(e, shared)
                if rest is not None and self.nonneg(rest, depth - 1):
                    return True
        for smaller in self._relaxations(e):
            if all(self.nonneg(part, depth - 1) for part in smaller):
                return True
        return self._from_facts(e, depth)

    def _relaxations(self, e: Expr) -> Iterator[list[Size]]:
        """Lists of expressions, such that e >= 0 wherever all of a list are."""
        for mono, coef in split(e)[0]:
            for part, power in powers_of(mono):
                relax = _RELAX.get(part.kind)
                if relax is None or power != 1:
                    continue
                others = integers.divide_exactly(mono, part)
                if others is None or (others != 1 and not self.nonneg(others, 0)):
                    continue
                rest = integers.sub(e, integers.scale(mono, coef))
                weight = integers.scale(others, coef)
                yield from relax(self, part, rest, weight, coef > 0)

    def _from_facts(self, e: Expr, depth: int) -> bool:
        """e >= 0 follows from f >= 0 when p*e - q*f >= 0 for some p, q > 0."""
        mine = dict(split(e)[0])
        for f, sign in self._inequalities():
            for mono, coef in split(f)[0]:
                wanted, have = mine.get(mono, 0), coef * sign
                if wanted == 0 or (wanted > 0) != (have > 0):
                    continue
                g = math.gcd(wanted, have)
                rest = integers.sub(
                    integers.scale(e, abs(have) // g), integers.scale(f, sign * (abs(wanted) // g))
                )
                if self.nonneg(rest, depth - 2 if depth > 1 else 0):
                    return True
        return False

    def _inequalities(self) -> Iterator[tuple[Expr, int]]:
        for f in self.facts.nonneg:
            yield f, 1
        for f in self.facts.zero:
            yield f, 1
            yield f, -1


def _case(rest: Size, weight: Size, value: Size) -> Size:
    return integers.add(rest, integers.mul(weight, value))


def _relax_min(
    p: Prover, part: Expr, rest: Size, weight: Size, positive: bool
) -> Iterator[list[Size]]:
    """min(x, y) is one of x, y, and at most each."""
    cases = [_case(rest, weight, a) for a in part.args]
    if positive:
        yield cases
    else:
        yield from ([case] for case in cases)


def _relax_max(
    p: Prover, part: Expr, rest: Size, weight: Size, positive: bool
) -> Iterator[list[Size]]:
    """max(x, y) is one of x, y, and at least each."""
    yield from _relax_min(p, part, rest, weight, not positive)


def _relax_floordiv(
    p: Prover, part: Expr, rest: Size, weight: Size, positive: bool
) -> Iterator[list[Size]]:
    """c * (a // c) == a - a % c; and 0 <= a // n <= a where a >= 0 and n >= 1."""
    a, b = part.args
    if type(b) is int:
        remainder = p.range(integers.mod(a, b))
        worst = remainder.upper if positive else remainder.lower
        yield [_case(integers.scale(rest, b), weight, integers.sub(a, int(worst)))]
        return
    if not (p.nonneg(a, 1) and p.nonneg(integers.sub(b, 1), 1)):
        return
    if positive:
        yield [rest]
    else:
        yield [_case(rest, weight, a)]
    if type(weight) is Expr:
        ratio = integers.divide_exactly(weight, b)
        if ratio is not None:
            worst_case = integers.sub(a, integers.sub(b, 1)) if positive else a
            yield [_case(rest, ratio, worst_case)]


def _relax_mod(
    p: Prover, part: Expr, rest: Size, weight: Size, positive: bool
) -> Iterator[list[Size]]:
    """0 <= a % n <= n - 1 and, for a >= 0, a % n <= a."""
    a, n = part.args
    if not p.nonneg(integers.sub(n, 1), 1):
        return
    if positive:
        yield [rest]
        yield [_case(rest, weight, integers.sub(a, integers.mul(n, integers.floordiv(a, n))))]
        return
    yield [_case(rest, weight, integers.sub(n, 1))]
    if p.nonneg(a, 1):
        yield [_case(rest, weight, a)]
    yield [_case(rest, weight, integers.sub(a, integers.mul(n, integers.floordiv(a, n))))]


def _relax_ite(
    p: Prover, part: Expr, rest: Size, weight: Size, positive: bool
) -> Iterator[list[Size]]:
    """One side or the other."""
    yield [_case(rest, weight, side) for side in part.args[1:]]


_RELAX = {
    "min": _relax_min,
    "max": _relax_max,
    "floordiv": _relax_floordiv,
    "mod": _relax_mod,
    "ite": _relax_ite,
}
