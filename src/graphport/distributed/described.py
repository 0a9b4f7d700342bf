"""What the metadata of a node says of its value, in our own terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from graphport.symbolic import Expr, symbols
from graphport.symbolic.bridge import from_torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def expression(x: Any) -> Any:
    """A symbolic number of torch as our expression; anything else as it is."""
    return from_torch(x) if isinstance(x, _SYMBOLIC) else x


def shape_of(node: Node) -> tuple[Any, ...] | None:
    """The sizes of a tensor: numbers and expressions; None for what is no tensor."""
    val = node.meta.get("val")
    return tuple(map(expression, val.shape)) if isinstance(val, torch.Tensor) else None


def numbers_of(node: Node) -> Iterator[Any]:
    """The sizes of the tensors that a node gives, and the numbers."""
    val = node.meta.get("val")
    for part in val if isinstance(val, (tuple, list)) else (val,):
        if isinstance(part, torch.Tensor):
            yield from map(expression, part.shape)
        else:
            yield expression(part)


def symbols_of(node: Node) -> set[Expr]:
    return {s for e in numbers_of(node) if isinstance(e, Expr) for s in symbols(e)}
