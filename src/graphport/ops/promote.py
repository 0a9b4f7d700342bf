"""Type promotion, as torch's `result_type` does it.

Operands fall into three classes of priority: tensors with dims, 0-d tensors, Python numbers. A
lower class changes the result only when it is of a higher kind (bool < int < float < complex).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch

from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract

Promotion = Callable[[torch.dtype], torch.dtype]

# Of bfloat16, some versions of torch have a complex dtype and others take complex64.
COMPLEX_OF = {
    dtype: dtype.to_complex()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
REAL_OF = {dtype: dtype.to_real() for dtype in COMPLEX_OF.values()}

promote_types = cache(torch.promote_types)


@cache
def dtype_category(dtype: torch.dtype) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex."""
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def number_category(x: object) -> int:
    t = x.type if isinstance(x, Expr) else type(x)
    return {bool: 0, int: 1, float: 2, complex: 3}[t]


def _default_dtype(number_kind: int) -> torch.dtype:
    default = torch.get_default_dtype()
    return (torch.bool, torch.int64, default, COMPLEX_OF[default])[number_kind]


def result_type(operands: Iterable[object]) -> torch.dtype:
    """The common dtype of abstract tensors and Python numbers; other things are passed over."""
    dims = zero = None
    number = -1
    for x in operands:
        if isinstance(x, Abstract):
            dtype = x.dtype
            if x.sizes:
                dims = dtype if dims is None or dims is dtype else promote_types(dims, dtype)
            else:
                zero = dtype if zero is None or zero is dtype else promote_types(zero, dtype)
        elif isinstance(x, (bool, int, float, complex, Expr)):
            number = max(number, number_category(x))
    return combine_dtypes(dims, zero, number)


def combine_dtypes(dims: torch.dtype | None, zero: torch.dtype | None, number: int) -> torch.dtype:
    """The dtype of tensors with dims, 0-d tensors and numbers together, by the kind of the last."""
    result = dims
    if zero is not None and (result is None or dtype_category(zero) > dtype_category(result)):
        result = zero if result is None else _raise_category(result, dtype_category(zero), zero)
    if number >= 0 and (result is None or number > dtype_category(result)):
        result = _default_dtype(number) if result is None else _raise_category(result, number, None)
    assert result is not None, "result_type needs an operand"
    return result


def _raise_category(dtype: torch.dtype, to: int, zero: torch.dtype | None) -> torch.dtype:
    """`dtype` lifted to a higher kind by a 0-d tensor (of dtype `zero`) or a number."""
    if to == 3 and dtype_category(dtype) == 2:
        return COMPLEX_OF[dtype]
    return _default_dtype(to) if zero is None else zero


def keep_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype


def to_float(dtype: torch.dtype) -> torch.dtype:
    """Integers and bools become the default float."""
    return dtype if dtype_category(dtype) >= 2 else torch.get_default_dtype()


def to_bool(dtype: torch.dtype) -> torch.dtype:
    return torch.bool


def to_real(dtype: torch.dtype) -> torch.dtype:
    """Complex becomes the float it is made of."""
    return REAL_OF.get(dtype, dtype)


def to_sum(dtype: torch.dtype) -> torch.dtype:
    """Sums and products of integers and bools are int64."""
    return dtype if dtype_category(dtype) >= 2 else torch.int64
