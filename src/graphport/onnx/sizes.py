"""Symbolic numbers in ONNX: sizes are read from inputs when they are needed, once.

A number of the program is an expression, not a node: `reshape(x, [batch, 2*length])` becomes a
constant where `-1` or `0` will do, and arithmetic on `Shape` where not. Numbers are computed as
int64 vectors of one element, which is what shapes are put together from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from graphport.onnx.ir import Graph, Value
from graphport.symbolic import Expr, ge, substitute, symbols, type_of

if TYPE_CHECKING:
    from graphport.onnx.builder import Builder

_TYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


class Sizes:
    """Where numbers come from, and those that have been computed."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._sources: dict[Expr, Callable[[], Value]] = {}
        self._values: dict[tuple[Graph, Expr], Value] = {}

    # Sources

    def learn(self, *values: Value) -> None:
        """Take note of the sizes of values: symbols that they show can be read from them."""
        found = [
            (value, dim, size)
            for value in values
            for dim, size in enumerate(value.shape or ())
            if type(size) is Expr
        ]
        # A symbol by itself is better than one that has to be solved for.
        for value, dim, size in sorted(found, key=lambda f: f[2].kind != "symbol"):
            self._learn_size(value, dim, size)

    def learn_number(self, number: Any, value: Value) -> None:
        """A symbol that is the content of a 0-d tensor."""
        if type(number) is Expr and number.kind == "symbol":
            self._sources.setdefault(number, lambda: self.b.reshape(value, [1]))

    def _learn_size(self, value: Value, dim: int, size: Expr) -> None:
        b = self.b
        if size.kind == "symbol":
            self._sources.setdefault(size, lambda: b.Shape(value, start=dim, end=dim + 1))
            return
        new = [s for s in symbols(size) if s not in self._sources]
        if len(new) != 1 or size.kind != "add":
            return
        # a*s + rest: s is (size - rest) / a. Only for symbols that nothing shows by itself.
        (symbol,) = new
        factor = next((c for mono, c in size.args if mono is symbol), None)
        if factor is None or any(symbol in symbols(m) for m, _ in size.args if m is not symbol):
            return
        rest = substitute(size, {symbol: 0})

        def solved() -> Value:
            whole = b.Shape(value, start=dim, end=dim + 1)
            part = whole if rest == 0 else b.Sub(whole, self.element(rest))
            return part if factor == 1 else b.Div(part, factor)

        self._sources.setdefault(symbol, solved)

    # Numbers

    def number(self, x: Any) -> Value:
        """A number as a 0-d tensor: int64, float64 or bool."""
        if type(x) is not Expr:
            return self.b.scalar(x, _TYPES[type(x)])
        return self.b.squeeze(self.element(x), 0)

    def element(self, x: Any) -> Value:
        """A number as a tensor of one dim and one element."""
        if type(x) is not Expr:
            return self.b.constant(torch.tensor([x], dtype=_TYPES[type(x)]))
        x = self.b.scope.simplify(x)
        if type(x) is not Expr:
            return self.element(x)
        for graph in self.b.graph.chain():
            known = self._values.get((graph, x))
            if known is not None:
                return known
        made = self._source(x) if x.kind == "symbol" else _computed(self, x)
        made.shape = (1,)
        self._values[self.b.graph, x] = made
        return made

    def _source(self, symbol: Expr) -> Value:
        source = self._sources.get(symbol)
        if source is None:
            raise KeyError(f"no tensor of the program shows the size {symbol}")
        return source()

    # Shapes

    def vector(self, sizes: Sequence[Any]) -> Value:
        """Sizes as an int64 vector: a constant, a slice of a shape, or put together."""
        sizes = tuple(map(self.b.scope.simplify, sizes))
        if all(type(s) is not Expr for s in sizes):
            return self.b.constant(torch.tensor(sizes, dtype=torch.int64))
        parts: list[Value] = []
        plain: list[int] = []
        for s in (*sizes, None):
            if type(s) is int:
                plain.append(s)
                continue
            if plain:
                parts.append(self.b.constant(torch.tensor(plain, dtype=torch.int64)))
                plain = []
            if s is not None:
                parts.append(self.element(s))
        return parts[0] if len(parts) == 1 else self.b.Concat(*parts, axis=0)

    def reshape(self, x: Value, sizes: tuple[Any, ...]) -> Value:
        """Reshape, in the simplest of the ways to say the new shape."""
        sizes = tuple(map(self.b.scope.simplify, sizes))
        if x.shape == sizes:
            return x
        source = x.producer
        if source is not None and source.op == "Reshape" and source.inputs[0] is not None:
            x = source.inputs[0]  # of a reshape: from what it is made of
            if x.shape == sizes:
                return x
        told = self._told(x, sizes)
        made = self.b.Reshape(x, self.vector(told), allowzero=1 if 0 in sizes else None)
        made.shape = sizes
        return made

    def _told(self, x: Value, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes with 0 for one that stays at its place and -1 for one that follows."""
        symbolic = [i for i, s in enumerate(sizes) if type(s) is Expr]
        if not symbolic or 0 in sizes:
            return sizes
        old = x.shape or ()
        told = list(sizes)
        for i in symbolic:
            if i < len(old) and old[i] == sizes[i]:
                told[i] = 0
        rest = [i for i in symbolic if told[i] != 0]
        # With -1 no other size may be 0: what it stands for could then not be told.
        others = [sizes[i] for i in symbolic if i not in rest]
        if len(rest) == 1 and all(self._is_positive(s) for s in others):
            told[rest[0]] = -1
        elif len(rest) == 0 and len(symbolic) == 1:
            told[symbolic[0]] = -1  # the same, and it says so for x of unknown sizes too
        return tuple(told)

    def _is_positive(self, size: Any) -> bool:
        return self.b.scope.decide(ge(size, 1)) is True


def _computed(sizes: Sizes, x: Expr) -> Value:
    """An expression from its parts."""
    b, element = sizes.b, sizes.element
    if x.kind == "add":
        total: Value | None = None
        for mono, factor in x.args:
            term = element(mono)
            if factor != 1:
                term = b.Mul(term, factor)
            total = term if total is None else b.Add(total, term)
        assert total is not None
        return total if x.const == 0 else b.Add(total, x.const)
    if x.kind == "mul":
        product: Value | None = None
        for part, power in x.args:
            for _ in range(power):
                product = element(part) if product is None else b.Mul(product, element(part))
        assert product is not None
        return product
    if x.kind in ("and", "or", "min", "max"):
        op = {"and": b.And, "or": b.Or, "min": b.Min, "max": b.Max}[x.kind]
        first, *others = map(element, x.args)
        for other in others:
            first = op(first, other)
        return first
    rule = _KINDS.get(x.kind)
    if rule is None:
        raise KeyError(f"the number {x} cannot be computed in ONNX")
    return rule(sizes, *map(element, x.args))


def _floordiv(sizes: Sizes, a: Value, c: Value) -> Value:
    """ONNX divides towards zero."""
    b = sizes.b
    return b.Div(b.Sub(a, b.Mod(a, c)), c)


def _round(sizes: Sizes, x: Value) -> Value:
    return sizes.b.cast(sizes.b.Round(x), torch.int64)


def _to_int(op: str) -> Callable[[Sizes, Value], Value]:
    return lambda sizes, x: sizes.b.cast(getattr(sizes.b, op)(x), torch.int64)


def _float(op: str) -> Callable[..., Value]:
    return lambda sizes, *operands: getattr(sizes.b, op)(*operands)


def _truediv(sizes: Sizes, a: Value, c: Value) -> Value:
    b = sizes.b
    return b.Div(b.cast(a, torch.float64), b.cast(c, torch.float64))


_KINDS: dict[str, Callable[..., Value]] = {
    "floordiv": _floordiv,
    "mod": _float("Mod"),
    "pow": _float("Pow"),
    "abs": _float("Abs"),
    "bitand": _float("BitwiseAnd"),
    "bitor": _float("BitwiseOr"),
    "bitxor": _float("BitwiseXor"),
    "lshift": lambda sizes, a, c: sizes.b.Mul(a, sizes.b.Pow(sizes.b.scalar(2, torch.int64), c)),
    "rshift": lambda sizes, a, c: _floordiv(
        sizes, a, sizes.b.Pow(sizes.b.scalar(2, torch.int64), c)
    ),
    "floor": _to_int("Floor"),
    "ceil": _to_int("Ceil"),
    "trunc": lambda sizes, x: sizes.b.cast(x, torch.int64),
    "round": _round,
    "to_float": lambda sizes, x: sizes.b.cast(x, torch.float64),
    "truediv": _truediv,
    "fadd": _float("Add"),
    "fneg": _float("Neg"),
    "fmul": _float("Mul"),
    "fdiv": _float("Div"),
    "fpow": _float("Pow"),
    "fmin": _float("Min"),
    "fmax": _float("Max"),
    "fabs": _float("Abs"),
    "ffloordiv": lambda sizes, a, c: sizes.b.Floor(sizes.b.Div(a, c)),
    "fmod": lambda sizes, a, c: sizes.b.Sub(
        a, sizes.b.Mul(sizes.b.Floor(sizes.b.Div(a, c)), c)
    ),
    "sqrt": _float("Sqrt"),
    "exp": _float("Exp"),
    "log": _float("Log"),
    "sin": _float("Sin"),
    "cos": _float("Cos"),
    "tan": _float("Tan"),
    "tanh": _float("Tanh"),
    "ge0": lambda sizes, x: sizes.b.GreaterOrEqual(x, 0),
    "eq0": lambda sizes, x: sizes.b.Equal(x, 0),
    "feq": _float("Equal"),
    "flt": _float("Less"),
    "fle": _float("LessOrEqual"),
    "not": _float("Not"),
    "ite": _float("Where"),
}


def type_of_number(x: Any) -> torch.dtype:
    """The dtype in which a number of the program is computed."""
    return _TYPES[type_of(x)]
