"""Proves or refutes conditions from facts, by intervals and relaxations.

`Prover.decide` answers True or False only with a proof, else None. Integers are decided by showing
that a polynomial is never negative: by intervals first, then by relaxations, each of which replaces
the polynomial by simpler ones that bound it from below. Depth and total work are bounded, so an
answer comes quickly; None is always allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from graphport.symbolic import division, integers, logic, ranges
from graphport.symbolic.facts import Facts
from graphport.symbolic.integers import powers_of, split_terms
from graphport.symbolic.nodes import Expr, Size, Truth, symbols, walk_postorder
from graphport.symbolic.ranges import FULL, INTERVALS, TRUTH, Range, inf
from graphport.symbolic.witness import Witnesses

_DEPTH = 4
# Polynomials looked at for one question. What can be proven mostly is after ten or twenty.
_FUEL = 60
# Sums beyond this are only looked at with intervals.
_MAX_TERMS = 24


class Prover:
    """Answers from `facts`. Proven answers are kept for good, unknown ones until facts change.

    With `least`, answers hold if all symbols that are sizes (never negative) are at least that.
    """

    def __init__(self, facts: Facts, witnesses: Witnesses, least: int = 0) -> None:
        self.facts = facts
        self._witnesses = witnesses
        self._least = least
        self._proven: dict[Expr, bool] = {}
        self._unknown: set[Expr] = set()
        self._ranges: dict[Expr, Range] = {}
        self._nonneg: dict[tuple[Expr, int], bool] = {}
        self._generation = -1
        self._fuel = 0

    def _refresh(self) -> None:
        if self._generation != self.facts.generation:
            self._generation = self.facts.generation
            self._unknown.clear()
            self._ranges.clear()
            self._nonneg.clear()
            self._witnesses.refresh()
            if self._least:
                self._proven.clear()  # a size may have turned out to be small

    def checkpoint(self) -> Callable[[], None]:
        """What goes back to the answers that are proven now."""
        proven = self._proven.copy()

        def go_back() -> None:
            self._proven.clear()
            self._proven.update(proven)
            self._witnesses.forget()

        return go_back

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
        self._fuel = _FUEL
        return self._answer(cond)

    def _answer(self, cond: Truth) -> bool | None:
        if type(cond) is not Expr:
            return bool(cond)
        known = self._proven.get(cond)
        if known is not None or cond in self._unknown:
            return known
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
            inner = self._answer(cond.args[0])
            return None if inner is None else not inner
        if kind in ("and", "or"):
            return self._decide_connective(cond, absorbing=kind == "or")
        if kind in ("feq", "flt", "fle"):
            return self._decide_float(cond)
        return None

    def _decide_connective(self, cond: Expr, *, absorbing: bool) -> bool | None:
        answers = [self._answer(part) for part in cond.args]
        if absorbing in answers:
            return absorbing
        return None if None in answers else not absorbing

    def _decide_nonneg(self, e: Expr) -> bool | None:
        if self.bounded_below(e, _DEPTH):
            return True
        return False if self.bounded_below(integers.sub(-1, e), _DEPTH) else None

    def _decide_zero(self, e: Expr) -> bool | None:
        if e in self.facts.nonzero or 0 not in self.range(e):
            return False
        if e in self.facts.zero:
            return True
        answer = self._decide_product_zero(e)
        if answer is not None:
            return answer
        spread = division.expand_mods(e)
        if type(spread) is not Expr:
            return spread == 0
        opposite = integers.neg(e)
        if self.bounded_below(e, _DEPTH):
            if self.bounded_below(opposite, _DEPTH):
                return True
            return False if self.bounded_below(integers.sub(e, 1), _DEPTH) else None
        return False if self.bounded_below(integers.sub(opposite, 1), _DEPTH) else None

    def _decide_product_zero(self, e: Expr) -> bool | None:
        """A product is zero where one of its factors is, and only there."""
        terms, const = split_terms(e)
        factors = list(e.factors or ())
        shared = None if const else division.common_factor(mono for mono, _ in terms)
        if shared is not None and shared is not e:
            factors = [part for part, _ in powers_of(shared)]
            rest = division.quotient(e, shared)
            if type(rest) is Expr:
                factors.append(rest)
        if not factors or e in factors:
            return None
        answers = [self._answer(logic.eq0(factor)) for factor in factors]
        if True in answers:
            return True
        return None if None in answers else False

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
            return ranges.constant_range(e)
        self._refresh()
        known = self._ranges.get(e)
        if known is None:
            for part in walk_postorder(e, self._ranges.__contains__):
                self.range(part)
            simple = self.facts.simplify(e)
            known = self._range(simple) if simple is e else self.range(simple) & self.facts.bound(e)
            self._ranges[e] = known
        return known

    def _range(self, e: Expr) -> Range:
        kind = e.kind
        if e.type is bool:
            return TRUTH
        if kind == "symbol":
            r = self.facts.bound(e)
            # Without the upper end: a size in [1, 2] that is at least 2 is no longer a size in
            # general, but one number.
            return Range(self._least, inf) if 0 <= r.lower < self._least <= r.upper else r
        if kind == "add":
            r = ranges.linear(((self.range(mono), coef) for mono, coef in e.args), e.const)
            return r & self._range_as_product(e)
        if kind == "mul":
            r = ranges.monomial((self.range(part), power) for part, power in e.args)
        else:
            r = INTERVALS[kind](*[self.range(part) for part in e.args])
        return r & self.facts.bound(e)

    def _range_as_product(self, e: Expr) -> Range:
        """The interval of a sum seen as the product it was built as, or of what its terms share."""
        r = FULL
        known = e.arena.products.get(e.args)
        if known is not None and known.factors:
            whole = ranges.monomial((self.range(factor), 1) for factor in known.factors)
            # The product counts up to a positive constant, which moves bounds away from zero.
            offset = e.const - known.const
            r = Range(
                whole.lower + offset if whole.lower >= 0 else -inf,
                whole.upper + offset if whole.upper <= 0 else inf,
            )
        if len(e.args) > 1:
            shared = division.common_factor(mono for mono, _ in e.args)
            if shared is not None:
                rest = division.quotient(integers.sub(e, e.const), shared)
                inner = ranges.mul(self.range(shared), self.range(rest))
                r = r & ranges.add(inner, ranges.constant_range(e.const))
        return r

    # Never negative

    def nonneg(self, e: Size) -> bool:
        """Whether e >= 0 is proven."""
        self._fuel = _FUEL
        return self.bounded_below(e, _DEPTH)

    def bounded_below(self, e: Size, depth: int) -> bool:
        """Whether e >= 0 can be proven in `depth` steps."""
        if type(e) is not Expr:
            return e >= 0
        if e.span.lower >= 0:
            return True
        self._refresh()
        key = (e, depth)
        known = self._nonneg.get(key)
        if known is None and self._witnesses.refute(e):
            known = self._nonneg[key] = False
        if known is None:
            self._nonneg[key] = False  # a proof must not rest on itself
            known = self._nonneg[key] = self._prove_nonneg(e, depth)
        return known

    def _prove_nonneg(self, e: Expr, depth: int) -> bool:
        r = self.range(e)
        if r.lower >= 0:
            return True
        self._fuel -= 1
        if r.upper < 0 or depth <= 0 or self._fuel < 0 or len(split_terms(e)[0]) > _MAX_TERMS:
            return False
        if e.factors and all(self.bounded_below(f, depth - 1) for f in e.factors):
            return True
        return (
            self._from_shared_factor(e, depth)
            or self._from_relaxations(e, depth)
            or self._from_facts(e, depth)
        )

    def _from_shared_factor(self, e: Expr, depth: int) -> bool:
        terms, const = split_terms(e)
        if const or len(terms) < 2:
            return False
        shared = division.common_factor(mono for mono, _ in terms)
        if shared is None or not self.bounded_below(shared, depth - 1):
            return False
        return self.bounded_below(division.quotient(e, shared), depth - 1)

    def _from_relaxations(self, e: Expr, depth: int) -> bool:
        for mono, coef in split_terms(e)[0]:
            for part, power in powers_of(mono):
                relax = RELAXATIONS.get(part.kind)
                if relax is None or power != 1:
                    continue
                others = division.quotient(mono, part)
                if not self.bounded_below(others, 0):
                    continue
                rest = integers.sub(e, integers.scale(mono, coef))
                for cases in relax(self, part, rest, integers.scale(others, coef), coef > 0):
                    if all(self.bounded_below(case, depth - 1) for case in cases):
                        return True
        return False

    def _from_facts(self, e: Expr, depth: int) -> bool:
        """e >= 0 follows from f >= 0 when p*e - q*f >= 0 for some p, q > 0."""
        mine = dict(split_terms(e)[0])
        for f, sign in self._inequalities():
            for mono, coef in split_terms(f)[0]:
                wanted, have = mine.get(mono, 0), coef * sign
                if wanted * have <= 0:
                    continue
                g = math.gcd(wanted, have)
                p, q = abs(have) // g, abs(wanted) // g
                rest = integers.sub(integers.scale(e, p), integers.scale(f, sign * q))
                if self.bounded_below(rest, depth - 2):
                    return True
        return False

    def _inequalities(self) -> Iterator[tuple[Expr, int]]:
        """(f, sign) with sign * f >= 0."""
        for f in self.facts.nonneg:
            yield f, 1
        for f in self.facts.zero:
            yield f, 1
            yield f, -1


# Relaxations: lower bounds of a sum by way of what is known of one of its atoms.
#
# A relaxation looks at `rest + weight * part`, where `part` is an opaque atom and `weight` is never
# negative (`positive`) or never positive, and yields lists of expressions: if all of a list are
# never negative, neither is the sum. Each is one fact about Python's integers, stated in the
# docstring.

Cases: TypeAlias = Iterator[list[Size]]

# Side conditions ("n is at least 1") are proven with this little effort.
_SIDE_DEPTH = 1


def _add_weighted(rest: Size, weight: Size, value: Size) -> Size:
    return integers.add(rest, integers.mul(weight, value))


def relax_minimum(prover: object, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """min(x, y) is one of x and y, and at most either."""
    cases = [_add_weighted(rest, weight, a) for a in part.args]
    if positive:
        yield cases
    else:
        yield from ([case] for case in cases)


def relax_maximum(prover: object, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """max(x, y) is one of x and y, and at least either."""
    yield from relax_minimum(prover, part, rest, weight, not positive)


def relax_quotient(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """n * (a // n) == a - a % n; and 0 <= a // n <= a where a >= 0 and n >= 1."""
    a, n = part.args
    if type(n) is int:
        remainder = prover.range(division.mod(a, n))
        most = remainder.upper if positive else remainder.lower
        yield [_add_weighted(integers.scale(rest, n), weight, integers.sub(a, int(most)))]
        return
    if not prover.bounded_below(integers.sub(n, 1), _SIDE_DEPTH):
        return
    ratio = division.divide_exactly(weight, n)
    if ratio is not None:
        yield [_add_weighted(rest, ratio, integers.sub(a, integers.sub(n, 1)) if positive else a)]
    if prover.bounded_below(a, _SIDE_DEPTH):
        yield [rest if positive else _add_weighted(rest, weight, a)]


def relax_remainder(prover: Any, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """a % n == a - n * (a // n); 0 <= a % n <= n - 1 where n >= 1, and <= a where a >= 0."""
    a, n = part.args
    if not prover.bounded_below(integers.sub(n, 1), _SIDE_DEPTH):
        return
    if positive:
        yield [rest]
    else:
        yield [_add_weighted(rest, weight, integers.sub(n, 1))]
        if prover.bounded_below(a, _SIDE_DEPTH):
            yield [_add_weighted(rest, weight, a)]
    yield [_add_weighted(rest, weight, integers.sub(a, integers.mul(n, division.floordiv(a, n))))]


def relax_absolute(prover: object, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """abs(x) is one of x and -x, and at least either."""
    (a,) = part.args
    cases = [_add_weighted(rest, weight, a), _add_weighted(rest, weight, integers.neg(a))]
    if positive:
        yield from ([case] for case in cases)
    else:
        yield cases


def relax_ite(prover: object, part: Expr, rest: Size, weight: Size, positive: bool) -> Cases:
    """x if c else y is one of x and y."""
    yield [_add_weighted(rest, weight, side) for side in part.args[1:]]


RELAXATIONS: dict[str, Callable[[Any, Expr, Size, Size, bool], Cases]] = {
    "min": relax_minimum,
    "max": relax_maximum,
    "floordiv": relax_quotient,
    "mod": relax_remainder,
    "abs": relax_absolute,
    "ite": relax_ite,
}
