"""Which inputs a graph in training form writes to when it runs, and what to keep of them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

# Write running statistics (arguments 3 and 4) when argument 5 says so; their schemas do not tell.
_STATISTICS = (aten.batch_norm.default, aten.instance_norm.default)
# Returns them instead, and keeps what it was given for the backward pass.
_FUNCTIONAL = aten._native_batch_norm_legit_functional.default


def written(module: GraphModule) -> set[str]:
    """Names of the inputs, found through views and graphs within the graph."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        if node.op == "call_function":
            found.update(owner(target) for target in _targets(module, node))
    return {n.name for n in found if n.op == "placeholder"}


def _targets(module: GraphModule, node: Node) -> list[Node]:
    """What a call writes to."""
    op: Any = node.target
    if op in _STATISTICS and node.args[5]:
        return [n for n in node.args[3:5] if isinstance(n, Node)]
    if isinstance(op, OpOverload):
        given = dict(zip((a.name for a in op._schema.arguments), node.args, strict=False))
        given.update(node.kwargs)
        names = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
        return [n for name in names for n in _nodes(given.get(name))]
    inner = [n for n in node.all_input_nodes if n.op == "get_attr"]
    if op is not torch.ops.higher_order.wrap_with_set_grad_enabled or not inner:
        return []
    graph: Any = getattr(module, str(inner[0].target))
    inside = written(graph)
    inputs = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    return [n for n, name in zip(node.args[2:], inputs, strict=True)
            if name in inside and isinstance(n, Node)]  # fmt: skip


def keep_statistics(graph: Graph) -> None:
    """Let batch norm have copies of statistics that are written to before its backward pass."""
    for node in graph.find_nodes(op="call_function", target=_FUNCTIONAL):
        for i in (3, 4):
            old = node.args[i]
            if old.op in ("get_attr", "placeholder"):
                with graph.inserting_before(node):
                    new = graph.call_function(kept, (old,))
                new.meta = dict(old.meta)
                node.update_arg(i, new)


def kept(t: torch.Tensor) -> torch.Tensor:
    """A copy, where there may be a backward pass: also of what torch.compile makes."""
    return t.clone() if torch.is_grad_enabled() and not torch.compiler.is_exporting() else t


def _nodes(x: Any) -> list[Node]:
    if isinstance(x, (list, tuple)):
        return [n for n in x if isinstance(n, Node)]
    return [x] if isinstance(x, Node) else []


def owner(node: Node) -> Node:
    """The node whose memory a view, or the result of a write, shows."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shares = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not shares and node.target is not operator.getitem:
            break
        node = node.args[0]
    return node
