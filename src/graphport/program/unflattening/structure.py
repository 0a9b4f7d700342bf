"""Arguments and results of modules that keep their call signature, in graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

_PLAIN = (tuple, list, dict)


class Packing:
    """Puts leaves into containers that only pytree can make."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec

    def __call__(self, *leaves: Any) -> Any:
        return pytree.tree_unflatten(leaves, self.spec)


def packed(graph: Graph, module: nn.Module, spec: TreeSpec, leaves: list[Any]) -> tuple[Any, Any]:
    """Positional and keyword arguments with these leaves."""
    rest = iter(leaves)

    def pack(part: TreeSpec) -> Any:
        if part.is_leaf():
            return next(rest)
        if part.type in _PLAIN:
            children = [pack(child) for child in part.children()]
            return dict(zip(part.context, children, strict=True)) if part.type is dict \
                else part.type(children)  # fmt: skip
        name = next(n for i in range(1 << 30) if not hasattr(module, n := f"packing_{i}"))
        module.__dict__[name] = Packing(part)
        packing = graph.create_node("get_attr", name, (), {}, name)
        given = [next(rest) for _ in range(part.num_leaves)]
        return graph.call_function(operator.call, (packing, *given))

    args, kwargs = (pack(part) for part in spec.children())
    return args, kwargs


def unpacked(
    graph: Graph, made: Node, spec: TreeSpec, values: list[Node | None]
) -> dict[Node, Node]:
    """Where in the result of a call each value is; None where nobody wants to know."""
    found: dict[Node, Node] = {}
    rest = iter(values)

    def take(part: TreeSpec, node: Node) -> None:
        wanted = [next(rest) for _ in range(part.num_leaves)]
        if not any(v is not None and v not in found for v in wanted):
            return
        if part.is_leaf():
            assert wanted[0] is not None
            found[wanted[0]] = node
            return
        for key, child, some in _children(graph, part, node, wanted):
            inner = graph.call_function(operator.getitem, (key[0], key[1]))
            found.update(unpacked(graph, inner, child, some))

    take(spec, made)
    return found


def _children(
    graph: Graph, spec: TreeSpec, node: Node, wanted: list[Node | None]
) -> Iterator[tuple[tuple[Node, Any], TreeSpec, list[Node | None]]]:
    """(container, key), structure and values of each part that has a value that is wanted."""
    if spec.type in _PLAIN:
        keys = spec.context if spec.type is dict else range(spec.num_children)
        parts = list(zip(keys, spec.children(), strict=True))
    else:
        node = graph.call_function(pytree.tree_leaves, (node,))
        parts = [(i, pytree.treespec_leaf()) for i in range(spec.num_leaves)]
    first = 0
    for key, part in parts:
        some = wanted[first : first + part.num_leaves]
        first += part.num_leaves
        if any(v is not None for v in some):
            yield (node, key), part, some
