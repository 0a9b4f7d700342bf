"""Serialises an ONNX graph to protobuf: names, dead code elimination, metadata, shapes.

The same graph gives the same bytes in every process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import onnx
import torch

from graphport.onnx.emit.functions import DOMAIN, Function, OutlinedGraph
from graphport.onnx.emit.ir import Graph, Node, Value
from graphport.onnx.emit.schemas import BITS, ELEMENT_TYPES
from graphport.program import ExportedProgram
from graphport.program.codegen import Names
from graphport.source import locate_stack_trace
from graphport.symbolic import Expr

# The format version that goes with an opset; ONNX Runtime refuses a newer one than it knows.
_IR_VERSION = dict(enumerate([6, 7, 7, 7, 8, 8, 8, 8, 9, 9, 10, 10, 11, 12, 13, 13], 11))
_IR_OF_FUNCTIONS = 8

# All their outputs have to be named, used or not.
_FIXED_OUTPUTS = {"TopK", "Split"}


def prune(graph: Graph) -> None:
    """Remove what no output needs."""
    needed: set[Value] = set(graph.outputs)
    _prune(graph, needed)


def _prune(graph: Graph, needed: set[Value]) -> None:
    kept = []
    for node in reversed(graph.nodes):
        if not any(v in needed for v in node.outputs if v is not None):
            continue
        _drop_outputs(node, needed)
        needed.update(v for v in node.inputs if v is not None)
        for inner in node.graphs():
            needed.update(inner.outputs)
            _prune(inner, needed)
        kept.append(node)
    graph.nodes = kept[::-1]


def _drop_outputs(node: Node, needed: set[Value]) -> None:
    """Remove unused outputs, and with them those of subgraphs."""
    if node.op in _FIXED_OUTPUTS:
        return
    if not any(node.graphs()):
        node.outputs = [v if v in needed or i == 0 else None for i, v in enumerate(node.outputs)]
        while node.outputs[-1] is None:
            node.outputs.pop()
        return
    # What a loop carries it needs itself. The first output of its body is the condition.
    carried = {"If": 0, "Loop": len(node.inputs) - 2}.get(node.op, len(node.outputs))
    unused = [i for i, v in enumerate(node.outputs) if v not in needed and i >= carried]
    first = 1 if node.op == "Loop" else 0
    for i in reversed(unused):
        del node.outputs[i]
        for graph in node.graphs():
            del graph.outputs[i + first]


def assign_names(graph: Graph) -> None:
    """Name every value and collect the initialisers that are used."""
    names = Names()
    taken = {*graph.inputs, *graph.outputs}
    names.used.update(v.name for v in taken)
    initializers: dict[Value, None] = dict.fromkeys(v for v in graph.inputs if v.data is not None)
    for node in graph.walk():
        for given in node.inputs:
            if given is not None and given.data is not None:
                initializers.setdefault(given)
    for v in initializers:
        if v not in taken:
            v.name = names.unique(v.name or _constant_name(v.tensor))
    for node in graph.walk():
        for inner in node.graphs():
            for v in inner.inputs:
                v.name = names.unique(v.name)
        for made in node.outputs:
            if made is not None and made not in taken:
                made.name = names.unique(made.name or _value_name(node))
    graph.initializers = {v.name: v for v in initializers}


def _value_name(node: Node) -> str:
    origin = node.origin.name if node.origin is not None else "value"
    return f"{origin}_{node.op.lower()}"


def _constant_name(t: torch.Tensor) -> str:
    """Small constants are called what they are."""
    kind = str(t.dtype).removeprefix("torch.")
    if t.dtype in BITS:  # torch has no arithmetic for them
        t = t.view(torch.int8 if t.dtype.is_signed else torch.uint8)
    if t.numel() == 1:
        return f"{kind}_{t.item()}"
    if t.ndim == 1 and 0 < t.numel() <= 6:
        return f"{kind}_{'_'.join(map(str, t.tolist()))}"
    return f"{kind}_{'x'.join(map(str, t.shape))}"


# Protobuf


def build_model_proto(
    graph: Graph,
    opset: int,
    *,
    doc: str = "",
    metadata: Mapping[str, str] | None = None,
    outlined: OutlinedGraph | None = None,
) -> onnx.ModelProto:
    """The model without the data of its weights: `weights` adds those.

    With `outlined`, what the graph does written with functions.
    """
    model = onnx.ModelProto()
    model.ir_version = _IR_VERSION[opset]
    model.producer_name = "graphport"
    model.doc_string = doc
    entry = model.opset_import.add()
    entry.domain, entry.version = "", opset
    for domain in sorted({n.domain for n in graph.walk() if n.domain}):
        entry = model.opset_import.add()
        entry.domain, entry.version = domain, 1
    for key, text in (metadata or {}).items():
        said = model.metadata_props.add()
        said.key, said.value = key, text
    if outlined is None:
        _write_graph(graph, graph.nodes, model.graph)
        return model
    model.ir_version = max(model.ir_version, _IR_OF_FUNCTIONS)
    entry = model.opset_import.add()
    entry.domain, entry.version = DOMAIN, 1
    _write_graph(graph, outlined.nodes, model.graph)
    for function in outlined.functions:
        _write_function(function, opset, model.functions.add())
    return model


def _write_function(function: Function, opset: int, proto: onnx.FunctionProto) -> None:
    """A body under the names of its first call, weights without the path of their module."""
    formal = function.names()
    proto.name, proto.domain = function.name, DOMAIN
    proto.input.extend(formal[v.name] for v in function.inputs)
    proto.output.extend(v.name for v in function.outputs)
    for domain in dict.fromkeys(["", *(n.domain for n in function.nodes)]):
        entry = proto.opset_import.add()
        entry.domain, entry.version = domain, 1 if domain else opset
    for v in function.constants:
        constant = proto.node.add()
        constant.op_type, constant.name = "Constant", v.name
        constant.output.append(v.name)
        _write_attribute("value", v.tensor, constant.attribute.add())
    for node in function.nodes:
        inner = proto.node.add()
        _write_node(node, inner)
        named = [formal.get(name, name) for name in inner.input]
        del inner.input[:]
        inner.input.extend(named)


def _write_graph(graph: Graph, nodes: Sequence[Node], proto: onnx.GraphProto) -> None:
    proto.name = graph.name
    for v in graph.inputs:
        write_value(v, proto.input.add())
    for v in graph.outputs:
        write_value(v, proto.output.add())
    own = {*graph.outputs}
    for node in nodes:
        _write_node(node, proto.node.add())
        for made in node.outputs:
            if made is None or made in own or made.shape is None or None in made.shape:
                continue
            write_value(made, proto.value_info.add())


def write_value(v: Value, proto: onnx.ValueInfoProto) -> None:
    """The name, element type and sizes of a value."""
    proto.name = v.name
    kind = proto.type.tensor_type
    kind.elem_type = ELEMENT_TYPES[v.dtype]
    if v.shape is None:
        return
    kind.shape.SetInParent()
    for s in v.shape:
        dim = kind.shape.dim.add()
        if type(s) is int:
            dim.dim_value = s
        elif type(s) is Expr:
            dim.dim_param = str(s)


def add_inputs(model: onnx.ModelProto, values: Iterable[Value]) -> onnx.ModelProto:
    """A copy of a model in which initialisers are inputs that a caller may give."""
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    known = {i.name for i in wider.graph.input}
    for v in values:
        if v.name not in known:
            write_value(v, wider.graph.input.add())
    return wider


def rename_dims(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """Give dims other names, in a model that is changed by it."""
    if not names:
        return model
    word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")

    def rename(text: str) -> str:
        return word.sub(lambda found: names[found[1]], text)

    graphs = [model.graph]
    for graph in graphs:  # which grows on the way
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = rename(dim.dim_param)
        graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    for said in model.metadata_props:
        if said.key in (DIMS_KEY, CONDITIONS_KEY):
            said.value = rename(said.value)
    return model


def _write_node(node: Node, proto: onnx.NodeProto) -> None:
    proto.op_type = node.op
    if node.domain:
        proto.domain = node.domain
    proto.input.extend("" if v is None else v.name for v in node.inputs)
    proto.output.extend("" if v is None else v.name for v in node.outputs)
    for name, value in node.attributes.items():
        _write_attribute(name, value, proto.attribute.add())
    first = node.outputs[0]
    assert first is not None
    module, properties = _describe_origin(node)
    proto.name = f"{module}/{first.name}" if module else first.name
    for key, text in properties:
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, text


def _describe_origin(node: Node) -> tuple[str, Iterable[tuple[str, str]]]:
    """The module a node belongs to, and what is written with it."""
    origin = node.origin
    if origin is None:
        return "", ()
    properties = [("torch", str(origin.target))]
    module = ""
    stack = origin.meta.get("nn_module_stack")
    if stack:
        module, kind = list(stack.values())[-1]
        properties += [("module", module), ("class", str(kind))]
    where = _source_line(origin.meta.get("stack_trace"))
    if where:
        properties.append(("source", where))
    return module, properties


@cache
def _source_line(trace: str | None) -> str:
    found = locate_stack_trace(trace)
    return "" if found is None else str(found)


def _write_attribute(name: str, value: Any, proto: onnx.AttributeProto) -> None:
    proto.name = name
    if isinstance(value, bool | int):
        proto.type, proto.i = onnx.AttributeProto.INT, int(value)
    elif isinstance(value, float):
        proto.type, proto.f = onnx.AttributeProto.FLOAT, value
    elif isinstance(value, str):
        proto.type, proto.s = onnx.AttributeProto.STRING, value.encode()
    elif isinstance(value, torch.Tensor):
        proto.type = onnx.AttributeProto.TENSOR
        write_tensor("", value, proto.t)
    elif isinstance(value, Graph):
        proto.type = onnx.AttributeProto.GRAPH
        _write_graph(value, value.nodes, proto.g)
    elif all(isinstance(x, int) for x in value):
        proto.type = onnx.AttributeProto.INTS
        proto.ints.extend(value)
    elif all(isinstance(x, float | int) for x in value):
        proto.type = onnx.AttributeProto.FLOATS
        proto.floats.extend(value)
    else:
        proto.type = onnx.AttributeProto.STRINGS
        proto.strings.extend(x.encode() for x in value)


def write_header(name: str, tensor: torch.Tensor, proto: onnx.TensorProto) -> None:
    """All of a tensor but its data."""
    proto.name = name
    proto.data_type = ELEMENT_TYPES[tensor.dtype]
    proto.dims.extend(tensor.shape)


def write_tensor(name: str, tensor: torch.Tensor, proto: onnx.TensorProto) -> None:
    """A tensor with its data."""
    write_header(name, tensor, proto)
    proto.raw_data = bytes(tensor_bytes(tensor))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in row-major order; without a copy if it is contiguous."""
    tensor = tensor.detach()
    if tensor.dtype in BITS:
        tensor = _pack_bits(tensor.view(torch.uint8).flatten(), BITS[tensor.dtype])
    # One element is contiguous with any stride, but to view it the stride has to be 1.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def _pack_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The lowest bits of each byte, the first element in the lowest of a new one."""
    count = 8 // bits
    rows = torch.nn.functional.pad(x, (0, -len(x) % count)).view(-1, count) & ((1 << bits) - 1)
    packed = rows[:, 0].clone()
    for i in range(1, count):
        packed |= rows[:, i] << (bits * i)
    return packed


# Metadata of a model: its dynamic sizes, which ONNX itself only names, for tools that read it.

DIMS_KEY = "graphport.dims"
"""The key under which a model has `{"batch": [1, 64], "length": [0, null]}`."""
CONDITIONS_KEY = "graphport.conditions"
"""The key under which it has what must hold of sizes beyond their ranges: `["batch <= length"]`."""


def describe_sizes(program: ExportedProgram) -> dict[str, str]:
    """Metadata of the model of a program; nothing if every size is fixed."""
    found = {}
    ranges = {
        str(e): [_finite_limit(r.lower), _finite_limit(r.upper)]
        for e, r in program.range_constraints.items()
    }
    conditions = [str(fact) for fact in program.checks.facts]
    if ranges:
        found[DIMS_KEY] = json.dumps(ranges)
    if conditions:
        found[CONDITIONS_KEY] = json.dumps(conditions)
    return found


def _finite_limit(x: float) -> int | None:
    return None if abs(x) == float("inf") else int(x)
