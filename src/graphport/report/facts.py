"""What there is to tell about an ONNX model or a captured program, as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from graphport.onnx.metadata import CONDITIONS, DIMS
from graphport.onnx.types import TORCH_OF
from graphport.program import ExportedProgram, InputKind, OutputKind
from graphport.program.printing import SHORT, type_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


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
class Part:
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
    modules: list[Part]
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


def of_model(model: ModelProto, tensors: Mapping[str, torch.Tensor] | None = None) -> Facts:
    """Of a model, whose weights may be elsewhere; `tensors` if they are not even mentioned."""
    graph = model.graph
    sizes = {t.name: _bytes_of(t) for t in graph.initializer}
    sizes.update({name: t.numel() * t.element_size() for name, t in (tensors or {}).items()})
    nodes = list(_nodes(graph))
    for function in model.functions:
        nodes.extend(function.node)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    producer = f"{model.producer_name} {model.producer_version}".strip() or "unknown"
    return Facts(
        kind="ONNX model",
        origin=f"{producer}, {', '.join(f'{d} {v}' for d, v in opsets.items())}",
        inputs=[port(v) for v in graph.input if v.name not in sizes],
        outputs=[port(v) for v in graph.output],
        sizes=_sizes(model),
        conditions=_metadata(model, CONDITIONS, []),
        operators=_counted(f"{n.domain}.{n.op_type}".lstrip(".") for n in nodes),
        modules=_modules((_module_of(n) for n in nodes), sizes),
        weights=len(sizes),
        weight_bytes=sum(sizes.values()),
        opsets=opsets,
    )


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of branches and loop bodies too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _bytes_of(tensor: Any) -> int:
    from onnx import helper

    width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(torch.Size(tensor.dims).numel()) * width


def port(value: ValueInfoProto) -> Port:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return Port(value.name, str(value.type.WhichOneof("value")))
    dtype = TORCH_OF.get(kind.elem_type)
    name = SHORT.get(dtype, str(dtype).removeprefix("torch.")) if dtype else "?"
    if not kind.HasField("shape"):
        return Port(value.name, f"{name}[...]")
    return Port(value.name, f"{name}[{', '.join(map(dim_text, kind.shape.dim))}]")


def dim_text(dim: Any) -> str:
    return str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"


def _sizes(model: ModelProto) -> list[Size]:
    known = _metadata(model, DIMS, {})
    names = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim]
    seen = dict.fromkeys(name for name in names if name)
    return [Size(name, *known.get(name, (None, None))) for name in {**known, **seen}]


def _metadata(model: ModelProto, key: str, otherwise: Any) -> Any:
    for entry in model.metadata_props:
        if entry.key == key:
            return json.loads(entry.value)
    return otherwise


def _module_of(node: NodeProto) -> tuple[str, str]:
    said = {entry.key: entry.value for entry in node.metadata_props}
    return said.get("module", ""), said.get("class", "")


# Programs


def of_program(program: ExportedProgram) -> Facts:
    signature = program.graph_signature
    nodes = list(_calls(program.graph_module))
    types = {n.name: type_of(n.meta.get("val")) for n in program.graph.nodes}
    sizes = {
        str(s.target): _tensor_bytes(program.tensor(str(s.target)))
        for s in signature.input_specs
        if s.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    }
    return Facts(
        kind="program",
        origin=f"graphport, {program.dialect}",
        inputs=[Port(s.arg.name, _type(s.arg, types)) for s in signature.input_specs
                if s.kind is InputKind.USER_INPUT],
        outputs=[Port(_output_name(s), _type(s.arg, types)) for s in signature.output_specs],
        sizes=[Size(str(e), _limit(r.lower), _limit(r.upper))
               for e, r in program.range_constraints.items()],
        conditions=[str(fact) for fact in program.checks.facts],
        operators=_counted(_operator(n.target) for n in nodes),
        modules=_modules((_innermost(n) for n in nodes), sizes),
        weights=len(sizes),
        weight_bytes=sum(sizes.values()),
    )  # fmt: skip


def _calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function")


def _type(arg: Any, types: Mapping[str, str]) -> str:
    return f"= {arg.value!r}" if hasattr(arg, "value") else types.get(arg.name, "?")


def _output_name(spec: Any) -> str:
    is_result = spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    return spec.arg.name if is_result else f"{spec.arg.name} -> {spec.target}"


def _operator(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    return str(getattr(target, "__name__", target))


def _innermost(node: torch.fx.Node) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack")
    return list(stack.values())[-1] if stack else ("", "")


def _tensor_bytes(x: Any) -> int:
    return x.numel() * x.element_size() if isinstance(x, torch.Tensor) else 0


def _limit(x: Any) -> int | None:
    return int(x) if abs(x) != float("inf") else None


# Both


def _counted(names: Iterable[str]) -> dict[str, int]:
    """The most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _modules(nodes: Iterable[tuple[str, str]], weights: Mapping[str, int]) -> list[Part]:
    """Modules in the order in which they run, each with what is within it."""
    kinds: dict[str, str] = {"": ""}
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for module, kind in nodes:
        counts[module] += 1
        if module not in kinds:
            kinds.update((path, "") for path in reversed([*_upwards(module)]) if path not in kinds)
        kinds[module] = kinds[module] or kind.rpartition(".")[2]
    for name, size in weights.items():
        sizes[next(path for path in _upwards(name) if path in kinds)] += size
    inner: dict[str, list[str]] = {path: [] for path in kinds}
    for path in kinds:
        if path:
            inner[_above(path)].append(path)
    order = _tree_order(inner)
    for path in reversed(order):
        if path:
            counts[_above(path)] += counts[path]
            sizes[_above(path)] += sizes[path]
    return [Part(path, kinds[path], counts[path], sizes[path]) for path in order]


def _above(path: str) -> str:
    return path.rpartition(".")[0]


def _upwards(path: str) -> Iterator[str]:
    """The path, and those around it, out to the whole."""
    while path:
        yield path
        path = _above(path)
    yield ""


def _tree_order(inner: Mapping[str, Sequence[str]]) -> list[str]:
    """A module before its parts, siblings by when they first run."""
    order: list[str] = []
    waiting = [""]
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += reversed(inner[path])
    return order
