"""Our expressions as sympy expressions in torch's functions, and back.

Two tables, one row per kind of node. What has no counterpart is an `UnsupportedError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import IntInfinity, NegativeIntInfinity

from graphport import symbolic
from graphport.errors import UnsupportedError
from graphport.symbolic import Expr, Value
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.nodes import parts_first

_f = torch_functions

_MOST_OPERATIONS = 4096
"""sympy writes expressions out, and takes seconds for longer ones."""


def _mod(a: Any, b: Any) -> Any:
    """torch tells the two apart: its own `Mod` is for what is not negative."""
    return (_f.Mod if a.is_nonnegative and b.is_nonnegative else _f.PythonMod)(a, b)


def _float_floor(a: Any, b: Any) -> Any:
    return _f.ToFloat(_f.FloorToInt(_f.FloatTrueDiv(a, b)))


_TO_SYMPY: dict[str, Callable[..., Any]] = {
    "floordiv": _f.FloorDiv, "mod": _mod, "min": _f.Min, "max": _f.Max, "abs": sympy.Abs,
    "pow": _f.PowByNatural, "lshift": _f.LShift, "rshift": _f.RShift,
    "bitand": _f.BitwiseFn_bitwise_and, "bitor": _f.BitwiseFn_bitwise_or,
    "bitxor": _f.BitwiseFn_bitwise_xor, "floor": _f.FloorToInt, "ceil": _f.CeilToInt,
    "trunc": _f.TruncToInt, "round": _f.RoundToInt, "round_to": _f.RoundDecimal,
    "to_float": _f.ToFloat, "truediv": _f.IntTrueDiv, "fdiv": _f.FloatTrueDiv,
    "fadd": lambda a, b: a + b, "fmul": lambda a, b: a * b, "fneg": lambda a: -a,
    "ffloordiv": _float_floor, "fmod": lambda a, b: a - b * _float_floor(a, b),
    "fpow": _f.FloatPow, "fmin": _f.Min, "fmax": _f.Max, "fabs": sympy.Abs,
    "not": sympy.Not, "and": sympy.And, "or": sympy.Or,
    "ite": lambda cond, a, b: sympy.Piecewise((a, cond), (b, True)),
    **{name: function for name in FUNCTIONS
       if (function := getattr(_f, f"OpaqueUnaryFn_{name}", None)) is not None},
}  # fmt: skip

_RELATIONS: dict[str, Callable[..., Any]] = {
    "ge0": sympy.Ge, "eq0": sympy.Eq, "feq": sympy.Eq, "flt": sympy.Lt, "fle": sympy.Le,
}  # fmt: skip


class ToSympy:
    """Translates expressions, given what each symbol is.

    sympy decides some comparisons by what it takes for granted of a symbol: torch declares sizes as
    positive. `evaluate=False` keeps them, for conditions that are to be checked.
    """

    def __init__(self, symbol: Callable[[Expr], Any], *, evaluate: bool = True) -> None:
        self._symbol = symbol
        self._evaluate = evaluate
        self._done: dict[Expr, Any] = {}

    def __call__(self, e: Value) -> Any:
        if type(e) is not Expr:
            return sympy.true if e is True else sympy.false if e is False else sympy.sympify(e)
        known = self._done.get(e)
        if known is None:
            if e.size > _MOST_OPERATIONS:
                raise UnsupportedError(
                    f"a number takes {e.size} operations on sizes, and torch has no room for more"
                    f" than {_MOST_OPERATIONS}",
                    fix="compute it with tensors",
                )
            for part in parts_first(e, self._done.__contains__):
                self(part)
            known = self._done[e] = self._translate(e)
        return known

    def _translate(self, e: Expr) -> Any:
        if e.kind == "symbol":
            return self._symbol(e)
        if e.kind == "add":
            return sympy.Add(*(coef * self(term) for term, coef in e.args), e.const)
        if e.kind == "mul":
            return sympy.Mul(*(self(part) ** power for part, power in e.args))
        if e.kind in _RELATIONS:
            sides = self._sides(e.args[0]) if e.kind in ("ge0", "eq0") else map(self, e.args)
            return _RELATIONS[e.kind](*sides, evaluate=self._evaluate)
        if e.kind not in _TO_SYMPY:
            raise UnsupportedError(f"torch has no function {e.kind!r} on sizes, in {e}")
        return _TO_SYMPY[e.kind](*map(self, e.args))

    def _sides(self, e: Expr) -> tuple[Any, Any]:
        """e == left - right without a minus sign on either side: `s0 >= 3`, not `s0 - 3 >= 0`."""
        terms, const = (e.args, e.const) if e.kind == "add" else (((e, 1),), 0)
        left = [coef * self(term) for term, coef in terms if coef > 0]
        right = [-coef * self(term) for term, coef in terms if coef < 0]
        if const > 0 and right:
            return sympy.Add(*left, const), sympy.Add(*right)
        return sympy.Add(*left), sympy.Add(*right, -const)


def _fold(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def folded(first: Any, *rest: Any) -> Any:
        for x in rest:
            first = operation(first, x)
        return first

    return folded


def _power(base: Any, exponent: Any) -> Any:
    if type(exponent) is not int or exponent < 0:
        raise UnsupportedError(f"sizes are integers, and {base}**({exponent}) need not be one")
    return symbolic.pow_(base, exponent)


def _choice(*branches: tuple[Any, Any]) -> Any:
    """A Piecewise, whose last branch is taken when no other is."""
    result = branches[-1][0]
    for value, cond in reversed(branches[:-1]):
        result = symbolic.ite(cond, value, result)
    return result


_FROM_SYMPY: dict[str, Callable[..., Any]] = {
    "Add": lambda *args: symbolic.sum_(args), "Mul": lambda *args: symbolic.prod(args),
    "Pow": _power, "PowByNatural": symbolic.pow_, "FloatPow": symbolic.pow_,
    "FloorDiv": symbolic.floordiv, "CleanDiv": symbolic.floordiv,
    "CeilDiv": lambda a, b: -symbolic.floordiv(symbolic.neg(a), b),
    "Mod": symbolic.mod, "PythonMod": symbolic.mod,
    "ModularIndexing": lambda a, b, c: symbolic.mod(symbolic.floordiv(a, b), c),
    "Min": _fold(symbolic.min_), "Max": _fold(symbolic.max_), "Abs": symbolic.abs_,
    "IntTrueDiv": symbolic.truediv, "FloatTrueDiv": symbolic.truediv,
    "ToFloat": symbolic.to_float, "TruncToInt": symbolic.to_int,
    "TruncToFloat": lambda a: symbolic.to_float(symbolic.to_int(a)),
    "FloorToInt": symbolic.floor, "floor": symbolic.floor,
    "CeilToInt": symbolic.ceil, "ceiling": symbolic.ceil,
    "RoundToInt": symbolic.round_, "RoundDecimal": symbolic.round_,
    "LShift": symbolic.lshift, "RShift": symbolic.rshift,
    "BitwiseFn_bitwise_and": symbolic.bitand, "BitwiseFn_bitwise_or": symbolic.bitor,
    "BitwiseFn_bitwise_xor": symbolic.bitxor, "Identity": lambda a: a,
    "Equality": symbolic.eq, "Unequality": symbolic.ne, "GreaterThan": symbolic.ge,
    "LessThan": symbolic.le, "StrictGreaterThan": symbolic.gt, "StrictLessThan": symbolic.lt,
    "And": _fold(symbolic.and_), "Or": _fold(symbolic.or_), "Not": symbolic.not_,
    "Where": symbolic.ite, "Piecewise": _choice, "ExprCondPair": lambda a, b: (a, b),
    **{f"OpaqueUnaryFn_{name}": lambda a, name=name: symbolic.func(name, a) for name in FUNCTIONS},
}  # fmt: skip


class FromSympy:
    """Translates sympy expressions, given what each symbol is."""

    def __init__(self, symbol: Callable[[Any], Value]) -> None:
        self._symbol = symbol
        self._done: dict[Any, Any] = {}

    def __call__(self, e: Any) -> Any:
        known = self._done.get(e)
        if known is None:
            known = self._done[e] = self._translate(e)
        return known

    def _translate(self, e: Any) -> Any:
        if isinstance(e, sympy.Symbol):
            return self._symbol(e)
        constant = _constant(e)
        if constant is not None:
            return constant
        name = type(e).__name__
        if name not in _FROM_SYMPY:
            raise UnsupportedError(f"graphport has no operation {name} on sizes, in {e}")
        return _FROM_SYMPY[name](*map(self, e.args))


def _constant(e: Any) -> Any:
    if e is sympy.true or e is sympy.false:
        return bool(e)
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Float) or e in (sympy.oo, -sympy.oo):
        return float(e)
    return None


def bound(x: Any) -> float:
    """An end of a range of torch's as a number: an int, or a float that may be infinite."""
    if isinstance(x, IntInfinity) or x == sympy.oo:
        return float("inf")
    if isinstance(x, NegativeIntInfinity) or x == -sympy.oo:
        return float("-inf")
    return int(x) if x.is_integer else float(x)


def values_of(shape_env: Any) -> Any:
    """By symbol of torch's, the size in the example; `var_to_val` in older versions."""
    found = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if found is None else found
