"""The graph signature: what each graph input and output stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from graphport.compat.torch import TreeSpec


class InputKind(Enum):
    USER_INPUT = auto()
    PARAMETER = auto()
    BUFFER = auto()
    CONSTANT_TENSOR = auto()
    CUSTOM_OBJ = auto()
    TOKEN = auto()


class OutputKind(Enum):
    USER_OUTPUT = auto()
    LOSS_OUTPUT = auto()
    BUFFER_MUTATION = auto()
    PARAMETER_MUTATION = auto()
    USER_INPUT_MUTATION = auto()
    GRADIENT_TO_PARAMETER = auto()
    GRADIENT_TO_USER_INPUT = auto()
    TOKEN = auto()


@dataclass(frozen=True)
class TensorArgument:
    """A tensor, by the name of its node."""

    name: str


@dataclass(frozen=True)
class SymbolicArgument:
    """A symbolic number, by the name of its node."""

    name: str


@dataclass(frozen=True)
class ConstantArgument:
    """A plain Python value that the program was captured with."""

    name: str
    value: Any


@dataclass(frozen=True)
class ObjectArgument:
    """A custom object (`torch.ScriptObject`), by the name of its node."""

    name: str
    kind: str
    """The name of its class."""


Argument = TensorArgument | SymbolicArgument | ConstantArgument | ObjectArgument


@dataclass(frozen=True)
class InputSpec:
    """One graph input; `target` is the fully qualified name of a parameter, buffer or constant."""

    kind: InputKind
    arg: Argument
    target: str | None = None
    persistent: bool | None = None


@dataclass(frozen=True)
class OutputSpec:
    """One graph output; `target` is what a mutation writes to."""

    kind: OutputKind
    arg: Argument
    target: str | None = None


@dataclass(frozen=True)
class ModuleCallSignature:
    """How a module was called, and what it returned: flat, and the structure."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    argument_names: tuple[str, ...] = ()
    """Names of the positional arguments, then of the keyword arguments."""


def _select_kind(specs: list[Any], kind: Enum) -> list[Any]:
    return [s for s in specs if s.kind is kind]


def _map_targets(specs: list[Any]) -> Mapping[str, str]:
    return MappingProxyType({s.arg.name: s.target for s in specs})


def _user_value(arg: Argument) -> Any:
    return arg.value if isinstance(arg, ConstantArgument) else arg.name


@dataclass
class GraphSignature:
    """Specs of all inputs and outputs, in the order of the graph, and the usual ways to ask."""

    input_specs: list[InputSpec] = field(default_factory=list)
    output_specs: list[OutputSpec] = field(default_factory=list)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_parameters.values())

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_buffers.values())

    @property
    def non_persistent_buffers(self) -> tuple[str, ...]:
        specs = _select_kind(self.input_specs, InputKind.BUFFER)
        return tuple(s.target for s in specs if s.persistent is False)

    @property
    def lifted_tensor_constants(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_lifted_tensor_constants.values())

    @property
    def lifted_custom_objs(self) -> tuple[str, ...]:
        return tuple(s.target for s in _select_kind(self.input_specs, InputKind.CUSTOM_OBJ))

    @property
    def user_inputs(self) -> tuple[object, ...]:
        return tuple(
            _user_value(s.arg) for s in _select_kind(self.input_specs, InputKind.USER_INPUT)
        )

    @property
    def user_outputs(self) -> tuple[object, ...]:
        kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        return tuple(_user_value(s.arg) for s in self.output_specs if s.kind in kinds)

    @property
    def inputs_to_parameters(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.input_specs, InputKind.PARAMETER))

    @property
    def inputs_to_buffers(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.input_specs, InputKind.BUFFER))

    @property
    def inputs_to_lifted_tensor_constants(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.input_specs, InputKind.CONSTANT_TENSOR))

    @property
    def buffers_to_mutate(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.output_specs, OutputKind.BUFFER_MUTATION))

    @property
    def parameters_to_mutate(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.output_specs, OutputKind.PARAMETER_MUTATION))

    @property
    def user_inputs_to_mutate(self) -> Mapping[str, str]:
        return _map_targets(_select_kind(self.output_specs, OutputKind.USER_INPUT_MUTATION))

    def __str__(self) -> str:
        lines = ["inputs:"]
        for spec in self.input_specs:
            lines.append("  " + _format_spec(spec))
        lines.append("outputs:")
        for out in self.output_specs:
            lines.append("  " + _format_spec(out))
        return "\n".join(lines)


ExportGraphSignature = GraphSignature
"""As `torch.export` calls it."""


def _format_spec(spec: InputSpec | OutputSpec) -> str:
    name = repr(spec.arg.value) if isinstance(spec.arg, ConstantArgument) else spec.arg.name
    text = f"{name}: {spec.kind.name}"
    if spec.target is not None:
        text += f" {spec.target!r}"
    if isinstance(spec, InputSpec) and spec.persistent is False:
        text += " (not persistent)"
    return text
