"""Emits expressions over sizes as ONNX arithmetic, one row per kind of expression.

Integers are int64, floats float64, bools bool; all of them vectors of one element. Results are
those of Python. What is not computed in Python, the branch of a conditional that is not taken, is
computed here all the same, so a divisor that may be 0 is replaced: ONNX Runtime stops at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.emit.ir import Value
from graphport.symbolic import Expr, ge, ne

if TYPE_CHECKING:
    from graphport.onnx.emit.builder import Builder
    from graphport.onnx.emit.sizes import Sizes


def emit_arange(b: Builder, n: Any) -> Value:
    """0, 1, ..., n - 1 as int64; `n` is a size, or a value."""
    if type(n) is int:
        return b.constant(torch.arange(n))
    if isinstance(n, Value):
        return b.shaped(emit_range(b, n), (None,))
    return b.shaped(emit_range(b, b.sizes.number(n)), (n,))


def emit_range(b: Builder, count: Value) -> Value:
    """0, 1, ... below a count, as many as nobody knows."""
    made: Value = b.Range(b.scalar(0, torch.int64), count, b.scalar(1, torch.int64))
    return made


def compute_expression(sizes: Sizes, x: Expr) -> Value:
    """An expression from its parts."""
    _require_int64(x)
    if x.kind == "add":
        return _sum(sizes, x)
    if x.kind == "mul":
        return _product(sizes, x)
    if x.kind in _DIVISIONS:
        return _DIVISIONS[x.kind](sizes, *x.args)
    b, parts = sizes.b, list(map(sizes.element, x.args))
    if x.kind in _VARIADIC:
        return getattr(b, _VARIADIC[x.kind])(*parts)
    if x.kind in ("and", "or"):
        op = b.And if x.kind == "and" else b.Or
        truth, *others = parts
        for other in others:
            truth = op(truth, other)
        return truth
    if x.kind in _OPERATORS:
        return getattr(b, _OPERATORS[x.kind])(*parts)
    if x.kind not in _FORMULAS:
        raise UnsupportedError(f"the number {x} cannot be computed in ONNX")
    return _FORMULAS[x.kind](b, *parts)


def _require_int64(x: Expr) -> None:
    """Python's integers have no limits, those of ONNX have."""
    numbers = [x.const, *(c for _, c in x.args)] if x.kind in ("add", "mul") else x.args
    largest = max((abs(n) for n in numbers if type(n) is int), default=0)
    if largest >= 2**63:
        raise UnsupportedError(
            f"a number is computed with an integer of {largest.bit_length()} bits, and integers of"
            " ONNX have 64",
            fix="compute it in fewer steps, or with tensors",
        )


def _sum(sizes: Sizes, x: Expr) -> Value:
    b = sizes.b

    def term(mono: Expr, factor: int) -> Value:
        value = sizes.element(mono)
        return value if abs(factor) == 1 else b.Mul(value, abs(factor))

    # What is added comes first, so that nothing has to be negated.
    terms = sorted(x.args, key=lambda item: item[1] < 0)
    const = x.const
    if terms[0][1] > 0:
        total = term(*terms.pop(0))
    else:
        total, const = sizes.element(const), 0
    for mono, factor in terms:
        total = (b.Add if factor > 0 else b.Sub)(total, term(mono, factor))
    return b.Add(total, const) if const else total


def _product(sizes: Sizes, x: Expr) -> Value:
    factors = [sizes.element(part) for part, power in x.args for _ in range(power)]
    product, *others = factors
    for other in others:
        product = sizes.b.Mul(product, other)
    return product


# Integer division


def quotient(b: Builder, x: Value, y: Value, natural: bool = False) -> Value:
    """Of integers, rounded towards zero. `natural`: the divisor is known not to be negative."""
    if natural or not _may_be_minus_one(y):
        return b.Div(x, y)
    negated = b.Equal(y, -1)
    return b.Where(negated, b.Neg(x), b.Div(x, b.Where(negated, b.scalar(1, like=y), y)))


def floor_quotient(b: Builder, x: Value, y: Value, natural: bool = False) -> Value:
    """Of integers, rounded down. No step goes beyond their range."""
    whole = quotient(b, x, y, natural)
    if not x.dtype.is_signed:
        return whole
    rest = b.Sub(x, b.Mul(whole, y))
    if natural or (y.tensor is not None and bool((y.tensor > 0).all())):
        below = b.Less(rest, 0)
    else:
        below = b.Where(b.Less(y, 0), b.Greater(rest, 0), b.Less(rest, 0))
    return b.Sub(whole, b.cast(below, whole.dtype))


def modulo(b: Builder, x: Value, y: Value, natural: bool = False) -> Value:
    """Of integers, with the sign of the divisor."""
    return b.Mod(x, y if natural else _replace_minus_one(b, y))


def truncated_modulo(b: Builder, x: Value, y: Value, natural: bool = False) -> Value:
    """Of integers, with the sign of what is divided: Mod with fmod=1 goes through float64."""
    y = y if natural else _replace_minus_one(b, y)
    return b.Sub(x, b.Mul(b.Div(x, y), y))


def _replace_minus_one(b: Builder, y: Value) -> Value:
    """A divisor with the same remainders."""
    return b.Where(b.Equal(y, -1), b.scalar(1, like=y), y) if _may_be_minus_one(y) else y


def _may_be_minus_one(y: Value) -> bool:
    """The lowest integer divided by -1 ends the process: SIGFPE in Div and in Mod."""
    return y.dtype.is_signed and (y.tensor is None or bool((y.tensor == -1).any()))


def _nonzero_divisor(sizes: Sizes, c: int | Expr) -> Value:
    """A divisor; 1 instead of 0."""
    b, value = sizes.b, sizes.element(c)
    if type(c) is int or (not sizes.guarded and b.scope.decide(ne(c, 0))):
        return value
    if not sizes.guarded and b.scope.decide(ge(c, 0)):
        return b.Max(value, 1)
    return b.Where(b.Equal(value, 0), 1, value)


def _is_nonnegative(sizes: Sizes, x: int | Expr) -> bool:
    """Whether a number is not negative, also at sizes that the file will stop at."""
    return not sizes.guarded and sizes.b.scope.decide(ge(x, 0)) is True


def _floordiv(sizes: Sizes, a: int | Expr, c: int | Expr) -> Value:
    """ONNX divides towards zero."""
    b = sizes.b
    x, y = sizes.element(a), _nonzero_divisor(sizes, c)
    natural = _is_nonnegative(sizes, c)
    if natural and _is_nonnegative(sizes, a):
        return b.Div(x, y)
    return floor_quotient(b, x, y, natural)


def _mod(sizes: Sizes, a: int | Expr, c: int | Expr) -> Value:
    return modulo(sizes.b, sizes.element(a), _nonzero_divisor(sizes, c), _is_nonnegative(sizes, c))


_DIVISIONS = {"floordiv": _floordiv, "mod": _mod}


# Shifts, roundings, floats


def _power_of_two(b: Builder, exponent: Value) -> Value:
    return b.Pow(b.scalar(2, torch.int64), exponent)


def _rshift(b: Builder, a: Value, c: Value) -> Value:
    return floor_quotient(b, a, _power_of_two(b, c), natural=True)


def _round_to_integer(op: str) -> Callable[..., Value]:
    return lambda b, x: b.cast(getattr(b, op)(x), torch.int64)


def _truediv(b: Builder, a: Value, c: Value) -> Value:
    return b.Div(b.cast(a, torch.float64), b.cast(c, torch.float64))


def _fmod(b: Builder, a: Value, c: Value) -> Value:
    """With the sign of the divisor."""
    rest = b.Mod(a, c, fmod=1)
    other_sign = b.Less(b.Mul(rest, c), 0.0)
    return b.Where(other_sign, b.Add(rest, c), rest)


def _ffloordiv(b: Builder, a: Value, c: Value) -> Value:
    """Not the floor of the rounded quotient: 1.0 // 0.1 is 9.0."""
    return b.Round(b.Div(b.Sub(a, _fmod(b, a, c)), c))


def emit_log_base(b: Builder, x: Value, base: float) -> Value:
    """Exact where the number is a power of the base."""
    exponent = b.Div(b.Log(x), math.log(base))
    whole = b.Round(exponent)
    power = b.Pow(b.scalar(base, like=x), whole)
    return b.Where(b.Equal(power, x), whole, exponent)


_VARIADIC = {"min": "Min", "max": "Max", "fmin": "Min", "fmax": "Max"}

_OPERATORS = {
    "pow": "Pow",
    "abs": "Abs",
    "bitand": "BitwiseAnd",
    "bitor": "BitwiseOr",
    "bitxor": "BitwiseXor",
    "fadd": "Add",
    "fneg": "Neg",
    "fmul": "Mul",
    "fdiv": "Div",
    "fpow": "Pow",
    "fabs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "feq": "Equal",
    "flt": "Less",
    "fle": "LessOrEqual",
    "not": "Not",
    "ite": "Where",
}

_FORMULAS: dict[str, Callable[..., Value]] = {
    "lshift": lambda b, a, c: b.Mul(a, _power_of_two(b, c)),
    "rshift": _rshift,
    "floor": _round_to_integer("Floor"),
    "ceil": _round_to_integer("Ceil"),
    "round": _round_to_integer("Round"),
    "trunc": lambda b, x: b.cast(x, torch.int64),
    "to_float": lambda b, x: b.cast(x, torch.float64),
    "truediv": _truediv,
    "fmod": _fmod,
    "ffloordiv": _ffloordiv,
    "log2": lambda b, x: emit_log_base(b, x, 2.0),
    "log10": lambda b, x: emit_log_base(b, x, 10.0),
    "tan": lambda b, x: b.Div(b.Sin(x), b.Cos(x)),
    "ge0": lambda b, x: b.GreaterOrEqual(x, 0),
    "eq0": lambda b, x: b.Equal(x, 0),
}
