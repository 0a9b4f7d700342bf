"""The operations on expressions: the public face of the algebra.

Every function takes Python numbers, bools and `Expr` alike, follows Python's rules of promotion,
and returns a plain Python value when the result is constant. Results are memoised in the arena, so
repeating an operation costs a dictionary lookup.

    >>> from graphport.symbolic import Scope, division
    >>> n = Scope().symbol("n")
    >>> (n * 4 + 2) // 4
    n
    >>> ge(2 * n, 7)
    n >= 4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphport.symbolic import division, floats, integers, logic
from graphport.symbolic.evaluation import build, evaluate, substitute
from graphport.symbolic.logic import ite
from graphport.symbolic.nodes import (
    Arena,
    Expr,
    Number,
    Size,
    Truth,
    Value,
    memoise,
    memoise_unary,
    symbols,
)
from graphport.symbolic.printing import symbolic_repr, to_str
from graphport.symbolic.ranges import Range

__all__ = [
    "Expr",
    "Number",
    "Size",
    "Truth",
    "Value",
    "abs_",
    "add",
    "and_",
    "bitand",
    "bitor",
    "bitxor",
    "ceil",
    "eq",
    "evaluate",
    "floor",
    "floordiv",
    "func",
    "ge",
    "gt",
    "ite",
    "le",
    "lshift",
    "lt",
    "max_",
    "min_",
    "mod",
    "mul",
    "ne",
    "neg",
    "not_",
    "or_",
    "pow_",
    "prod",
    "round_",
    "rshift",
    "sqrt",
    "sub",
    "substitute",
    "sum_",
    "symbolic_repr",
    "symbols",
    "to_float",
    "to_int",
    "truediv",
    "type_of",
]


def type_of(a: Value) -> type:
    """int, float or bool."""
    return a.type if type(a) is Expr else type(a)


def _integer(a: Any) -> Size:
    return a if type_of(a) is int else logic.to_integer(a)


def _real(a: Any) -> floats.Real:
    return a if type_of(a) is float else floats.to_float(_integer(a))


def _make_promoting(name: str, integer: Callable[..., Any], real: Callable[..., Any]) -> Any:
    """A binary operation that is carried out on floats as soon as one operand is a float."""

    def operation(a: Value, b: Value) -> Value:
        if type_of(a) is float or type_of(b) is float:
            return real(_real(a), _real(b))
        return integer(_integer(a), _integer(b))

    operation.__name__ = name
    operation.__doc__ = integer.__doc__
    return memoise(operation)


def _ge(a: Size, b: Size) -> Truth:
    return logic.ge0(integers.sub(a, b))


def _eq(a: Size, b: Size) -> Truth:
    return logic.eq0(integers.sub(a, b))


add = _make_promoting("add", integers.add, floats.add)
sub = _make_promoting("sub", integers.sub, floats.sub)
mul = _make_promoting("mul", integers.mul, floats.mul)
floordiv = _make_promoting("floordiv", division.floordiv, floats.floordiv)
mod = _make_promoting("mod", division.mod, floats.mod)
truediv = _make_promoting("truediv", floats.int_truediv, floats.truediv)
min_ = _make_promoting("min_", integers.min_, floats.min_)
max_ = _make_promoting("max_", integers.max_, floats.max_)
eq = _make_promoting("eq", _eq, logic.feq)
ne = _make_promoting(
    "ne", lambda a, b: logic.not_(_eq(a, b)), lambda a, b: logic.not_(logic.feq(a, b))
)
ge = _make_promoting("ge", _ge, lambda a, b: logic.fle(b, a))
le = _make_promoting("le", lambda a, b: _ge(b, a), logic.fle)
gt = _make_promoting("gt", lambda a, b: _ge(a, integers.add(b, 1)), lambda a, b: logic.flt(b, a))
lt = _make_promoting("lt", lambda a, b: _ge(b, integers.add(a, 1)), logic.flt)


def _on_ints(operation: Callable[[Size, Size], Size]) -> Any:
    return memoise(lambda a, b: operation(_integer(a), _integer(b)))


lshift = _on_ints(integers.lshift)
rshift = _on_ints(division.rshift)
bitand = _on_ints(integers.bitand)
bitor = _on_ints(integers.bitor)
bitxor = _on_ints(integers.bitxor)
and_ = memoise(logic.and_)
or_ = memoise(logic.or_)
not_ = memoise_unary(logic.not_)


@memoise
def pow_(a: Value, b: Value) -> Value:
    """a ** b. Of ints it is an int, except for a negative constant exponent, as in Python."""
    if type_of(a) is float or type_of(b) is float or (type(b) is not Expr and b < 0):
        return floats.pow_(_real(a), _real(b))
    return integers.pow_(_integer(a), _integer(b))


def neg(a: Value) -> Value:
    return floats.neg(a) if type_of(a) is float else integers.neg(_integer(a))


def abs_(a: Value) -> Value:
    return floats.abs_(a) if type_of(a) is float else integers.abs_(_integer(a))


def to_float(a: Value) -> floats.Real:
    return _real(a)


def _make_rounding(real: Callable[[floats.Real], Size]) -> Callable[[Value], Size]:
    """A conversion to int, which leaves integers alone."""

    def operation(a: Value) -> Size:
        return real(a) if type_of(a) is float else _integer(a)

    operation.__doc__ = real.__doc__
    return memoise_unary(operation)


to_int = _make_rounding(floats.trunc)
floor = _make_rounding(floats.floor)
ceil = _make_rounding(floats.ceil)


def round_(a: Value, digits: int | None = None) -> Value:
    """To the nearest integer, halves to the even one; to `digits` decimals it stays a float."""
    if type_of(a) is not float:
        return _integer(a) if digits is None or digits >= 0 else _round_integer(_integer(a), digits)
    if digits is None:
        return floats.round_(a)
    return floats.round_to(a, digits)


def _round_integer(a: Size, digits: int) -> Size:
    """To tens, hundreds, ...: halves to the even multiple."""
    if type(a) is not Expr:
        return round(a, digits)
    unit = 10**-digits
    raised = integers.add(a, unit // 2)
    multiple = division.floordiv(raised, unit)
    is_half, is_odd = _eq(division.mod(raised, unit), 0), _eq(division.mod(multiple, 2), 1)
    down = logic.to_integer(logic.and_(is_half, is_odd))
    return integers.mul(integers.sub(multiple, down), unit)


def func(name: str, a: Value) -> floats.Real:
    """A function of the `math` module by name, of `floats.FUNCTIONS`."""
    return floats.func(name, _real(a))


def sqrt(a: Value) -> floats.Real:
    return floats.func("sqrt", _real(a))


def sum_(values: Iterable[Value]) -> Value:
    """The sum of many values."""
    values = list(values)
    if any(type_of(v) is float for v in values):
        total: Value = 0
        for value in values:
            total = add(total, value)
        return total
    return integers.sum_(map(_integer, values))


def prod(values: Iterable[Value]) -> Value:
    """The product of many values; 1 for none."""
    result: Value = 1
    for value in values:
        result = mul(result, value)
    return result


def _reduce_for_pickle(e: Expr) -> tuple[Any, ...]:
    """For pickles: a symbol by its name and range, anything else by its operands."""
    if e.kind == "symbol":
        return _restore_symbol, (e.arena, e.name, e.type, e.span)
    return _restore_expression, (e.arena, e.kind, e.args, e.const)


def _restore_symbol(arena: Arena, name: str, type_: type, span: Range) -> Expr:
    return arena.symbols.get(name) or arena.symbol(name, type_, span)


def _restore_expression(arena: Arena, kind: str, args: tuple[Any, ...], const: int) -> Any:
    if kind == "add":
        return integers.sum_([const, *(integers.scale(mono, coef) for mono, coef in args)])
    if kind == "mul":
        return prod(integers.pow_(part, power) for part, power in args)
    return build(kind, args)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "__reduce__": _reduce_for_pickle,
    "__add__": add,
    "__radd__": lambda a, b: add(b, a),
    "__sub__": sub,
    "__rsub__": lambda a, b: sub(b, a),
    "__mul__": mul,
    "__rmul__": lambda a, b: mul(b, a),
    "__floordiv__": floordiv,
    "__rfloordiv__": lambda a, b: floordiv(b, a),
    "__mod__": mod,
    "__rmod__": lambda a, b: mod(b, a),
    "__neg__": neg,
    "__str__": to_str,
}
for _name, _operation in _OPERATORS.items():
    setattr(Expr, _name, _operation)
