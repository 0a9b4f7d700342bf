"""Lowers incomplete gamma functions: power series, continued fraction, asymptotics.

P(a, x) and Q(a, x) = 1 - P(a, x) are computed in float64: P up to x = a + 1 and Q from there on, so
that the tails keep their digits. Only Q of an a below 1e-8, next to 0 for most x, has no more than
1 - P has.
"""

from __future__ import annotations

import math

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.control import emit_loop
from graphport.onnx.lowerings.numerics.chebyshev import emit_polynomial, erfc, log_gamma
from graphport.onnx.lowerings.special import log1p_of

_LARGE_ORDER = 1000.0
"""From here on a is large: fewer than 300 steps are needed below, and three terms above."""

# Temme's expansion for large a (DLMF 8.12.7): coefficients of powers of eta, the highest first, in
# the terms of 1, 1/a and 1/a^2.
_TEMME = (
    (
        -1.9752288294349442e-15,
        -5.139111834242572e-16,
        2.8534893807047445e-14,
        -1.392388722418162e-13,
        3.3717632624009856e-13,
        1.1004392031956135e-13,
        -5.0276692801141755e-12,
        2.4361948020667415e-11,
        -5.830772132550426e-11,
        -2.551419399494625e-11,
        9.14769958223679e-10,
        -4.382036018453353e-09,
        1.0261809784240309e-08,
        6.707853543401498e-09,
        -1.7665952736826078e-07,
        8.296711340953087e-07,
        -1.85406221071516e-06,
        -2.1854485106799924e-06,
        3.919263178522438e-05,
        -0.0001787551440329218,
        0.0003527336860670194,
        0.0011574074074074073,
        -0.014814814814814815,
        0.08333333333333333,
        -0.3333333333333333,
    ),
    (
        -2.933186643771437e-12,
        7.1624989648114856e-12,
        6.067215101604758e-14,
        -8.56390702649298e-11,
        4.162792991842583e-10,
        -1.0091543710600413e-09,
        -1.7543241719747647e-11,
        1.1951628599778148e-08,
        -5.752545603517705e-08,
        1.378633446915721e-07,
        4.647127802807434e-09,
        -1.6120900894563446e-06,
        7.64916091608111e-06,
        -1.8098550334489977e-05,
        -4.018775720164609e-07,
        0.00020576131687242798,
        -0.0009902263374485596,
        0.0026455026455026454,
        -0.003472222222222222,
        -0.001851851851851852,
    ),
    (
        -1.3670488396617112e-09,
        6.228974084922022e-09,
        -1.409252991086752e-08,
        -2.0477098421990866e-10,
        1.4280614206064242e-07,
        -6.298992138380055e-07,
        1.3721957309062932e-06,
        3.423578734096138e-08,
        -1.2760635188618728e-05,
        5.2923448829120125e-05,
        -0.00010736653226365161,
        2.0093878600823047e-06,
        0.0007716049382716049,
        -0.0026813271604938273,
        0.004133597883597883,
    ),
)


def _any_true(b: Builder, condition: Value) -> Value:
    return b.Greater(b.ReduceSum(b.cast(condition, torch.int64), keepdims=0), 0)


def _power_series(b: Builder, a: Value, x: Value) -> Value:
    """1 + x/(a+1) + x^2/((a+1)(a+2)) + ..."""

    def step(at: Value, term: Value, total: Value) -> tuple[Value, list[Value]]:
        at = b.Add(at, 1.0)
        term = b.Mul(term, b.Div(x, at))
        total = b.Add(total, term)
        return _any_true(b, b.Greater(term, b.Mul(total, 1e-17))), [at, term, total]

    ones = b.expand(b.scalar(1.0, like=x), b.result.sizes)
    return emit_loop(b, (a, ones, ones), step)[2]


def _continued_fraction(b: Builder, a: Value, x: Value) -> Value:
    """1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))), by Lentz's algorithm."""
    sizes = b.result.sizes

    def step(
        i: Value, below: Value, c: Value, d: Value, product: Value
    ) -> tuple[Value, list[Value]]:
        above = b.Mul(i, b.Sub(a, i))
        below = b.Add(below, 2.0)
        d = b.Reciprocal(b.Add(b.Mul(above, d), below))
        c = b.Add(below, b.Div(above, c))
        factor = b.Mul(c, d)
        more = _any_true(b, b.Greater(b.Abs(b.Sub(factor, 1.0)), 1e-15))
        return more, [b.Add(i, 1.0), below, c, d, b.Mul(product, factor)]

    one = b.scalar(1.0, like=x)
    first = b.Sub(b.Add(x, 1.0), a)
    d = b.Reciprocal(first)
    endless = b.expand(b.scalar(1e300, like=x), sizes)
    return emit_loop(b, (one, first, endless, d, d), step)[4]


def _evaluate_small_order(b: Builder, a: Value, x: Value) -> tuple[Value, Value]:
    """P and Q of numbers above 0 where a is not large."""
    one = b.scalar(1.0, like=x)
    low = b.Less(x, b.Add(a, one))
    series = _power_series(b, a, b.Where(low, x, b.scalar(0.0, like=x)))
    # A fraction of a = 1 is done at once.
    fraction = _continued_fraction(b, b.Where(low, one, a), b.Where(low, one, x))
    # x^a e^-x / gamma(a + 1)
    power = b.Sub(b.Sub(b.Mul(a, b.Log(x)), x), log_gamma(b, b.Add(a, one)))
    scale = b.Exp(power)
    p, q = b.Mul(scale, series), b.Mul(scale, b.Mul(a, fraction))
    return b.Where(low, p, b.Sub(one, q)), b.Where(low, b.Sub(one, p), q)


def _evaluate_large_order(b: Builder, a: Value, x: Value) -> tuple[Value, Value]:
    """P and Q by the normal distribution of eta = +-sqrt(2 (s - log(1 + s))) with s = x/a - 1."""
    s = b.Div(b.Sub(x, a), a)
    square = b.Mul(b.Max(b.Sub(s, log1p_of(b, s)), 0.0), 2.0)
    # Where it is more than 2 all is 0 or 1.
    eta = b.Clip(b.Mul(b.Sign(s), b.Sqrt(square)), -2.0, 2.0)
    inverse = b.Reciprocal(a)
    first, second, third = (emit_polynomial(b, eta, row) for row in _TEMME)
    total = b.Add(first, b.Mul(inverse, b.Add(second, b.Mul(inverse, third))))
    z = b.Mul(eta, b.Sqrt(b.Mul(a, 0.5)))
    density = b.Mul(b.Exp(b.Neg(b.Mul(z, z))), b.Sqrt(b.Mul(inverse, 0.5 / math.pi)))
    rest = b.Mul(density, total)
    return (b.Sub(b.Mul(erfc(b, b.Neg(z)), 0.5), rest), b.Add(b.Mul(erfc(b, z), 0.5), rest))


def _incomplete_gamma(b: Builder, self: Value, other: Value, upper: bool) -> Value:
    sizes = b.result.sizes
    a, x = (b.expand(b.cast(v, torch.float64), sizes) for v in (self, other))
    nothing, one, zero = (b.scalar(v, like=x) for v in (math.nan, 1.0, 0.0))
    ends = (one, zero) if upper else (zero, one)
    positive = b.And(b.Greater(a, 0.0), b.Greater(x, 0.0))
    usual = b.And(positive, b.Not(b.Or(b.IsInf(a), b.IsInf(x))))
    large = b.And(usual, b.GreaterOrEqual(a, _LARGE_ORDER))
    small = b.And(usual, b.Less(a, _LARGE_ORDER))
    out = b.Where(
        large,
        _evaluate_large_order(b, b.Where(large, a, one), b.Where(large, x, one))[upper],
        _evaluate_small_order(b, b.Where(small, a, one), b.Where(small, x, one))[upper],
    )
    out = b.Where(usual, out, nothing)
    # In the order that torch asks, the first question last.
    out = b.Where(b.IsInf(x), ends[1], out)
    out = b.Where(b.IsInf(a), b.Where(b.IsInf(x), nothing, ends[0]), out)
    out = b.Where(b.Equal(x, 0.0), ends[0], out)
    out = b.Where(b.Equal(a, 0.0), b.Where(b.Greater(x, 0.0), ends[1], nothing), out)
    return b.Where(b.Or(b.Less(a, 0.0), b.Less(x, 0.0)), nothing, out)


@lower(aten.igamma.default, aten.special_gammainc.default)
def igamma(b: Builder, self: Value, other: Value) -> Value:
    return _incomplete_gamma(b, self, other, upper=False)


@lower(aten.igammac.default, aten.special_gammaincc.default)
def igammac(b: Builder, self: Value, other: Value) -> Value:
    return _incomplete_gamma(b, self, other, upper=True)
