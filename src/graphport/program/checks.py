"""What `.module()` checks of its inputs before it runs.

A check is compiled once from the sizes that the program was captured with and walks the flat inputs
in order: the first time it meets a symbol it learns its value from the input, after that it
compares. Conditions that relate several inputs follow at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphport.symbolic import Expr, Range, evaluate, symbolic_repr, symbols

Environment = dict[Expr, int]


@dataclass(frozen=True)
class InputShape:
    """What an input must be: `path` as the user passes it, sizes for a tensor, or a constant."""

    path: str
    sizes: tuple[int | Expr, ...] | None = None
    dtype: torch.dtype | None = None
    value: Any = None


class InputChecks:
    """Checks flat inputs; raises RuntimeError in the user's terms."""

    def __init__(
        self, inputs: Sequence[InputShape], ranges: dict[Expr, Range], facts: Sequence[Expr]
    ) -> None:
        self.inputs = tuple(inputs)
        self.ranges = dict(ranges)
        self.facts = tuple(facts)
        self._steps = [_step(shape, self.ranges) for shape in self.inputs]

    def __call__(self, leaves: Sequence[Any]) -> Environment:
        env: Environment = {}
        late: list[tuple[str, Expr, int]] = []
        for step, leaf in zip(self._steps, leaves, strict=True):
            step(leaf, env, late)
        for path, expr, size in late:
            _compare(path, expr, size, env)
        for fact in self.facts:
            if all(s in env for s in symbols(fact)) and not evaluate(fact, env):
                raise RuntimeError(
                    f"Runtime assertion failed for expression {symbolic_repr(fact)}: {fact} does "
                    f"not hold for {_values(fact, env)}"
                )
        return env


Step = Callable[[Any, Environment, list[tuple[str, Expr, int]]], None]


def _step(shape: InputShape, ranges: dict[Expr, Range]) -> Step:
    if shape.sizes is None:
        return _constant(shape.path, shape.value)
    path, rank, dtype = shape.path, len(shape.sizes), shape.dtype
    static = [(d, s) for d, s in enumerate(shape.sizes) if type(s) is int]
    dynamic = [(d, s, _solver(s), ranges.get(s)) for d, s in enumerate(shape.sizes)
               if isinstance(s, Expr)]  # fmt: skip

    def check(leaf: Any, env: Environment, late: list[tuple[str, Expr, int]]) -> None:
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(
                f"Expected input at {path} to be a tensor, but got {type(leaf).__name__}"
            )
        sizes = leaf.shape
        if len(sizes) != rank:
            raise RuntimeError(
                f"Expected input at {path} to have {rank} dimensions, but got {len(sizes)}"
            )
        if leaf.dtype is not dtype:
            raise RuntimeError(
                f"Expected input at {path} to have dtype {dtype}, but got {leaf.dtype}"
            )
        for d, want in static:
            if sizes[d] != want:
                raise RuntimeError(
                    f"Expected input at {path}.shape[{d}] to be equal to {want}, but got {sizes[d]}"
                )
        for d, expr, solve, limits in dynamic:
            size = sizes[d]
            if limits is not None:
                _within(f"{path}.shape[{d}]", size, limits)
            known = env.get(expr)
            if known is None:
                solve(f"{path}.shape[{d}]", size, env, late)
            elif known != size:
                raise RuntimeError(
                    f"Expected input at {path}.shape[{d}] to be equal to {known}, but got {size}"
                )

    return check


def _constant(path: str, value: Any) -> Step:
    def check(leaf: Any, env: Environment, late: list[tuple[str, Expr, int]]) -> None:
        if leaf is not value and (type(leaf) is not type(value) or leaf != value):
            raise RuntimeError(f"Expected input at {path} to be equal to {value}, but got {leaf}")

    return check


def _solver(expr: Expr) -> Callable[[str, int, Environment, list[tuple[str, Expr, int]]], None]:
    """How a size tells the value of the symbol in `expr`."""
    if expr.kind == "symbol":

        def learn(path: str, size: int, env: Environment, late: Any) -> None:
            env[expr] = size

        return learn

    found = symbols(expr)
    linear = len(found) == 1 and expr.kind in ("add", "mul")
    root = found[0]
    base = int(evaluate(expr, {root: 0})) if linear else 0
    factor = int(evaluate(expr, {root: 1})) - base if linear else 0
    linear = linear and evaluate(expr, {root: 2}) == base + 2 * factor

    def solve(path: str, size: int, env: Environment, late: Any) -> None:
        if all(s in env for s in found):
            _compare(path, expr, size, env)
        elif not linear:
            late.append((path, expr, size))
        elif (size - base) % factor:
            raise RuntimeError(
                f"Expected input at {path} = {size} to be of the form {expr}, where {root} is an "
                "integer"
            )
        else:
            env[root] = (size - base) // factor

    return solve


def _compare(path: str, expr: Expr, size: int, env: Environment) -> None:
    if not all(s in env for s in symbols(expr)):
        return
    want = evaluate(expr, env)
    if size != want:
        raise RuntimeError(f"Expected input at {path} to be equal to {want}, but got {size}")


def _within(path: str, size: int, limits: Range) -> None:
    if size < limits.lower:
        raise RuntimeError(f"Expected input at {path} to be >= {limits.lower}, but got {size}")
    if size > limits.upper:
        raise RuntimeError(f"Expected input at {path} to be <= {limits.upper}, but got {size}")


def _values(fact: Expr, env: Environment) -> str:
    return ", ".join(f"{s} = {env[s]}" for s in symbols(fact))
