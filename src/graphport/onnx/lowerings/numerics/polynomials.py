"""Lowers orthogonal polynomials by their three-term recurrences.

Each is a recurrence of three terms, unrolled for a small degree and a Loop for others. It amplifies
how its steps are rounded, so they are rounded as torch's are: computed in float64, where products
of float32 are exact, and then brought to float32, which is what fused instructions give.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder, Operand
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.control import emit_loop
from graphport.onnx.lowerings.elementwise import widen_operand
from graphport.onnx.lowerings.special import acos_of
from graphport.symbolic import Expr

Linear = tuple[int, int]
"""A multiple of the degree, and what is added to it."""

_UNROLLED = 8
"""The highest degree that is written out."""


class _RoundTo:
    """Numbers of the dtype that torch computes in, held in float64."""

    def __init__(self, b: Builder, dtype: torch.dtype) -> None:
        self.b = b
        self.dtype = dtype

    def __call__(self, x: Value) -> Value:
        return self.b.cast(self.b.cast(x, self.dtype), torch.float64)


# The variable of a recurrence in terms of x, and p(1) in terms of both


def _same(b: Builder, own: _RoundTo, x: Value, v: Value | None = None) -> Value:
    return x


def _twice(b: Builder, own: _RoundTo, x: Value) -> Value:
    return own(b.Mul(x, 2.0))


def _to_one(b: Builder, own: _RoundTo, x: Value) -> Value:
    return own(b.Sub(b.scalar(1.0, like=x), x))


def _variable(b: Builder, own: _RoundTo, x: Value, v: Value) -> Value:
    return v


def _one_less(b: Builder, own: _RoundTo, x: Value, v: Value) -> Value:
    return own(b.Sub(v, 1.0))


def _one_more(b: Builder, own: _RoundTo, x: Value, v: Value) -> Value:
    return own(b.Add(v, 1.0))


Closed = Callable[[Builder, _RoundTo, Value, Value], tuple[Value, Value]]


@dataclass(frozen=True)
class _Polynomial:
    """p(0) = 1, p(1) is `first`, and p(d) = (factor p(d-1) - before p(d-2)) / over.

    The factor is `variable` times `times` plus `plus`; what is not given is 1 or, added, nothing.
    """

    closed: Closed
    """Where torch has a formula instead, for x and the degree, and its value."""
    variable: Callable[[Builder, _RoundTo, Value], Value]
    first: Callable[[Builder, _RoundTo, Value, Value], Value] = _variable
    times: Linear | None = None
    plus: Linear | None = None
    before: Linear | None = None
    over: Linear | None = None
    shifted: bool = False
    """Whether x is 2x - 1."""
    above: int = _UNROLLED
    """The highest degree for which the closed form makes no difference, of those written out."""

    def step(self, b: Builder, own: _RoundTo, v: Value, d: Any, p: Value, q: Value) -> Value:
        if self.times:
            v = own(b.Mul(v, _evaluate_linear(b, d, self.times)))
        if self.plus:
            v = own(b.Add(v, _evaluate_linear(b, d, self.plus)))
        if self.before:
            p = own(b.Mul(p, _evaluate_linear(b, d, self.before)))
        r = own(b.Sub(b.Mul(v, q), p))
        return own(b.Div(r, _evaluate_linear(b, d, self.over))) if self.over else r


def _evaluate_linear(b: Builder, d: Any, form: Linear) -> Any:
    times, plus = form
    if not isinstance(d, Value):
        return times * d + plus
    if not times:
        return b.scalar(float(plus), like=d)
    d = b.Mul(d, float(times)) if times != 1 else d
    return b.Add(d, float(plus)) if plus else d


# Evaluation


def _unroll_recurrence(b: Builder, own: _RoundTo, row: _Polynomial, x: Value, n: int) -> Value:
    v = row.variable(b, own, x)
    p, q = b.scalar(1.0, like=x), row.first(b, own, x, v)
    for d in range(2, n + 1):
        p, q = q, row.step(b, own, v, float(d), p, q)
    return b.Where(*row.closed(b, own, x, b.scalar(float(n), like=x)), q) if n > row.above else q


def _loop_recurrence(b: Builder, own: _RoundTo, row: _Polynomial, x: Value, n: Value) -> Value:
    """As far as the largest degree of an element that is not done, or a number any more."""
    one, sizes = b.scalar(1.0, like=x), b.result.sizes
    is_closed, value = row.closed(b, own, x, n)
    degree = b.Where(is_closed, b.scalar(0.0, like=x), n)
    v = row.variable(b, own, x)

    def step(d: Value, p: Value, q: Value) -> Any:
        new = b.Where(b.LessOrEqual(d, degree), row.step(b, own, v, d, p, q), q)
        d = b.Add(d, 1.0)
        left = b.And(b.LessOrEqual(d, degree), b.Not(b.IsNaN(new)))
        count = b.ReduceSum(b.cast(left, torch.int64), keepdims=0)
        return b.Greater(count, 0), (d, q, new)

    first = row.first(b, own, x, v)
    states = (b.scalar(2.0, like=x), b.expand(one, sizes), b.expand(first, sizes))
    q = b.Where(b.Equal(degree, 0.0), one, emit_loop(b, states, step)[2])
    return b.Where(b.Less(n, 0.0), b.scalar(0.0, like=x), b.Where(is_closed, value, q))


def _truncate_degree(b: Builder, own: _RoundTo, n: Operand) -> Value:
    """Without its fraction; what int64 does not hold is negative to torch."""
    given = own(b.common(n, dtype=own.dtype)[0])
    if isinstance(n, Value) and not n.dtype.is_floating_point:
        return given
    whole = b.cast(b.cast(given, torch.int64), torch.float64)
    # False for nan, too.
    held = b.Less(b.Abs(given), float(2**63))
    return b.Where(held, whole, b.scalar(-1.0, like=given))


def _lower_polynomial(row: _Polynomial) -> Any:
    def lowering(b: Builder, x: Operand, n: Operand) -> Value:
        at = widen_operand(b, x)
        own = _RoundTo(b, at.dtype)
        at = b.cast(at, torch.float64)
        if row.shifted:
            at = own(b.Sub(b.Mul(at, 2.0), 1.0))
        if isinstance(n, (Value, Expr)) or not abs(n) <= _UNROLLED:
            return _loop_recurrence(b, own, row, at, _truncate_degree(b, own, n))
        n = int(n)
        if n > 0:
            return _unroll_recurrence(b, own, row, at, n)
        return b.expand(b.scalar(float(n == 0), like=at), b.result.sizes)

    return lowering


# Chebyshev's, within [-1, 1] by the angle whose cosine is x


def _is_odd(b: Builder, n: Value) -> Value:
    return b.Equal(b.Mod(n, 2.0, fmod=1), 1.0)


@dataclass(frozen=True)
class _Waves:
    """A wave of (n + more) times the angle, over that of a part of the angle."""

    wave: str
    more: float = 0.0
    part: float = 0.0
    right: Linear = (0, 1)
    """The value at 1, in the degree; at -1 it is `left` with the sign of (-1)^n."""
    left: Linear = (0, 1)
    lost: str = ""
    """The wave of half the angle that is 1 when rounded where x is taken for an end, -1 or 1."""
    lost_right: bool = False

    def __call__(self, b: Builder, own: _RoundTo, x: Value, n: Value) -> Value:
        wave, angle = getattr(b, self.wave), own(acos_of(b, x))
        value = wave(own(b.Mul(angle, own(b.Add(n, self.more)) if self.more else n)))
        if self.part:
            value = b.Div(value, wave(b.Mul(angle, self.part)))
        at_right, at_left = b.Equal(x, 1.0), b.Equal(x, -1.0)
        # In float64 the sine of half a small angle has its digits, and the cosine is less than 1.
        if self.lost == "Sin" or (self.lost and own.dtype is not torch.float64):
            lost = b.Equal(own(getattr(b, self.lost)(b.Mul(angle, 0.5))), 1.0)
            if self.lost_right:
                at_right = b.Or(at_right, lost)
            else:
                at_left = b.Or(at_left, lost)
        right, left = (own(_evaluate_linear(b, n, form)) for form in (self.right, self.left))
        value = b.Where(at_left, b.Where(_is_odd(b, n), b.Neg(left), left), value)
        return b.Where(at_right, right, value)


def _chebyshev(
    waves: _Waves, first: Callable[..., Value], above: int, shifted: bool = False
) -> _Polynomial:
    def closed(b: Builder, own: _RoundTo, x: Value, n: Value) -> tuple[Value, Value]:
        inside = b.And(b.LessOrEqual(b.Abs(x), 1.0), b.Greater(n, float(above)))
        return inside, waves(b, own, x, n)

    return _Polynomial(closed, _twice, first, shifted=shifted, above=above)


_T = _Waves("Cos")
_U = _Waves("Sin", 1.0, 1.0, right=(1, 1), left=(1, 1))
_V = _Waves("Cos", 0.5, 0.5, left=(2, 1), lost="Sin")
_W = _Waves("Sin", 0.5, 0.5, right=(2, 1), lost="Cos", lost_right=True)
# What is lost near 1 torch takes for -1.
_SHIFTED_W = replace(_W, lost_right=False)


# The others


def _at_ends(b: Builder, own: _RoundTo, x: Value, n: Value) -> tuple[Value, Value]:
    """1 at 1, and 1 or -1 at -1."""
    return b.Equal(b.Abs(x), 1.0), b.Where(_is_odd(b, n), x, b.scalar(1.0, like=x))


def _at_zero(b: Builder, own: _RoundTo, x: Value, n: Value) -> tuple[Value, Value]:
    return b.Equal(x, 0.0), b.scalar(1.0, like=x)


def _too_high(b: Builder, own: _RoundTo, x: Value, n: Value) -> tuple[Value, Value]:
    limit = 512.0 if own.dtype is torch.float64 else 128.0
    return b.Greater(n, limit), b.scalar(math.nan, like=x)


_POLYNOMIALS = {
    "chebyshev_polynomial_t": _chebyshev(_T, _same, 6),
    "chebyshev_polynomial_u": _chebyshev(_U, _variable, 8),
    "chebyshev_polynomial_v": _chebyshev(_V, _one_less, 8),
    "chebyshev_polynomial_w": _chebyshev(_W, _one_more, 8),
    "shifted_chebyshev_polynomial_t": _chebyshev(_T, _same, 6, shifted=True),
    "shifted_chebyshev_polynomial_u": _chebyshev(_U, _variable, 6, shifted=True),
    "shifted_chebyshev_polynomial_v": _chebyshev(_V, _one_less, 6, shifted=True),
    "shifted_chebyshev_polynomial_w": _chebyshev(_SHIFTED_W, _one_more, 4, shifted=True),
    "hermite_polynomial_h": _Polynomial(_too_high, _twice, before=(2, -2)),
    "hermite_polynomial_he": _Polynomial(_too_high, _same, before=(1, -1)),
    "laguerre_polynomial_l": _Polynomial(
        _at_zero, _to_one, plus=(2, -2), before=(1, -1), over=(1, 0)
    ),
    "legendre_polynomial_p": _Polynomial(
        _at_ends, _same, times=(2, -1), before=(1, -1), over=(1, 0)
    ),
}

for _name, _row in _POLYNOMIALS.items():
    _packet = getattr(aten, f"special_{_name}")
    lower(_packet.default, _packet.n_scalar, _packet.x_scalar)(_lower_polynomial(_row))
