"""Rewrites a program node by node, copying some nodes and tracing others again.

Nothing is learnt on the way: the sizes, their names and what is known of them stay those of the
program, and an operator that asks for more than is known stays whole.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphport.capture.soundness.patches import MODE_FLAGS, NO_GC, enter_capture
from graphport.capture.trace import training
from graphport.capture.trace.recorder import Namespace, Recorder
from graphport.capture.trace.scalars import ASSERTION_OPS
from graphport.capture.trace.signatures import (
    build_graph_signature,
    collect_mutations,
    rewrite_module_calls,
)
from graphport.capture.trace.state import State, split_state
from graphport.capture.trace.subgraph import Subgraph, build_graph_module, eliminate_dead_code
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.values import Value
from graphport.compat.operators import higher_order
from graphport.compat.torch import DisableAutocast, HigherOrderOperator, OpOverload, pytree
from graphport.errors import DataDependentError, ExportError, SerializationError
from graphport.ops import get_op_info
from graphport.process import restore_on_exit, undo_on_error, undo_on_exit
from graphport.program import ExportedProgram, InputChecks, InputKind, OutputKind, OutputSpec
from graphport.symbolic import Expr, NotKnown, symbols
from graphport.symbolic.bridge import from_torch, is_symbolic
from graphport.tensors.abstract import AbstractTensor, get_val, holds_number
from graphport.types import Argument

MakeTracer = Callable[[Recorder, State], Tracer]


class Rewriter:
    """One pass over a program."""

    closes_scope = True
    """Whether nothing more may be assumed of its sizes."""

    def __init__(self, program: ExportedProgram, make_tracer: MakeTracer) -> None:
        self.program = program
        self.recorder = Recorder(program.scope)
        taken = (*program.state_dict, *program.constants)
        self.recorder.reserved = {n.split(".")[0] for n in taken}
        self.names = Namespace()
        self.state = State(None, self.recorder, self.names)
        self.tracer = make_tracer(self.recorder, self.state)
        # What is known already is asserted by the program where it says so.
        self.known = self.tracer.assertions.seen = len(program.scope.facts)
        self.inputs: list[tuple[Node, Value | None]] = []
        self.notes: list[str] = []
        self.new: dict[Node, Any] = {}
        """What stands for each node of the old graph: a node, a constant, a tuple of them."""
        self.references: dict[Node, Node] = {}
        """New nodes that replace old ones whatever is known of their values: those that refer to
        a subgraph, and numbers."""

    @restore_on_exit
    def run(self) -> ExportedProgram:
        scope = self.program.scope
        reopen = functools.partial(setattr, scope, "closed", scope.closed)
        with undo_on_error(scope.checkpoint()), undo_on_exit(reopen), NO_GC, MODE_FLAGS:
            scope.closed = self.closes_scope
            with enter_capture(), DisableAutocast():
                self._open()
                for node in self.program.graph.nodes:
                    if node.op not in ("placeholder", "output"):
                        self.new[node] = self._visit_node(node)
                return self._finish()

    def _visit_node(self, node: Node) -> Argument:
        try:
            return self.visit(node)
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            if isinstance(error, ExportError) or not self.program.from_file:
                raise
            # A file may call operators with anything that their schemas allow.
            raise SerializationError(
                f"the node {node.name!r} of the program that was loaded cannot be written anew: "
                f"{type(error).__name__}: {error}"
            ) from error

    # Inputs and results

    def _open(self) -> None:
        """The same inputs under the same names."""
        recorder = self.recorder
        specs = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        values: dict[Node, Value | None] = {}
        for old in self.program.graph.find_nodes(op="placeholder"):
            node = self.names.placeholder(recorder.graph, self.names.unique(old.name))
            node.meta = dict(old.meta)
            recorder.frame.entry = node
            spec, val = specs[old.name], get_val(old)
            value = None
            if isinstance(val, AbstractTensor):
                value = Value(val._abstract, node, origin=node)
            self.new[old], values[node] = node, value
            if spec.kind is InputKind.USER_INPUT:
                self.inputs.append((node, value))
            elif spec.target is not None:
                tensor = self.program.tensor(spec.target)
                self.state.add_existing(
                    tensor, spec.kind, spec.target, node, value, spec.persistent
                )
        self.state.first_input = self.inputs[0][0] if self.inputs else None
        self.state.join_aliases()
        values.update((entry.node, entry.value) for entry in self.state.entries)
        for old, node in list(self.new.items()):
            self.new[old] = self.open_input(node, values[node])
        for node, value in self.inputs:
            for d, s in enumerate(value.abstract.sizes if value is not None else ()):
                if type(s) is Expr and len(symbols(s)) == 1:
                    read = functools.partial(recorder.size_of, node, d, s, on_entry=True)
                    recorder.define_size(s, read)
            if is_symbolic(get_val(node)):
                number = from_torch(get_val(node))
                if isinstance(number, Expr):
                    recorder.define_number(number, node)

    def _finish(self) -> ExportedProgram:
        program, graph = self.program, self.recorder.graph
        old = next(n for n in reversed(program.graph.nodes) if n.op == "output")
        kinds = [s.kind for s in program.graph_signature.output_specs]
        values = [self.result(x) for x in old.args[0]]
        mutated = self.mutated(values)
        results = [v for v, k in zip(values, kinds, strict=True) if k is OutputKind.USER_OUTPUT]
        graph.output((*(n for n, _ in mutated), *results)).meta = {}
        calls, kept = rewrite_module_calls(program.module_call_graph, self._named)
        eliminate_dead_code(graph, kept)
        inputs = [node for node, _ in self.inputs]
        _, constants = split_state(None, self.state.entries)
        return replace(
            program,
            graph_module=build_graph_module(self.recorder.frame),
            graph_signature=build_graph_signature(
                graph, self.state.entries, inputs, mutated, results
            ),
            constants={
                **program.constants,
                **{n: t for n, t in constants.items() if n not in program.state_dict},
            },
            module_call_graph=calls,
            checks=self._checks(),
            notes=[*program.notes, *self.notes],
            dialect="ATEN",
        )

    def _checks(self) -> InputChecks:
        """Those of the program, and what has been assumed since."""
        checks, found = self.program.checks, self.program.scope.facts[self.known :]
        facts = (*checks.facts, *(fact.cond for fact in found))
        return replace(checks, facts=facts) if found else checks

    def _named(self, name: str) -> Argument:
        """What stands for a node of the old graph, by its name; None if nothing does."""
        old = next((n for n in self.program.graph.nodes if n.name == name), None)
        return None if old is None else self.result(old)

    def mutated(self, values: list[Any]) -> list[tuple[Node, OutputSpec]]:
        """Results that the program writes somewhere; `values` are all results."""
        return [
            (v, replace(s, arg=replace(s.arg, name=v.name)))
            for v, s in zip(values, self.program.graph_signature.output_specs, strict=True)
            if s.kind is not OutputKind.USER_OUTPUT
        ]

    def open_input(self, node: Node, value: Value | None) -> Argument:
        """What stands for an input."""
        return node

    def node_of(self, old: Node) -> Argument:
        """A node of the new graph, a constant, or a tuple of them."""
        return self.references.get(old) or self.new[old]

    def result(self, x: Argument) -> Argument:
        return self.node_of(x) if isinstance(x, Node) else x

    # Nodes

    def visit(self, node: Node) -> Argument:
        """What stands for a node in the new graph."""
        if node.op == "get_attr":
            return None  # written where the graph is called
        if isinstance(node.target, HigherOrderOperator):
            return self.higher_order(node)
        if node.target is operator.getitem and isinstance(self.new[node.args[0]], (tuple, list)):
            return self.new[node.args[0]][node.args[1]]
        if self.keeps(node):
            return self.wrap_copy(self.copy(node))
        with self.recorder.inherit_metadata(node):
            return self.trace_node(node)

    def keeps(self, node: Node) -> bool:
        """Whether a call stays as it is."""
        raise NotImplementedError

    def copy(self, node: Node) -> Node:
        recorder = self.recorder
        args, kwargs = map_arg((node.args, node.kwargs), self.node_of)
        new = recorder.graph.create_node(node.op, node.target, args, kwargs, node.name)
        new.meta = dict(node.meta)
        val = get_val(node)
        if is_symbolic(val):
            self._bind_number(val, new)
        else:
            recorder.define_sizes(new, on_entry=False)
        return new

    def trace_node(self, node: Node) -> Argument:
        """The call as the tracer sees it; whole, if more would have to be known of the sizes."""
        args, kwargs = self.arguments(node)
        try:
            result = self.tracer.call(node.target, *args, **kwargs)
        except self.reasons_to_keep(node) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            self.notes.append(f"{node.name}: {node.target} stays whole: {why}")
            return self.wrap_copy(self.copy(node))
        return pytree.tree_map(self.written, result)

    def reasons_to_keep(self, node: Node) -> tuple[type[Exception], ...]:
        """Errors in tracing a call that leave it as it is."""
        return (NotKnown, DataDependentError)

    def wrap_copy(self, node: Node) -> Argument:
        """What stands for a call that was copied."""
        return node

    def arguments(self, node: Node) -> tuple[Any, dict[str, Any]]:
        """Of a call, as the tracer takes them: in plain containers."""
        args = tuple(self._argument(a) for a in node.args)
        return args, {k: self._argument(v) for k, v in node.kwargs.items()}

    def _argument(self, x: object) -> Argument:
        if isinstance(x, (list, tuple)):
            return [self._argument(y) for y in x]
        return self.hold_value(x) if isinstance(x, Node) else x

    def hold_value(self, node: Node) -> Argument:
        """A value of the new graph as the tracer takes it."""
        new = self.new[node]
        return tuple(map(self._hold, new)) if isinstance(new, (tuple, list)) else self._hold(new)

    def _hold(self, new: object) -> Argument:
        val = get_val(new) if isinstance(new, Node) else new
        if isinstance(val, AbstractTensor):
            return self.tracer.hold(Value(val._abstract, new), val.requires_grad)
        return val

    def written(self, x: Argument) -> Argument:
        if isinstance(x, torch.Tensor):
            return self.tracer.read(self.tracer.value(x))
        return self.recorder.size(from_torch(x)) if is_symbolic(x) else x

    # Subgraphs

    def higher_order(self, node: Node) -> Argument:
        """A call of graphs, each written anew; constants that it takes come in as operands."""
        owner = self._owner(node)
        inner = [n for n in node.all_input_nodes if n.op == "get_attr"]
        subs = [self._subgraph(n, getattr(owner, n.target)) for n in inner]
        outside = list(dict.fromkeys(n for sub in subs for n in sub.outside))
        for n, sub in zip(inner, subs, strict=True):
            self.references[n] = sub.finish(
                outside, single=_returns_single(getattr(owner, n.target))
            )
        new = self.copy(node)
        if outside:
            *first, operands = new.args
            new.args = (*first, [*operands, *outside])
        return self.wrap_copy(new)

    def _owner(self, node: Node) -> GraphModule:
        return next(
            m
            for m in self.program.graph_module.modules()
            if isinstance(m, GraphModule) and m.graph is node.graph
        )

    def _bind_number(self, val: object, node: Node) -> None:
        """A number that a graph is given, or computes: as it is, and as what it is known to be.

        That may be a symbol that the program makes only later.
        """
        number = from_torch(val)
        for form in (number, self.program.scope.simplify(number)):
            if isinstance(form, Expr) and form not in self.recorder.frame.sizes:
                self.recorder.bind_expression(form, node)
                if form.kind == "symbol" and not self.recorder.is_defined(form):
                    self.recorder.define(form, lambda: node)

    def _subgraph(self, reference: Node, module: GraphModule) -> Subgraph:
        recorder = self.recorder
        sub = Subgraph(self.tracer, str(reference.target).rpartition("_")[0])
        with recorder.enter_frame(sub.frame):
            for old in module.graph.nodes:
                if old.op == "placeholder":
                    new, val = sub.frame.open(old.name, get_val(old)), get_val(old)
                    sub.given.append(new)
                    recorder.define_sizes(new)
                    if is_symbolic(val):
                        self._bind_number(val, new)
                        self.references[old] = new
                    tensor = isinstance(val, AbstractTensor)
                    value = Value(val._abstract, new, origin=new) if tensor else None
                    self.new[old] = self.open_input(new, value)
                elif old.op == "output":
                    found = old.args[0]
                    leaves = found if isinstance(found, (tuple, list)) else [found]
                    sub.results = [self.result(x) for x in leaves]
                else:
                    self.new[old] = self.visit(old)
        return sub


def _returns_single(module: GraphModule) -> bool:
    """Whether a graph returns a value by itself: the condition of a loop."""
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return not isinstance(output.args[0], (tuple, list))


_GRAD_REGION = higher_order.wrap_with_set_grad_enabled
_AUTOGRAD_FUNCTION = higher_order.autograd_function_apply


def makes_symbols(node: Node, recorder: Recorder) -> bool:
    """Whether a call gives sizes that only running can tell."""
    if torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()):
        return True
    found = pytree.tree_leaves(get_val(node))
    numbers = [n for v in found for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return any(
        not recorder.is_defined(s)
        for n in numbers
        if is_symbolic(n)
        for s in symbols(from_torch(n))
    )


def _map_results(node: Node, recorder: Recorder, hold: Callable[[Node], Any]) -> Argument:
    """The result of a call, or of each of its several results."""
    val = get_val(node)
    if isinstance(val, (tuple, list)):
        return tuple(hold(recorder.item(node, i)) for i in range(len(val)))
    return hold(node)


class Functionalisation(Rewriter):
    """A program in training form, run once more under a tracer that turns mutation into values.

    Here `new` holds tensors and symbolic numbers, as the user's code did: two nodes may stand for
    one tensor, before and after it is written to.
    """

    # A program of torch.export may rely on sizes of 2 and more without a word. What our rules need
    # of them is checked from here on; of a program of ours they have asked already.
    closes_scope = False

    def open_input(self, node: Node, value: Value | None) -> Argument:
        val = get_val(node)
        return val if value is None else self.tracer.hold(value, val.requires_grad)

    def mutated(self, values: list[object]) -> list[tuple[Node, OutputSpec]]:
        found = collect_mutations(self.tracer, self.state.entries, self.inputs)
        apart = training.detach_no_grad_results(self.recorder, [*(n for n, _ in found), *values])
        values[:] = [apart.get(v, v) if isinstance(v, Node) else v for v in values]
        return [
            (apart.get(n, n), replace(s, arg=replace(s.arg, name=apart.get(n, n).name)))
            for n, s in found
        ]

    def keeps(self, node: Node) -> bool:
        if self.recorder.frame.parent is not None:
            return True  # branches and loop bodies are functional as they are
        return (
            holds_number(node) or makes_symbols(node, self.recorder) or node.target in ASSERTION_OPS
        )

    def visit(self, node: Node) -> Argument:
        """A view that is copied, because it makes symbols, is one all the same."""
        target: Any = node.target
        view = isinstance(target, OpOverload) and get_op_info(target).view and self.keeps(node)
        made = super().visit(node)
        if not view or not isinstance(made, AbstractTensor):
            return made
        (base, *rest), _ = self.arguments(node)
        value, lowered = self.tracer.value(made), tuple(map(self.tracer.lower, rest))
        seen = Value.view(self.tracer.value(base), value.abstract, value.node, target, lowered)
        return self.tracer.hold(seen, made.requires_grad)

    def copy(self, node: Node) -> Node:
        new = super().copy(node)
        if holds_number(node):
            # By its value it may be another number, which is what the program asserts of it.
            self.references[node] = new
        return new

    def wrap_copy(self, node: Node) -> Argument:
        return _map_results(node, self.recorder, self._hold)

    def _hold(self, new: object) -> Argument:
        if isinstance(new, Node) and is_symbolic(get_val(new)):
            self._bind_number(get_val(new), new)
        return super()._hold(new)

    def node_of(self, old: Node) -> Argument:
        if old in self.references:
            return self.references[old]
        return pytree.tree_map(self.written, self.new[old])

    def hold_value(self, node: Node) -> Argument:
        return self.new[node]

    def trace_node(self, node: Node) -> Argument:
        args, kwargs = self.arguments(node)
        if not isinstance(node.target, OpOverload):
            return node.target(*args, **kwargs)
        return self.tracer.call(node.target, *args, **kwargs)

    def higher_order(self, node: Node) -> Argument:
        if node.target is _AUTOGRAD_FUNCTION:
            forward, _, *operands = node.args
            return self._inline_subgraph(node, forward, operands)[0]
        if node.target is not _GRAD_REGION:
            return super().higher_order(node)
        mode, reference, *operands = node.args
        with torch.set_grad_enabled(mode):
            return self._inline_subgraph(node, reference, operands)

    def _inline_subgraph(self, node: Node, reference: Any, operands: list[object]) -> Argument:
        """Inline a subgraph."""
        inputs = iter(operands)
        for inner in getattr(self._owner(node), reference.target).graph.nodes:
            if inner.op == "placeholder":
                outer = next(inputs)
                self.new[inner] = self.new[outer]
                if outer in self.references:
                    self.references[inner] = self.references[outer]
            elif inner.op == "output":
                return pytree.tree_map_only(Node, self.new.__getitem__, tuple(inner.args[0]))
            else:
                self.new[inner] = self.visit(inner)
        return ()
