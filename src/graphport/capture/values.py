"""What capture remembers of an abstract tensor: its storage, its node, how it was viewed.

The user's code holds an `AbstractTensor`; its `Value` says which node of the graph computes it.

Every storage has one base value and a version. A view remembers its parent and the operator that
made it. Writing through a view writes a new base and raises the version; a value whose version is
behind is remade from its parent when it is next read. So the graph never mutates anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from graphport.ops import Abstract


class Storage:
    """Memory that several values may share."""

    __slots__ = ("base", "doubts", "inside", "mutated", "origin", "room", "unsure", "version")

    def __init__(self, base: Value, origin: Any = None) -> None:
        self.base = base
        self.version = 0
        self.origin = origin
        """The placeholder that the storage came from: inputs and module state."""
        self.mutated = False
        self.inside = False
        """Whether the tensor from outside is only part of its memory, and does not begin it."""
        self.room: int | None = None
        """How many elements there are from where the tensor from outside begins, in the example."""
        self.doubts: tuple[Any, ...] = ()
        """Other storages that may be this one at some sizes; see `aliasing`."""
        self.unsure: tuple[Value, ...] = ()
        """Views that another layout makes copies, and that were written through since."""


class Value:
    """The current meaning of a tensor that the user holds."""

    __slots__ = (
        "abstract", "args", "constant", "node", "number", "op", "parent", "storage", "version",
        "viewed",
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
        self.viewed: Node | None = None
        """Of a view that is a copy where its parent has another layout: the node that it viewed."""

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
        value.viewed = None
        return value

    def ancestry(self) -> Iterator[Value]:
        """The value, what it is a view of, and so on to the base."""
        value: Value | None = self
        while value is not None:
            yield value
            value = value.parent

    @property
    def literal(self) -> torch.Tensor | None:
        """The data, unless something has been written over it since."""
        return self.constant if self.version == self.storage.version else None
