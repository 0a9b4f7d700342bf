"""The signature of a program, from what its graph reads, returns and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from graphport.capture.state import Entry
from graphport.capture.tracer import Tracer
from graphport.capture.values import Value
from graphport.program import (
    ConstantArgument,
    GraphSignature,
    InputKind,
    InputSpec,
    ObjectArgument,
    OutputKind,
    OutputSpec,
    SymbolicArgument,
    TensorArgument,
)  # fmt: skip

aten = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def signature_of(
    graph: Graph, entries: list[Entry], inputs: list[Node],
    mutated: Iterable[tuple[Node, OutputSpec]], results: Iterable[Any],
) -> GraphSignature:  # fmt: skip
    """Entries found late stand before the inputs, in the order in which they were found."""
    order = {n.name: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    specs = [*map(_state_spec, entries), *map(_input_spec, inputs)]
    return GraphSignature(
        sorted(specs, key=lambda s: order[s.arg.name]),
        [*(spec for _, spec in mutated), *map(_output_spec, results)],
    )


def mutations_of(
    tracer: Tracer, entries: list[Entry], inputs: Iterable[tuple[Node, Value | None]]
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
        kind = (OutputKind.PARAMETER_MUTATION if entry.kind is InputKind.PARAMETER
                else OutputKind.BUFFER_MUTATION)  # fmt: skip
        if entry.kind is InputKind.CONSTANT_TENSOR:
            entry.kind, entry.persistent = InputKind.BUFFER, False
        found.append((node, kind, entry.names[0]))
    for node, value in inputs:
        if value is not None and value.storage.mutated and value.node is not node:
            found.append((tracer.read(value), OutputKind.USER_INPUT_MUTATION, node.name))
    return list(_told_apart(tracer, found))


def _told_apart(
    tracer: Tracer, written: Iterable[tuple[Node, OutputKind, str]]
) -> Iterator[tuple[Node, OutputSpec]]:
    """A write is known by the name of its node: a value that is written twice has two."""
    seen: set[Node] = set()
    for node, kind, target in written:
        if node in seen:
            node = tracer.recorder.emit(aten.clone.default, node)
        seen.add(node)
        yield node, OutputSpec(kind, TensorArgument(node.name), target)


def _state_spec(entry: Entry) -> InputSpec:
    if entry.value is None:
        kind = entry.tensor._type().qualified_name()
        return InputSpec(entry.kind, ObjectArgument(entry.node.name, kind), entry.names[0])
    return InputSpec(
        entry.kind, TensorArgument(entry.node.name), entry.names[0],
        entry.persistent if entry.kind is InputKind.BUFFER else None,
    )  # fmt: skip


def _input_spec(node: Node) -> InputSpec:
    val = node.meta["val"]
    if isinstance(val, torch.Tensor):
        return InputSpec(InputKind.USER_INPUT, TensorArgument(node.name))
    if isinstance(val, _SYMBOLIC):
        return InputSpec(InputKind.USER_INPUT, SymbolicArgument(node.name))
    return InputSpec(InputKind.USER_INPUT, ConstantArgument(node.name, val))


def _output_spec(result: Any) -> OutputSpec:
    if not isinstance(result, Node):
        return OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument("", result))
    val = result.meta.get("val")
    argument = TensorArgument if isinstance(val, torch.Tensor) else SymbolicArgument
    return OutputSpec(OutputKind.USER_OUTPUT, argument(result.name))
