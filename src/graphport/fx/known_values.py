"""Traced values that answer for their sizes, dtypes and types.

What is known of a value is the `val` of its node: an abstract tensor, or a number, size or dtype.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

UNKNOWN = object()


class Known(Proxy):
    """A traced value that answers for its size, dtype and type."""

    _is_param = False  # what torch asks of anything that says it is a tensor

    def __getattr__(self, k: str) -> Any:
        return KnownAttribute(self, k)

    def _known(self) -> Any:
        return self.node.meta.get("val", UNKNOWN)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` is answered by."""
        value = value_of(self)
        return type(self) if value is UNKNOWN else type(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __len__(self) -> int:
        return self.tracer.length(self)

    def __index__(self) -> int:
        return operator.index(self.tracer.number(self))

    def __int__(self) -> int:
        return int(self.tracer.number(self))

    def __float__(self) -> float:
        return float(self.tracer.number(self))

    def __hash__(self) -> int:
        return id(self)


class KnownAttribute(Known):
    """An attribute, which becomes a node when it is used: most are methods, to be called."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: Node | None = None

    def _known(self) -> Any:
        """Without becoming a node."""
        owner = value_of(self.root)
        return UNKNOWN if owner is UNKNOWN else getattr(owner, self.attr, UNKNOWN)

    @property
    def node(self) -> Node:
        if self._node is None:
            args = (self.root, self.attr)
            made = self.tracer.create_proxy("call_function", builtins.getattr, args, {})
            self._node = made.node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def value_of(x: Any) -> Any:
    if issubclass(type(x), Known):  # isinstance would ask what it is
        return x._known()
    if isinstance(x, slice):
        return slice(*map(value_of, (x.start, x.stop, x.step)))
    return x


class Involving(TorchFunctionMode):
    """Calls that take traced values are traced, also where the tensors are none: `table[:n]`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found: list[Known] = []
        map_aggregate((args, kwargs), lambda x: _note(x, found))
        if not found:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.__getitem__:
            return found[0].tracer.create_proxy("call_function", operator.getitem, args, {})
        return Proxy.__torch_function__(func, types, args, kwargs)


def _note(x: Any, found: list[Known]) -> Any:
    if issubclass(type(x), Known):
        found.append(x)
    return x
