"""Lowers special and elementary functions that ONNX has no operator for.

They are formulas that keep the precision of the dtype. Halves are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import emit_log_base
from graphport.onnx.emit.builder import Builder, Operand
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.compare import is_negative
from graphport.onnx.lowerings.elementwise import cast_operands, widen_operand
from graphport.onnx.lowerings.numerics import chebyshev
from graphport.onnx.lowerings.numerics.chebyshev import emit_fit

Formula = Callable[[Builder, Value], Value]


# Exponentials and logarithms


def expm1_of(b: Builder, x: Value) -> Value:
    """e^x - 1 = tanh(x/2) (e^x + 1), which loses nothing near 0."""
    return b.Mul(b.Tanh(b.Mul(x, 0.5)), b.Add(b.Exp(x), 1.0))


def log1p_of(b: Builder, x: Value) -> Value:
    """log(u) x / (u - 1) with u = 1 + x rounded, which loses nothing near 0.

    Where u is x or 1 the quotient is 1: there it need not be, and cannot be, computed.
    """
    one = b.scalar(1.0, like=x)
    u = b.Add(x, one)
    lost = b.Sub(u, one)
    same = b.Or(b.Equal(u, x), b.Equal(lost, 0.0))
    quotient = b.Div(b.Where(same, one, x), b.Where(same, one, lost))
    return b.Where(b.Equal(lost, 0.0), x, b.Mul(b.Log(u), quotient))


def _lower_formula(formula: Formula) -> Any:
    def lowering(b: Builder, self: Value) -> Value:
        return formula(b, widen_operand(b, self))

    return lowering


def _power_formula(base: float) -> Formula:
    return lambda b, x: b.Pow(b.scalar(base, like=x), x)


def _log_formula(base: float) -> Formula:
    return lambda b, x: emit_log_base(b, x, base)


def _sinc(b: Builder, x: Value) -> Value:
    angle, one = b.Mul(x, math.pi), b.scalar(1.0, like=x)
    zero = b.Equal(x, 0.0)
    return b.Where(zero, one, b.Div(b.Sin(angle), b.Where(zero, one, angle)))


lower_table(
    {
        "expm1": expm1_of,
        "log1p": log1p_of,
        "exp2": _power_formula(2.0),
        "log2": _log_formula(2.0),
        "log10": _log_formula(10.0),
        "sinc": _sinc,
    },
    _lower_formula,
)


def log_add_exp(b: Builder, x: Value, y: Value) -> Value:
    """log(e^x + e^y): the larger, and what the smaller adds; equal infinities do not differ."""
    less = b.Where(b.Equal(x, y), b.scalar(0.0, like=x), b.Neg(b.Abs(b.Sub(x, y))))
    return b.Add(b.Max(x, y), log1p_of(b, b.Exp(less)))


@lower(aten.logaddexp.default)
def logaddexp(b: Builder, self: Value, other: Value) -> Value:
    return log_add_exp(b, widen_operand(b, self), widen_operand(b, other))


@lower(aten.logaddexp2.default)
def logaddexp2(b: Builder, self: Value, other: Value) -> Value:
    x, y = (b.Mul(widen_operand(b, v), math.log(2)) for v in (self, other))
    return b.Div(log_add_exp(b, x, y), math.log(2))


def _lower_xlog(log: Formula) -> Any:
    def lowering(b: Builder, self: Operand, other: Operand) -> Value:
        """0 for x = 0, unless y is not a number."""
        x, y = widen_operand(b, self), widen_operand(b, other)
        y = b.expand(y, b.result.sizes) if y.shape == () else y
        zero = b.And(b.Equal(x, 0.0), b.Not(b.IsNaN(y)))
        return b.Where(zero, b.scalar(0.0, like=x), b.Mul(x, log(b, y)))

    return lowering


lower_table(
    {
        "xlogy.Tensor,Scalar_Self,Scalar_Other": lambda b, y: b.Log(y),
        "special_xlog1py.default,self_scalar,other_scalar": log1p_of,
    },
    _lower_xlog,
)


@lower(aten.logit.default)
def logit(b: Builder, self: Value, eps: float | None) -> Value:
    x = widen_operand(b, self)
    if eps is not None:
        x = b.Clip(x, eps, 1.0 - eps)
    return b.Log(b.Div(x, b.Sub(b.scalar(1.0, like=x), x)))


@lower(aten.special_entr.default)
def special_entr(b: Builder, self: Value) -> Value:
    """-x log(x), with 0 at 0 and -inf below."""
    x = widen_operand(b, self)
    zero, below = b.scalar(0.0, like=x), b.scalar(-math.inf, like=x)
    return b.Where(
        b.Equal(x, zero), zero, b.Where(b.Less(x, zero), below, b.Neg(b.Mul(x, b.Log(x))))
    )


# Trigonometry


def _lower_kernel_or_formula(op: str, formula: Formula | None) -> Any:
    """The operator where ONNX Runtime has a kernel for it, a formula for float64."""

    def lowering(b: Builder, self: Value) -> Value:
        x = b.cast(self, b.result.dtype)
        if formula is None or x.dtype is not torch.float64 or b.has(op, x.dtype):
            return getattr(b, op)(x)
        return formula(b, x)

    return lowering


def _atan_near_0(t: torch.Tensor) -> torch.Tensor:
    """atan(x)/x in x^2 = 0.1 (t + 1), for |x| up to tan(pi/8) and a little more."""
    x = (0.1 * (t + 1)).sqrt()
    return torch.atan(x) / x


def _atan(b: Builder, x: Value) -> Value:
    """By the angle to the nearest of 0, pi/4 and pi/2."""
    size = b.Abs(x)
    steep, middle = b.Greater(size, 1 + math.sqrt(2)), b.Greater(size, math.sqrt(2) - 1)
    nothing, eighth, quarter = (b.scalar(a, like=x) for a in (0.0, math.pi / 4, math.pi / 2))
    turned = b.Where(middle, b.Div(b.Sub(size, 1.0), b.Add(size, 1.0)), size)
    turned = b.Where(steep, b.Neg(b.Reciprocal(size)), turned)
    base = b.Where(steep, quarter, b.Where(middle, eighth, nothing))
    t = b.Sub(b.Mul(b.Mul(turned, turned), 10.0), 1.0)
    out = b.Add(base, b.Mul(turned, emit_fit(b, t, _atan_near_0, 12)))
    return b.Where(is_negative(b, x), b.Neg(out), out)


def _asin(b: Builder, x: Value) -> Value:
    one = b.scalar(1.0, like=x)
    return _atan(b, b.Div(x, b.Sqrt(b.Mul(b.Sub(one, x), b.Add(one, x)))))


def acos_of(b: Builder, x: Value) -> Value:
    one = b.scalar(1.0, like=x)
    return b.Mul(_atan(b, b.Sqrt(b.Div(b.Sub(one, x), b.Add(one, x)))), 2.0)


def _cosh(b: Builder, x: Value) -> Value:
    half = b.Mul(b.Exp(b.Abs(x)), 0.5)
    return b.Add(half, b.Div(b.scalar(0.25, like=x), half))


def _asinh(b: Builder, x: Value) -> Value:
    size = b.Abs(x)
    root = b.Add(b.Sqrt(b.Add(b.Mul(size, size), 1.0)), 1.0)
    # Past 1e100 the square is too large, and 1 nothing beside it.
    small = log1p_of(b, b.Add(size, b.Mul(size, b.Div(size, root))))
    out = b.Where(b.Greater(size, 1e100), b.Add(b.Log(size), math.log(2)), small)
    return b.Where(is_negative(b, x), b.Neg(out), out)


def _acosh(b: Builder, x: Value) -> Value:
    over = b.Sub(x, 1.0)
    return b.Where(
        b.Greater(x, 1e100),
        b.Add(b.Log(x), math.log(2)),
        log1p_of(b, b.Add(over, b.Mul(b.Sqrt(over), b.Sqrt(b.Add(x, 1.0))))),
    )


def _atanh(b: Builder, x: Value) -> Value:
    twice = b.Mul(x, 2.0)
    return b.Mul(log1p_of(b, b.Div(twice, b.Sub(b.scalar(1.0, like=x), x))), 0.5)


lower_table(
    {
        "tan": ("Tan", lambda b, x: b.Div(b.Sin(x), b.Cos(x))),
        "asin": ("Asin", _asin),
        "acos": ("Acos", acos_of),
        "atan": ("Atan", _atan),
        "cosh": ("Cosh", _cosh),
        "sinh": ("Sinh", lambda b, x: b.Mul(b.Tanh(x), _cosh(b, x))),
        "asinh": ("Asinh", _asinh),
        "acosh": ("Acosh", _acosh),
        "atanh": ("Atanh", _atanh),
    },
    lambda row: _lower_kernel_or_formula(*row),
)


@lower(aten.atan2.default, aten.arctan2.default)
def atan2(b: Builder, self: Value, other: Value) -> Value:
    """The angle of y/x, half a turn further where x is negative; zeros have signs."""
    y, x = widen_operand(b, self), widen_operand(b, other)
    # Two zeros, or two infinities, stand for numbers of the same size.
    alike = b.Or(b.And(b.IsInf(x), b.IsInf(y)), b.And(b.Equal(x, 0.0), b.Equal(y, 0.0)))
    left, down = is_negative(b, x), is_negative(b, y)
    nothing, turn = b.scalar(0.0, like=x), b.scalar(math.pi, like=x)
    one = b.scalar(1.0, like=x)
    ratio = b.Div(b.Where(alike, b.Sign(y), y), b.Where(alike, b.Where(left, b.Neg(one), one), x))
    angle = b.Atan(ratio) if x.dtype is torch.float32 else _atan(b, ratio)
    return b.Add(angle, b.Where(left, b.Where(down, b.Neg(turn), turn), nothing))


@lower(aten.angle.default)
def angle(b: Builder, self: Value) -> Value:
    """Half a turn for what is negative."""
    x = widen_operand(b, self)
    nothing, turn = b.scalar(0.0, like=x), b.scalar(math.pi, like=x)
    out = b.Where(b.Less(x, nothing), turn, nothing)
    return b.Where(b.IsNaN(x), x, out) if self.dtype.is_floating_point else out


@lower(aten.hypot.default)
def hypot(b: Builder, self: Value, other: Value) -> Value:
    """In float64, where the squares of all that float32 holds have room."""
    if b.result.dtype is not torch.float64:
        x, y = (b.cast(v, torch.float64) for v in cast_operands(b, self, other))
        return b.Sqrt(b.Add(b.Mul(x, x), b.Mul(y, y)))
    x, y = (b.Abs(v) for v in cast_operands(b, self, other))
    most = b.Max(x, y)
    plain = b.Or(b.Equal(most, 0.0), b.IsInf(most))
    ratio = b.Div(b.Min(x, y), b.Where(plain, b.scalar(1.0, like=x), most))
    return b.Where(plain, most, b.Mul(most, b.Sqrt(b.Add(b.Mul(ratio, ratio), 1.0))))


# Digits


def _mantissa_and_exponent(b: Builder, x: Value, op: str) -> tuple[Value, Value, Value]:
    """m and e of |x| = m 2^e with m from 1/2 to 1, in float64, and where x is such a number."""
    if x.dtype is torch.float64:
        raise UnsupportedError(f"{op} of float64 has no ONNX lowering")
    size = b.Abs(b.cast(x, torch.float64))
    one, two = b.scalar(1.0, like=size), b.scalar(2.0, like=size)
    # x - x is 0 unless x is infinite or nan
    usual = b.And(b.Greater(size, 0.0), b.Equal(b.Sub(size, size), 0.0))
    size = b.Where(usual, size, one)
    e = b.Add(b.Floor(b.Div(b.Log(size), math.log(2))), 1.0)
    m = b.Div(size, b.Pow(two, e))
    # The logarithm may be off by its last digit.
    more, less = b.GreaterOrEqual(m, 1.0), b.Less(m, 0.5)
    e = b.Sub(b.Add(e, b.cast(more, e.dtype)), b.cast(less, e.dtype))
    return b.Div(size, b.Pow(two, e)), e, usual


@lower(aten.frexp.Tensor)
def frexp(b: Builder, self: Value) -> tuple[Value, Value]:
    m, e, usual = _mantissa_and_exponent(b, self, "frexp")
    signed = b.cast(b.Where(b.Less(self, 0.0), b.Neg(m), m), self.dtype)
    return b.Where(usual, signed, self), b.Where(usual, e, b.scalar(0.0, like=e))


@lower(aten.nextafter.default)
def nextafter(b: Builder, self: Value, other: Value) -> Value:
    """A step of the last digit, in float64; half a step from a power of two towards 0."""
    x, y = b.common(self, other)
    m, e, usual = _mantissa_and_exponent(b, x, "nextafter")
    info = torch.finfo(x.dtype)
    digits = 1 - round(math.log2(info.eps))
    least = math.log2(info.smallest_normal) - digits + 1
    up = b.Less(x, y)
    inward = b.Xor(up, b.Greater(x, 0.0))
    edge = b.cast(b.And(inward, b.Equal(m, 0.5)), torch.float64)
    two = b.scalar(2.0, like=e)
    step = b.Pow(two, b.Max(b.Sub(b.Sub(e, float(digits)), edge), least))
    step = b.Where(usual, step, b.scalar(2.0**least, like=e))
    start = b.cast(x, torch.float64)
    moved = b.Add(start, b.Where(up, step, b.Neg(step)))
    moved = b.Where(b.IsInf(x), b.Clip(start, info.min, info.max), moved)
    out = b.Where(b.Equal(x, y), y, b.cast(moved, x.dtype))
    return b.Where(b.Or(b.IsNaN(x), b.IsNaN(y)), b.scalar(math.nan, like=x), out)


# The error function


def erf_of(b: Builder, x: Value) -> Value:
    return b.Erf(x) if x.dtype is not torch.float64 else chebyshev.erf(b, x)


@lower(aten.erf.default, aten.special_erf.default)
def erf(b: Builder, self: Value) -> Value:
    return erf_of(b, b.cast(self, b.result.dtype))
