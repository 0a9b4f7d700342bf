"""Which values are the same computation, and the numbers that were read of them."""

from __future__ import annotations

import torch
from torch.fx import Node

from graphport.compat.torch import HigherOrderOperator, pytree
from graphport.types import Argument


class ItemCache:
    """Numbers that were read of tensors: another tensor that is the same computation has them too.

    A library that asks twice for `int(index.max())` has one number then, and not two that are
    unrelated.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[tuple[Node, Argument]]] = {}

    def find(self, node: Node) -> Argument:
        """The number of a tensor, None if it was not read."""
        candidates = self._known.get(_summarize(node), ())
        return next((number for n, number in candidates if compute_same(n, node)), None)

    def add(self, node: Node, number: Argument) -> Argument:
        self._known.setdefault(_summarize(node), []).append((node, number))
        return number


def _summarize(node: Node) -> tuple[object, ...]:
    """What nodes have in common that compute the same."""
    if not node.args:
        return (node,)
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return (node.target, *(str(x.target if isinstance(x, Node) else x) for x in leaves))


_MOST_COMPARED = 100
"""Pairs of nodes: twice the same network is not worth a walk through both."""


def compute_same(a: Node, b: Node) -> bool:
    """Whether two nodes are the same computation on the same values."""
    waiting, seen = [(a, b)], {(a, b)}
    while waiting:
        x, y = waiting.pop()
        if x is y:
            continue
        if x.target is not y.target or not (is_repeatable(x) and is_repeatable(y)):
            return False
        one, other = (pytree.tree_flatten((n.args, n.kwargs)) for n in (x, y))
        if one[1] != other[1]:
            return False
        for p, q in zip(one[0], other[0], strict=True):
            if isinstance(p, Node) and isinstance(q, Node):
                if (p, q) not in seen:
                    seen.add((p, q))
                    waiting.append((p, q))
            elif type(p) is not type(q) or p != q:
                return False
        if len(seen) > _MOST_COMPARED:
            return False
    return True


def is_repeatable(node: Node) -> bool:
    """Whether an operator gives the same again, and is not a graph of its own."""
    if node.op != "call_function" or isinstance(node.target, HigherOrderOperator):
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
