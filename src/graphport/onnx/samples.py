"""Inputs of other sizes, for trying a program where its example is not.

Sizes are chosen by symbol and tried against the program's own checks: what those refuse, no caller
can pass. The values of the new inputs are the example's: numbers drawn from it, indices and masks
repeated, so that they mean what they did.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphport.ops.weightless import lacks_data
from graphport.program import ExportedProgram
from graphport.program.checks import InputChecks
from graphport.symbolic import Expr, evaluate, symbols

Sizes = dict[Expr, int]
_ENOUGH = 5
"""Sizes to try beside those of the example."""
_TRIES = 300
_SEED = 23


def with_data(inputs: Any) -> Any:
    """Inputs that can be run: a tensor that has no numbers is given some that suit its dtype."""
    return pytree.tree_map_only(torch.Tensor, _with_data, inputs)


def others(program: ExportedProgram, leaves: Sequence[Any], sizes: Sizes) -> Iterator[Any]:
    """(sizes, flat inputs) within the ranges of the dims: larger, 1, 0, and mixed."""
    checks = program.checks
    roots = _roots(checks)
    if not roots:
        return
    found: list[Sizes] = []
    for proposal in itertools.islice(_proposals(roots, sizes, checks), _TRIES):
        if proposal in found or all(proposal[s] == sizes.get(s) for s in roots):
            continue
        sketch = resized(checks, leaves, proposal, _sketch)
        if sketch is None or not checks.accepts(sketch):
            continue
        found.append(proposal)
        yield proposal, resized(checks, leaves, proposal, _like)
        if len(found) == _ENOUGH:
            return


def _roots(checks: InputChecks) -> list[Expr]:
    """The symbols of integers that sizes of inputs, or inputs themselves, depend on."""
    found: dict[Expr, None] = {}
    for shape in checks.inputs:
        numbers = [shape.number] if shape.number is not None else [*(shape.sizes or ())]
        for e in numbers:
            if isinstance(e, Expr):
                found.update(dict.fromkeys(s for s in symbols(e) if s.type is int))
    return list(found)


def _proposals(roots: list[Expr], example: Sizes, checks: InputChecks) -> Iterator[Sizes]:
    """Values of the symbols, the most telling ones first; constraints may refuse them."""
    limits = {s: _limits(s, checks) for s in roots}

    def within(s: Expr, n: float) -> int:
        low, high = limits[s]
        return int(min(max(n, low), high))

    now = {s: example.get(s, within(s, 2)) for s in roots}
    yield {s: within(s, now[s] + 1 + i) for i, s in enumerate(roots)}  # all different
    yield {s: within(s, 1) for s in roots}
    yield {s: within(s, 0) for s in roots}
    yield {s: within(s, 2 * now[s]) for s in roots}
    for s in roots:
        for n in (0, 1, now[s] + 1, 2 * now[s], now[s] - 1):
            yield {**now, s: within(s, n)}
    draw = random.Random(_SEED)
    for reach in itertools.count(2):
        most = {s: min(within(s, limits[s][0] + 2 * reach), 4 * now[s] + 8) for s in roots}
        yield {
            s: within(s, draw.randint(int(limits[s][0]), max(int(limits[s][0]), int(most[s]))))
            for s in roots
        }


def _limits(s: Expr, checks: InputChecks) -> tuple[float, float]:
    span = checks.ranges.get(s, s.span)
    return max(span.lower, -(1 << 31)), min(span.upper, 1 << 31)


def resized(
    checks: InputChecks,
    leaves: Sequence[Any],
    sizes: Mapping[Expr, int],
    like: Callable[[torch.Tensor, list[int]], torch.Tensor],
) -> Any:
    """Flat inputs of these sizes; None if there can be none."""
    made: list[Any] = []
    for leaf, shape in zip(leaves, checks.inputs, strict=True):
        if shape.number is not None:
            made.append(_value(shape.number, sizes, leaf))
        elif shape.sizes is not None and isinstance(leaf, torch.Tensor):
            wanted = [_value(s, sizes, None) for s in shape.sizes]
            if any(n is None or n < 0 for n in wanted):
                return None
            made.append(like(leaf, wanted))
        else:
            made.append(leaf)
    return made


def _value(e: Any, sizes: Mapping[Expr, int], otherwise: Any) -> Any:
    if not isinstance(e, Expr):
        return e
    if any(s not in sizes for s in symbols(e)):
        return otherwise
    return evaluate(e, sizes)


def _sketch(t: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A tensor of these sizes that takes no memory, to be checked and thrown away."""
    return torch.empty((), dtype=t.dtype, device=t.device).expand(sizes)


def _like(t: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A tensor of other sizes whose values are those of the given one."""
    if list(t.shape) == sizes:
        return t.detach().clone()
    if not t.numel():
        return _with_data(torch.empty(sizes, dtype=t.dtype, device="meta")).to(t.device)
    if t.dtype.is_floating_point or t.dtype.is_complex:
        flat = t.detach().reshape(-1)
        # Numbers that are not finite are a mask: where they are is what they say.
        if t.dtype.itemsize > 1 and bool(flat.isfinite().all()):
            count = torch.Size(sizes).numel()
            index = torch.randint(len(flat), (count,), generator=_generator())
            return flat[index.to(t.device)].reshape(sizes)
    for dim, size in enumerate(sizes):
        index = torch.arange(size, device=t.device) % max(t.shape[dim], 1)
        t = t.detach().index_select(dim, index)
    return t


def _with_data(t: torch.Tensor) -> torch.Tensor:
    """A tensor that has numbers: of one that has none, any that suit its dtype."""
    if not lacks_data(t):
        return t
    if t.dtype.is_floating_point or t.dtype.is_complex:
        return torch.randn(t.shape, generator=_generator()).to(t.dtype)
    return torch.randint(0, 2, t.shape, generator=_generator()).to(t.dtype)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
