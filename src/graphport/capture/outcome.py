"""What becomes of the facts that capture had to assume about input sizes.

A fact that a `Dim` could express but the user's does not say is an error, with the definitions that
would say it. An inequality between dims, or that something differs, is checked when the program
runs. Facts about data-dependent values are assertions in the graph and not judged here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from graphport.capture.spec import Declared, Spec
from graphport.errors import ConstraintViolationError
from graphport.symbolic import Expr, Fact, Range, Scope, evaluate, symbols


@dataclass
class Outcome:
    """Facts for the runtime checks, and dims that turned out to be fixed or equal."""

    checks: list[Expr] = field(default_factory=list)
    refined: bool = False
    """Automatic dims were fixed or related, so the spec has to be read again."""


@dataclass
class _Violations:
    fixed: dict[str, tuple[int, Fact]] = field(default_factory=dict)
    related: dict[str, tuple[str, str, Fact]] = field(default_factory=dict)
    ranged: dict[str, tuple[Range, Fact]] = field(default_factory=dict)
    divided: dict[str, tuple[int, int, Fact]] = field(default_factory=dict)
    complex: list[Fact] = field(default_factory=list)


def judge(scope: Scope, spec: Spec, guards: str) -> Outcome:
    outcome = Outcome()
    found = _Violations()
    owners = {d.symbol: d for d in spec.declared.values()}
    for fact in scope.facts:
        involved = symbols(fact.cond)
        if fact.kind == "assumed" or not all(s in owners for s in involved):
            continue
        if all(owners[s].automatic for s in involved):
            outcome.checks.append(fact.cond)
            continue
        if fact.kind == "expect" or not _classify(fact, owners, found, guards):
            outcome.checks.append(fact.cond)
    _raise(found, spec)
    return outcome


def _classify(
    fact: Fact, owners: dict[Expr, Declared], found: _Violations, guards: str
) -> bool:
    """Whether the fact is a violation; if so it is noted."""
    cond = fact.cond
    if cond.kind == "ge0":
        return _classify_range(fact, found)
    if cond.kind != "eq0":
        return False
    body = cond.args[0]
    involved = symbols(cond)
    linear = _linear(body, involved)
    if linear is not None and len(involved) == 1:
        factor, const = linear[involved[0]], evaluate(body, {involved[0]: 0})
        found.fixed[involved[0].name] = (-const // factor, fact)
        return True
    if linear is not None and len(involved) == 2:
        a, b = involved
        const = evaluate(body, {a: 0, b: 0})
        # b is the later dim: b = (-linear[a]*a - const) / linear[b]
        if abs(linear[b]) == 1:
            sign = -linear[b]
            found.related[b.name] = (a.name, _term(a.name, sign * linear[a], sign * const), fact)
            return True
        if abs(linear[a]) == 1:
            sign = -linear[a]
            found.related[a.name] = (b.name, _term(b.name, sign * linear[b], sign * const), fact)
            return True
    divided = _divisibility(body)
    if divided is not None:
        symbol, divisor, rest = divided
        found.divided[symbol.name] = (divisor, rest, fact)
        return True
    if guards == "runtime_assert":
        return False
    found.complex.append(fact)
    return True


def _classify_range(fact: Fact, found: _Violations) -> bool:
    body = fact.cond.args[0]
    involved = symbols(body)
    linear = _linear(body, involved)
    if linear is None or len(involved) != 1:
        return False
    (symbol,) = involved
    factor, const = linear[symbol], evaluate(body, {symbol: 0})
    if factor > 0:
        limits = Range(-(const // factor), math.inf)
    else:
        limits = Range(-math.inf, const // -factor)
    before = found.ranged.get(symbol.name)
    found.ranged[symbol.name] = (limits & before[0] if before else limits, fact)
    return True


def _linear(body: Expr, involved: tuple[Expr, ...]) -> dict[Expr, int] | None:
    """Coefficients by symbol when the expression is linear in its symbols."""
    if body.kind == "symbol":
        return {body: 1}
    if body.kind != "add":
        return None
    out = {}
    for term, factor in body.args:
        if term.kind != "symbol":
            return None
        out[term] = factor
    return out if set(out) == set(involved) else None


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


def _raise(found: _Violations, spec: Spec) -> None:
    lines: list[str] = []
    fixes: list[str] = []
    for name, (value, fact) in found.fixed.items():
        lines.append(
            f"  - {_place(spec, name)} was declared dynamic as {name}, but the program fixes it to "
            f"{value}: You marked {name} as dynamic but your code specialized it to be a constant "
            f"({value}){_at(fact)}"
        )
        fixes.append(f"{name} = {value}")
    for name, (other, text, fact) in found.related.items():
        lines.append(
            f"  - The values of {name} = {_place(spec, name)} and {other} = {_place(spec, other)} "
            f"must always be related to the values of {other} by {name} = {text}{_at(fact)}"
        )
        fixes.append(f"{name} = {text}")
    for name, (limits, fact) in found.ranged.items():
        if name in found.fixed or name in found.related:
            continue
        declared = spec.ranges[spec.declared[name].symbol]
        lines.append(
            f"  - Not all values of {name} = {_place(spec, name)} in the specified range "
            f"{declared} satisfy the generated guard {fact.cond}{_at(fact)}"
        )
        fixes.append(_definition(name, declared & limits))
    for name, (divisor, rest, fact) in found.divided.items():
        if name in found.fixed:
            continue
        lines.append(
            f"  - Not all values of {name} = {_place(spec, name)} satisfy the generated guard "
            f"{fact.cond}{_at(fact)}"
        )
        declared = spec.ranges[spec.declared[name].symbol]
        inner = Range(max(-(-(declared.lower - rest) // divisor), 0),
                      declared.upper if declared.upper == math.inf
                      else (declared.upper - rest) // divisor)  # fmt: skip
        fixes.append(_definition(f"_{name}", inner))
        fixes.append(f"{name} = {_term(f'_{name}', divisor, rest)}")
    for fact in found.complex:
        names = [s.name for s in symbols(fact.cond)]
        lines.append(
            f"  - {', '.join(names)} must be specialized because the guards generated for it are "
            f"too complex: {fact.cond}{_at(fact)}"
        )
        fixes.extend(f"{n} = {spec.scope.hint(spec.declared[n].symbol)}" for n in names)
        fixes.append('or check it when the program runs: gp.export(..., guards="runtime_assert")')
    if not lines:
        return
    names = ", ".join(dict.fromkeys(_names(found)))
    only_fixed = bool(found.fixed or found.complex)
    title = "Specializations unexpectedly required" if only_fixed else "Constraints violated"
    if only_fixed and (found.related or found.ranged or found.divided or found.fixed):
        title = "Constraints violated"
    raise ConstraintViolationError(
        f"{title} ({names})! The program needs more of its sizes than dynamic_shapes says:\n"
        + "\n".join(lines),
        fix=list(dict.fromkeys(fixes)),
    )


def _names(found: _Violations) -> list[str]:
    complex_names = [s.name for f in found.complex for s in symbols(f.cond)]
    return [*found.fixed, *found.related, *found.ranged, *found.divided, *complex_names]


def _place(spec: Spec, name: str) -> str:
    return str(spec.scope.origins.get(spec.declared[name].symbol, name))


def _at(fact: Fact) -> str:
    return f"\n      at {fact.where}" if fact.where is not None else ""
