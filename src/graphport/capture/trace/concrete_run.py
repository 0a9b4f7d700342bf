"""Evaluates the graph recorded so far on the example inputs, for `gp.draft_export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from graphport import source
from graphport.compat.torch import DisableTorchFunction, disable_current_modes
from graphport.errors import DataDependentError, NoDataError
from graphport.tensors.lazy import WeightlessTensor, lacks_data
from graphport.types import Argument


class ConcreteRun:
    """Values of the nodes of a graph that is still growing. The graph never mutates anything."""

    def __init__(self, graph: Graph, given: Callable[[], dict[Node, Any]]) -> None:
        self._graph = graph
        self._given = given
        self._values: dict[Node, Any] = {}

    def value(self, node: Node) -> Argument:
        if node.graph is not self._graph:
            raise DataDependentError(
                "a branch or loop body reads data, and there is no example of what it is given",
                where=source.locate_user_line(),
                fix="read it outside, or compute with the tensor: torch.where, torch.cond",
            )
        self._values.update(self._given())
        with disable_tracing():
            self._require_data(node)
            for n in self._graph.nodes:
                if n not in self._values:
                    self._values[n] = self._run(n)
                if n is node:
                    break
        return self._values[node]

    def read_data(self, node: Node, read: Callable[[torch.Tensor], Any]) -> Argument:
        """What `read` makes of the data of a tensor."""
        data = self.value(node)
        with disable_tracing():
            return read(data.detach())

    def _require_data(self, node: Node) -> None:
        """What a value is computed from must be there; what is in a file is read."""
        waiting, seen = [node], {node}
        while waiting:
            n = waiting.pop()
            t = self._values[n] if n.op == "placeholder" else None
            if isinstance(t, WeightlessTensor) and t.has_data:
                self._values[n] = t.read()
            elif isinstance(t, torch.Tensor) and lacks_data(t):
                raise NoDataError(
                    f"draft_export takes the data that the program asks for from the example, "
                    f"where {n.name} has none: it is on the meta device, fake, or made by "
                    "gp.fake_mode()",
                    where=source.locate_user_line(),
                    fix="pass real tensors, and a model with its weights",
                )
            found = [i for i in n.all_input_nodes if i not in seen]
            seen.update(found)
            waiting += found

    def _run(self, node: Node) -> Argument:
        args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
        return node.target(*args, **kwargs)


@contextmanager
def disable_tracing() -> Iterator[None]:
    """Computes on real tensors during capture: the modes are off meanwhile."""
    with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
        yield
