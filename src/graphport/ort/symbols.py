"""Sizes of torch's fake tensors, which are symbols of its shape environment, as symbols of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.capture.spec import Declare
from graphport.errors import ShapeError, UnsupportedError
from graphport.program.torch_interop.expressions import FromSympy, bound, values_of
from graphport.symbolic import Expr, Range, Scope

_SYMBOLIC = (torch.SymInt, torch.SymFloat)


class TorchSizes:
    """What torch knows of the inputs of a graph, in place of `dynamic_shapes`.

    torch has checked its conditions on the sizes when the graph is called: they hold.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self._symbols: dict[Any, Expr] = {}

    def leaves(self, declare: Declare, scope: Scope) -> list[tuple[Any, ...] | Expr | None]:
        self._symbols = {}
        env = next((e for v in self.values if (e := _environment(v)) is not None), None)

        def symbol(s: Any) -> Expr:
            if s not in self._symbols:
                self._symbols[s] = _declared(s, env, declare)
            return self._symbols[s]

        expr = FromSympy(symbol)

        def number(x: Any) -> Any:
            return expr(x.node.expr) if isinstance(x, _SYMBOLIC) else x

        found: list[tuple[Any, ...] | Expr | None] = []
        for value in self.values:
            if isinstance(value, torch.Tensor):
                found.append(tuple(map(number, value.shape)))
            else:
                told = number(value)
                found.append(told if isinstance(told, Expr) else None)
        for guard in getattr(env, "guards", ()):
            if guard.expr.free_symbols <= self._symbols.keys():
                _state(guard.expr, expr, scope)
        return found


def _environment(value: Any) -> Any:
    """The shape environment that a value has symbols of."""
    parts = value.shape if isinstance(value, torch.Tensor) else (value,)
    return next((x.node.shape_env for x in parts if isinstance(x, _SYMBOLIC)), None)


def _declared(symbol: Any, env: Any, declare: Declare) -> Expr:
    hint = values_of(env).get(symbol)
    if hint is None:
        raise UnsupportedError(f"{symbol}, a size that depends on data, comes from outside")
    if not hint.is_number:
        raise UnsupportedError(f"{symbol}, a size that differs from row to row, is no number")
    is_float = str(symbol).startswith("z")
    value = float(hint) if is_float else int(hint)
    known = env.var_to_range.get(symbol)
    limits = Range(bound(known.lower), bound(known.upper)) if known is not None else None
    if limits is None or value not in limits:
        limits = Range(float("-inf"), float("inf"))
    return declare(str(symbol), value, limits)


def _state(condition: Any, expr: FromSympy, scope: Scope) -> None:
    """Tell the scope, if it is something that can be said there."""
    try:
        told = expr(condition)
        if isinstance(told, Expr):
            scope.assume(told, reason="checked by torch.compile")
    except (UnsupportedError, ShapeError):
        return
