"""Optimises graphs for inference: removes dropout, and folds batch norms into layers."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.arguments import FLAG, check_arguments
from graphport.compat.operators import aten
from graphport.compat.torch import DropoutNd
from graphport.fx.graphs import copy_graph_module, get_first_argument, to_graph_module
from graphport.fx.layers import GraphState, Layer, LayerFinder, Norm, get_rank
from graphport.ops.norm import fold_batch_norm
from graphport.ops.registry import overloads
from graphport.program import ExportedProgram
from graphport.tensors.abstract import get_val

_DROPOUT_OPS = "dropout feature_dropout alpha_dropout feature_alpha_dropout".split()
_DROPOUT_FUNCTIONS = frozenset(
    {
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
        *(F.alpha_dropout, F.feature_alpha_dropout),
        *(getattr(torch, f"{name}{end}") for name in _DROPOUT_OPS for end in ("", "_")),
        *overloads(" ".join(f"{name} {name}_" for name in _DROPOUT_OPS)),
    }
)


_DROPOUT_NAMES = frozenset(
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
    return copy_without_dropout(to_graph_module(model, "remove_dropout"))


def copy_without_dropout(gm: GraphModule) -> GraphModule:
    """A copy of a graph, as far as it is not a dropout layer."""
    gm = copy_graph_module(gm, only_used=True)
    modules = dict(gm.named_modules(remove_duplicate=False))
    found = [*_find_layers(gm.graph, modules), *_find_decomposed_layers(gm.graph)]
    gone: dict[Node, Node] = {}
    for calls, given, result in found:
        gone[result] = gone.get(given, given)
        result.replace_all_uses_with(gone[result])
        for node in reversed(calls):
            gm.graph.erase_node(node)
    # Made anew, so that what is no longer called is no longer there.
    return copy_graph_module(gm, only_used=True)


# The calls of a layer, what it is given, and the one that has its result.
_DropoutLayer = tuple[list[Node], Node, Node]


def _find_layers(graph: Graph, modules: dict[str, nn.Module]) -> Iterator[_DropoutLayer]:
    for node in graph.nodes:
        result = _find_dropout_result(node, modules)
        if result is not None:
            given = get_first_argument(node)
            yield list(dict.fromkeys((node, result))), given, result


def _find_decomposed_layers(graph: Graph) -> Iterator[_DropoutLayer]:
    """Layers that export has recorded as the operators that they consist of."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        call, function = node.meta.get("torch_fn", ("", ""))
        name = function.rpartition(".")[2].rstrip("_")
        tensor = isinstance(get_val(node), torch.Tensor)  # sizes may be used elsewhere
        if (
            name in _DROPOUT_NAMES
            and tensor
            and node.op == "call_function"
            and _find_dropout_result(node, {}) is None
        ):
            groups.setdefault(call, []).append(node)
    for calls in groups.values():
        inside = set(calls)
        given = {
            n
            for c in calls
            for n in c.all_input_nodes
            if n not in inside and isinstance(get_val(n), torch.Tensor)
        }
        results = [c for c in calls if not inside.issuperset(c.users)]
        if len(given) == len(results) == 1:
            yield calls, given.pop(), results[0]


def _find_dropout_result(node: Node, modules: dict[str, nn.Module]) -> Node | None:
    """The node with the result of a dropout layer."""
    target: Any = node.target
    if node.op == "call_module":
        return node if isinstance(modules[target], DropoutNd) else None
    if node.op != "call_function":
        return None
    if target is aten.native_dropout.default:
        # It returns the mask too, which may be used.
        users = list(node.users)
        alone = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
        return users[0] if alone else None
    return node if target in _DROPOUT_FUNCTIONS else None


# Folds batch norms into the convolution or linear layer before them.


@check_arguments(inplace=FLAG, no_trace=FLAG)
def fuse(
    model: nn.Module | ExportedProgram, inplace: bool = False, no_trace: bool = False
) -> GraphModule:
    """The model without the batch norms that follow a convolution or a linear layer.

    Layers may be modules or, as in an exported program, operators with parameters. A batch norm
    stays where it trains, has no running statistics, or where the result of the layer is used
    elsewhere. A layer that is called several times is fused for each call by itself. Results have
    the dtype that they had.

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
        >>> x = torch.randn(1, 3, 9, 9)
        >>> fused = fuse(model)
        >>> [type(m).__name__ for m in fused.children()]
        ['Conv2d', 'ReLU']
        >>> torch.testing.assert_close(fused(x), model(x))

    The model is left as it is, and all tensors are copied; with `inplace` a GraphModule is changed,
    and other models share with the result what is not fused. With `no_trace` the graph of a
    GraphModule is taken as it stands, and modules are not traced into that it calls.

    Where shapes are not known, inputs of convolutions are taken to have a batch dimension, and
    linear layers are left alone: the norm after one could be over another dimension than its
    features. `ShapeProp`, or an exported program, tells the shapes.
    """
    gm = to_graph_module(model, "fuse", inline=not no_trace)
    if not inplace:
        gm = copy_graph_module(gm, only_used=True, deep=True)
    layers, state = LayerFinder(gm), GraphState(gm)
    for node in list(gm.graph.nodes):
        norm = layers.norm(node)
        layer = layers.layer(norm.input) if norm is not None else None
        if norm is not None and layer is not None and _can_fold(layer, norm):
            _replace_layer(state, layers, layer, norm)
    gm.graph.lint()
    gm.recompile()
    return gm


def _can_fold(layer: Layer, norm: Norm) -> bool:
    dims = max(layer.spatial, 1)  # a linear layer is followed by BatchNorm1d
    batched = layer.spatial + 2
    return (
        list(layer.node.users) == [norm.node]
        and norm.spatial in (None, dims)
        and norm.mean.shape == (layer.channels,)
        and get_rank(layer.node) in ((batched, None) if layer.spatial else (batched,))
    )


def _fold_layer(layer: Layer, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer that does what the layer and the norm do."""
    with torch.no_grad():
        factor, offset = fold_batch_norm(
            layer.bias, norm.mean, norm.var, norm.weight, norm.bias, norm.eps
        )
        like = layer.weight if layer.bias is None else layer.bias
        return _cast_like(layer.weight, layer.scaled(factor)), _cast_like(like, offset)


def _cast_like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    new = new.to(old.dtype)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


# The graph with the new layer


def _replace_layer(state: GraphState, layers: LayerFinder, layer: Layer, norm: Norm) -> None:
    weight, bias = _fold_layer(layer, norm)
    node = layer.node
    if node.op == "call_module":
        module: Any = layers.modules[str(node.target)]
        old = [t for t in (module.weight, module.bias) if t is not None]
        # What is remembered as copied is taken as it is: only settings are copied.
        new = copy.deepcopy(module, dict(zip(map(id, old), (weight, bias), strict=False)))
        new.bias = bias
        path = str(node.target)
        if state.users_of(path) != [node]:
            path = state.free(path)
        state.set(path, new)
        layers.modules[path] = new
        state.call(node, path)
    else:
        mean = [n for n in norm.node.all_input_nodes if layers.tensor(n) is norm.mean]
        _set_arguments(state, node, mean, weight, bias)
    left = norm.node.all_input_nodes
    norm.result.replace_all_uses_with(node)
    for done in dict.fromkeys((norm.result, norm.node)):
        state.erase(done)
    state.erase_unused(left)


def _set_arguments(
    state: GraphState, node: Node, mean: list[Node], weight: torch.Tensor, bias: torch.Tensor
) -> None:
    getters = [*node.args[1:3], *(node.kwargs[k] for k in ("weight", "bias") if k in node.kwargs)]
    old_weight: Any = getters[0]
    old_bias: Any = getters[1] if len(getters) > 1 else None
    with state.gm.graph.inserting_before(node):
        new_weight = _replace_tensor(state, node, old_weight, weight)
        if old_bias is not None:
            new_bias = _replace_tensor(state, node, old_bias, bias)
        else:
            parent = str(old_weight.target).rpartition(".")[0]
            path = state.free(f"{parent}.bias" if parent else "bias")
            state.set(path, bias)
            new_bias = state.get_attr(path)
            # A bias is like a mean, as far as metadata go, but for its dtype.
            dtype = getattr(get_val(mean[0]), "dtype", None) if mean else None
            if dtype == bias.dtype:
                new_bias.meta = dict(mean[0].meta)
    rest = {k: v for k, v in node.kwargs.items() if k not in ("input", "weight", "bias")}
    node.args, node.kwargs = (get_first_argument(node), new_weight, new_bias, *node.args[3:]), rest
    state.erase_unused([n for n in (old_weight, old_bias) if n is not None])


def _replace_tensor(state: GraphState, node: Node, old: Node, value: torch.Tensor) -> Node:
    """A node for the new tensor: the old one, if nothing else reads it."""
    path = str(old.target)
    if state.users_of(path) == [old] and list(old.users) == [node]:
        state.set(path, value)
        return old
    path = state.free(path)
    state.set(path, value)
    new = state.get_attr(path)
    new.meta = dict(old.meta)
    return new
