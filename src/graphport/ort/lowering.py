"""Regions of a plan lowered to ONNX; what cannot be lowered after all is given back to torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from graphport.errors import ExportError
from graphport.onnx import opsets
from graphport.onnx.builder import Builder
from graphport.onnx.exporting import custom_lowerings, walked
from graphport.onnx.interface import Interface
from graphport.onnx.ir import Graph
from graphport.onnx.lower import described, newest
from graphport.onnx.model import model_proto
from graphport.onnx.options import ExportOptions
from graphport.ops.abstract import Abstract
from graphport.ort.planning import Plan
from graphport.ort.subprogram import Subprogram, subprogram
from graphport.symbolic import Expr


@dataclass(frozen=True)
class Lowered:
    """A region in ONNX."""

    part: Subprogram
    graph: Graph
    interface: Interface
    opset: int

    def model(self) -> Any:
        """The model without its weights."""
        return model_proto(self.graph, self.opset)

    @property
    def tensors(self) -> dict[str, Any]:
        return {name: value.data for name, value in self.graph.initializers.items()}


def lowered(
    plan: Plan, weights: Mapping[Node, torch.Tensor], options: ExportOptions
) -> dict[tuple[Node, ...], Lowered]:
    """Each region of the plan in ONNX; the plan has fewer, or smaller ones, if it has to."""
    while True:
        told = _told(plan)
        found: dict[tuple[Node, ...], Lowered] = {}
        for step in plan.steps:
            if not step.is_region:
                continue
            made = _attempt(step.nodes, plan, weights, told, options)
            if not isinstance(made, Lowered):
                plan.refuse(*made)
                break
            found[step.nodes] = made
        else:
            return found


def _attempt(
    nodes: Sequence[Node],
    plan: Plan,
    weights: Mapping[Node, torch.Tensor],
    told: Mapping[Expr, Node],
    options: ExportOptions,
) -> Lowered | tuple[Sequence[Node], str]:
    """The region in ONNX, or the nodes that are to be torch's and why."""
    regions = {n for step in plan.steps if step.is_region for n in step.nodes}
    part = subprogram(nodes, plan.program, weights, told, regions)
    opset = options.opset or newest(part.program.graph_module, opsets.default())
    builder = Builder(part.program.scope, opset, options.target)
    names = [n.name for n in part.inputs]
    try:
        interface = walked(
            part.program,
            builder,
            custom_lowerings(options),
            replace(options, input_names=names, output_names=None, share_weights=True),
        )
    except ExportError as error:
        culprit = part.original.get(builder.origin) if builder.origin is not None else None
        refused = [culprit] if culprit in nodes else nodes
        return [n for n in refused if n is not None], error.what
    return Lowered(part, builder.main, interface, opset)


def _told(plan: Plan) -> dict[Expr, Node]:
    """By symbol, a node that has its value: a number among the inputs, or a size that is read."""
    found: dict[Expr, Node] = {}
    graph, read = plan.graph, torch.ops.aten.sym_size.int
    for node in graph.nodes:
        about = described(node.meta.get("val"))
        if isinstance(about, Expr) and about.kind == "symbol":
            found.setdefault(about, node)
    first = next((n for n in graph.nodes if n.op not in ("placeholder", "get_attr")), None)
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        about = described(node.meta.get("val"))
        sizes = about.sizes if isinstance(about, Abstract) else ()
        for dim, size in enumerate(sizes):
            if isinstance(size, Expr) and size.kind == "symbol" and size not in found and first:
                with graph.inserting_before(first):
                    found[size] = graph.call_function(read, (node, dim))
                found[size].meta = {"val": _symbolic(size)}
    plan.settle()
    return found


def _symbolic(size: Expr) -> Any:
    from graphport.symbolic.bridge import to_torch

    return to_torch(size)
