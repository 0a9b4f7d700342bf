"""A translation validator: is one expression as good as another?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, TypeAlias

from graphport import errors
from graphport.arguments import ITERABLE, instance_of, takes
from graphport.fx.claim import Claim, Counterexample
from graphport.fx.parse import parse
from graphport.fx.terms import NUMBER, Term, Terms
from graphport.symbolic import Expr, Range, bridge
from graphport.symbolic.ranges import FULL, TRUTH, inf

Symbolic: TypeAlias = Any  # torch.SymInt, SymFloat, SymBool; an expression; a number; or text

_POSITIVE = Range(1, inf)
_CONDITION = instance_of("a condition", "builtins:bool", "torch:SymBool", "graphport.symbolic:Expr")


@takes(assume=ITERABLE | _CONDITION)
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
    claim = _claim(before, after, assume)
    found = claim.small_counterexample()
    if found is None:
        try:
            found = solver.prove(claim)
        except solver.Impossible:
            raise errors.UserError(
                "no values satisfy all conditions of assume, so nothing would be proven"
            ) from None
        except solver.Undecided as reason:
            raise errors.UndecidedError(
                f"neither a proof nor a counterexample was found that {_text(after)} equals "
                f"{_text(before)}: {reason}",
                fix="add what is known of the symbols to assume, or compare smaller parts",
            ) from None
    if found is not None:
        raise _refutation(before, after, found)
    return True


def _load_solver() -> Any:
    try:
        from graphport.fx import solver
    except ModuleNotFoundError as error:
        if error.name != "z3":
            raise
        raise errors.MissingPackageError(
            "gp.fx.validate needs z3, which is not installed", fix="pip install graphport[z3]"
        ) from None
    return solver


# What is claimed


def _claim(before: Symbolic, after: Symbolic, assume: Iterable[Symbolic] | Symbolic) -> Claim:
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
        {name: parse(value, terms, name) for name, value in given.items() if isinstance(value, str)}
    )
    for name, term in found.items():
        if term.op == "infinite":
            raise errors.InputError(f"{name} is {term.value}, which is no number to compare with")
    old, new, *rest = (found[name] for name in given)
    if (old.type is bool) is not (new.type is bool):
        raise errors.InputError(
            f"before is {NUMBER[old.type]} and after is {NUMBER[new.type]}: "
            "compare two conditions or two numbers"
        )
    for name, cond in zip(list(given)[2:], rest, strict=True):
        if cond.type is not bool:
            raise errors.InputError(f"{name} is {NUMBER[cond.type]}, and must be a condition")
    ranges = {name: _range(name, terms, rest) for name in terms.symbols}
    return Claim(old, new, tuple(rest), terms.symbols, ranges)


def _translate(name: str, value: Symbolic, terms: Terms) -> Term:
    try:
        return terms.from_expr(value if type(value) is Expr else bridge.from_torch(value))
    except TypeError as error:
        raise errors.InputError(
            f"{name} cannot be validated: {error}",
            fix="pass a symbolic size, an expression, a number, or text in Python syntax",
        ) from None


def _range(name: str, terms: Terms, assume: Iterable[Term]) -> Range:
    symbol = terms.symbols[name]
    if name in terms.declared:
        return TRUTH if symbol.type is bool else terms.declared[name]
    stated = any(_states_range(part, symbol) for cond in assume for part in _conjuncts(cond))
    return FULL if stated else _POSITIVE


def _conjuncts(cond: Term) -> Iterator[Term]:
    if cond.op in ("and", "both"):
        for part in cond.args:
            yield from _conjuncts(part)
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


# What is said


def _refutation(before: Symbolic, after: Symbolic, found: Counterexample) -> errors.ValidationError:
    old, new = _text(before), _text(after)
    place = ", ".join(f"{name} = {_number(value)}" for name, value in found.values.items())
    if found.after is None:
        outcome = f"is undefined ({found.problem})"
    else:
        outcome = f"is {_number(found.after)}"
    return errors.ValidationError(
        f"{new} does not always equal {old}",
        where=f"{place or 'any values'}: {old} is {_number(found.before)}, and {new} {outcome}",
        counterexample={name: _plain(value) for name, value in found.values.items()},
    )


def _text(value: Symbolic) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _plain(value: Any) -> int | float | bool:
    return float(value) if isinstance(value, Fraction) else value


def _number(value: Any) -> str:
    """A fraction as Python writes the float, if it is one."""
    if isinstance(value, Fraction):
        return str(float(value)) if Fraction(float(value)) == value else str(value)
    return str(value)
