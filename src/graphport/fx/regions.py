"""The nodes of a graph that a backend takes, in as few regions as possible.

A region is computed as a whole, so nothing outside may lie between two of its nodes. The level of a
node counts how often the longest path to it comes from outside into what the backend takes. Nodes
that the backend takes at one level are one region: a path that leaves the region and comes back
would have come from outside once more, and so would lead to a higher level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.fx import Graph, Node


@dataclass(frozen=True)
class Step:
    """What runs next: a region at once, or nodes outside of any one after the other."""

    nodes: tuple[Node, ...]
    is_region: bool


def steps(
    graph: Graph,
    taken: Callable[[Node], bool],
    ordered: Callable[[Node], bool] = lambda node: False,
    last: Iterable[Node] = (),
) -> list[Step]:
    """The calls of a graph in an order in which they can run.

    Calls that are `ordered` keep their order among themselves: what they do is seen outside. The
    `last` ones, which the backend does not take, come in the end.
    """
    final = set(last)
    levels = _levels(graph, taken, ordered, final)
    top = max(levels.values(), default=0)
    regions: dict[int, list[Node]] = {}
    outside: dict[int, list[Node]] = {}
    for node, level in levels.items():
        if node.op == "call_function" and node not in final:
            (regions if taken(node) else outside).setdefault(level, []).append(node)
    found = []
    for level in range(top + 1):
        if level in regions:
            found.append(Step(tuple(regions[level]), True))
        if level in outside:
            found.append(Step(tuple(outside[level]), False))
    if final:
        found.append(Step(tuple(n for n in graph.nodes if n in final), False))
    return found


def _levels(
    graph: Graph,
    taken: Callable[[Node], bool],
    ordered: Callable[[Node], bool],
    final: set[Node],
) -> dict[Node, int]:
    levels: dict[Node, int] = {}
    reached = 0
    """By what is ordered."""
    was_taken = True
    """Whether the backend takes the ordered call before: at one level, its region runs first."""
    for node in graph.nodes:
        if node.op == "output" or node in final:
            continue
        into = node.op == "call_function" and taken(node)
        level = max(
            (levels[n] + (into and not _is_taken(n, taken)) for n in node.all_input_nodes),
            default=int(into),
        )
        if ordered(node):
            level = reached = max(level, reached + (into and not was_taken))
            was_taken = into
        levels[node] = level
    return levels


def _is_taken(node: Node, taken: Callable[[Node], bool]) -> bool:
    return node.op == "call_function" and taken(node)
