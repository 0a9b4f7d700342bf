"""`gp.unflatten`: rebuilds the original module hierarchy of a program.

`calls` reads from the metadata which module each node belongs to, `dataflow` decides where buffers
are written to and what crosses the borders between calls, `dedupe` which calls are the same code;
a graph is written here for each of those, and `module` puts modules and state to their places.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.fx import Graph, Node

from graphport.arguments import PROGRAM, check_arguments
from graphport.compat.operators import aten
from graphport.compat.torch import PyTreeInfo, TreeSpec, pytree
from graphport.errors import InputError
from graphport.ops.effects import clone_running_statistics
from graphport.program.bounds import insert_bounds_checks
from graphport.program.codegen import RESERVED, is_identifier, make_unique_identifiers
from graphport.program.control import copy_subgraph, use_python_kernels
from graphport.program.module import UserSignature, require_weights
from graphport.program.unflatten import dataflow
from graphport.program.unflatten.calls import Call, State, build_call_tree, operands
from graphport.program.unflatten.dedupe import CallBodies, CallBody
from graphport.program.unflatten.module import CapturedModule, Tree, UnflattenedModule
from graphport.tensors.abstract import get_other_metadata, get_val, has_val, set_val
from graphport.types import PyTree

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

__all__ = ["CapturedModule", "UnflattenedModule", "unflatten"]


@check_arguments(program=PROGRAM)
def unflatten(program: ExportedProgram, flat_args_adapter: object = None) -> UnflattenedModule:
    """A module with the hierarchy of the original one, each part a graph of its own.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> unflattened = gp.unflatten(gp.export(model, (torch.randn(3, 4),)))
    >>> unflattened
    Sequential(
      (0): Linear()
      (1): ReLU()
      (2): Linear()
    )
    >>> unflattened.get_submodule("0")(torch.randn(3, 4)).shape
    torch.Size([3, 8])

    Parameters are shared with the program, buffers that it mutates are copies. A submodule takes
    what it uses and returns what others use, unless `preserve_module_call_signature` of `gp.export`
    named it: then it is called as the original, and another module can take its place. A module
    whose calls do different things is several modules: `encoder`, `encoder@1`, ...
    """
    if flat_args_adapter is not None:
        raise InputError(
            "gp.unflatten has no flat_args_adapter: modules are called as they were captured",
            fix="a module around it that converts its arguments",
        )
    root, home = build_call_tree(program)
    state = State(program)
    writes = dataflow.BufferWrites(program, root, home, state)
    flow = dataflow.Dataflow(program, root, home, state, writes)
    pieces = CallBodies(root, flow, program.graph_module)
    whole = UnflattenedModule(root.kind, Graph(), program)
    tree = Tree(whole, state, (piece.call.path for piece in pieces))
    modules = {p: whole if p.call is root else CapturedModule(p.call.kind, Graph()) for p in pieces}
    for piece, module in modules.items():
        tree.add(piece.name, module)
    for piece, module in modules.items():
        builder = Builder(module, piece, pieces, flow, tree)
        if piece.call is root:
            build_root(builder, program)
        else:
            builder.write()
        clone_running_statistics(module.graph)
        if program.from_file:
            insert_bounds_checks(module.graph)
        use_python_kernels(module.graph)
        if piece.name != piece.call.path:
            module._original["of"] = tree.at(piece.call.path)
    tree.assemble(program)
    require_weights(whole)
    return whole


if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


class Builder:
    """The graph of one piece, written node by node."""

    def __init__(
        self,
        module: CapturedModule,
        piece: CallBody,
        pieces: CallBodies,
        flow: dataflow.Dataflow,
        tree: Tree,
    ) -> None:
        self.module = module
        self.graph: Graph = module.graph
        self.call = piece.call
        self.piece = piece
        self.pieces = pieces
        self.flow = flow
        self.tree = tree
        self.new: dict[Node, Node] = {}
        """What stands for a node of the program here."""
        self._attributes: dict[str, Node] = {}

    def write(self) -> None:
        """The graph of a call."""
        if self.call.signature is None:
            for value in self.flow.inputs[self.call]:
                self.take(value)
        else:
            self._take_original_arguments()
        self.body()
        numbers = {self.pieces.place(v, self.call): v for v in self.flow.outputs[self.call]}
        self.finish([self.pieces.node_at(p, self.call) or numbers[p] for p in self.piece.results])

    def body(self) -> None:
        for item in self.call.items:
            if isinstance(item, Call):
                self._call(item)
            else:
                self.new[item] = self.graph.node_copy(item, self.value)

    def take(self, value: Node, name: str | None = None) -> Node:
        node = self.graph.create_node("placeholder", name or value.name, (), {})
        set_val(node, get_val(value))
        self.new.setdefault(value, node)
        return node

    # Values

    def value(self, value: Node) -> Node:
        """A value that the call uses."""
        waiting = [value]
        while value not in self.new:
            last = waiting[-1]
            # Operands before the number: they are written on the way.
            missing = [n for n in self._number_operands(last) if n not in self.new]
            if missing:
                waiting += reversed(missing)
            else:
                waiting.pop()
                if last not in self.new:
                    self.new[last] = self._make(last)
        return self.new[value]

    def _number_operands(self, value: Node) -> list[Node]:
        """The values that a number is made of in this call."""
        is_computed = isinstance(self.flow.ways[self.call].get(value), dataflow.Recomputed)
        return operands(value) if is_computed and value not in self.new else []

    def _make(self, value: Node) -> Node:
        if value.op == "get_attr":
            return self._graph(value)
        return self._reached(value, self.flow.ways[self.call][value])

    def _reached(self, value: Node, way: dataflow.ValueOrigin) -> Node:
        if isinstance(way, dataflow.FromState):
            return self._attribute(self.tree.attribute(way.name), value)
        if isinstance(way, dataflow.FromOtherModule):
            owner, _, last = way.name.rpartition(".")
            name = self.tree.reference(self.module, owner)
            return self._attribute(f"{name}.{self.tree.attribute(last)}", value)
        if isinstance(way, dataflow.FromSize):
            steps = (
                (aten.sym_size.int, way.dim, None),
                (operator.sub, way.offset, 0),
                (operator.floordiv, way.factor, 1),
            )
            made = self.value(way.tensor)
            for function, number, neutral in steps:
                if number != neutral:
                    made = self.graph.call_function(function, (made, number))
                    made.meta = get_other_metadata(value)
            made.meta = dict(value.meta)
            return made
        assert isinstance(way, dataflow.Recomputed), (
            f"{value.name} is not known in {self.call.key!r}"
        )
        return self.graph.node_copy(value, self.value)

    def _attribute(self, target: str, value: Node) -> Node:
        """State, read once."""
        if target not in self._attributes:
            made = self.graph.create_node("get_attr", target, (), {}, _name_attribute(target))
            if has_val(value):
                set_val(made, get_val(value))
            self._attributes[target] = made
        return self._attributes[target]

    def _graph(self, value: Node) -> Node:
        """A subgraph becomes a child of the module that calls it."""
        graphs, checked = self.pieces.graphs, self.flow.program.from_file
        inner = copy_subgraph(getattr(graphs, str(value.target)), checked)
        target = self.tree.child(self.module, str(value.target), inner)
        made = self.graph.create_node("get_attr", target, (), {}, target)
        made.meta = dict(value.meta)
        return made

    # Calls

    def _call(self, inner: Call) -> None:
        piece = self.pieces.of[inner]
        target = self.tree.target(self.module, self.call, piece)
        meta = {"nn_module_stack": inner.parent.stack if inner.parent else {}}
        given = [self.value(v) for v in self.flow.inputs[inner]]
        if inner.signature is None:
            made = self._call_module(target, tuple(given), {})
            parts = _unpack_tuple(self.graph, made, len(piece.results))
            results = dict(zip(piece.results, parts, strict=True))
            found = {v: results[self.pieces.place(v, inner)] for v in self.flow.outputs[inner]}
        else:
            pairs = zip(
                inner.signature.inputs, self.flow.leaves(inner.signature.inputs), strict=True
            )
            leaves = [self._leaf(argument, value) for argument, value in pairs]
            args, kwargs = pack_arguments(self.graph, self.module, inner.signature.in_spec, leaves)
            made = self._call_module(target, args, kwargs)
            values = self.flow.leaves(inner.signature.outputs)
            wanted = [
                v if v in self.flow.ways[self.call] and v not in self.new else None for v in values
            ]
            found = unpack_results(self.graph, made, inner.signature.out_spec, wanted)
        made.meta = meta
        for value, node in found.items():
            set_val(node, get_val(value), meta)
            self.new[value] = node

    def _call_module(
        self, target: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Node:
        if not all(map(is_identifier, kwargs)):
            module = self.graph.create_node("get_attr", target, (), {}, _name_attribute(target))
            return self.graph.call_function(call_with_keywords, (module, args, kwargs))
        return self.graph.create_node("call_module", target, args, kwargs, _name_attribute(target))

    def _leaf(self, argument: object, value: Node | None) -> Any:
        return getattr(argument, "value", None) if value is None else self.value(value)

    def _take_original_arguments(self) -> None:
        """Arguments as the original module takes them."""
        signature = self.call.signature
        assert signature is not None
        used: set[str] = set()
        for i, value in enumerate(self.flow.leaves(signature.inputs)):
            name = f"{value.name if value is not None else 'constant'}"
            name = name if name not in used else f"{name}_{i}"
            used.add(name)
            if value is None:
                self.graph.create_node("placeholder", name, (), {})
            else:
                self.take(value, name)
        names = make_unique_identifiers(signature.argument_names)
        renamed = zip(signature.argument_names, names, strict=True)
        self.module._renamed = {name: new for name, new in renamed if name != new}
        info = PyTreeInfo(names, signature.in_spec, signature.out_spec)
        self.graph.set_codegen(UserSignature(info))

    # The end

    def finish(self, values: list[Node]) -> None:
        """Write what the call writes, and return its results."""
        signature = self.call.signature
        if signature is not None:
            pairs = zip(signature.outputs, self.flow.leaves(signature.outputs), strict=True)
            leaves = [(getattr(a, "value", None) if v is None else v) for a, v in pairs]
            self.graph.output(tuple(self.write_back([(v, None) for v in leaves])))
            return
        results = self.write_back([(v, None) for v in values])
        if len(results) < 2:
            self.graph.output(results[0] if results else None)
        else:
            self.graph.output(tuple(results))

    def write_back(self, results: list[tuple[PyTree, Node | None]]) -> list[object]:
        """Copy values to what they are written to; what is left of the results.

        Results that alias what is about to be overwritten are copied first.
        """
        written = [(v, s) for s, v in self.flow.writes.at.get(self.call, ())]
        pairs = [*written, *results]
        memory = self.flow.writes.overwritten(self.call) | {t for _, t in pairs if t is not None}
        values: dict[Node, Node] = {}
        for value, _ in pairs:
            if isinstance(value, Node) and value not in values:
                values[value] = self.value(value)
                if dataflow.is_view_of(value, memory):
                    copy = self.graph.call_function(aten.clone.default, (values[value],))
                    copy.meta = dict(value.meta)
                    values[value] = copy
        kept: list[Any] = []
        copies: dict[Node, Node] = {}
        for value, target in pairs:
            if target is None:
                kept.append(value)
                continue
            into = self.value(target)
            if self._is_parameter(target):
                # The program writes to it as the user did, without a gradient.
                into = self.graph.call_function(aten.detach.default, (into,))
                into.meta = dict(target.meta)
            copy = self.graph.call_function(aten.copy_.default, (into, values[value]))
            copy.meta = dict(value.meta)
            if target not in self.flow.state.names:
                copies[value] = copy  # a mutated input that is also returned is the caller's own
        return [copies.get(v, values[v]) if isinstance(v, Node) else v for v in kept]

    def _is_parameter(self, target: Node) -> bool:
        names = self.flow.state.names.get(target, ())
        return any(isinstance(self.flow.state.tensors.get(n), nn.Parameter) for n in names)


def build_root(builder: Builder, program: ExportedProgram) -> None:
    """The graph of the whole program, with the user's own arguments."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node not in builder.flow.state.names:
            builder.take(node)
    builder.body()
    info = PyTreeInfo(
        make_unique_identifiers(program.argument_names),
        program.call_spec.in_spec,
        program.call_spec.out_spec,
    )
    results = builder.write_back(builder.flow.results)
    builder.graph.output(tuple(results))
    builder.graph.set_codegen(UserSignature(info))


def call_with_keywords(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call a module with keywords that generated code cannot write."""
    return module(*args, **kwargs)


def _unpack_tuple(graph: Graph, made: Node, count: int) -> list[Node]:
    if count == 1:
        return [made]
    return [graph.call_function(operator.getitem, (made, i)) for i in range(count)]


def _name_attribute(target: str) -> str:
    """A name for the node of an attribute; BERT has a module `self`."""
    name = target.replace(".", "_")
    return f"{name}_" if name in RESERVED else name


# Packs arguments and results of modules that keep their call signature.

_PLAIN = (tuple, list, dict)


class Packing:
    """Puts leaves into containers that only pytree can make."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec

    def __call__(self, *leaves: object) -> PyTree:
        return pytree.tree_unflatten(leaves, self.spec)


def pack_arguments(
    graph: Graph, module: nn.Module, spec: TreeSpec, leaves: list[object]
) -> tuple[Any, Any]:
    """Positional and keyword arguments with these leaves."""
    rest = iter(leaves)

    def pack(part: TreeSpec) -> object:
        if part.is_leaf():
            return next(rest)
        if part.type in _PLAIN:
            children = [pack(child) for child in part.children()]
            return (
                dict(zip(part.context, children, strict=True))
                if part.type is dict
                else part.type(children)
            )
        name = next(n for i in range(1 << 30) if not hasattr(module, n := f"packing_{i}"))
        module.__dict__[name] = Packing(part)
        packing = graph.create_node("get_attr", name, (), {}, name)
        given = [next(rest) for _ in range(part.num_leaves)]
        return graph.call_function(operator.call, (packing, *given))

    args, kwargs = (pack(part) for part in spec.children())
    return args, kwargs


def unpack_results(
    graph: Graph, made: Node, spec: TreeSpec, values: list[Node | None]
) -> dict[Node, Node]:
    """Where in the result of a call each value is; None where nobody wants to know."""
    found: dict[Node, Node] = {}
    rest = iter(values)

    def take(part: TreeSpec, node: Node) -> None:
        wanted = [next(rest) for _ in range(part.num_leaves)]
        if not any(v is not None and v not in found for v in wanted):
            return
        if part.is_leaf():
            assert wanted[0] is not None
            found[wanted[0]] = node
            return
        for key, child, some in _wanted_children(graph, part, node, wanted):
            inner = graph.call_function(operator.getitem, (key[0], key[1]))
            found.update(unpack_results(graph, inner, child, some))

    take(spec, made)
    return found


def _wanted_children(
    graph: Graph, spec: TreeSpec, node: Node, wanted: list[Node | None]
) -> Iterator[tuple[tuple[Node, Any], TreeSpec, list[Node | None]]]:
    """(container, key), structure and values of each part that has a value that is wanted."""
    if spec.type in _PLAIN:
        keys = spec.context if spec.type is dict else range(spec.num_children)
        parts = list(zip(keys, spec.children(), strict=True))
    else:
        node = graph.call_function(pytree.tree_leaves, (node,))
        parts = [(i, pytree.treespec_leaf()) for i in range(spec.num_leaves)]
    first = 0
    for key, part in parts:
        some = wanted[first : first + part.num_leaves]
        first += part.num_leaves
        if any(v is not None for v in some):
            yield (node, key), part, some
