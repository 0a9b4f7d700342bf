"""Graphs within graphs: the branches of `torch.cond`, the bodies of loops.

While a branch is captured its graph is the one that is written to. What it uses of the graphs
around it becomes an input of its own, on the way through every graph between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Graph, GraphModule, Node

from graphport.symbolic import Expr


class Frame:
    """One graph in the making, and where in it numbers are found."""

    def __init__(self, parent: Frame | None = None) -> None:
        self.graph = Graph()
        self.parent = parent
        self.entry: Node | None = None
        """The last input: sizes of inputs are read after it, where every node may use them."""
        self.sizes: dict[Any, Node] = {}
        """The node of each number that the graph computes."""
        self.sources: dict[Expr, Callable[[], Node]] = {}
        """How the graph obtains a symbol."""
        self.inputs: dict[Node, Node] = {}
        """Nodes of the graph around this one, and the inputs that stand for them here."""
        self.submodules: dict[str, GraphModule] = {}

    def open(self, name: str, val: Any) -> Node:
        """A new input, after those that are there; under this name, if it is free."""
        used = self.graph._graph_namespace._used_names
        if name in used:
            name = self.graph._graph_namespace.create_name(name, None)
        with self.graph.inserting_after(self.entry or self.graph._root):
            node = self.graph.create_node("placeholder", name, (), {}, name="gp_input")
        node.name = name
        used.add(name)
        node.meta = {"val": val}
        self.entry = node
        return node

    def encloses(self, graph: Graph) -> Frame | None:
        """This frame or one around it, by its graph."""
        frame: Frame | None = self
        while frame is not None and frame.graph is not graph:
            frame = frame.parent
        return frame
