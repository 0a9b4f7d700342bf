"""Finds the modules, parameters and buffers below a module, in its registries.

Not through `named_modules`, `named_parameters` or `state_dict`: classes override them, hooks of the
user's run in them and may change the model, and of a module that contains itself they never end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from graphport import source
from graphport.errors import InputError


def require_initialised(root: nn.Module) -> None:
    """Refuse modules that have no registries."""
    waiting = [root]
    seen = set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if not {"_modules", "_parameters", "_buffers"} <= vars(module).keys():
            if not isinstance(module, torch.jit.ScriptModule):
                raise InputError(
                    f"{type(module).__name__} was made without nn.Module.__init__",
                    where=source.locate_function(type(module).__init__),
                    fix="call super().__init__() first in __init__",
                )
        waiting.extend(m for m in module._modules.values() if m is not None)


def named_modules(root: nn.Module | None) -> Iterator[tuple[str, nn.Module]]:
    """Each module under its first path."""
    seen: set[int] = set()
    waiting = [] if root is None else [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            waiting.extend(reversed(list(_children(path, module))))


def all_paths(root: nn.Module | None) -> Iterator[tuple[str, nn.Module]]:
    """Each module under all of its paths, but for those that lead through it."""
    waiting: list[tuple[str, nn.Module, frozenset[int]]]
    waiting = [] if root is None else [("", root, frozenset())]
    while waiting:
        path, module, above = waiting.pop()
        if id(module) in above:
            continue
        yield path, module
        within = above | {id(module)}
        below = list(_children(path, module))
        waiting.extend((name, child, within) for name, child in reversed(below))


def _children(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module._modules.items():
        if child is not None:
            yield join_path(path, name), child


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def named_parameters(root: nn.Module | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Under all of their names."""
    for path, module in all_paths(root):
        yield from _iterate_registry(path, module._parameters)


def named_buffers(root: nn.Module | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Under all of their names."""
    for path, module in all_paths(root):
        yield from _iterate_registry(path, module._buffers)


def state_dict(root: nn.Module | None) -> dict[str, Any]:
    """The parameters and persistent buffers, in the order of `nn.Module.state_dict`."""
    found: dict[str, Any] = {}
    for path, module in all_paths(root):
        found.update(_iterate_registry(path, module._parameters))
        hidden = {join_path(path, name) for name in module._non_persistent_buffers_set}
        found.update((k, b) for k, b in _iterate_registry(path, module._buffers) if k not in hidden)
    return found


def _iterate_registry(path: str, registry: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, t in registry.items():
        if t is not None:
            yield join_path(path, name), t
