"""Batch norms folded into the convolution or linear layer before them, for inference.

At inference a batch norm multiplies each channel and adds to it, by numbers that are known. So does
the layer before it, whose weight and bias can do both.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from graphport.arguments import FLAG, takes
from graphport.fx.layers import Layer, Layers, Norm, rank
from graphport.fx.nodes import first
from graphport.fx.programs import copied, graph_of
from graphport.fx.state import State
from graphport.program import ExportedProgram


@takes(inplace=FLAG, no_trace=FLAG)
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
    gm = graph_of(model, "fuse", inline=not no_trace)
    if not inplace:
        gm = copied(gm, deep=True)
    layers, state = Layers(gm), State(gm)
    for node in list(gm.graph.nodes):
        norm = layers.norm(node)
        layer = layers.layer(norm.input) if norm is not None else None
        if norm is not None and layer is not None and _fit(layer, norm):
            _replace(state, layers, layer, norm)
    gm.graph.lint()
    gm.recompile()
    return gm


def _fit(layer: Layer, norm: Norm) -> bool:
    dims = max(layer.spatial, 1)  # a linear layer is followed by BatchNorm1d
    batched = layer.spatial + 2
    return (
        list(layer.node.users) == [norm.node]
        and norm.spatial in (None, dims)
        and norm.mean.shape == (layer.channels,)
        and rank(layer.node) in ((batched, None) if layer.spatial else (batched,))
    )


def fold(layer: Layer, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer that does what the layer and the norm do."""
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)
    with torch.no_grad():
        factor = torch.rsqrt(norm.var.to(dtype) + norm.eps)
        if norm.weight is not None:
            factor = factor * norm.weight.to(dtype)
        offset = -norm.mean.to(dtype)
        if layer.bias is not None:
            offset = offset + layer.bias.to(dtype)
        offset = offset * factor
        if norm.bias is not None:
            offset = offset + norm.bias.to(dtype)
        like = layer.weight if layer.bias is None else layer.bias
        return _like(layer.weight, layer.scaled(factor)), _like(like, offset)


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    new = new.to(old.dtype)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


# The graph with the new layer


def _replace(state: State, layers: Layers, layer: Layer, norm: Norm) -> None:
    weight, bias = fold(layer, norm)
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
    state: State, node: Node, mean: list[Node], weight: torch.Tensor, bias: torch.Tensor
) -> None:
    getters = [*node.args[1:3], *(node.kwargs[k] for k in ("weight", "bias") if k in node.kwargs)]
    old_weight: Any = getters[0]
    old_bias: Any = getters[1] if len(getters) > 1 else None
    with state.gm.graph.inserting_before(node):
        new_weight = _getter(state, node, old_weight, weight)
        if old_bias is not None:
            new_bias = _getter(state, node, old_bias, bias)
        else:
            parent = str(old_weight.target).rpartition(".")[0]
            path = state.free(f"{parent}.bias" if parent else "bias")
            state.set(path, bias)
            new_bias = state.get_attr(path)
            # A bias is like a mean, as far as metadata go, but for its dtype.
            dtype = getattr(mean[0].meta.get("val"), "dtype", None) if mean else None
            if dtype == bias.dtype:
                new_bias.meta = dict(mean[0].meta)
    rest = {k: v for k, v in node.kwargs.items() if k not in ("input", "weight", "bias")}
    node.args, node.kwargs = (first(node), new_weight, new_bias, *node.args[3:]), rest
    state.erase_unused([n for n in (old_weight, old_bias) if n is not None])


def _getter(state: State, node: Node, old: Node, value: torch.Tensor) -> Node:
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
