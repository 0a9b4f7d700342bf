"""What the operators of TorchScript do that are none of a tensor's: numbers, containers, texts.

Symbolic numbers stay symbolic. Everything that is not named here is an operator of `torch.ops`.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from graphport.capture.numbers.functions import REPLACEMENTS, get_length, to_float, to_int
from graphport.symbolic.bridge import SYMBOLIC
from graphport.types import Argument, Function

_math = REPLACEMENTS[id(math)][1]


def find_function(name: str, args: Sequence[object]) -> Function | None:
    """The Python function for an operator, given what it is called with."""
    found = _FUNCTIONS.get(name)
    if found is not None or not args or not name.startswith("aten::"):
        return found
    if any(isinstance(a, torch.Tensor) for a in args[:2]) and not isinstance(args[0], list):
        return None
    plain = name.removeprefix("aten::")
    if isinstance(args[0], (list, dict, str)):
        return _NUMBERS.get(plain) or _find_method(plain, args[0])
    return _NUMBERS.get(plain)


def _find_method(name: str, owner: list[Any] | dict[Any, Any] | str) -> Function | None:
    method = _METHODS.get(name, name)
    if not hasattr(owner, method):
        return None
    call = _method(method)
    return (lambda x, *args: list(call(x, *args))) if method in _VIEWS else call


_METHODS = {"Delete": "__delitem__"}
_VIEWS = ("keys", "values", "items", "split", "splitlines", "rsplit", "partition", "rpartition")
MUTATES = frozenset(
    f"aten::{name}"
    for name in """
        append extend insert pop remove clear reverse sort _set_item Delete popitem setdefault
        update
    """.split()
)
"""Operators that write to a list or dict."""


# Dtypes, layouts and memory formats are integers

_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)
_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


@functools.cache
def _dtype_codes() -> dict[torch.dtype, int]:
    found = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    codes = {}
    for dtype in found:
        try:
            codes[dtype] = int(torch.ops.prim.dtype(torch.empty(0, dtype=dtype, device="meta")))
        except RuntimeError:  # one without tensors
            continue
    return codes


@functools.cache
def _dtypes() -> dict[int, torch.dtype]:
    return {code: dtype for dtype, code in _dtype_codes().items()}


def read_code(kind: str, code: object) -> object:
    """What an integer stands for, given to an argument of a kind."""
    if type(code) is not int:
        return code
    if "ScalarType" in kind:
        return _dtypes()[code]
    if "Layout" in kind:
        return _LAYOUTS[code]
    return _FORMATS[code] if "MemoryFormat" in kind else code


# Numbers


def _to_bool(x: Any) -> Argument:
    if isinstance(x, torch.Tensor):
        return (x if x.dtype is torch.bool else x != 0).item()
    return x if isinstance(x, (bool, torch.SymBool)) else x != 0


def _negate(x: Any) -> Argument:
    return torch.sym_not(x) if isinstance(x, torch.SymBool) else not x


def _item(x: torch.Tensor) -> Argument:
    return x.item()


def _both(of_bools: Function, of_numbers: Function) -> Function:
    def call(a: Any, b: Any) -> Argument:
        return (of_bools if isinstance(a, (bool, torch.SymBool)) else of_numbers)(a, b)

    return call


def _range_length(low: Any, high: Any, step: Any) -> Argument:
    return torch.sym_max(-((low - high) // step), 0)


def _slice(items: Any, start: Any = None, end: Any = None, step: int = 1) -> Argument:
    return items[start:end:step]


def _set_item(items: Any, at: Any, value: object) -> Argument:
    items[at] = value
    return items


def _sort(items: list[Any], reverse: bool = False) -> None:
    items.sort(reverse=reverse)


def _choose(fn: Function) -> Function:
    """Of two numbers, of two lists by element, or of a list."""

    def call(*args: Any) -> Argument:
        if len(args) == 2 and isinstance(args[0], list):
            return [fn(a, b) for a, b in zip(*args, strict=True)]
        return functools.reduce(fn, args[0] if len(args) == 1 else args)

    return call


def _power(a: Any, b: Any) -> Argument:
    return a**b


_NUMBERS: dict[str, Function] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "remainder": operator.mod,
    "pow": _power,
    "neg": operator.neg,
    "abs": abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "__and__": _both(lambda a, b: a & b, operator.and_),
    "__or__": _both(lambda a, b: a | b, operator.or_),
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "round": round,
    "slice": _slice,
    "select": operator.getitem,
    "sort": _sort,
    "sorted": sorted,
    "sum": sum,
    "any": any,
    "all": all,
    "list": list,
    "dict": dict,
    **{
        name: getattr(_math, name)
        for name in """
            sqrt exp log log2 log10 log1p expm1 sin cos tan asin acos atan atan2 sinh cosh tanh
            asinh acosh atanh floor ceil trunc fmod degrees radians fabs copysign isnan isinf
            isfinite gcd gamma lgamma erf erfc hypot factorial ldexp modf frexp
        """.split()
    },
}
"""Of numbers, texts and containers; of tensors these names are operators of torch."""


def _shape(x: torch.Tensor, dim: int | None = None) -> Argument:
    return list(x.shape) if dim is None else x.shape[dim]


def _unwrap(x: object) -> Argument:
    if x is None:
        raise RuntimeError("Unwrapping null optional")
    return x


def _make_tensor(
    data: Argument, dtype: int | None = None, device: Any = None, requires_grad: bool = False
) -> torch.Tensor:
    kind: Any = read_code("ScalarType", dtype)
    return torch.tensor(data, dtype=kind, device=device, requires_grad=requires_grad)


def _as_tensor(data: Argument, dtype: int | None = None, device: Any = None) -> torch.Tensor:
    kind: Any = read_code("ScalarType", dtype)
    return torch.as_tensor(data, dtype=kind, device=device)


def _warn(message: str, stacklevel: int = 2) -> None:
    warnings.warn(message, stacklevel=stacklevel)


def _format(text: str, *values: object) -> str:
    return text.format(*values)


def _percent_format(text: str, *values: object) -> str:
    return text % values


def _contains(items: Any, item: Any) -> Argument:
    return item in items


def _get(items: dict[Any, Any], key: object, default: object = None) -> Argument:
    return items.get(key, default)


def _method(name: str) -> Function:
    return lambda x, *args: getattr(x, name)(*args)


def _attribute(name: str) -> Function:
    return lambda x: getattr(x, name)


def _identity(x: Argument, *_: object) -> Argument:
    return x


_FUNCTIONS: dict[str, Function] = {
    "aten::Int": to_int,
    "aten::Float": to_float,
    "aten::Bool": _to_bool,
    "aten::Complex": complex,
    **dict.fromkeys(("aten::IntImplicit", "aten::FloatImplicit", "aten::ScalarImplicit"), _item),
    "aten::__not__": _negate,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": _contains,
    "aten::__getitem__": operator.getitem,
    "aten::_set_item": _set_item,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::get": _get,
    "aten::len": get_length,
    "aten::str": str,
    "aten::format": _format,
    "aten::percentFormat": _percent_format,
    "aten::warn": _warn,
    "aten::device": torch.device,
    "aten::tensor": _make_tensor,
    "aten::as_tensor": _as_tensor,
    "aten::size": _shape,
    **{
        f"aten::{name}": _method(name)
        for name in """
            dim numel stride storage_offset element_size get_device item is_floating_point
            is_complex is_signed is_same_size
        """.split()
    },
    "aten::is_contiguous": lambda x, f=0: x.is_contiguous(
        memory_format=read_code("MemoryFormat", f)
    ),
    "aten::_unwrap_optional": _unwrap,
    "aten::wait": _identity,
    "aten::is_grad_enabled": torch.is_grad_enabled,
    "aten::set_grad_enabled": torch.set_grad_enabled,
    "prim::unchecked_unwrap_optional": _identity,
    "prim::unchecked_cast": _identity,
    "prim::NumToTensor": torch.tensor,
    "prim::min": _choose(torch.sym_min),
    "prim::max": _choose(torch.sym_max),
    "prim::abs": abs,
    "prim::Print": print,
    "prim::rangelist": lambda n: list(range(n)),
    "prim::shape": _shape,
    "prim::dtype": lambda x: _dtype_codes()[x.dtype],
    "prim::layout": lambda x: _LAYOUTS.index(x.layout),
    **{
        f"prim::{name}": _attribute(name)
        for name in """
            device requires_grad data grad is_cuda is_cpu is_xpu is_mps is_meta is_sparse is_mkldnn
            is_quantized is_nested itemsize nbytes name index type
        """.split()
    },
}


def coerce(kind: str, value: object) -> object:
    """A number as the schema has it: an operator that gives floats gives none but those."""
    if kind == "float" and isinstance(value, (int, torch.SymInt)):
        return torch.sym_float(value)
    return value


def is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, *SYMBOLIC))
