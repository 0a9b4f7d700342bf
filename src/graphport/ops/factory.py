"""Shape rules of operators that create tensors, random ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops.registry import overloads, shape_rule
from graphport.ops.shape import apply_memory_format
from graphport.ops.sizes import establish, expect_condition, is_false_at_example
from graphport.symbolic import Expr, Value, ceil, ge, le, lt, sub, truediv
from graphport.tensors.abstract import Abstract, Size, Sizes, permute_strides
from graphport.types import Argument, Device, Dtype


def make_abstract(
    sizes: Sequence[Size], dtype: Dtype, device: Device, strides: Sizes | None = None
) -> Abstract:
    for s in sizes:
        if isinstance(s, Expr) and not expect_condition(ge(s, 0)):
            raise ShapeError(f"Trying to create tensor with negative dimension {s}: {list(sizes)}")
    return Abstract(
        tuple(sizes),
        dtype or torch.get_default_dtype(),
        torch.device("cpu") if device is None else torch.device(device),
        strides,
    )


def number_dtype(value: object) -> torch.dtype:
    """The dtype of a tensor filled with a Python number."""
    kind = value.type if isinstance(value, Expr) else type(value)
    if kind is complex:
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    return {bool: torch.bool, int: torch.int64}.get(kind, torch.get_default_dtype())


@shape_rule(*overloads("ones zeros empty.memory_format rand randn"))
def of_size(size: Sequence[Size], *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return make_abstract(size, dtype, device)


@shape_rule(aten.rand.generator, aten.randn.generator)
def random_generator(
    size: Sequence[Size], *, generator: object, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return make_abstract(size, dtype, device)


@shape_rule(aten.full.default)
def full(
    size: Sequence[Size], fill_value: object, *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return make_abstract(size, dtype or number_dtype(fill_value), device)


@shape_rule(aten.scalar_tensor.default)
def scalar_tensor(s: object, *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return make_abstract((), dtype, device)


def _checked_strides(strides: Sequence[Size]) -> Sizes:
    for s in strides:
        if is_false_at_example(ge(s, 0)):
            raise ShapeError(f"Storage size calculation overflowed with strides={list(strides)}")
    return tuple(strides)


@shape_rule(aten.empty_strided.default)
def empty_strided(
    size: Sequence[Size], stride: Sequence[Size], *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return make_abstract(size, dtype, device, _checked_strides(stride))


@shape_rule(aten.empty_permuted.default)
def empty_permuted(
    size: Sequence[Size],
    physical_layout: Sequence[int],
    *,
    dtype: Dtype,
    device: Device,
    **_: object,
) -> Abstract:
    return make_abstract(size, dtype, device, permute_strides(tuple(size), physical_layout))


@shape_rule(aten.arange.default)
def arange(end: Value, *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return arange_step(0, end, 1, dtype=dtype, device=device)


@shape_rule(aten.arange.start)
def arange_start(
    start: Value, end: Value, *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return arange_step(start, end, 1, dtype=dtype, device=device)


@shape_rule(aten.arange.start_step)
def arange_step(
    start: Value, end: Value, step: Argument, *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    kinds = {x.type if isinstance(x, Expr) else type(x) for x in (start, end, step)}
    if float in kinds:
        count: Size = _count_float_steps(start, end, step)
        return make_abstract((count,), dtype, device)
    span = end - start
    count = -(-span // step)
    if type(count) is int:
        count = max(count, 0)
    return make_abstract((count,), dtype or torch.int64, device)


def _count_float_steps(start: Argument, end: Argument, step: Argument) -> Size:
    if any(isinstance(x, Expr) for x in (start, end, step)):
        return ceil(truediv(sub(end, start), step))
    return max(math.ceil((end - start) / step), 0)


@shape_rule(
    *overloads("""
        linspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor
        logspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor
    """)
)
def linspace(
    start: Argument,
    end: Argument,
    steps: Size,
    *_: object,
    dtype: Dtype,
    device: Device,
    **__: object,
) -> Abstract:
    for x in (start, end):
        if isinstance(x, Abstract) and x.rank:
            raise ShapeError(f"linspace: an end is a number, or a tensor without dims, got {x}")
    kinds = [x.dtype if isinstance(x, Abstract) else number_dtype(x) for x in (start, end)]
    if any(kind.is_complex for kind in kinds):
        dtype = dtype or number_dtype(1j)
        if not dtype.is_complex:
            raise ShapeError(f"linspace: complex numbers do not fit into {dtype}")
    return make_abstract((steps,), dtype, device)


@shape_rule(aten.eye.default)
def eye(n: Size, *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return make_abstract((n, n), dtype, device)


@shape_rule(aten.eye.m)
def eye_m(n: Size, m: Size, *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return make_abstract((n, m), dtype, device)


@shape_rule(aten.randint.default)
def randint(
    high: Size, size: Sequence[Size], *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return randint_low(0, high, size, dtype=dtype, device=device)


@shape_rule(aten.randint.low)
def randint_low(
    low: Size, high: Size, size: Sequence[Size], *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    if not establish(lt(low, high)):
        raise ShapeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    return make_abstract(size, dtype or torch.int64, device)


@shape_rule(aten.randperm.default)
def randperm(n: Size, *, dtype: Dtype, device: Device, **_: object) -> Abstract:
    return make_abstract((n,), dtype or torch.int64, device)


@shape_rule(*overloads("zeros_like ones_like empty_like rand_like randn_like"))
def like(
    self: Abstract,
    *,
    dtype: Dtype,
    device: Device,
    memory_format: torch.memory_format | None,
    **_: object,
) -> Abstract:
    device = self.device if device is None else torch.device(device)
    return Abstract(
        self.sizes, dtype or self.dtype, device, apply_memory_format(self, memory_format)
    )


@shape_rule(aten.full_like.default)
def filled_like(
    self: Abstract,
    fill_value: object,
    *,
    dtype: Dtype,
    device: Device,
    memory_format: torch.memory_format | None,
    **_: object,
) -> Abstract:
    return like(self, dtype=dtype, device=device, memory_format=memory_format)


@shape_rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default)
def new(
    self: Abstract, size: Sequence[Size], *, dtype: Dtype, device: Device, **_: object
) -> Abstract:
    return make_abstract(size, dtype or self.dtype, self.device if device is None else device)


@shape_rule(aten.new_full.default)
def new_full(
    self: Abstract,
    size: Sequence[Size],
    fill_value: object,
    *,
    dtype: Dtype,
    device: Device,
    **_: object,
) -> Abstract:
    return make_abstract(size, dtype or self.dtype, self.device if device is None else device)


@shape_rule(aten.new_empty_strided.default)
def new_empty_strided(
    self: Abstract,
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: Dtype,
    device: Device,
    **_: object,
) -> Abstract:
    device = self.device if device is None else device
    return make_abstract(size, dtype or self.dtype, device, _checked_strides(stride))


@shape_rule(aten.multinomial.default)
def multinomial(
    self: Abstract, num_samples: Size, replacement: bool, *, generator: object
) -> Abstract:
    if not self.dtype.is_floating_point:
        raise ShapeError(f"multinomial only supports floating-point dtypes, got: {self.dtype}")
    if not establish(ge(num_samples, 1)):
        raise ShapeError(f"cannot sample {num_samples} samples")
    if not replacement:
        if not establish(le(num_samples, self.sizes[-1])):
            raise ShapeError(f"cannot sample {num_samples} of {self} without replacement")
    return self.like((*self.sizes[:-1], num_samples), torch.int64)
