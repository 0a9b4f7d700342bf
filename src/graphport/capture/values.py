"""Abstract tensors, and what capture remembers of each: its storage, its node, how it was viewed.

`AbstractTensor` is what the user's code holds during capture. It is a real torch.Tensor with sizes,
strides, dtype and device but without data. Its `Value` says which node of the graph computes it.

Every storage has one base value and a version. A view remembers its parent and the operator that
made it. Writing through a view writes a new base and raises the version; a value whose version is
behind is remade from its parent when it is next read. So the graph never mutates anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from graphport.ops import Abstract
from graphport.symbolic.bridge import to_torch


class Storage:
    """Memory that several values may share."""

    __slots__ = ("base", "doubts", "mutated", "origin", "version")

    def __init__(self, base: Value, origin: Any = None) -> None:
        self.base = base
        self.version = 0
        self.origin = origin
        """The placeholder that the storage came from: inputs and module state."""
        self.mutated = False
        self.doubts: tuple[Any, ...] = ()
        """Other storages that may be this one at some sizes; see `aliasing`."""


class Value:
    """The current meaning of a tensor that the user holds."""

    __slots__ = (
        "abstract", "args", "constant", "node", "number", "op", "parent", "storage", "version",
    )  # fmt: skip

    def __init__(self, abstract: Abstract, node: Node, origin: Any = None) -> None:
        self.abstract = abstract
        self.node = node
        self.version = 0
        self.storage = Storage(self, origin)
        self.parent: Value | None = None
        self.op: OpOverload | None = None
        self.args: tuple[Any, ...] = ()
        self.constant: torch.Tensor | None = None
        """The data, when it is a literal of the program."""
        self.number: Any = None
        """The value as an expression, when it is an integer scalar made from sizes."""

    @classmethod
    def view(
        cls, parent: Value, abstract: Abstract, node: Node, op: OpOverload, args: tuple[Any, ...]
    ) -> Value:
        value = cls.__new__(cls)
        value.abstract = abstract
        value.node = node
        value.storage = parent.storage
        value.version = parent.storage.version
        value.parent = parent
        value.op = op
        value.args = args
        value.constant = None
        value.number = None
        return value

    @property
    def literal(self) -> torch.Tensor | None:
        """The data, unless something has been written over it since."""
        return self.constant if self.version == self.storage.version else None


class AbstractTensor(torch.Tensor):
    """A tensor without data. See the module."""

    _abstract: Abstract
    _value: Value | None = None
    _node: Node | None = None
    """The node whose metadata this very tensor is."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{op} was called on an abstract tensor outside of capture")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"AbstractTensor({self._abstract!r})"

    def __format__(self, spec: str) -> str:
        """Text of the user's own: there is no number to format, and no reason to fail for it."""
        return repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> AbstractTensor:
        return abstract_tensor(self._abstract, self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an abstract tensor has no data to pickle")


_wrapper = torch.Tensor._make_wrapper_subclass


def abstract_tensor(abstract: Abstract, requires_grad: bool = False) -> AbstractTensor:
    """A tensor for the user to hold, or for a node's metadata."""
    sizes = abstract.sizes
    offset = abstract.offset
    plain = type(offset) is int and offset == 0
    strides = abstract._strides if plain else abstract.strides
    for s in sizes:
        if type(s) is not int:
            sizes = [to_torch(s) for s in sizes]
            strides = [to_torch(s) for s in abstract.strides]
            break
    else:
        if strides is not None:
            strides = [to_torch(s) for s in strides]
    t = _wrapper(
        AbstractTensor, sizes, strides=strides, dtype=abstract.dtype, device=abstract.device,
        requires_grad=requires_grad, storage_size=0,
        storage_offset=None if plain else to_torch(offset),
    )  # fmt: skip
    # storage_size: or C++ works out the number of bytes, through a dozen calls on symbolic sizes.
    t._abstract = abstract
    return t
