"""The claim that one expression may stand for another, and the search for a small counterexample.

A claim is refuted by values of its symbols within their ranges, at which every assumption holds,
`before` has a value, and `after` has none or another. Refuting is computing in Python, exactly: no
counterexample is reported that was not checked here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from graphport.fx.terms import Inexact, Term, Undefined, evaluate
from graphport.symbolic import Range

# Points tried before a solver is asked. Most wrong rewrites are wrong at some small size, and
# `s0 = 3` says more than the number with twenty digits that a solver may find.
_POINTS = 600


@dataclass(frozen=True)
class Counterexample:
    """Values of the symbols, and what they make of both sides; `after` is None if undefined."""

    values: Mapping[str, Any]
    before: Any
    after: Any
    problem: str = ""


@dataclass(frozen=True)
class Claim:
    """Where `assume` holds, `before` can be replaced by `after`."""

    before: Term
    after: Term
    assume: tuple[Term, ...]
    symbols: Mapping[str, Term]
    ranges: Mapping[str, Range]

    def allows(self, env: Mapping[str, Any], done: dict[Term, Any]) -> bool:
        """Whether the claim says something about these values."""
        try:
            return all(env[name] in r for name, r in self.ranges.items()) and all(
                evaluate(cond, env, done) for cond in self.assume
            )
        except (Undefined, Inexact):
            return False

    def refuted_by(self, env: Mapping[str, Any]) -> Counterexample | None:
        """The counterexample that these values are, if they are one."""
        done: dict[Term, Any] = {}
        if not self.allows(env, done):
            return None
        try:
            before = evaluate(self.before, env, done)
        except (Undefined, Inexact):
            return None
        try:
            after = evaluate(self.after, env, done)
        except Undefined as problem:
            return Counterexample(env, before, None, str(problem))
        except Inexact:
            return None
        return None if before == after else Counterexample(env, before, after)

    def small_counterexample(self) -> Counterexample | None:
        for env in self._points():
            found = self.refuted_by(env)
            if found is not None:
                return found
        return None

    def _points(self) -> Iterator[dict[str, Any]]:
        """Small values first, the same number of values for each symbol."""
        names = list(self.ranges)
        if not names:
            yield {}
            return
        # At least two values each, of as many symbols as that allows; the rest keep their first.
        count = max(2, math.floor(_POINTS ** (1 / len(names))))
        choices = [_values(self.symbols[name].type, self.ranges[name], count) for name in names]
        places = itertools.product(*(range(len(values)) for values in reversed(choices)))
        nearest = sorted(itertools.islice(places, _POINTS), key=lambda place: (max(place), place))
        for place in nearest:
            env = [values[i] for values, i in zip(choices, reversed(place), strict=True)]
            yield dict(zip(names, env, strict=True))


def _values(type_: type, r: Range, count: int) -> list[Any]:
    """The values nearest to zero in a range."""
    if type_ is bool:
        return [False, True]
    start = min(max(r.lower, 0), r.upper) if abs(r.lower) != math.inf or r.upper < 0 else 0
    start = math.ceil(start) if start > 0 else math.floor(start)
    found: list[Any] = [v for v in _outwards(start, count) if v in r][:count]
    if type_ is float:
        halves: list[Any] = [Fraction(2 * v + 1, 2) for v in found]
        found = [Fraction(v) for v in found] + [v for v in halves if v in r]
    return found


def _outwards(start: int, count: int) -> Iterator[int]:
    """start, start + 1, start - 1, start + 2, ..."""
    yield start
    for step in range(1, 2 * count):
        yield start + step
        yield start - step
