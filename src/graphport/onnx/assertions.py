"""Has a file stop where an assertion of the program does not hold.

ONNX has no operator for it. A `Reshape` of one element to the shape that a condition gives fails
where the condition is false; every result of the graph depends on it. The node is called
`requires <condition>`, which is what ONNX Runtime says when it stops there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graphport import escaping
from graphport.onnx.ir import Graph, Value
from graphport.symbolic import Expr

if TYPE_CHECKING:
    from graphport.onnx.builder import Builder

_LONGEST = 200
"""Characters of a message that the name of a node takes."""


class Assertions:
    """What each graph of the file requires."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._zeros: dict[Graph, Value] = {}
        """Of a graph: 0 if all that it requires holds."""

    def require(self, condition: Expr | Value | bool, message: str = "") -> None:
        """Let no result of the graph that is being written through unless a condition holds."""
        if isinstance(condition, Value) and condition.tensor is not None:
            condition = bool(condition.tensor)
        if isinstance(condition, Expr):
            truth = self.b.sizes.check(condition)
        elif isinstance(condition, Value):
            truth = self.b.reshape(condition, [1])
        elif condition:
            return
        else:
            truth = self.b.constant(torch.tensor([False]))
        zero = self._zero_where(truth)
        zero.name = f"requires {escaping.line(message or str(condition))[:_LONGEST]}"
        known = self._zeros.get(self.b.graph)
        self._zeros[self.b.graph] = zero if known is None else self.b.Add(known, zero)

    def _zero_where(self, truth: Value) -> Value:
        b = self.b
        count = b.Where(truth, b.scalar(1, torch.int64), b.scalar(2, torch.int64))
        zero: Value = b.Reshape(b.constant(torch.zeros(1, dtype=torch.int64)), count)
        zero.shape = (1,)
        return zero

    def let_through(self, value: Value) -> Value:
        """A result of the graph that is being written: there only if all that it requires holds."""
        zero = self._zeros.get(self.b.graph)
        if zero is None:
            return value
        made: Value = self.b.Reshape(value, self.b.Add(self.b.Shape(value), zero), allowzero=1)
        made.shape = value.shape
        return made
