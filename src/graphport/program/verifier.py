"""The rules that every program obeys, checked."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from graphport.errors import VerificationError
from graphport.program.nested import check_call
from graphport.program.signature import ConstantArgument, InputKind, OutputKind

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

# Functions on sizes that may stand in a graph, besides those of `operator` and `math`.
_SIZE_MODULES = ("_operator", "math", "builtins", "torch")


def verify(program: ExportedProgram) -> None:
    problems = [*_graph(program), *_signature(program), *_state(program)]
    if problems:
        raise VerificationError("the program is not valid:\n  " + "\n  ".join(problems))


def _graph(program: ExportedProgram) -> list[str]:
    may_mutate = program.dialect == "TRAINING"
    problems = _nodes(program.graph_module, may_mutate)
    for name, module in program.graph_module.named_modules():
        if name and isinstance(module, GraphModule):
            problems.extend(f"in {name}: {p}" for p in _nodes(module, may_mutate))
    return problems


def _nodes(module: GraphModule, may_mutate: bool) -> list[str]:
    """Of one graph: the program's, or one within it."""
    problems = []
    try:
        module.graph.lint()
    except RuntimeError as error:
        problems.append(f"the graph is malformed: {error}")
    for node in module.graph.nodes:
        if node.op in ("call_method", "call_module"):
            problems.append(f"{node.name}: {node.op} is not allowed")
        if node.op == "call_function":
            problems.extend(_call(node, may_mutate=may_mutate))
            if isinstance(node.target, HigherOrderOperator):
                problems.extend(check_call(node, module))
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            problems.append(f"{node.name}: no `val` in its metadata")
    return problems


def _call(node: Node, *, may_mutate: bool) -> list[str]:
    target: Any = node.target
    if isinstance(target, HigherOrderOperator):
        return []
    if isinstance(target, OpOverload):
        if target._schema.is_mutable and not may_mutate:
            return [f"{node.name}: {target} mutates its arguments"]
        return []
    if target is operator.getitem or getattr(target, "__module__", "") in _SIZE_MODULES:
        return []
    return [f"{node.name}: {target} is neither an operator nor a function on sizes"]


def _signature(program: ExportedProgram) -> list[str]:
    signature = program.graph_signature
    problems = []
    inputs = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    specs = [s.arg.name for s in signature.input_specs]
    if inputs != specs:
        problems.append(f"graph inputs {inputs} are not those of the signature {specs}")
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    results = output.args[0]
    if len(results) != len(signature.output_specs):
        problems.append(
            f"the graph has {len(results)} outputs, the signature {len(signature.output_specs)}"
        )
        return problems
    for value, spec in zip(results, signature.output_specs, strict=True):
        if isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(value, Node) or value.name != spec.arg.name:
            problems.append(f"output {value} is not {spec.arg.name} of the signature")
        if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target not in inputs:
            problems.append(f"mutated input {spec.target!r} is not an input")
    return problems


def _state(program: ExportedProgram) -> list[str]:
    problems = []
    for spec in program.graph_signature.input_specs:
        name = spec.target or ""
        if spec.kind is InputKind.PARAMETER:
            if not isinstance(program.state_dict.get(name), torch.nn.Parameter):
                problems.append(f"parameter {name!r} is not in the state dict")
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            if name not in program.state_dict and name not in program.constants:
                problems.append(f"{spec.kind.name.lower()} {name!r} has no value")
    return problems
