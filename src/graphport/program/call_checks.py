"""`InputChecks`: what `.module()` checks of its inputs before it runs.

`InputChecks` is data: what each flat input must be, the ranges of sizes, and conditions between
them. From it follows a plan, a list of steps in the order of the inputs: the first place at which a
symbol is met tells its value, every later one compares. A size whose symbols are not known yet
waits until they are; one whose symbols no input tells is checked against its range alone.

The plan is used in two ways. Walking it costs microseconds per size and raises an error in the
user's terms. Compiled into one Python function it costs a tenth of that and answers yes or no; the
walk follows only after a no, and has to find the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from graphport.errors import InternalError
from graphport.program.input_checks import (
    EVALUATION_ERRORS,
    Binds,
    Code,
    Environment,
    Equals,
    HasNoOffset,
    HasStrides,
    Holds,
    IsConstant,
    IsNonOverlapping,
    IsNumber,
    IsTensor,
    Place,
    Solves,
    Step,
    Within,
    variable_name,
)
from graphport.symbolic import Expr, Range, Truth, Value, ge, le, substitute, symbols


@dataclass(frozen=True)
class InputShape:
    """What an input must be: `path` as the user passes it, and one of three kinds.

    A tensor has `sizes`, `dtype` and the device it was captured on, of which the type counts, and
    `strides` if the program depends on them; a number that is an input of the program has
    `number`; anything else is the constant `value`.
    """

    path: str
    sizes: tuple[int | Expr, ...] | None = None
    dtype: torch.dtype | None = None
    value: Any = None
    number: Expr | None = None
    device: torch.device | None = None
    strides: tuple[int | Expr, ...] | None = None
    from_start: bool = False
    """Whether the tensor must have storage offset 0."""


@dataclass(frozen=True, eq=False)
class InputChecks:
    """Checks flat inputs; raises RuntimeError in the user's terms."""

    inputs: Sequence[InputShape]
    ranges: dict[Expr, Range]
    facts: Sequence[Expr]
    written: Mapping[int, Sequence[int]] | None = None
    """The inputs that the program writes to, and those that must not share memory with each then:
    which it reads later. None if that is not known."""

    def __call__(self, leaves: Sequence[object]) -> Environment:
        """Walk through the checks; the values of the symbols."""
        if len(leaves) != len(self.inputs):
            raise ValueError(f"expected {len(self.inputs)} flat inputs, but got {len(leaves)}")
        env: Environment = {}
        for step in self.steps:
            problem = step.failure(leaves, env)
            if problem is not None:
                raise RuntimeError(problem)
        return env

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(_Plan(self).steps)

    def compiled(self, taking: str, unpacking: Sequence[str] = (), **names: object) -> Any:
        """The checks as one function of the parameters `taking`: True if all of them pass.

        `unpacking` is Python that puts the flat inputs into variables (`variable(0)`, ...) and may
        return first. `names` are the objects that it refers to.
        """
        code = Code()
        body = [*unpacking, *(line for step in self.steps for line in step.lines(code))]
        source = [
            f"def accepts({taking}):",
            "    try:",
            *(f"        {line}" for line in body),
            "        return True",
            "    except undefined: return False",
        ]
        namespace = {**code.names, **names, "undefined": EVALUATION_ERRORS}
        # The name of the file says that these lines are not the user's.
        exec(compile("\n".join(source), f"{__file__}: compiled", "exec"), namespace)
        return namespace["accepts"]

    @cached_property
    def accepts(self) -> Callable[[Sequence[Any]], bool]:
        """Whether flat inputs pass."""
        targets = [variable_name(i) for i in range(len(self.inputs))]
        unpacking = [f"{', '.join(targets)}, = leaves"] if targets else []
        accepts: Callable[[Sequence[Any]], bool] = self.compiled("leaves", unpacking)
        return accepts

    def explain(self, leaves: Sequence[object]) -> None:
        """Raise what is wrong with flat inputs that the compiled checks refused."""
        self(leaves)
        raise InternalError("the compiled checks refuse inputs that the checks in words accept")


class _Plan:
    """The steps for some checks, in the order in which they are taken."""

    def __init__(self, checks: InputChecks) -> None:
        places = [_find_symbolic_places(index, shape) for index, shape in enumerate(checks.inputs)]
        placed = {e: None for some in places for _, e in some}
        # What is not said of a symbol is what it was declared with: capture relied on that.
        declared = {s: s.span for e in placed for s in symbols(e)}
        self.ranges = {**declared, **checks.ranges}
        self.steps: list[Step] = []
        self.origins: dict[Expr, str] = {}
        """The symbols that are known so far, and the places that tell them."""
        waiting: list[tuple[Place, Expr]] = []
        for index, shape in enumerate(checks.inputs):
            self.steps.append(_make_kind_check(index, shape))
            waiting += [(place, e) for place, e in places[index] if not self._tell(place, e)]
        waiting = self._settle(waiting)
        self.steps += [Within(place, self.ranges[e]) for place, e in waiting if e in self.ranges]
        # Ranges of what no input has as its size, such as the sum of two.
        derived = [
            cond
            for e, limits in self.ranges.items()
            if e not in placed and e not in self.origins
            for cond in _express_range(e, limits)
        ]
        known = [cond for cond in (*derived, *checks.facts) if self._known(cond)]
        self.steps += [Holds(cond, self.origins) for cond in known]
        for i, shape in enumerate(checks.inputs):
            if shape.strides is not None and all(map(self._known, shape.strides)):
                self.steps.append(HasStrides(shape.path, i, shape.strides))
            if shape.from_start:
                self.steps.append(HasNoOffset(shape.path, i))
        tensors = {i: s.path for i, s in enumerate(checks.inputs) if s.sizes is not None}
        for i, others in (checks.written or {}).items():
            self.steps.append(IsNonOverlapping(i, {j: tensors[j] for j in (i, *others)}))

    def _settle(self, waiting: list[tuple[Place, Expr]]) -> list[tuple[Place, Expr]]:
        """Steps for sizes that had to wait for symbols; those that no input determines."""
        while waiting:
            left = [(place, e) for place, e in waiting if not self._tell(place, e)]
            if len(left) == len(waiting):
                # A product with a known factor, which may be 0, is the last to ask.
                solved = next((w for w in waiting if self._tell(*w, by_products=True)), None)
                if solved is None:
                    break
                left.remove(solved)
            waiting = left
        return waiting

    def _known(self, e: Value) -> bool:
        return all(s in self.origins for s in symbols(e))

    def _tell(self, place: Place, e: Expr, by_products: bool = False) -> bool:
        """Steps that bind or check the number `e` at a place; False if its symbols are unknown."""
        limits = self.ranges.get(e)
        if e in self.origins:
            self.steps.append(Equals(place, e))
            return True
        if e.kind == "symbol":
            self.steps.append(Binds(place, e))
            self.origins[e] = place.path
        elif self._known(e):
            self.steps.append(Equals(place, e))
        else:
            solution = self._solution(e)
            if solution is None or not (by_products or isinstance(solution[1], int)):
                return False
            # A size out of range is more telling than one of the wrong form.
            if limits is not None:
                self.steps.append(Within(place, limits))
                limits = None
            symbol, factor, rest = solution
            self.steps.append(Solves(place, e, symbol, factor, rest, self.ranges[symbol]))
            self.origins[symbol] = f"{place.path} = {e}"
        if limits is not None:
            self.steps.append(Within(place, limits))
        return True

    def _solution(self, e: Expr) -> tuple[Expr, int | Expr, int | Expr] | None:
        """The symbol, factor and rest of `e` as factor*symbol + rest, if only that is unknown."""
        unknown = [s for s in symbols(e) if s not in self.origins]
        if len(unknown) != 1 or e.type is not int:
            return None
        (symbol,) = unknown
        terms = e.args if e.kind == "add" else ((e, 1),)
        if not all(_is_linear(mono, symbol) for mono, _ in terms):
            return None
        rest = substitute(e, {symbol: 0})
        return symbol, substitute(e, {symbol: 1}) - rest, rest


def _is_linear(mono: Expr, symbol: Expr) -> bool:
    """Whether a product has the symbol at most once, as a factor."""
    if mono.kind != "mul":
        return mono is symbol or symbol not in symbols(mono)
    others = [part for part, _ in mono.args if part is not symbol]
    powers = [power for part, power in mono.args if part is symbol]
    return powers in ([], [1]) and all(symbol not in symbols(part) for part in others)


def _make_kind_check(index: int, shape: InputShape) -> Step:
    if shape.sizes is not None:
        return IsTensor(shape.path, index, shape.sizes, shape.dtype, shape.device)
    if shape.number is not None:
        return IsNumber(shape.path, index, shape.number.type)
    return IsConstant(shape.path, index, shape.value)


def _find_symbolic_places(index: int, shape: InputShape) -> list[tuple[Place, Expr]]:
    """Where the input has numbers that depend on symbols."""
    if shape.number is not None:
        return [(Place(shape.path, index), shape.number)]
    return [
        (Place(f"{shape.path}.shape[{d}]", index, d), size)
        for d, size in enumerate(shape.sizes or ())
        if isinstance(size, Expr)
    ]


def _express_range(e: Expr, limits: Range) -> list[Truth]:
    """A range as conditions; what the declared ranges of the symbols imply is left out."""
    conditions = [] if limits.lower == -math.inf else [ge(e, limits.lower)]
    conditions += [] if limits.upper == math.inf else [le(e, limits.upper)]
    return [cond for cond in conditions if cond is not True]
