"""Draws example inputs for a model from what its ONNX file declares: names, dtypes, sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphport.capture.inputs import signature_of
from graphport.cli.inputs import random_tensor
from graphport.cli.models import load_onnx
from graphport.errors import ExpressionError
from graphport.fx.parse import parse
from graphport.fx.terms import Terms, evaluate
from graphport.onnx.types import TORCH_OF
from graphport.report.facts import of_model

_TRIES = 1000
_MOST = 1 << 31


def inputs_of_file(path: Path, target: Any) -> dict[str, Any]:
    """Inputs by parameter of the model; none if the file's are not the model's."""
    model = load_onnx(path)
    weights = {t.name for t in model.graph.initializer}
    ports = [v for v in model.graph.input if v.name not in weights]
    names = _parameters(target, [v.name for v in ports])
    sizes = _chosen(model)
    if names is None or sizes is None:
        return {}
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, port in zip(names, ports, strict=True):
        kind = port.type.tensor_type
        if kind.elem_type not in TORCH_OF:
            return {}
        shape = [_size(dim, sizes) for dim in kind.shape.dim]
        if any(n is None for n in shape):
            return {}
        found[name] = random_tensor(TORCH_OF[kind.elem_type], shape, None, generator)  # type: ignore[arg-type]
    return found


def _parameters(target: Any, given: Sequence[str]) -> list[str] | None:
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


def _chosen(model: Any) -> dict[str, int] | None:
    """Sizes by name, within their ranges, at which what the file says of them holds."""
    facts = of_model(model)
    ranges = {s.name: (s.least or 0, _MOST if s.most is None else s.most)
              for s in facts.sizes if s.name.isidentifier()}  # fmt: skip
    return next((some for some in _proposals(ranges) if _hold(facts.conditions, some)), None)


def _proposals(ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Small sizes that differ from each other, then any."""
    yield {
        name: min(max(least, 2) + i, most) for i, (name, (least, most)) in enumerate(ranges.items())
    }
    choice = random.Random(0)
    for reach in range(2, _TRIES):
        yield {name: choice.randint(least, min(most, least + reach))
               for name, (least, most) in ranges.items()}  # fmt: skip


def _hold(conditions: Sequence[str], sizes: Mapping[str, int]) -> bool:
    return all(_value(text, sizes) is not False for text in conditions)


def _size(dim: Any, sizes: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    value = _value(dim.dim_param, sizes) if dim.dim_param else 2
    return int(value) if value is not None and value >= 0 else None


def _value(text: str, sizes: Mapping[str, int]) -> Any:
    """What a text says at certain sizes; None if it cannot be told."""
    if text in sizes:
        return sizes[text]
    try:
        return evaluate(parse(text, Terms(), text), sizes)
    except (ExpressionError, ArithmeticError, KeyError):
        return 2 if not set(text) & set("*+-/%(),<>=!") else None
