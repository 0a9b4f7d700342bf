"""Builds the graph signature of a program, and the call signatures of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from graphport import source
from graphport.capture.spec.inputs import CONSTANT_TYPES, Inputs, bind_inputs
from graphport.capture.trace import registries
from graphport.capture.trace.state import StateEntry
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import pytree
from graphport.errors import InputError, UnsupportedError
from graphport.program import (
    Argument,
    ConstantArgument,
    GraphSignature,
    InputKind,
    InputSpec,
    ModuleCall,
    ModuleCallSignature,
    ObjectArgument,
    OutputKind,
    OutputSpec,
    SymbolicArgument,
    TensorArgument,
)
from graphport.symbolic.bridge import SYMBOLIC, from_torch, is_symbolic
from graphport.tensors.abstract import get_val
from graphport.types import PyTree


def build_graph_signature(
    graph: Graph,
    entries: list[StateEntry],
    inputs: list[Node],
    mutated: Iterable[tuple[Node, OutputSpec]],
    results: Iterable[object],
) -> GraphSignature:
    """Entries found late stand before the inputs, in the order in which they were found."""
    order = {n.name: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    specs = [*map(_state_spec, entries), *map(_input_spec, inputs)]
    return GraphSignature(
        sorted(specs, key=lambda s: order[s.arg.name]),
        [*(spec for _, spec in mutated), *map(_output_spec, results)],
    )


def collect_mutations(
    tracer: Tracer, entries: list[StateEntry], inputs: Iterable[tuple[Node, Value | None]]
) -> list[tuple[Node, OutputSpec]]:
    """Outputs for what the program writes: state first, then inputs."""
    found: list[tuple[Node, OutputKind, str]] = []
    for entry in entries:
        written = entry.replaced or entry.value
        if written is None:
            continue
        if entry.replaced is None and not written.storage.mutated:
            continue
        node = tracer.read(written)
        if node is entry.node:
            continue
        kind = (
            OutputKind.PARAMETER_MUTATION
            if entry.kind is InputKind.PARAMETER
            else OutputKind.BUFFER_MUTATION
        )
        if entry.kind is InputKind.CONSTANT_TENSOR:
            entry.kind, entry.persistent = InputKind.BUFFER, False
        found.append((node, kind, entry.names[0]))
    for node, value in inputs:
        if value is not None and value.storage.mutated and value.node is not node:
            found.append((tracer.read(value), OutputKind.USER_INPUT_MUTATION, node.name))
    return list(_clone_duplicates(tracer, found))


def _clone_duplicates(
    tracer: Tracer, written: Iterable[tuple[Node, OutputKind, str]]
) -> Iterator[tuple[Node, OutputSpec]]:
    """A write is known by the name of its node: a value that is written twice has two."""
    seen: set[Node] = set()
    for node, kind, target in written:
        if node in seen:
            node = tracer.recorder.emit(aten.clone.default, node)
        seen.add(node)
        yield node, OutputSpec(kind, TensorArgument(node.name), target)


def _state_spec(entry: StateEntry) -> InputSpec:
    if entry.value is None:
        kind = entry.tensor._type().qualified_name()
        return InputSpec(entry.kind, ObjectArgument(entry.node.name, kind), entry.names[0])
    return InputSpec(
        entry.kind,
        TensorArgument(entry.node.name),
        entry.names[0],
        entry.persistent if entry.kind is InputKind.BUFFER else None,
    )


def _input_spec(node: Node) -> InputSpec:
    val = get_val(node)
    if isinstance(val, torch.Tensor):
        return InputSpec(InputKind.USER_INPUT, TensorArgument(node.name))
    if is_symbolic(val):
        return InputSpec(InputKind.USER_INPUT, SymbolicArgument(node.name))
    return InputSpec(InputKind.USER_INPUT, ConstantArgument(node.name, val))


def _output_spec(result: object) -> OutputSpec:
    if not isinstance(result, Node):
        return OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument("", result))
    val = get_val(result)
    argument = TensorArgument if isinstance(val, torch.Tensor) else SymbolicArgument
    return OutputSpec(OutputKind.USER_OUTPUT, argument(result.name))


# `preserve_module_call_signature`: records arguments and results of the named modules.


@dataclass
class _Call:
    """One call: flat values as nodes or constants."""

    path: str
    bound: Inputs
    inputs: list[Any]
    outputs: list[Any] = field(default_factory=list)
    out_spec: Any = None


class CallSignatures:
    """Signatures of the modules at some paths, taken as they are called."""

    def __init__(self, root: nn.Module | None, names: object, tracer: Tracer) -> None:
        self.tracer = tracer
        self.paths = _resolve_paths(root, names)
        self._calls: dict[str, _Call] = {}

    def enter(self, path: str, module: nn.Module, args: object, kwargs: object) -> _Call:
        """Note the arguments of a call, in the name of whoever makes it."""
        if self.tracer.recorder.frame.parent is not None:
            raise UnsupportedError(
                f"the module {path!r} is called in a branch or loop, and cannot keep its signature",
                where=source.locate_user_line(),
                fix=f"leave {path!r} out of preserve_module_call_signature",
            )
        try:
            bound = bind_inputs(module, args, kwargs, within=True)
        except InputError as error:
            raise InputError(
                f"the module {path!r} cannot keep its call signature: {error.what}",
                where=source.locate_user_line(),
                fix=error.fix,
            ) from None
        return _Call(path, bound, [self._read(leaf.value) for leaf in bound.leaves])

    def leave(self, key: str, call: _Call, result: object) -> PyTree:
        """Note the result of a call; what is not made in it is made to be."""
        leaves, call.out_spec = pytree.tree_flatten(result)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, (torch.Tensor, *SYMBOLIC, *CONSTANT_TYPES)):
                raise InputError(
                    f"the module {call.path!r} cannot keep its call signature: it returns a "
                    f"{type(leaf).__module__}.{type(leaf).__qualname__}",
                    where=source.locate_user_line(),
                    fix="return tensors and containers of them, or register the type with "
                    "torch.utils._pytree",
                )
            node = self._read(leaf)
            if isinstance(leaf, torch.Tensor) and key not in node.meta.get("nn_module_stack", {}):
                node = self.tracer.recorder.emit(aten.alias.default, node)
                leaves[i] = self._alias_through(node, leaf)
            call.outputs.append(node)
        self._calls[key] = call
        return pytree.tree_unflatten(leaves, call.out_spec)

    def _alias_through(self, node: Node, t: torch.Tensor) -> torch.Tensor:
        """An alias of the tensor as a node: a replacement of the module may compute it."""
        value = self.tracer.value(t)
        shown = Value.view(value, value.abstract, node, aten.alias.default, ())
        return self.tracer.wrap(shown, t.requires_grad)

    def _read(self, x: object) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tracer.read(self.tracer.value(x))
        return self.tracer.recorder.size(from_torch(x)) if is_symbolic(x) else x

    @property
    def nodes(self) -> set[Node]:
        """What must stay in the graph."""
        values = (v for call in self._calls.values() for v in (*call.inputs, *call.outputs))
        return {v for v in values if isinstance(v, Node)}

    def replace(self, new: dict[Node, Node]) -> None:
        """Let other nodes stand for results."""
        for call in self._calls.values():
            call.outputs = [new.get(v, v) if isinstance(v, Node) else v for v in call.outputs]

    def module_calls(self, called: Iterable[str]) -> list[ModuleCall]:
        """All modules in the order of their first call; those that are kept once for each call.

        A module that is kept and never called has no signature to keep.
        """
        found = []
        for path in called:
            kept = {key: call for key, call in self._calls.items() if call.path == path}
            found += [ModuleCall(key, _build_call_signature(call)) for key, call in kept.items()]
            found += [] if kept else [ModuleCall(path)]
        return found


def _resolve_paths(root: nn.Module | None, names: Any) -> set[str]:
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise InputError(
            f"preserve_module_call_signature is a tuple of paths of modules, got {names!r}",
            fix='preserve_module_call_signature=("encoder", "decoder.layers.0")',
        )
    if not names:
        return set()
    modules = dict(registries.all_paths(root))
    first = {id(m): path for path, m in reversed(modules.items())}
    unknown = [n for n in names if not n or n not in modules]
    if unknown:
        known = [path for path in modules if path]
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise InputError(
            f"preserve_module_call_signature names {', '.join(map(repr, unknown))}, and the "
            f"program has no such module. Its modules: {shown or 'none'}",
            fix="paths as in model.named_modules()",
        )
    return {first[id(modules[n])] for n in names}


def make_argument(value: object) -> Argument:
    """A flat argument or result, as a signature says it."""
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    is_tensor = isinstance(get_val(value), torch.Tensor)
    return TensorArgument(value.name) if is_tensor else SymbolicArgument(value.name)


def _build_call_signature(call: _Call) -> ModuleCallSignature:
    return ModuleCallSignature(
        tuple(map(make_argument, call.inputs)),
        tuple(map(make_argument, call.outputs)),
        call.bound.spec,
        call.out_spec,
        tuple(call.bound.argument_names),
    )


def rewrite_module_calls(
    calls: Iterable[ModuleCall], new: Callable[[str], Any]
) -> tuple[list[ModuleCall], set[Node]]:
    """Signatures for another graph, by what stands for each node there; and those nodes."""
    found, nodes = [], set()
    for call in calls:
        if call.signature is None:
            found.append(call)
            continue
        sides = [
            [a.value if isinstance(a, ConstantArgument) else new(a.name) for a in side]
            for side in (call.signature.inputs, call.signature.outputs)
        ]
        nodes |= {v for side in sides for v in side if isinstance(v, Node)}
        inputs, outputs = (tuple(map(make_argument, side)) for side in sides)
        kept = call.signature
        found.append(
            ModuleCall(
                call.fqn,
                ModuleCallSignature(
                    inputs, outputs, kept.in_spec, kept.out_spec, kept.argument_names
                ),
            )
        )
    return found, nodes
