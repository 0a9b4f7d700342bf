"""Lowers elementwise arithmetic: sums, products, division, powers, rounding, casts.

Operands are brought to one dtype first, as torch promotes them; the builder casts the result to the
dtype that capture knows it has.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from graphport.compat.operators import aten, prims
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import floor_quotient, modulo, quotient, truncated_modulo
from graphport.onnx.emit.builder import Builder, Number, Operand
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.control import emit_loop
from graphport.symbolic import Expr, ge, ne, prod

HALVES = (torch.float16, torch.bfloat16)


def cast_operands(b: Builder, *xs: Operand, dtype: torch.dtype | None = None) -> list[Value]:
    """Operands in the dtype of the result; halves with a number beyond their range in float32.

    torch computes on halves in float32: `x * 1e6` is finite for a small x.
    """
    dtype = dtype or b.result.dtype
    if dtype in HALVES and any(not _is_representable(x, dtype) for x in xs):
        dtype = torch.float32
    return b.common(*xs, dtype=dtype)


def _is_representable(x: Operand, dtype: torch.dtype) -> bool:
    if not isinstance(x, (int, float)) or x == 0 or not math.isfinite(x):
        return type(x) is not Expr
    info = torch.finfo(dtype)
    return info.tiny <= abs(x) <= info.max


def widen_operand(b: Builder, x: Operand) -> Value:
    """An operand of a formula of several steps: halves in float32, integers as torch's floats."""
    dtype = b.result.dtype if b.result.dtype.is_floating_point else torch.float32
    return b.common(x, dtype=torch.float32 if dtype in HALVES else dtype)[0]


# One operand


def _lower_unary(op: str) -> Any:
    """In the dtype of the result: integers become floats where torch says so."""

    def lowering(b: Builder, self: Value) -> Value:
        return getattr(b, op)(b.cast(self, b.result.dtype))

    return lowering


lower_table(
    {op.lower(): op for op in "Abs Cos Exp Log Neg Reciprocal Sin Sqrt Tanh".split()}, _lower_unary
)


def _lower_rounding(op: str) -> Any:
    """Integers are whole already."""

    def lowering(b: Builder, self: Value) -> Value:
        return getattr(b, op)(self) if self.dtype.is_floating_point else self

    return lowering


lower_table({"ceil": "Ceil", "floor": "Floor", "round": "Round"}, _lower_rounding)


@lower(aten.trunc.default, aten.fix.default)
def trunc(b: Builder, self: Value) -> Value:
    if not self.dtype.is_floating_point:
        return self
    return emit_trunc(b, self)


def emit_trunc(b: Builder, x: Value) -> Value:
    return b.Mul(b.Sign(x), b.Floor(b.Abs(x)))


@lower(aten.frac.default)
def frac(b: Builder, self: Value) -> Value:
    return b.Mod(self, 1.0, fmod=1)


@lower(aten.round.decimals)
def round_decimals(b: Builder, self: Value, decimals: int) -> Value:
    if not self.dtype.is_floating_point:
        if decimals:
            raise UnsupportedError("round of integers with decimals has no ONNX lowering")
        return self
    if decimals == 0:
        return b.Round(self)
    x, factor = widen_operand(b, self), 10.0 ** abs(decimals)
    if decimals > 0:
        return b.Div(b.Round(b.Mul(x, factor)), factor)
    return b.Mul(b.Round(b.Div(x, factor)), factor)


@lower(aten.sign.default, aten.sgn.default)
def sign(b: Builder, self: Value) -> Value:
    """Not a number has no sign; ONNX Runtime hands it on."""
    if self.dtype is torch.bool:
        return self
    if not self.dtype.is_floating_point:
        return b.Sign(self)
    return b.Where(b.IsNaN(self), b.scalar(0.0, like=self), b.Sign(self))


@lower(aten.positive.default)
def positive(b: Builder, self: Value) -> Value:
    return self


@lower(aten.square.default)
def square(b: Builder, self: Value) -> Value:
    x = b.cast(self, b.result.dtype)
    return b.Mul(x, x)


@lower(aten.rsqrt.default)
def rsqrt(b: Builder, self: Value) -> Value:
    return b.Reciprocal(b.Sqrt(b.cast(self, b.result.dtype)))


def _lower_scaling(factor: float) -> Any:
    def lowering(b: Builder, self: Value) -> Value:
        return b.Mul(*cast_operands(b, self, factor))

    return lowering


lower_table({"deg2rad": math.pi / 180, "rad2deg": 180 / math.pi}, _lower_scaling)


# Arithmetic


@lower(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, self: Operand, other: Operand, alpha: Number) -> Value:
    if b.result.dtype is torch.bool:
        x, y = b.common(self, other, dtype=torch.bool)
        return b.Or(x, y) if alpha else x
    x, y = cast_operands(b, self, other)
    return b.Add(x, _scale(b, y, alpha))


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, self: Operand, other: Operand, alpha: Number) -> Value:
    x, y = cast_operands(b, self, other)
    return b.Sub(x, _scale(b, y, alpha))


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, self: Operand, other: Operand, alpha: Number) -> Value:
    x, y = cast_operands(b, self, other)
    return b.Sub(y, _scale(b, x, alpha))


def _scale(b: Builder, x: Value, factor: Any) -> Value:
    return x if type(factor) is not Expr and factor == 1 else b.Mul(x, factor)


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, self: Operand, other: Operand) -> Value:
    x, y = cast_operands(b, self, other)
    return b.And(x, y) if b.result.dtype is torch.bool else b.Mul(x, y)


@lower(aten.addcmul.default)
def addcmul(b: Builder, self: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    x, y, z = cast_operands(b, self, tensor1, tensor2)
    return b.Add(x, b.Mul(_scale(b, y, value), z))


@lower(aten.addcdiv.default)
def addcdiv(b: Builder, self: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    x, y, z = cast_operands(b, self, tensor1, tensor2)
    return b.Add(x, b.Div(_scale(b, y, value), z))


@lower(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, self: Value, end: Value, weight: Operand) -> Value:
    """From the nearer end, as torch does."""
    x, y, w = cast_operands(b, self, end, weight)
    step = b.Sub(y, x)
    if isinstance(weight, (int, float)):
        if abs(weight) < 0.5:
            return b.Add(x, b.Mul(w, step))
        return b.Sub(y, b.Mul(step, 1.0 - weight))
    near = b.Add(x, b.Mul(w, step))
    far = b.Sub(y, b.Mul(step, b.Sub(b.scalar(1.0, like=w), w)))
    return b.Where(b.Less(b.Abs(w), 0.5), near, far)


# Powers


@lower(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def pow(b: Builder, self: Operand, exponent: Operand) -> Value:
    if not b.result.dtype.is_floating_point:
        return _integer_pow(b, self, exponent)
    if isinstance(exponent, (int, float)) and type(self) is Value:
        x = b.cast(self, b.result.dtype)
        simple = _POWERS.get(float(exponent))
        if simple is not None:
            return simple(b, x)
    x, e = cast_operands(b, self, exponent)
    if b.result.dtype is torch.float64 and e.tensor is not None and (e.tensor == 2).all():
        # Of a square, a mean and a root ONNX Runtime makes a norm, in float64 with an epsilon of
        # 1e-5 whatever it was.
        x = b.expand(x, b.result.sizes)
        return b.Mul(x, x)
    return b.Pow(x, e)


_POWERS: dict[float, Any] = {
    1.0: lambda b, x: x,
    0.5: lambda b, x: b.Sqrt(x),
    -0.5: lambda b, x: b.Reciprocal(b.Sqrt(x)),
    -1.0: lambda b, x: b.Reciprocal(x),
}


def _integer_pow(b: Builder, self: Operand, exponent: Operand) -> Value:
    """Products that wrap around, as torch's: ONNX Runtime's Pow goes through float64."""
    dtype = b.result.dtype
    if type(exponent) is int and exponent >= 0:
        return _power_by_squaring(b, b.common(self, dtype=dtype)[0], exponent)
    if type(self) is int and self == 2:
        return emit_power_of_two(b, b.common(exponent, dtype=torch.int64)[0], dtype)
    x, e = b.common(self, exponent, dtype=torch.int64)
    one = b.scalar(1, torch.int64)

    def step(total: Value, square: Value, left: Value) -> Any:
        odd = b.Equal(b.Mod(left, 2), one)
        rest = b.Div(left, 2)
        more = b.Greater(b.ReduceMax(rest, keepdims=0), 0)
        return more, (b.Where(odd, b.Mul(total, square), total), b.Mul(square, square), rest)

    sizes = b.result.sizes
    start = b.expand(one, sizes), b.expand(x, sizes), b.expand(b.Max(e, 0), sizes)
    total, _, _ = emit_loop(b, start, step, trips=63)
    # Of a negative exponent only 1 and -1 are left.
    sign = b.Where(b.Equal(b.Mod(e, 2), 1), x, one)
    inverse = b.Where(b.Equal(b.Abs(x), one), sign, b.scalar(0, torch.int64))
    return b.Where(b.Less(e, 0), inverse, total)


def _power_by_squaring(b: Builder, x: Value, exponent: int) -> Value:
    total: Value | None = None
    while exponent:
        if exponent & 1:
            total = x if total is None else b.Mul(total, x)
        exponent >>= 1
        if exponent:
            x = b.Mul(x, x)
    return b.expand(b.scalar(1, like=x), b.result.sizes) if total is None else total


def emit_power_of_two(b: Builder, e: Value, dtype: torch.dtype) -> Value:
    """2 ** e in integers of some width: 0 for what they cannot hold."""
    bits = torch.iinfo(dtype).bits
    wrapped = [2**i if i < 63 else -(2**63) for i in range(bits)]
    inside = b.And(b.GreaterOrEqual(e, 0), b.Less(e, bits))
    place = b.Where(inside, e, b.scalar(bits, torch.int64))
    return b.Gather(b.constant(torch.tensor([*wrapped, 0])), place)


# Type conversion


@lower(aten._to_copy.default, aten.to.dtype_layout)
def _to_copy(b: Builder, self: Value, dtype: object) -> Value:
    return b.cast(self, b.result.dtype)


lower_table(
    {"to.dtype,device": "dtype"}, lambda _: lambda b, self, dtype: b.cast(self, b.result.dtype)
)


@lower(prims.convert_element_type.default)
def convert_element_type(b: Builder, a: Value, dtype: object) -> Value:
    return b.cast(a, b.result.dtype)


@lower(aten.to.other, aten.type_as.default)
def to_other(b: Builder, self: Value, other: Value) -> Value:
    return b.cast(self, b.result.dtype)


# Division: quotients, remainders, common divisors.
#
# Integers are divided as such, over all of their range (`arithmetic` has the quotients and
# remainders). To divide by 0 is an error of ONNX Runtime, as it is one of torch; not where there is
# nothing to divide.


def _divide_integers(b: Builder, divide: Any, self: Operand, other: Operand) -> Value:
    """Integers divided in the dtype of the result; by 1 where there is nothing to divide."""
    x, y = cast_operands(b, self, other)
    natural = type(other) is Expr and b.scope.decide(ge(other, 0)) is True
    count = prod(b.result.sizes)
    if _can_be_zero(b, other) and b.scope.decide(ge(count, 1)) is not True:
        nothing = b.Equal(b.sizes.number(count), 0)
        y = b.shaped(b.Where(nothing, b.scalar(1, like=y), y), y.sizes)
    return divide(b, x, y, natural)


def _can_be_zero(b: Builder, x: Operand) -> bool:
    if type(x) is Expr:
        return b.scope.decide(ne(x, 0)) is not True
    if isinstance(x, Value):
        return x.tensor is None or bool((x.tensor == 0).any())
    return x == 0


# Quotients


@lower(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, self: Operand, other: Operand) -> Value:
    return b.Div(*cast_operands(b, self, other))


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, self: Operand, other: Operand, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(b, self, other)
    if rounding_mode == "floor":
        return floor_divide(b, self, other)
    if not b.result.dtype.is_floating_point:
        return _divide_integers(b, quotient, self, other)
    return emit_trunc(b, b.Div(widen_operand(b, self), widen_operand(b, other)))


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: Builder, self: Operand, other: Operand) -> Value:
    if not b.result.dtype.is_floating_point:
        return _divide_integers(b, floor_quotient, self, other)
    x, y = widen_operand(b, self), widen_operand(b, other)
    rest = b.Mod(x, y, fmod=1)
    # What is divided is a multiple of y, up to rounding: 1 // 0.1 is 9, though 1 / 0.1 is 10.
    whole = b.Round(b.Div(b.Sub(x, rest), y))
    whole = b.Where(_has_other_sign(b, rest, y), b.Sub(whole, 1.0), whole)
    return b.Where(b.Equal(y, 0.0), b.Div(x, y), whole) if _can_be_zero(b, other) else whole


def _has_other_sign(b: Builder, rest: Value, divisor: Value) -> Value:
    """Where a rest that is not zero has another sign than the divisor."""
    if divisor.tensor is not None and divisor.tensor.numel() == 1:
        return b.Less(rest, 0.0) if divisor.tensor.item() > 0 else b.Greater(rest, 0.0)
    return b.Less(b.Mul(b.Sign(rest), divisor), 0.0)


# Remainders


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: Builder, self: Operand, other: Operand) -> Value:
    """With the sign of the divisor: so are integers in ONNX, floats are not."""
    if not b.result.dtype.is_floating_point:
        return _divide_integers(b, modulo, self, other)
    x, y = widen_operand(b, self), widen_operand(b, other)
    rest = b.Mod(x, y, fmod=1)
    return b.Where(_has_other_sign(b, rest, y), b.Add(rest, y), rest)


@lower(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, self: Operand, other: Operand) -> Value:
    """With the sign of what is divided."""
    if not b.result.dtype.is_floating_point:
        return _divide_integers(b, truncated_modulo, self, other)
    return b.Mod(*cast_operands(b, self, other), fmod=1)


# Common divisors


def _emit_gcd(b: Builder, self: Value, other: Value) -> tuple[Value, Value, Value]:
    """The greatest common divisor, and the operands.

    The lowest integer has no absolute value but itself: rests may be negative, and the result too,
    as in torch.
    """
    x, y = b.common(self, other, dtype=b.result.dtype)

    def step(divisor: Value, rest: Value) -> Any:
        # Where the rest is 0 the divisor stands; nothing is divided by it.
        done = b.Equal(rest, 0)
        next_rest = truncated_modulo(b, divisor, b.Where(done, b.scalar(1, like=rest), rest))
        new = b.Where(done, divisor, rest), b.Where(done, rest, next_rest)
        more = b.ReduceMax(b.cast(b.cast(new[1], torch.bool), torch.int32), keepdims=0)
        return b.Greater(more, 0), new

    states = (b.expand(b.Abs(v), b.result.sizes) for v in (y, x))
    return emit_loop(b, tuple(states), step)[0], x, y


@lower(aten.gcd.default)
def gcd(b: Builder, self: Value, other: Value) -> Value:
    return _emit_gcd(b, self, other)[0]


@lower(aten.lcm.default)
def lcm(b: Builder, self: Value, other: Value) -> Value:
    divisor, x, y = _emit_gcd(b, self, other)
    some = b.Where(b.Equal(divisor, 0), b.scalar(1, like=divisor), divisor)
    return b.Abs(b.Mul(quotient(b, x, some), y))
