"""Names of graph inputs. The user's own names win; what clashes gets `_1`, `_2`, ..."""

from __future__ import annotations

from torch.fx import Graph, Node

from graphport.program import RESERVED, make_identifier


class Names:
    """Hands out each name once."""

    def __init__(self) -> None:
        self._used: set[str] = set(RESERVED)

    def unique(self, wanted: str) -> str:
        name = make_identifier(wanted)
        candidate, n = name, 0
        while candidate in self._used:
            n += 1
            candidate = f"{name}_{n}"
        self._used.add(candidate)
        return candidate

    def placeholder(self, graph: Graph, name: str) -> Node:
        """An input under exactly this name, also where torch.fx would avoid a builtin's."""
        node = graph.create_node("placeholder", name, (), {}, name="gp_input")
        node.name = name
        graph._graph_namespace._used_names.add(name)
        return node
