"""Division element by element: quotients, remainders, common divisors.

Integers are divided as such, over all of their range (`arithmetic` has the quotients and
remainders). To divide by 0 is an error of ONNX Runtime, as it is one of torch; not where there is
nothing to divide.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.arithmetic import floor_quotient, modulo, quotient, truncated_modulo
from graphport.onnx.builder import Builder, Operand
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.bodies import loop
from graphport.onnx.lowerings.elementwise import operands, truncated, wide
from graphport.onnx.registry import lower
from graphport.symbolic import Expr, ge, ne, prod

aten = torch.ops.aten


def _whole(b: Builder, divide: Any, self: Operand, other: Operand) -> Value:
    """Integers divided in the dtype of the result; by 1 where there is nothing to divide."""
    x, y = operands(b, self, other)
    natural = type(other) is Expr and b.scope.decide(ge(other, 0)) is True
    count = prod(b.result.sizes)
    if _may_be_zero(b, other) and b.scope.decide(ge(count, 1)) is not True:
        nothing = b.Equal(b.sizes.number(count), 0)
        y = b.shaped(b.Where(nothing, b.scalar(1, like=y), y), y.sizes)
    return divide(b, x, y, natural)


def _may_be_zero(b: Builder, x: Operand) -> bool:
    if type(x) is Expr:
        return b.scope.decide(ne(x, 0)) is not True
    if isinstance(x, Value):
        return x.tensor is None or bool((x.tensor == 0).any())
    return x == 0


# Quotients


@lower(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, self: Operand, other: Operand) -> Value:
    return b.Div(*operands(b, self, other))


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, self: Operand, other: Operand, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(b, self, other)
    if rounding_mode == "floor":
        return floor_divide(b, self, other)
    if not b.result.dtype.is_floating_point:
        return _whole(b, quotient, self, other)
    return truncated(b, b.Div(wide(b, self), wide(b, other)))


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: Builder, self: Operand, other: Operand) -> Value:
    if not b.result.dtype.is_floating_point:
        return _whole(b, floor_quotient, self, other)
    x, y = wide(b, self), wide(b, other)
    rest = b.Mod(x, y, fmod=1)
    # What is divided is a multiple of y, up to rounding: 1 // 0.1 is 9, though 1 / 0.1 is 10.
    whole = b.Round(b.Div(b.Sub(x, rest), y))
    whole = b.Where(_disagrees(b, rest, y), b.Sub(whole, 1.0), whole)
    return b.Where(b.Equal(y, 0.0), b.Div(x, y), whole) if _may_be_zero(b, other) else whole


def _disagrees(b: Builder, rest: Value, divisor: Value) -> Value:
    """Where a rest that is not zero has another sign than the divisor."""
    if divisor.tensor is not None and divisor.tensor.numel() == 1:
        return b.Less(rest, 0.0) if divisor.tensor.item() > 0 else b.Greater(rest, 0.0)
    return b.Less(b.Mul(b.Sign(rest), divisor), 0.0)


# Remainders


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: Builder, self: Operand, other: Operand) -> Value:
    """With the sign of the divisor: so are integers in ONNX, floats are not."""
    if not b.result.dtype.is_floating_point:
        return _whole(b, modulo, self, other)
    x, y = wide(b, self), wide(b, other)
    rest = b.Mod(x, y, fmod=1)
    return b.Where(_disagrees(b, rest, y), b.Add(rest, y), rest)


@lower(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, self: Operand, other: Operand) -> Value:
    """With the sign of what is divided."""
    if not b.result.dtype.is_floating_point:
        return _whole(b, truncated_modulo, self, other)
    return b.Mod(*operands(b, self, other), fmod=1)


# Common divisors


def _divided(b: Builder, self: Value, other: Value) -> tuple[Value, Value, Value]:
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
    return loop(b, tuple(states), step)[0], x, y


@lower(aten.gcd.default)
def gcd(b: Builder, self: Value, other: Value) -> Value:
    return _divided(b, self, other)[0]


@lower(aten.lcm.default)
def lcm(b: Builder, self: Value, other: Value) -> Value:
    divisor, x, y = _divided(b, self, other)
    some = b.Where(b.Equal(divisor, 0), b.scalar(1, like=divisor), divisor)
    return b.Abs(b.Mul(quotient(b, x, some), y))
