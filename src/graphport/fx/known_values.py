"""Traced values that answer for their sizes, dtypes and types.

What is known of a value is the `val` of its node: an abstract tensor, or a number, size or dtype.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodDescriptorType
from typing import Any

import torch
from torch import nn
from torch.fx import Node, Proxy
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from graphport.process import Patch, Replacement

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
        create = found[0].tracer.create_proxy
        if func is torch.Tensor.__getitem__:
            return create("call_function", operator.getitem, args, {})
        if isinstance(getattr(func, "__wrapped__", func), MethodDescriptorType):
            return create("call_method", func.__name__, args, kwargs or {})
        return Proxy.__torch_function__(func, types, args, kwargs)


_SIZED = ("expand", "new_empty", "new_ones", "new_zeros", "resize_")


def _sizes_as_one() -> Iterator[Replacement]:
    """Let these methods of plain tensors take sizes one by one, the first of them a traced one.

    Their bindings take that for the list of all, and the rest for too many arguments, before
    anything else hears of the call.
    """
    is_tensor_method_or_property(torch.Tensor.expand)  # torch remembers what is one from now on
    for name in _SIZED:
        yield torch.Tensor, name, _taking_sizes(getattr(torch.Tensor, name))
    # torch's own tracer replaces these two; put back with the others, whatever comes between.
    yield nn.Module, "__call__", nn.Module.__call__
    yield nn.Module, "__getattr__", nn.Module.__getattr__


SIZES_AS_ONE = Patch(_sizes_as_one)


def _taking_sizes(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def taking(self: torch.Tensor, *sizes: Any, **kwargs: Any) -> Any:
        if len(sizes) > 1 and issubclass(type(sizes[0]), Known):
            return method(self, sizes, **kwargs)
        return method(self, *sizes, **kwargs)

    return taking


def _note(x: Any, found: list[Known]) -> Any:
    if issubclass(type(x), Known):
        found.append(x)
    return x
