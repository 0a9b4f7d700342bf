"""What can be asked of `gp.onnx.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from graphport.errors import InputError

TARGETS = ("onnx", "ort")
OLDEST, NEWEST = 18, 26


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export to ONNX; a mapping with these keys is accepted in its place."""

    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    opset: int | None = None
    target: str = "onnx"
    optimize: bool = True
    verify: bool = False
    custom_lowerings: Mapping[Any, Callable[..., Any]] | None = None
    report: str | None = None
    module_functions: Sequence[Any] = ()
    dynamic_shapes: bool | None = None
    """For backends: whether sizes are symbolic."""
    share_weights: bool = False
    """For backends: whether weights stay as they are in memory, where transposed ones are usual."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(
                f"target={self.target!r} is not known", fix=f"one of {', '.join(TARGETS)}"
            )
        if self.opset is not None and self.opset not in range(OLDEST, NEWEST + 1):
            raise InputError(
                f"opset={self.opset!r} is not supported", fix=f"one from {OLDEST} to {NEWEST}"
            )

    @classmethod
    def of(cls, given: ExportOptions | Mapping[str, Any] | None) -> ExportOptions:
        if isinstance(given, ExportOptions):
            return given
        given = dict(given or {})
        unknown = sorted(set(given) - {f.name for f in fields(cls)})
        if unknown:
            raise InputError(f"ExportOptions has no {', '.join(unknown)}")
        return cls(**given)
