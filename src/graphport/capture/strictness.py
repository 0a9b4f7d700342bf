"""What a single trace cannot prove: rejected in strict mode, warned of else where it is cheap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture.changes import Change
from graphport.errors import CaptureWarning, StrictError
from graphport.ops.tensor import AbstractTensor
from graphport.process import Patch, Replacement
from graphport.program import ExportedProgram
from graphport.symbolic import Expr, evaluate
from graphport.symbolic.bridge import from_torch

_LEAK = "a tensor of the program is kept beyond the call, in {0}: the captured program will not"
_STATE = (
    "the program changes {0} and computes something else the next time: what was captured is what "
    "it does the first time"
)
_FIX = {
    _LEAK: "return the tensor, or register a buffer and write to it",
    _STATE: "keep the state in a buffer, or pass it in as an argument",
}


def report(changes: list[Change], depends: bool, strict: bool) -> None:
    """Say what the program did to Python: as an error, or as a warning."""
    for change in changes:
        if not depends and (not change.leaks or change.renews):
            continue
        what = _LEAK if change.leaks else _STATE
        error = StrictError(what.format(change.name), where=change.where, fix=_FIX[what])
        tell(error, strict)


def tell(error: StrictError, strict: bool) -> None:
    if strict:
        raise error
    source.warn(str(error), CaptureWarning)


def seeds() -> StrictError:
    return StrictError(
        "the program seeds torch's random numbers and draws some: the captured program draws them "
        "without the seed",
        fix="call torch.manual_seed before the program, or pass the random numbers in",
    )


def other_inputs(program: ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of other sizes that the program accepts; the example's where there are none."""
    roots = [s for s in program.range_constraints if s.kind == "symbol"]
    hints = {s: program.scope.hint(s) for s in roots}
    known = {s: int(h) for s, h in hints.items() if h is not None}
    for step in (1, 2, 3, 4, 8, 16, -1, -2):
        env = {s: h + step * (1 + i) for i, (s, h) in enumerate(known.items())}
        leaves = _leaves(program, env)
        if leaves is not None:
            return pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return program.example_inputs


def _leaves(program: ExportedProgram, env: dict[Expr, int]) -> list[Any] | None:
    """Flat inputs at the sizes that `env` gives, if they pass the program's own checks."""
    given = pytree.tree_leaves(program.example_inputs)
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    inputs = placeholders[len(placeholders) - len(given) :]
    leaves = []
    for node, x in zip(inputs, given, strict=True):
        val = node.meta["val"]
        if isinstance(val, AbstractTensor):
            sizes = [int(evaluate(s, env)) for s in val._abstract.sizes]
            if any(s < 0 for s in sizes):
                return None
            same = sizes == list(x.shape)
            leaves.append(x if same else _empty(sizes, x))
        elif isinstance(val, (torch.SymInt, torch.SymFloat)):
            leaves.append(type(x)(evaluate(from_torch(val), env)))
        else:
            leaves.append(x)
    return leaves if program.checks.accepts(tuple(leaves)) else None


def _empty(sizes: list[int], like: torch.Tensor) -> torch.Tensor:
    made = torch.empty(sizes, dtype=like.dtype, device=like.device)
    return made.requires_grad_(like.requires_grad)


def differs(where: source.Location | None, how: str) -> StrictError:
    return StrictError(
        f"capturing the program again, at other sizes, gives another graph: {how}",
        where=where,
        fix="make the program the same for every call: no random or counted Python decisions",
    )


def _refusals() -> Iterator[Replacement]:
    """The text of a size is an error, unless it is there to be read."""

    def refuse(number: Any) -> str:
        where = source.here()
        if where is not None and any(word in where.text for word in _TO_READ):
            return str(from_torch(number))
        raise StrictError(
            "the text of a size depends on the sizes of the example",
            where=where,
            fix="compute with the number itself",
        )

    for kind in (torch.SymInt, torch.SymFloat, torch.SymBool):
        yield kind, "__str__", refuse
        yield kind, "__repr__", refuse


NO_TEXT = Patch(_refusals)
"""Held, the text of a size is an error."""
_TO_READ = ("print(", "raise ", "assert ", "log", "warn")
