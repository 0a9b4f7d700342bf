"""Example inputs: written on the command line, read from a file, or returned by a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch

from graphport.capture.inputs import signature_of
from graphport.cli.models import Model, call, named_object
from graphport.errors import UsageError
from graphport.program.printing import SHORT

DTYPES: dict[str, torch.dtype] = {
    **{short: dtype for dtype, short in SHORT.items()},
    **{str(dtype).removeprefix("torch."): dtype for dtype in SHORT},
}
"""By their short and their full names."""

_TENSOR = re.compile(r"(\w+)\[([\d\s,]*)\](?:\((-?\d+)\.\.(-?\d+)\))?")
_WORDS = {"true": True, "false": False, "none": None}
_FILES = (".npz", ".safetensors")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments(
    model: Model,
    written: Sequence[str],
    given: str | None,
    otherwise: Callable[[], Mapping[str, Any]] = dict,
) -> Arguments:
    """The example inputs of a model, from wherever they are said to come.

    `otherwise` are those that there are if nobody says anything, by parameter name.
    """
    if written and given:
        raise UsageError("both --input and --inputs were given", fix="one of them")
    if model.is_program:
        if written or given:
            raise UsageError("a saved program has its inputs already", fix="leave out --input")
        return model.target.example_inputs
    if written:
        return bound(model.target, written_inputs(written))
    if given and given.endswith(_FILES):
        return bound(model.target, read(Path(given)))
    if given:
        found, _ = named_object(given, model.home)
        return normal(model.target, call(found, given) if callable(found) else found, given)
    if model.args is not None or model.kwargs:
        args, kwargs = normal(model.target, () if model.args is None else model.args, "args")
        return args, {**kwargs, **(model.kwargs or {})}
    beside = getattr(model.home, "example_inputs", None)
    if callable(beside):
        return normal(model.target, call(beside, "example_inputs"), "example_inputs")
    return bound(model.target, otherwise())


def normal(target: Any, value: Any, source: str) -> Arguments:
    """A tensor, a tuple of positional arguments, or a dict by parameter name."""
    if isinstance(value, dict):
        return bound(target, value)
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, list | tuple):
        return tuple(value), {}
    raise UsageError(
        f"{source} gives {type(value).__name__} as inputs",
        fix="a tuple of positional arguments, a dict by parameter name, or a tensor",
    )


def bound(target: Any, named: Mapping[str, Any]) -> Arguments:
    """Inputs by parameter name, as the model takes them."""
    signature = signature_of(target)
    parameters = list(signature.parameters.values())
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unknown = [n for n in named if n not in names and not takes_any]
    if unknown:
        raise UsageError(
            f"the model has no input {', '.join(unknown)}",
            fix=f"one of {', '.join(names)}" if names else (),
        )
    required = {p.name for p in parameters if p.default is p.empty}
    missing = [n for n in names if n in required and n not in named]
    if missing:
        raise UsageError(
            f"there is no example input for {', '.join(missing)}",
            fix=[f'--input "{name}=f32[2,3]"' for name in missing],
        )
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in named]
    rest = {n: named[n] for n in (*names, *named) if n in named and n not in first}
    chosen = signature.bind(*(named[n] for n in first), **rest)
    return chosen.args, chosen.kwargs


# Written


def written_inputs(texts: Sequence[str]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise _unreadable(text, "NAME=VALUE, such as x=f32[2,3]")
        if name in found:
            raise UsageError(f"there are two inputs {name}", where=f'--input "{text}"')
        found[name] = _value(value, text, generator)
    return found


def _value(value: str, text: str, generator: torch.Generator) -> Any:
    tensor = _TENSOR.fullmatch(value)
    if tensor:
        dtype, sizes, least, most = tensor.groups()
        if dtype not in DTYPES:
            raise _unreadable(text, f"a dtype: {', '.join(SHORT.values())}")
        try:
            shape = [int(size) for size in sizes.split(",")] if sizes.strip() else []
        except ValueError:
            raise _unreadable(text, f"{dtype}[2,3]") from None
        limits = (int(least), int(most)) if least else None
        _require_range(DTYPES[dtype], limits, text)
        try:
            return random_tensor(DTYPES[dtype], shape, limits, generator)
        except (RuntimeError, MemoryError) as error:  # of torch: too large
            raise UsageError(str(error).splitlines()[0], where=f'--input "{text}"') from None
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _unreadable(
            text, "a type and sizes (f32[2,3]), a number, true, false, none or a 'text'"
        ) from None
    return literal


def _require_range(dtype: torch.dtype, limits: tuple[int, int] | None, text: str) -> None:
    if limits is None:
        return
    least, most = limits
    if least > most:
        raise UsageError(f"the range {least}..{most} is empty", where=f'--input "{text}"')
    fits = (0, 1) if dtype is torch.bool else (-(1 << 63), (1 << 63) - 2)
    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        info = torch.iinfo(dtype)
        fits = max(info.min, fits[0]), min(info.max, fits[1])
    if least < fits[0] or most > fits[1]:
        raise UsageError(
            f"the range {least}..{most} has numbers that {str(dtype).removeprefix('torch.')} "
            "does not have", where=f'--input "{text}"', fix=f"within {fits[0]}..{fits[1]}",
        )  # fmt: skip


def random_tensor(
    dtype: torch.dtype,
    shape: Sequence[int],
    limits: tuple[int, int] | None,
    generator: torch.Generator,
) -> torch.Tensor:
    """Normal numbers; integers of a range, or 0 and 1, which nearly every table has as indices."""
    if limits is None and (dtype.is_floating_point or dtype.is_complex):
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, dtype=wide, generator=generator).to(dtype)
    least, most = limits or (0, 1)
    drawn = torch.randint(least, most + 1, (prod(shape),), generator=generator)
    return drawn.reshape(list(shape)).to(dtype)


def _unreadable(text: str, fix: str) -> UsageError:
    return UsageError("an input that cannot be read", where=f'--input "{text}"', fix=fix)


# Files


def read(path: Path) -> dict[str, Any]:
    """Tensors by name."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        from graphport.capture.checkpoints import Shard

        shard: Any = Shard(path, torch.device("cpu"))
        return {name: tensor.read() for name, tensor in shard.get_tensors().items()}
    import numpy

    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, TypeError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
