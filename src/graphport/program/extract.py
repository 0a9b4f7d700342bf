"""Extracts a region of a graph as a program of its own.

Its inputs are the tensors that it takes from outside, and those sizes that none of them shows.
Numbers within are expressions in these. Weights are part of the program, or inputs like others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.compat.torch import pytree
from graphport.program import (
    CallSpec,
    ExportedProgram,
    GraphSignature,
    InputChecks,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from graphport.program.module import make_graph_module
from graphport.program.signature import SymbolicArgument
from graphport.symbolic import Expr, Scope, symbols
from graphport.tensors.abstract import Abstract, describe, get_val, permute_strides, set_val

# Memory layouts at the borders of a region.
#
# ONNX Runtime gives what it computes row by row. Torch lets the result of an operator lie as its
# operands do: views of it depend on that, and so does which random number an element gets.

DimOrder = tuple[int, ...]
"""Dims from the slowest to the fastest."""


def find_dim_order(about: Abstract, scope: Scope) -> DimOrder | None:
    """The order of the strides of a dense tensor; None if it is contiguous, or unknown."""
    if about.is_contiguous:
        return None
    sizes, strides = about.sizes, about.strides

    def slowness(dim: int) -> Any:
        hint = scope.hint(strides[dim])
        return -(hint if hint is not None else 0), dim

    order = tuple(sorted(range(about.rank), key=slowness))
    packed = permute_strides(sizes, order)
    fits = all(
        n == 1 or scope.same(have, want)
        for n, have, want in zip(sizes, strides, packed, strict=True)
    )
    return order if fits and order != tuple(range(about.rank)) else None


# The region as a program.


@dataclass(frozen=True)
class Subprogram:
    """The program of a region, and the nodes outside that its inputs and outputs are."""

    program: ExportedProgram
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    orders: tuple[DimOrder | None, ...]
    """By output, the order of its strides: it is computed with the slowest dim first."""
    original: dict[Node, Node]
    """By node of the program, that of the graph."""


def number() -> Any:
    """A number that the metadata of its node tells."""
    raise AssertionError("stands for a number of a graph that is lowered, not run")


def extract_region(
    region: Sequence[Node],
    whole: ExportedProgram,
    weights: Mapping[Node, torch.Tensor],
    symbol_nodes: Mapping[Expr, Node],
    elsewhere: Collection[Node] = (),
) -> Subprogram:
    """`weights` are inputs that become constants; `symbol_nodes` has a node for each symbol.

    `elsewhere` are the nodes of all regions, which take inputs of any strides.
    """
    return _Extraction(region, whole, weights, symbol_nodes, elsewhere).made()


class _Extraction:
    def __init__(
        self,
        region: Sequence[Node],
        whole: ExportedProgram,
        weights: Mapping[Node, torch.Tensor],
        symbol_nodes: Mapping[Expr, Node],
        elsewhere: Collection[Node],
    ) -> None:
        self.region = region
        self.elsewhere = elsewhere
        self.inside = set(region)
        self.whole = whole
        self.weights = weights
        self.symbol_nodes = symbol_nodes
        self.graph, self.root = Graph(), nn.Module()
        self.mapping: dict[Node, Node] = {}
        self.specs: list[InputSpec] = []
        self.inputs: list[Node] = []
        self.state: dict[str, Any] = {}

    def made(self) -> Subprogram:
        sources = dict.fromkeys(n for node in self.region for n in node.all_input_nodes)
        outside = [n for n in sources if n not in self.inside]
        tensors = [n for n in outside if isinstance(describe(n), Abstract)]
        for node in tensors:
            self._open(node)
        for node in self._further_sizes(tensors):
            self._open(node)
        for node in outside:
            if node not in self.mapping:
                self._take_in(node)
        for node in self.region:
            new = self.graph.node_copy(node, lambda n: self.mapping[n])
            new.meta = node.meta
            self.mapping[node] = new
        outputs = [
            n
            for n in self.region
            if any(u not in self.inside for u in n.users) and not isinstance(describe(n), tuple)
        ]
        orders = tuple(map(self._order, outputs))
        results = tuple(map(self._laid_out, outputs, orders))
        self.graph.output(results).meta = {}
        return Subprogram(
            self._program(results),
            tuple(self.inputs),
            tuple(outputs),
            orders,
            {new: old for old, new in self.mapping.items()},
        )

    def _order(self, node: Node) -> DimOrder | None:
        """The order of its dims in memory, where that may matter."""
        about = describe(node)
        if not isinstance(about, Abstract) or all(u in self.elsewhere for u in node.users):
            return None
        return find_dim_order(about, self.whole.scope)

    def _laid_out(self, node: Node, order: DimOrder | None) -> Node:
        inner = self.mapping[node]
        if order is None:
            return inner
        about = describe(node)
        new = self.graph.call_function(torch.ops.aten.permute.default, (inner, list(order)))
        set_val(new, about.like(tuple(about.sizes[d] for d in order)), node.meta)
        return new

    def _further_sizes(self, tensors: list[Node]) -> list[Node]:
        """Nodes that tell the symbols of the region which no tensor shows as a size."""
        shown = {s for n in tensors for s in describe(n).sizes if isinstance(s, Expr)}
        made = {s for n in self.region for s in _free_symbols(describe(n))}
        asked = {
            s for n in self.region for a in n.all_input_nodes for s in _free_symbols(describe(a))
        }
        wanted = sorted((made | asked) - shown, key=lambda s: s.name)
        nodes = self.symbol_nodes
        return [nodes[s] for s in wanted if s in nodes and nodes[s] not in self.inside]

    def _open(self, node: Node) -> None:
        """A placeholder for a node outside: a weight, a constant, or an input."""
        if node in self.mapping:
            return
        new = self.mapping[node] = self.graph.placeholder(node.name)
        set_val(new, get_val(node))
        if node in self.weights or node.op == "get_attr":
            constant = node.op == "get_attr"
            kind = InputKind.CONSTANT_TENSOR if constant else InputKind.PARAMETER
            self.state[new.name] = (
                self.whole.tensor(str(node.target)) if constant else self.weights[node]
            )
            self.specs.append(InputSpec(kind, TensorArgument(new.name), new.name))
            return
        self.inputs.append(node)
        is_tensor = isinstance(describe(node), Abstract)
        argument = TensorArgument(new.name) if is_tensor else SymbolicArgument(new.name)
        self.specs.append(InputSpec(InputKind.USER_INPUT, argument, None))

    def _take_in(self, node: Node) -> None:
        """What is no tensor: a subgraph, or a number."""
        if node.op == "get_attr":
            name = str(node.target)
            self.root.add_module(name, getattr(self.whole.graph_module, name))
            new = self.graph.get_attr(name)
        else:
            new = self.graph.call_function(number)
        new.meta = dict(node.meta)
        self.mapping[node] = new

    def _program(self, results: tuple[Node, ...]) -> ExportedProgram:
        signature = GraphSignature(
            self.specs,
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in results],
        )
        leaves = pytree.tree_structure(((0,) * len(self.inputs), {}))
        module: GraphModule = make_graph_module(self.root, self.graph)
        return ExportedProgram(
            graph_module=module,
            graph_signature=signature,
            state_dict=self.state,
            constants={},
            range_constraints=self.whole.range_constraints,
            call_spec=CallSpec(leaves, pytree.tree_structure((0,) * len(results))),
            example_inputs=((), {}),
            checks=InputChecks([], {}, []),
            argument_names=[n.name for n in self.inputs],
            scope=self.whole.scope,
        )


def _free_symbols(about: object) -> set[Expr]:
    """The symbols in a description."""
    if isinstance(about, tuple):
        return {s for part in about for s in _free_symbols(part)}
    numbers = about.sizes if isinstance(about, Abstract) else (about,)
    return {s for e in numbers if isinstance(e, Expr) for s in symbols(e)}
