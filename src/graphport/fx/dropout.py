"""Dropout taken out of a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.fx.nodes import first
from graphport.fx.programs import copied, graph_of
from graphport.program import ExportedProgram

aten = torch.ops.aten

_FUNCTIONS = frozenset(
    {
        F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout,
        F.feature_alpha_dropout, torch.dropout, torch.dropout_, torch.feature_dropout,
        torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_,
        torch.feature_alpha_dropout, torch.feature_alpha_dropout_,
        aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default,
        aten.feature_dropout_.default, aten.alpha_dropout.default, aten.alpha_dropout_.default,
        aten.feature_alpha_dropout.default, aten.feature_alpha_dropout_.default,
    }
)  # fmt: skip


_NAMES = frozenset(
    {"feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
    | {f"dropout{dims}" for dims in ("", "1d", "2d", "3d")}
)


def remove_dropout(model: nn.Module | ExportedProgram) -> GraphModule:
    """The model without dropout layers, in whatever mode they are; shares its parameters.

    Calls of modules, functions and operators for dropout of every kind are removed. Dropout inside
    of another operator, as in attention, is an argument of that operator and stays.

        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        >>> [type(m).__name__ for m in remove_dropout(model).children()]
        ['Linear']
    """
    return without_dropout(graph_of(model, "remove_dropout"))


def without_dropout(gm: GraphModule) -> GraphModule:
    """A copy of a graph, as far as it is not a dropout layer."""
    gm = copied(gm)
    modules = dict(gm.named_modules(remove_duplicate=False))
    found = [*_layers(gm.graph, modules), *_taken_apart(gm.graph)]
    gone: dict[Node, Node] = {}
    for calls, given, result in found:
        gone[result] = gone.get(given, given)
        result.replace_all_uses_with(gone[result])
        for node in reversed(calls):
            gm.graph.erase_node(node)
    # Made anew, so that what is no longer called is no longer there.
    return copied(gm)


# The calls of a layer, what it is given, and the one that has its result.
_Layer = tuple[list[Node], Node, Node]


def _layers(graph: Graph, modules: dict[str, nn.Module]) -> Iterator[_Layer]:
    for node in graph.nodes:
        result = _result(node, modules)
        if result is not None:
            given = first(node)
            yield list(dict.fromkeys((node, result))), given, result


def _taken_apart(graph: Graph) -> Iterator[_Layer]:
    """Layers that export has recorded as the operators that they consist of."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        call, function = node.meta.get("torch_fn", ("", ""))
        name = function.rpartition(".")[2].rstrip("_")
        tensor = isinstance(node.meta.get("val"), torch.Tensor)  # sizes may be used elsewhere
        if name in _NAMES and tensor and node.op == "call_function" and _result(node, {}) is None:
            groups.setdefault(call, []).append(node)
    for calls in groups.values():
        inside = set(calls)
        given = {n for c in calls for n in c.all_input_nodes
                 if n not in inside and isinstance(n.meta.get("val"), torch.Tensor)}  # fmt: skip
        results = [c for c in calls if not inside.issuperset(c.users)]
        if len(given) == len(results) == 1:
            yield calls, given.pop(), results[0]


def _result(node: Node, modules: dict[str, nn.Module]) -> Node | None:
    """The node with the result of a dropout layer."""
    target: Any = node.target
    if node.op == "call_module":
        return node if isinstance(modules[target], nn.modules.dropout._DropoutNd) else None
    if node.op != "call_function":
        return None
    if target is aten.native_dropout.default:
        # It returns what it dropped too, which something may ask for.
        users = list(node.users)
        alone = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
        return users[0] if alone else None
    return node if target in _FUNCTIONS else None
