"""What functions of numpy give for symbolic numbers, and for arrays of a symbolic size.

Of numbers they give numbers. An array of symbolic size (`np.arange(n)`) is one of torch's own
numpy: a tensor, which the graph records, with numpy's types and methods around it.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np
import torch

from graphport.capture.numbers.sequences import SymbolicSequence
from graphport.process import Replacement
from graphport.symbolic import expr
from graphport.symbolic.bridge import SYMBOLIC, from_torch, sym_ite, to_torch
from graphport.symbolic.floats import FUNCTIONS
from graphport.types import Argument, Function


def apply(name: str) -> Function:
    """A function of floats that expressions have."""

    def call(x: Argument) -> Argument:
        return to_torch(expr.func(name, expr.to_float(from_torch(x))))

    return call


def truncate(x: Argument) -> Argument:
    """As `int` does."""
    return sym_ite(x, 1, 0) if isinstance(x, torch.SymBool) else torch.sym_int(x)


def widen(x: Argument) -> Argument:
    """As `float` does."""
    return torch.sym_float(sym_ite(x, 1, 0) if isinstance(x, torch.SymBool) else x)


def _round(x: Argument, decimals: int = 0) -> Argument:
    return torch.sym_float(builtins.round(x)) if decimals == 0 else builtins.round(x, decimals)


_NUMBERS: dict[str, Function] = {
    **{name: apply(name) for name in FUNCTIONS},
    "floor": lambda x: torch.sym_float(math.floor(x)),
    "ceil": lambda x: torch.sym_float(math.ceil(x)),
    "trunc": lambda x: torch.sym_float(math.trunc(x)),
    "round": _round,
    "rint": _round,
    "abs": abs,
    "absolute": abs,
    "minimum": torch.sym_min,
    "maximum": torch.sym_max,
    "clip": lambda x, low, high: torch.sym_min(torch.sym_max(x, low), high),
    "square": lambda x: x * x,
    "power": lambda x, y: x**y,
    "mod": lambda x, y: x % y,
    "floor_divide": lambda x, y: x // y,
}
"""numpy's functions by name, of numbers."""

_REDUCTIONS: dict[str, Function] = {
    "prod": math.prod,
    "sum": builtins.sum,
    "mean": lambda xs: builtins.sum(xs) / len(xs),
    **dict.fromkeys(("max", "amax"), functools.partial(functools.reduce, torch.sym_max)),
    **dict.fromkeys(("min", "amin"), functools.partial(functools.reduce, torch.sym_min)),
}
"""numpy's functions by name, of lists of numbers."""

CASTS: dict[str, Function] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "intp", "int_"), truncate),
    **dict.fromkeys(("float64", "double"), widen),
}
"""Types of numpy by name, that are called or given to `astype`. Others round."""


def wrap_called(name: str, original: Any) -> Any:
    """What is called of numpy, for symbolic arguments too: a type is a function then."""
    cast = CASTS.get(name)
    if cast is None or not isinstance(original, type):
        return wrap(name, original)

    def call(*args: Argument) -> Argument:
        is_symbolic = len(args) == 1 and isinstance(args[0], SYMBOLIC)
        return cast(*args) if is_symbolic else original(*args)

    return call


def wrap(name: str, original: Any) -> Any:
    """A function of numpy, for symbolic arguments too."""
    if isinstance(original, (type, ModuleType)) or not callable(original):
        return original
    of_numbers = _NUMBERS.get(name)

    @functools.wraps(original)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        if not _holds_symbolic((*args, *kwargs.values())):
            return original(*args, **kwargs)
        if of_numbers is not None and args and all(map(_is_number, args)):
            return of_numbers(*args, **kwargs)
        if name in _REDUCTIONS and len(args) == 1 and not kwargs and _is_list(args[0]):
            return _REDUCTIONS[name](args[0])
        from graphport.compat.torch import torch_numpy  # which takes long to import

        of_arrays = getattr(torch_numpy, name, original)
        given, named = map(_to_torch_numpy, args), kwargs.items()
        return of_arrays(*given, **{key: _to_torch_numpy(value) for key, value in named})

    return call


def _to_torch_numpy(x: Argument) -> Argument:
    """An argument as torch's numpy takes it."""
    if isinstance(x, SymbolicSequence):
        return x.as_tensor()
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        from graphport.compat.torch import torch_numpy

        return getattr(torch_numpy, np.dtype(x).name)
    return x


def _is_list(x: object) -> bool:
    return isinstance(x, (tuple, list)) and bool(x) and all(map(_is_number, x))


def _is_number(x: object) -> bool:
    return isinstance(x, (*SYMBOLIC, int, float))


def _holds_symbolic(x: object) -> bool:
    """Whether a number among arguments of numpy is symbolic, or an array torch's."""
    if isinstance(x, (list, tuple)):
        return any(map(_holds_symbolic, x))
    return isinstance(x, (*SYMBOLIC, SymbolicSequence)) or is_torch_array(x)


def patch_arrays() -> Iterator[Replacement]:
    """A tensor and an array make a tensor, as with numpy's own."""
    from graphport.compat.torch import torch_numpy

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        reflected = f"__r{name}__"
        original = getattr(torch_numpy.ndarray, reflected)
        yield torch_numpy.ndarray, reflected, _wrap_reflected(original, getattr(operator, name))


def _wrap_reflected(original: Any, of_tensors: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return of_tensors(other, self.tensor)
        return original(self, other)

    return call


def is_torch_array(x: object) -> TypeGuard[Any]:
    """Whether something is an array of torch's own numpy, around a tensor."""
    kind = type(x)
    return kind.__name__ == "ndarray" and kind is not np.ndarray and hasattr(x, "tensor")
