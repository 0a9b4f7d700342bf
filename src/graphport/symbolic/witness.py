"""Sample points at which all facts hold, to refute conditions cheaply.

A polynomial that is negative at such a point is not provably non-negative, so the search for a
proof need not start. Points never prove anything, and a wrong one could only cost an answer:
soundness does not depend on this module. It pays because most questions that have no answer, and
most steps that lead nowhere, are refuted by a few small multiplications.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphport.symbolic.evaluation import evaluate_with
from graphport.symbolic.facts import Facts
from graphport.symbolic.nodes import Expr, Number, Value
from graphport.symbolic.ranges import Range, inf

_EVALUATION_ERRORS = (ArithmeticError, ValueError, TypeError)
# With more facts than this, points that fail are not replaced: checking them would cost too much.
_MAX_CHECKED = 64


class Witnesses:
    """A few points, each a memo of the values of all expressions evaluated there.

    With `least`, symbols that are sizes (never negative) are at least that, where they can be.
    """

    def __init__(self, facts: Facts, hints: Mapping[Expr, Number], least: int = 0) -> None:
        self._facts = facts
        self._hints = hints
        self._least = least
        self._points: list[dict[Expr, Any]] = []
        self._symbols: list[Expr] = []
        self._checked = 0
        self._made = 0

    def add_symbol(self, s: Expr) -> None:
        self._symbols.append(s)
        self._points.clear()
        self._made = 0

    def forget(self) -> None:
        """Start over: facts have been taken back."""
        self._points.clear()
        self._checked = self._made = 0

    def refute(self, e: Expr) -> bool:
        """Whether e < 0 at some point."""
        for point in self._points:
            value = point.get(e)
            if value is None:
                value = _evaluate_at(e, point)
            if value < 0:
                return True
        return False

    def refresh(self) -> None:
        """After new facts: drop the points where they do not hold, and look for others."""
        facts = self._facts
        fresh = facts.learnt[self._checked :]
        kept = [p for p in self._points if all(_evaluate_at(cond, p) is True for cond in fresh)]
        count = len(facts.learnt)
        # New points cost as much as there are facts: ever rarer, or a chain of facts is quadratic.
        if not kept or (len(kept) < len(_CHOICES) and count > self._made + self._made // 4):
            if count <= _MAX_CHECKED:
                kept = [p for p in map(self._point, _CHOICES) if p is not None]
            self._made = count
        self._points = kept
        self._checked = count

    def _point(self, choice: Any) -> dict[Expr, Any] | None:
        """The point that `choice` makes of the ranges, if it satisfies all facts."""
        facts, point = self._facts, {}
        for s in self._symbols:
            if s not in facts.rewrites:
                r, hint = facts.bound(s), self._hints.get(s)
                if 0 <= r.lower < self._least <= r.upper:
                    r = Range(self._least, r.upper)
                point[s] = choice(s, r, hint if hint is not None and hint in r else None)
        try:
            for s, value in facts.rewrites.items():
                if s.kind == "symbol":
                    point[s] = evaluate_with(value, point)
        except _EVALUATION_ERRORS:
            return None
        within = all(point[s] in facts.bound(s) for s in self._symbols)
        return (
            point if within and all(_evaluate_at(c, point) is True for c in facts.learnt) else None
        )


def _evaluate_at(e: Value, point: dict[Expr, Any]) -> Any:
    """The value at a point; 0, which refutes nothing, where there is none."""
    try:
        return evaluate_with(e, point)
    except _EVALUATION_ERRORS:
        return 0


def _at_example(s: Expr, r: Range, hint: Number | None) -> Number:
    return hint if hint is not None else _lowest(s, r, 3)


def _lowest(s: Expr, r: Range, step: int) -> Number:
    if s.type is not int:
        return s.type(step)
    value = r.lower + step if r.lower != -inf else -2 - s.index
    return int(value if value < r.upper else r.upper)


def _at_lower_end(s: Expr, r: Range, hint: Number | None) -> Number:
    return _lowest(s, r, 0)


def _further_up(s: Expr, r: Range, hint: Number | None) -> Number:
    return _lowest(s, Range(r.lower if r.lower > 0 else 0, r.upper), 7 + 12 * s.index)


_CHOICES = (_at_example, _at_lower_end, _further_up)
