"""Reads the `ShapesSpec` of newer versions of torch as a dict by argument name.

Its variables are dims of ours, one for each object: names may repeat. Dims that are not linear in
one variable, and assumptions, are refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from graphport.capture.spec.inputs import Inputs, Variadic
from graphport.compat.torch import is_within
from graphport.errors import SpecError
from graphport.symbolic.dims import Dim


def find_shapes_spec(inputs: Inputs, dynamic_shapes: Any) -> Any:
    """What was passed, or what torch's `@dynamic_spec` has attached to the program."""
    target = inputs.target
    called = target.forward if isinstance(target, torch.nn.Module) else target
    attached = getattr(called, "_dynamic_spec", None)
    if attached is None:
        return dynamic_shapes
    if dynamic_shapes is not None:
        raise SpecError(
            "the program has a @dynamic_spec, and dynamic_shapes was passed as well",
            where="dynamic_shapes",
            fix="leave one of them out",
        )
    return attached


def is_shapes_spec(x: object) -> bool:
    return is_within(type(x).__module__, "dynamic_spec")


def read_shapes_spec(inputs: Inputs, spec: Any) -> dict[str, Any]:
    """A ShapesSpec or ParamsSpec, by the names of arguments."""
    if assumptions := getattr(spec, "assumptions", None):
        raise SpecError(
            f"the assumption {assumptions[0]} of a ShapesSpec cannot be read",
            where="dynamic_shapes",
            fix="state it in the program: torch._check(x.shape[0] % 2 == 0)",
        )
    params = getattr(spec, "_params", spec)
    if params is None:
        return {}
    read = _Reader()
    named = {name: read(value) for name, value in params._named_args.items()}
    if params._varargs is not None:
        variadic = (n for n, (_, value) in inputs.parameters.items() if isinstance(value, Variadic))
        named[next(variadic, "args")] = read(params._varargs)
    if params._varkw is not None:
        named.update(read(params._varkw))
    return named


class _Reader:
    """Converts nested specs; each variable of torch's becomes one dim."""

    def __init__(self) -> None:
        self.dims: dict[Any, Dim] = {}

    def __call__(self, x: Any) -> Any:
        if isinstance(x, torch.SymInt):
            return self._read_size(x)
        if isinstance(x, dict):
            return {k: self(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return [self(v) for v in x]
        if not is_shapes_spec(x):
            return x  # None, or a number
        if type(x).__name__ == "SeqSpec":
            return [self(v) for v in x._entries]
        return self(dict(x.items()) if hasattr(x, "items") else list(x))

    def _read_size(self, x: Any) -> Dim:
        """A variable, or one times a number plus a number."""
        size = x.node.expr
        if len(size.free_symbols) == 1:
            (symbol,) = size.free_symbols
            offset = size.subs(symbol, 0)
            factor = size.subs(symbol, 1) - offset
            if factor.is_integer and offset.is_integer and size == factor * symbol + offset:
                return self._define(symbol, x.node.shape_env) * int(factor) + int(offset)
        raise SpecError(
            f"the dim {size} is not a variable times a number plus a number",
            where="dynamic_shapes",
            fix="use a variable of its own for it",
        )

    def _define(self, symbol: Any, env: Any) -> Dim:
        if symbol not in self.dims:
            name, _, number = str(symbol).partition("#")
            taken = {dim.__name__ for dim in self.dims.values()}
            bounds = env.var_to_range[symbol]
            low, high = (
                int(b) if abs(float(b)) < math.inf else None for b in (bounds.lower, bounds.upper)
            )
            self.dims[symbol] = Dim(
                f"{name}_{number}" if name in taken or name == "anon" else name,
                min=max(low, 0) or None if low is not None else None,
                max=high,
            )
        return self.dims[symbol]
