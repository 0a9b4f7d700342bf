"""Encodes and reads symbols, expressions and facts.

A file has one table of expressions, the symbols first. Each refers to earlier ones by number, as
the nodes of an arena do to each other, so that what is shared is written once. Reading goes through
the algebra: an expression of a file is as canonical as any other, whatever the file says. What is
known is told to the new scope fact by fact, in the order in which it was found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from graphport.errors import SerializationError
from graphport.program.files import json_reader
from graphport.program.files.json_reader import Item, format_excerpt
from graphport.program.files.values import encode_number, read_number
from graphport.symbolic import Expr, Fact, Range, Scope, type_of
from graphport.symbolic.bridge import from_torch, is_symbolic, to_torch
from graphport.symbolic.division import divide_exactly
from graphport.symbolic.evaluation import build
from graphport.symbolic.facts import Contradiction
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.integers import mul, pow_, scale, split_terms, sum_
from graphport.symbolic.nodes import operands, record_factors

_TYPES = {"int": int, "float": float, "bool": bool}
_FACT_KINDS = {"assumed": "assumed", "guard": "guard", "expect": "expect"}

# What each operation takes. `...` is any number of the type before it, and two at least.
_OPERANDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("floordiv", "mod", "pow", "lshift", "rshift", "truediv"), (int, int)),
    **dict.fromkeys(("bitand", "bitor", "bitxor"), (int, int)),
    **dict.fromkeys(("abs", "to_float", "ge0", "eq0"), (int,)),
    **dict.fromkeys(("floor", "ceil", "trunc", "round", "fneg", "fabs", *FUNCTIONS), (float,)),
    **dict.fromkeys(("fadd", "fmul", "fdiv", "ffloordiv", "fmod", "fpow"), (float, float)),
    **dict.fromkeys(("fmin", "fmax", "feq", "flt", "fle"), (float, float)),
    **dict.fromkeys(("min", "max"), (int, ...)),
    **dict.fromkeys(("and", "or"), (bool, ...)),
    "round_to": (float, int),
    "not": (bool,),
    "ite": (bool, None, None),
}
_VARIADIC = tuple(name for name, types in _OPERANDS.items() if types[-1] is ...)
_GROWING = ("pow", "lshift", "fpow")


# Writing


class ExpressionTable:
    """The expressions of a program, numbered as they are met."""

    def __init__(self, scope: Scope) -> None:
        self.rows: list[Any] = []
        self._scope = scope
        self._numbers: dict[Expr, int] = {s: i for i, s in enumerate(scope.symbols)}
        self._extent: dict[Expr, tuple[int, int]] = {}

    def symbols(self) -> list[dict[str, Any]]:
        rows = []
        for s in self._scope.symbols:
            limits_, origin = self._scope.declared(s), self._scope.origins.get(s)
            row = {
                "name": s.name,
                "type": s.type.__name__,
                "lower": encode_number(limits_.lower),
                "upper": encode_number(limits_.upper),
            }
            if not self._scope.is_fresh(s):
                row["hint"] = encode_number(self._scope.hint(s))
            if origin is not None and type(origin) is not Expr:
                row["origin"] = str(origin)
            rows.append(row)
        return rows

    def facts(self) -> list[dict[str, Any]]:
        return [
            {
                "condition": self(fact.cond),
                "kind": fact.kind,
                "internal": fact.internal,
                "message": fact.message,
                "where": None if fact.where is None else str(fact.where),
            }
            for fact in self._scope.facts
        ]

    def __call__(self, e: Expr) -> int:
        """The number of an expression."""
        known = self._numbers.get(e)
        if known is None:
            if e.arena is not self._scope.arena:
                raise SerializationError(f"the size {e} belongs to another program")
            row = self._row(e)  # its parts come first
            self._check_extent(e)
            known = self._numbers[e] = len(self._numbers)
            self.rows.append(row)
        return known

    def _check_extent(self, e: Expr) -> None:
        """Refuse what could not be loaded again."""
        parts = [self._extent.get(x, (0, 1)) for x in operands(e) if type(x) is Expr]
        depth, nodes = 1 + max(d for d, _ in parts), 1 + sum(n for _, n in parts)
        too_wide = e.kind in _VARIADIC and len(e.args) > json_reader.OPERANDS
        if depth > json_reader.EXPRESSION_DEPTH or nodes > json_reader.EXPRESSION_NODES or too_wide:
            raise SerializationError("a size takes too many operations to be saved")
        self._extent[e] = depth, nodes

    def _row(self, e: Expr) -> list[object]:
        if e.kind == "add":
            terms = [[self(mono), coef] for mono, coef in e.args]
            if not _is_product(e):
                return ["add", terms, e.const]
            return ["add", terms, e.const, [self(factor) for factor in e.factors or ()]]
        if e.kind == "mul":
            return ["mul", [[self(part), power] for part, power in e.args]]
        return [e.kind, *map(self.operand, e.args)]

    def operand(self, x: Any) -> Any:
        """A number that may be an expression."""
        return {"symbolic": self(x)} if type(x) is Expr else encode_number(x)

    def symbolic(self, x: object) -> Any:
        """One of torch's symbolic numbers; None for anything else."""
        return {"symbolic": self(from_torch(x))} if is_symbolic(x) else None

    def ranges(self, ranges: Mapping[Expr, Range]) -> list[list[Any]]:
        return [
            [self.operand(e), encode_number(r.lower), encode_number(r.upper)]
            for e, r in ranges.items()
        ]


# Reading


def _is_product(e: Expr) -> bool:
    """Whether a sum is a multiple of its factors by itself, and not by what is known of symbols.

    Only that can be checked of a file before its facts are read.
    """
    product: Any = 1
    for factor in e.factors or ():
        if _terms_of_product(product, factor) > json_reader.FACTOR_TERMS:
            return False
        product = mul(product, factor)
    return bool(e.factors) and _is_multiple(e, product)


def _terms_of_product(product: Any, factor: Expr) -> int:
    return len(split_terms(product)[0] or "1") * len(split_terms(factor)[0])


def _is_multiple(made: Any, product: Any) -> bool:
    ratio = divide_exactly(made, product)
    return type(ratio) is int and ratio > 0


class Expressions:
    """The expressions of a file, by their numbers, in a scope of their own."""

    def __init__(self, symbols: Item, rows: Item, facts: Item) -> None:
        self.scope = Scope()
        self._values: list[Expr] = []
        self._depth: list[int] = []
        self._nodes: list[int] = []
        self._degree: list[int] = []
        self._spare_nodes = json_reader.ALL_EXPRESSION_NODES
        self._spare_comparisons = json_reader.COMPARISONS
        for item in symbols.list():
            self._add(self._symbol(item), 0, 1, 1)
        for item in rows.list():
            self._read(item)
        self._learn(facts)

    def _add(self, e: Expr, depth: int, nodes: int, degree: int) -> None:
        self._values.append(e)
        self._depth.append(depth)
        self._nodes.append(nodes)
        self._degree.append(degree)

    # Symbols and facts

    def _symbol(self, item: Item) -> Expr:
        fields = item.fields("name", "type", "lower", "upper", optional=("hint", "origin"))
        name = json_reader.read_identifier(fields["name"], "a symbol")
        if name in self.scope.arena.symbols:
            fields["name"].fail(f"there are two symbols named {name!r}")
        type_ = fields["type"].choice(_TYPES, "type")
        lower, upper = (_read_bound(fields[end]) for end in ("lower", "upper"))
        if lower > upper:
            item.fail(f"{name} has no value from {lower} to {upper}")
        return self.scope.symbol(
            name,
            lower=lower,
            upper=upper,
            type=type_,
            hint=type_(_HINTS[type_](fields["hint"])) if "hint" in fields else None,
            origin=fields["origin"].words() if "origin" in fields else None,
        )

    def _learn(self, facts: Item) -> None:
        for item in facts.list(most=json_reader.FACTS):
            fields = item.fields("condition", "kind", "internal", "message", "where")
            fact: Any = Fact(
                self._of_type(fields["condition"], bool),
                fields["kind"].choice(_FACT_KINDS, "kind of fact"),
                None if fields["where"].value is None else fields["where"].words(),  # type: ignore[arg-type]
                fields["internal"].truth(),
                fields["message"].words(),
            )
            try:
                self.scope.restore_fact(fact)
            except (Contradiction, ArithmeticError, ValueError):
                item.fail(f"{format_excerpt(str(fact.cond))} contradicts the facts before it")

    # Rows

    def _read(self, item: Item) -> None:
        row = item.list()
        if not row:
            item.fail("an expression starts with its operation")
        self._spare_comparisons += json_reader.MORE_COMPARISONS
        kind, *rest = row
        name = kind.text()
        self._parts: list[int] = []
        self._power = 0
        try:
            if name == "add":
                made = self._sum(item, rest)
            elif name == "mul":
                made = self._product(item, rest)
            else:
                made = self._operation(item, kind, rest)
        except (ArithmeticError, ValueError, TypeError) as error:
            item.fail(f"not an expression: {error}")
        if type(made) is not Expr:
            item.fail("not an expression: its value is always the same")
        depth = 1 + max((self._depth[i] for i in self._parts), default=0)
        nodes = 1 + sum(self._nodes[i] for i in self._parts)
        self._spare_nodes += json_reader.MORE_EXPRESSION_NODES - nodes
        if (
            depth > json_reader.EXPRESSION_DEPTH
            or nodes > json_reader.EXPRESSION_NODES
            or self._spare_nodes < 0
        ):
            item.fail("an expression of too many operations")
        if self._power > json_reader.DEGREE:
            item.fail("an expression with too high a power")
        self._add(made, depth, nodes, self._power)

    def _part(self, item: Item, power: int = 1) -> Expr:
        """An earlier expression, as part of the one that is read."""
        number_ = item.index(len(self._values), "expression")
        self._parts.append(number_)
        self._power = max(self._power, power * self._degree[number_])
        return self._values[number_]

    def _sum(self, item: Item, rest: list[Item]) -> Any:
        if len(rest) not in (2, 3):
            item.fail("a sum has terms, a constant, and maybe factors")
        terms: dict[Expr, int] = {}
        for pair in rest[0].list():
            term, factor = pair.list(2)
            mono = self._part(term)
            if mono.type is not int or mono.kind == "add" or mono in terms:
                term.fail(f"{format_excerpt(str(mono))} cannot be a term here")
            terms[mono] = factor.integer()
        made = sum_([rest[1].integer(), *(scale(mono, coef) for mono, coef in terms.items())])
        if len(rest) == 3:
            self._remember_factors(made, rest[2])
        return made

    def _remember_factors(self, made: Any, item: Item) -> None:
        """A sum is also a product of sums: checked, because proofs rely on it."""
        factors = [self._values[x.index(len(self._values), "expression")] for x in item.list()]
        if any(f.type is not int for f in factors):
            item.fail("a factor of a sum is an integer")
        product: Any = 1
        for factor in factors:
            terms = _terms_of_product(product, factor)
            if terms > json_reader.FACTOR_TERMS:
                item.fail("a product of too many terms")
            self._compare(item, terms)
            product = mul(product, factor)
        if not _is_multiple(made, product):
            item.fail("the sum is not a multiple of these factors")
        record_factors(made, tuple(factors))

    def _product(self, item: Item, rest: list[Item]) -> Any:
        if len(rest) != 1:
            item.fail("a product has a list of factors")
        made: Any = 1
        degree = 0
        for pair in rest[0].list(most=json_reader.DEGREE):
            part, power = pair.list(2)
            times = power.integer(1, json_reader.DEGREE)
            atom = self._part(part)
            if atom.type is not int or atom.kind in ("add", "mul"):
                part.fail(f"{format_excerpt(str(atom))} cannot be a factor here")
            degree += times * self._degree[self._parts[-1]]
            made = mul(made, pow_(atom, times))
        self._power = degree
        return made

    def _operation(self, item: Item, kind: Item, rest: list[Item]) -> Any:
        name = kind.value
        if name not in _OPERANDS:
            kind.fail(f"unknown operation {format_excerpt(name)}")
        types = _OPERANDS[name]
        if name in _VARIADIC:
            types = types[:1] * max(2, len(rest))
            if len(rest) > json_reader.OPERANDS:
                item.fail(
                    f"{name} of {len(rest)} operands: at most {json_reader.OPERANDS} are allowed"
                )
            self._compare(item, len(rest) ** 2)
        if len(rest) != len(types):
            item.fail(f"{name} takes {len(types)} operands, found {len(rest)}")
        operands = [self._operand(x) for x in rest]
        if not self._parts:
            item.fail("not an expression: it has no symbol in it")
        for x, value, wanted in zip(rest, operands, types, strict=True):
            if wanted is not None and type_of(value) is not wanted:
                x.fail(f"{name} takes {wanted.__name__}, found {type_of(value).__name__}")
        if name in _GROWING:
            self._check_growth(rest[1], operands[1])
        if name == "round_to" and type(operands[1]) is not int:
            rest[1].fail("rounding takes a fixed number of digits")
        return build(name, operands)

    def _compare(self, item: Item, count: int) -> None:
        """Terms and operands are compared with one another, each with each."""
        self._spare_comparisons -= count
        if self._spare_comparisons < 0:
            item.fail("the expressions have too many operands and terms")

    def _check_growth(self, item: Item, exponent: Any) -> None:
        """Powers of powers with symbols in the exponent take time without end."""
        if type(exponent) is Expr:
            self._power *= json_reader.UNBOUNDED_DEGREE
        elif not -json_reader.DEGREE <= exponent <= json_reader.DEGREE:
            item.fail(f"the exponent {format_excerpt(exponent)} is too large")
        else:
            self._power *= max(1, math.ceil(abs(exponent)))

    def _operand(self, item: Item) -> Any:
        if type(item.value) is bool:
            return item.value
        if type(item.value) is dict and "symbolic" in item.value:
            return self._part(item.fields("symbolic")["symbolic"])
        return read_number(item)

    # What others ask for

    def expression(self, item: Item) -> Expr:
        return self._values[item.index(len(self._values), "expression")]

    def _of_type(self, item: Item, type_: type) -> Expr:
        found = self.expression(item)
        if found.type is not type_:
            item.fail(f"{format_excerpt(str(found))} is not of type {type_.__name__}")
        return found

    def condition(self, item: Item) -> Expr:
        return self._of_type(item, bool)

    def number(self, item: Item) -> Any:
        """An operand: a number, or an expression of any type."""
        if type(item.value) is dict and "symbolic" in item.value:
            return self.expression(item.fields("symbolic")["symbolic"])
        return read_number(item)

    def integer(self, item: Item, low: int = -json_reader.SIZE) -> Any:
        """An integer, as it is or as an expression."""
        if type(item.value) is dict:
            return self._of_type(item.fields("symbolic")["symbolic"], int)
        return item.integer(low, json_reader.SIZE - 1)

    def symbolic(self, item: Item) -> Any:
        """An expression as torch's symbolic number."""
        return to_torch(self.expression(item))

    def ranges(self, item: Item) -> dict[Expr, Range]:
        found: dict[Expr, Range] = {}
        for row in item.list():
            key, lower, upper = row.list(3)
            e = self.number(key)
            if type(e) is not Expr:
                key.fail("the range of a number that is no expression")
            if e in found:
                key.fail(f"the range of {format_excerpt(str(e))} is given twice")
            found[e] = Range(_read_bound(lower), _read_bound(upper))
        return found


def _read_bound(item: Item) -> float:
    return read_number(item, nan=False)


_HINTS: dict[type, Callable[[Item], Any]] = {
    int: lambda item: item.integer(-json_reader.SIZE, json_reader.SIZE),
    float: read_number,
    bool: lambda item: item.truth(),
}
