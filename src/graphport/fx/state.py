"""What the nodes of a graph read and call, by paths into its module."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from graphport.program.module import give_state


class State:
    """Knows which nodes use what, as long as nodes are changed and erased through it."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._nodes: dict[str, dict[Node, None]] = {}
        for node in gm.graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if node.op in ("get_attr", "call_module"):
            self._nodes.setdefault(str(node.target), {})[node] = None

    def users_of(self, path: str) -> list[Node]:
        """The nodes that read or call what is at a path, or something that it is part of."""
        parts = path.split(".")
        above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return [node for target in above for node in self._nodes.get(target, ())]

    def free(self, path: str) -> str:
        """A path like this one at which there is nothing."""
        *parents, name = path.split(".")
        parent = self.gm.get_submodule(".".join(parents))
        wanted, count = name, 1
        while hasattr(parent, wanted):
            wanted, count = f"{name}_{count}", count + 1
        return ".".join((*parents, wanted))

    def set(self, path: str, value: Any) -> None:
        parents, _, name = path.rpartition(".")
        parent = self.gm.get_submodule(parents)
        if isinstance(value, nn.Module):
            parent.add_module(name, value)
            return
        persistent = name not in parent._non_persistent_buffers_set
        if hasattr(parent, name):
            delattr(parent, name)
        give_state(parent, name, value, persistent)

    def get_attr(self, path: str) -> Node:
        """A new node, where the graph is being written."""
        node = self.gm.graph.get_attr(path)
        self.add(node)
        return node

    def call(self, node: Node, path: str) -> None:
        """Make a node call the module at a path."""
        self._nodes.get(str(node.target), {}).pop(node, None)
        node.op, node.target = "call_module", path
        self.add(node)

    def erase(self, node: Node) -> None:
        """Take a node out of the graph, and let go of what only it used."""
        self.gm.graph.erase_node(node)
        path = str(node.target)
        if self._nodes.get(path, {}).pop(node, node) is None and not self.users_of(path):
            parents, _, name = path.rpartition(".")
            delattr(self.gm.get_submodule(parents), name)

    def erase_unused(self, nodes: list[Node]) -> None:
        """Take reads out of the graph that nothing needs any more."""
        for node in nodes:
            if node.op == "get_attr" and not node.users:
                self.erase(node)
