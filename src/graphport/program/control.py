"""Python kernels of `.module()`: control flow, and batch norm of empty batches.

torch's operators for control flow are differentiated by tracing their graphs again, or by
compiling them. Plain Python needs neither, and whatever runs on tensors runs on it. Where a module
is captured or compiled, it hands over the operators; but whether a batch is empty is decided where
it is compiled, since Dynamo compiles sizes of 0 for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from graphport.compat.operators import aten, higher_order
from graphport.program.bounds import insert_bounds_checks
from graphport.symbolic import Expr
from graphport.tensors.abstract import AbstractTensor, get_val
from graphport.types import Args, Argument

Function = Callable[..., Any]


def cond(pred: Argument, true_graph: Function, false_graph: Function, operands: Args) -> Argument:
    if torch.compiler.is_compiling():
        return higher_order.cond(pred, true_graph, false_graph, operands)
    return true_graph(*operands) if pred else false_graph(*operands)


def while_loop(
    cond_graph: Function, body_graph: Function, carried: Args, additional: Args
) -> Argument:
    if torch.compiler.is_compiling():
        return higher_order.while_loop(cond_graph, body_graph, tuple(carried), tuple(additional))
    if not cond_graph(*carried, *additional):
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)
    while True:
        carried = body_graph(*carried, *additional)
        if not cond_graph(*carried, *additional):
            return carried


def map_impl(graph: Function, xs: Sequence[torch.Tensor], additional: Args) -> Argument:
    if torch.compiler.is_compiling():
        return higher_order.map_impl(graph, xs, additional)
    rows = zip(*(x.unbind(0) for x in xs), strict=True)
    return _stack_results([graph(*row, *additional) for row in rows])


def scan(graph: Function, init: Args, xs: Sequence[torch.Tensor], additional: Args) -> Argument:
    if torch.compiler.is_compiling():
        return higher_order.scan(graph, init, xs, tuple(additional))
    carried, steps = tuple(init), []
    for row in zip(*(x.unbind(0) for x in xs), strict=True):
        out = graph(*carried, *row, *additional)
        carried = out[: len(init)]
        steps.append(out[len(init) :])
    return (*carried, *_stack_results(steps))


def batch_norm(
    input: Tensor,
    weight: Argument,
    bias: Argument,
    mean: Tensor,
    var: Tensor,
    training: bool,
    *rest: object,
) -> tuple[Tensor, ...]:
    """Of nothing, statistics stay what they are; the operator refuses it."""
    if torch.compiler.is_exporting() or input.numel() or not training:
        return aten._native_batch_norm_legit_functional.default(
            input, weight, bias, mean, var, training, *rest
        )
    out, nothing = _normalise_empty(input, weight, bias), torch.zeros_like(mean)
    return out, nothing, nothing.clone(), mean.clone(), var.clone()


def batch_norm_no_stats(
    input: Tensor, weight: Argument, bias: Argument, *rest: object
) -> tuple[Tensor, ...]:
    if torch.compiler.is_exporting() or input.numel():
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, *rest)
    nothing = input.new_zeros(input.shape[1:2])
    return _normalise_empty(input, weight, bias), nothing, nothing.clone()


def _normalise_empty(input: Tensor, weight: Argument, bias: Argument) -> Tensor:
    """As `torch.batch_norm` has it, which the gradients of weights go through."""
    return aten.batch_norm.default(input, weight, bias, None, None, True, 0.0, 1e-5, False)


def _stack_results(steps: list[object]) -> tuple[object, ...]:
    if not steps:
        raise RuntimeError("a loop over the elements of a tensor needs at least one element")
    return tuple(
        None if column[0] is None else torch.stack(column) for column in zip(*steps, strict=True)
    )


PYTHON_KERNELS: dict[Any, Function] = {
    higher_order.cond: cond,
    higher_order.while_loop: while_loop,
    higher_order.map_impl: map_impl,
    higher_order.scan: scan,
}
PYTHON_KERNELS_IF_EMPTY: dict[Any, Function] = {
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten._native_batch_norm_legit.no_stats: batch_norm_no_stats,
}


def use_python_kernels(graph: Graph) -> None:
    """Let a graph run in plain Python what its operators do not do."""
    for node in graph.nodes:
        if node.target in PYTHON_KERNELS_IF_EMPTY and can_be_empty(node.args[0]):
            node.target = PYTHON_KERNELS_IF_EMPTY[node.target]
        node.target = PYTHON_KERNELS.get(node.target, node.target)


def can_be_empty(node: Any) -> bool:
    """Whether a tensor may turn out to have no elements."""
    val = get_val(node)
    if not isinstance(val, AbstractTensor):
        return True
    sizes = val._abstract.sizes
    return any(s.scope.range(s).lower <= 0 if type(s) is Expr else s == 0 for s in sizes)


def copy_subgraph(module: nn.Module, checked: bool = False) -> nn.Module:
    """A copy of a subgraph, and of its subgraphs, likewise; the program's own stay as they are.

    With `checked`, operators are given nothing out of bounds.

    Not modules that get their code when they are first called: torch.compile refuses those here.
    """
    if not isinstance(module, GraphModule):
        return module
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    if checked:
        insert_bounds_checks(graph)
    use_python_kernels(graph)
    root = nn.Module()
    for name, child in module.named_children():
        root.add_module(name, copy_subgraph(child, checked))
    return GraphModule(root, graph)
