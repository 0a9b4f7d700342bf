"""What a write through a view does to the tensor that is viewed.

For each view operator: given the base and a new value for the view, the new base. `emit` records an
operator and returns its value; sizes may be symbolic. A view that has no inverse of its own is
inverted by numbering the elements of the base and scattering, which holds for any view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from graphport.ops.abstract import Abstract, Size
from graphport.ops.sizes import numel, wrap_dim

aten = torch.ops.aten

Emit = Callable[..., Any]
Inverse = Callable[..., Any]

INVERSES: dict[OpOverload, Inverse] = {}


def inverse(*ops: OpOverload) -> Callable[[Inverse], Inverse]:
    def register(fn: Inverse) -> Inverse:
        for op in ops:
            INVERSES[op] = fn
        return fn

    return register


@inverse(aten.alias.default, aten.detach.default, aten.contiguous.default)
def same_value(emit: Emit, base: Any, shape: Abstract, new: Any) -> Any:
    return new


@inverse(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.squeeze.default,
    aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze.default,
)  # fmt: skip
def reshaped(emit: Emit, base: Any, shape: Abstract, new: Any, *_: Any) -> Any:
    return emit(aten.reshape.default, new, list(shape.sizes))


@inverse(aten.permute.default)
def permute(emit: Emit, base: Any, shape: Abstract, new: Any, dims: list[int]) -> Any:
    back = [0] * len(dims)
    for position, d in enumerate(dims):
        back[wrap_dim(d, shape.rank)] = position
    return emit(aten.permute.default, new, back)


@inverse(aten.transpose.int)
def transpose(emit: Emit, base: Any, shape: Abstract, new: Any, dim0: int, dim1: int) -> Any:
    return emit(aten.transpose.int, new, dim0, dim1)


@inverse(aten.t.default)
def t(emit: Emit, base: Any, shape: Abstract, new: Any) -> Any:
    return emit(aten.t.default, new)


@inverse(aten.select.int)
def select(emit: Emit, base: Any, shape: Abstract, new: Any, dim: int, index: Size) -> Any:
    return emit(aten.select_scatter.default, base, new, dim, index)


@inverse(aten.slice.Tensor)
def slice_(emit: Emit, base: Any, shape: Abstract, new: Any, *bounds: Any) -> Any:
    return emit(aten.slice_scatter.default, base, new, *bounds)


@inverse(aten.diagonal.default)
def diagonal(emit: Emit, base: Any, shape: Abstract, new: Any, *where: Any) -> Any:
    return emit(aten.diagonal_scatter.default, base, new, *where)


@inverse(aten.view_as_real.default)
def view_as_real(emit: Emit, base: Any, shape: Abstract, new: Any) -> Any:
    return emit(aten.view_as_complex.default, new)


@inverse(aten.view_as_complex.default)
def view_as_complex(emit: Emit, base: Any, shape: Abstract, new: Any) -> Any:
    return emit(aten.view_as_real.default, new)


@inverse(aten.view.dtype)
def view_dtype(emit: Emit, base: Any, shape: Abstract, new: Any, dtype: torch.dtype) -> Any:
    return emit(aten.view.dtype, new, shape.dtype)


def scattered(emit: Emit, base: Any, shape: Abstract, new: Any, view: Callable[[Any], Any]) -> Any:
    """Number the elements of the base, view the numbers, and scatter by them."""
    total = numel(shape.sizes)
    numbers = emit(aten.arange.default, total, device=shape.device)
    places = view(emit(aten.reshape.default, numbers, list(shape.sizes)))
    flat = emit(aten.reshape.default, base, [-1])
    where = emit(aten.reshape.default, places, [-1])
    values = emit(aten.reshape.default, new, [-1])
    written = emit(aten.scatter.src, flat, 0, where, values)
    return emit(aten.reshape.default, written, list(shape.sizes))


def inverted(emit: Emit, op: OpOverload, base: Any, shape: Abstract, new: Any, args: Any) -> Any:
    """The new base after the view `op(base, *args)` was given the value `new`."""
    own = INVERSES.get(op)
    if own is None:
        return scattered(emit, base, shape, new, lambda numbers: emit(op, numbers, *args))
    return own(emit, base, shape, new, *args)
