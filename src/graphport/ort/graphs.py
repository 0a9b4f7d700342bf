"""Graphs as torch.compile hands them over, captured as programs of ours.

Dynamo's graphs are in terms of torch's functions, those of AOTAutograd in ATen operators; both take
parameters and buffers as inputs. Sizes that torch keeps symbolic stay symbolic.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphport.capture.export import Options, capture
from graphport.capture.state import begins_inside, describe_tensor
from graphport.errors import UnsupportedError
from graphport.ops.strides import is_dense
from graphport.ort.generators import with_states_as_values
from graphport.ort.symbols import TorchSizes
from graphport.program import ExportedProgram
from graphport.source import of_trace, users_part

# Take a number as another operand, so that one which varies is as good as a constant.
_ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg,
    torch.add, torch.sub, torch.mul, torch.div, torch.pow,
}  # fmt: skip


def captured(module: GraphModule, inputs: Sequence[Any]) -> ExportedProgram:
    """The program of a graph whose sizes are symbols of torch's, or numbers."""
    if any(isinstance(t, torch.Tensor) and t.is_meta for t in inputs):
        raise UnsupportedError("an input is on the meta device, where there is nothing to compute")
    # Those of models are inputs; an optimiser's are not, and it writes to them.
    if any(True for _ in module.parameters()):
        raise UnsupportedError("the graph has parameters of its own, as that of an optimiser has")
    made_of_others = next((t for t in inputs if is_traceable_wrapper_subclass(t)), None)
    if made_of_others is not None:
        kind = type(made_of_others).__name__
        raise UnsupportedError(f"an input is a {kind}, which is taken apart by AOTAutograd")
    if differentiates(module):
        raise UnsupportedError("the graph takes derivatives, which is left to AOTAutograd")
    fixed = with_fixed_numbers(module)
    if all(t.device.type == "cpu" for t in inputs if isinstance(t, torch.Tensor)):
        fixed = with_states_as_values(fixed)
    with torch.no_grad():
        program, _ = capture(
            fixed, tuple(inputs), None, TorchSizes(_values(module, inputs)),
            Options("runtime_assert", once_more=True, keep_views=True),
        )  # fmt: skip
    if program.graph_signature.buffers_to_mutate:
        raise UnsupportedError("the graph writes to tensors of its own")
    _name_lines(program, fixed)
    return program


def _name_lines(program: ExportedProgram, module: GraphModule) -> None:
    """Let nodes tell the user's lines, not those of the code that was generated for the graph."""
    lines = dict(_lines(module))
    for graph in (program.graph, *(m.graph for m in _inner(program.graph_module))):
        for node in graph.nodes:
            where = of_trace(node.meta.get("stack_trace"))
            if where is not None and (trace := lines.get((where.file, where.line))):
                node.meta["stack_trace"] = users_part(trace)


def _lines(module: GraphModule) -> Iterator[tuple[tuple[str, int], str]]:
    """By file and line of generated code, where its node comes from."""
    for part in (module, *_inner(module)):
        rows = getattr(part, "_lineno_map", None)  # once its code has been generated
        nodes = list(part.graph.nodes)
        for line, index in (rows or {}).items():
            if index is not None:
                file = type(part).forward.__code__.co_filename
                yield (file, line + part._prologue_start), nodes[index].meta.get("stack_trace", "")


def _inner(module: GraphModule) -> Iterator[GraphModule]:
    return (m for m in module.modules() if isinstance(m, GraphModule) and m is not module)


def differentiates(module: GraphModule) -> bool:
    """Whether a graph takes derivatives, or has results to take them of, whatever its caller says.

    `torch.func.grad`, `torch.autograd.grad`, `torch.enable_grad`.
    """
    results = (n.meta.get("example_value") for n in module.graph.output_node().all_input_nodes
               if n.op != "placeholder")  # fmt: skip
    if not torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in results):
        return True
    targets = (n.target for m in (module, *_inner(module)) for n in m.graph.nodes)
    return any(t is torch.autograd.grad or getattr(t, "__name__", "") in _DERIVING for t in targets)


# What torch.func consists of in Dynamo's graphs, where derivatives are taken.
_DERIVING = {"_grad_increment_nesting", "_jvp_increment_nesting", "_autograd_grad", "_make_dual"}


def placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def _values(module: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """What torch knows of each input: of Dynamo's, whose examples are real tensors, it is noted."""
    return [
        node.meta.get("example_value", given)
        for node, given in zip(placeholders(module), inputs, strict=True)
    ]


def with_fixed_numbers(module: GraphModule) -> GraphModule:
    """The graph with those floats fixed that are no operands: an `eps`, a `momentum`.

    Dynamo passes floats as tensors, and reads them. Asking torch's symbol for its value makes it a
    condition for the graph to be used.
    """
    reads = [n for n in module.graph.nodes if _is_float_read(n)]
    fixed = [n for n in reads if any(u.target not in _ARITHMETIC for u in n.users)]
    if not fixed:
        return module
    values = {n.name: float(n.meta["example_value"]) for n in fixed}
    graph = torch.fx.Graph()
    mapping: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.name in values:
            mapping[node] = values[node.name]
        elif node.op == "output":
            graph.output(map_arg(node.args[0], mapping.__getitem__))
        else:
            args, kwargs = map_arg((node.args, node.kwargs), mapping.__getitem__)
            new = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            new.meta = dict(node.meta)
            mapping[node] = new
    return GraphModule(module, graph)


def _is_float_read(node: Node) -> bool:
    return (
        node.op == "call_method"
        and node.target == "item"
        and node.args[0].op == "placeholder"
        and isinstance(node.meta.get("example_value"), torch.SymFloat)
    )


Layout = tuple[tuple[Any, ...] | None, bool]
"""The strides of a tensor with gaps, and whether it begins where its memory does."""


def layout_of(t: torch.Tensor | None) -> Layout:
    """None is what AOTAutograd passes for a token of effects, having said that it is a tensor."""
    if t is None:
        return None, True
    about = describe_tensor(t, None)
    return None if is_dense(about) else about.strides, not begins_inside(t)


def layouts_read(module: GraphModule, inputs: Sequence[Any]) -> dict[int, Layout]:
    """How inputs lie in memory, by their places, for a graph that asks for it.

    Sizes of torch's are symbols in the program, and so are strides that follow from them. The rest
    is captured as it is in the example.
    """
    targets = (n.target for m in (module, *_inner(module)) for n in m.graph.nodes)
    names = (t if isinstance(t, str) else getattr(t, "__name__", "") for t in targets)
    if _ASKING.isdisjoint(name.split(".")[0] for name in names):
        return {}
    return {i: layout_of(t) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)}


_ASKING = {"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "stride",
           "sym_stride"}  # fmt: skip


def static_inputs(module: GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Which inputs are parameters and buffers, the same tensors at every call."""
    return frozenset(
        i for i, (node, t) in enumerate(zip(placeholders(module), inputs, strict=True))
        if isinstance(t, torch.Tensor) and _is_static(node, t)
    )  # fmt: skip


def _is_static(node: Node, t: torch.Tensor) -> bool:
    told = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return told is not None or isinstance(t, torch.nn.Parameter)
