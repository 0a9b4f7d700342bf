"""Errors for data-dependent guards, in the names of the user's variables.

The error says the question in the names that the running code has for its values, where each value
came from, and the two statements of which one settles the question.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphport import source
from graphport.errors import DataDependentError
from graphport.source import Location
from graphport.symbolic import logic
from graphport.symbolic.evaluation import substitute
from graphport.symbolic.facts import occurs
from graphport.symbolic.integers import split_terms
from graphport.symbolic.nodes import Expr, Value, operands, symbols
from graphport.symbolic.printing import to_code, to_str

if TYPE_CHECKING:
    from graphport.symbolic.scope import Scope

_NO_VALUE = "keep it a tensor, or torch._check what the program needs to know of it"


@dataclass(frozen=True)
class VariableNames:
    """What the code that is running calls its values, and the names that are taken."""

    names: dict[Expr, str] = field(default_factory=dict)
    taken: Collection[str] = ()


def make_undecided_error(scope: Scope, e: Value, where: Location | None) -> DataDependentError:
    """The error for a question, or a number that Python needs, which depends on data."""
    return _Question(scope, e).error(where)


class _Question:
    def __init__(self, scope: Scope, e: Value) -> None:
        self.scope = scope
        self.origins = dict(scope.origins)
        words = scope.vocabulary()
        # Of two names for one value, the first.
        named = {scope.simplify(x): name for x, name in reversed(words.names.items())}
        self.names = {x: name for x, name in named.items() if type(x) is Expr}
        self.asked = self._in_names(e)
        self.unknown = list(dict.fromkeys(self._unknown(self.asked)))
        nameless = [x for x in self.unknown if x not in self.names and self._expression(x)]
        self.letters = dict(zip(nameless, _propose_letters(words.taken), strict=False))

    def error(self, where: Location | None) -> DataDependentError:
        names = {x: self._expression(x) for x in self.letters} | self.names
        is_branch = type(self.asked) is Expr and self.asked.type is bool
        need = "the program branches on it" if is_branch else "Python needs its value"
        what = [
            f"Could not guard on data-dependent expression {to_str(self.asked, names)}: {need}, "
            "and it depends on the data of a tensor"
        ]
        named = [x for x in self.unknown if x in self.names]
        what += [f"  {names[x]} comes from {self._origin(x)}" for x in named]
        fix = [self._check(a) for a in self._answers()] if is_branch else [_suggest_value_fix()]
        return DataDependentError("\n".join(what), where=where, fix=fix)

    def _in_names(self, e: Value) -> Any:
        """e in terms of what has a name: with z named for u0 + 4, u0 is z - 4."""
        for u in self._unknown(e):
            if e in self.names or u in self.names or u.kind != "symbol":
                continue
            for x, name in list(self.names.items()):
                factor = dict(split_terms(x)[0]).get(u) if x.type is int else None
                if factor in (1, -1) and not occurs(u, x - u * factor):
                    stand_in = Expr(x.arena, "symbol", int, (), 0, (0, u.index, 1), x.span)
                    stand_in.name, stand_in.index = name, u.index
                    self.names[stand_in], self.origins[stand_in] = name, self.origins[u]
                    e = substitute(e, {u: (stand_in - x) * factor + u})
                    break
        return e

    def _unknown(self, e: Value) -> Iterator[Expr]:
        """The values that come from data, as the program sees them."""
        if type(e) is not Expr:
            return
        if (e in self.origins or e in self.names) and not self.scope.is_backed(e):
            yield e
        else:
            for x in operands(e):
                yield from self._unknown(x)

    def _answers(self) -> list[Any]:
        """What may be asserted. An operator that asks for the sign of a size wants no other."""
        answers = [self.asked, logic.not_(self.asked)]
        if self.scope.internal and self.asked.kind == "ge0":
            ((_, factor), *more), const = split_terms(self.asked.args[0])
            if not more and const in (0, -1):
                return answers[:1] if factor > 0 else answers[1:]
        return answers

    def _check(self, answer: Any) -> str:
        letters = self.letters
        first = "".join(f"{letter} = {self._expression(x)}; " for x, letter in letters.items())
        then = f", and use {', '.join(letters.values())} from there on" if letters else ""
        return f"{first}torch._check({to_code(answer, letters | self.names)}){then}"

    def _origin(self, x: Expr) -> object:
        origin = self.origins.get(x)
        if origin is None and x.kind != "symbol":  # of what has a name: the first that is in it
            origin = next(u for u in symbols(x) if self.scope.is_fresh(u))
        return self.origins[origin] if type(origin) is Expr else origin

    def _expression(self, x: Expr) -> str:
        return getattr(self._origin(x), "expression", "")


def _propose_letters(taken: Collection[str]) -> Iterator[str]:
    numbered = (f"n{i}" for i in itertools.count(1))
    return (name for name in itertools.chain("nmk", numbered) if name not in taken)


def _suggest_value_fix() -> str:
    """What to write where Python wants a plain number."""
    spot = source.locate_user_expression()
    call = spot.expression if spot is not None else ""
    if call.startswith("len(") and call.endswith(")"):
        return f"{call[4:-1]}.shape[0] stays symbolic, {call} cannot"
    return _NO_VALUE
