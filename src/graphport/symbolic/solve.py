"""Solves all facts about a set of symbols together.

A dim can be `factor*root + offset` of a root within a range, or a constant. The solver keeps for
every symbol the form that the facts leave it: at first each is its own root, and every equality,
congruence or inequality narrows forms and ranges. What has no such form (a product of
dims, a sum of two) is left over, and may be solvable once other facts are in, or once some symbols
are fixed at their example values.

    >>> from graphport.symbolic import Scope, eq, mod
    >>> scope = Scope()
    >>> x, y = scope.symbol("x", hint=11), scope.symbol("y", hint=12)
    >>> solver = Solver(scope, [x, y])
    >>> solver.solve([eq(x + 1, y), eq(mod(y, 3), 0)])
    []
    >>> solver.forms[x], solver.forms[y]
    (3*_x - 1, 3*_x)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphport.symbolic.evaluation import substitute
from graphport.symbolic.expr import eq, ge, le, mod
from graphport.symbolic.facts import SymbolIndex, express_range, occurs
from graphport.symbolic.integers import split_terms
from graphport.symbolic.nodes import Expr, Truth, Value, operands, symbols
from graphport.symbolic.ranges import Range, inf
from graphport.symbolic.scope import Scope


class Solver:
    """Forms and ranges of symbols; earlier ones stay roots in preference to later ones.

    A symbol among `free` (they come last) takes any form that follows, but never a new root.
    """

    def __init__(self, scope: Scope, roots: Sequence[Expr], free: Collection[Expr] = ()) -> None:
        self.forms: dict[Expr, Value] = {s: s for s in roots}
        self.bounds: dict[Expr, Range] = {s: scope.declared(s) for s in roots}
        self._mentions = SymbolIndex()
        for s in roots:
            self._mentions.add(s, s)
        self._scope = scope
        self._rank = {s: i for i, s in enumerate(roots)}
        self._free = frozenset(free)
        # Ranges of free symbols that took a form which no range of a root can tell.
        self.unplaced: dict[Expr, Range] = {}
        # Roots whose range has come down to one value.
        self._single: list[Expr] = []

    def solve(self, conds: Iterable[Truth]) -> list[Truth]:
        """Take conditions in; those that no form can express are left over."""
        left = list(conds)
        count = -1
        while len(left) + len(self.unplaced) != count:
            count = len(left) + len(self.unplaced)
            left = [cond for cond in left if not self._take(self.substitute(cond))]
            for s, limits in list(self.unplaced.items()):
                # One end at a time: the form may change in between.
                ends = Range(limits.lower, inf), Range(-inf, limits.upper)
                if all(self._take(c) for end in ends for c in self._express_range(s, end)):
                    del self.unplaced[s]
        return left

    def unplaced_ranges(self) -> list[Truth]:
        """What the ranges say that no range of a root can tell."""
        return [c for s, limits in self.unplaced.items() for c in self._express_range(s, limits)]

    def _express_range(self, s: Expr, limits: Range) -> Iterator[Truth]:
        form = self.forms[s]
        assert not isinstance(form, float)
        return express_range(form, limits)

    def substitute(self, cond: Truth) -> Truth:
        """A condition in terms of the present roots."""
        return substitute(cond, self.forms)

    def specialise_for(self, cond: Truth) -> None:
        """Fix what must be fixed for a condition that was left over, and no more than that.

        A quotient by a constant becomes linear once the remainder is that of the example. A symbol
        in a divisor is fixed at its example value. Every other condition fixes all its symbols.
        """
        cond = self.substitute(cond)
        if type(cond) is not Expr:
            return
        divisions = [e for e in _walk_nodes(cond) if e.kind in ("mod", "floordiv")]
        for e in divisions:
            if type(e.args[1]) is int:
                rest = mod(*e.args)
                if self._take(eq(rest, self._scope.hint(rest))):
                    return
        divisors = [s for e in divisions if type(e.args[1]) is Expr for s in symbols(e.args[1])]
        for s in divisors or symbols(cond):
            if s in self.bounds:
                self._replace(s, self._example(s))

    def settle(self) -> None:
        """Let a symbol that is a new root and an offset be the root in its place."""
        for s, form in list(self.forms.items()):
            terms, offset = split_terms(form) if type(form) is Expr else ((), 0)
            if len(terms) == 1 and terms[0][1] == 1 and terms[0][0].kind == "symbol":
                root = terms[0][0]
                if root not in self.forms and self.forms[s] is form:
                    self.bounds[s] = self._scope.declared(s)
                    self._replace(root, s - offset)

    # Conditions

    def _take(self, cond: Truth) -> bool:
        """Tell a condition, and what follows from ranges of one value only then: not in its midst,
        where a root is still being put to use."""
        done = self._tell(cond)
        while self._single:
            root = self._single.pop()
            if root in self.bounds:
                self._replace(root, int(self.bounds[root].lower))
        return done

    def _tell(self, cond: Truth) -> bool:
        if type(cond) is not Expr:
            return bool(cond)
        if cond.kind == "and":
            return self._tell_each(cond.args)
        if cond.kind == "ge0":
            return self._tell_nonneg(cond.args[0])
        if cond.kind == "feq":
            return self._tell_same(*cond.args)
        return cond.kind == "eq0" and self._tell_zero(cond.args[0])

    def _tell_each(self, conds: Iterable[Truth]) -> bool:
        """Every one, also after one that has no form."""
        absorbed = [self._tell(self.substitute(cond)) for cond in conds]
        return all(absorbed)

    def _tell_nonneg(self, e: Expr) -> bool:
        terms, const = split_terms(e)
        if len(terms) != 1 or terms[0][0].kind != "symbol":
            return False
        symbol, factor = terms[0]
        if factor > 0:
            self._limit(symbol, Range(-(const // factor), inf))
        else:
            self._limit(symbol, Range(-inf, const // -factor))
        return True

    def _tell_same(self, a: Value, b: Value) -> bool:
        """A float symbol that is a number."""
        if type(a) is not Expr:
            a, b = b, a
        if type(a) is Expr and a.kind == "symbol" and type(b) is not Expr:
            self._replace(a, b)
            return True
        return False

    def _limit(self, root: Expr, new: Range) -> None:
        limits = self.bounds[root] & new
        self.bounds[root] = limits
        if limits.is_single:
            self._single.append(root)

    def _tell_zero(self, e: Expr) -> bool:
        terms, const = split_terms(e)
        if all(mono.kind == "symbol" for mono, _ in terms):
            if len(terms) == 1:
                self._replace(terms[0][0], -const // terms[0][1])
                return True
            if len(terms) == 2 and self._relate(*terms[0], *terms[1], const):
                return True
        elif len(terms) == 1 and terms[0][1] == 1:
            if terms[0][0].kind == "mod" and self._congruent(terms[0][0], -const):
                return True
            if terms[0][0].kind == "floordiv" and self._quotient(terms[0][0], -const):
                return True
        return self._solve_for_free(e)

    def _solve_for_free(self, e: Expr) -> bool:
        """A free symbol is whatever the others make it."""
        terms, _ = split_terms(e)
        for mono, factor in sorted(terms, key=lambda t: -self._rank.get(t[0], -1)):
            alone = not any(occurs(mono, other) for other, _ in terms if other is not mono)
            if mono in self._free and abs(factor) == 1 and alone:
                rest = e - mono if factor == 1 else e + mono
                self._replace(mono, rest * -factor)
                return True
        return False

    def _relate(self, x: Expr, a: int, y: Expr, b: int, c: int) -> bool:
        """a*x + b*y + c == 0, where both grow together."""
        if a * b > 0:
            return False
        if self._rank[x] > self._rank[y]:
            x, a, y, b = y, b, x, a
        alike = (x in self._free) == (y in self._free)
        if abs(b) == 1:
            self._replace(y, x * abs(a) - c * b)
        elif abs(a) == 1 and alike:
            self._replace(x, y * abs(b) - c * a)
        elif x in self._free:
            return False
        else:
            # x = |b|*t + x0, y = |a|*t + y0
            x0 = _centre_remainder(-c * pow(a, -1, abs(b)) % abs(b), abs(b))
            root = self._new_root(x, abs(b), x0)
            self._replace(x, root * abs(b) + x0)
            self._replace(y, root * abs(a) - (a * x0 + c) // b)
        return True

    def _congruent(self, e: Expr, rest: int) -> bool:
        """(a*x + b) % m == rest"""
        inner, m = e.args
        terms, b = split_terms(inner)
        if type(m) is not int or len(terms) != 1 or terms[0][0].kind != "symbol":
            return False
        x, a = terms[0]
        if x in self._free:
            return False
        g = math.gcd(a, m)
        m //= g
        if m > 1:
            first = _centre_remainder((rest - b) // g * pow(a // g, -1, m) % m, m)
            self._replace(x, self._new_root(x, m, first) * m + first)
        return True

    def _quotient(self, e: Expr, value: int) -> bool:
        """x // c == value is a range of x."""
        x, c = e.args
        if type(c) is not int or c < 1:
            return False
        bounds = ge(x, c * value), le(x, c * value + c - 1)
        return self._tell_each(bounds)

    # Roots

    def _example(self, s: Expr) -> int:
        hint = self._scope.hint(s)
        assert hint is not None
        return int(hint)

    def _new_root(self, x: Expr, factor: int, offset: int) -> Expr:
        """The root of which x is to be factor*root + offset."""
        name = f"_{x.name}"
        while name in self._scope.arena.symbols:
            name = f"_{name}"
        hint = (self._example(x) - offset) // factor
        root = self._scope.symbol(name, hint=hint, lower=-inf)
        self._rank[root] = self._rank[x]
        self.bounds[root] = Range(-inf, inf)
        return root

    def _replace(self, root: Expr, value: Value) -> None:
        """From now on `root` is `value`, in every form; its range is handed on."""
        limits = self.bounds.pop(root)
        for s in self._mentions.of(root):
            form = self.forms[s] = substitute(self.forms[s], {root: value})
            self._mentions.add(s, form)
        if type(value) is not Expr:
            return
        terms, offset = split_terms(value)
        if len(terms) == 1 and terms[0][0].kind == "symbol" and terms[0][1] > 0:
            self._limit(terms[0][0], _divide_range(limits, terms[0][1], offset))
        else:
            self.unplaced[root] = limits


def _centre_remainder(value: int, modulus: int) -> int:
    """The remainder with the smallest absolute value."""
    return value - modulus if 2 * value > modulus else value


def _divide_range(r: Range, factor: int, offset: int) -> Range:
    """The values of x for which factor*x + offset lies in r."""
    lower = r.lower if r.lower == -inf else -((offset - r.lower) // factor)
    upper = r.upper if r.upper == inf else (r.upper - offset) // factor
    return Range(lower, upper)


def _walk_nodes(e: Expr) -> Iterable[Expr]:
    for x in operands(e):
        if type(x) is Expr:
            yield from _walk_nodes(x)
    yield e
