"""The graph of an ONNX model as text: a line per node, with types and modules, without weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graphport import escaping
from graphport.report.facts import port

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

_LONGEST = 8
"""Elements of an attribute that are shown."""


def listing(graph: GraphProto) -> str:
    return "\n".join(map(escaping.line, _graph(graph, {})))


def _graph(graph: GraphProto, outer: dict[str, str]) -> Iterator[str]:
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {**outer, **{v.name: port(v).type for v in values}}
    for value in graph.input:
        yield f"input {value.name}: {types[value.name]}"
    for node in graph.node:
        yield _line(node, types)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield f"    {attribute.name}:"
                yield from (f"        {line}" for line in _graph(attribute.g, types))
    yield f"return {', '.join(v.name for v in graph.output)}"


def _line(node: NodeProto, types: dict[str, str]) -> str:
    outputs = [f"{name}: {types[name]}" if name in types else name for name in node.output]
    shown = [a for a in node.attribute if not a.HasField("g")]
    arguments = [*node.input, *(f"{a.name}={_attribute(a)}" for a in shown)]
    module = next((e.value for e in node.metadata_props if e.key == "module"), "")
    operator = f"{node.domain}.{node.op_type}".lstrip(".")
    line = f"{', '.join(outputs)} = {operator}({', '.join(arguments)})"
    return f"{line}    # {module}" if module else line


def _attribute(attribute: AttributeProto) -> str:
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
        more = ", ..." if len(items) > _LONGEST else ""
        return f"[{', '.join(items[:_LONGEST])}{more}]"
    return str(value)
