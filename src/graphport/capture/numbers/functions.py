"""What Python's functions on numbers give for symbolic ones: `int`, `len`, `range`, `math.sqrt`.

Python's own have to return plain numbers, and would fix a size to do so. `REPLACEMENTS` has the
functions that the user's code calls instead while it is captured; for everything but symbolic
numbers and tensors they do what Python's do. A size is an `int` to `isinstance` and `type`, as it
is in eager.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from graphport.symbolic import expr
from graphport.symbolic.bridge import SYMBOLIC, from_torch, python_type, sym_ite, to_torch
from graphport.symbolic.floats import FUNCTIONS
from graphport.types import Argument, Function

_KNOWN = (*SYMBOLIC, torch.Tensor)


def to_int(*args: Argument, **kwargs: Argument) -> Argument:
    """`int`: of a tensor its element, which is data."""
    x = _read_number(args, kwargs)
    if x is None:
        return int(*args, **kwargs)
    return sym_ite(x, 1, 0) if isinstance(x, torch.SymBool) else torch.sym_int(x)


def to_float(*args: Argument, **kwargs: Argument) -> Argument:
    """`float`, in the same way."""
    x = _read_number(args, kwargs)
    if x is None:
        return float(*args, **kwargs)
    return torch.sym_float(sym_ite(x, 1, 0) if isinstance(x, torch.SymBool) else x)


def _read_number(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Argument:
    """The number in a call's only argument, if that is symbolic or a tensor."""
    if len(args) != 1 or kwargs or not isinstance(args[0], _KNOWN):
        return None
    x = args[0]
    return x.item() if isinstance(x, torch.Tensor) else x


def get_length(x: Any) -> Argument:
    """`len`: the size of a tensor, or what a `__len__` in Python returns."""
    if isinstance(x, torch.Tensor):
        return x.shape[0] if x.dim() else len(x)
    if isinstance(x, SymbolicRange):
        return x.length
    method = getattr(type(x), "__len__", None)
    if not isinstance(method, FunctionType):
        return len(x)
    length = method(x)
    if isinstance(length, torch.SymInt):
        return length
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return int(length)


class SymbolicRange:
    """A range whose ends are symbolic: to iterate over it fixes its length."""

    def __init__(self, *bounds: Argument) -> None:
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        self.start, self.stop, self.step = start, stop, step

    @property
    def length(self) -> Argument:
        return torch.sym_max(-((self.start - self.stop) // self.step), 0)

    def as_tensor(self, **options: Argument) -> torch.Tensor:
        return torch.arange(self.start, self.stop, self.step, **options)

    def _fix(self) -> range:
        return range(self.start, self.stop, self.step)

    def __len__(self) -> int:
        return len(self._fix())

    def __iter__(self) -> Iterator[int]:
        return iter(self._fix())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._fix())

    def __getitem__(self, i: Argument) -> Argument:
        return self._fix()[i]

    def __contains__(self, x: object) -> bool:
        return x in self._fix()

    def __repr__(self) -> str:
        return f"range({self.start}, {self.stop}, {self.step})"


def make_range(*bounds: Argument) -> Argument:
    if 0 < len(bounds) <= 3 and any(isinstance(b, torch.SymInt) for b in bounds):
        return SymbolicRange(*bounds)
    return range(*bounds)


def is_instance(x: object, kind: Any) -> bool:
    """`isinstance`, to which a size is an int."""
    if isinstance(x, kind):
        return True
    plain = _EXAMPLES.get(type(x))
    return plain is not None and isinstance(plain, kind)


def get_type(*args: Argument, **kwargs: Argument) -> Argument:
    """`type`, in the same way."""
    if len(args) == 1 and not kwargs:
        return _TYPES.get(type(args[0])) or python_type(args[0])
    return type(*args, **kwargs)


def map_function(fn: Argument, *items: Iterable[Argument], **kwargs: Argument) -> Argument:
    return map(replace_function(fn), *items, **kwargs)


def replace_function(fn: Argument) -> Argument:
    """What the user's code calls for a function."""
    return REPLACEMENTS.get(id(fn), (fn, fn))[1]


_EXAMPLES: dict[type, object] = {
    torch.SymInt: 0,
    torch.SymFloat: 0.0,
    torch.SymBool: False,
    SymbolicRange: range(0),
}
_TYPES: dict[type, type] = {SymbolicRange: range}


# The modules math and numpy


def _apply(name: str) -> Function:
    """A function of floats that expressions have."""

    def call(x: Argument) -> Argument:
        return to_torch(expr.func(name, expr.to_float(from_torch(x))))

    return call


def _log(x: Argument, base: Argument = None) -> Argument:
    return _apply("log")(x) if base is None else log(x) / log(base)


_MATH: dict[str, Function] = {
    **{name: _apply(name) for name in FUNCTIONS},
    "log": _log,
    "pow": lambda x, y: torch.sym_float(x) ** torch.sym_float(y),
    # The root of a float64 is rounded correctly: the floor is exact for sizes below 2**52.
    "isqrt": lambda x: torch.sym_int(_apply("sqrt")(x)),
    "fabs": lambda x: abs(torch.sym_float(x)),
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc")},
}


def _wrap(original: Any, symbolic: Function) -> Function:
    """Of tensors, their element."""

    @functools.wraps(original)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        if not any(isinstance(x, _KNOWN) for x in args):
            return original(*args, **kwargs)
        numbers = [x.item() if isinstance(x, torch.Tensor) else x for x in args]
        given = symbolic if any(isinstance(x, SYMBOLIC) for x in numbers) else original
        return given(*numbers, **kwargs)

    return call


def _round_half_even(x: Argument, decimals: int = 0) -> Argument:
    return torch.sym_float(round(x)) if decimals == 0 else round(x, decimals)


_NUMPY: dict[str, Function] = {
    **{name: _apply(name) for name in FUNCTIONS},
    "floor": lambda x: torch.sym_float(math.floor(x)),
    "ceil": lambda x: torch.sym_float(math.ceil(x)),
    "round": _round_half_even,
    "rint": _round_half_even,
}


def _wrap_numpy(name: str, original: Any) -> Any:
    """Of numbers a number; of what has a symbolic size an array of torch's own numpy."""
    if isinstance(original, (type, ModuleType)) or not callable(original):
        return original

    @functools.wraps(original)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        if not _holds_symbolic((*args, *kwargs.values())):
            return original(*args, **kwargs)
        scalar = _NUMPY.get(name)
        if scalar is not None and isinstance(args[0], SYMBOLIC):
            return scalar(*args, **kwargs)
        if name == "prod" and len(args) == 1 and isinstance(args[0], (tuple, list)):
            return math.prod(args[0])
        from graphport.compat.torch import torch_numpy  # which takes long to import

        of_arrays = getattr(torch_numpy, name, original)
        given = [x.as_tensor() if isinstance(x, SymbolicRange) else x for x in args]
        return of_arrays(*given, **kwargs)

    return call


def _holds_symbolic(x: object) -> bool:
    """Whether a number among arguments of numpy is symbolic, or an array torch's."""
    if isinstance(x, (list, tuple)):
        return any(map(_holds_symbolic, x))
    return isinstance(x, (*SYMBOLIC, SymbolicRange)) or is_torch_array(x)


def is_torch_array(x: object) -> bool:
    """Whether something is an array of torch's own numpy, around a tensor."""
    return type(x).__module__ == "torch._numpy._ndarray"


class ModuleReplacement:
    """A module in which some functions are others; everything else is the module's."""

    def __init__(self, module: ModuleType, wrap: Callable[[str, Any], Any]) -> None:
        self._module, self._wrap = module, wrap

    def __getattr__(self, name: str) -> Any:
        found = self._wrap(name, getattr(self._module, name))
        vars(self)[name] = found
        return found


_MATH_FUNCTIONS = {name: _wrap(getattr(math, name), fn) for name, fn in _MATH.items()}
log = _MATH_FUNCTIONS["log"]

_REPLACED: tuple[tuple[Any, Any], ...] = (
    (builtins.int, to_int),
    (builtins.float, to_float),
    (builtins.len, get_length),
    (builtins.range, make_range),
    (builtins.isinstance, is_instance),
    (builtins.type, get_type),
    (builtins.map, map_function),
    (math, ModuleReplacement(math, lambda name, f: _MATH_FUNCTIONS.get(name, f))),
    (np, ModuleReplacement(np, _wrap_numpy)),
    *((getattr(math, name), ours) for name, ours in _MATH_FUNCTIONS.items()),
    (np.arange, _wrap_numpy("arange", np.arange)),
)
REPLACEMENTS: dict[int, tuple[Any, Any]] = {id(f): (f, ours) for f, ours in _REPLACED}
"""By the id of the original, which is kept beside it."""
