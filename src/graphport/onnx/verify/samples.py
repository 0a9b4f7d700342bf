"""Chooses other sizes within the ranges of the dims, and makes inputs of them.

Sizes are chosen by symbol and tried against the program's own checks: what those refuse, no caller
can pass, and what is refused by a condition between sizes is a finding of its own. The values of
the new inputs are drawn anew with the properties of the example's (`drawing`) and what operators
need of them (`needs`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch

from graphport.compat.torch import pytree
from graphport.errors import InputError
from graphport.onnx.verify import needs
from graphport.onnx.verify.drawing import draw_any, draw_like, repeat_example
from graphport.program import ExportedProgram, InputChecks
from graphport.program.input_checks import EVALUATION_ERRORS
from graphport.symbolic import Expr, evaluate, symbols
from graphport.tensors.lazy import lacks_data

Sizes = dict[Expr, int]
_TRIES = 300
_LARGE = 1 << 22
"""Elements of inputs that are drawn, whatever the example has."""
_SEED = 23
_REFUSALS = 8
"""Conditions to show with sizes that they refuse."""
_NEARBY = 24
"""Sizes of each symbol to look for one at which a condition does not hold."""


@dataclass(frozen=True)
class Refusal:
    """Sizes within the ranges of the dims that the program does not take, and why."""

    sizes: Sizes
    reason: str


def fill_missing_data(inputs: object) -> Any:
    """Inputs that can be run: a tensor that has no numbers is given some that suit its dtype."""
    generator = _make_generator()

    def filled(t: torch.Tensor) -> torch.Tensor:
        return draw_any(t.dtype, t.shape, generator) if lacks_data(t) else t

    return pytree.tree_map_only(torch.Tensor, filled, inputs)


class Samples:
    """Makes inputs of other sizes from those of an example."""

    def __init__(self, program: ExportedProgram, leaves: Sequence[object]) -> None:
        self.program = program
        checks = self.checks = program.checks
        # Of sizes alone: what is looked at first has no memory of its own.
        shapes = [replace(shape, strides=None) for shape in checks.inputs]
        self.size_checks = InputChecks(shapes, checks.ranges, checks.facts)
        self.leaves = leaves
        self.example: Sizes = {s: n for s, n in self.checks(leaves).items() if s.type is int}
        self.refused: dict[Any, Refusal] = {}
        """By the condition that does not hold."""

    @cached_property
    def symbols(self) -> list[Expr]:
        """Those of integers that sizes of inputs, or inputs themselves, depend on."""
        found: dict[Expr, None] = {}
        for shape in self.checks.inputs:
            numbers = [shape.number] if shape.number is not None else [*(shape.sizes or ())]
            for e in numbers:
                if isinstance(e, Expr):
                    found.update(dict.fromkeys(s for s in symbols(e) if s.type is int))
        return list(found)

    def named(self, given: Mapping[str, int]) -> Sizes:
        """Sizes by the names of their dims, the others as in the example."""
        known = {str(s): s for s in self.symbols}
        unknown = [name for name in given if name not in known]
        if unknown:
            have = ", ".join(known) or "none"
            raise InputError(
                f"sizes: the program has no dim {', '.join(map(repr, unknown))}; it has {have}",
                fix=[f'sizes=[{{"{name}": 7}}]' for name in list(known)[:1]],
            )
        return {**self.example, **{known[name]: n for name, n in given.items()}}

    def others(
        self, limit: int, affords: Callable[[float], bool] = lambda cost: True
    ) -> Iterator[Sizes]:
        """Sizes within the ranges of the dims: larger, 1, 0, and mixed.

        `affords`: whether there is time for inputs so many times as large as the example.
        """
        if not self.symbols or limit < 1:
            return
        known: list[Sizes] = [{s: self.example.get(s, 0) for s in self.symbols}]
        count = 0
        telling, rest = self._corner_sizes(), self._mixed_sizes()
        if not affords(sum(map(self.cost, telling))):
            telling.sort(key=self.cost)  # where time is short, the ends come before larger ones
        for proposal in itertools.islice(itertools.chain(telling, rest), _TRIES):
            if not affords(0) or count == limit:
                return
            if proposal in known or self._is_large(proposal) or self.refusal(proposal):
                continue
            known.append(proposal)
            if affords(self.cost(proposal)):
                count += 1
                yield proposal

    def refusals(self) -> list[Refusal]:
        """For each condition on sizes, sizes at which it does not hold."""
        for fact in self.checks.facts:
            if fact not in self.refused and len(self.refused) < _REFUSALS:
                sizes = next(self._violating_sizes(fact), None)
                if sizes is not None:
                    self.refused[fact] = Refusal(sizes, f"{fact} does not hold")
        return list(self.refused.values())[:_REFUSALS]

    def cost(self, sizes: Sizes) -> float:
        """How many elements the inputs have, as a multiple of those of the example."""
        return self._elements(sizes) / max(self._elements(self.example), 1)

    def _elements(self, sizes: Sizes) -> int:
        return sum(prod(shape) for shape in self._shapes(sizes) or () if shape is not None)

    def _is_large(self, sizes: Sizes) -> bool:
        """Whether inputs take more memory than anybody expects who knows the example."""
        return self._elements(sizes) > max(_LARGE, 2 * self._elements(self.example))

    def refusal(self, sizes: Sizes) -> str | None:
        """Why the program does not take such sizes."""
        try:
            made = self._made(sizes, _make_memoryless)
        except RuntimeError:  # of torch: more elements than can be counted
            made = None
        if made is None:
            return "there are no tensors of such sizes"
        if self.size_checks.accepts(made):
            return None
        try:
            self.size_checks(made)
        except RuntimeError as error:
            failed = next((f for f in self.checks.facts if not _is_satisfied(f, sizes)), None)
            reason = str(error) if failed is None else f"{failed} does not hold"
            if failed is not None:
                self.refused.setdefault(failed, Refusal(sizes, reason))
            return reason
        return None

    def drawn(self, sizes: Sizes) -> list[Any]:
        """Flat inputs of these sizes with new values."""
        generator = _make_generator()

        def like(i: int, t: torch.Tensor, wanted: list[int]) -> torch.Tensor:
            made = draw_like(t, wanted, generator, needs.evaluate_rules(self._needs[i], sizes))
            return self._laid_out(i, made, sizes)

        return self._made(sizes, like) or []

    def repeated(self, sizes: Sizes) -> list[Any]:
        """Flat inputs of these sizes with the example's values, for programs that need those."""

        def like(i: int, t: torch.Tensor, wanted: list[int]) -> torch.Tensor:
            return self._laid_out(i, repeat_example(t, wanted), sizes)

        return self._made(sizes, like) or []

    def _laid_out(self, i: int, t: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        """A tensor in the layout that the program needs, if it depends on one."""
        wanted = self.checks.inputs[i].strides
        if wanted is None:
            return t
        strides = [_evaluate_size(stride, sizes, 1) for stride in wanted]
        return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)

    @cached_property
    def _needs(self) -> list[list[needs.Rule]]:
        return needs.find_input_rules(self.program)

    def _made(
        self, sizes: Mapping[Expr, int], like: Callable[[int, torch.Tensor, list[int]], Any]
    ) -> list[Any] | None:
        """Flat inputs of these sizes; None if there can be none."""
        shapes = self._shapes(sizes)
        if shapes is None:
            return None
        made: list[Any] = []
        for i, (leaf, shape) in enumerate(zip(self.leaves, shapes, strict=True)):
            number = self.checks.inputs[i].number
            if number is not None:
                leaf = _evaluate_size(number, sizes, leaf)
            made.append(leaf if shape is None else like(i, leaf, shape))
        return made

    def _shapes(self, sizes: Mapping[Expr, int]) -> list[list[int] | None] | None:
        """The sizes of each input, where it is a tensor."""
        found: list[list[int] | None] = []
        for leaf, shape in zip(self.leaves, self.checks.inputs, strict=True):
            if shape.sizes is None or not isinstance(leaf, torch.Tensor):
                found.append(None)
                continue
            wanted = [_evaluate_size(s, sizes, None) for s in shape.sizes]
            if any(n is None or n < 0 for n in wanted):
                return None
            found.append(wanted)
        return found

    def _limits(self, s: Expr) -> tuple[int, int]:
        span = self.checks.ranges.get(s, s.span)
        return int(max(span.lower, -(1 << 31))), int(min(span.upper, 1 << 31))

    def _within(self, s: Expr, n: int) -> int:
        low, high = self._limits(s)
        return min(max(n, low), high)

    @cached_property
    def _example_sizes(self) -> Sizes:
        return {s: self.example.get(s, self._within(s, 2)) for s in self.symbols}

    def _corner_sizes(self) -> list[Sizes]:
        """The most telling sizes: all different, the ends, larger and smaller ones."""
        now, places = self._example_sizes, list(enumerate(self.symbols))
        return [
            {s: self._within(s, now[s] + 1 + i) for i, s in places},
            {s: self._within(s, 1) for s in now},
            {s: self._within(s, 0) for s in now},
            {s: self._within(s, 2 * now[s]) for s in now},
            {s: self._within(s, now[s] - 1 - i) for i, s in places},
        ]

    def _mixed_sizes(self) -> Iterator[Sizes]:
        """One size after the other, then any; conditions may refuse them."""
        now = self._example_sizes
        for s in now:
            for n in (0, 1, now[s] + 1, 2 * now[s], now[s] - 1):
                yield {**now, s: self._within(s, n)}
        choice = random.Random(_SEED)
        for reach in itertools.count(2):
            lows = {s: self._limits(s)[0] for s in now}
            most = {
                s: min(self._within(s, low + 2 * reach), 4 * now[s] + 8) for s, low in lows.items()
            }
            yield {
                s: self._within(s, choice.randint(low, max(low, most[s])))
                for s, low in lows.items()
            }

    def _violating_sizes(self, fact: Any) -> Iterator[Sizes]:
        """Sizes at which a condition does not hold: within the ranges, or below what it left."""
        named = [s for s in symbols(fact) if s in self.symbols]
        now = {s: self.example.get(s, self._limits(s)[0]) for s in self.symbols}
        choices = [self._candidate_sizes(s, now[s], fact) for s in named]
        for values in itertools.islice(itertools.product(*choices), _NEARBY**2):
            proposal = {**now, **dict(zip(named, values, strict=True))}
            if not _is_satisfied(fact, proposal):
                yield proposal

    def _candidate_sizes(self, s: Expr, now: int, fact: object) -> list[int]:
        """Sizes of a symbol to try: the ends, those of the condition, and those around."""
        low, high = self._limits(s)
        around = sorted(range(now - _NEARBY, now + _NEARBY), key=lambda n: abs(n - now))
        said = (c + d for c in _list_constants(fact) for d in (0, -1, 1))
        wanted = dict.fromkeys(n for n in (0, 1, low, *said, *around) if min(low, 0) <= n <= high)
        return sorted(wanted, key=lambda n: n < low)[: 2 * _NEARBY]


def _list_constants(e: object) -> Iterator[int]:
    """The numbers in an expression."""
    if isinstance(e, Expr):
        yield from _list_constants((*e.args, e.const))
    elif isinstance(e, tuple):
        for part in e:
            yield from _list_constants(part)
    elif type(e) is int:
        yield abs(e)


def _is_satisfied(fact: Any, sizes: Mapping[Expr, int]) -> bool:
    if any(s not in sizes for s in symbols(fact)):
        return True
    try:
        return bool(evaluate(fact, sizes))
    except EVALUATION_ERRORS:
        return False


def _evaluate_size(e: object, sizes: Mapping[Expr, int], otherwise: object) -> Any:
    if not isinstance(e, Expr):
        return e
    if any(s not in sizes for s in symbols(e)):
        return otherwise
    return evaluate(e, sizes)


def _make_memoryless(i: int, t: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A tensor of these sizes that takes no memory, to be checked and thrown away."""
    return torch.empty((), dtype=t.dtype, device=t.device).expand(sizes)


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
