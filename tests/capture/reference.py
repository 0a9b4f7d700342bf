"""What the tests of reference behaviour share: examples, and parts of programs by short names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import graphport as gp


def r(*shape: int) -> Tensor:
    return torch.randn(*shape)


def i(value: Any) -> Tensor:
    return torch.tensor(value)


def names(ep: gp.ExportedProgram) -> list[str]:
    return [n.name for n in ep.graph.nodes]


def inputs(ep: gp.ExportedProgram) -> list[str]:
    return [s.arg.name for s in ep.graph_signature.input_specs]


def calls(ep: gp.ExportedProgram) -> list[torch.fx.Node]:
    return [n for n in ep.graph.nodes if n.op == "call_function"]


def count(ep: gp.ExportedProgram, op: Any) -> int:
    return sum(n.target is op for n in ep.graph.nodes)


class Count(torch.nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.register_buffer("buf", torch.full((1,), start))

    def forward(self, x: Tensor) -> Tensor:
        self.buf.add_(1)
        return x.sum() + self.buf.sum()


class Counts(torch.nn.Module):
    """Writes to the buffer of its child before the child does, or after it."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.register_buffer("buf", torch.zeros(1))
        self.bar = Count(1)

    def forward(self, x: Tensor) -> Tensor:
        self.buf.add_(1)
        if self.before:
            self.bar.buf.add_(2)
        bar = self.bar(x)
        if not self.before:
            self.bar.buf.add_(2)
        return bar.sum() + self.buf.sum()
