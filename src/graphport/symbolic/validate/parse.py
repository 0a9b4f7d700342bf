"""Parses Python syntax to a `Term`, without running it.

The text is parsed with `ast` and never run. Integers, floats, names, arithmetic, comparisons and
their chains, `and`, `or`, `not`, `x if c else y`, and calls of a few functions are understood; all
else is an `ExpressionError` that points at the place.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from graphport.errors import ExpressionError
from graphport.symbolic.validate.terms import OPAQUE_FUNCTIONS, Term, Terms

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_BITWISE: dict[type[ast.operator], str] = {
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
}
_SHIFTS: dict[type[ast.operator], str] = {ast.LShift: "lshift", ast.RShift: "rshift"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _make_reduction(op: str) -> Callable[..., Term]:
    def call(terms: Terms, first: Term, *rest: Term) -> Term:
        if not rest:
            raise TypeError(f"{op} needs at least two numbers")
        for part in rest:
            first = terms.arithmetic(op, first, part)
        return first

    return call


def _make_round(terms: Terms, a: Term, digits: Term | None = None) -> Term:
    return terms.rounding("round", a) if digits is None else terms.round_to(a, digits)


def _make_rounding(op: str) -> Callable[..., Term]:
    return lambda terms, a: terms.rounding(op, a)


def _make_function(name: str) -> Callable[..., Term]:
    return lambda terms, a: terms.function(name, a)


# name: (what it makes, fewest and most arguments)
_CALLS: dict[str, tuple[Callable[..., Term], int, float]] = {
    "min": (_make_reduction("min"), 2, math.inf),
    "max": (_make_reduction("max"), 2, math.inf),
    "abs": (lambda terms, a: terms.arithmetic("abs", a), 1, 1),
    "int": (_make_rounding("trunc"), 1, 1),
    "float": (Terms.real, 1, 1),
    "round": (_make_round, 1, 2),
    "pow": (Terms.power, 2, 2),
    **{f"math.{op}": (_make_rounding(op), 1, 1) for op in ("floor", "ceil", "trunc")},
    **{f"math.{name}": (_make_function(name), 1, 1) for name in ("sqrt", *OPAQUE_FUNCTIONS)},
}
_CONSTANTS = {"inf": math.inf, "math.inf": math.inf, "math.pi": math.pi, "math.e": math.e}


def parse_term(text: str, terms: Terms, argument: str) -> Term:
    """The term that `text` says; `argument` is how the user knows the text."""
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval")
        return _TermParser(text, terms, argument).read(tree.body)
    except SyntaxError as error:
        line, column = error.lineno or 1, (error.offset or 1) - 1
        raise _syntax_error(f"{error.msg}", text, argument, line, column) from None
    except ValueError as error:  # a null byte, an integer with thousands of digits
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(f"{argument} cannot be read: {error}") from None
    except (RecursionError, MemoryError):
        raise ExpressionError(f"{argument} is nested too deeply to be read") from None


def _syntax_error(
    problem: str, text: str, argument: str, line: int, column: int
) -> ExpressionError:
    shown = text.splitlines()[line - 1] if text else ""
    # Under the text, where the line of the error message begins with "  at   before: ".
    caret = " " * (len("  at   ") + len(argument) + 2 + min(column, len(shown))) + "^"
    return ExpressionError(
        f"{argument} is not an expression that can be validated: {problem}",
        where=f"{argument}: {shown}\n{caret}",
    )


class _TermParser:
    def __init__(self, text: str, terms: Terms, argument: str) -> None:
        self.text = text
        self.terms = terms
        self.argument = argument

    def fail(self, node: ast.expr, problem: str) -> ExpressionError:
        line = self.text.splitlines()[node.lineno - 1]
        # ast counts bytes.
        column = len(line.encode()[: node.col_offset].decode(errors="replace"))
        return _syntax_error(problem, self.text, self.argument, node.lineno, column)

    def read(self, node: ast.expr) -> Term:
        reader = getattr(self, f"_{type(node).__name__.lower()}", None)
        if reader is None:
            raise self.fail(node, f"`{_format_excerpt(node)}` is not understood here")
        try:
            result: Term = reader(node)
        except TypeError as error:
            raise self.fail(node, f"`{_format_excerpt(node)}`: {error}") from None
        return result

    def _constant(self, node: ast.Constant) -> Term:
        if not isinstance(node.value, (bool, int, float)):
            raise self.fail(node, f"{node.value!r} is not a number")
        return self.terms.number(node.value)

    def _name(self, node: ast.Name) -> Term:
        if node.id in _CONSTANTS:
            return self.terms.number(_CONSTANTS[node.id])
        if node.id in _CALLS:
            raise self.fail(node, f"{node.id} is a function, and stands here without arguments")
        return self.terms.symbol(node.id)

    def _attribute(self, node: ast.Attribute) -> Term:
        name = ast.unparse(node)
        if name not in _CONSTANTS:
            raise self.fail(node, f"`{name}` is not understood: symbols are plain names")
        return self.terms.number(_CONSTANTS[name])

    def _unaryop(self, node: ast.UnaryOp) -> Term:
        terms, operand = self.terms, self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return terms.negation(operand)
        if isinstance(node.op, ast.UAdd):
            return operand if operand.type is float else terms.integer(operand)
        if isinstance(node.op, ast.Invert):
            return terms.arithmetic("sub", terms.number(-1), terms.integer(operand))
        if operand.op in ("number", "infinite") and operand.type is not bool:
            return terms.number(-operand.value if operand.type is int else -float(operand.value))
        return terms.arithmetic("neg", operand)

    def _binop(self, node: ast.BinOp) -> Term:
        terms, kind = self.terms, type(node.op)
        a, b = self.read(node.left), self.read(node.right)
        if kind in _ARITHMETIC:
            return terms.arithmetic(_ARITHMETIC[kind], a, b)
        if kind in _BITWISE:
            return terms.bitwise(_BITWISE[kind], a, b)
        if kind in _SHIFTS:
            return terms.shift(_SHIFTS[kind], a, b)
        if kind is ast.Div:
            return terms.truediv(a, b)
        if kind is ast.Pow:
            return terms.power(a, b)
        raise self.fail(node, "matrices cannot be multiplied here")

    def _boolop(self, node: ast.BoolOp) -> Term:
        op = "and" if isinstance(node.op, ast.And) else "or"
        return self.terms.connect(op, *map(self.read, node.values))

    def _compare(self, node: ast.Compare) -> Term:
        left, parts = self.read(node.left), []
        for sign, operand in zip(node.ops, node.comparators, strict=True):
            if type(sign) not in _COMPARISONS:
                raise self.fail(node, "numbers are compared by == != < <= > >=")
            right = self.read(operand)
            parts.append(self.terms.compare(_COMPARISONS[type(sign)], left, right))
            left = right
        return self.terms.connect("and", *parts)

    def _ifexp(self, node: ast.IfExp) -> Term:
        cond, a, b = map(self.read, (node.test, node.body, node.orelse))
        return self.terms.choice(cond, a, b)

    def _call(self, node: ast.Call) -> Term:
        name = ast.unparse(node.func)
        if name not in _CALLS:
            known = ", ".join(known for known in _CALLS if "." not in known)
            raise self.fail(node, f"{name} is not a known function: {known} and those of math are")
        make, fewest, most = _CALLS[name]
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise self.fail(node, f"{name} takes plain arguments only")
        if not fewest <= len(node.args) <= most:
            count = f"at least {fewest}" if most > fewest else f"{fewest}"
            raise self.fail(node, f"{name} takes {count} argument(s), not {len(node.args)}")
        return make(self.terms, *map(self.read, node.args))


def _format_excerpt(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:37] + "..."
