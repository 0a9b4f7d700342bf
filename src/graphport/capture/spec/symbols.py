"""Declares a symbol for each dynamic size of the inputs, from `dynamic_shapes`.

A root's example value comes from its first use, plain or derived, and every other use has to agree
with it. A size is never negative, so `d - 6` for a size also says that d is at least 6.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from graphport.capture.spec import walk
from graphport.capture.spec.inputs import Inputs
from graphport.capture.spec.walk import SizeSpec
from graphport.errors import ConstraintViolationError, SpecError
from graphport.symbolic import Expr, Number, Range, Scope, substitute
from graphport.symbolic.dims import Dim, Hint

Size = int | Expr
Declare = Callable[[str, Number, Range], Expr]
"""A symbol from its name, its value in the example, and its range."""


@dataclass(frozen=True)
class DeclaredSymbol:
    """A symbol of the scope and the user's definition of it.

    A named dim has `dim`. A symbol without one was asked for by Dim.AUTO if `automatic`, and else
    by Dim.DYNAMIC.
    """

    symbol: Expr
    dim: Dim | None
    automatic: bool = False
    place: str = ""
    """Where it is first in the spec: "dynamic_shapes['x'][0]"."""


class ExternalSymbols(Protocol):
    """Sizes that another tool has symbols for already, in place of a user's `dynamic_shapes`."""

    def leaves(self, declare: Declare, scope: Scope) -> Sequence[tuple[Size, ...] | Expr | None]:
        """By flat input: the sizes of a tensor, a number that varies, or None where it is fixed.

        What is known of the symbols is stated in the scope.
        """


class Spec:
    """The sizes of each input leaf, and the dims that the user declared."""

    def __init__(self, inputs: Inputs, dynamic_shapes: object, scope: Scope) -> None:
        self.scope = scope
        self.declared: dict[str, DeclaredSymbol] = {}
        self.ranges: dict[Expr, Range] = {}
        self.sizes: dict[str, tuple[Size, ...]] = {}
        """Sizes by the path of the leaf; leaves that are not here are static."""
        self.numbers: dict[str, Expr] = {}
        """Input numbers that are dynamic, by the path of the leaf."""
        if hasattr(dynamic_shapes, "leaves"):
            self._declare_external(inputs, dynamic_shapes)
            return
        entries = walk.walk_spec(inputs, dynamic_shapes)
        self._declare_roots([site for entry in entries for site in entry.sizes])
        for entry in entries:
            values = tuple(map(self._value, entry.sizes))
            if entry.is_tensor:
                self.sizes[entry.path] = values
            elif isinstance(values[0], Expr):
                self.numbers[entry.path] = values[0]

    def _declare_external(self, inputs: Inputs, given: ExternalSymbols) -> None:
        for leaf, value in zip(inputs.leaves, given.leaves(self._adopt, self.scope), strict=True):
            if isinstance(value, Expr):
                self.numbers[leaf.path] = value
            elif value is not None:
                self.sizes[leaf.path] = value

    def _adopt(self, name: str, hint: Number, limits: Range) -> Expr:
        symbol = self.scope.symbol(
            name, hint=hint, lower=limits.lower, upper=limits.upper, type=type(hint)
        )
        self.declared[name] = DeclaredSymbol(symbol, None, automatic=True)
        self.ranges[symbol] = limits
        return symbol

    def substitute(self, forms: Mapping[Expr, Any], ranges: Mapping[Expr, Range]) -> None:
        """Substitute the solutions of unnamed dims."""
        for path, sizes in self.sizes.items():
            self.sizes[path] = tuple(substitute(s, forms) for s in sizes)
        for path, number in self.numbers.items():
            self.numbers[path] = substitute(number, forms)
        self.ranges = dict(ranges)

    def _declare_roots(self, found: list[SizeSpec]) -> None:
        """Symbols for the named dims, in the order of appearance."""
        first: dict[str, tuple[SizeSpec, Dim]] = {}
        plain: dict[str, str] = {}
        least: dict[str, int] = {}
        for site in found:
            dim = site.dim
            if not isinstance(dim, Dim):
                continue
            name, root = dim.root.__name__, dim.root
            known = first.setdefault(name, (site, dim))[1].root
            if known != root:
                raise SpecError(
                    f"Found different definitions {known} and {root} for the same symbolic "
                    "dimension",
                    where=f"{site.place}, after {first[name][0].place}",
                    fix="one Dim for it, used in both places, or two names",
                )
            lowest = dim.least_root if site.is_size else root.min
            least[name] = max(least.get(name, 0), lowest)
            if dim is root:
                plain.setdefault(name, site.path)
        for name, (site, dim) in first.items():
            self._declare(site, dim, least[name], plain.get(name, site.path))

    def _declare(self, site: SizeSpec, dim: Dim, least: int, origin: str) -> None:
        root = dim.root
        value = _solve_root(site, dim)
        upper = math.inf if root.max is None else root.max
        if not root.min <= value <= upper:
            raise _out_of_range_error(site, dim, value)
        least = min(least, value)  # if it is below, another use does not agree: an error to come
        symbol = self.scope.symbol(
            root.__name__, hint=value, lower=least, upper=upper, origin=origin
        )
        self.declared[root.__name__] = DeclaredSymbol(symbol, root, place=site.place)
        self.ranges[symbol] = Range(least, upper)

    def _value(self, site: SizeSpec) -> Any:
        """The symbolic value of a site, or its example if it is fixed."""
        dim = site.dim
        if isinstance(dim, Dim):
            return self._evaluate_dim(site, dim)
        if isinstance(dim, Hint) and dim.kind != "STATIC":
            return self._declare_hint(site, dim)
        if isinstance(dim, int) and dim != site.example:
            raise ConstraintViolationError(
                f"Static shape constraint of {dim} does not match input size of {site.example}, "
                f"for {site.path}",
                where=site.place,
                fix=f"{site.place} = {site.example}",
            )
        return site.example

    def _declare_hint(self, site: SizeSpec, hint: Hint) -> Expr:
        lowest = 0 if site.is_size else -math.inf
        limits = Range(
            lowest if hint.min is None else hint.min, math.inf if hint.max is None else hint.max
        )
        if site.example < limits.lower or site.example > limits.upper:  # nan is neither
            raise ConstraintViolationError(
                f"{site.example} not in range "
                f"[{_format_bound(hint.min, lowest)}, {_format_bound(hint.max)}]: "
                f"the example of {site.path} is outside of {hint!r}",
                where=site.place,
                fix=f"{site.place} = {_widen_hint(hint, site.example)!r}",
            )
        name = self._free_name(hint.label)
        symbol = self.scope.symbol(
            name,
            hint=site.example,
            lower=limits.lower,
            upper=limits.upper,
            origin=site.path,
            type=type(site.example),
        )
        self.declared[name] = DeclaredSymbol(symbol, None, hint.kind == "AUTO", site.place)
        self.ranges[symbol] = limits
        return symbol

    def _free_name(self, label: str | None) -> str:
        taken = self.scope.arena.symbols
        if label is None:
            numbered = (f"s{i}" for i in itertools.count(len(self.declared)))
            return next(name for name in numbered if name not in taken)
        plain = re.sub(r"\W", "_", label)
        first = plain if plain.isidentifier() else f"dim_{plain}"
        numbered = (f"{first}_{i}" if i else first for i in itertools.count())
        return next(name for name in numbered if name not in taken)

    def _evaluate_dim(self, site: SizeSpec, dim: Dim) -> Expr:
        root = self.declared[dim.root.__name__].symbol
        value = self.scope.hint(root)
        assert isinstance(value, int)
        if dim.at(value) != site.example:
            raise ConstraintViolationError(
                f"Expected input at {site.path} ({_noun(site)} {site.example}) to be equal to "
                f"{dim.__name__}, where {dim.root.__name__} = {value}, but got {site.example}",
                where=site.place,
                fix=f"# pass an example in which {site.path} is {dim.__name__}, or give it "
                "another Dim",
            )
        factor, offset = dim.linear
        expr = root * factor + offset
        if dim is not dim.root:
            limits = self.ranges[root]
            self.ranges[expr] = Range(
                factor * limits.lower + offset, factor * limits.upper + offset
            )
        return expr


def _solve_root(site: SizeSpec, dim: Dim) -> int:
    """The root of a dim, solved for at its first use."""
    factor, offset = dim.linear
    assert isinstance(site.example, int)
    if (site.example - offset) % factor:
        what = site.path[site.path.rindex(".") + 1 :] if site.is_size else site.path
        raise SpecError(
            f"Expected {what} = {site.example} of input {'Tensor' if site.is_size else 'int'} to "
            f"be of the form {dim}, where {dim.root.__name__} is an integer",
            where=f"{site.place}, for {site.path}",
        )
    return (site.example - offset) // factor


def _out_of_range_error(site: SizeSpec, dim: Dim, value: int) -> ConstraintViolationError:
    root = dim.root
    if dim is root:
        text = f"the example {_noun(site)} of {site.path} is outside of {root}"
    else:
        text = f"{site.path} = {site.example} makes {root.__name__} = {value}"
    return ConstraintViolationError(
        f"{value} not in range [{root.min}, {_format_bound(root.max)}]: {text}",
        where=site.place,
        fix=_format_wider_dim(site, root, value),
    )


def _format_wider_dim(site: SizeSpec, root: Dim, value: int) -> str:
    if value < 0:  # only an int can be that, and no Dim
        return f"{site.place} = {Dim.DYNAMIC}"
    low = min(root.min, value)
    high = None if root.max is None else max(root.max, value)
    return f"{root.__name__} = {Dim(root.__name__, min=low or None, max=high)}"


def _widen_hint(hint: Hint, value: float) -> Hint:
    low = None if hint.min is None else min(hint.min, value)
    high = None if hint.max is None else max(hint.max, value)
    return replace(hint, min=low, max=high)


def _noun(site: SizeSpec) -> str:
    return "size" if site.is_size else "value"


def _format_bound(limit: float | None, default: float = math.inf) -> str:
    return str(default if limit is None else limit)
