"""`gp.onnx`: exports captured programs as ONNX models, verified on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from graphport.compat.torch import OpOverload
from graphport.onnx import lowerings  # noqa: F401  registers them
from graphport.onnx.exporter import export
from graphport.onnx.lower.registry import LOWERINGS, find_operator, lower
from graphport.onnx.options import ExportOptions
from graphport.onnx.program import ONNXProgram

__all__ = ["ExportOptions", "ONNXProgram", "export", "lowering", "supported_ops"]

F = TypeVar("F", bound=Callable[..., Any])


def lowering(name: Any) -> Callable[[F], F]:
    """Teach one operator, by its name: `@gp.onnx.lowering("mylib::scale")`, or given itself."""
    return lower(find_operator(name))


def supported_ops() -> dict[str, Callable[..., Any]]:
    """The operators that have a lowering: `{"aten::add.Tensor": ...}`."""
    return {_operator_name(op): entry.fn for op, entry in LOWERINGS.items()}


def _operator_name(op: OpOverload) -> str:
    name, _, overload = op.name().partition(".")
    return f"{name}.{overload or 'default'}"
