"""What can be asked of `gp.onnx.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from graphport.arguments import (
    ANYTHING,
    CLASS,
    DICT,
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
OLDEST, NEWEST = 18, 26


@made_of(
    input_names=NAMES | NONE, output_names=NAMES | NONE, optimize=FLAG, verify=FLAG | DICT,
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
    verify: bool | Mapping[str, Any] = False
    """Or the options of `ONNXProgram.verify`."""
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
        if not isinstance(self.verify, bool):
            VerifyOptions.of(self.verify)

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


@dataclass(frozen=True)
class VerifyOptions:
    """Options of `ONNXProgram.verify`, checked."""

    inputs: Any = None
    sizes: Sequence[Mapping[str, int]] = ()
    limit: int | None = None
    other_sizes: bool = True
    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value >= 0):
                raise InputError(
                    f"{name}={value!r} is no error that can be accepted", fix=f"{name}=1e-3"
                )
        if not isinstance(self.other_sizes, bool):
            raise InputError(f"other_sizes={self.other_sizes!r}", fix="other_sizes=False")
        if self.limit is not None and (type(self.limit) is not int or self.limit < 0):
            raise InputError(f"limit={self.limit!r} is no number of sizes to try", fix="limit=2")
        if self.limit and not self.other_sizes:
            raise InputError(
                f"limit={self.limit} asks for other sizes, other_sizes=False for none",
                fix="one of them",
            )
        if isinstance(self.sizes, Mapping):
            object.__setattr__(self, "sizes", [self.sizes])
        for sizes in _listed(self.sizes):
            _require_sizes(sizes)

    @property
    def chosen(self) -> int:
        """How many sizes to choose, at most."""
        if not self.other_sizes:
            return 0
        return (0 if self.sizes else _ENOUGH) if self.limit is None else self.limit

    @classmethod
    def of(cls, given: Any) -> VerifyOptions:
        """From what `verify=` of an export may be."""
        if not isinstance(given, Mapping):
            raise InputError(
                f"verify={given!r} is neither a bool nor options of verify",
                fix='verify=True, or verify={"limit": 2}',
            )
        names = [f.name for f in fields(cls)]
        unknown = [str(name) for name in given if name not in names]
        if unknown:
            raise InputError(
                f"verify has no option {', '.join(unknown)}", fix=f"one of {', '.join(names)}"
            )
        return cls(**given)


_ENOUGH = 5
"""Sizes to try beside those of the example."""


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _listed(sizes: Any) -> Sequence[Any]:
    if isinstance(sizes, list | tuple):
        return sizes
    raise InputError(
        f"sizes must be a list of dicts by the names of dims, got {type(sizes).__name__}",
        fix='sizes=[{"batch": 7}]',
    )


def _require_sizes(sizes: Any) -> None:
    if not isinstance(sizes, Mapping) or not all(isinstance(name, str) for name in sizes):
        raise InputError(
            f"sizes has {sizes!r}, which is not a dict by the names of dims",
            fix='sizes=[{"batch": 7}]',
        )
    for name, n in sizes.items():
        if type(n) is not int or n.bit_length() > 62:
            raise InputError(f"sizes: {name}={n!r} is no size", fix=f'sizes=[{{"{name}": 7}}]')
