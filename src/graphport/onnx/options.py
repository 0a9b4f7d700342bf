"""Options of `gp.onnx.export` and of `ONNXProgram.verify`, checked and translated for capture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from graphport import arguments as kinds
from graphport.arguments import check_fields, format_value
from graphport.capture.spec.inputs import bind_inputs
from graphport.capture.spec.shapes import build_spec
from graphport.capture.spec.walk import SizeSpec, walk_spec
from graphport.errors import InputError, SpecError
from graphport.onnx.target.targets import TARGETS
from graphport.symbolic.dims import Dim
from graphport.types import PyTree


@check_fields(
    input_names=kinds.NAMES | kinds.NONE,
    output_names=kinds.NAMES | kinds.NONE,
    optimize=kinds.FLAG,
    verify=kinds.FLAG | kinds.DICT,
    custom_lowerings=kinds.mapping(kinds.ANYTHING, kinds.FUNCTION) | kinds.NONE,
    report=kinds.PATH | kinds.NONE,
    module_functions=kinds.several(kinds.CLASS | kinds.TEXT),
    dynamic_shapes=kinds.FLAG | kinds.NONE,
    share_weights=kinds.FLAG,
)
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
        known = TARGETS[self.target].opsets
        if self.opset is not None and not (type(self.opset) is int and self.opset in known):
            raise InputError(
                f"opset={self.opset!r} is not supported", fix=f"one from {known[0]} to {known[-1]}"
            )
        if not isinstance(self.verify, bool):
            VerifyOptions.of(self.verify)

    @classmethod
    def of(cls, given: ExportOptions | Mapping[str, Any] | None) -> ExportOptions:
        if isinstance(given, ExportOptions):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InputError(
                f"export options are an ExportOptions or a dict, got {format_value(given)}"
            )
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
        for sizes in _require_list(self.sizes):
            _require_sizes(sizes)

    @property
    def chosen(self) -> int:
        """How many sizes to choose, at most."""
        if not self.other_sizes:
            return 0
        return (0 if self.sizes else _DEFAULT_LIMIT) if self.limit is None else self.limit

    @classmethod
    def of(cls, given: object) -> VerifyOptions:
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


_DEFAULT_LIMIT = 5
"""Sizes to try beside those of the example."""


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _require_list(sizes: object) -> Sequence[Any]:
    if isinstance(sizes, list | tuple):
        return sizes
    raise InputError(
        f"sizes must be a list of dicts by the names of dims, got {type(sizes).__name__}",
        fix='sizes=[{"batch": 7}]',
    )


def _require_sizes(sizes: object) -> None:
    if not isinstance(sizes, Mapping) or not all(isinstance(name, str) for name in sizes):
        raise InputError(
            f"sizes has {sizes!r}, which is not a dict by the names of dims",
            fix='sizes=[{"batch": 7}]',
        )
    for name, n in sizes.items():
        if type(n) is not int or n.bit_length() > 62:
            raise InputError(f"sizes: {name}={n!r} is no size", fix=f'sizes=[{{"{name}": 7}}]')


# Translates `dynamic_shapes` by ONNX input name, and `dynamic_axes`, to those of the model.
#
# Capture knows the model's own parameters. What is said of a chosen input name is said of the
# tensor that the name is given to.

_DEFAULT_OUTPUT = re.compile(r"output(_\d+)?")


def key_by_parameter(
    spec: object,
    model: object,
    args: tuple[object, ...],
    kwargs: object,
    names: Sequence[str] | None,
    names_first: bool = False,
) -> PyTree:
    """A spec with chosen input names among its keys, by the model's own parameters.

    A key that is both is a parameter, unless `names_first`.
    """
    if not isinstance(spec, Mapping) or not set(spec) & set(names or ()):
        return spec
    inputs = bind_inputs(model, args, kwargs)
    first = set(names or ()) if names_first else set()
    own = {k: v for k, v in spec.items() if k in inputs.parameters and k not in first}
    if len(own) == len(spec):
        return spec
    leaves: list[Any] = []
    build_spec(leaves.append, inputs)
    chosen = dict(zip(_match_leaves(leaves, names or ()), names or (), strict=False))
    unknown = sorted(set(spec) - set(own) - set(chosen.values()))
    if unknown:
        known = [*inputs.parameters, *chosen.values()]
        raise _unknown_names_error("dynamic_shapes", unknown, known)
    numbers = iter(range(len(leaves)))
    return {**build_spec(lambda _: spec.get(chosen.get(next(numbers))), inputs), **own}


def find_declarations(
    spec: object, model: object, args: object, kwargs: object
) -> dict[str, SizeSpec]:
    """Where a spec first has each symbol: by the name of a Dim, or the place of a size."""
    found: dict[str, SizeSpec] = {}
    for entry in walk_spec(bind_inputs(model, args, kwargs), spec):
        for site in entry.sizes:
            found.setdefault(
                site.dim.root.__name__ if isinstance(site.dim, Dim) else site.path, site
            )
    return found


def _match_leaves(leaves: Sequence[object], names: Sequence[str]) -> list[int]:
    """The numbers of the leaves that input names are given to: tensors, or those and numbers."""
    tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    either = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor | int | float)]
    return either if len(names) == len(either) else tensors


def convert_dynamic_axes(
    axes: Mapping[str, object],
    model: object,
    args: tuple[object, ...],
    kwargs: object,
    names: Sequence[str] | None,
    outputs: Sequence[str] | None,
) -> PyTree:
    """`dynamic_axes={"x": {0: "batch"}, "y": [1]}` as dims; those of outputs follow by themselves.

    A name is a label: axes of one name may be of unequal sizes.
    """
    if not isinstance(axes, Mapping):
        raise SpecError(
            f"dynamic_axes is a dict by input name, got {axes!r}",
            fix='dynamic_axes={"x": {0: "batch"}}',
        )
    known = [*(names or ()), *bind_inputs(model, args, kwargs).parameters]
    rest = set(axes) - set(known) - set(outputs or ())
    unknown = sorted(name for name in rest if not _DEFAULT_OUTPUT.fullmatch(name))
    if unknown:
        raise _unknown_names_error("dynamic_axes", unknown, [*known, *(outputs or ())])
    spec = {name: dict(name_axes(name, given)) for name, given in axes.items() if name in known}
    return key_by_parameter(spec, model, args, kwargs, names, names_first=True)


def name_axes(name: str, given: object) -> Iterable[tuple[int, str]]:
    if isinstance(given, Mapping):
        return given.items()
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [(axis, f"{name}_dim_{axis}") for axis in given]
    raise SpecError(
        f"dynamic_axes[{name!r}] is {given!r}",
        fix=f'dynamic_axes={{"{name}": {{0: "batch"}}}}, or a list of axes',
    )


def _unknown_names_error(what: str, unknown: Sequence[str], known: Sequence[str]) -> InputError:
    return InputError(
        f"{what} names {', '.join(unknown)}, which are no inputs",
        fix=f"one of {', '.join(dict.fromkeys(known))}",
    )
