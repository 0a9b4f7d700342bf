"""`Facts`: what is known of symbols: ranges, equalities, inequalities.

Knowledge only grows, except that a branch forgets what it learnt (`checkpoint`). Learning a
condition turns it into the strongest form that the rest can use:

* an equality that can be solved for a symbol (or for an opaque atom) becomes a rewrite, applied to
  everything from then on;
* an inequality about one atom tightens that atom's range, and what follows for its operands;
* any other inequality or equality is kept, and stated anew whenever a rewrite arrives;
* everything else is remembered as a truth of its own.

`generation` counts changes: whoever memoises an answer "not known" must forget it when the count
moves. Answers that were proven stay proven.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from graphport.symbolic import division, integers, logic
from graphport.symbolic.evaluation import rebuild
from graphport.symbolic.integers import powers_of, split_terms
from graphport.symbolic.nodes import Expr, Size, Truth, Value, is_nonneg, operands, symbols
from graphport.symbolic.ranges import Range, inf

# Rewrites never undo each other, so a fixed point comes early; the bound is a seat belt.
_MAX_ROUNDS = 8


class Contradiction(Exception):
    """A condition that what is already known rules out."""


class Facts:
    """Knowledge about the symbols of one scope."""

    def __init__(self) -> None:
        self.generation = 0
        # Ranges of atoms and monomials, declared and learnt.
        self.bounds: dict[Expr, Range] = {}
        # What an atom is equal to. No target occurs in any value.
        self.rewrites: dict[Expr, Size] = {}
        # e >= 0, e == 0 and e != 0 for what did not fit above.
        self.nonneg: dict[Expr, None] = {}
        self.zero: dict[Expr, None] = {}
        self.nonzero: dict[Expr, None] = {}
        self.truths: dict[Expr, bool] = {}
        # Keys of the five dicts above, by the symbols in them and in what they stand for.
        self._mentions = SymbolIndex()
        # Everything learnt, in order; `witness` checks its points against it.
        self.learnt: list[Expr] = []
        # Symbols without an example value.
        self.unbacked: set[Expr] = set()
        # The memo of simplify, emptied in place: the bridge reads it directly.
        self.simplified: dict[Expr, Any] = {}
        # Quotients x // c of which c is known to divide x.
        self._exact: set[Expr] = set()
        self._finish: Callable[[Expr], Size] | None = None

    def simplify(self, e: Any) -> Any:
        """`e` after all rewrites; canonical, so equal results are the same object."""
        if type(e) is not Expr:
            return e
        known = self.simplified.get(e)
        if known is None:
            known = self.simplified[e] = self._rewritten(e) if self.rewrites else e
        return known

    def _rewritten(self, e: Expr) -> object:
        result: Any = e
        try:
            for _ in range(_MAX_ROUNDS):
                again = rebuild(result, self.simplified, self._finish)
                if again is result:
                    break
                result = again
        except (ArithmeticError, ValueError):
            # A divisor turned out to be zero: where this is computed, Python raises.
            return e
        return result

    def _join_quotients(self, e: Expr) -> Size:
        """c*(x // c) is x where c is known to divide x."""
        result: Size = e
        for mono, coef in split_terms(e)[0]:
            for part, _ in powers_of(mono):
                if part not in self._exact:
                    continue
                x, c = part.args
                weight = integers.scale(division.quotient(mono, part), coef)
                ratio = division.divide_exactly(weight, c)
                if ratio is not None:
                    change = integers.sub(integers.mul(ratio, x), integers.scale(mono, coef))
                    result = integers.add(result, change)
                    break
        return result

    def bound(self, part: Expr) -> Range:
        """The range recorded for an atom or monomial, before any inference."""
        return self.bounds.get(part) or part.span

    def learn(self, cond: Truth) -> None:
        """Take `cond` as true. Raises Contradiction when it cannot be."""
        cond = self.simplify(cond)
        if type(cond) is not Expr:
            if not cond:
                raise Contradiction
            return
        if self.truths.get(cond) is True:
            return
        self._state(cond)
        if cond.kind == "and":
            for part in cond.args:
                self.learn(part)
        elif cond.kind == "ge0":
            self._learn_nonneg(cond.args[0])
        elif cond.kind == "eq0":
            self._learn_zero(cond.args[0])
        elif cond.kind == "not" and cond.args[0].kind == "eq0":
            self._learn_nonzero(cond.args[0].args[0])
        self.changed()

    def _state(self, cond: Expr) -> None:
        self.learnt.append(cond)
        self.truths[cond] = True
        opposite = logic.not_(cond)
        if type(opposite) is Expr:
            self.truths[opposite] = False

    def changed(self) -> None:
        """Memoised answers may be improved upon."""
        self.generation += 1
        self.simplified.clear()
        self.simplified.update(self.rewrites)

    def checkpoint(self) -> Callable[[], None]:
        """What goes back to what is known now; of symbols made since, to what they began with."""
        stores: tuple[Any, ...] = (
            self.bounds,
            self.rewrites,
            self.nonneg,
            self.zero,
            self.nonzero,
            self.truths,
            self._exact,
        )
        kept = [store.copy() for store in stores]
        learnt, finish = len(self.learnt), self._finish

        def go_back() -> None:
            made = {s: s.span for s in self.bounds if s.kind == "symbol" and s not in kept[0]}
            for store, before in zip(stores, kept, strict=True):
                store.clear()
                store.update(before)
            self.bounds.update(made)
            del self.learnt[learnt:]
            self._finish = finish
            self.changed()

        return go_back

    # Inequalities

    def _learn_nonneg(self, e: Expr) -> None:
        terms, const = split_terms(e)
        if len(terms) > 1:
            self._keep(self.nonneg, e)
            return
        mono, coef = terms[0]  # the coefficient is 1 or -1: ge0 divided by it
        self.tighten(mono, Range(-const, inf) if coef > 0 else Range(-inf, const))

    def tighten(self, part: Expr, new: Range) -> None:
        """Intersect the range of an atom or monomial, and pass it on to its operands."""
        old = self.bound(part)
        both = self._trim(part, old & new)
        if both == old:
            return
        if both.empty:
            raise Contradiction
        self.bounds[part] = both
        self._mentions.add(part, part)
        if both.is_single and part.type is int and part.kind != "mul":
            self._rewrite(part, int(both.lower))
        for cond in _infer_from_range(part, both):
            self.learn(cond)

    def _trim(self, part: Expr, r: Range) -> Range:
        """Cut ends of the range that are known not to be taken."""
        while abs(r.lower) != inf and integers.sub(part, int(r.lower)) in self.nonzero:
            r = Range(r.lower + 1, r.upper)
        while abs(r.upper) != inf and integers.sub(part, int(r.upper)) in self.nonzero:
            r = Range(r.lower, r.upper - 1)
        return r

    def _learn_nonzero(self, e: Expr) -> None:
        self._keep(self.nonzero, e)  # its first coefficient is positive: eq0 saw to it
        terms, _ = split_terms(e)
        if len(terms) == 1:
            self.tighten(terms[0][0], self.bound(terms[0][0]))

    # Equalities

    def _learn_zero(self, e: Expr) -> None:
        solution = self._solve(e)
        if solution is None:
            self._keep(self.zero, e)
        else:
            self._rewrite(*solution)

    def _solve(self, e: Expr) -> tuple[Expr, Size] | None:
        """Solve e == 0 for a term with coefficient 1 or -1 that occurs nowhere else in e.

        Symbols come first, data-dependent ones before others and newer before older, so that
        results are told in terms of the inputs that were named first. A symbol with an example
        value is never told in terms of one without.
        """
        terms, _ = split_terms(e)
        candidates = [
            (mono, coef)
            for mono, coef in terms
            if abs(coef) == 1
            and mono.kind != "mul"
            and not any(occurs(mono, other) for other, _ in terms if other is not mono)
        ]
        if not candidates:
            return None
        mono, coef = max(candidates, key=lambda term: self._rank(term[0]))
        value = integers.scale(integers.sub(e, integers.scale(mono, coef)), -coef)
        if mono.kind == "symbol":
            loses_hint = mono not in self.unbacked and not self.unbacked.isdisjoint(symbols(value))
            return None if loses_hint else (mono, value)
        # An opaque atom gives way only to something simpler, so that rewriting comes to an end.
        return (mono, value) if type(value) is not Expr or value.key < mono.key else None

    def _rank(self, mono: Expr) -> tuple[object, ...]:
        return mono.kind == "symbol", mono in self.unbacked, mono.index, mono.order

    def _rewrite(self, target: Expr, value: Size) -> None:
        """From now on `target` is `value`, everywhere."""
        if target in self.rewrites:
            return
        if target.kind == "mod" and value == 0:
            quotient = division.floordiv(*target.args)
            if type(quotient) is Expr and quotient.kind == "floordiv":
                self._exact.add(quotient)
                self._finish = self._join_quotients
        self.rewrites[target] = value
        self._mentions.add(target, target)
        self._mentions.add(target, value)
        self.changed()
        for key in self._mentions.of(target):
            if key is not target and key in self.rewrites:
                replaced = self.rewrites[key] = self.simplify(self.rewrites[key])
                self._mentions.add(key, replaced)
        self.changed()
        for cond in list(self._restatements(target)):
            self.learn(cond)

    def _restatements(self, target: Expr) -> Iterator[Truth]:
        """Facts about `target`, with it substituted; the old form is dropped."""
        affected = self._mentions.of(target)
        stores: tuple[tuple[dict[Expr, None], Callable[[Size], Truth]], ...] = (
            (self.nonneg, logic.ge0),
            (self.zero, logic.eq0),
            (self.nonzero, lambda e: logic.not_(logic.eq0(e))),
        )
        for store, make in stores:
            for e in affected:
                if e in store and (new := self.simplify(e)) is not e:
                    del store[e]
                    yield make(new)
        for part in affected:
            if part in self.bounds and occurs(target, part):
                new = self.simplify(part)
                if new is not part:
                    yield from express_range(new, self.bounds[part])
        for key in affected:
            # x // 2 == y, and x turns out to be z: then also z // 2 == y.
            if key is not target and key in self.rewrites and occurs(target, key):
                with contextlib.suppress(ArithmeticError):  # x // z, and z turns out to be 0
                    new = rebuild(key, {target: self.rewrites[target]})
                    yield logic.eq0(integers.sub(new, self.rewrites[key]))

    def _keep(self, store: dict[Expr, None], e: Expr) -> None:
        store[e] = None
        self._mentions.add(e, e)

    def declare(self, s: Expr, declared: Range) -> None:
        """A new symbol and its range."""
        self.bounds[s] = declared
        self._mentions.add(s, s)


def express_range(e: Size, r: Range) -> Iterator[Truth]:
    """The conditions that e lies in r."""
    if r.lower != -inf:
        yield logic.ge0(integers.sub(e, math.ceil(r.lower)))
    if r.upper != inf:
        yield logic.ge0(integers.sub(math.floor(r.upper), e))


def _infer_from_range(part: Expr, r: Range) -> Iterator[Truth]:
    """What the range of an operation says about its operands."""
    low, high = r.lower, r.upper
    if part.kind == "floordiv" and type(part.args[1]) is int:
        a, c = part.args
        yield from express_range(a, Range(low * c, high * c + c - 1))
    elif part.kind == "min":
        for a in part.args:
            yield from express_range(a, Range(low, inf))
    elif part.kind == "max":
        for a in part.args:
            yield from express_range(a, Range(-inf, high))
    elif part.kind == "mul" and low >= 1 and all(is_nonneg(a) for a, _ in part.args):
        for a, _ in part.args:
            yield logic.ge0(integers.sub(a, 1))


def occurs(part: Value, e: Value) -> bool:
    """Whether `part` is somewhere inside `e`."""
    if type(part) is Expr and part.kind == "symbol":
        return part in symbols(e)
    # What `e` has several times is looked into once: n - n//3, and that of it, and so on.
    seen: set[Value] = set()
    waiting = [e]
    while waiting:
        x = waiting.pop()
        if x is part:
            return True
        if type(x) is Expr and x not in seen:
            seen.add(x)
            waiting.extend(operands(x))
    return False


# Index of facts by symbol: which are affected when it gets another form.
#
# Looking through everything known for each new fact would make a chain of facts quadratic.


class SymbolIndex:
    """For each symbol, the holders of expressions that contain it, in order of arrival."""

    def __init__(self) -> None:
        self._holders: dict[Expr, dict[Expr, None]] = {}

    def add(self, holder: Expr, e: Value) -> None:
        """Note that `holder` has to do with `e`; never taken back, so ask the holder again."""
        for s in symbols(e):
            self._holders.setdefault(s, {})[holder] = None

    def of(self, part: Expr) -> list[Expr]:
        """The holders that may contain `part`: those of its rarest symbol."""
        nobody: dict[Expr, None] = {}
        holders = (self._holders.get(s, nobody) for s in symbols(part))
        rarest = min(holders, key=len, default=nobody)
        return list(rarest)
