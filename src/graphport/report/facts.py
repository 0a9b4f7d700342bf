"""Collects facts about an ONNX model or a program: interface, operators, sizes, listing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from graphport import errors
from graphport.compat.torch import OpOverload
from graphport.onnx.emit.model import CONDITIONS_KEY, DIMS_KEY
from graphport.onnx.emit.schemas import TORCH_OF
from graphport.program import ExportedProgram, InputKind, OutputKind
from graphport.program.exported import SHORT_DTYPES, format_type
from graphport.program.signature import OutputSpec
from graphport.tensors.abstract import get_val
from graphport.types import NodeTarget

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto


@dataclass(frozen=True)
class Port:
    """An input or output: `x: f32[batch, 4]`."""

    name: str
    type: str


@dataclass(frozen=True)
class Size:
    """A symbolic size and its range; None where nothing is said of it."""

    name: str
    least: int | None
    most: int | None


@dataclass(frozen=True)
class ModuleFacts:
    """A module of the model with all that is within it; "" is the model itself."""

    module: str
    kind: str
    nodes: int
    bytes: int


@dataclass(frozen=True)
class Facts:
    kind: str
    """"ONNX model" or "program"."""
    origin: str
    """What has made it: producer and opsets, or the form of the program."""
    inputs: list[Port]
    outputs: list[Port]
    sizes: list[Size]
    conditions: list[str]
    """What must hold of the sizes beyond their ranges."""
    operators: dict[str, int]
    modules: list[ModuleFacts]
    weights: int
    weight_bytes: int
    opsets: dict[str, int] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return sum(self.operators.values())

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "nodes": self.nodes}


# ONNX


def collect_model_facts(
    model: ModelProto, tensors: Mapping[str, torch.Tensor] | None = None
) -> Facts:
    """Of a model, whose weights may be elsewhere; `tensors` if they are not even mentioned."""
    graph = model.graph
    sizes = {t.name: _count_initializer_bytes(t) for t in graph.initializer}
    sizes.update({name: t.numel() * t.element_size() for name, t in (tensors or {}).items()})
    nodes = list(_iter_nodes(graph))
    for function in model.functions:
        nodes.extend(function.node)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    producer = f"{model.producer_name} {model.producer_version}".strip() or "unknown"
    return Facts(
        kind="ONNX model",
        origin=f"{producer}, {', '.join(f'{d} {v}' for d, v in opsets.items())}",
        inputs=[make_port(v) for v in graph.input if v.name not in sizes],
        outputs=[make_port(v) for v in graph.output],
        sizes=_collect_sizes(model),
        conditions=_read_metadata(model, CONDITIONS_KEY, []),
        operators=_count_names(f"{n.domain}.{n.op_type}".lstrip(".") for n in nodes),
        modules=_collect_modules((_read_module(n) for n in nodes), sizes),
        weights=len(sizes),
        weight_bytes=sum(sizes.values()),
        opsets=opsets,
    )


def _iter_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of branches and loop bodies too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _iter_nodes(attribute.g)


def _count_initializer_bytes(tensor: Any) -> int:
    from onnx import helper

    width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(torch.Size(tensor.dims).numel()) * width


def make_port(value: ValueInfoProto) -> Port:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return Port(value.name, str(value.type.WhichOneof("value")))
    dtype = TORCH_OF.get(kind.elem_type)
    name = SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch.")) if dtype else "?"
    if not kind.HasField("shape"):
        return Port(value.name, f"{name}[...]")
    return Port(value.name, f"{name}[{', '.join(map(format_dim, kind.shape.dim))}]")


def format_dim(dim: Any) -> str:
    return str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"


def _collect_sizes(model: ModelProto) -> list[Size]:
    known = _read_metadata(model, DIMS_KEY, {})
    names = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim]
    seen = dict.fromkeys(name for name in names if name)
    return [Size(name, *known.get(name, (None, None))) for name in {**known, **seen}]


def _read_metadata(model: ModelProto, key: str, otherwise: object) -> Any:
    for entry in model.metadata_props:
        if entry.key == key:
            return json.loads(entry.value)
    return otherwise


def _read_module(node: NodeProto) -> tuple[str, str]:
    said = {entry.key: entry.value for entry in node.metadata_props}
    return said.get("module", ""), said.get("class", "")


# Programs


def collect_program_facts(program: ExportedProgram) -> Facts:
    signature = program.graph_signature
    nodes = list(_iter_calls(program.graph_module))
    types = {n.name: format_type(get_val(n)) for n in program.graph.nodes}
    sizes = {
        str(s.target): _count_tensor_bytes(program.tensor(str(s.target)))
        for s in signature.input_specs
        if s.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    }
    return Facts(
        kind="program",
        origin=f"graphport, {program.dialect}",
        inputs=[
            Port(s.arg.name, _format_type(s.arg, types))
            for s in signature.input_specs
            if s.kind is InputKind.USER_INPUT
        ],
        outputs=[
            Port(_format_output_name(s), _format_type(s.arg, types)) for s in signature.output_specs
        ],
        sizes=[
            Size(str(e), _finite_limit(r.lower), _finite_limit(r.upper))
            for e, r in program.range_constraints.items()
        ],
        conditions=[str(fact) for fact in program.checks.facts],
        operators=_count_names(_operator_name(n.target) for n in nodes),
        modules=_collect_modules((_find_innermost_module(n) for n in nodes), sizes),
        weights=len(sizes),
        weight_bytes=sum(sizes.values()),
    )


def _iter_calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function")


def _format_type(arg: Any, types: Mapping[str, str]) -> str:
    return f"= {arg.value!r}" if hasattr(arg, "value") else types.get(arg.name, "?")


def _format_output_name(spec: OutputSpec) -> str:
    is_result = spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    return spec.arg.name if is_result else f"{spec.arg.name} -> {spec.target}"


def _operator_name(target: NodeTarget) -> str:
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    return str(getattr(target, "__name__", target))


def _find_innermost_module(node: torch.fx.Node) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack")
    return list(stack.values())[-1] if stack else ("", "")


def _count_tensor_bytes(x: object) -> int:
    return x.numel() * x.element_size() if isinstance(x, torch.Tensor) else 0


def _finite_limit(x: Any) -> int | None:
    return int(x) if abs(x) != float("inf") else None


# Both


def _count_names(names: Iterable[str]) -> dict[str, int]:
    """The most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _collect_modules(
    nodes: Iterable[tuple[str, str]], weights: Mapping[str, int]
) -> list[ModuleFacts]:
    """Modules in the order in which they run, each with what is within it."""
    kinds: dict[str, str] = {"": ""}
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for module, kind in nodes:
        counts[module] += 1
        if module not in kinds:
            kinds.update(
                (path, "") for path in reversed([*_iter_parent_paths(module)]) if path not in kinds
            )
        kinds[module] = kinds[module] or kind.rpartition(".")[2]
    for name, size in weights.items():
        sizes[next(path for path in _iter_parent_paths(name) if path in kinds)] += size
    inner: dict[str, list[str]] = {path: [] for path in kinds}
    for path in kinds:
        if path:
            inner[_parent_path(path)].append(path)
    order = _sort_modules(inner)
    for path in reversed(order):
        if path:
            counts[_parent_path(path)] += counts[path]
            sizes[_parent_path(path)] += sizes[path]
    return [ModuleFacts(path, kinds[path], counts[path], sizes[path]) for path in order]


def _parent_path(path: str) -> str:
    return path.rpartition(".")[0]


def _iter_parent_paths(path: str) -> Iterator[str]:
    """The path, and those around it, out to the whole."""
    while path:
        yield path
        path = _parent_path(path)
    yield ""


def _sort_modules(inner: Mapping[str, Sequence[str]]) -> list[str]:
    """A module before its parts, siblings by when they first run."""
    order: list[str] = []
    waiting = [""]
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += reversed(inner[path])
    return order


# Lists the graph of an ONNX model: a line per node, with types and modules, without weights.

_MAX_ELEMENTS = 8
"""Elements of an attribute that are shown."""


def format_graph(graph: GraphProto) -> str:
    return "\n".join(map(errors.escape_line, _iter_lines(graph, {})))


def _iter_lines(graph: GraphProto, outer: dict[str, str]) -> Iterator[str]:
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {**outer, **{v.name: make_port(v).type for v in values}}
    for value in graph.input:
        yield f"input {value.name}: {types[value.name]}"
    for node in graph.node:
        yield _format_node(node, types)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield f"    {attribute.name}:"
                yield from (f"        {line}" for line in _iter_lines(attribute.g, types))
    yield f"return {', '.join(v.name for v in graph.output)}"


def _format_node(node: NodeProto, types: dict[str, str]) -> str:
    outputs = [f"{name}: {types[name]}" if name in types else name for name in node.output]
    shown = [a for a in node.attribute if not a.HasField("g")]
    arguments = [*node.input, *(f"{a.name}={_format_attribute(a)}" for a in shown)]
    module = next((e.value for e in node.metadata_props if e.key == "module"), "")
    operator = f"{node.domain}.{node.op_type}".lstrip(".")
    line = f"{', '.join(outputs)} = {operator}({', '.join(arguments)})"
    return f"{line}    # {module}" if module else line


def _format_attribute(attribute: AttributeProto) -> str:
    from onnx import helper

    value: Any = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    if hasattr(value, "dims"):
        return f"tensor[{', '.join(map(str, value.dims))}]"
    if isinstance(value, float):
        return f"{value:g}"
    if hasattr(value, "__len__"):
        items = [str(x) for x in value]
        more = ", ..." if len(items) > _MAX_ELEMENTS else ""
        return f"[{', '.join(items[:_MAX_ELEMENTS])}{more}]"
    return str(value)
