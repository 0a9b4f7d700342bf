"""Converts expressions and guards between our algebra and torch's sympy.

Two tables, one row per kind of node. What has no counterpart is an `UnsupportedError`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from graphport import symbolic
from graphport.compat.torch import IntInfinity, NegativeIntInfinity
from graphport.compat.torch import sympy_functions as torch_functions
from graphport.errors import UnsupportedError
from graphport.program.call_checks import InputShape
from graphport.symbolic import Expr, Number, Truth, Value
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.nodes import walk_postorder

_f = torch_functions

Operation = Callable[..., Value]
"""On numbers and expressions of ours."""

_MAX_SYMPY_OPERATIONS = 4096
"""sympy writes expressions out, and takes seconds for longer ones."""


def _mod(a: sympy.Basic, b: sympy.Basic) -> sympy.Basic:
    """torch tells the two apart: its own `Mod` is for what is not negative."""
    return (_f.Mod if a.is_nonnegative and b.is_nonnegative else _f.PythonMod)(a, b)


def _float_floor(a: object, b: object) -> sympy.Basic:
    return _f.ToFloat(_f.FloorToInt(_f.FloatTrueDiv(a, b)))


_TO_SYMPY: dict[str, Callable[..., sympy.Basic]] = {
    "floordiv": _f.FloorDiv,
    "mod": _mod,
    "min": _f.Min,
    "max": _f.Max,
    "abs": sympy.Abs,
    "pow": _f.PowByNatural,
    "lshift": _f.LShift,
    "rshift": _f.RShift,
    "bitand": _f.BitwiseFn_bitwise_and,
    "bitor": _f.BitwiseFn_bitwise_or,
    "bitxor": _f.BitwiseFn_bitwise_xor,
    "floor": _f.FloorToInt,
    "ceil": _f.CeilToInt,
    "trunc": _f.TruncToInt,
    "round": _f.RoundToInt,
    "round_to": _f.RoundDecimal,
    "to_float": _f.ToFloat,
    "truediv": _f.IntTrueDiv,
    "fdiv": _f.FloatTrueDiv,
    "fadd": lambda a, b: a + b,
    "fmul": lambda a, b: a * b,
    "fneg": lambda a: -a,
    "ffloordiv": _float_floor,
    "fmod": lambda a, b: a - b * _float_floor(a, b),
    "fpow": _f.FloatPow,
    "fmin": _f.Min,
    "fmax": _f.Max,
    "fabs": sympy.Abs,
    "not": sympy.Not,
    "and": sympy.And,
    "or": sympy.Or,
    "ite": lambda cond, a, b: sympy.Piecewise((a, cond), (b, True)),
    **{
        name: function
        for name in FUNCTIONS
        if (function := getattr(_f, f"OpaqueUnaryFn_{name}", None)) is not None
    },
}

_RELATIONS: dict[str, Callable[..., sympy.Basic]] = {
    "ge0": sympy.Ge,
    "eq0": sympy.Eq,
    "feq": sympy.Eq,
    "flt": sympy.Lt,
    "fle": sympy.Le,
}


class ToSympy:
    """Translates expressions, given what each symbol is.

    sympy decides some comparisons by what it takes for granted of a symbol: torch declares sizes as
    positive. `evaluate=False` keeps them, for conditions that are to be checked.
    """

    def __init__(self, symbol: Callable[[Expr], sympy.Basic], *, evaluate: bool = True) -> None:
        self._symbol = symbol
        self._evaluate = evaluate
        self._done: dict[Expr, sympy.Basic] = {}

    def __call__(self, e: Value) -> sympy.Basic:
        if type(e) is not Expr:
            return sympy.true if e is True else sympy.false if e is False else sympy.sympify(e)
        known = self._done.get(e)
        if known is None:
            if e.size > _MAX_SYMPY_OPERATIONS:
                raise UnsupportedError(
                    f"a number takes {e.size} operations on sizes, and torch takes at most"
                    f" {_MAX_SYMPY_OPERATIONS}",
                    fix="compute it with tensors",
                )
            for part in walk_postorder(e, self._done.__contains__):
                self(part)
            known = self._done[e] = self._translate(e)
        return known

    def _translate(self, e: Expr) -> sympy.Basic:
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

    def _sides(self, e: Expr) -> tuple[sympy.Basic, sympy.Basic]:
        """e == left - right without a minus sign on either side: `s0 >= 3`, not `s0 - 3 >= 0`."""
        terms, const = (e.args, e.const) if e.kind == "add" else (((e, 1),), 0)
        left = [coef * self(term) for term, coef in terms if coef > 0]
        right = [-coef * self(term) for term, coef in terms if coef < 0]
        if const > 0 and right:
            return sympy.Add(*left, const), sympy.Add(*right)
        return sympy.Add(*left), sympy.Add(*right, -const)


def _reduce_pairwise(operation: Operation) -> Operation:
    def folded(first: Value, *rest: Value) -> Value:
        for x in rest:
            first = operation(first, x)
        return first

    return folded


def _convert_power(base: Value, exponent: Value) -> Value:
    if type(exponent) is not int or exponent < 0:
        raise UnsupportedError(f"sizes are integers, and {base}**({exponent}) need not be one")
    return symbolic.pow_(base, exponent)


def _convert_piecewise(*branches: tuple[Value, Truth]) -> Value:
    """A Piecewise, whose last branch is taken when no other is."""
    result = branches[-1][0]
    for value, cond in reversed(branches[:-1]):
        result = symbolic.ite(cond, value, result)
    return result


_FROM_SYMPY: dict[str, Callable[..., Value | tuple[Value, Truth]]] = {
    "Add": lambda *args: symbolic.sum_(args),
    "Mul": lambda *args: symbolic.prod(args),
    "Pow": _convert_power,
    "PowByNatural": symbolic.pow_,
    "FloatPow": symbolic.pow_,
    "FloorDiv": symbolic.floordiv,
    "CleanDiv": symbolic.floordiv,
    "CeilDiv": lambda a, b: -symbolic.floordiv(symbolic.neg(a), b),
    "Mod": symbolic.mod,
    "PythonMod": symbolic.mod,
    "ModularIndexing": lambda a, b, c: symbolic.mod(symbolic.floordiv(a, b), c),
    "Min": _reduce_pairwise(symbolic.min_),
    "Max": _reduce_pairwise(symbolic.max_),
    "Abs": symbolic.abs_,
    "IntTrueDiv": symbolic.truediv,
    "FloatTrueDiv": symbolic.truediv,
    "ToFloat": symbolic.to_float,
    "TruncToInt": symbolic.to_int,
    "TruncToFloat": lambda a: symbolic.to_float(symbolic.to_int(a)),
    "FloorToInt": symbolic.floor,
    "floor": symbolic.floor,
    "CeilToInt": symbolic.ceil,
    "ceiling": symbolic.ceil,
    "RoundToInt": symbolic.round_,
    "RoundDecimal": symbolic.round_,
    "LShift": symbolic.lshift,
    "RShift": symbolic.rshift,
    "BitwiseFn_bitwise_and": symbolic.bitand,
    "BitwiseFn_bitwise_or": symbolic.bitor,
    "BitwiseFn_bitwise_xor": symbolic.bitxor,
    "Identity": lambda a: a,
    "Equality": symbolic.eq,
    "Unequality": symbolic.ne,
    "GreaterThan": symbolic.ge,
    "LessThan": symbolic.le,
    "StrictGreaterThan": symbolic.gt,
    "StrictLessThan": symbolic.lt,
    "And": _reduce_pairwise(symbolic.and_),
    "Or": _reduce_pairwise(symbolic.or_),
    "Not": symbolic.not_,
    "Where": symbolic.ite,
    "Piecewise": _convert_piecewise,
    "ExprCondPair": lambda a, b: (a, b),
    **{f"OpaqueUnaryFn_{name}": lambda a, name=name: symbolic.func(name, a) for name in FUNCTIONS},
}


class FromSympy:
    """Translates sympy expressions, given what each symbol is."""

    def __init__(self, symbol: Callable[[sympy.Symbol], Value]) -> None:
        self._symbol = symbol
        self._done: dict[sympy.Basic, Any] = {}

    def __call__(self, e: sympy.Basic) -> Any:
        known = self._done.get(e)
        if known is None:
            known = self._done[e] = self._translate(e)
        return known

    def _translate(self, e: sympy.Basic) -> Any:
        if isinstance(e, sympy.Symbol):
            return self._symbol(e)
        constant = _convert_constant(e)
        if constant is not None:
            return constant
        name = type(e).__name__
        if name not in _FROM_SYMPY:
            raise UnsupportedError(f"graphport has no operation {name} on sizes, in {e}")
        return _FROM_SYMPY[name](*map(self, e.args))


def _convert_constant(e: sympy.Basic) -> Number | None:
    if e is sympy.true or e is sympy.false:
        return bool(e)
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Float) or e in (sympy.oo, -sympy.oo):
        return float(e)
    return None


def convert_bound(x: sympy.Basic) -> float:
    """An end of a range of torch's as a number: an int, or a float that may be infinite."""
    if isinstance(x, IntInfinity) or x == sympy.oo:
        return float("inf")
    if isinstance(x, NegativeIntInfinity) or x == -sympy.oo:
        return float("-inf")
    return int(x) if x.is_integer else float(x)


def get_example_values(shape_env: Any) -> Any:
    """By symbol of torch's, the size in the example; `var_to_val` in older versions."""
    found = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if found is None else found


# Parses torch's guards on the inputs of a program, which it keeps as Python text.
#
#     L['x'].size()[0] == 2*L['y'].size()[1]
#
# A condition is read as an expression of ours; nothing of it is executed.

_BINARY: dict[type, Operation] = {
    ast.Add: symbolic.add,
    ast.Sub: symbolic.sub,
    ast.Mult: symbolic.mul,
    ast.FloorDiv: symbolic.floordiv,
    ast.Mod: symbolic.mod,
    ast.Div: symbolic.truediv,
    ast.Pow: symbolic.pow_,
    ast.LShift: symbolic.lshift,
    ast.RShift: symbolic.rshift,
    ast.BitAnd: symbolic.bitand,
    ast.BitOr: symbolic.bitor,
    ast.BitXor: symbolic.bitxor,
}
_UNARY: dict[type, Operation] = {
    ast.USub: symbolic.neg,
    ast.UAdd: lambda a: a,
    ast.Not: symbolic.not_,
}
_COMPARISONS: dict[type, Callable[..., Truth]] = {
    ast.Eq: symbolic.eq,
    ast.NotEq: symbolic.ne,
    ast.Lt: symbolic.lt,
    ast.LtE: symbolic.le,
    ast.Gt: symbolic.gt,
    ast.GtE: symbolic.ge,
}


def _make_extreme(of_two: Operation) -> Operation:
    def extreme(first: Value, *rest: Value) -> Value:
        for x in rest:
            first = of_two(first, x)
        return first

    return extreme


_CALLS: dict[str, Operation] = {
    "min": _make_extreme(symbolic.min_),
    "max": _make_extreme(symbolic.max_),
    "abs": symbolic.abs_,
    "float": symbolic.to_float,
    "torch.sym_float": symbolic.to_float,
    "int": symbolic.to_int,
    "math.floor": symbolic.floor,
    "math.ceil": symbolic.ceil,
    "math.trunc": symbolic.to_int,
    "round": symbolic.round_,
    "torch._sym_sqrt": symbolic.sqrt,
    "torch.sym_sqrt": symbolic.sqrt,
    **{f"math.{name}": lambda a, name=name: symbolic.func(name, a) for name in FUNCTIONS},
}
_NAMES = {"True": True, "False": False, "math.inf": float("inf"), "inf": float("inf")}


class GuardReader:
    """Reads conditions, given how torch calls each input."""

    def __init__(self, inputs: Mapping[str, InputShape]) -> None:
        self._inputs = {_normalise_text(name): shape for name, shape in inputs.items()}

    def __call__(self, text: str) -> Truth:
        try:
            cond: Truth = self._read(ast.parse(text.strip(), mode="eval").body)
        except (_UnknownError, SyntaxError) as error:
            raise UnsupportedError(
                f"a condition on the inputs cannot be converted: {text} ({error})"
            ) from None
        return cond

    def _read(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self._read(node.left), self._read(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return _UNARY[type(node.op)](self._read(node.operand))
        if isinstance(node, ast.BoolOp):
            connect = symbolic.and_ if isinstance(node.op, ast.And) else symbolic.or_
            return _make_extreme(connect)(*map(self._read, node.values))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.IfExp):
            return symbolic.ite(*map(self._read, (node.test, node.body, node.orelse)))
        return self._place(node)

    def _comparison(self, node: ast.Compare) -> Truth:
        values = [self._read(x) for x in (node.left, *node.comparators)]
        result: Truth = True
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in _COMPARISONS:
                raise _UnknownError(f"{type(op).__name__} is not a comparison of numbers")
            result = symbolic.and_(result, _COMPARISONS[type(op)](a, b))
        return result

    def _place(self, node: ast.expr) -> Any:
        """A size of an input, an input that is a number, a function."""
        text = _normalise_text(ast.unparse(node))
        if text in _NAMES:
            return _NAMES[text]
        shape = self._inputs.get(text)
        if shape is not None and shape.sizes is None:
            return shape.value if shape.number is None else shape.number
        size = re.fullmatch(r"(.*)\.(?:size\(\)|shape)\[(\d+)\]", text)
        if size and size[1] in self._inputs:
            sizes = self._inputs[size[1]].sizes
            if sizes is not None and int(size[2]) < len(sizes):
                return sizes[int(size[2])]
        if isinstance(node, ast.Call) and (function := ast.unparse(node.func)) in _CALLS:
            return _CALLS[function](*map(self._read, node.args))
        raise _UnknownError(f"{text} is neither an input nor a function on numbers")


class _UnknownError(Exception):
    """A part of a condition that cannot be read."""


def _normalise_text(text: str) -> str:
    return ast.unparse(ast.parse(text, mode="eval"))
