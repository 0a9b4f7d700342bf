"""What unnamed dims turned out to be, told to every node that was recorded before it was known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph

from graphport.ops import Abstract
from graphport.ops.tensor import AbstractTensor, abstract_tensor
from graphport.symbolic import Expr, Size, substitute
from graphport.symbolic.bridge import from_torch, to_torch

Forms = Mapping[Expr, Size]


def retell(graph: Graph, forms: Forms) -> None:
    """Write the metadata of a graph without the symbols that `forms` replaces."""
    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _told(node.meta["val"], forms)


def _told(val: Any, forms: Forms) -> Any:
    if isinstance(val, AbstractTensor):
        old = val._abstract
        new = Abstract(
            _each(old.sizes, forms), old.dtype, old.device,
            None if old._strides is None else _each(old._strides, forms),
            substitute(old.offset, forms),
        )  # fmt: skip
        unchanged = (new.sizes, new._strides, new.offset) == (old.sizes, old._strides, old.offset)
        return val if unchanged else abstract_tensor(new, val.requires_grad)
    if isinstance(val, tuple):
        return tuple(_told(v, forms) for v in val)
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return to_torch(substitute(from_torch(val), forms))
    return val


def _each(sizes: tuple[Size, ...], forms: Forms) -> tuple[Size, ...]:
    return tuple(s if type(s) is int else substitute(s, forms) for s in sizes)
