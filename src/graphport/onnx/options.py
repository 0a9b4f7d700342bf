"""What can be asked of `gp.onnx.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from graphport.arguments import (
    ANYTHING,
    CLASS,
    FLAG,
    FUNCTION,
    NAMES,
    NONE,
    PATH,
    TEXT,
    made_of,
    mapping,
    several,
    shown,
)
from graphport.errors import InputError

TARGETS = ("onnx", "ort")
OLDEST, NEWEST = 18, 25


@made_of(
    input_names=NAMES | NONE, output_names=NAMES | NONE, optimize=FLAG, verify=FLAG,
    custom_lowerings=mapping(ANYTHING, FUNCTION) | NONE, report=PATH | NONE,
    module_functions=several(CLASS | TEXT), dynamic_shapes=FLAG | NONE, share_weights=FLAG,
)  # fmt: skip
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
        if not isinstance(self.target, str) or self.target not in TARGETS:
            raise InputError(
                f"target={self.target!r} is not known", fix=f"one of {', '.join(TARGETS)}"
            )
        known = range(OLDEST, NEWEST + 1)
        if self.opset is not None and not (type(self.opset) is int and self.opset in known):
            raise InputError(
                f"opset={self.opset!r} is not supported", fix=f"one from {OLDEST} to {NEWEST}"
            )

    @classmethod
    def of(cls, given: ExportOptions | Mapping[str, Any] | None) -> ExportOptions:
        if isinstance(given, ExportOptions):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InputError(f"export options are an ExportOptions or a dict, got {shown(given)}")
        given = dict(given or {})
        unknown = sorted(str(name) for name in set(given) - {f.name for f in fields(cls)})
        if unknown:
            raise InputError(f"ExportOptions has no {', '.join(unknown)}")
        return cls(**given)
