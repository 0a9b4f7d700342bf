"""Extracts a region of a graph as a graph, and as a program of its own.

Its inputs are the tensors that it takes from outside, and those sizes that none of them shows.
Numbers within are expressions in these. Weights are part of the program, or inputs like others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
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
from graphport.symbolic import Expr, Scope
from graphport.tensors.abstract import (
    Abstract,
    collect_symbols,
    describe,
    get_shape,
    get_val,
    iter_numbers,
    permute_strides,
    set_val,
)


class RegionGraph:
    """A copy of nodes of a graph, as a graph that takes what they read from outside."""

    def __init__(self) -> None:
        self.graph, self.root = Graph(), nn.Module()
        self.mapping: dict[Node, Node] = {}
        """By node of the graph, its copy, or the input that stands for it."""

    def take(self, node: Node) -> Node:
        """An input for a node outside."""
        new = self.mapping[node] = self.graph.placeholder(node.name)
        return new

    def copy(self, *nodes: Node) -> None:
        for node in nodes:
            self.mapping[node] = self.graph.node_copy(node, self.mapping.__getitem__)

    def attach(self, reference: Node, module: nn.Module) -> None:
        """A subgraph, and what refers to it."""
        self.root.add_module(str(reference.target), module)
        self.copy(reference)

    def close(self, results: Sequence[Node]) -> GraphModule:
        """End the graph with copies, or what else it has made of them."""
        self.graph.output(tuple(results)).meta = {}
        return make_graph_module(self.root, self.graph)


def list_inputs(nodes: Iterable[Node]) -> list[Node]:
    """What nodes read, each once, in their order."""
    return list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes))


def find_hidden_symbols(nodes: Iterable[Node], taken: Iterable[Node]) -> list[Expr]:
    """The symbols in the metadata of nodes that what they take shows neither as size nor number."""
    needed = {s for n in nodes for m in (n, *n.all_input_nodes) for s in collect_symbols(m)}
    shown = {e for n in taken for e in iter_numbers(n)}
    return sorted(needed - shown, key=str)


def make_argument(node: Node) -> TensorArgument | SymbolicArgument:
    kind = TensorArgument if get_shape(node) is not None else SymbolicArgument
    return kind(node.name)


def make_region_program(
    whole: ExportedProgram,
    module: GraphModule,
    signature: GraphSignature,
    state: Mapping[str, Any],
    inputs: Sequence[Node],
    checks: InputChecks,
) -> ExportedProgram:
    """The program of a region; `state` are its weights, `inputs` the nodes that it takes."""
    constants = whole.constants.keys() - whole.state_dict.keys()
    results = [s for s in signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    return ExportedProgram(
        graph_module=module,
        graph_signature=signature,
        state_dict={k: v for k, v in state.items() if k not in constants},
        constants={k: v for k, v in state.items() if k in constants},
        range_constraints=whole.range_constraints,
        call_spec=CallSpec(
            pytree.tree_structure(((0,) * len(inputs), {})),
            pytree.tree_structure((0,) * len(results)),
        ),
        example_inputs=((None,) * len(inputs), {}),
        checks=checks,
        argument_names=[n.name for n in inputs],
        scope=whole.scope,
        from_file=whole.from_file,
    )


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


# A region for ONNX Runtime.


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
        self.nodes = region
        self.elsewhere = elsewhere
        self.inside = set(region)
        self.whole = whole
        self.weights = weights
        self.symbol_nodes = symbol_nodes
        self.region = RegionGraph()
        self.specs: list[InputSpec] = []
        self.inputs: list[Node] = []
        self.state: dict[str, Any] = {}

    def made(self) -> Subprogram:
        outside = [n for n in list_inputs(self.nodes) if n not in self.inside]
        tensors = [n for n in outside if isinstance(describe(n), Abstract)]
        sizes = [self.symbol_nodes.get(s) for s in find_hidden_symbols(self.nodes, tensors)]
        for node in (*tensors, *(n for n in sizes if n is not None and n not in self.inside)):
            if node not in self.region.mapping:
                self._open(node)
        for node in outside:
            if node not in self.region.mapping:
                self._take_in(node)
        self.region.copy(*self.nodes)
        outputs = [
            n
            for n in self.nodes
            if any(u not in self.inside for u in n.users) and not isinstance(describe(n), tuple)
        ]
        orders = tuple(map(self._order, outputs))
        results = tuple(map(self._laid_out, outputs, orders))
        signature = GraphSignature(
            self.specs,
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in results],
        )
        module = self.region.close(results)
        checks = InputChecks([], {}, [])
        return Subprogram(
            make_region_program(self.whole, module, signature, self.state, self.inputs, checks),
            tuple(self.inputs),
            tuple(outputs),
            orders,
            {new: old for old, new in self.region.mapping.items()},
        )

    def _order(self, node: Node) -> DimOrder | None:
        """The order of its dims in memory, where that may matter."""
        about = describe(node)
        if not isinstance(about, Abstract) or all(u in self.elsewhere for u in node.users):
            return None
        return find_dim_order(about, self.whole.scope)

    def _laid_out(self, node: Node, order: DimOrder | None) -> Node:
        inner = self.region.mapping[node]
        if order is None:
            return inner
        about = describe(node)
        new = self.region.graph.call_function(aten.permute.default, (inner, list(order)))
        set_val(new, about.like(tuple(about.sizes[d] for d in order)), node.meta)
        return new

    def _open(self, node: Node) -> None:
        """A placeholder for a node outside: a weight, a constant, or an input."""
        new = self.region.take(node)
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
        self.specs.append(InputSpec(InputKind.USER_INPUT, make_argument(new), None))

    def _take_in(self, node: Node) -> None:
        """What is no tensor: a subgraph, or a number."""
        if node.op == "get_attr":
            self.region.attach(node, getattr(self.whole.graph_module, str(node.target)))
            return
        new = self.region.mapping[node] = self.region.graph.call_function(number)
        new.meta = dict(node.meta)
