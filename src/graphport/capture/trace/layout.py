"""Finds nodes whose strides are those of their metadata whatever the layout of the inputs.

Callers may pass inputs in another layout than the example's, and most operators hand the layout of
what they read on to what they make.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch.fx import Node

from graphport.capture.trace.state import State
from graphport.ops import Abstract
from graphport.ops.registry import overloads
from graphport.tensors.abstract import holds_number

aten = torch.ops.aten

# Their results are contiguous, whatever the strides of their operands.
_CONTIGUOUS_RESULTS = frozenset(
    overloads("mm addmm bmm baddbmm linear matmul embedding index_select")
)


class Layouts:
    """Which nodes of a graph have the strides of their metadata in every call."""

    def __init__(self, state: State, unsteady: Container[Node] = ()) -> None:
        self._state = state
        self._unsteady = unsteady
        """Nodes whose strides in eager may be others, whatever the inputs."""
        self._known: dict[Node, bool] = {}

    def is_certain(self, node: Node) -> bool:
        waiting = [node]  # a graph is deeper than Python's stack
        while waiting:
            top = waiting[-1]
            missing = [n for n in self._reads(top) if n not in self._known]
            if missing and top not in self._known:
                waiting.extend(missing)
            else:
                waiting.pop()
                self._known.setdefault(top, self._decide(top))
        return self._known[node]

    def _decide(self, node: Node) -> bool:
        if node.op == "placeholder":
            return any(entry.node is node for entry in self._state.entries)
        if node in self._unsteady:
            return False
        return (
            node.target in _CONTIGUOUS_RESULTS
            or _is_contiguous_clone(node)
            or all(self._known[n] for n in self._reads(node))
        )

    def _reads(self, node: Node) -> list[Node]:
        return [n for n in node.all_input_nodes if not holds_number(n)]


def has_same_layout(a: Abstract, b: Abstract) -> bool:
    """Whether two tensors of the same sizes have the same strides."""
    return (a.is_contiguous and b.is_contiguous) or a.strides == b.strides


def _is_contiguous_clone(node: Node) -> bool:
    wanted = node.kwargs.get("memory_format")
    return node.target is aten.clone.default and wanted is torch.contiguous_format
