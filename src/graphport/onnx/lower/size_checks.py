"""Narrows declared ranges of dims, and selects guards to be checked in the file.

Capture takes one path through the program. Sizes for which Python would take another are excluded
by conditions (`b != 1`, `a <= c`), which `.module()` checks at every call; but an ONNX file runs
where nobody checks. So a condition at an end of a dim's range narrows the range that the file
declares; every other one, and every one that a branch of the user's code depends on, is computed in
the file, which stops at sizes that do not meet it.

A branch of the user's code is an error where it excludes an end of a range that the user wrote,
else a warning. What operators need of their sizes is reported only if it excludes such an end:
eager stops at most of these sizes itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from graphport import source
from graphport.capture.soundness.constraints import format_definition
from graphport.capture.spec.walk import SizeSpec
from graphport.errors import ConstraintViolationError, SizeWarning
from graphport.program import ExportedProgram
from graphport.program.input_checks import EVALUATION_ERRORS
from graphport.source import Location
from graphport.symbolic import Expr, Fact, Range, evaluate, symbols
from graphport.symbolic.dims import Dim
from graphport.symbolic.integers import split_terms

_STEPS = 1024
"""As many sizes at an end of a range are tried with a condition that is not linear.

Where none of them fits, the end stays, and the file checks the condition.
"""

Declared = Mapping[str, SizeSpec]
"""What the user's spec says of a symbol: by the name of a Dim, or the place of an unnamed size."""


@dataclass(frozen=True)
class Condition:
    """What must hold of input sizes for the captured program to be the user's."""

    cond: Expr
    where: Location | None = None
    is_branch: bool = False
    """Whether it is the outcome of a branch in the user's code."""
    is_absorbed: bool = False
    """Whether capture has narrowed a range by it."""

    def __str__(self) -> str:
        return f"{self.cond} ({self.where})" if self.where is not None else str(self.cond)


def list_conditions(program: ExportedProgram) -> list[Condition]:
    """The conditions on input sizes beyond their ranges, with the user's lines."""
    simplify = program.scope.simplify
    facts = {simplify(fact.cond): fact for fact in program.scope.facts}
    found = []
    for cond in program.checks.facts:
        fact = facts.get(simplify(cond))
        if fact is None:
            found.append(Condition(cond))
        else:
            found.append(Condition(cond, fact.where, _is_branch(fact)))
    return [*found, *_list_absorbed(program)]


def _is_branch(fact: Fact) -> bool:
    return fact.kind == "guard" and not fact.internal and not fact.stated


def _list_absorbed(program: ExportedProgram) -> Iterable[Condition]:
    """Branches that have narrowed the range of an unnamed dim, which then says as much."""
    known, ranges = set(program.checks.facts), program.checks.ranges
    for fact in program.scope.facts:
        if fact.cond not in known and _is_branch(fact) and set(symbols(fact.cond)) <= ranges.keys():
            known.add(fact.cond)
            yield Condition(fact.cond, fact.where, True, is_absorbed=True)


def narrow_ranges(program: ExportedProgram, declare: Callable[[], Declared]) -> ExportedProgram:
    """The program with ranges that its conditions leave; each condition warns or raises."""
    conditions = list_conditions(program)
    if not conditions:
        return program
    ends = _SymbolRanges(program, declare())
    changes: dict[Expr, list[Condition]] = {}
    while found := next(filter(ends.narrow, conditions), None):
        changes.setdefault(symbols(found.cond)[0], []).append(found)
    _refuse_broken_promises(program, ends, changes)
    for symbol, why in changes.items():
        if not ends.breaks_promise(symbol) and not any(c.is_branch for c in why):
            continue
        _warn(
            f"{_describe_symbol(program, symbol)} is narrowed to {ends.ranges[symbol]}: the "
            f"program as captured is right only where {_join_conditions(why)}",
            f"to say so, {ends.fix(symbol)}",
        )
    for condition in conditions:
        if condition.is_absorbed and len(symbols(condition.cond)) == 1:
            (symbol,) = symbols(condition.cond)
            _warn(
                f"{_describe_symbol(program, symbol)} is narrowed to {ends.ranges[symbol]}: the "
                f"program as captured is right only where {condition}",
                "the ONNX file stops at other sizes",
            )
    left = [c for c in conditions if c.is_branch and not ends.implies(c.cond)]
    if left:
        _warn(
            f"the program as captured is right only where {_join_conditions(left)}",
            "the ONNX file stops at other sizes",
        )
    if not changes:
        return program
    checks = replace(program.checks, ranges=ends.apply(program.checks.ranges))
    return replace(program, checks=checks, range_constraints=ends.apply(program.range_constraints))


def select_checks(program: ExportedProgram) -> list[Expr]:
    """The conditions that a file has to check itself: beyond the ranges that it declares."""
    ends = _SymbolRanges(program, {})
    return [c.cond for c in list_conditions(program) if c.is_branch or not ends.implies(c.cond)]


def _warn(what: str, then: str) -> None:
    source.warn(f"{what}; {then}", SizeWarning)


def _join_conditions(conditions: Iterable[Condition]) -> str:
    return " and ".join(map(str, conditions))


def _describe_symbol(program: ExportedProgram, symbol: Expr) -> str:
    return f"{symbol} = {program.scope.origins.get(symbol) or 'a size of the inputs'}"


def _refuse_broken_promises(
    program: ExportedProgram, ends: _SymbolRanges, changes: Mapping[Expr, Sequence[Condition]]
) -> None:
    """Raise where a branch excludes an end of a range that the user wrote."""
    broken = {
        s: why
        for s, why in changes.items()
        if ends.breaks_promise(s) and any(c.is_branch for c in why)
    }
    if not broken:
        return
    lines = [
        f"  - Not all values of {_describe_symbol(program, s)} in the specified range "
        f"{ends.before[s]} satisfy the generated guard {condition.cond}"
        + (f"\n      at {condition.where}" if condition.where is not None else "")
        for s, why in broken.items()
        for condition in why
    ]
    raise ConstraintViolationError(
        f"Constraints violated ({', '.join(map(str, broken))})! An ONNX file runs where nobody "
        "checks its inputs, and would be wrong at sizes that dynamic_shapes allows:\n"
        + "\n".join(lines),
        fix=[ends.fix(s) for s in broken],
    )


class _SymbolRanges:
    """The ranges of symbols while conditions narrow them."""

    def __init__(self, program: ExportedProgram, declared: Declared) -> None:
        self.hint = program.scope.hint
        self.before = {s: r for s, r in program.checks.ranges.items() if s.kind == "symbol"}
        self.ranges = dict(self.before)
        origins = program.scope.origins
        self.sites = {
            s: declared.get(s.name) or declared.get(str(origins.get(s))) for s in self.before
        }

    def written(self, symbol: Expr) -> tuple[float | None, float | None]:
        """The ends of a range that the user wrote."""
        site = self.sites[symbol]
        if site is None or site.dim is None or isinstance(site.dim, int):
            return None, None
        return site.dim.root.given if isinstance(site.dim, Dim) else (site.dim.min, site.dim.max)

    def breaks_promise(self, symbol: Expr) -> bool:
        (low, high), now, before = self.written(symbol), self.ranges[symbol], self.before[symbol]
        return (low is not None and now.lower != before.lower) or (
            high is not None and now.upper != before.upper
        )

    def fix(self, symbol: Expr) -> str:
        """The corrected definition."""
        site, limits = self.sites[symbol], self.ranges[symbol]
        if site is None or isinstance(site.dim, Dim):
            return format_definition(symbol.name, limits)
        low, high = self.written(symbol)
        low = int(limits.lower) if limits.lower > 0 else low
        high = int(limits.upper) if limits.upper != math.inf else high
        return f"{site.place} = {replace(site.dim, min=low, max=high)!r}"  # type: ignore[type-var]

    def narrow(self, condition: Condition) -> bool:
        """Whether a condition excludes sizes at an end of a range, which is then narrower."""
        cond = condition.cond
        symbol = self._only_symbol(cond)
        if symbol is None or self.implies(cond):
            return False
        old = self.ranges[symbol]
        new = self.ranges[symbol] = self._trim(condition, symbol, old)
        return new != old

    def implies(self, cond: Expr) -> bool:
        """Whether the ranges are such that a condition always holds."""
        symbol = self._only_symbol(cond)
        if symbol is None:
            return False
        limits = self.ranges[symbol]
        bound, excluded = _linear_bound(cond), _excluded_value(cond)
        if bound is not None:
            return limits & bound == limits
        if excluded is not None:
            return not limits.lower <= excluded <= limits.upper
        return limits.upper - limits.lower <= _STEPS and all(
            _is_satisfied(cond, symbol, v) for v in range(int(limits.lower), int(limits.upper) + 1)
        )

    def _only_symbol(self, cond: Expr) -> Expr | None:
        found = symbols(cond)
        alone = len(found) == 1 and found[0].type is int and found[0] in self.ranges
        return found[0] if alone else None

    def _trim(self, condition: Condition, symbol: Expr, limits: Range) -> Range:
        """A range without the sizes at its ends for which a condition does not hold."""
        cond = condition.cond
        bound = _linear_bound(cond)
        if bound is not None:
            return limits & bound
        example = self.hint(symbol)
        assert isinstance(example, int)
        low, high = limits.lower, limits.upper
        # A branch at an end that was left open is for special cases: sizes of 1 as well as of 0.
        # What operators need says which of them it is: batch norm takes no rows, and not one.
        left_open = low == 0 and self.written(symbol)[0] is None
        if condition.is_branch and left_open and example > 1:
            low = low if _is_satisfied(cond, symbol, 1) else 2
        fits = partial(_is_satisfied, cond, symbol)
        upwards = range(int(low), example)[:_STEPS]
        low = next(filter(fits, upwards), example if len(upwards) < _STEPS else low)
        if high != math.inf:
            downwards = range(int(high), example, -1)[:_STEPS]
            high = next(filter(fits, downwards), example if len(downwards) < _STEPS else high)
        return Range(low, high)

    def apply(self, ranges: Mapping[Expr, Range]) -> dict[Expr, Range]:
        """Ranges of symbols and of what is derived from them."""
        return {e: self._narrow_derived(e, r) for e, r in ranges.items()}

    def _narrow_derived(self, e: Expr, limits: Range) -> Range:
        terms, offset = split_terms(e)
        if len(terms) != 1 or terms[0][0] not in self.ranges:
            return limits
        symbol, factor = terms[0]
        root = self.ranges[symbol]
        ends = sorted((root.lower * factor + offset, root.upper * factor + offset))
        return limits & Range(*ends)


def _is_satisfied(cond: Expr, symbol: Expr, value: int) -> bool:
    try:
        return bool(evaluate(cond, {symbol: value}))
    except EVALUATION_ERRORS:  # divided by 0
        return False


def _linear_form(cond: Expr) -> tuple[int, int] | None:
    """(factor, offset) where a condition compares factor*symbol + offset with 0."""
    terms, offset = split_terms(cond.args[0])
    if len(terms) != 1 or terms[0][0].kind != "symbol":
        return None
    return terms[0][1], offset


def _linear_bound(cond: Expr) -> Range | None:
    """The range that a linear inequality of one symbol says."""
    linear = _linear_form(cond) if cond.kind == "ge0" else None
    if linear is None:
        return None
    factor, offset = linear
    if factor > 0:
        return Range(-(offset // factor), math.inf)
    return Range(-math.inf, offset // -factor)


def _excluded_value(cond: Expr) -> int | None:
    """The one value that a condition excludes."""
    if cond.kind != "not" or cond.args[0].kind != "eq0":
        return None
    linear = _linear_form(cond.args[0])
    if linear is None or linear[1] % linear[0]:
        return None
    return -linear[1] // linear[0]
