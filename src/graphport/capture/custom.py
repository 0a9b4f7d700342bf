"""Custom operators: their fake implementations may ask for sizes that only running can tell.

`torch.library.get_ctx().new_dynamic_size()` inside of a fake implementation gives a fresh symbol.
The graph obtains it from the operator's result: as a size of a tensor, or as a returned number.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._library.fake_impl import set_ctx_getter

from graphport import source
from graphport.capture.data_dependent import reader, size_of
from graphport.capture.tracer import FAKED, Tracer, pure, special
from graphport.ops import OpInfo
from graphport.symbolic import Expr, Scope
from graphport.symbolic.bridge import to_torch


class NewSizes:
    """What `torch.library.get_ctx()` returns while a program is captured."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.made: list[Expr] = []

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        if not isinstance(min, int) or not isinstance(max, (int, type(None))) or min < 0:
            raise ValueError(
                f"new_dynamic_size(min={min}, max={max}): limits are plain ints, and a size is "
                "never negative"
            )
        symbol = self._scope.fresh(
            lower=min, upper=math.inf if max is None else max, origin=source.spot()
        )
        self.made.append(symbol)
        return to_torch(symbol)

    create_unbacked_symint = new_dynamic_size


@special(FAKED)
def custom(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """A custom operator that is described by its fake implementation."""
    sizes = NewSizes(tracer.scope)
    # The line to name is where the operator is called, not where its sizes are made up.
    where = source.spot()
    with set_ctx_getter(lambda: sizes):
        result = pure(tracer, info, args, kwargs)
    for symbol in sizes.made:
        tracer.scope.origins[symbol] = where
        for part in result if isinstance(result, (list, tuple)) else [result]:
            found = isinstance(part, torch.Tensor) and tracer.value(part)
            if found and symbol in found.abstract.sizes:
                dim = found.abstract.sizes.index(symbol)
                tracer.scope.origins[symbol] = size_of(where, dim)
                tracer.recorder.define(symbol, reader(tracer, found.node, dim, symbol))
    return result
