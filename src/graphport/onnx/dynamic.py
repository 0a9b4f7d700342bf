"""`dynamic_shapes` in the spellings that ONNX users have: by ONNX input name, and `dynamic_axes`.

Capture knows the model's own parameters. What is said of a chosen input name is said of the tensor
that the name is given to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from graphport.capture.dims import Dim
from graphport.capture.inputs import bind
from graphport.capture.shapes import along
from graphport.capture.sites import Site, read
from graphport.errors import InputError, SpecError

_DEFAULT_OUTPUT = re.compile(r"output(_\d+)?")


def by_parameter(
    spec: Any,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    names: Sequence[str] | None,
    names_first: bool = False,
) -> Any:
    """A spec with chosen input names among its keys, by the model's own parameters.

    A key that is both is a parameter, unless `names_first`.
    """
    if not isinstance(spec, Mapping) or not set(spec) & set(names or ()):
        return spec
    inputs = bind(model, args, kwargs)
    first = set(names or ()) if names_first else set()
    own = {k: v for k, v in spec.items() if k in inputs.parameters and k not in first}
    if len(own) == len(spec):
        return spec
    leaves: list[Any] = []
    along(leaves.append, inputs)
    chosen = dict(zip(_takers(leaves, names or ()), names or (), strict=False))
    unknown = sorted(set(spec) - set(own) - set(chosen.values()))
    if unknown:
        known = [*inputs.parameters, *chosen.values()]
        raise _unknown("dynamic_shapes", unknown, known)
    numbers = iter(range(len(leaves)))
    return {**along(lambda _: spec.get(chosen.get(next(numbers))), inputs), **own}


def declared(spec: Any, model: Any, args: Any, kwargs: Any) -> dict[str, Site]:
    """Where a spec first speaks of each symbol: by the name of a Dim, or the place of a size."""
    found: dict[str, Site] = {}
    for entry in read(bind(model, args, kwargs), spec):
        for site in entry.sites:
            found.setdefault(
                site.wish.root.__name__ if isinstance(site.wish, Dim) else site.path, site
            )
    return found


def _takers(leaves: Sequence[Any], names: Sequence[str]) -> list[int]:
    """The numbers of the leaves that input names are given to: tensors, or those and numbers."""
    tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    either = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor | int | float)]
    return either if len(names) == len(either) else tensors


def of_axes(
    axes: Mapping[str, Any],
    model: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    names: Sequence[str] | None,
    outputs: Sequence[str] | None,
) -> Any:
    """`dynamic_axes={"x": {0: "batch"}, "y": [1]}` as dims; those of outputs follow by themselves.

    Axes of one name are one dim.
    """
    if not isinstance(axes, Mapping):
        raise SpecError(
            f"dynamic_axes is a dict by input name, got {axes!r}",
            fix='dynamic_axes={"x": {0: "batch"}}',
        )
    dims: dict[str, Dim] = {}
    known = [*(names or ()), *bind(model, args, kwargs).parameters]
    rest = set(axes) - set(known) - set(outputs or ())
    unknown = sorted(name for name in rest if not _DEFAULT_OUTPUT.fullmatch(name))
    if unknown:
        raise _unknown("dynamic_axes", unknown, [*known, *(outputs or ())])
    spec = {
        name: {axis: _dim(dims, text) for axis, text in _named_axes(name, given)}
        for name, given in axes.items()
        if name in known
    }
    return by_parameter(spec, model, args, kwargs, names, names_first=True)


def _named_axes(name: str, given: Any) -> Iterable[tuple[int, str]]:
    if isinstance(given, Mapping):
        return given.items()
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [(axis, f"{name}_dim_{axis}") for axis in given]
    raise SpecError(
        f"dynamic_axes[{name!r}] is {given!r}",
        fix=f'dynamic_axes={{"{name}": {{0: "batch"}}}}, or a list of axes',
    )


def _dim(dims: dict[str, Dim], text: str) -> Dim:
    name = re.sub(r"\W", "_", str(text))
    if not name or name[0].isdigit():
        name = f"dim_{name}"
    return dims.setdefault(name, Dim(name))


def _unknown(what: str, unknown: Sequence[str], known: Sequence[str]) -> InputError:
    return InputError(
        f"{what} names {', '.join(unknown)}, which are no inputs",
        fix=f"one of {', '.join(dict.fromkeys(known))}",
    )
