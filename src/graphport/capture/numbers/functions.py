"""What Python's functions on numbers give for symbolic ones: `int`, `len`, `range`, `math.sqrt`.

Python's own have to return plain numbers, and would fix a size to do so. `REPLACEMENTS` and
`METHODS` have the functions that the user's code calls instead while it is captured; for everything
but symbolic numbers and tensors they do what Python's do. A size is an `int` to `isinstance` and
`type`, as it is in eager.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from graphport.capture.numbers import arrays
from graphport.capture.numbers.arrays import CASTS, apply, is_torch_array, truncate, widen
from graphport.capture.numbers.sequences import SymbolicList, SymbolicRange, SymbolicSequence
from graphport.symbolic import Expr
from graphport.symbolic.bridge import SYMBOLIC, from_torch, python_type, sym_ite
from graphport.symbolic.floats import FUNCTIONS
from graphport.types import Argument, Function

_KNOWN = (*SYMBOLIC, torch.Tensor)


def to_int(*args: Argument, **kwargs: Argument) -> Argument:
    """`int`: of a tensor its element, which is data."""
    x = _read_number(args, kwargs)
    return int(*args, **kwargs) if x is None else _name(x, truncate(x))


def to_float(*args: Argument, **kwargs: Argument) -> Argument:
    """`float`, in the same way."""
    x = _read_number(args, kwargs)
    return float(*args, **kwargs) if x is None else _name(x, widen(x))


def _read_number(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Argument:
    """The number in a call's only argument, if that is symbolic or a tensor."""
    if len(args) != 1 or kwargs:
        return None
    x = args[0].tensor if is_torch_array(args[0]) else args[0]
    if not isinstance(x, _KNOWN):
        return None
    return x.item() if isinstance(x, torch.Tensor) else x


def _name(x: Argument, number: Argument) -> Argument:
    """Errors call what was made of data as the user's call does that read it."""
    if isinstance(x, SYMBOLIC):
        read, made = from_torch(x), from_torch(number)
        if type(read) is Expr and type(made) is Expr and read in read.scope.origins:
            made.scope.origins.setdefault(made, read.scope.origins[read])
    return number


def get_length(x: Any) -> Argument:
    """`len`: the size of a tensor, or what a `__len__` in Python returns."""
    if type(x) in _PLAIN:
        return len(x)
    if isinstance(x, torch.Tensor):
        return x.shape[0] if x.dim() else len(x)
    if isinstance(x, SymbolicSequence):
        return x.length
    if is_torch_array(x):
        return x.tensor.shape[0] if x.tensor.dim() else len(x)
    method = getattr(type(x), "__len__", None)
    if not isinstance(method, FunctionType):
        return len(x)
    length = method(x)
    if isinstance(length, torch.SymInt):
        return length
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return int(length)


_PLAIN = frozenset((tuple, list, dict, str, set, torch.Size))
"""Most of what is asked for its length."""


def make_range(*bounds: Argument) -> Argument:
    if 0 < len(bounds) <= 3 and any(isinstance(b, torch.SymInt) for b in bounds):
        return SymbolicRange(*bounds)
    return range(*bounds)


def make_list(*args: Argument) -> Argument:
    if len(args) == 1 and isinstance(args[0], SymbolicSequence):
        return SymbolicList(args[0].as_tensor())
    return list(*args)


def add_up(items: Argument, *start: Argument, **kwargs: Argument) -> Argument:
    """`sum`."""
    if isinstance(items, SymbolicSequence) and not kwargs:
        return sum((items.as_tensor().sum().item(),), *start)
    return sum(items, *start, **kwargs)


def is_instance(x: object, kind: Any) -> bool:
    """`isinstance`, to which a size is an int."""
    if isinstance(x, kind):
        return True
    is_symbolic = isinstance(x, (*SYMBOLIC, SymbolicSequence))
    return is_symbolic and isinstance(_EXAMPLES[get_type(x)], kind)


def get_type(*args: Argument, **kwargs: Argument) -> Argument:
    """`type`, in the same way."""
    if len(args) == 1 and not kwargs:
        x = args[0]
        return x.kind if isinstance(x, SymbolicSequence) else python_type(x)
    return type(*args, **kwargs)


def map_function(fn: Argument, *items: Iterable[Argument], **kwargs: Argument) -> Argument:
    return map(substitute_function(fn), *items, **kwargs)


_EXAMPLES: dict[type, object] = {int: 0, float: 0.0, bool: False, list: [], range: range(0)}


# The modules math, numpy and operator


def _log(x: Argument, base: Argument = None) -> Argument:
    return apply("log")(x) if base is None else _log(x) / _log(base)


_MATH: dict[str, Function] = {
    **{name: apply(name) for name in FUNCTIONS},
    "log": _log,
    "pow": lambda x, y: torch.sym_float(x) ** torch.sym_float(y),
    # The root of a float64 is rounded correctly: the floor is exact for sizes below 2**52.
    "isqrt": lambda x: torch.sym_int(apply("sqrt")(x)),
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


class ModuleReplacement:
    """A module in which some functions are others; everything else is the module's."""

    def __init__(
        self, module: ModuleType, wrap: Callable[[str, Any], Any], wrap_called: Any = None
    ) -> None:
        self._module, self._wrap = module, wrap
        self.called = ModuleReplacement(module, wrap_called) if wrap_called else self
        """Where an attribute is loaded to be called."""

    def __getattr__(self, name: str) -> Any:
        found = self._wrap(name, getattr(self._module, name))
        vars(self)[name] = found
        return found


_MATH_FUNCTIONS = {name: _wrap(getattr(math, name), fn) for name, fn in _MATH.items()}
_INDEX = _wrap(operator.index, torch.sym_int)

_REPLACED: tuple[tuple[Any, Any], ...] = (
    (builtins.int, to_int),
    (builtins.float, to_float),
    (builtins.len, get_length),
    (builtins.range, make_range),
    (builtins.list, make_list),
    (builtins.sum, add_up),
    (builtins.isinstance, is_instance),
    (builtins.type, get_type),
    (builtins.map, map_function),
    (math, ModuleReplacement(math, lambda name, f: _MATH_FUNCTIONS.get(name, f))),
    (np, ModuleReplacement(np, arrays.wrap, arrays.wrap_called)),
    (operator, ModuleReplacement(operator, lambda name, f: _INDEX if name == "index" else f)),
    *((getattr(math, name), ours) for name, ours in _MATH_FUNCTIONS.items()),
    (np.arange, arrays.wrap("arange", np.arange)),
    (operator.index, _INDEX),
)
REPLACEMENTS: dict[int, tuple[Any, Any]] = {id(f): (f, ours) for f, ours in _REPLACED}
"""By the id of the original, which is kept beside it."""


def substitute_function(fn: Any) -> Any:
    """The function that is called in place of `fn`, if there is one."""
    return REPLACEMENTS.get(id(fn), (fn, fn))[1]


# Methods


def _count_elements(x: Any, *args: Argument, **kwargs: Argument) -> Argument:
    return math.prod(x) if isinstance(x, torch.Size) else x.numel(*args, **kwargs)


def _convert(x: Any, *args: Argument, **kwargs: Argument) -> Argument:
    """`astype`: functions of numpy give plain numbers where eager has numpy's."""
    if not isinstance(x, SYMBOLIC):
        return x.astype(*args, **kwargs)
    dtype = args[0] if args else kwargs["dtype"]
    return CASTS[np.dtype(dtype).name](x)


def _count_bits(x: Any) -> Argument:
    if not isinstance(x, torch.SymInt):
        return x.bit_length()
    bits = math.floor(apply("log2")(torch.sym_max(abs(x), 1))) + 1
    return sym_ite(x == 0, 0, bits)


def _cast(name: str) -> Function:
    """`np.int64(n)`."""
    cast = CASTS[name]

    def call(x: Any, *args: Argument, **kwargs: Argument) -> Argument:
        if isinstance(x, ModuleReplacement) and len(args) == 1 and isinstance(args[0], SYMBOLIC):
            return cast(args[0])
        return getattr(x, name)(*args, **kwargs)

    return call


METHODS: dict[str, Function] = {
    "numel": _count_elements,
    "astype": _convert,
    "bit_length": _count_bits,
    **{name: _cast(name) for name in CASTS},
}
"""Functions that are called in place of methods, of whatever object."""
