"""Optimises a graph for CPU inference: folds norms, drops dropout, uses MKL-DNN's layout.

MKL-DNN (oneDNN) keeps tensors in blocks that its kernels are fast on. Parts of the graph that it
has kernels for are run in that layout throughout; tensors are converted where they enter and leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer
from torch.fx.node import map_arg

from graphport import arguments as kinds
from graphport import errors
from graphport.arguments import check_arguments
from graphport.fx.effects import find_mutated_inputs, infer_storages
from graphport.fx.fusion import copy_without_dropout, fuse
from graphport.fx.graphs import copy_graph_module, get_first_argument, to_graph_module
from graphport.fx.layers import GraphState, LayerFinder
from graphport.fx.mkldnn_support import (
    BINARY,
    is_binary,
    is_supported,
    keeps_dtype,
    make_mkldnn_module,
)
from graphport.fx.shape_prop import ShapeProp
from graphport.program import ExportedProgram
from graphport.program.extract import RegionGraph, list_inputs
from graphport.types import PyTree


@dataclass
class MklSubgraph:
    """A part of a graph that can run in MKL-DNN's layout, for a heuristic to judge.

    `start_nodes` are the values that enter, `end_nodes` the results that leave.
    """

    fx_graph: Graph
    nodes: list[Node] = field(default_factory=list)
    start_nodes: list[Node] = field(default_factory=list)
    end_nodes: list[Node] = field(default_factory=list)


Heuristic = Callable[[MklSubgraph], bool]


@check_arguments(graph=kinds.instance_of("an MklSubgraph", f"{__name__}:MklSubgraph"))
def use_mkl_length(graph: MklSubgraph) -> bool:
    """A heuristic: whether there are more than two nodes, such that converting tensors pays."""
    return len(graph.nodes) > 2


@check_arguments(
    example_inputs=kinds.TENSOR | kinds.ARGS, iters=kinds.integer(0), warmup=kinds.integer(0)
)
def gen_mkl_autotuner(
    example_inputs: torch.Tensor | Sequence[PyTree], iters: int = 10, warmup: int = 1
) -> Heuristic:
    """A heuristic that runs each part in both layouts, and takes the faster one.

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
        >>> x = torch.randn(1, 3, 8, 8)
        >>> tuned = {"mkldnn_layout_optimize": {"heuristic": gen_mkl_autotuner([x], iters=2)}}
        >>> torch.testing.assert_close(optimize_for_inference(model, tuned)(x), model(x))

    `example_inputs` are the arguments of the model, or the only one.
    """
    one = isinstance(example_inputs, torch.Tensor)
    args: Sequence[Any] = [example_inputs] if one else example_inputs
    known: list[Graph] = []

    def is_faster(graph: MklSubgraph) -> bool:
        gm = graph.fx_graph.owning_module
        assert gm is not None
        with torch.no_grad():
            if graph.fx_graph not in known:
                ShapeProp(gm).propagate(*args)
                known.append(graph.fx_graph)
            inputs = [torch.randn(n.meta["tensor_meta"].shape) for n in graph.start_nodes]
            dense = _extract_subgraph(gm, graph)
            blocked = copy_graph_module(dense, only_used=True)
            _convert_subgraphs(blocked, LayerFinder(blocked), _find_subgraphs(blocked))
            return _measure_seconds(blocked, inputs, iters, warmup) < _measure_seconds(
                dense, inputs, iters, warmup
            )

    return is_faster


def _extract_subgraph(gm: GraphModule, part: MklSubgraph) -> GraphModule:
    region = RegionGraph()
    for node in part.start_nodes:
        region.take(node)
    values = [n for n in list_inputs(part.nodes) if n.op == "get_attr"]
    region.copy(*(v for v in values if v not in region.mapping), *part.nodes)
    region.graph.output(tuple(region.mapping[n] for n in part.end_nodes))
    return GraphModule(gm, region.graph)


def _measure_seconds(module: nn.Module, args: list[torch.Tensor], iters: int, warmup: int) -> float:
    for _ in range(warmup):
        module(*args)
    start = time.perf_counter()
    for _ in range(iters):
        module(*args)
    return time.perf_counter() - start


_PASSES: dict[str, Any] = {
    "conv_bn_fuse": True,
    "remove_dropout": True,
    "mkldnn_layout_optimize": {"heuristic": use_mkl_length},
}


@check_arguments(pass_config=kinds.DICT | kinds.NONE, tracer=kinds.TRACER)
def optimize_for_inference(
    model: nn.Module | ExportedProgram,
    pass_config: dict[str, Any] | None = None,
    tracer: type[Tracer] = Tracer,
) -> GraphModule:
    """A copy of the model that computes the same, faster, on a CPU and without gradients.

    Batch norms are folded into convolutions (`conv_bn_fuse`), dropout is removed
    (`remove_dropout`), and parts of the graph for which a heuristic says so run in MKL-DNN's layout
    (`mkldnn_layout_optimize`). `pass_config` turns a pass off by `False`, or gives another
    heuristic: `{"mkldnn_layout_optimize": {"heuristic": gp.fx.gen_mkl_autotuner(inputs)}}`.

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        >>> x = torch.randn(1, 3, 8, 8)
        >>> fast = optimize_for_inference(model.eval())
        >>> torch.testing.assert_close(fast(x), model(x))
        >>> [n.target for n in fast.graph.nodes if n.op == "call_method"]
        ['to_mkldnn', 'to_dense']

    Layers whose settings or dtypes MKL-DNN does not take stay as they are. Where shapes are not
    known, inputs are taken to have a batch dimension, and values no more than five dims.
    """
    config = {**_PASSES, **(pass_config or {})}
    unknown = set(config) - set(_PASSES)
    if unknown:
        raise errors.InputError(
            f"pass_config has {', '.join(map(repr, sorted(unknown)))}, which is no pass",
            fix=f"one of {', '.join(map(repr, _PASSES))}",
        )
    layout = config["mkldnn_layout_optimize"]
    fix = 'pass_config={"mkldnn_layout_optimize": {"heuristic": gp.fx.use_mkl_length}}'
    if layout is not False and not isinstance(layout, dict):
        raise errors.GraphError(f"mkldnn_layout_optimize is {layout!r}, and not a dict", fix=fix)
    if layout is not False and "heuristic" not in layout:
        raise errors.GraphError("mkldnn_layout_optimize has no heuristic", fix=fix)
    gm = to_graph_module(model, "optimize_for_inference", tracer=tracer)
    if config["conv_bn_fuse"]:
        gm = fuse(gm, no_trace=True)
    else:
        gm = copy_graph_module(gm, only_used=True, deep=True)
    if config["remove_dropout"]:
        gm = copy_without_dropout(gm)
    if layout is not False and torch.backends.mkldnn.is_available():
        parts = [part for part in _find_subgraphs(gm) if layout["heuristic"](part)]
        _convert_subgraphs(gm, LayerFinder(gm), parts)
    return gm


# Which parts there are


class _DisjointSets:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        root = self.parent.setdefault(node, node)
        while self.parent[root] is not root:
            root = self.parent[root]
        while self.parent[node] is not root:
            self.parent[node], node = root, self.parent[node]
        return root

    def join(self, a: Node, b: Node) -> None:
        self.parent[self.find(a)] = self.find(b)


def _find_subgraphs(gm: GraphModule) -> list[MklSubgraph]:
    """What can run in the layout, in connected parts.

    A value enters where it reaches weights before its dtype can change: nothing else tells that it
    is of float32.
    """
    layers, sets = LayerFinder(gm), _DisjointSets()
    able = _find_supported_nodes(gm, layers)
    reaching: set[Node] = set()
    for node in reversed(able):
        passes_on = keeps_dtype(node, layers) and not reaching.isdisjoint(node.users)
        if passes_on or layers.layer(node) is not None:
            reaching.add(node)
    for node in able:
        if node in reaching or all(arg in sets.parent for arg in _get_layout_inputs(node)):
            sets.find(node)
            for arg in _get_layout_inputs(node):
                if arg in sets.parent:
                    sets.join(arg, node)
    found: dict[Node, MklSubgraph] = {}
    for node in able:
        if node in sets.parent:
            part = found.setdefault(sets.find(node), MklSubgraph(gm.graph))
            part.nodes.append(node)
            entering = [n for n in _get_layout_inputs(node) if n not in sets.parent]
            part.start_nodes.extend(n for n in entering if n not in part.start_nodes)
            if any(user not in sets.parent for user in node.users):
                part.end_nodes.append(node)
    return list(found.values())


def _find_supported_nodes(gm: GraphModule, layers: LayerFinder) -> list[Node]:
    """The calls that take and give the layout, but for those of what others write to.

    Those would write to a copy.
    """
    able = dict.fromkeys(n for n in gm.graph.nodes if is_supported(n, layers))
    memory = infer_storages(gm.graph, layers.modules)
    others = (n for n in gm.graph.nodes if n not in able)
    written = (value for n in others for value in find_mutated_inputs(n, layers.modules))
    changed = {m for value in written for m in memory[value]}
    return [
        n for n in able if all(changed.isdisjoint(memory[v]) for v in (n, *_get_layout_inputs(n)))
    ]


def _get_layout_inputs(node: Node) -> list[Node]:
    """The arguments of a call that are to be in the layout: weights are not among them."""
    return node.all_input_nodes if is_binary(node) else [get_first_argument(node)]


def _convert_subgraphs(gm: GraphModule, layers: LayerFinder, parts: list[MklSubgraph]) -> None:
    every = {n for part in parts for n in part.nodes}
    made: dict[str, str] = {}
    state = GraphState(gm)
    for part in parts:
        _convert_boundary(gm.graph, part)
        for node in part.nodes:
            if is_binary(node):
                node.target = BINARY[node.target]
            else:
                _convert_layer(state, layers, node, every, made)
    gm.graph.lint()
    gm.recompile()


def _convert_boundary(graph: Graph, part: MklSubgraph) -> None:
    """Convert what enters, once, and what leaves."""
    inside = set(part.nodes)
    entered: dict[Node, Node] = {}
    for node in part.nodes:
        for arg in _get_layout_inputs(node):
            if arg not in inside and arg not in entered:
                with graph.inserting_before(node):
                    entered[arg] = graph.call_method("to_mkldnn", (arg,))
                entered[arg].meta.update(arg.meta)
        node.args = map_arg(node.args, lambda n: entered.get(n, n))
        node.kwargs = map_arg(node.kwargs, lambda n: entered.get(n, n))
    for node in part.end_nodes:
        outside = {user for user in node.users if user not in inside}
        with graph.inserting_after(node):
            dense = graph.call_method("to_dense", (node,))
        dense.meta.update(node.meta)
        node.replace_all_uses_with(dense, outside.__contains__)


def _convert_layer(
    state: GraphState, layers: LayerFinder, node: Node, every: set[Node], made: dict[str, str]
) -> None:
    """Make a node with weights call a module that has them in the layout."""
    old = str(node.target) if node.op == "call_module" else None
    if old in made:
        path = made[old]
    else:
        module = make_mkldnn_module(node, layers)
        if module is None:
            return
        if old is not None:
            alone = every.issuperset(state.users_of(old))
            path = made[old] = old if alone else state.free(old)
        else:
            path = state.free(f"mkldnn_{len(made)}")
            made[path] = path
        state.set(path, module)
    used = node.all_input_nodes
    given = get_first_argument(node)
    state.call(node, path)
    node.args, node.kwargs = (given,), {}
    state.erase_unused(used)
