"""What the user's code that is running calls the sizes and numbers of the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphport import source
from graphport.ops.tensor import AbstractTensor
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch
from graphport.symbolic.explain import Vocabulary

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def vocabulary() -> Vocabulary:
    """Numbers by the variable that holds them; then sizes of tensors that a variable holds."""
    frame = source.user_frame()
    variables = dict(frame.f_locals) if frame is not None else {}
    held = [*variables.items(), *_inside(variables)]
    found: dict[Expr, str] = {}
    for name, value in held:
        if isinstance(value, _NUMBERS):
            _note(found, from_torch(value), name)
    for name, value in held:
        if isinstance(value, AbstractTensor):
            for d, size in enumerate(value._abstract.sizes):
                _note(found, size, f"{name}.shape[{d}]")
    return Vocabulary(found, variables)


def _inside(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What lists, dicts and objects hold that a variable holds."""
    for name, value in variables.items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}[{k!r}]", x) for k, x in value.items())
        elif not isinstance(value, torch.Tensor):
            yield from ((f"{name}.{k}", x) for k, x in getattr(value, "__dict__", {}).items())


def _note(found: dict[Expr, str], e: object, text: str) -> None:
    if isinstance(e, Expr):
        found.setdefault(e, text)
