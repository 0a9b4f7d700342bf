"""What becomes of the facts that capture had to assume about input sizes.

A fact that a `Dim` could express but the user's does not say is an error, with the definitions that
would say it. An inequality between dims, or that something differs, is checked when the program
runs. Facts about data-dependent values are assertions in the graph and not judged here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphport.capture.spec import Spec
from graphport.errors import ConstraintViolationError
from graphport.symbolic import Expr, Fact, Range, evaluate, symbols


@dataclass
class Violation:
    """A fact that the declared dims do not imply, in words, and the lines that would repair it."""

    dims: tuple[str, ...]
    text: str
    fixes: list[str]
    complex: bool = False


def judge(spec: Spec, guards: str) -> list[Expr]:
    """The conditions to check at run time; raises when the spec does not allow what was assumed."""
    checks: list[Expr] = []
    ranged: dict[Expr, list[Fact]] = {}
    found: list[Violation] = []
    owners = {d.symbol: d for d in spec.declared.values()}
    for fact in spec.scope.facts:
        involved = symbols(fact.cond)
        if fact.kind == "assumed" or not all(s in owners for s in involved):
            continue
        if fact.kind == "expect" or all(owners[s].automatic for s in involved):
            checks.append(fact.cond)
        elif _limits(fact.cond) is not None:
            ranged.setdefault(involved[0], []).append(fact)
        else:
            violation = _equality(fact, spec, guards)
            checks.append(fact.cond) if violation is None else found.append(violation)
    fixed = {name for v in found for name in v.dims[:1]}
    found += [_range(s, facts, spec) for s, facts in ranged.items() if s.name not in fixed]
    if found:
        raise _error(found)
    return checks


def _limits(cond: Expr) -> Range | None:
    """The range that a condition gives to its only symbol."""
    involved = symbols(cond)
    if cond.kind != "ge0" or len(involved) != 1:
        return None
    linear = _linear(cond.args[0])
    if linear is None:
        return None
    factor, const = linear[involved[0]], _constant(cond.args[0])
    if factor > 0:
        return Range(-(const // factor), math.inf)
    return Range(-math.inf, const // -factor)


def _range(symbol: Expr, facts: list[Fact], spec: Spec) -> Violation:
    declared = limits = spec.ranges[symbol]
    lines = []
    for fact in facts:
        new = _limits(fact.cond)
        assert new is not None
        limits = limits & new
        lines.append(
            f"Not all values of {symbol} = {_place(spec, symbol)} in the specified range "
            f"{declared} satisfy the generated guard {fact.cond}{_at(fact)}"
        )
    return Violation((symbol.name,), "\n  - ".join(lines), [_definition(symbol.name, limits)])


def _equality(fact: Fact, spec: Spec, guards: str) -> Violation | None:
    """What a fact that is no range means for the dims; None if it is for the run time."""
    if fact.cond.kind != "eq0":
        return None
    body = fact.cond.args[0]
    involved = symbols(body)
    linear = _linear(body)
    if linear is not None and len(involved) == 1:
        return _fixed(fact, spec, involved[0], -_constant(body) // linear[involved[0]])
    if linear is not None and len(involved) == 2:
        # The later dim in terms of the earlier one, if that is possible.
        for target, other in (involved[::-1], involved):
            if abs(linear[target]) == 1:
                sign = -linear[target]
                text = _term(other.name, sign * linear[other], sign * _constant(body))
                return _related(fact, spec, target, other, text)
    divided = _divisibility(body)
    if divided is not None:
        return _multiple(fact, spec, *divided)
    return None if guards == "runtime_assert" else _too_complex(fact, spec)


def _fixed(fact: Fact, spec: Spec, symbol: Expr, value: int) -> Violation:
    name = symbol.name
    text = (
        f"{_place(spec, symbol)} was declared dynamic as {name}, but the program fixes it to "
        f"{value}: You marked {name} as dynamic but your code specialized it to be a constant "
        f"({value}){_at(fact)}"
    )
    return Violation((name,), text, [f"{name} = {value}"])


def _related(fact: Fact, spec: Spec, target: Expr, other: Expr, text: str) -> Violation:
    name = target.name
    line = (
        f"The values of {name} = {_place(spec, target)} and {other} = {_place(spec, other)} must "
        f"always be related to the values of {other} by {name} = {text}{_at(fact)}"
    )
    return Violation((name,), line, [f"{name} = {text}"])


def _multiple(fact: Fact, spec: Spec, symbol: Expr, divisor: int, rest: int) -> Violation:
    name, declared = symbol.name, spec.ranges[symbol]
    line = (
        f"Not all values of {name} = {_place(spec, symbol)} satisfy the generated guard "
        f"{fact.cond}{_at(fact)}"
    )
    upper = declared.upper
    inner = Range(
        max(-(-(declared.lower - rest) // divisor), 0),
        upper if upper == math.inf else (upper - rest) // divisor,
    )
    root = f"_{name}"
    return Violation(
        (name,), line, [_definition(root, inner), f"{name} = {_term(root, divisor, rest)}"]
    )


def _too_complex(fact: Fact, spec: Spec) -> Violation:
    involved = symbols(fact.cond)
    lines = [
        f"{_place(spec, s)} must be specialized to {spec.scope.hint(s)} because the guards "
        f"generated for it are too complex: {fact.cond}{_at(fact)}"
        for s in involved
    ]
    fixes = [f"{s.name} = {spec.scope.hint(s)}" for s in involved]
    fixes.append('# or check it when the program runs: gp.export(..., guards="runtime_assert")')
    return Violation(tuple(s.name for s in involved), "\n  - ".join(lines), fixes, complex=True)


def _error(found: list[Violation]) -> ConstraintViolationError:
    names = ", ".join(dict.fromkeys(n for v in found for n in v.dims))
    title = "Constraints violated"
    if all(v.complex for v in found):
        title = "Specializations unexpectedly required"
    return ConstraintViolationError(
        f"{title} ({names})! The program needs more of its sizes than dynamic_shapes says:\n"
        + "\n".join(f"  - {v.text}" for v in found),
        fix=list(dict.fromkeys(fix for v in found for fix in v.fixes)),
    )


def _linear(body: Expr) -> dict[Expr, int] | None:
    """Coefficients by symbol when the expression is linear in its symbols."""
    if body.kind == "symbol":
        return {body: 1}
    if body.kind != "add" or any(term.kind != "symbol" for term, _ in body.args):
        return None
    return dict(body.args)


def _constant(body: Expr) -> int:
    return int(evaluate(body, dict.fromkeys(symbols(body), 0)))


def _divisibility(body: Expr) -> tuple[Expr, int, int] | None:
    """(symbol, divisor, remainder) of `symbol % divisor - remainder`."""
    rest, target = 0, body
    if body.kind == "add" and len(body.args) == 1 and body.args[0][1] == 1:
        target, rest = body.args[0][0], -body.const
    if target.kind == "mod":
        symbol, divisor = target.args
        if isinstance(symbol, Expr) and symbol.kind == "symbol" and type(divisor) is int:
            return symbol, divisor, rest
    return None


def _term(name: str, factor: int, const: int) -> str:
    text = name if factor == 1 else f"{factor}*{name}"
    return f"{text} {'+' if const > 0 else '-'} {abs(const)}" if const else text


def _definition(name: str, limits: Range) -> str:
    parts = [repr(name)]
    parts += [f"min={int(limits.lower)}"] if limits.lower > 0 else []
    parts += [f"max={int(limits.upper)}"] if limits.upper != math.inf else []
    return f"{name} = Dim({', '.join(parts)})"


def _place(spec: Spec, symbol: Expr) -> str:
    return str(spec.scope.origins.get(symbol, symbol.name))


def _at(fact: Fact) -> str:
    return f"\n      at {fact.where}" if fact.where is not None else ""
