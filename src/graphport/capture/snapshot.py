"""The user's objects as they were: taken before capture, put back after it.

`forward` may reassign attributes, append to lists or fill dicts. All of it happens to the real
objects while their code runs, so attribute dicts and the plain containers in them are copied
(shallowly, each) and restored in place: those of modules, and of the user's own objects that
modules hold. The random state, the grad mode and `requires_grad` flags are kept too. Tensor data is
not: the tracer never writes to it.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import operator
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, set, deque)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Not of the user's making, but all that is in them is."""
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
        saved = self._saved
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
            if container is None or id(container) in saved:
                continue
            if not container:  # most are: a module has a dozen dicts for hooks
                saved[id(container)] = (container, ())
                continue
            saved[id(container)] = (container, _copied(container))
            found = container.values() if isinstance(container, dict) else container
            waiting.extend(v for v in found if type(v) not in _PLAIN)

    def renew(self, module: nn.Module) -> None:
        """Take a lazy module as it is now: its parameters have taken shape, for good."""
        for container in (vars(module), *vars(module).values()):
            self._saved.pop(id(container), None)
        self._save(module)

    def before(self, container: dict[str, Any]) -> dict[str, Any]:
        """The contents that a dict had."""
        return dict(self._saved[id(container)][1])

    def changed(self) -> list[tuple[Any, Any]]:
        """Containers that do not hold what they did, each with what it held."""
        return [(now, then) for now, then in self._saved.values() if not _same(now, then)]

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
    if isinstance(value, type) or not _is_the_users(type(value)):
        return None
    own = getattr(value, "__dict__", None)
    return own if type(own) is dict else None


@functools.lru_cache(maxsize=4096)
def _is_the_users(kind: type) -> bool:
    return kind in _NAMESPACES or kind.__module__.partition(".")[0] not in _FOREIGN


# The methods of the built-in classes: subclasses may check or convert what is put into them.


@functools.lru_cache(maxsize=4096)
def _base(kind: type) -> Any:
    return next(base for base in (OrderedDict, *_CONTAINERS) if issubclass(kind, base))


def _copied(container: Any) -> Any:
    base = _base(type(container))
    return base(container.items() if isinstance(container, dict) else container)


def _refill(container: Any, saved: Any) -> None:
    base = _base(type(container))
    base.clear(container)
    if issubclass(base, (dict, set)):
        base.update(container, saved)
    else:
        base.extend(container, saved)


def _same(a: Any, b: Any) -> bool:
    """Equal by identity of what they hold; tensors must not be compared by value."""
    if len(a) != len(b):
        return False
    if not a:
        return True
    if isinstance(a, dict):
        return all(map(operator.is_, a, b)) and all(map(operator.is_, a.values(), b.values()))
    if isinstance(a, set):
        return set(map(id, a)) == set(map(id, b))
    return all(map(operator.is_, a, b))
