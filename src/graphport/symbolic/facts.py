"""What is known: ranges, equalities, inequalities.

Knowledge only grows. Learning a condition turns it into the strongest form that the rest can use:

* an equality that can be solved for a symbol (or for an opaque atom) becomes a rewrite, applied to
  everything from then on;
* an inequality about one atom tightens that atom's range, and what follows for its operands;
* any other inequality or equality is kept, simplified again whenever a rewrite arrives;
* everything else is remembered as a truth of its own.

`generation` counts changes: whoever memoises an answer "not known" must forget it when the count
moves. Answers that were proven stay proven.
"""

from __future__ import annotations

import math
from typing import Any

from graphport.symbolic import integers, logic
from graphport.symbolic.evaluation import rebuild
from graphport.symbolic.integers import powers_of, split
from graphport.symbolic.nodes import Expr, Size, Truth, Value, is_nonneg, operands, symbols
from graphport.symbolic.ranges import FULL, Range, inf


class Contradiction(Exception):
    """A condition that what is already known rules out."""


class Facts:
    """Knowledge about the symbols of one scope."""

    def __init__(self) -> None:
        self.generation = 0
        self.bounds: dict[Expr, Range] = {}
        self.rewrites: dict[Expr, Size] = {}
        self.nonneg: dict[Expr, None] = {}
        self.zero: dict[Expr, None] = {}
        self.nonzero: dict[Expr, None] = {}
        self.truths: dict[Expr, bool] = {}
        self.unbacked: set[Expr] = set()
        self._simplified: dict[Expr, Any] = {}
        self._multiples: set[Expr] = set()

    def simplify(self, e: Any) -> Any:
        """`e` after all rewrites; canonical, so equal results are the same object."""
        if type(e) is not Expr or not self.rewrites:
            return e
        known = self._simplified.get(e)
        if known is not None:
            return known
        result = rebuild(e, self._simplified)
        if self._multiples and type(result) is Expr and result.type is int:
            result = self._join_multiples(result)
        while type(result) is Expr:
            again = rebuild(result, self._simplified)
            if again is result:
                break
            result = again
        self._simplified[e] = result
        return result

    def _join_multiples(self, e: Expr) -> Size:
        """c*(x // c) is x where c is known to divide x."""
        terms, _ = split(e)
        result: Size = e
        for mono, coef in terms:
            for part, power in powers_of(mono):
                if power == 1 and part in self._multiples and coef % part.args[1] == 0:
                    x, c = part.args
                    others = integers.divide_exactly(mono, part)
                    assert others is not None
                    whole = integers.scale(integers.mul(others, x), coef // c)
                    result = integers.add(result, integers.sub(whole, integers.scale(mono, coef)))
                    break
        return result

    def bound(self, part: Expr) -> Range:
        """The range recorded for an atom or monomial, before any inference."""
        return self.bounds.get(part, FULL)

    def learn(self, cond: Truth) -> None:
        """Take `cond` as true. Raises Contradiction when it cannot be."""
        cond = self.simplify(cond)
        if cond is True:
            return
        if cond is False:
            raise Contradiction
        assert isinstance(cond, Expr)
        if cond.kind == "and":
            for part in cond.args:
                self.learn(part)
            return
        self.truths[cond] = True
        opposite = logic.not_(cond)
        if isinstance(opposite, Expr):
            self.truths[opposite] = False
        if cond.kind == "ge0":
            self._learn_nonneg(cond.args[0])
        elif cond.kind == "eq0":
            self._learn_zero(cond.args[0])
        elif cond.kind == "not" and cond.args[0].kind == "eq0":
            self._learn_nonzero(cond.args[0].args[0])
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._simplified = dict(self.rewrites)

    # Inequalities

    def _learn_nonneg(self, e: Expr) -> None:
        terms, const = split(e)
        if len(terms) > 1:
            self.nonneg[e] = None
            return
        mono, coef = terms[0]  # coef is 1 or -1: ge0 divided by it
        self.tighten(mono, Range(-const, inf) if coef > 0 else Range(-inf, const))

    def tighten(self, part: Expr, new: Range) -> None:
        """Intersect the range of an atom or monomial, and pass it on to its operands."""
        old = self.bound(part)
        both = old & new
        if both == old:
            return
        if both.empty:
            raise Contradiction
        self.bounds[part] = both
        while self.nonzero and part.kind == "symbol" and self._trim(part):
            pass
        both = self.bounds[part]
        if both.is_single and part not in self.rewrites and part.type is int:
            self._rewrite(part, int(both.lower))
        self._pass_on(part, both)

    def _trim(self, part: Expr) -> bool:
        """Cut an end of the range that is known not to be taken."""
        now = self.bounds[part]
        for end, cut in (
            (now.lower, Range(now.lower + 1, inf)),
            (now.upper, Range(-inf, now.upper - 1)),
        ):
            if abs(end) != inf and integers.sub(part, int(end)) in self.nonzero:
                self.bounds[part] = now & cut
                if self.bounds[part].empty:
                    raise Contradiction
                return True
        return False

    def _pass_on(self, part: Expr, r: Range) -> None:
        """What a range of an operation says about its operands."""
        low, high = r.lower, r.upper
        if part.kind == "floordiv" and type(part.args[1]) is int:
            a, c = part.args
            if low != -inf:
                self._learn_if_new(logic.ge0(integers.sub(a, int(low) * c)))
            if high != inf:
                self._learn_if_new(logic.ge0(integers.sub(int(high) * c + c - 1, a)))
        elif part.kind == "min" and low != -inf:
            for a in part.args:
                self._learn_if_new(logic.ge0(integers.sub(a, int(low))))
        elif part.kind == "max" and high != inf:
            for a in part.args:
                self._learn_if_new(logic.ge0(integers.sub(int(high), a)))
        elif part.kind == "mul" and low >= 1 and all(is_nonneg(a) for a, _ in part.args):
            for a, _ in part.args:
                self._learn_if_new(logic.ge0(integers.sub(a, 1)))

    def _learn_if_new(self, cond: Truth) -> None:
        if cond is not True and cond not in self.truths:
            self.learn(cond)

    def _learn_nonzero(self, e: Expr) -> None:
        self.nonzero[e] = None
        self.nonzero[integers.neg(e)] = None  # type: ignore[index]
        terms, _ = split(e)
        if len(terms) == 1 and terms[0][0] in self.bounds and terms[0][0].kind == "symbol":
            part = terms[0][0]
            while self._trim(part):
                pass
            r = self.bounds[part]
            if r.is_single and part not in self.rewrites:
                self._rewrite(part, int(r.lower))

    # Equalities

    def _learn_zero(self, e: Expr) -> None:
        target, value = self._solve(e)
        if target is None:
            self.zero[e] = None
            return
        assert value is not None
        self._rewrite(target, value)

    def _solve(self, e: Expr) -> tuple[Expr | None, Size | None]:
        """Solve e == 0 for a term with coefficient 1 or -1 that occurs nowhere else in e.

        Symbols come first, data-dependent ones before others and newer before older, so that results
        are told in terms of the inputs a user named first. A symbol with an example value is never
        told in terms of one without.
        """
        terms, _ = split(e)
        best: tuple[tuple[Any, ...], Expr, int] | None = None
        for mono, coef in terms:
            if coef not in (1, -1) or mono.kind == "mul":
                continue
            if any(occurs(mono, other) for other, _ in terms if other is not mono):
                continue
            if any(mono is not s and occurs(s, mono) for s in ()):
                continue
            rank = (mono.kind == "symbol", mono in self.unbacked, mono.index, mono.order)
            if best is None or rank > best[0]:
                best = (rank, mono, coef)
        if best is None:
            return None, None
        _, mono, coef = best
        rest = integers.sub(e, integers.scale(mono, coef))
        value = integers.scale(rest, -coef)
        if mono.kind == "symbol":
            if mono not in self.unbacked and any(s in self.unbacked for s in symbols(value)):
                return None, None
        elif type(value) is Expr and value.key > mono.key:
            return None, None
        return mono, value

    def _rewrite(self, target: Expr, value: Size) -> None:
        """From now on `target` is `value`, everywhere."""
        old = self.bounds.get(target)
        if target.kind == "mod" and value == 0 and type(target.args[1]) is int:
            quotient = integers.floordiv(*target.args)
            if isinstance(quotient, Expr) and quotient.kind == "floordiv":
                self._multiples.add(quotient)
        single = {target: value}
        self.rewrites = {
            key: rebuild(replaced, dict(single)) for key, replaced in self.rewrites.items()
        }
        self.rewrites[target] = value
        self._changed()
        self._restate()
        if old is not None and type(value) is Expr:
            # What was known of the target is now known of its value.
            if old.lower != -inf:
                self._learn_if_new(logic.ge0(integers.sub(value, math.ceil(old.lower))))
            if old.upper != inf:
                self._learn_if_new(logic.ge0(integers.sub(math.floor(old.upper), value)))

    def _restate(self) -> None:
        """Simplify what is stored; whatever became something else is learnt again."""
        changed: list[Truth] = []
        for store, make in ((self.nonneg, logic.ge0), (self.zero, logic.eq0)):
            for e in list(store):
                new = self.simplify(e)
                if new is not e:
                    del store[e]
                    changed.append(make(new))
        for e in list(self.nonzero):
            new = self.simplify(e)
            if new is not e:
                del self.nonzero[e]
                changed.append(logic.not_(logic.eq0(new)))
        for part in list(self.bounds):
            new = self.simplify(part)
            if new is not part and part not in self.rewrites:
                r = self.bounds[part]
                if r.lower != -inf:
                    changed.append(logic.ge0(integers.sub(new, math.ceil(r.lower))))
                if r.upper != inf:
                    changed.append(logic.ge0(integers.sub(math.floor(r.upper), new)))
        for cond in changed:
            if cond is False:
                raise Contradiction
            if cond is not True:
                self._learn_if_new(cond)


def occurs(part: Value, e: Value) -> bool:
    """Whether `part` is somewhere inside `e`."""
    if e is part:
        return True
    if type(e) is not Expr or e.kind == "symbol":
        return False
    return any(occurs(part, x) for x in operands(e))
