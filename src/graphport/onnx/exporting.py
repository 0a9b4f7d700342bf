"""`gp.onnx.export`: capture, lower, and hand out an `ONNXProgram`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport.capture import export as capture
from graphport.errors import InputError
from graphport.onnx import lower, opsets
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Graph, Value
from graphport.onnx.model import assign_names, prune
from graphport.onnx.options import ExportOptions
from graphport.onnx.program import Interface, ONNXProgram
from graphport.onnx.registry import LOWERINGS, Lowering, operator_named
from graphport.ops.abstract import Abstract
from graphport.program import ExportedProgram, from_torch, services
from graphport.program.signature import InputKind, OutputKind
from graphport.symbolic import Expr

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION,
              OutputKind.USER_INPUT_MUTATION)  # fmt: skip


def export(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> ONNXProgram:
    """Carry a model to ONNX.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Linear(4, 2)
    >>> x = torch.randn(3, 4)
    >>> program = gp.onnx.export(model, (x,), dynamic_shapes=({0: gp.Dim("batch")},))
    >>> torch.testing.assert_close(program(x), model(x))
    """
    chosen = ExportOptions.of(options)
    program = captured(model, args, kwargs, dynamic_shapes)
    return lowered(program, chosen)


def captured(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> ExportedProgram:
    """The program to lower, whatever it is given as."""
    if isinstance(model, ExportedProgram):
        return model
    if type(model).__name__ == "ExportedProgram":
        return from_torch(model)
    return capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)


def lowered(program: ExportedProgram, options: ExportOptions) -> ONNXProgram:
    """A program in ONNX."""
    opset = options.opset or opsets.default()
    custom = _custom(options.custom_lowerings)
    if program.dialect == "TRAINING":
        program = program.run_decompositions()
    simpler = _known_operators(program, custom, opset)
    builder = Builder(simpler.scope, opset, options.target)
    walk = lower.Lowerer(builder, custom)
    interface = _Interface(simpler, walk, options)
    outputs = walk.run(simpler.graph_module)
    interface.close(outputs)
    prune(builder.main)
    assign_names(builder.main)
    return ONNXProgram(program, builder.main, interface.made(), opset, options)


def _custom(given: Mapping[Any, Any] | None) -> dict[OpOverload, Lowering]:
    found = {}
    for op, fn in (given or {}).items():
        overload = op if isinstance(op, OpOverload) else operator_named(str(op))
        found[overload] = Lowering(overload, fn)
    return found


def _known_operators(
    program: ExportedProgram, custom: Mapping[OpOverload, Lowering], opset: int
) -> ExportedProgram:
    """The program in operators that have a lowering: others are taken apart as far as possible."""

    def known(op: Any) -> bool:
        return op in custom or op in LOWERINGS

    if not lower.missing(program.graph_module, known):
        return program
    program = services.take_apart(program, known)
    missing = lower.missing(program.graph_module, known)
    if missing:
        raise lower.report(missing, opset)
    return program


class _Interface:
    """Inputs and outputs of the ONNX graph, and how they relate to those of the program."""

    def __init__(
        self, program: ExportedProgram, walk: lower.Lowerer, options: ExportOptions
    ) -> None:
        self.program = program
        self.walk = walk
        self.graph: Graph = walk.b.main
        self.options = options
        self.mutated = {
            s.target for s in program.graph_signature.output_specs
            if s.kind in _MUTATIONS and s.target
        }  # fmt: skip
        self.inputs: list[int] = []
        """Of the program's flat inputs, those that are inputs of the model."""
        self.state: dict[str, str] = {}
        """Names of inputs with state that the model changes, and of the outputs with the new."""
        names = iter(options.input_names or ())
        flat = -1
        for node, spec in zip(_placeholders(program), program.graph_signature.input_specs,
                              strict=True):  # fmt: skip
            if spec.kind in _STATE:
                walk.env[node] = self._state(spec)
                continue
            flat += spec.kind is InputKind.USER_INPUT
            walk.env[node] = self._input(node, spec, flat, names)
        if next(names, None) is not None:
            raise InputError(
                f"input_names has {len(options.input_names or ())} names, "
                f"the program {len(self.inputs)} inputs"
            )
        walk.b.sizes.learn(*self.graph.inputs)

    def _state(self, spec: Any) -> Value:
        tensor = self.program.tensor(spec.target)
        value = self.walk.b.initializer(spec.target, tensor)
        if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target in self.mutated:
            self.walk.weights.add(value)
        if spec.target in self.mutated:
            self.graph.inputs.append(value)
        return value

    def _input(self, node: Node, spec: Any, flat: int, names: Any) -> Any:
        result = lower.described(node.meta.get("val"))
        if not isinstance(result, (Abstract, Expr)):
            return getattr(spec.arg, "value", self.program.constants.get(spec.target or ""))
        name = next(names, None) or node.name
        self.inputs.append(flat)
        if isinstance(result, Abstract):
            value = Value(name, result.dtype, result.sizes, self.graph)
            self.graph.inputs.append(value)
            return value
        value = Value(name, _NUMBER[result.type], (), self.graph)
        self.graph.inputs.append(value)
        self.walk.b.sizes.learn_number(result, value)
        return result

    def close(self, outputs: Sequence[Any]) -> None:
        """Make the program's results outputs of the graph: the user's first, then new state."""
        specs = self.program.graph_signature.output_specs
        self.outputs: list[Any] = []
        """For each result of the user: the number of an output, or a constant."""
        users = [(v, s) for v, s in zip(outputs, specs, strict=True) if s.kind not in _MUTATIONS]
        given = list(self.options.output_names or ())
        names = given or _output_names(self.program)
        self.walk.b.origin = None
        used = {v.name for v in self.graph.inputs}
        for i, (value, spec) in enumerate(users):
            if not isinstance(value, (Value, Expr)):
                self.outputs.append(("constant", getattr(spec.arg, "value", value)))
                continue
            wanted = names[i] if i < len(names) else None
            self.outputs.append((_kind(value), len(self.graph.outputs)))
            self._output(value, wanted or ("output" if len(users) == 1 else f"output_{i}"), used)
        for value, spec in zip(outputs, specs, strict=True):
            if spec.kind in _MUTATIONS:
                name = f"{spec.target}_updated"
                self._output(value, name, used)
                self.state[spec.target] = self.graph.outputs[-1].name

    def _output(self, value: Any, name: str, used: set[str]) -> None:
        b = self.walk.b
        if isinstance(value, Expr):
            value = b.sizes.number(value)
        # An output is a value of its own: not an input, a weight, or another output.
        if value.producer is None or value in self.graph.outputs or value.graph is not self.graph:
            shape = value.shape
            value = b.shaped(b.Identity(value), shape)
            if value in self.graph.outputs:
                node = value.producer
                b.graph.known.clear()
                value = b.shaped(b.Identity(node.inputs[0]), shape)
        value.name = name if name not in used else f"{name}_out"
        used.add(value.name)
        self.graph.outputs.append(value)

    def made(self) -> Interface:
        return Interface(self.inputs, self.outputs, self.state)


_NUMBER = {int: torch.int64, float: torch.float64, bool: torch.bool}


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, Value) else value.type.__name__


def _placeholders(program: ExportedProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


def _output_names(program: ExportedProgram) -> list[str | None]:
    """Names of results by their place in a dict or dataclass; None for those in a tuple."""
    spec = program.call_spec.out_spec
    template = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths, _ = pytree.tree_flatten_with_path(template)
    names: list[str | None] = []
    for path, _leaf in paths:
        named = any(hasattr(key, "key") or hasattr(key, "name") for key in path)
        parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", "")))) for k in path]
        names.append("_".join(parts) if named else None)
    return names
