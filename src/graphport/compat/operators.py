"""`aten`, `prims` and `higher_order` of every tested torch: what this one lacks is a `Missing`.

So a rule or lowering names the operators of all versions, and is absent where its operator is. A
name that no tested version has is an AttributeError, as in torch.ops.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from graphport.compat import schemas
from graphport.errors import UnsupportedError


class Missing:
    """An operator that another version of torch has, or all of one name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> Missing:
        name = f"{self._name}.{overload}".removesuffix(".default")
        if overload.startswith("__") or not schemas.is_recorded(name):
            raise AttributeError(f"no tested version of torch has {name}")
        return self.__dict__.setdefault(overload, Missing(name))

    def __repr__(self) -> str:
        return f"<{self._name}, which torch {torch.__version__} lacks>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(f"torch {torch.__version__} has no operator {self._name}")


class _Packet:
    """The operators of one name, some of which a newer torch has lost."""

    def __init__(self, packet: Any, missing: Missing) -> None:
        self._packet = packet
        self._missing = missing

    def __getattr__(self, overload: str) -> Any:
        return getattr(self._packet, overload, None) or getattr(self._missing, overload)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._packet(*args, **kwargs)


class _Namespace:
    """Operators by name, as in torch.ops; each is looked up once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._operators = getattr(torch.ops, name)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._operators, name, None)
        qualified = f"{self._name}::{name}"
        if found is None:
            if name.startswith("__") or not schemas.is_recorded(qualified):
                raise AttributeError(f"no tested version of torch has {qualified}")
            found = Missing(qualified)
        elif schemas.IS_NEWER and qualified in schemas.list_curtailed():
            found = _Packet(found, Missing(qualified))
        setattr(self, name, found)
        return found


aten: Any = _Namespace("aten")
prims: Any = _Namespace("prims")
higher_order: Any = _Namespace("higher_order")


def is_here(op: object) -> bool:
    """Whether this torch has an operator of these namespaces."""
    return not isinstance(op, Missing)
