"""Lowers elementwise comparison, logic, bitwise operators, clamping and selection."""

from __future__ import annotations

import math
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import floor_quotient
from graphport.onnx.emit.builder import Builder, Operand
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.elementwise import cast_operands, emit_power_of_two
from graphport.ops.registry import overloads
from graphport.symbolic import Expr

# Comparison


def _compare(op: str) -> Any:
    def lowering(b: Builder, self: Operand, other: Operand) -> Value:
        return getattr(b, op)(*b.common(self, other))

    return lowering


lower_table(
    {
        "eq.Tensor,Scalar": "Equal",
        "ge.Tensor,Scalar": "GreaterOrEqual",
        "gt.Tensor,Scalar": "Greater",
        "le.Tensor,Scalar": "LessOrEqual",
        "lt.Tensor,Scalar": "Less",
    },
    _compare,
)


@lower(aten.ne.Tensor, aten.ne.Scalar)
def ne(b: Builder, self: Operand, other: Operand) -> Value:
    x, y = b.common(self, other)
    return b.Xor(x, y) if x.dtype is torch.bool else b.Not(b.Equal(x, y))


@lower(aten.isnan.default)
def isnan(b: Builder, self: Value) -> Value:
    return b.IsNaN(self) if self.dtype.is_floating_point else b.Not(b.Equal(self, self))


def _lower_isinf(**which: int) -> Any:
    def lowering(b: Builder, self: Value) -> Value:
        if not self.dtype.is_floating_point:
            return b.Not(b.Equal(self, self))
        return b.IsInf(self, **which)

    return lowering


lower_table(
    {"isinf": {}, "isposinf": {"detect_negative": 0}, "isneginf": {"detect_positive": 0}},
    lambda which: _lower_isinf(**which),
)


@lower(aten.isfinite.default)
def isfinite(b: Builder, self: Value) -> Value:
    if not self.dtype.is_floating_point:
        return b.Equal(self, self)
    # x - x is 0 for what is finite, and nan for the rest.
    return b.Equal(b.Sub(self, self), 0.0)


@lower(aten.signbit.default)
def signbit(b: Builder, self: Value) -> Value:
    return is_negative(b, self)


def is_negative(b: Builder, x: Value) -> Value:
    """Whether the sign is minus, that of a zero included."""
    if not x.dtype.is_floating_point:
        return b.Less(x, b.scalar(0, like=x))
    return b.Less(b.Where(b.Equal(x, 0.0), b.Reciprocal(x), x), 0.0)


# Logic and bits


def _logical(op: str) -> Any:
    def lowering(b: Builder, self: Value, other: Value) -> Value:
        return getattr(b, op)(*b.common(self, other, dtype=torch.bool))

    return lowering


lower_table({"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}, _logical)


@lower(aten.logical_not.default)
def logical_not(b: Builder, self: Value) -> Value:
    if self.dtype is torch.bool:
        return b.Not(self)
    return b.Equal(self, b.scalar(0, like=self))


def _bitwise(op: str) -> Any:
    def lowering(b: Builder, self: Operand, other: Operand) -> Value:
        x, y = b.common(self, other, dtype=b.result.dtype)
        return getattr(b, op if x.dtype is torch.bool else f"Bitwise{op}")(x, y)

    return lowering


lower_table(
    {f"bitwise_{op.lower()}.Tensor,Scalar,Scalar_Tensor": op for op in ("And", "Or", "Xor")},
    _bitwise,
)


@lower(aten.bitwise_not.default)
def bitwise_not(b: Builder, self: Value) -> Value:
    return b.Not(self) if self.dtype is torch.bool else b.BitwiseNot(self)


def _to_int64(b: Builder, *xs: Operand) -> list[Value]:
    """Operands as they are in the dtype of the result, in int64."""
    return [b.cast(x, torch.int64) for x in b.common(*xs, dtype=b.result.dtype)]


@lower(
    *overloads("""
        bitwise_left_shift.Tensor,Tensor_Scalar,Scalar_Tensor __lshift__.Tensor,Scalar
    """)
)
def bitwise_left_shift(b: Builder, self: Operand, other: Operand) -> Value:
    if b.result.dtype.is_floating_point:  # __lshift__ of floats
        x, y = cast_operands(b, self, other)
        return b.Mul(x, b.Pow(b.scalar(2.0, like=y), y))
    x, e = _to_int64(b, self, other)
    return b.Mul(x, emit_power_of_two(b, e, b.result.dtype))


@lower(
    *overloads("""
        bitwise_right_shift.Tensor,Tensor_Scalar,Scalar_Tensor __rshift__.Tensor,Scalar
    """)
)
def bitwise_right_shift(b: Builder, self: Operand, other: Operand) -> Value:
    if b.result.dtype.is_floating_point:
        x, y = cast_operands(b, self, other)
        return b.Div(x, b.Pow(b.scalar(2.0, like=y), y))
    x, e = _to_int64(b, self, other)
    dtype = b.result.dtype
    zero, last = b.scalar(0, torch.int64), torch.iinfo(dtype).bits - int(dtype.is_signed)
    # A shift by more than there is, or by less than nothing, leaves the sign.
    inside = b.And(b.GreaterOrEqual(e, 0), b.Less(e, last))
    factors = b.constant(torch.tensor([2**i for i in range(last)]))
    factor = b.Gather(factors, b.Where(inside, e, zero))
    signs = b.Where(b.Less(x, 0), b.scalar(-1, torch.int64), zero)
    return b.Where(inside, floor_quotient(b, x, factor, natural=True), signs)


# Choice


def _extreme(op: str, logical: str) -> Any:
    def lowering(b: Builder, self: Value, other: Value) -> Value:
        x, y = b.common(self, other, dtype=b.result.dtype)
        return getattr(b, logical if x.dtype is torch.bool else op)(x, y)

    return lowering


lower_table(
    {"maximum max.other": ("Max", "Or"), "minimum min.other": ("Min", "And")},
    lambda ops: _extreme(*ops),
)


def _lower_ignoring_nan(op: str, logical: str) -> Any:
    """The other operand where one is not a number."""
    plain = _extreme(op, logical)

    def lowering(b: Builder, self: Value, other: Value) -> Value:
        if not b.result.dtype.is_floating_point:
            return plain(b, self, other)
        x, y = b.common(self, other, dtype=b.result.dtype)
        return b.Where(b.IsNaN(x), y, b.Where(b.IsNaN(y), x, getattr(b, op)(x, y)))

    return lowering


lower_table({"fmax": ("Max", "Or"), "fmin": ("Min", "And")}, lambda ops: _lower_ignoring_nan(*ops))


@lower(aten.clamp.default, aten.clamp.Tensor, aten.clip.default, aten.clip.Tensor)
def clamp(b: Builder, self: Value, min: Operand | None, max: Operand | None) -> Value:
    """Clip takes 0-d bounds, and does not say what it does with nan among them."""
    x = b.cast(self, b.result.dtype)
    low, high = (None if v is None else b.common(v, dtype=x.dtype)[0] for v in (min, max))
    if all(_is_scalar_bound(v) for v in (min, max)):
        if x.dtype.is_floating_point:  # without a bound it is the largest number, not infinity
            low, high = (
                b.scalar(bound, x.dtype) if v is None else v
                for v, bound in ((low, -math.inf), (high, math.inf))
            )
        return b.Clip(x, low, high)
    if low is not None:
        x = b.Max(x, low)
    return x if high is None else b.Min(x, high)


def _is_scalar_bound(x: Operand | None) -> bool:
    return x is None or type(x) is Expr or (type(x) is not Value and x == x)


@lower(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, self: Value, min: Operand) -> Value:
    return clamp(b, self, min, None)


@lower(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, self: Value, max: Operand) -> Value:
    return clamp(b, self, None, max)


@lower(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(b: Builder, condition: Value, self: Operand, other: Operand) -> Value:
    return b.Where(b.cast(condition, torch.bool), *cast_operands(b, self, other))


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, self: Value, mask: Value, value: Operand) -> Value:
    value, x = b.common(value, self, dtype=self.dtype)
    return b.Where(b.cast(mask, torch.bool), value, x)


@lower(aten.heaviside.default)
def heaviside(b: Builder, self: Value, values: Value) -> Value:
    x, at_zero = b.common(self, values, dtype=b.result.dtype)
    zero = b.scalar(0, like=x)
    return b.Where(b.Equal(x, zero), at_zero, b.cast(b.Greater(x, zero), x.dtype))


@lower(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(b: Builder, self: Value, other: Operand) -> Value:
    x, y = cast_operands(b, self, other)
    size = b.Abs(x)
    return b.Where(is_negative(b, y), b.Neg(size), size)


@lower(aten.nan_to_num.default)
def nan_to_num(b: Builder, self: Value, nan: Any, posinf: Any, neginf: Any) -> Value:
    if not self.dtype.is_floating_point:
        return self
    info = torch.finfo(self.dtype)
    x = b.Where(b.IsNaN(self), b.scalar(nan or 0.0, like=self), self)
    if posinf is None and neginf is None:
        return b.Clip(x, info.min, info.max)
    high = b.scalar(info.max if posinf is None else posinf, like=x)
    low = b.scalar(info.min if neginf is None else neginf, like=x)
    x = b.Where(b.IsInf(self, detect_negative=0), high, x)
    return b.Where(b.IsInf(self, detect_positive=0), low, x)
