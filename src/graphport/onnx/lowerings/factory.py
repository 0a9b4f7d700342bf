"""Lowers tensor factories: full, arange, linspace, eye.

What has fixed sizes is computed at export; here are the others. A tensor without content is one of
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.ops.registry import overloads
from graphport.symbolic import Expr, floordiv, ge, max_, type_of


def emit_full(b: Builder, sizes: Sequence[Size], value: Number, dtype: torch.dtype) -> Value:
    """A tensor of one number."""
    if type(value) is Expr:
        return b.expand(b.scalar(value, dtype), sizes)
    content = torch.tensor([value], dtype=dtype)
    return b.shaped(b.ConstantOfShape(list(sizes), value=content, dtype=dtype), sizes)


def _fill_result(b: Builder, value: Number) -> Value:
    return emit_full(b, b.result.sizes, value, b.result.dtype)


def _lower_by_size(value: int) -> Any:
    def lowering(b: Builder, size: object, dtype: object) -> Value:
        return _fill_result(b, value)

    return lowering


def _lower_like(value: int) -> Any:
    def lowering(b: Builder, self: Value, dtype: object) -> Value:
        return _fill_result(b, value)

    return lowering


def _lower_new(value: int) -> Any:
    def lowering(b: Builder, self: Value, size: object, dtype: object) -> Value:
        return _fill_result(b, value)

    return lowering


lower_table({"zeros": 0, "ones": 1, "empty.memory_format": 0}, _lower_by_size)
lower_table({"zeros_like": 0, "ones_like": 1, "empty_like": 0}, _lower_like)
lower_table({"new_zeros": 0, "new_ones": 1, "new_empty": 0}, _lower_new)


@lower(aten.empty_strided.default)
def empty_strided(b: Builder, size: object, stride: object, dtype: object) -> Value:
    return _fill_result(b, 0)


@lower(aten.empty_permuted.default)
def empty_permuted(b: Builder, size: object, physical_layout: object, dtype: object) -> Value:
    return _fill_result(b, 0)


@lower(aten.new_empty_strided.default)
def new_empty_strided(
    b: Builder, self: Value, size: object, stride: object, dtype: object
) -> Value:
    return _fill_result(b, 0)


@lower(aten.full.default)
def full(b: Builder, size: object, fill_value: Number, dtype: object) -> Value:
    return _fill_result(b, fill_value)


@lower(aten.full_like.default)
def full_like(b: Builder, self: Value, fill_value: Number, dtype: object) -> Value:
    return _fill_result(b, fill_value)


@lower(aten.new_full.default)
def new_full(b: Builder, self: Value, size: object, fill_value: Number, dtype: object) -> Value:
    return _fill_result(b, fill_value)


@lower(aten.fill.Scalar)
def fill(b: Builder, self: Value, value: Number) -> Value:
    return _fill_result(b, value)


@lower(aten.fill.Tensor)
def fill_tensor(b: Builder, self: Value, value: Value) -> Value:
    return b.expand(b.cast(value, b.result.dtype), b.result.sizes)


@lower(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, s: Number, dtype: object) -> Value:
    return b.scalar(s, b.result.dtype)


# Ranges


@lower(aten.arange.default)
def arange(b: Builder, end: Number, dtype: object) -> Value:
    return _emit_range(b, 0, end, 1)


@lower(aten.arange.start)
def arange_start(b: Builder, start: Number, end: Number, dtype: object) -> Value:
    return _emit_range(b, start, end, 1)


@lower(aten.arange.start_step)
def arange_step(b: Builder, start: Number, end: Number, step: Number, dtype: object) -> Value:
    return _emit_range(b, start, end, step)


def _emit_range(b: Builder, start: Number, end: Number, step: Number) -> Value:
    """Of integers it is Range. ONNX Runtime adds up floats, and torch multiplies.

    ONNX Runtime takes a Gather by a Range for a Slice with the same ends, where -1 is the last
    place and not the one before the first: what may lead below zero is the negative of a Range.
    """
    if all(type_of(x) is int for x in (start, end, step)):
        if all(b.scope.decide(ge(x, 0)) is True for x in (start, step)):
            return b.Range(*(b.sizes.number(x) for x in (start, end, step)))
        return b.Neg(b.Range(*(b.sizes.number(-x) for x in (start, end, step))))
    if not b.result.dtype.is_floating_point:  # numbers are converted first
        start, step = (x if type(x) is Expr else int(x) for x in (start, step))
    along = emit_arange(b, b.result.sizes[0])
    kind = torch.float64 if float in map(type_of, (start, step)) else torch.int64
    steps = b.Mul(b.cast(along, kind), b.scalar(step, kind))
    return b.Add(steps, b.scalar(start, kind))


@lower(*overloads("linspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor"))
def linspace(b: Builder, start: Number, end: Number, steps: Size, dtype: object) -> Value:
    return emit_linspace(b, start, end, steps, b.result.dtype)


@lower(*overloads("logspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor"))
def logspace(
    b: Builder, start: Number, end: Number, steps: Size, base: float, dtype: object
) -> Value:
    exponents = emit_linspace(b, start, end, steps, b.result.dtype)
    return b.Pow(b.scalar(base, like=exponents), exponents)


def emit_linspace(b: Builder, start: Any, end: Any, steps: Any, dtype: torch.dtype) -> Value:
    """The first half counted from the start, the other from the end; of one number the start."""
    kind = dtype if dtype in (torch.float32, torch.float64) else torch.float64
    first, last = (b.cast(x, kind) for x in b.common(start, end, dtype=dtype))
    step = b.Div(b.Sub(last, first), b.scalar(max_(steps - 1, 1), kind))
    index = emit_arange(b, steps)
    along = b.cast(index, kind)
    left = b.cast(b.Sub(b.sizes.number(steps - 1), index), kind)
    if dtype.is_floating_point:
        from_start = b.Add(first, b.Mul(step, along))
        from_end = b.Sub(last, b.Mul(step, left))
    else:
        # Cut off where it is whole but for the last bit: torch's kernel rounds after the sum only.
        # The products of the first part of a step are exact, so the last addition alone rounds.
        short = b.cast(b.cast(step, torch.float32), kind)
        rest = b.Sub(step, short)
        from_start = b.Add(b.Add(first, b.Mul(short, along)), b.Mul(rest, along))
        from_end = b.Sub(b.Sub(last, b.Mul(short, left)), b.Mul(rest, left))
    half = b.sizes.number(max_(floordiv(steps, 2), 1))
    return b.Where(b.Less(index, half), from_start, from_end)


# Identity


@lower(aten.eye.default)
def eye(b: Builder, n: object, dtype: object) -> Value:
    return _emit_eye(b)


@lower(aten.eye.m)
def eye_m(b: Builder, n: object, m: object, dtype: object) -> Value:
    return _emit_eye(b)


def _emit_eye(b: Builder) -> Value:
    kind = b.result.dtype if b.result.dtype in (torch.float64, torch.int64) else torch.float32
    return b.EyeLike(emit_full(b, b.result.sizes, 0, kind), dtype=kind)
