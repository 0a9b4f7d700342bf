"""Captures a function as a subgraph, and lifts the values that it closes over to inputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport import source
from graphport.capture.spec.inputs import CONSTANT_TYPES
from graphport.capture.trace import training, values
from graphport.capture.trace.layout import has_same_layout
from graphport.capture.trace.recorder import Frame, OuterWrite, copy_val, describe_argument
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.values import Storage, Value
from graphport.compat.operators import aten
from graphport.compat.torch import (
    HigherOrderOperator,
    OpOverload,
    is_within,
    pytree,
    side_effectful_functions,
)
from graphport.errors import UserError
from graphport.ops import Abstract
from graphport.program import make_graph_module
from graphport.symbolic import Expr, Truth
from graphport.symbolic.bridge import from_torch, is_symbolic, python_type, to_torch
from graphport.tensors.abstract import (
    AbstractTensor,
    describe,
    get_val,
    has_val,
    make_abstract_tensor,
    set_val,
)
from graphport.types import Argument, Function, NodeTarget


class Subgraph:
    """The graph of a function. Its inputs are the given ones, then what it uses from around it."""

    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer = tracer
        self.name = name
        self.frame = Frame(tracer.recorder.frame, len(tracer.scope.symbols))
        self.given: list[Node] = []
        """Inputs that are a new value each time: elements, carried values."""
        self.results: list[Argument] = []
        self.spec: pytree.TreeSpec | None = None
        self.where: source.Location | None = None
        self.written: list[OuterWrite] = []
        self._kinds: dict[int, type] = {}
        """Of each result that is a symbolic number."""
        self._memory: dict[int, Storage] = {}
        """Of each result that is a tensor."""
        self.lies: dict[int, Abstract] = {}
        """Each result that is a tensor, with the strides that eager gives it."""
        self._carried: dict[Value, Node] = {}
        self._first: dict[Node, Value] = {}
        """Of a carried input, the value that it begins with."""

    def take(self, *operands: Argument) -> None:
        """Let operands be the first inputs, in this order, whatever the function uses first."""
        tracer, recorder = self.tracer, self.tracer.recorder
        for x in operands:
            if isinstance(x, torch.Tensor):
                node = tracer.read(tracer.value(x))
                with recorder.enter_frame(self.frame):
                    recorder.lift_to_input(node)

    def make(self, outer: torch.Tensor, abstract: Abstract, what: str) -> torch.Tensor:
        """An argument that is a new tensor each time, named after the one that it comes from."""
        value = self.tracer.value(outer)
        node = self._make(self.tracer.read(value).name, make_abstract_tensor(abstract), what)
        self._first[node] = value
        return self.tracer.wrap(Value(abstract, node, origin=node), outer.requires_grad)

    def make_number(self, name: str, symbol: Expr, what: str) -> None:
        """An argument that is a new number each time."""
        node = self._make(name, to_torch(symbol), what)
        self.frame.sources[symbol] = lambda: node

    def carry(self, base: Value, abstract: Abstract) -> None:
        """An input for memory from outside that the function writes to."""
        outer = self.tracer.read(base)
        node = self._make(outer.name, make_abstract_tensor(abstract), "")
        del self.frame.read_only[node]
        self.frame.inputs[outer] = node
        self._carried[base] = node

    def _make(self, name: str, val: object, what: str) -> Node:
        node = self.frame.open(name, val)
        self.given.append(node)
        self.frame.read_only[node] = what
        with self.tracer.recorder.enter_frame(self.frame):
            self.tracer.recorder.define_sizes(node)
        return node

    def run(self, fn: Callable[..., object], *args: object, where: Truth = True) -> None:
        """Capture the function, which runs where a condition holds. Its flat results are nodes."""
        tracer, recorder = self.tracer, self.tracer.recorder
        self.where = source.locate_function(_unwrap_user_function(fn))
        tracer.assertions.flush()
        opened = len(recorder.added)
        with recorder.enter_frame(self.frame), tracer.scope.branch(where):
            for base, node in self._carried.items():
                tracer.write(base, node)
            with tracer.function_mode:
                out = fn(*args)
            leaves, self.spec = pytree.tree_flatten(out)
            self.results = [self._result(x, i) for i, x in enumerate(leaves)]
            tracer.assertions.finish()
            self.written = self.frame.leave()
        tracer.assertions.seen = len(tracer.scope.facts)
        # Described with what only this graph knows: inputs of others, its own nodes, those within.
        described = [recorder.added[opened:], *(g.nodes for g in list_frame_graphs(self.frame))]
        for node in itertools.chain.from_iterable(described):
            if has_val(node):
                set_val(node, _refresh_val(get_val(node)))

    def _result(self, x: object, i: int) -> Argument:
        if isinstance(x, torch.Tensor):
            value = self.tracer.value(x)
            self._memory[i], self.lies[i] = value.storage, value.abstract
            return self.tracer.read(value)
        if is_symbolic(x):
            self._kinds[i] = python_type(x)
            return self.tracer.recorder.size(from_torch(x))
        if isinstance(x, CONSTANT_TYPES):
            return x
        raise UserError(
            f"result {i} of {self.name} is a {type(x).__qualname__}, not a tensor or number",
            where=self.where,
        )

    def kind(self, i: int) -> type:
        """The Python type of a result at run time; a bool may be described as a number."""
        return self._kinds.get(i) or python_type(describe_argument(self.results[i]))

    def contiguous(self, i: int) -> None:
        """Make a result contiguous, as the caller expects it."""
        node = self.results[i]
        if isinstance(node, Node) and isinstance(get_val(node), AbstractTensor):
            if not describe(node).is_contiguous:
                recorder = self.tracer.recorder
                with recorder.enter_frame(self.frame):
                    self.results[i] = recorder.emit(
                        aten.clone.default, node, memory_format=torch.contiguous_format
                    )

    def add_written(self, bases: Sequence[Value], at: int | None = None) -> None:
        """Return also what tensors from around hold in the end, before the result `at`."""
        last = {w.base: w.node for w in self.written}
        recorder = self.tracer.recorder
        found = []
        for base in bases:
            outer = self.tracer.read(base)
            with recorder.enter_frame(self.frame):
                found.append(last.get(base) or recorder.lift_to_input(outer))
        at = len(self.results) if at is None else at
        self.results[at:at] = found
        for i in range(at, at + len(found)):
            self.contiguous(i)

    def note_possible_alias(self, made: Sequence[object]) -> None:
        """Remember which results eager may not have copied, for when one of them is written to.

        And which may have other strides there.
        """
        first: dict[Storage, Value] = {}
        for i, storage in self._memory.items():
            if i >= len(made) or not isinstance(made[i], torch.Tensor):
                continue
            value = self.tracer.value(made[i])
            if not has_same_layout(self.lies[i], value.abstract):
                self.tracer.unsteady.add(value.node)
            base = self._first.get(storage.origin, storage.base)
            other = first.setdefault(storage, value)
            if base.node.graph is not self.frame.graph:
                values.note_possible_alias(base, value, _return_true, _MAY_ALIAS)
            if other is not value:
                values.note_possible_alias(other, value, _return_true, _MAY_ALIAS)

    @property
    def outside(self) -> list[Node]:
        """Nodes of the graph around that the function uses, the given ones aside."""
        given = set(self.given)
        return [outer for outer, inner in self.frame.inputs.items() if inner not in given]

    def finish(self, outside: Sequence[Node], *, single: bool = False) -> Node:
        """Close the graph, with inputs in the order of `outside`; the node that refers to it."""
        recorder = self.tracer.recorder
        with recorder.enter_frame(self.frame):
            extra = [recorder.lift_to_input(outer) for outer in outside]
        graph = self.frame.graph
        last = None
        for node in (*self.given, *extra):
            (last.append if last is not None else graph._root.append)(node)
            last = node
        _rename_inputs(graph, dict(zip(extra, (outer.name for outer in outside), strict=True)))
        with recorder.enter_frame(self.frame):
            apart = training.detach_no_grad_results(recorder, self.results)
        self.results = [apart.get(r, r) if isinstance(r, Node) else r for r in self.results]
        graph.output(self.results[0] if single else tuple(self.results)).meta = {}
        eliminate_dead_code(graph)
        return recorder.attach(self.name, self.module())

    def module(self) -> GraphModule:
        return build_graph_module(self.frame)


def _unwrap_user_function(fn: Function) -> object:
    """The function that torch's Python code for an operator has wrapped."""
    if isinstance(fn, functools.partial):
        inner = [*fn.keywords.values(), fn.func]
    elif is_within(getattr(fn, "__module__", "") or "", "higher_order_ops"):
        inner = [cell.cell_contents for cell in fn.__closure__ or ()]
    else:
        return fn
    return next((_unwrap_user_function(f) for f in inner if callable(f)), fn)


def _refresh_val(val: object) -> object:
    """Metadata of a tensor whose sizes were numbers to torch when it was made."""
    if isinstance(val, tuple):
        return tuple(map(_refresh_val, val))
    if isinstance(val, AbstractTensor):
        pairs = zip(val._abstract.sizes, val.shape, strict=True)
        return copy_val(val) if any(type(s) is Expr and type(n) is int for s, n in pairs) else val
    return val


_MAY_ALIAS = (
    "the program writes to a tensor that a branch or loop has returned, or to what it was given: "
    "in eager the two may alias",
    "return x.clone() from the branch or loop",
)


def _return_true() -> bool:
    return True


def _rename_inputs(graph: Graph, wanted: dict[Node, str]) -> None:
    """Inputs bear the names of what they stand for; calls that took one of them give way."""
    namespace = graph._graph_namespace
    held = {n.name: n for n in graph.nodes}
    for node, name in wanted.items():
        other = held.get(name)
        if node.name == name or (other is not None and other.op == "placeholder"):
            continue
        if other is not None:
            other.name = namespace.create_name(name, None)
            held[other.name] = other
        node.name = node.target = name
        namespace._used_names.add(name)
        held[name] = node


def build_graph_module(frame: Frame) -> GraphModule:
    """The finished graph of a frame, with its subgraphs."""
    root = nn.Module()
    for name, sub in frame.submodules.items():
        root.add_module(name, sub)
    return make_graph_module(root, frame.graph)


def list_frame_graphs(frame: Frame) -> list[Graph]:
    """The graph of a frame and all its subgraphs."""
    return [frame.graph, *(g for sub in frame.submodules.values() for g in list_module_graphs(sub))]


def list_module_graphs(module: GraphModule) -> list[Graph]:
    """The graph of a module and all its subgraphs."""
    return [m.graph for m in module.modules() if isinstance(m, GraphModule)]


# Dead code elimination.


def eliminate_dead_code(graph: Graph, kept: Collection[Node] = ()) -> None:
    """Drop calls that nobody reads; random numbers, assertions, mutation and messages stay."""
    for node in reversed(graph.nodes):
        if node.users or node in kept:
            continue
        if node.op == "get_attr" or (node.op == "call_function" and not _is_impure(node.target)):
            graph.erase_node(node)


def _is_impure(target: NodeTarget) -> bool:
    if isinstance(target, HigherOrderOperator):
        return True  # there may be assertions in its subgraphs
    if not isinstance(target, OpOverload):
        return False
    if target.namespace == "profiler":
        return False  # marks say nothing about what is computed
    if torch.Tag.nondeterministic_seeded in target.tags or target in side_effectful_functions:
        return True
    return not target._schema.returns or target._schema.is_mutable
