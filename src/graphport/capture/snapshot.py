"""The user's modules as they were: taken before capture, put back after it.

`forward` may reassign attributes, append to lists or fill dicts. All of it happens to the real
module while its code runs, so the attribute dicts and the plain containers in them are copied
(shallowly, each) and restored in place.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import nn

_CONTAINERS = (dict, list, set)


class Snapshot:
    """The attributes of a module and its submodules."""

    def __init__(self, root: nn.Module | None) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        if root is not None:
            for module in root.modules():
                self._save(vars(module))

    def _save(self, container: Any) -> None:
        self._saved[id(container)] = (container, container.copy())
        for value in container.values() if isinstance(container, dict) else container:
            if isinstance(value, _CONTAINERS) and id(value) not in self._saved:
                self._save(value)

    def renew(self, module: nn.Module) -> None:
        """Take a lazy module as it is now: its parameters have taken shape, for good."""
        for container in (vars(module), *vars(module).values()):
            if isinstance(container, _CONTAINERS):
                self._saved.pop(id(container), None)
        self._save(vars(module))

    def before(self, container: Any) -> Any:
        """The contents that a container had."""
        return self._saved[id(container)][1]

    def restore(self) -> None:
        for container, saved in self._saved.values():
            if len(container) == len(saved) and (not saved or _same(container, saved)):
                continue
            if isinstance(container, list):
                container[:] = saved
            else:
                container.clear()
                container.update(saved)


def _same(a: Any, b: Any) -> bool:
    """Equal by identity of what they hold; tensors must not be compared by value."""
    if isinstance(a, dict):
        return all(map(operator.is_, a, b)) and all(map(operator.is_, a.values(), b.values()))
    return all(map(operator.is_, a, b))
