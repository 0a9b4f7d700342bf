"""Micro-batches: inputs split along the batch, results put together again.

The batch is one `Dim` of the program. Every input that has it as a size is split there; all others
(masks, scalars) go whole to each micro-batch. `independence` has made sure that the results of the
parts are the parts of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from graphport.distributed.described import expression, shape_of
from graphport.distributed.independence import require_independence
from graphport.distributed.mixing import batch_size
from graphport.errors import StageError
from graphport.program import ExportedProgram, InputKind, OutputKind
from graphport.symbolic import Expr, evaluate, symbols


class Whole:
    """One micro-batch: everything as it is."""

    def split(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        return [leaves]

    def joined(self, parts: Sequence[Mapping[str, Any]], leaves: Sequence[Any]) -> dict[str, Any]:
        (part,) = parts
        return dict(part)


class Split:
    """Up to `count` micro-batches whose sizes differ by one at most, as `tensor_split` cuts."""

    def __init__(self, program: ExportedProgram, count: int, batch: str | None) -> None:
        self.count, self.checks = count, program.checks
        self.symbol = _batch(program, batch)
        require_independence(program, self.symbol)
        self.inputs = [_cut(n, self.symbol) for n in _user_inputs(program)]
        """By flat input: where it is split, and how many of its items one of the batch has."""
        self.values = {n.name: n for n in _given(program)}

    def split(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        numbers = self.checks(leaves)
        total = int(numbers[self.symbol])
        count = max(1, min(self.count, total))
        ends = [i * (total // count) + min(i, total % count) for i in range(count + 1)]
        sizes = [b - a for a, b in pairwise(ends)]
        where = [cut and (cut[0], evaluate(cut[1], numbers)) for cut in self.inputs]
        parts: list[Sequence[Any]] = [
            [_piece(x, cut, start, n) for x, cut in zip(leaves, where, strict=True)]
            for start, n in zip(ends, sizes, strict=False)
        ]
        for part, n in {n: (p, n) for p, n in zip(parts, sizes, strict=True)}.values():
            self._check(part, n, total)
        return parts

    def _check(self, part: Sequence[Any], size: int, total: int) -> None:
        try:
            self.checks(part)
        except RuntimeError as error:
            raise StageError(
                f"a batch of {total} in {self.count} micro-batches has one of {size}, which the "
                f"program does not take: {error}",
                fix="another number of micro_batches, or a batch that it divides",
            ) from error

    def joined(self, parts: Sequence[Mapping[str, Any]], leaves: Sequence[Any]) -> dict[str, Any]:
        """The values of all parts as if they had been computed at once."""
        if len(parts) == 1:
            return dict(parts[0])
        found = {}
        sizes = None
        for name, first in parts[0].items():
            node = self.values[name]
            where = _cut(node, self.symbol)
            number = expression(node.meta.get("val"))
            if where is not None and isinstance(first, torch.Tensor):
                found[name] = torch.cat([p[name] for p in parts], dim=where[0])
            elif isinstance(number, Expr) and self.symbol in symbols(number):
                sizes = sizes or self.checks(leaves)
                found[name] = evaluate(number, sizes)
            else:
                found[name] = first
        return found


def _batch(program: ExportedProgram, name: str | None) -> Expr:
    """The symbol of the dim that is split."""
    shown: dict[str, Expr] = {}
    for leading in (True, False):
        for node in _user_inputs(program):
            for size in (shape_of(node) or ())[: 1 if leading else None]:
                if isinstance(size, Expr):
                    shown.update({str(s): s for s in symbols(size) if str(s) not in shown})
        if leading and name is None and shown:
            break
    if name is not None and name not in shown:
        raise StageError(
            f"no input of the program has a dim {name!r} to split",
            fix=f"one of {', '.join(shown)}" if shown else "micro_batches=1",
        )
    if not shown:
        raise StageError(
            "the batch cannot be split: no input of the program has a dynamic first dim",
            fix=["micro_batches=1", 'gp.export(..., dynamic_shapes={"x": {0: gp.Dim("batch")}})'],
        )
    return shown[name] if name is not None else next(iter(shown.values()))


def _user_inputs(program: ExportedProgram) -> list[Node]:
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    return [n for n, s in zip(nodes, specs, strict=True) if s.kind is InputKind.USER_INPUT]


def _given(program: ExportedProgram) -> list[Node]:
    """The values that the caller gets."""
    output: Any = next(reversed(program.graph.nodes)).args[0]
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.USER_INPUT_MUTATION)
    specs = program.graph_signature.output_specs
    pairs = zip(output, specs, strict=True)
    return [n for n, s in pairs if isinstance(n, Node) and s.kind in kinds]


def _cut(node: Node, symbol: Expr) -> tuple[int, Any] | None:
    """The dim of a tensor that is the batch, and its items per one of the batch; 0 of a number."""
    shape = shape_of(node)
    return batch_size((expression(node.meta.get("val")),) if shape is None else shape, symbol)


def _piece(x: Any, where: tuple[int, Any] | None, start: int, count: int) -> Any:
    if where is None:
        return x
    dim, factor = where
    if not isinstance(x, torch.Tensor):
        return count * factor
    return x.narrow(dim, start * factor, count * factor)
