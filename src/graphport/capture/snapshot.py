"""The user's objects as they were: taken before capture, put back after it.

`forward` may reassign attributes, append to lists or fill dicts. All of it happens to the real
objects while their code runs, so attribute dicts and the plain containers in them are copied
(shallowly, each) and restored in place: those of modules, and of the user's own objects that
modules hold. The random state, the grad mode and `requires_grad` flags are kept too. Tensor data is
not: the tracer never writes to it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, set, deque)
_FOREIGN = frozenset(sys.stdlib_module_names) | {"torch", "numpy"}


class Snapshot:
    """What an object holds: its attributes, and those of everything it is made of."""

    def __init__(self, root: Any) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        self._requires_grad: list[tuple[torch.Tensor, bool]] = []
        self._random = torch.get_rng_state()
        self._grad_mode = torch.is_grad_enabled()
        self._save(root)

    def _save(self, root: Any) -> None:
        waiting = [root]
        while waiting:
            value = waiting.pop()
            if isinstance(value, torch.Tensor):
                self._requires_grad.append((value, value.requires_grad))
                continue
            if isinstance(value, tuple):
                waiting.extend(value)
                continue
            container = value if isinstance(value, _CONTAINERS) else _attributes(value)
            if container is None or id(container) in self._saved:
                continue
            self._saved[id(container)] = (container, _copied(container))
            waiting.extend(container.values() if isinstance(container, dict) else container)

    def renew(self, module: nn.Module) -> None:
        """Take a lazy module as it is now: its parameters have taken shape, for good."""
        for container in (vars(module), *vars(module).values()):
            self._saved.pop(id(container), None)
        self._save(module)

    def before(self, container: Any) -> Any:
        """The contents that a container had."""
        return self._saved[id(container)][1]

    def restore(self) -> None:
        for container, saved in self._saved.values():
            if not _same(container, saved):
                _refill(container, saved)
        for tensor, flag in self._requires_grad:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)
        torch.set_rng_state(self._random)
        torch.set_grad_enabled(self._grad_mode)


def holders(target: Any) -> tuple[Any, ...]:
    """What the code of a callable belongs to: its object, and objects that it closes over."""
    if isinstance(target, functools.partial):
        return (*holders(target.func), *target.args, *target.keywords.values())
    if isinstance(target, types.MethodType):
        return (target.__self__, *holders(target.__func__))
    if isinstance(target, types.FunctionType):
        try:
            outside = inspect.getclosurevars(target)
        except ValueError:  # a variable of the enclosing function that has no value yet
            return ()
        # A list that a function closes over is how its author looks inside: it keeps what it gets.
        names = (*outside.nonlocals.values(), *outside.globals.values())
        return tuple(v for v in names if not isinstance(v, _CONTAINERS))
    return (target,)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attribute dict of a module or of an object of the user's own class."""
    if isinstance(value, nn.Module):
        return vars(value)
    kind = type(value)
    if isinstance(value, type) or kind.__module__.partition(".")[0] in _FOREIGN:
        return None
    own = getattr(value, "__dict__", None)
    return own if type(own) is dict else None


# The methods of the built-in classes: subclasses may check or convert what is put into them.


def _base(container: Any) -> Any:
    kinds = (OrderedDict, *_CONTAINERS)
    return next(kind for kind in kinds if isinstance(container, kind))


def _copied(container: Any) -> Any:
    return _base(container)(container.items() if isinstance(container, dict) else container)


def _refill(container: Any, saved: Any) -> None:
    base = _base(container)
    base.clear(container)
    if issubclass(base, (dict, set)):
        base.update(container, saved)
    else:
        base.extend(container, saved)


def _same(a: Any, b: Any) -> bool:
    """Equal by identity of what they hold; tensors must not be compared by value."""
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(
            k is other and v is w
            for (k, v), (other, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, set):
        return {id(x) for x in a} == {id(x) for x in b}
    return all(x is y for x, y in zip(a, b, strict=True))
