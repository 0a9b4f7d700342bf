"""Takes a snapshot of the user's objects before capture, and restores it after.

`forward` may reassign attributes, append to lists or fill dicts. All of it happens to the real
objects while their code runs, so attribute dicts and the plain containers in them are copied
(shallowly, each) and restored in place: those of modules, and of the user's own objects that
modules hold. The random state, the grad mode, the default dtype and `requires_grad` flags are kept
too. Tensor data is not: the tracer never writes to it.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")

_CONTAINERS = (dict, list, set, deque)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Not of the user's making, but all that is in them is."""
_NON_USER_PACKAGES = frozenset(sys.stdlib_module_names) | {"torch", "numpy"}


class Snapshot:
    """What an object holds: its attributes, and those of everything it is made of."""

    def __init__(self, root: object) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        self._requires_grad: list[tuple[torch.Tensor, bool]] = []
        self._random = torch.get_rng_state()
        self._drawn = self._random
        self._grad_mode = torch.is_grad_enabled()
        self._default_dtype = torch.get_default_dtype()
        self._save(root)

    def _save(self, root: Any) -> None:
        saved = self._saved
        waiting = [root]
        while waiting:
            value = waiting.pop()
            kind = type(value)  # not isinstance, which asks an object for its `__class__`
            if issubclass(kind, torch.Tensor):
                self._requires_grad.append((value, value.requires_grad))
                continue
            if issubclass(kind, tuple):
                waiting.extend(tuple.__iter__(value))
                continue
            container = value if issubclass(kind, _CONTAINERS) else attribute_dict(value)
            if container is None or id(container) in saved:
                continue
            if not _length(container):  # most are: a module has a dozen dicts for hooks
                saved[id(container)] = (container, ())
                continue
            saved[id(container)] = (container, _copy_container(container))
            waiting.extend(v for v in iterate_items(container) if type(v) not in _PLAIN)

    def renew(self, module: nn.Module) -> None:
        """Take a lazy module as it is now: its parameters have taken shape, for good."""
        for container in (vars(module), *vars(module).values()):
            self._saved.pop(id(container), None)
        self._save(module)

    def before(self, container: dict[str, Any]) -> dict[str, Any]:
        """The contents that a dict had; nothing is known of the registries of TorchScript."""
        return dict(self._saved.get(id(container), (container, ()))[1])

    def find_changed(self) -> list[tuple[Any, Any]]:
        """Containers that do not hold what they did, each with what it held."""
        return [(now, then) for now, then in self._saved.values() if not _holds_same(now, then)]

    def watch_seeds(self) -> None:
        """Let to seed make a difference, also as the caller did before."""
        torch.rand(1, device="cpu")
        self._drawn = torch.get_rng_state()

    def has_seeded(self) -> bool:
        """Whether torch's random numbers were seeded: nothing that is captured draws any."""
        return not torch.equal(torch.get_rng_state(), self._drawn)

    def restore(self) -> None:
        for container, saved in self._saved.values():
            if not _holds_same(container, saved):
                _refill(container, saved)
        for tensor, flag in self._requires_grad:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)
        torch.set_rng_state(self._random)
        torch.set_grad_enabled(self._grad_mode)
        torch.set_default_dtype(self._default_dtype)


def list_holders(target: object) -> tuple[object, ...]:
    """What the code of a callable belongs to: its object, and objects that it closes over."""
    if isinstance(target, functools.partial):
        return (*list_holders(target.func), *target.args, *target.keywords.values())
    if isinstance(target, types.MethodType):
        return (target.__self__, *list_holders(target.__func__))
    if isinstance(target, types.FunctionType):
        try:
            outside = inspect.getclosurevars(target)
        except ValueError:  # a variable of the enclosing function that has no value yet
            return ()
        # A list that a function closes over is how its author looks inside: it keeps what it gets.
        names = (*outside.nonlocals.values(), *outside.globals.values())
        return tuple(v for v in names if not issubclass(type(v), _CONTAINERS))
    return (target,)


def attribute_dict(value: object) -> dict[str, Any] | None:
    """The attribute dict of a module or of an object of the user's own class."""
    kind = type(value)
    if issubclass(kind, type) or not (issubclass(kind, nn.Module) or _is_user_class(kind)):
        return None
    try:
        own = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001  there is none, or a property of the user's in its place
        return None
    return own if type(own) is dict else None


def _cache_by_class(fn: Callable[[type], T]) -> Callable[[type], T]:
    return functools.lru_cache(maxsize=4096)(fn)


@_cache_by_class
def _is_user_class(kind: type) -> bool:
    return kind in _NAMESPACES or kind.__module__.partition(".")[0] not in _NON_USER_PACKAGES


# The methods of the built-in classes: subclasses may check or convert what is put into them, and
# may refuse to say what is in them, or how much.


@_cache_by_class
def _builtin_base(kind: type) -> Any:
    return next(base for base in (OrderedDict, *_CONTAINERS, tuple) if issubclass(kind, base))


def _length(container: object) -> int:
    return _builtin_base(type(container)).__len__(container)


def iterate_items(container: object) -> Iterable[Any]:
    """What a container holds: the values of a dict."""
    base = _builtin_base(type(container))
    return base.values(container) if issubclass(base, dict) else base.__iter__(container)


def _copy_container(container: object) -> object:
    base = _builtin_base(type(container))
    return base(base.items(container) if issubclass(base, dict) else base.__iter__(container))


def _refill(container: object, saved: object) -> None:
    base = _builtin_base(type(container))
    base.clear(container)
    if issubclass(base, (dict, set)):
        base.update(container, saved)
    else:
        base.extend(container, saved)


def _holds_same(a: Any, b: Any) -> bool:
    """Equal by identity of what they hold; tensors must not be compared by value."""
    base = _builtin_base(type(a))
    if base.__len__(a) != len(b):
        return False
    if not len(b):
        return True
    if issubclass(base, set):
        return set(map(id, set.__iter__(a))) == set(map(id, b))
    if issubclass(base, dict) and not all(map(operator.is_, base.__iter__(a), b)):
        return False
    return all(map(operator.is_, iterate_items(a), iterate_items(b)))
