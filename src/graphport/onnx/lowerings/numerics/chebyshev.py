"""Lowers erf, gamma and zeta functions by Chebyshev fits and asymptotic series.

They are computed in float64. A polynomial is fitted to torch's own function when it is first
needed, at the zeros of a Chebyshev polynomial; its degree is one at which the error is that of
float64. So the results are torch's to the last digits, far in the tails too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from numpy.polynomial.chebyshev import cheb2poly

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder, Operand
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.control import emit_loop

Function = Callable[[torch.Tensor], torch.Tensor]


def emit_polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """The highest power first."""
    first, second, *others = coefficients
    total = b.Add(b.Mul(x, first), second)
    for c in others:
        total = b.Add(b.Mul(total, x), c)
    return total


@cache
def fit_coefficients(function: Function, degree: int) -> tuple[float, ...]:
    """The polynomial nearest to a function on [-1, 1], the highest power first."""
    count = degree + 1
    angles = (torch.arange(count, dtype=torch.float64) + 0.5) * (math.pi / count)
    values = function(torch.cos(angles))
    orders = torch.arange(count, dtype=torch.float64)
    series = torch.cos(orders[:, None] * angles) @ values * (2 / count)
    series[0] /= 2
    return tuple(reversed(cheb2poly(series.numpy()).tolist()))


def emit_fit(b: Builder, t: Value, function: Function, degree: int) -> Value:
    return emit_polynomial(b, t, fit_coefficients(function, degree))


def lower_in_float64(formula: Callable[[Builder, Value], Value]) -> Any:
    def lowering(b: Builder, self: Value) -> Value:
        return formula(b, b.cast(self, torch.float64))

    return lowering


# Error functions


def _erf_near_0(t: torch.Tensor) -> torch.Tensor:
    """erf(x)/x in x^2 = (t + 1)/2."""
    x = ((t + 1) / 2).sqrt()
    return torch.erf(x) / x


def _erfcx_scaled(t: torch.Tensor) -> torch.Tensor:
    """(1 + 2x) erfcx(x) in t = 1 - 8/(x + 4), which takes all x from 0 on."""
    x = 8 / (1 - t) - 4
    return (1 + 2 * x) * torch.special.erfcx(x)


def _erfcx_positive(b: Builder, x: Value) -> Value:
    one = b.scalar(1.0, like=x)
    t = b.Sub(one, b.Div(b.scalar(8.0, like=x), b.Add(x, 4.0)))
    return b.Div(emit_fit(b, t, _erfcx_scaled, 28), b.Add(b.Mul(x, 2.0), one))


def _erf_small(b: Builder, x: Value) -> Value:
    t = b.Sub(b.Mul(b.Mul(x, x), 2.0), 1.0)
    return b.Mul(x, emit_fit(b, t, _erf_near_0, 14))


def erf(b: Builder, x: Value) -> Value:
    """By its own polynomial near 0, where 1 - erfc would lose digits."""
    far = b.Sub(b.scalar(1.0, like=x), _erfc_positive(b, b.Abs(x)))
    near = _erf_small(b, b.Clip(x, -1.0, 1.0))
    return b.Where(b.Less(b.Abs(x), 1.0), near, b.Mul(b.Sign(x), far))


def _erfc_positive(b: Builder, x: Value) -> Value:
    return b.Mul(b.Exp(b.Neg(b.Mul(x, x))), _erfcx_positive(b, x))


def erfc(b: Builder, x: Value) -> Value:
    tail = _erfc_positive(b, b.Abs(x))
    return b.Where(b.Less(x, 0.0), b.Sub(b.scalar(2.0, like=x), tail), tail)


def _erfcx(b: Builder, x: Value) -> Value:
    """2 exp(x^2) - erfcx(-x) below 0."""
    tail = _erfcx_positive(b, b.Abs(x))
    grown = b.Mul(b.Exp(b.Mul(x, x)), 2.0)
    return b.Where(b.Less(x, 0.0), b.Sub(grown, tail), tail)


def _erfinv_near_0(t: torch.Tensor) -> torch.Tensor:
    """erfinv(y)/y in y^2 = (t + 1) 9/32, for |y| up to 3/4."""
    y = ((t + 1) * (9 / 32)).sqrt()
    return torch.erfinv(y) / y


_FAR = (0.15, 3.27)


def _erfcinv_scaled(t: torch.Tensor) -> torch.Tensor:
    """erfcinv(q)/s with s^2 = -log(q), in log(s): for q from 1/4 down to all that float64 holds."""
    s = torch.exp((_FAR[1] - _FAR[0]) / 2 * (t + 1) + _FAR[0])
    return torch.special.ndtri(torch.exp(-s * s) / 2) * -math.sqrt(0.5) / s


def _erf_inverse(b: Builder, y: Value, q: Value) -> Value:
    """erfinv(y), where q is 1 - |y|."""
    square = b.Min(b.Mul(y, y), 9 / 16)
    near = b.Mul(y, emit_fit(b, b.Sub(b.Mul(square, 32 / 9), 1.0), _erfinv_near_0, 24))
    s = b.Sqrt(b.Neg(b.Log(q)))
    t = b.Sub(b.Mul(b.Sub(b.Log(s), _FAR[0]), 2 / (_FAR[1] - _FAR[0])), 1.0)
    far = b.Mul(s, emit_fit(b, b.Clip(t, -1.0, 1.0), _erfcinv_scaled, 36))
    return b.Where(b.Greater(q, 0.25), near, b.Mul(b.Sign(y), far))


def _erfinv(b: Builder, y: Value) -> Value:
    return _erf_inverse(b, y, b.Sub(b.scalar(1.0, like=y), b.Abs(y)))


def _ndtri(b: Builder, p: Value) -> Value:
    """The smaller of p and 1 - p keeps its digits."""
    smaller = b.Min(p, b.Sub(b.scalar(1.0, like=p), p))
    y = b.Sub(b.Mul(p, 2.0), 1.0)
    return b.Mul(_erf_inverse(b, y, b.Mul(smaller, 2.0)), math.sqrt(2))


# Bessel functions, scaled by exp(-|x|)


def _to_8(function: Function) -> Function:
    """In t = x/4 - 1, for x up to 8."""
    return lambda t: function((t + 1) * 4)


def _from_8(function: Function) -> Function:
    """Times sqrt(x), in t = 16/x - 1."""
    return lambda t: function(16 / (t + 1)) * (16 / (t + 1)).sqrt()


_BESSEL = {
    0: (_to_8(torch.special.i0e), _from_8(torch.special.i0e)),
    1: (_to_8(lambda x: torch.special.i1e(x) / x), _from_8(torch.special.i1e)),
}


def bessel_i(order: int, scaled: bool) -> Any:
    def formula(b: Builder, x: Value) -> Value:
        size = b.Abs(x)
        below, above = _BESSEL[order]
        near = emit_fit(b, b.Sub(b.Mul(b.Min(size, 8.0), 0.25), 1.0), below, 30)
        inverse = b.Div(b.scalar(16.0, like=x), b.Max(size, 8.0))
        far = b.Div(emit_fit(b, b.Sub(inverse, 1.0), above, 24), b.Sqrt(size))
        if order == 1:
            near, far = b.Mul(near, x), b.Mul(far, b.Sign(x))
        out = b.Where(b.LessOrEqual(size, 8.0), near, far)
        if scaled:
            return out
        # As torch does: it overflows where the exponential does.
        dtype = torch.float64 if b.result.dtype is torch.float64 else torch.float32
        return b.Mul(b.cast(out, dtype), b.Exp(b.cast(size, dtype)))

    return formula


# Gamma functions

# log gamma(x) is (x - 1/2) log(x) - x + log(2 pi)/2 and a series in 1/x^2, by Bernoulli numbers.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_STIRLING = tuple(n / (2 * k * (2 * k - 1)) for k, n in enumerate(_BERNOULLI, 1))[::-1]
_DIGAMMA = tuple(n / (2 * k) for k, n in enumerate(_BERNOULLI, 1))[::-1]
_SHIFT = 10
"""From here on the series has the precision of float64: what is below is shifted by as much."""


def log_gamma(b: Builder, x: Value) -> Value:
    """Of what is at least 1/2."""
    low = b.Less(x, float(_SHIFT))
    z = b.Where(low, b.Add(x, float(_SHIFT)), x)
    inverse = b.Reciprocal(z)
    series = b.Mul(inverse, emit_polynomial(b, b.Mul(inverse, inverse), _STIRLING))
    whole = b.Sub(b.Mul(b.Sub(z, 0.5), b.Log(z)), z)
    out = b.Add(b.Add(whole, 0.5 * math.log(2 * math.pi)), series)
    factors = b.Add(b.unsqueeze(x, x.rank), torch.arange(_SHIFT, dtype=torch.float64))
    product = b.ReduceProd(factors, [x.rank], keepdims=0)
    out = b.Where(low, b.Sub(out, b.Log(product)), out)
    return b.Where(b.IsInf(x), x, out)


def _lgamma(b: Builder, x: Value) -> Value:
    """log(pi / |sin(pi x)|) - lgamma(1 - x) below 1/2."""
    one = b.scalar(1.0, like=x)
    low = b.Less(x, 0.5)
    out = log_gamma(b, b.Where(low, b.Sub(one, x), x))
    turn = b.Abs(b.Sub(x, b.Round(x)))
    sine = b.Sin(b.Mul(turn, math.pi))
    turned = b.Sub(b.Log(b.Div(b.scalar(math.pi, like=x), sine)), out)
    infinite = b.Or(b.IsInf(x), b.And(low, b.Equal(turn, 0.0)))
    return b.Where(infinite, b.scalar(math.inf, like=x), b.Where(low, turned, out))


def _digamma(b: Builder, x: Value) -> Value:
    """digamma(1 - x) - pi / tan(pi x) below 1/2; infinite at 0, nothing at negative integers."""
    one = b.scalar(1.0, like=x)
    low = b.Less(x, 0.5)
    y = b.Where(low, b.Sub(one, x), x)
    near = b.Less(y, float(_SHIFT))
    z = b.Where(near, b.Add(y, float(_SHIFT)), y)
    inverse = b.Reciprocal(z)
    square = b.Mul(inverse, inverse)
    series = b.Mul(square, emit_polynomial(b, square, _DIGAMMA))
    out = b.Sub(b.Sub(b.Log(z), b.Mul(inverse, 0.5)), series)
    steps = b.Add(b.unsqueeze(y, x.rank), torch.arange(_SHIFT, dtype=torch.float64))
    shift = b.ReduceSum(b.Reciprocal(steps), [x.rank], keepdims=0)
    out = b.Where(near, b.Sub(out, shift), out)
    turn = b.Sub(x, b.Round(x))
    angle = b.Mul(turn, math.pi)
    turned = b.Sub(out, b.Div(b.Mul(b.Cos(angle), math.pi), b.Sin(angle)))
    whole = b.And(low, b.Equal(turn, 0.0))
    at_zero = b.Neg(b.Reciprocal(x))
    nothing = b.scalar(math.nan, like=x)
    pole = b.Where(b.Equal(x, 0.0), at_zero, nothing)
    return b.Where(whole, pole, b.Where(low, turned, out))


def _zeta(b: Builder, x: Value, q: Value) -> Value:
    """The sum of (q + k)^-x by Euler and Maclaurin's formula, from the tenth term on.

    Below 0 it is a sum of numbers of both signs, for whole x only, and infinite at whole q.
    """
    power, zero, sizes = b.Neg(x), b.scalar(0.0, like=x), b.result.sizes

    def step(total: Value, at: Value) -> Any:
        low = b.LessOrEqual(at, 0.0)
        new = b.Add(at, b.cast(low, at.dtype))
        total = b.Add(total, b.Where(low, b.Pow(at, power), zero))
        return b.LessOrEqual(b.ReduceMin(new, keepdims=0), 0.0), (total, new)

    low = b.LessOrEqual(q, 0.0)
    whole_q, whole_x = b.Equal(q, b.Floor(q)), b.Equal(x, b.Floor(x))
    start = b.Where(b.And(low, whole_q), b.scalar(1.0, like=x), q)  # what is infinite is not summed
    below, at = emit_loop(b, (b.expand(zero, sizes), b.expand(start, sizes)), step)
    terms = b.Add(b.unsqueeze(at, at.rank), torch.arange(10, dtype=torch.float64))
    exponents = b.unsqueeze(b.expand(power, sizes), at.rank)
    total = b.Add(below, b.ReduceSum(b.Pow(terms, exponents), [at.rank], keepdims=0))
    w = b.Add(at, 9.0)
    last = b.Pow(w, power)
    total = b.Add(total, b.Sub(b.Div(b.Mul(last, w), b.Sub(x, 1.0)), b.Mul(last, 0.5)))
    factor = b.Div(b.Mul(last, x), w)
    square = b.Mul(w, w)
    for k, number in enumerate(_BERNOULLI, 1):
        total = b.Add(total, b.Mul(factor, number / math.factorial(2 * k)))
        pair = b.Mul(b.Add(x, float(2 * k - 1)), b.Add(x, float(2 * k)))
        factor = b.Div(b.Mul(factor, pair), square)
    infinite, nothing = b.scalar(math.inf, like=x), b.scalar(math.nan, like=x)
    total = b.Where(b.And(low, b.Not(whole_x)), nothing, total)
    total = b.Where(b.And(low, whole_q), infinite, total)
    return b.Where(b.Equal(x, 1.0), infinite, b.Where(b.Less(x, 1.0), nothing, total))


@lower(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def special_zeta(b: Builder, self: Operand, other: Operand) -> Value:
    return _zeta(b, *b.common(self, other, dtype=torch.float64))


_PI = (3.1415926516056061, math.pi - 3.1415926516056061, 1.2246467991473532e-16)
"""Pi in parts, the first two so short that up to 2^20 times as much is exact."""


def _trigamma(b: Builder, x: Value) -> Value:
    """(pi / sin(pi x))^2 - trigamma(1 - x) below 1/2, and six steps before a series.

    As torch does it: the angle is rounded to the dtype of the result, on which everything depends
    next to a pole. The poles themselves are large numbers by it, except at 0.
    """
    one = b.scalar(1.0, like=x)
    low = b.Less(x, 0.5)
    dtype = torch.float64 if b.result.dtype is torch.float64 else torch.float32
    angle = b.cast(b.Mul(b.cast(x, dtype), math.pi), x.dtype)
    # Within packets ONNX Runtime's Sin is off by 1e-16, which is all that there is at a pole.
    turns, rest = b.Round(x), angle
    for part in _PI:
        rest = b.Sub(rest, b.Mul(turns, part))
    sine = b.Sin(b.Where(b.Less(b.Abs(x), 2.0**20), rest, angle))
    y = b.Where(low, b.Sub(one, x), x)
    steps = b.Add(b.unsqueeze(y, x.rank), torch.arange(6, dtype=torch.float64))
    shift = b.ReduceSum(b.Reciprocal(b.Mul(steps, steps)), [x.rank], keepdims=0)
    inverse = b.Reciprocal(b.Add(y, 6.0))
    square = b.Mul(inverse, inverse)
    series = b.Mul(square, emit_polynomial(b, square, (1 / 42, -1 / 30, 1 / 6)))
    whole = b.Add(b.Add(b.Mul(inverse, 0.5), one), series)
    out = b.Add(shift, b.Mul(inverse, whole))
    turned = b.Sub(b.Div(b.scalar(math.pi**2, like=x), b.Mul(sine, sine)), out)
    return b.Where(low, turned, out)


@lower(aten.polygamma.default)
def polygamma(b: Builder, n: int, self: Value) -> Value:
    """(-1)^(n+1) n! zeta(n + 1, x); the first two by formulas of their own, as torch has them."""
    x = b.cast(self, torch.float64)
    if n == 0:
        return _digamma(b, x)
    if n == 1:
        return _trigamma(b, x)
    sums = _zeta(b, b.scalar(float(n + 1), like=x), x)
    return b.Mul(sums, float((-1) ** (n + 1) * math.factorial(n)))


lower_table(
    {
        "erfc": erfc,
        "special_erfcx": _erfcx,
        "erfinv": _erfinv,
        "special_ndtri": _ndtri,
        "i0 special_i0": bessel_i(0, False),
        "special_i0e": bessel_i(0, True),
        "special_i1": bessel_i(1, False),
        "special_i1e": bessel_i(1, True),
        "lgamma": _lgamma,
        "digamma": _digamma,
    },
    lower_in_float64,
)
