"""Inputs over the same memory, which matter to a graph that writes to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.program import ExportedProgram, InputKind


def written_inputs(program: ExportedProgram) -> tuple[int, ...]:
    """The places of the inputs that a program writes to."""
    signature = program.graph_signature
    given = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    return tuple(sorted({given.index(n) for n in signature.user_inputs_to_mutate.values()}))


def overlap(args: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether another input lies where one that is written to does.

    The graph was captured as if each had memory of its own. From the first element to the last: of
    columns that lie between one another, this says that they overlap.
    """
    for place in written:
        low, high = _span(args[place])
        for i, t in enumerate(args):
            if i != place and isinstance(t, torch.Tensor) and t.data_ptr() < high:
                first, end = _span(t)
                if low < end and first < end:
                    return True
    return False


def _span(t: torch.Tensor) -> tuple[int, int]:
    """Where the memory of a tensor begins and ends."""
    first = t.data_ptr()
    if t.is_contiguous():
        return first, first + t.numel() * t.element_size()
    if not t.numel():
        return first, first
    steps = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return first, first + (steps + 1) * t.element_size()
