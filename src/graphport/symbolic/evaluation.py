"""Evaluates expressions at concrete values, and substitutes in them.

Two tables, one row per kind: `MEANING` computes on Python numbers, `_REBUILD` builds the canonical
expression again from new operands. Evaluation has Python's semantics exactly, exceptions included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphport.symbolic import division, floats, integers, logic
from graphport.symbolic.nodes import Expr, Number, Value, record_factors, walk_postorder

# No number of a program has more bits: computing one would take all time and memory there is.
_MAX_BITS = 1 << 16


def _power(a: int, b: int) -> int:
    if a.bit_length() * b > _MAX_BITS and abs(a) > 1:
        raise OverflowError(f"{a} ** {b} is too large")
    return a**b


def _shift(a: int, b: int) -> int:
    if b > _MAX_BITS:
        raise OverflowError(f"{a} << {b} is too large")
    return a << b


MEANING: dict[str, Callable[..., Any]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": lambda *args: min(args),
    "max": lambda *args: max(args),
    "pow": _power,
    "abs": abs,
    "lshift": _shift,
    "rshift": lambda a, b: a >> b,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "to_float": float,
    "truediv": lambda a, b: a / b,
    "fadd": lambda a, b: a + b,
    "fneg": lambda a: -a,
    "fmul": lambda a, b: a * b,
    "fdiv": lambda a, b: a / b,
    "ffloordiv": lambda a, b: a // b,
    "fmod": lambda a, b: a % b,
    "fpow": lambda a, b: a**b,
    "fmin": min,
    "fmax": max,
    "fabs": abs,
    "round_to": round,
    **floats.FUNCTIONS,
    "ge0": lambda e: e >= 0,
    "eq0": lambda e: e == 0,
    "feq": lambda a, b: a == b,
    "flt": lambda a, b: a < b,
    "fle": lambda a, b: a <= b,
    "not": lambda a: not a,
}

_REBUILD: dict[str, Callable[..., Any]] = {
    "floordiv": division.floordiv,
    "mod": division.mod,
    "pow": integers.pow_,
    "abs": integers.abs_,
    "lshift": integers.lshift,
    "rshift": division.rshift,
    "bitand": integers.bitand,
    "bitor": integers.bitor,
    "bitxor": integers.bitxor,
    "floor": floats.floor,
    "ceil": floats.ceil,
    "trunc": floats.trunc,
    "round": floats.round_,
    "to_float": floats.to_float,
    "truediv": floats.int_truediv,
    "fadd": floats.add,
    "fneg": floats.neg,
    "fmul": floats.mul,
    "fdiv": floats.truediv,
    "ffloordiv": floats.floordiv,
    "fmod": floats.mod,
    "fpow": floats.pow_,
    "fmin": floats.min_,
    "fmax": floats.max_,
    "fabs": floats.abs_,
    "round_to": floats.round_to,
    "ge0": logic.ge0,
    "eq0": logic.eq0,
    "feq": logic.feq,
    "flt": logic.flt,
    "fle": logic.fle,
    "not": logic.not_,
    "ite": logic.ite,
}

_VARIADIC: dict[str, Callable[[str, Sequence[Any]], Any]] = {
    "min": integers.extremum,
    "max": integers.extremum,
    "and": logic.connect,
    "or": logic.connect,
}


_LAZY = ("ite", "and", "or")
"""Not all of their operands need have a value."""


def evaluate(e: Value, env: Mapping[Expr, Number]) -> Number:
    """The value of `e` where the symbols have the values of `env`."""
    return evaluate_with(e, dict(env))


def evaluate_with(e: Value, done: dict[Expr, Any]) -> Any:
    """Evaluation with a memo that the caller keeps: `done` begins with the symbols' values."""
    if type(e) is not Expr:
        return e
    if e in done:
        return done[e]
    for part in walk_postorder(e, done.__contains__, _LAZY):
        evaluate_with(part, done)
    kind = e.kind
    result: Any
    if kind == "add":
        result = e.const
        for mono, coef in e.args:
            result += coef * evaluate_with(mono, done)
    elif kind == "mul":
        result = 1
        for part, power in e.args:
            result *= evaluate_with(part, done) ** power
    elif kind == "symbol":
        raise KeyError(f"no value for {e}")
    elif kind == "ite":
        cond, a, b = e.args
        result = evaluate_with(a if evaluate_with(cond, done) else b, done)
    elif kind == "and":
        result = all(evaluate_with(part, done) for part in e.args)
    elif kind == "or":
        result = any(evaluate_with(part, done) for part in e.args)
    else:
        result = MEANING[kind](*[evaluate_with(part, done) for part in e.args])
    done[e] = result
    return result


def build(kind: str, args: Sequence[Value]) -> Any:
    """The canonical expression of an operation by its kind; not for `add` and `mul`."""
    if kind in _VARIADIC:
        return _VARIADIC[kind](kind, args)
    if kind in floats.FUNCTIONS:
        return floats.func(kind, args[0])
    return _REBUILD[kind](*args)


def substitute(e: Value, mapping: Mapping[Expr, Value]) -> Any:
    """`e` with expressions replaced, all at once; the result is canonical.

    Keys are usually symbols but may be any atom or monomial.
    """
    return rebuild(e, dict(mapping))


def rebuild(e: Value, done: dict[Expr, Any], finish: Callable[[Expr], Value] | None = None) -> Any:
    """Substitution with a memo that the caller keeps: `done` maps what is already known.

    `finish` has the last word on every integer that was looked at.
    """
    if type(e) is not Expr:
        return e
    if e in done:
        return done[e]
    for part in walk_postorder(e, done.__contains__):
        rebuild(part, done, finish)
    kind = e.kind
    result: Any
    if kind == "symbol":
        result = e
    elif kind == "add":
        result = _rebuild_sum(e, done, finish)
    elif kind == "mul":
        result = 1
        for part, power in e.args:
            result = integers.mul(result, integers.pow_(rebuild(part, done, finish), power))
    else:
        args = [rebuild(part, done, finish) for part in e.args]
        if all(new is old for new, old in zip(args, e.args, strict=True)):
            result = e
        else:
            result = build(kind, args)
    if finish is not None and type(result) is Expr and result.type is int:
        result = finish(result)
    done[e] = result
    return result


def _rebuild_sum(e: Expr, done: dict[Expr, Any], finish: Callable[[Expr], Value] | None) -> object:
    parts = [(rebuild(mono, done, finish), coef) for mono, coef in e.args]
    if all(new is old for (new, _), (old, _) in zip(parts, e.args, strict=True)):
        return e
    result = integers.sum_([e.const, *(integers.scale(new, coef) for new, coef in parts)])
    if e.factors:
        # A product of sums stays known as one, so that its sign stays easy to see.
        factors = tuple(rebuild(factor, done, finish) for factor in e.factors)
        if all(type(factor) is Expr for factor in factors):
            record_factors(result, factors)
    return result
