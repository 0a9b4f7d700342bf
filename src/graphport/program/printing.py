"""A program as text: sizes by name, the graph a line per node, the signature, the ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from graphport import escaping
from graphport.program.signature import InputKind

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def render(program: ExportedProgram) -> str:
    notes = {
        s.arg.name: f"    # {s.kind.name.lower()} {escaping.line(str(s.target))}"
        for s in program.graph_signature.input_specs
        if s.kind is not InputKind.USER_INPUT
    }
    lines = ["ExportedProgram:"]
    lines.extend(f"    {text}" for text in _graph("graph", program.graph_module, notes))
    lines.append("")
    lines.extend(f"    {text}" for text in str(program.graph_signature).splitlines())
    lines.append("    range constraints:")
    if not program.range_constraints:
        lines.append("      none: every size is fixed")
    lines.extend(f"      {s}: {r}" for s, r in program.range_constraints.items())
    lines.extend(f"      {note}" for note in program.notes)
    return escaping.terminal("\n".join(lines))


def _graph(name: str, module: GraphModule, notes: Mapping[str, str]) -> list[str]:
    """The inputs, then a line per node; a graph within the graph where it is referred to."""
    head: list[str] = [f"{name}("]
    body: list[str] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            note = notes.get(node.name, "")
            head.append(f"    {node.name}: {type_of(node.meta.get('val'))},{note}")
        elif node.op == "get_attr" and isinstance(node.target, str):
            inner = getattr(module, node.target)
            body.extend(f"    {text}" for text in _graph(f"{node.name} = graph", inner, {}))
        else:
            body.append(f"    {_line(node)}")
    return [*head, "):", *body]


def type_of(val: Any) -> str:
    """`f32[batch, 512]`."""
    if isinstance(val, torch.Tensor):
        dtype = SHORT.get(val.dtype, str(val.dtype).removeprefix("torch."))
        return f"{dtype}[{', '.join(str(s) for s in val.shape)}]"
    if isinstance(val, (list, tuple)):
        return "(" + ", ".join(map(type_of, val)) + ")"
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"Sym({val})"
    return type(val).__name__


def _line(node: Node) -> str:
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    target = node.target if isinstance(node.target, str) else _target(node.target)
    parts = [_argument(a) for a in node.args]
    parts += [f"{k}={_argument(v)}" for k, v in node.kwargs.items()]
    val = node.meta.get("val")
    kind = f": {type_of(val)}" if "val" in node.meta else ""
    return f"{node.name}{kind} = {target}({', '.join(parts)})"


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    module = getattr(target, "__module__", "").lstrip("_")
    return f"{module}.{target.__name__}" if module else target.__name__


def _argument(x: Any) -> str:
    if isinstance(x, Node):
        return x.name
    if isinstance(x, (list, tuple)):
        inner = ", ".join(map(_argument, x))
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    return str(x) if isinstance(x, (torch.dtype, torch.device)) else repr(x)
