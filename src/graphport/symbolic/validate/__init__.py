"""Translation validation: proves that two expressions agree, or finds a counterexample.

A claim is refuted by values of its symbols within their ranges, at which every assumption holds,
`before` has a value, and `after` has none or another. Refuting is computing in Python, exactly: no
counterexample is reported that was not checked here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from graphport import errors
from graphport.arguments import ITERABLE, check_arguments, instance_of
from graphport.symbolic import Expr, Range, bridge
from graphport.symbolic.ranges import FULL, TRUTH, inf
from graphport.symbolic.validate.parse import parse_term
from graphport.symbolic.validate.terms import (
    TYPE_NAMES,
    Exact,
    Inexact,
    Term,
    Terms,
    Undefined,
    evaluate_term,
)

# Points tried before a solver is asked. Most wrong rewrites are wrong at some small size, and
# `s0 = 3` says more than the number with twenty digits that a solver may find.
_MAX_POINTS = 600


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

    def allows(self, env: Mapping[str, Any], done: dict[Term, Exact]) -> bool:
        """Whether the claim says something about these values."""
        try:
            return all(env[name] in r for name, r in self.ranges.items()) and all(
                evaluate_term(cond, env, done) for cond in self.assume
            )
        except (Undefined, Inexact):
            return False

    def refute(self, env: Mapping[str, Exact]) -> Counterexample | None:
        """The counterexample that these values are, if they are one."""
        done: dict[Term, Exact] = {}
        if not self.allows(env, done):
            return None
        try:
            before = evaluate_term(self.before, env, done)
        except (Undefined, Inexact):
            return None
        try:
            after = evaluate_term(self.after, env, done)
        except Undefined as problem:
            return Counterexample(env, before, None, str(problem))
        except Inexact:
            return None
        return None if before == after else Counterexample(env, before, after)

    def find_small_counterexample(self) -> Counterexample | None:
        for env in self._points():
            found = self.refute(env)
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
        count = max(2, math.floor(_MAX_POINTS ** (1 / len(names))))
        choices = [
            _list_small_values(self.symbols[name].type, self.ranges[name], count) for name in names
        ]
        places = itertools.product(*(range(len(values)) for values in reversed(choices)))
        nearest = sorted(
            itertools.islice(places, _MAX_POINTS), key=lambda place: (max(place), place)
        )
        for place in nearest:
            env = [values[i] for values, i in zip(choices, reversed(place), strict=True)]
            yield dict(zip(names, env, strict=True))


def _list_small_values(type_: type, r: Range, count: int) -> list[object]:
    """The values nearest to zero in a range."""
    if type_ is bool:
        return [False, True]
    start = min(max(r.lower, 0), r.upper) if abs(r.lower) != math.inf or r.upper < 0 else 0
    start = math.ceil(start) if start > 0 else math.floor(start)
    found: list[Any] = [v for v in _count_outwards(start, count) if v in r][:count]
    if type_ is float:
        halves: list[Any] = [Fraction(2 * v + 1, 2) for v in found]
        found = [Fraction(v) for v in found] + [v for v in halves if v in r]
    return found


def _count_outwards(start: int, count: int) -> Iterator[int]:
    """start, start + 1, start - 1, start + 2, ..."""
    yield start
    for step in range(1, 2 * count):
        yield start + step
        yield start - step


# `gp.fx.validate` and its arguments.

Symbolic: TypeAlias = Any  # torch.SymInt, SymFloat, SymBool; an expression; a number; or text

_POSITIVE = Range(1, inf)
_CONDITION = instance_of("a condition", "builtins:bool", "torch:SymBool", "graphport.symbolic:Expr")


@check_arguments(assume=ITERABLE | _CONDITION)
def validate(before: Symbolic, after: Symbolic, assume: Iterable[Symbolic] | Symbolic = ()) -> bool:
    """Prove that `after` can stand for `before` wherever the conditions of `assume` hold.

    Each is a `torch.SymInt`, `SymFloat` or `SymBool` of graphport, one of its expressions, a Python
    number, or text in Python syntax. Symbols of the same name are the same. Returns True, or raises
    `gp.errors.ValidationError` with a counterexample.

        >>> validate("4*(s0//4) + s0 % 4", "s0")
        True
        >>> validate("s0 // 2 >= 1", "s0 >= 2")
        True
        >>> validate("4*(s0//4)", "s0")
        Traceback (most recent call last):
        graphport.errors.ValidationError: GP310 s0 does not always equal 4*(s0//4)
          at   s0 = 1: 4*(s0//4) is 0, and s0 is 1
        >>> validate("4*(s0//4)", "s0", assume=["s0 % 4 == 0"])
        True

    Symbols in text are positive integers, unless an assumption gives the symbol itself a lower
    bound, an upper bound or a value below 1: `"s0 >= 0"`, `"-8 <= s0 < 8"`, `"s0 > -inf"`. Symbols
    of expressions have the type and the range that they were declared with, in text too.

    Integers have Python's meaning: `//` and `%` round down, for divisors of either sign. Where
    `before` is undefined, as by a division by zero, nothing is claimed; where it is defined,
    `after` must be defined too. `and`, `or` and `x if c else y` compute what they need, `&` and `|`
    both sides. An assumption must be defined to hold. Two conditions are compared for equivalence.
    Floats are taken for the real numbers that they stand for, without rounding; a float that equals
    an integer agrees with it.

    What can be neither proven nor refuted with bounded effort is a `gp.errors.UndecidedError`.
    Needs z3: `pip install graphport[z3]`.
    """
    solver = _load_solver()
    claim = _build_claim(before, after, assume)
    found = claim.find_small_counterexample()
    if found is None:
        try:
            found = solver.prove(claim)
        except solver.Impossible:
            raise errors.UserError(
                "no values satisfy all conditions of assume, so nothing would be proven"
            ) from None
        except solver.Undecided as reason:
            raise errors.UndecidedError(
                "neither a proof nor a counterexample was found that "
                f"{_format_expression(after)} equals {_format_expression(before)}: {reason}",
                fix="add what is known of the symbols to assume, or compare smaller parts",
            ) from None
    if found is not None:
        raise _refutation_error(before, after, found)
    return True


def _load_solver() -> Any:
    try:
        from graphport.symbolic.validate import solver
    except ModuleNotFoundError as error:
        if error.name != "z3":
            raise
        raise errors.MissingPackageError(
            "gp.fx.validate needs z3, which is not installed", fix="pip install graphport[z3]"
        ) from None
    return solver


# Claims


def _build_claim(before: Symbolic, after: Symbolic, assume: Iterable[Symbolic] | Symbolic) -> Claim:
    # A lone condition is one condition: the letters of a text are not meant.
    alone = isinstance(assume, (str, bool, Expr)) or bridge.is_symbolic(assume)
    conditions = [assume] if alone else list(assume)
    given = {"before": before, "after": after}
    given.update({f"assume[{i}]": cond for i, cond in enumerate(conditions)})
    terms = Terms()
    # Expressions first: they say what the names in texts are.
    found: dict[str, Term] = {
        name: _translate(name, value, terms)
        for name, value in given.items()
        if not isinstance(value, str)
    }
    found.update(
        {
            name: parse_term(value, terms, name)
            for name, value in given.items()
            if isinstance(value, str)
        }
    )
    for name, term in found.items():
        if term.op == "infinite":
            raise errors.InputError(f"{name} is {term.value}, which is no number to compare with")
    old, new, *rest = (found[name] for name in given)
    if (old.type is bool) is not (new.type is bool):
        raise errors.InputError(
            f"before is {TYPE_NAMES[old.type]} and after is {TYPE_NAMES[new.type]}: "
            "compare two conditions or two numbers"
        )
    for name, cond in zip(list(given)[2:], rest, strict=True):
        if cond.type is not bool:
            raise errors.InputError(f"{name} is {TYPE_NAMES[cond.type]}, and must be a condition")
    ranges = {name: _infer_range(name, terms, rest) for name in terms.symbols}
    return Claim(old, new, tuple(rest), terms.symbols, ranges)


def _translate(name: str, value: Symbolic, terms: Terms) -> Term:
    try:
        return terms.from_expr(value if type(value) is Expr else bridge.from_torch(value))
    except TypeError as error:
        raise errors.InputError(
            f"{name} cannot be validated: {error}",
            fix="pass a symbolic size, an expression, a number, or text in Python syntax",
        ) from None


def _infer_range(name: str, terms: Terms, assume: Iterable[Term]) -> Range:
    symbol = terms.symbols[name]
    if name in terms.declared:
        return TRUTH if symbol.type is bool else terms.declared[name]
    stated = any(_states_range(part, symbol) for cond in assume for part in _iter_conjuncts(cond))
    return FULL if stated else _POSITIVE


def _iter_conjuncts(cond: Term) -> Iterator[Term]:
    if cond.op in ("and", "both"):
        for part in cond.args:
            yield from _iter_conjuncts(part)
    else:
        yield cond


def _states_range(cond: Term, symbol: Term) -> bool:
    """Whether a condition sets the symbol against a number such that it need not be positive."""
    if cond.op not in ("eq", "lt", "le") or symbol not in cond.args:
        return False
    a, b = cond.args
    bound = b if a is symbol else a
    if bound.op not in ("number", "infinite"):
        return False
    least = 1 if cond.op != "lt" else (0 if b is symbol else 2)
    return bool(bound.value < least)


# Error messages


def _refutation_error(
    before: Symbolic, after: Symbolic, found: Counterexample
) -> errors.ValidationError:
    old, new = _format_expression(before), _format_expression(after)
    place = ", ".join(f"{name} = {_format_number(value)}" for name, value in found.values.items())
    if found.after is None:
        outcome = f"is undefined ({found.problem})"
    else:
        outcome = f"is {_format_number(found.after)}"
    value = _format_number(found.before)
    return errors.ValidationError(
        f"{new} does not always equal {old}",
        where=f"{place or 'any values'}: {old} is {value}, and {new} {outcome}",
        counterexample={name: _to_python_number(value) for name, value in found.values.items()},
    )


def _format_expression(value: Symbolic) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _to_python_number(value: Any) -> int | float | bool:
    return float(value) if isinstance(value, Fraction) else value


def _format_number(value: object) -> str:
    """A fraction as Python writes the float, if it is one."""
    if isinstance(value, Fraction):
        return str(float(value)) if Fraction(float(value)) == value else str(value)
    return str(value)
