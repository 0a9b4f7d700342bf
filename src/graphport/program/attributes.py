"""Attributes that modules made from a program have by themselves: no tensor can be stored there.

A model may have a parameter or a child named `graph`, which a `GraphModule` has a use of its own
for. There it becomes `graph_`.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable

from torch import nn
from torch.fx import Graph, GraphModule

CONSTANTS = "_graphport_constants"
"""Where a module says which of its buffers are constants of the program that it was made from."""

_OURS = (CONSTANTS, "_graphport_signature", "_in_spec", "_out_spec")


@functools.cache
def of_modules() -> frozenset[str]:
    """Those of any module."""
    return frozenset({*dir(nn.Module), *vars(nn.Module()), "forward"})


@functools.cache
def of_graphs() -> frozenset[str]:
    """Those of a module that runs a graph."""
    bare = GraphModule(nn.Module(), Graph())
    return frozenset({*dir(bare), *vars(bare), *of_modules(), *_OURS})


def renamed(parts: Iterable[str], taken: Container[str]) -> dict[str, str]:
    """Other names for those that are taken."""
    wanted = set(parts)
    found: dict[str, str] = {}
    for part in sorted(wanted):
        if part in taken:
            name = f"{part}_"
            while name in taken or name in wanted:
                name += "_"
            found[part] = name
    return found
