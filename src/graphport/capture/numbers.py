"""0-d integer tensors whose value is a size: `torch.tensor(x.shape[0]) // 2`.

Such a tensor holds no data that capture would not know. Its value is followed as an expression
through plain arithmetic, so that `.item()`, and a slice written with it, give the size back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from graphport.ops.sizes import known
from graphport.symbolic import Expr, ge, max_, min_

aten = torch.ops.aten


def _truncated(a: Any, b: Any) -> Any:
    """Division towards zero, where that is the floor."""
    positive = known(ge(a, 0)) and known(ge(b, 1))
    return a // b if positive else None


_ARITHMETIC: dict[OpOverload, Callable[..., Any]] = {
    aten.add.Tensor: operator.add, aten.add.Scalar: operator.add, aten.sub.Tensor: operator.sub,
    aten.sub.Scalar: operator.sub, aten.mul.Tensor: operator.mul, aten.mul.Scalar: operator.mul,
    aten.rsub.Scalar: lambda a, b: b - a, aten.rsub.Tensor: lambda a, b: b - a,
    aten.neg.default: operator.neg, aten.floor_divide.default: operator.floordiv,
    aten.maximum.default: max_, aten.minimum.default: min_, aten.clone.default: lambda a: a,
    aten._to_copy.default: lambda a: a, aten.scalar_tensor.default: lambda a: a,
}  # fmt: skip
_DIVISION = {"floor": operator.floordiv, "trunc": _truncated}
_HARMLESS = ("dtype", "device", "layout", "pin_memory", "memory_format")


def number(op: OpOverload, operands: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value of an integer scalar made by `op`, when it follows from those of its operands.

    Operands are Python numbers, expressions, or None for a tensor of unknown value.
    """
    if op is aten.div.Tensor_mode:
        fn = _DIVISION.get(kwargs.get("rounding_mode"))
    elif all(k in _HARMLESS for k in kwargs):
        fn = _ARITHMETIC.get(op)
    else:
        fn = None
    if fn is None or not all(_is_integer(x) for x in operands):
        return None
    if fn in (operator.floordiv, _truncated) and not isinstance(operands[1], Expr):
        if operands[1] == 0:
            return None
    return fn(*operands)


def _is_integer(x: Any) -> bool:
    return x.type is int if isinstance(x, Expr) else type(x) is int
