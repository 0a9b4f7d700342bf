"""A function captured as a graph of its own, within the graph that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture.cleanup import remove_unused
from graphport.capture.frames import Frame
from graphport.capture.inputs import CONSTANTS
from graphport.capture.recorder import describe
from graphport.capture.tracer import Tracer
from graphport.capture.values import Value
from graphport.errors import UserError
from graphport.ops import Abstract
from graphport.ops.tensor import AbstractTensor, abstract_tensor
from graphport.program import graph_module
from graphport.symbolic.bridge import from_torch

aten = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Subgraph:
    """The graph of a function. Its inputs are the given ones, then what it uses from around it."""

    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer = tracer
        self.name = name
        self.frame = Frame(tracer.recorder.frame)
        self.given: list[Node] = []
        self.results: list[Any] = []
        self.spec: pytree.TreeSpec | None = None
        self.where: source.Location | None = None

    def take(self, outer: Any) -> Any:
        """An argument that is a value of the graph around: for the function to be called with."""
        recorder = self.tracer.recorder
        if isinstance(outer, torch.Tensor):
            node = self.tracer.read(self.tracer.value(outer))
            with recorder.within(self.frame):
                return self._tensor(recorder.open(node), outer.requires_grad)
        return outer

    def make(self, name: str, abstract: Abstract, grad: bool = False) -> torch.Tensor:
        """An argument that is a new value each time: an element, a carried value."""
        node = self.frame.open(name, abstract_tensor(abstract))
        with self.tracer.recorder.within(self.frame):
            self.tracer.recorder.define_sizes(node)
        return self._tensor(node, grad)

    def _tensor(self, node: Node, grad: bool) -> torch.Tensor:
        self.given.append(node)
        return self.tracer.wrap(Value(describe(node), node, origin=node), grad)

    def run(self, fn: Callable[..., Any], *args: Any) -> None:
        """Capture the function. Its flat results are nodes of the graph, or constants."""
        tracer, recorder = self.tracer, self.tracer.recorder
        self.where = source.of_function(fn)
        with recorder.within(self.frame):
            with tracer.above:
                out = fn(*args)
            leaves, self.spec = pytree.tree_flatten(out)
            self.results = [self._result(x, i) for i, x in enumerate(leaves)]
            tracer.assertions.finish()

    def _result(self, x: Any, i: int) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tracer.read(self.tracer.value(x))
        if isinstance(x, _SYMBOLIC):
            return self.tracer.recorder.size(from_torch(x))
        if isinstance(x, CONSTANTS):
            return x
        raise UserError(
            f"result {i} of {self.name} is a {type(x).__qualname__}, not a tensor or number",
            where=self.where,
        )

    def contiguous(self, i: int) -> None:
        """Let a result be laid out in the order of its dims, as whoever calls this expects it."""
        node = self.results[i]
        if isinstance(node, Node) and isinstance(node.meta["val"], AbstractTensor):
            if not node.meta["val"]._abstract.is_contiguous:
                recorder = self.tracer.recorder
                with recorder.within(self.frame):
                    self.results[i] = recorder.emit(
                        aten.clone.default, node, memory_format=torch.contiguous_format
                    )

    @property
    def outside(self) -> list[Node]:
        """Nodes of the graph around that the function uses besides its arguments."""
        given = set(self.given)
        return [outer for outer, inner in self.frame.inputs.items() if inner not in given]

    def finish(self, outside: Sequence[Node], *, single: bool = False) -> Node:
        """Close the graph, with inputs in the order of `outside`; the node that refers to it."""
        recorder = self.tracer.recorder
        with recorder.within(self.frame):
            extra = [recorder.brought(outer) for outer in outside]
        graph = self.frame.graph
        last = None
        for node in (*self.given, *extra):
            (last.append if last is not None else graph._root.append)(node)
            last = node
        graph.output(self.results[0] if single else tuple(self.results)).meta = {}
        remove_unused(graph)
        return recorder.attach(self.name, self.module())

    def module(self) -> GraphModule:
        return module_of(self.frame)


def module_of(frame: Frame) -> GraphModule:
    """The finished graph of a frame with the graphs within it."""
    root = nn.Module()
    for name, sub in frame.submodules.items():
        root.add_module(name, sub)
    return graph_module(root, frame.graph)


def graphs_of(frame: Frame) -> list[Graph]:
    """The graph of a frame and all graphs within it."""
    inner = (m for sub in frame.submodules.values() for m in sub.modules())
    return [frame.graph, *(m.graph for m in inner if isinstance(m, GraphModule))]
