"""Where modules made from a program have its state, and the attributes that they have anyway.

A model may have a parameter or a child named `graph`, which a `GraphModule` has a use of its own
for, or `class`, which generated code cannot name. There it becomes `graph_` and `class_`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from torch import nn
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

from graphport.program.identifiers import rename

CONSTANTS = "_graphport_constants"
"""Where a module says which of its buffers are constants of the program that it was made from."""

_OURS = (CONSTANTS, "_graphport_signature", "_in_spec", "_out_spec")


@functools.cache
def of_modules() -> frozenset[str]:
    """Those of any module."""
    return frozenset({*dir(nn.Module), *vars(nn.Module()), "forward"})


@functools.cache
def of_graphs() -> frozenset[str]:
    """Those of a module that runs a graph, also of one whose code is generated when needed."""
    bare = GraphModule(nn.Module(), Graph())
    names = {*dir(bare), *vars(bare), *dir(_LazyGraphModule)}
    return frozenset({*names, *of_modules(), *_OURS})


class Places:
    """Paths of attributes at which a module that runs a graph has what a program names."""

    def __init__(self, paths: Iterable[str]) -> None:
        parts = [path.split(".") for path in paths]
        self._first = rename((first for first, *_ in parts), of_graphs())
        self._below = rename(set().union(*(below for _, *below in parts)), of_modules())

    def __call__(self, path: str) -> str:
        if not self._first and not self._below:
            return path
        first, *below = path.split(".")
        return ".".join([self._first.get(first, first), *(self._below.get(p, p) for p in below)])
