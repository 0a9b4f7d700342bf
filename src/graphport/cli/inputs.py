"""Example inputs: from the command line, a file, a function, or what an ONNX file declares."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch

from graphport.capture.spec.inputs import signature_of
from graphport.cli.models import Model, call_user_function, import_object, load_onnx
from graphport.errors import ExpressionError, UsageError
from graphport.onnx.emit.schemas import TORCH_OF
from graphport.program.exported import SHORT_DTYPES
from graphport.report.facts import collect_model_facts
from graphport.symbolic.validate.parse import parse_term
from graphport.symbolic.validate.terms import Terms, evaluate_term
from graphport.types import PyTree

DTYPES: dict[str, torch.dtype] = {
    **{short: dtype for dtype, short in SHORT_DTYPES.items()},
    **{str(dtype).removeprefix("torch."): dtype for dtype in SHORT_DTYPES},
}
"""By their short and their full names."""

_TENSOR = re.compile(r"(\w+)\[([\d\s,]*)\](?:\((-?\d+)\.\.(-?\d+)\))?")
_KEYWORDS = {"true": True, "false": False, "none": None}
_FILE_SUFFIXES = (".npz", ".safetensors")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def resolve_inputs(
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
        return bind_inputs(model.target, parse_inputs(written))
    if given and given.endswith(_FILE_SUFFIXES):
        return bind_inputs(model.target, read_tensors(Path(given)))
    if given:
        found, _ = import_object(given, model.home)
        return normalise_inputs(
            model.target, call_user_function(found, given) if callable(found) else found, given
        )
    if model.args is not None or model.kwargs:
        args, kwargs = normalise_inputs(
            model.target, () if model.args is None else model.args, "args"
        )
        return args, {**kwargs, **(model.kwargs or {})}
    beside = getattr(model.home, "example_inputs", None)
    if callable(beside):
        return normalise_inputs(
            model.target, call_user_function(beside, "example_inputs"), "example_inputs"
        )
    return bind_inputs(model.target, otherwise())


def normalise_inputs(target: object, value: object, source: str) -> Arguments:
    """A tensor, a tuple of positional arguments, or a dict by parameter name."""
    if isinstance(value, dict):
        return bind_inputs(target, value)
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, list | tuple):
        return tuple(value), {}
    raise UsageError(
        f"{source} gives {type(value).__name__} as inputs",
        fix="a tuple of positional arguments, a dict by parameter name, or a tensor",
    )


def bind_inputs(target: object, named: Mapping[str, object]) -> Arguments:
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


# Inputs written on the command line


def parse_inputs(texts: Sequence[str]) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise _input_syntax_error(text, "NAME=VALUE, such as x=f32[2,3]")
        if name in found:
            raise UsageError(f"there are two inputs {name}", where=f'--input "{text}"')
        found[name] = _parse_value(value, text, generator)
    return found


def _parse_value(value: str, text: str, generator: torch.Generator) -> object:
    tensor = _TENSOR.fullmatch(value)
    if tensor:
        dtype, sizes, least, most = tensor.groups()
        if dtype not in DTYPES:
            raise _input_syntax_error(text, f"a dtype: {', '.join(SHORT_DTYPES.values())}")
        try:
            shape = [int(size) for size in sizes.split(",")] if sizes.strip() else []
        except ValueError:
            raise _input_syntax_error(text, f"{dtype}[2,3]") from None
        limits = (int(least), int(most)) if least else None
        _require_range(DTYPES[dtype], limits, text)
        try:
            return draw_tensor(DTYPES[dtype], shape, limits, generator)
        except (RuntimeError, MemoryError) as error:  # of torch: too large
            raise UsageError(str(error).splitlines()[0], where=f'--input "{text}"') from None
    if value.lower() in _KEYWORDS:
        return _KEYWORDS[value.lower()]
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _input_syntax_error(
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
            "does not have",
            where=f'--input "{text}"',
            fix=f"within {fits[0]}..{fits[1]}",
        )


def draw_tensor(
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


def _input_syntax_error(text: str, fix: str) -> UsageError:
    return UsageError("an input that cannot be read", where=f'--input "{text}"', fix=fix)


# Files


def read_tensors(path: Path) -> dict[str, object]:
    """Tensors by name."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        from graphport.capture.fake_mode import Shard

        shard: Any = Shard(path, torch.device("cpu"))
        return {name: tensor.read() for name, tensor in shard.get_tensors().items()}
    import numpy

    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, TypeError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


# Draws inputs from what an ONNX file declares: names, dtypes, sizes.

_MAX_TRIES = 1000
_MAX_SIZE = 1 << 31


def draw_file_inputs(path: Path, target: object) -> dict[str, PyTree]:
    """Inputs by parameter of the model; none if the file's are not the model's."""
    model = load_onnx(path)
    weights = {t.name for t in model.graph.initializer}
    ports = [v for v in model.graph.input if v.name not in weights]
    names = _match_parameters(target, [v.name for v in ports])
    sizes = _choose_sizes(model)
    if names is None or sizes is None:
        return {}
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, port in zip(names, ports, strict=True):
        kind = port.type.tensor_type
        if kind.elem_type not in TORCH_OF:
            return {}
        shape = [_evaluate_dim(dim, sizes) for dim in kind.shape.dim]
        if any(n is None for n in shape):
            return {}
        found[name] = draw_tensor(TORCH_OF[kind.elem_type], shape, None, generator)  # type: ignore[arg-type]
    return found


def _match_parameters(target: object, given: Sequence[str]) -> list[str] | None:
    """The parameters that inputs are for: of the same names, or else in the same order."""
    parameters = signature_of(target).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if set(given) <= set(names):
        return list(given)
    if any(text.startswith(f"{name}_") for text in given for name in names):
        return None  # parts of a parameter that is a list, tuple or dict
    required = [p.name for p in parameters if p.name in names and p.default is p.empty]
    for some in (required, names):
        if len(some) == len(given):
            return some
    return None


def _choose_sizes(model: Any) -> dict[str, int] | None:
    """Sizes by name, within their ranges, at which what the file says of them holds."""
    facts = collect_model_facts(model)
    ranges = {
        s.name: (s.least or 0, _MAX_SIZE if s.most is None else s.most)
        for s in facts.sizes
        if s.name.isidentifier()
    }
    return next(
        (some for some in _propose_sizes(ranges) if _conditions_hold(facts.conditions, some)), None
    )


def _propose_sizes(ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Small sizes that differ from each other, then any."""
    yield {
        name: min(max(least, 2) + i, most) for i, (name, (least, most)) in enumerate(ranges.items())
    }
    choice = random.Random(0)
    for reach in range(2, _MAX_TRIES):
        yield {
            name: choice.randint(least, min(most, least + reach))
            for name, (least, most) in ranges.items()
        }


def _conditions_hold(conditions: Sequence[str], sizes: Mapping[str, int]) -> bool:
    return all(_evaluate_text(text, sizes) is not False for text in conditions)


def _evaluate_dim(dim: Any, sizes: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    value = _evaluate_text(dim.dim_param, sizes) if dim.dim_param else 2
    return int(value) if value is not None and value >= 0 else None


def _evaluate_text(text: str, sizes: Mapping[str, int]) -> Any:
    """The value of an expression at some sizes; None if it cannot be evaluated."""
    if text in sizes:
        return sizes[text]
    try:
        return evaluate_term(parse_term(text, Terms(), text), sizes)
    except (ExpressionError, ArithmeticError, KeyError):
        return 2 if not set(text) & set("*+-/%(),<>=!") else None
