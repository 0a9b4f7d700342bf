"""What the nodes of a graph read and call, by paths into its module.

A module that is called or read as a whole may be the user's own: it is replaced or let go of as a
whole, and nothing is added to it.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from graphport.fx.nodes import down_to
from graphport.program.module import give_state


class State:
    """Knows which nodes use what, as long as nodes are changed and erased through it."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._targets: set[str] = set()
        """What has been read or called at any time."""
        self._nodes: dict[str, dict[Node, None]] = {}
        """The nodes of each target, and of each path that it is below."""
        for node in gm.graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if node.op in ("get_attr", "call_module"):
            self._targets.add(str(node.target))
            for path in down_to(str(node.target)):
                self._nodes.setdefault(path, {})[node] = None

    def users_of(self, path: str) -> list[Node]:
        """The nodes that read or call what is at a path, what it is part of, or a part of it."""
        *above, _ = down_to(path)
        found = [n for p in above for n in self._nodes.get(p, ()) if n.target == p]
        return [*found, *self._nodes.get(path, ())]

    def free(self, path: str) -> str:
        """A path like this one at which there is nothing."""
        *parents, name = path.split(".")
        while self._targets.intersection(down_to(".".join(parents))):
            parents.pop()
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
        self._forget(node)
        node.op, node.target = "call_module", path
        self.add(node)

    def erase(self, node: Node) -> None:
        """Take a node out of the graph, and let go of what only it used."""
        self.gm.graph.erase_node(node)
        if self._forget(node):
            path = next(p for p in down_to(str(node.target)) if p in self._targets)
            if not self.users_of(path):
                parents, _, name = path.rpartition(".")
                delattr(self.gm.get_submodule(parents), name)

    def erase_unused(self, nodes: list[Node]) -> None:
        """Take reads out of the graph that nothing needs any more."""
        for node in nodes:
            if node.op == "get_attr" and not node.users:
                self.erase(node)

    def _forget(self, node: Node) -> bool:
        """Whether the node was one that reads or calls something."""
        if node.op not in ("get_attr", "call_module"):
            return False
        for path in down_to(str(node.target)):
            del self._nodes[path][node]
        return True
