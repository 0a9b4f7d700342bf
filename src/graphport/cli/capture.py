"""Captures a model as the command line describes it.

`--dynamic "x:0=batch[1..64],1=2*half+1"` is read as a spec of dynamic shapes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphport.capture.spec.inputs import Inputs, Variadic, bind_inputs
from graphport.capture.spec.shapes import build_spec
from graphport.cli import inputs, models
from graphport.compat.torch import pytree
from graphport.errors import ConstraintViolationError, SpecError, UsageError
from graphport.symbolic.dims import Dim
from graphport.types import PyTree

_SIZE = re.compile(
    r"(?:(?P<factor>\d+)\s*\*\s*)?(?P<name>[A-Za-z_]\w*)"
    r"(?:\s*(?P<sign>[+-])\s*(?P<offset>\d+))?"
    r"(?:\s*\[\s*(?P<least>\d*)\s*\.\.\s*(?P<most>\d*)\s*\])?"
)
_HINTS = {"auto": Dim.AUTO, "dynamic": Dim.DYNAMIC}


@dataclass
class SizeOption:
    """One size as it was written: factor * name + offset, with the range of the name."""

    text: str
    """The option that it stands in."""
    name: str
    factor: int
    offset: int
    least: int | None
    most: int | None


Sizes = dict[str, dict[int | None, SizeOption]]
"""By input and axis; the axis None is an input that is itself a number."""


def parse_dynamic_shapes(
    texts: Sequence[str], target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> PyTree:
    """The spec for the inputs of a model."""
    return _build_spec(parse_dynamic(texts), bind_inputs(target, args, kwargs))


def read_dynamic_shapes(
    path: Path, target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> PyTree:
    """The spec that an ONNX file itself has: its inputs name their dims, metadata their ranges."""
    from graphport.cli.models import load_onnx
    from graphport.report.facts import collect_model_facts

    model = load_onnx(path)
    ranges = {size.name: (size.least, size.most) for size in collect_model_facts(model).sizes}
    inputs = bind_inputs(target, args, kwargs)
    paths = list(zip(inputs.leaves, _list_leaf_paths(inputs), strict=True))
    names = {leaf.name: path for leaf, path in paths}
    weights = {t.name for t in model.graph.initializer}
    given = [v.name for v in model.graph.input if v.name not in weights]
    tensors = [path for leaf, path in paths if isinstance(leaf.value, torch.Tensor)]
    if not names.keys() >= set(given) and len(given) == len(tensors):
        names = dict(zip(given, tensors, strict=True))  # other names are taken by position
    written: Sizes = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            text = _sanitise_name(dim.dim_param)
            if _SIZE.fullmatch(text) and value.name in names:
                size = _parse_size(text, f"{value.name}:{axis}={text}")
                size.least, size.most = ranges.get(size.name, (None, None))
                written.setdefault(names[value.name], {})[axis] = size
    return _build_spec(written, inputs) if written else None


def _sanitise_name(text: str) -> str:
    """What another tool calls a size, as a name of ours; a formula is left as it is."""
    if not text or set(text) & set("*+-/%(),"):
        return text
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"dim_{name}" if name[0].isdigit() else name


def _build_spec(written: Sizes, inputs: Inputs) -> object:
    """What was written, in the structure of the inputs."""
    dims = _make_dims([w for axes in written.values() for w in axes.values()])
    paths = iter(_list_leaf_paths(inputs))
    used: set[str] = set()

    def spec(leaf: Any) -> Any:
        path = next(paths)
        if path not in written:
            return None
        used.add(path)
        return _make_leaf_spec(path, leaf, written[path], dims)

    found = build_spec(spec, inputs)
    unknown = [path for path in written if path not in used]
    if unknown:
        first = next(iter(written[unknown[0]].values()))
        raise UsageError(
            f"the model has no input {', '.join(unknown)}",
            where=f'--dynamic "{first.text}"',
            fix=f"one of {', '.join(_list_leaf_paths(inputs))}",
        )
    return found


def _list_leaf_paths(inputs: Inputs) -> list[str]:
    """What the leaves are called, in order: `x`, `cache.0.key`."""
    found: list[str] = []
    for name, (_, value) in inputs.parameters.items():
        values = value.values if isinstance(value, Variadic) else value
        leaves, _ = pytree.tree_flatten_with_path(values)
        found += [".".join((name, *map(_format_key, path))) for path, _ in leaves]
    return found


def _format_key(key: object) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _make_leaf_spec(
    path: str, leaf: Any, axes: dict[int | None, SizeOption], dims: dict[str, Dim]
) -> object:
    first = next(iter(axes.values()))
    is_tensor = isinstance(leaf, torch.Tensor)
    may_vary = is_tensor or type(leaf) in (int, float)
    if not may_vary or is_tensor != (None not in axes) or (len(axes) > 1 and None in axes):
        kind = "a tensor" if is_tensor else repr(leaf)
        fix = f"{path}:0={first.name}" if is_tensor else f"{path}={first.name}"
        if not may_vary:
            fix = f"leave out {path}: only tensors and numbers have sizes that vary"
        raise UsageError(f"{path} is {kind}", where=f'--dynamic "{first.text}"', fix=fix)
    if None in axes:
        return _make_dim(axes[None], dims)
    found = {}
    for axis, w in axes.items():
        assert axis is not None
        if not -leaf.dim() <= axis < leaf.dim():
            raise UsageError(
                f"{path} has {leaf.dim()} axes, and no axis {axis}", where=f'--dynamic "{w.text}"'
            )
        if axis % leaf.dim() in found:
            raise UsageError(f"axis {axis} of {path} is given twice", where=f'--dynamic "{w.text}"')
        found[axis % leaf.dim()] = _make_dim(w, dims)
    return found


def _make_dim(w: SizeOption, dims: dict[str, Dim]) -> object:
    if w.name in _HINTS:
        if (w.factor, w.offset) != (1, 0):
            raise UsageError(
                f"{w.name} cannot be part of an expression",
                where=f'--dynamic "{w.text}"',
                fix="a name, such as 2*half+1",
            )
        hint = _HINTS[w.name]
        return hint if (w.least, w.most) == (None, None) else hint(min=w.least, max=w.most)
    try:
        return w.factor * dims[w.name] + w.offset
    except SpecError as error:
        raise UsageError(error.what, where=f'--dynamic "{w.text}"', fix=error.fix) from None


def _make_dims(all_written: Sequence[SizeOption]) -> dict[str, Dim]:
    """A dim for each name; its range may be said once, or more than once if it is the same."""
    ranges: dict[str, tuple[int | None, int | None]] = {}
    for w in all_written:
        limits = (w.least, w.most)
        known = ranges.setdefault(w.name, limits)
        if known == (None, None):
            ranges[w.name] = limits
        elif limits not in ((None, None), known):
            raise UsageError(f"{w.name} has two ranges", where=f'--dynamic "{w.text}"')
    found = {}
    for name, (least, most) in ranges.items():
        if name in _HINTS:
            continue
        try:
            found[name] = Dim(name, min=least, max=most)
        except SpecError as error:
            raise UsageError(error.what, where="--dynamic", fix=error.fix) from None
    return found


def parse_dynamic(texts: Sequence[str]) -> Sizes:
    """What was written, by input and axis.

    >>> parse_dynamic(["x:0=batch[1..64],-1=2*half"])["x"][-1].factor
    2
    """
    found: Sizes = {}
    for text in texts:
        head, colon, tail = text.partition(":")
        if not colon:
            name, equals, size = (part.strip() for part in text.partition("="))
            if not equals:
                raise _dynamic_syntax_error(text)
            _add_size(found.setdefault(name, {}), None, _parse_size(size, text))
            continue
        axes = found.setdefault(head.strip(), {})
        for part in tail.split(","):
            axis, equals, size = (p.strip() for p in part.partition("="))
            if not equals or not re.fullmatch(r"-?\d+", axis):
                raise _dynamic_syntax_error(text)
            _add_size(axes, int(axis), _parse_size(size, text))
    return found


def _add_size(axes: dict[int | None, SizeOption], axis: int | None, size: SizeOption) -> None:
    if axis in axes:
        what = "its size" if axis is None else f"axis {axis}"
        raise UsageError(f"{what} is given twice", where=f'--dynamic "{size.text}"')
    axes[axis] = size


def _parse_size(size: str, text: str) -> SizeOption:
    match = _SIZE.fullmatch(size)
    if match is None:
        raise _dynamic_syntax_error(text)
    offset = int(match["offset"] or 0) * (-1 if match["sign"] == "-" else 1)
    limits = [int(x) if x else None for x in (match["least"], match["most"])]
    return SizeOption(text, match["name"], int(match["factor"] or 1), offset, *limits)


def _dynamic_syntax_error(text: str) -> UsageError:
    return UsageError(
        "dynamic sizes that cannot be read",
        where=f'--dynamic "{text}"',
        fix='INPUT:AXIS=SIZE[,AXIS=SIZE ...], such as "x:0=batch[1..64],1=seq"',
    )


_DIM_DEFINITION = re.compile(
    r"(?P<name>\w+) = Dim\('\w+'(?:, min=(?P<least>\d+))?(?:, max=(?P<most>\d+))?\)"
)
_DIM_EQUATION = re.compile(r"(?P<name>\w+) = (?P<size>.+)")


def translate_fixes(fixes: Sequence[str]) -> list[str]:
    """Suggested definitions of dims, as `--dynamic` has them.

    >>> translate_fixes(["_n = Dim('_n', min=1, max=12)", "n = 3*_n - 1", "rows = 11"])
    ['--dynamic with 3*_n - 1 in place of n, where _n is _n[1..12]', '--dynamic without rows']
    """
    ranges = {
        m["name"]: f"{m['name']}[{m['least'] or ''}..{m['most'] or ''}]"
        for m in map(_DIM_DEFINITION.fullmatch, fixes)
        if m
    }
    used: set[str] = set()
    found = []
    for match in map(_DIM_EQUATION.fullmatch, fixes):
        if match is None or match["name"] in ranges:
            continue
        name, size = match["name"], match["size"]
        if size.isdigit():
            found.append(f"--dynamic without {name}")
            continue
        named = [n for n in ranges if re.search(rf"\b{n}\b", size) and n not in used]
        used.update(named)
        where = "".join(f", where {n} is {ranges[n]}" for n in named)
        found.append(f"--dynamic with {size} in place of {name}{where}")
    found += [
        f"--dynamic with {text} in place of {n}" for n, text in ranges.items() if n not in used
    ]
    return found


# Builds the model with its inputs and sizes, and captures it.


@dataclass(frozen=True)
class ModelWithInputs:
    """A model, its example inputs, and which sizes are dynamic."""

    model: models.Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: Any
    spelled: bool
    """Whether the sizes were written on the command line."""

    @property
    def eager(self) -> Any:
        """What to call in PyTorch."""
        model = self.model
        return model.target.module(check_guards=False) if model.is_program else model.target

    def captured(self) -> Any:
        """Its `ExportedProgram`."""
        from graphport.capture.export import export

        if self.model.is_program:
            return self.model.target
        try:
            return export(self.model.target, self.args, self.kwargs, dynamic_shapes=self.shapes)
        except ConstraintViolationError as error:
            if self.spelled:
                error.fix = translate_fixes(error.fix) or error.fix
            raise


def build_model(options: argparse.Namespace) -> ModelWithInputs:
    model = models.resolve_model(options.model, options.allow)
    args, kwargs = inputs.resolve_inputs(model, options.input, options.inputs)
    if model.is_program and options.dynamic:
        raise UsageError("a saved program has its dynamic sizes already", fix="leave out --dynamic")
    shapes = model.dynamic_shapes
    if options.dynamic:
        shapes = parse_dynamic_shapes(options.dynamic, model.target, args, kwargs)
    return ModelWithInputs(model, args, kwargs, shapes, bool(options.dynamic))
