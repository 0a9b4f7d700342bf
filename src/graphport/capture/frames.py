"""Graphs within graphs: the branches of `torch.cond`, the bodies of loops.

While a branch is captured its graph is the one that is written to. What it uses of the graphs
around it becomes an input of its own, on the way through every graph between. What it writes to
means something else in it, and again what it meant before when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.fx import Graph, GraphModule, Node

from graphport import source
from graphport.capture.values import Storage, Value
from graphport.errors import MutationError
from graphport.symbolic import Expr


class Written(NamedTuple):
    """Memory of the graphs around that a graph writes to."""

    base: Value
    node: Node
    """What it holds in the end."""
    where: source.Location | None


class Frame:
    """One graph in the making, and where in it numbers are found."""

    def __init__(self, parent: Frame | None = None, since: int = 0) -> None:
        self.graph = Graph()
        self.parent = parent
        self.since = since
        """How many symbols there were when it was begun."""
        self.entry: Node | None = None
        """The last input: sizes of inputs are read after it, where every node may use them."""
        self.sizes: dict[Any, Node] = {}
        """The node of each number that the graph computes."""
        self.sources: dict[Expr, Callable[[], Node]] = {}
        """How the graph obtains a symbol."""
        self.inputs: dict[Node, Node] = {}
        """Nodes of the graph around this one, and the inputs that stand for them here."""
        self.submodules: dict[str, GraphModule] = {}
        self.fixed: dict[Node, str] = {}
        """Inputs that must not be written to, and what they are."""
        self._before: dict[Value, tuple[Any, ...]] = {}
        self._written: dict[Storage, tuple[int, bool, source.Location | None]] = {}

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

    def origins(self) -> dict[Node, Node]:
        """What the inputs of this graph and of those around it stand for."""
        found = self.parent.origins() if self.parent is not None else {}
        return found | {inner: outer for outer, inner in self.inputs.items()}

    # What values mean here

    def keep(self, value: Value) -> None:
        """Called before a value gets another node, which is one of this graph."""
        if self.parent is not None and value.node.graph is not self.graph:
            now = (value.node, value.version, value.constant, value.number)
            self._before.setdefault(value, now)

    def writing(self, value: Value) -> None:
        """Called before a value is written to."""
        storage = value.storage
        if storage.origin in self.fixed:
            raise MutationError(
                f"the program writes to {self.fixed[storage.origin]}",
                where=source.here(),
                fix="write to a copy, x = x.clone(), and return it",
            )
        self.keep(value)
        if self.parent is not None and storage.base.node.graph is not self.graph:
            now = (storage.version, storage.mutated, source.here())
            self._written.setdefault(storage, now)

    def leave(self) -> list[Written]:
        """Let values of the graphs around mean what they did; what this one has written to them."""
        found = [Written(s.base, s.base.node, where) for s, (_, _, where) in self._written.items()]
        for value, (node, version, constant, number) in self._before.items():
            value.node, value.version = node, version
            value.constant, value.number = constant, number
        for storage, (version, mutated, _) in self._written.items():
            storage.version, storage.mutated = version, mutated
        return found
