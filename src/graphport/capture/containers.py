"""Dataclasses as containers of inputs and outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.utils import _pytree as pytree

from graphport.arguments import NONE, TEXT, shown, takes
from graphport.errors import InputError

Context = list[list[str]]


@takes(serialized_type_name=TEXT | NONE)
def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Let a dataclass hold inputs or outputs. Fields that are None are part of the structure.

    >>> import dataclasses, torch, graphport as gp
    >>> @dataclasses.dataclass
    ... class Pair:
    ...     a: torch.Tensor
    ...     b: torch.Tensor | None = None
    >>> gp.register_dataclass(Pair)
    >>> ep = gp.export(lambda p: p.a + 1, (Pair(torch.zeros(2)),))
    >>> ep.module()(Pair(torch.ones(2)))
    tensor([2., 2.])
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise InputError(f"cls is a dataclass, got {shown(cls)}")
    if cls in pytree.SUPPORTED_NODES:
        raise InputError(f"the class {cls.__qualname__} is registered already")

    def split(value: Any) -> tuple[list[str], list[str]]:
        """Names of the fields that are leaves, and of those that are None."""
        names = [f.name for f in dataclasses.fields(cls)]
        present = [n for n in names if getattr(value, n) is not None]
        return present, [n for n in names if n not in present]

    def flatten(value: Any) -> tuple[list[Any], Context]:
        present, absent = split(value)
        return [getattr(value, n) for n in present], [present, absent]

    def flatten_with_keys(value: Any) -> tuple[list[Any], Context]:
        children, context = flatten(value)
        keys = [pytree.GetAttrKey(n) for n in context[0]]
        return list(zip(keys, children, strict=True)), context

    def unflatten(children: Any, context: Context) -> Any:
        present, absent = context
        return cls(**dict(zip(present, children, strict=True)), **dict.fromkeys(absent))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_type_name or f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
