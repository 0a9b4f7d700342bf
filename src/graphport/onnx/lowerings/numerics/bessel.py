"""Lowers Bessel functions, modified ones, and the Airy function.

They are computed in float64 with polynomials that are fitted to torch's own functions (see
`chebyshev`), in the ranges that torch divides them into. The angle of what oscillates is rounded as
torch rounds it: of a large float32 that is most of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.elementwise import widen_operand
from graphport.onnx.lowerings.numerics.chebyshev import (
    Function,
    bessel_i,
    emit_fit,
    emit_polynomial,
    lower_in_float64,
)

special = torch.special

Formula = Callable[[Builder, Value, Value, int], Value]

# First and second kind, by their order

_J = (special.bessel_j0, special.bessel_j1)
_Y = (special.bessel_y0, special.bessel_y1)
_ROOTS = (
    (5.78318596294678452118, 30.4712623436620863991),
    (14.6819706421238932572, 49.2184563216946036703),
)
"""Squares of the first two roots of J."""


def _to_5(function: Function) -> Function:
    """In t of x^2 = 12.5 (t + 1), for x up to 5."""
    return lambda t: function((12.5 * (t + 1)).sqrt())


def _from_5(function: Function) -> Function:
    """In t of (5/x)^2 = (t + 1)/2."""
    return lambda t: function(5 / ((t + 1) / 2).sqrt())


def _near_j(order: int) -> Function:
    """J without its roots and its power of x."""
    first, second = _ROOTS[order]
    return _to_5(lambda x: _J[order](x) / x**order / ((x * x - first) * (x * x - second)))


def _near_y(order: int) -> Function:
    """What Y is besides its logarithm and its pole."""

    def rest(x: torch.Tensor) -> torch.Tensor:
        singular = 2 / math.pi * (_J[order](x) * x.log() - order / x)
        return (_Y[order](x) - singular) / x**order

    return _to_5(rest)


def _phase(order: int) -> float:
    return (2 * order + 1) * math.pi / 4


def _far(order: int, quarter: bool) -> Function:
    """What sqrt(2/(pi x)) cos(angle) is multiplied by in J, or sin(angle) 5/x if a quarter on."""

    def amplitude(x: torch.Tensor) -> torch.Tensor:
        scale, angle = (math.pi * x / 2).sqrt(), x - _phase(order)
        j, y, cos, sin = _J[order](x), _Y[order](x), angle.cos(), angle.sin()
        return scale * ((y * cos - j * sin) * x / 5 if quarter else j * cos + y * sin)

    return _from_5(amplitude)


_NEAR_J = (_near_j(0), _near_j(1))
_NEAR_Y = (_near_y(0), _near_y(1))
_FAR = tuple((_far(order, False), _far(order, True)) for order in (0, 1))


def _power(b: Builder, x: Value, order: int, rest: Value) -> Value:
    return b.Mul(x, rest) if order else rest


def _small_j(b: Builder, x: Value, order: int) -> Value:
    """For |x| up to 5."""
    square = b.Mul(x, x)
    first, second = _ROOTS[order]
    roots = b.Mul(b.Sub(square, first), b.Sub(square, second))
    t = b.Sub(b.Mul(square, 1 / 12.5), 1.0)
    return b.Mul(roots, _power(b, x, order, emit_fit(b, t, _NEAR_J[order], 12)))


def _waves(b: Builder, x: Value, angle: Value, order: int) -> tuple[Value, Value, Value, Value]:
    """The two amplitudes, cosine and sine, for x from 5 on."""
    inverse = b.Div(b.scalar(5.0, like=x), b.Max(x, 5.0))
    t = b.Sub(b.Mul(b.Mul(inverse, inverse), 2.0), 1.0)
    scale = b.Sqrt(b.Div(b.scalar(2 / math.pi, like=x), x))
    even, odd = (emit_fit(b, t, part, 16) for part in _FAR[order])
    return b.Mul(even, scale), b.Mul(b.Mul(odd, inverse), scale), b.Cos(angle), b.Sin(angle)


def _j(b: Builder, x: Value, angle: Value, order: int) -> Value:
    size = b.Abs(x)
    near = _small_j(b, b.Clip(x, -5.0, 5.0), order)
    even, odd, cos, sin = _waves(b, size, angle, order)
    far = b.Sub(b.Mul(even, cos), b.Mul(odd, sin))
    return b.Where(b.LessOrEqual(size, 5.0), near, _power(b, b.Sign(x), order, far))


def _y(b: Builder, x: Value, angle: Value, order: int) -> Value:
    """Infinite at 0, nothing below."""
    small = b.Min(x, 5.0)
    t = b.Sub(b.Mul(b.Mul(small, small), 1 / 12.5), 1.0)
    singular = b.Mul(_small_j(b, small, order), b.Log(x))
    if order:
        singular = b.Sub(singular, b.Reciprocal(x))
    rest = _power(b, small, order, emit_fit(b, t, _NEAR_Y[order], 13))
    near = b.Add(rest, b.Mul(singular, 2 / math.pi))
    near = b.Where(b.Equal(x, 0.0), b.scalar(-math.inf, like=x), near)
    even, odd, cos, sin = _waves(b, x, angle, order)
    return b.Where(b.LessOrEqual(x, 5.0), near, b.Add(b.Mul(even, sin), b.Mul(odd, cos)))


def _lower_oscillating(row: tuple[Formula, int]) -> Any:
    formula, order = row

    def lowering(b: Builder, self: Value) -> Value:
        own = widen_operand(b, self)
        x, angle = b.common(own, b.Sub(b.Abs(own), _phase(order)), dtype=torch.float64)
        return formula(b, x, angle, order)

    return lowering


lower_table(
    {
        "special_bessel_j0": (_j, 0),
        "special_bessel_j1": (_j, 1),
        "special_bessel_y0": (_y, 0),
        "special_bessel_y1": (_y, 1),
    },
    _lower_oscillating,
)


# Modified ones of the second kind, by their order

_I = (special.modified_bessel_i0, special.modified_bessel_i1)
_K = (special.modified_bessel_k0, special.modified_bessel_k1)
_SCALED_K = (special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1)


def _to_2(function: Function) -> Function:
    """In t of x^2 = 2 (t + 1), for x up to 2."""
    return lambda t: function((2 * (t + 1)).sqrt())


def _near_i(order: int) -> Function:
    return _to_2(lambda x: _I[order](x) / x**order)


def _near_k(order: int) -> Function:
    """What K is besides its logarithm, without its pole."""
    sign = (-1) ** order
    return _to_2(lambda x: (_K[order](x) + sign * (x / 2).log() * _I[order](x)) * x**order)


def _far_k(order: int) -> Function:
    """exp(x) sqrt(x) K(x) in t = 4/x - 1, for x from 2 on."""
    return lambda t: _SCALED_K[order](4 / (t + 1)) * (4 / (t + 1)).sqrt()


_NEAR_I = (_near_i(0), _near_i(1))
_NEAR_K = (_near_k(0), _near_k(1))
_FAR_K = (_far_k(0), _far_k(1))


def _k(order: int, scaled: bool) -> Any:
    """Infinite at 0, nothing below."""

    def formula(b: Builder, x: Value) -> Value:
        small = b.Min(x, 2.0)
        t = b.Sub(b.Mul(b.Mul(small, small), 0.5), 1.0)
        i = _power(b, small, order, emit_fit(b, t, _NEAR_I[order], 10))
        logarithm = b.Mul(b.Log(b.Mul(x, 0.5)), i)
        rest = emit_fit(b, t, _NEAR_K[order], 10)
        near = b.Add(b.Div(rest, x), logarithm) if order else b.Sub(rest, logarithm)
        near = b.Where(b.Equal(x, 0.0), b.scalar(math.inf, like=x), near)
        t = b.Sub(b.Div(b.scalar(4.0, like=x), b.Max(x, 2.0)), 1.0)
        far = b.Div(emit_fit(b, t, _FAR_K[order], 24), b.Sqrt(x))
        if scaled:
            near = b.Mul(near, b.Exp(small))
        else:
            far = b.Mul(far, b.Exp(b.Neg(x)))
        return b.Where(b.LessOrEqual(x, 2.0), near, far)

    return formula


def _spherical_j0(b: Builder, x: Value) -> Value:
    """sin(x)/x: 1 at 0, 0 at the infinities."""
    one, zero = b.scalar(1.0, like=x), b.Equal(x, 0.0)
    quotient = b.Where(zero, one, b.Div(b.Sin(x), b.Where(zero, one, x)))
    return b.Where(b.IsInf(x), b.scalar(0.0, like=x), quotient)


def _lower_of_x(formula: Callable[[Builder, Value], Value]) -> Any:
    """Schemas differ in what they call their argument."""
    return lambda b, x: formula(b, b.cast(x, torch.float64))


lower_table(
    {
        "special_modified_bessel_i0": bessel_i(0, False),
        "special_modified_bessel_i1": bessel_i(1, False),
        "special_modified_bessel_k0": _k(0, False),
        "special_modified_bessel_k1": _k(1, False),
    },
    lower_in_float64,
)
lower_table(
    {
        "special_scaled_modified_bessel_k0": _k(0, True),
        "special_scaled_modified_bessel_k1": _k(1, True),
        "special_spherical_bessel_j0": _spherical_j0,
    },
    _lower_of_x,
)


# Airy's function: quotients of polynomials in 1/z with z = 2/3 |x|^1.5, the highest power first, as
# those of the Cephes library that torch has. Its other solution, which torch does not have, would
# be needed to fit the amplitudes below 0.

_EDGE = 2.09
_DECAY = (
    (
        3.46538101525629032477e-01,
        1.20075952739645805542e01,
        7.62796053615234516538e01,
        1.68089224934630576269e02,
        1.59756391350164413639e02,
        7.05360906840444183113e01,
        1.40264691163389668864e01,
        9.99999999999999995305e-01,
    ),
    (
        5.67594532638770212846e-01,
        1.47562562584847203173e01,
        8.45138970141474626562e01,
        1.77318088145400459522e02,
        1.64234692871529701831e02,
        7.14778400825575695274e01,
        1.40959135607834029598e01,
        1.00000000000000000470e00,
    ),
)
# In 1/z^2, those that sine and cosine are multiplied by.
_SINE = (
    (
        -1.31696323418331795333e-01,
        -6.26456544431912369773e-01,
        -6.93158036036933542233e-01,
        -2.79779981545119124951e-01,
        -4.91900132609500318020e-02,
        -4.06265923594885404393e-03,
        -1.59276496239262096340e-04,
        -2.77649108155232920844e-06,
        -1.67787698489114633780e-08,
    ),
    (
        1.33560420706553243746e01,
        3.26825032795224613948e01,
        2.67367040941499554804e01,
        9.18707402907259625840e00,
        1.47529146771666414581e00,
        1.15687173795188044134e-01,
        4.40291641615211203805e-03,
        7.54720348287414296618e-05,
        4.51850092970580378464e-07,
    ),
)
_COSINE = (
    (
        1.97339932091685679179e-02,
        3.91103029615688277255e-01,
        1.06579897599595591108e00,
        9.39169229816650230044e-01,
        3.51465656105547619242e-01,
        6.33888919628925490927e-02,
        5.85804113048388458567e-03,
        2.82851600836737019778e-04,
        6.98793669997260967291e-06,
        8.11789239554389293311e-08,
        3.41551784765923618484e-10,
    ),
    (
        9.30892908077441974853e00,
        1.98352928718312140417e01,
        1.55646628932864612953e01,
        5.47686069422975497931e00,
        9.54293611618961883998e-01,
        8.64580826352392193095e-02,
        4.12656523824222607191e-03,
        1.01259085116509135510e-04,
        1.17166733214413521882e-06,
        4.91834570062930015649e-09,
    ),
)


def _near_airy(t: torch.Tensor) -> torch.Tensor:
    return special.airy_ai(t * _EDGE)


def _rational(b: Builder, x: Value, row: tuple[tuple[float, ...], tuple[float, ...]]) -> Value:
    above, below = row
    return b.Div(emit_polynomial(b, x, above), emit_polynomial(b, x, below))


@lower(aten.special_airy_ai.default)
def special_airy_ai(b: Builder, x: Value) -> Value:
    """Nothing at the infinities, as torch has it."""
    own = widen_operand(b, x)
    size = b.Max(b.Abs(own), _EDGE)
    z = b.Div(b.Mul(b.Mul(size, 2.0), b.Sqrt(size)), 3.0)
    angle = b.Add(z, math.pi / 4)
    x, size, z, angle = b.common(own, size, z, angle, dtype=torch.float64)
    inverse = b.Reciprocal(z)
    root = b.Sqrt(b.Sqrt(size))
    scale = b.Div(b.scalar(math.pi**-0.5, like=x), root)
    decay = b.Mul(b.Mul(_rational(b, inverse, _DECAY), b.Exp(b.Neg(z))), b.Mul(scale, 0.5))
    square = b.Mul(inverse, inverse)
    even = b.Add(b.Mul(square, _rational(b, square, _SINE)), 1.0)
    odd = b.Mul(inverse, _rational(b, square, _COSINE))
    wave = b.Mul(scale, b.Sub(b.Mul(b.Sin(angle), even), b.Mul(b.Cos(angle), odd)))
    near = emit_fit(b, b.Mul(x, 1 / _EDGE), _near_airy, 24)
    far = b.Where(b.Less(x, -_EDGE), wave, b.Where(b.GreaterOrEqual(x, _EDGE), decay, near))
    return b.Where(b.IsInf(x), b.scalar(math.nan, like=x), far)
