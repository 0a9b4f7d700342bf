"""Calls that nobody reads, dropped from a graph."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node
from torch.fx.node import _side_effectful_functions


def remove_unused(graph: Graph, kept: Collection[Node] = ()) -> None:
    """Drop calls that nobody reads; random numbers, assertions, mutation and messages stay."""
    for node in reversed(graph.nodes):
        if node.users or node in kept:
            continue
        if node.op == "get_attr" or (node.op == "call_function" and not _must_stay(node.target)):
            graph.erase_node(node)


def _must_stay(target: Any) -> bool:
    if isinstance(target, HigherOrderOperator):
        return True  # there may be assertions in its graphs
    if not isinstance(target, OpOverload):
        return False
    if target.namespace == "profiler":
        return False  # marks say nothing about what is computed
    if torch.Tag.nondeterministic_seeded in target.tags or target in _side_effectful_functions:
        return True
    return not target._schema.returns or target._schema.is_mutable
