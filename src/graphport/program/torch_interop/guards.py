"""torch's conditions on the inputs of a program, which it keeps as Python text.

    L['x'].size()[0] == 2*L['y'].size()[1]

A condition is read as an expression of ours; nothing of it is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from graphport import symbolic
from graphport.errors import UnsupportedError
from graphport.program.checks import InputShape
from graphport.symbolic import Truth
from graphport.symbolic.floats import FUNCTIONS

_BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: symbolic.add, ast.Sub: symbolic.sub, ast.Mult: symbolic.mul,
    ast.FloorDiv: symbolic.floordiv, ast.Mod: symbolic.mod, ast.Div: symbolic.truediv,
    ast.Pow: symbolic.pow_, ast.LShift: symbolic.lshift, ast.RShift: symbolic.rshift,
    ast.BitAnd: symbolic.bitand, ast.BitOr: symbolic.bitor, ast.BitXor: symbolic.bitxor,
}  # fmt: skip
_UNARY: dict[type, Callable[..., Any]] = {
    ast.USub: symbolic.neg, ast.UAdd: lambda a: a, ast.Not: symbolic.not_,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Eq: symbolic.eq, ast.NotEq: symbolic.ne, ast.Lt: symbolic.lt, ast.LtE: symbolic.le,
    ast.Gt: symbolic.gt, ast.GtE: symbolic.ge,
}  # fmt: skip


def _extreme(of_two: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(first: Any, *rest: Any) -> Any:
        for x in rest:
            first = of_two(first, x)
        return first

    return extreme


_CALLS: dict[str, Callable[..., Any]] = {
    "min": _extreme(symbolic.min_), "max": _extreme(symbolic.max_), "abs": symbolic.abs_,
    "float": symbolic.to_float, "torch.sym_float": symbolic.to_float, "int": symbolic.to_int,
    "math.floor": symbolic.floor, "math.ceil": symbolic.ceil, "math.trunc": symbolic.to_int,
    "round": symbolic.round_, "torch._sym_sqrt": symbolic.sqrt, "torch.sym_sqrt": symbolic.sqrt,
    **{f"math.{name}": lambda a, name=name: symbolic.func(name, a) for name in FUNCTIONS},
}  # fmt: skip
_NAMES = {"True": True, "False": False, "math.inf": float("inf"), "inf": float("inf")}


class GuardReader:
    """Reads conditions, given how torch calls each input."""

    def __init__(self, inputs: Mapping[str, InputShape]) -> None:
        self._inputs = {_normal(name): shape for name, shape in inputs.items()}

    def __call__(self, text: str) -> Truth:
        try:
            cond: Truth = self._read(ast.parse(text.strip(), mode="eval").body)
        except (_UnknownError, SyntaxError) as error:
            raise UnsupportedError(
                f"a condition on the inputs cannot be carried over: {text} ({error})"
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
            return _extreme(connect)(*map(self._read, node.values))
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
        text = _normal(ast.unparse(node))
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


def _normal(text: str) -> str:
    return ast.unparse(ast.parse(text, mode="eval"))
