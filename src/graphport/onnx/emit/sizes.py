"""Emits symbolic sizes and other numbers as ONNX values, each computed once.

A number of the program is an expression, not a node: `reshape(x, [batch, 2*length])` becomes a
constant where `-1` or `0` will do, and arithmetic on `Shape` where not. Numbers are computed as
int64 vectors of one element, which is what shapes are put together from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import compute_expression
from graphport.onnx.emit.ir import Graph, Value
from graphport.symbolic import Expr, ge, prod, substitute, symbols, type_of
from graphport.symbolic.nodes import walk_postorder

if TYPE_CHECKING:
    from graphport.onnx.emit.builder import Builder

_SAME_ELEMENTS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_NUMBER_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


class Sizes:
    """Where numbers come from, and those that have been computed."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._sources: dict[Expr, Callable[[], Value]] = {}
        self._shown: dict[Expr, tuple[Value, int]] = {}
        """Of a symbol that is a size by itself: the value and the dim."""
        self._values: dict[tuple[Graph, Expr], Value] = {}
        self.checking = False
        """Whether a condition is being computed that the program assumes."""
        self.guarded = False
        """Whether the file checks conditions; until it stops it computes at other sizes, too."""

    @contextmanager
    def inner(self) -> Iterator[None]:
        """For a subgraph: what is learned and computed meanwhile is dropped after it."""
        kept = dict(self._sources), dict(self._shown), dict(self._values)
        try:
            yield
        finally:
            self._sources, self._shown, self._values = kept

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
            if size not in self._sources:
                self._sources[size] = lambda: b.Shape(value, start=dim, end=dim + 1)
                self._shown[size] = (value, dim)
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
            return self.b.scalar(x, _NUMBER_DTYPES[type(x)])
        return self.b.squeeze(self.element(x), 0)

    def element(self, x: Any) -> Value:
        """A number as a tensor of one dim and one element."""
        if type(x) is not Expr:
            return self.b.constant(torch.tensor([x], dtype=_NUMBER_DTYPES[type(x)]))
        if not self.checking:
            x = self.b.scope.simplify(x)
        if type(x) is not Expr:
            return self.element(x)
        known = self._known(x)
        if known is not None:
            return known
        for part in walk_postorder(x, lambda part: self._known(part) is not None):
            self.element(part)
        made = self._source(x) if x.kind == "symbol" else compute_expression(self, x)
        made.shape = (1,)
        self._values[self.b.graph, x] = made
        return made

    def _known(self, x: Expr) -> Value | None:
        """What has been computed here, or in a graph around this one."""
        found = (self._values.get((graph, x)) for graph in self.b.graph.chain())
        return next((value for value in found if value is not None), None)

    def check(self, cond: Expr) -> Value:
        """Whether a condition holds that the program assumes."""
        computed_so_far, self._values = self._values, {}
        self.checking = True
        try:
            return self.element(cond)
        finally:
            self.checking, self._values = False, computed_so_far

    def _source(self, symbol: Expr) -> Value:
        source = self._sources.get(symbol)
        if source is None:
            raise UnsupportedError(f"no tensor of the program shows the size {symbol}")
        return source()

    # Shapes

    def vector(self, sizes: Sequence[Any]) -> Value:
        """Sizes as an int64 vector: a constant, a slice of a shape, or put together."""
        sizes = tuple(map(self.b.scope.simplify, sizes))
        if all(type(s) is not Expr for s in sizes):
            return self.b.constant(torch.tensor(sizes, dtype=torch.int64))
        parts: list[Value] = []
        plain: list[int] = []
        at = 0
        while at < len(sizes):
            if type(sizes[at]) is int:
                plain.append(sizes[at])
                at += 1
                continue
            part, before, after = self._run(plain, sizes[at:])
            self._flush(parts, plain[: len(plain) - before])
            parts.append(part)
            plain = []
            at += after
        self._flush(parts, plain)
        return parts[0] if len(parts) == 1 else self.b.Concat(*parts, axis=0)

    def _flush(self, parts: list[Value], plain: list[int]) -> None:
        if plain:
            parts.append(self.b.constant(torch.tensor(plain, dtype=torch.int64)))

    def _run(self, plain: Sequence[int], sizes: Sequence[Any]) -> tuple[Value, int, int]:
        """As many sizes as one tensor shows in a row, from the first of `sizes` on.

        How many of the numbers before them it shows too, and how many of them it shows.
        """
        value, dim = self._shown.get(sizes[0], (None, 0))
        if value is None or value.shape is None:
            return self.element(sizes[0]), 0, 1
        before = after = 0
        while before < min(dim, len(plain)) and value.shape[dim - before - 1] == plain[-before - 1]:
            before += 1
        for have, want in zip(value.shape[dim:], sizes, strict=False):
            if have != want:
                break
            after += 1
        if not after or before + after == 1:  # sizes may have been noted since, as another's
            return self.element(sizes[0]), 0, 1
        return self.b.Shape(value, start=dim - before, end=dim + after), before, after

    def reshape(self, x: Value, sizes: tuple[Any, ...]) -> Value:
        """Reshape, in the simplest of the ways to say the new shape."""
        sizes = tuple(map(self.b.scope.simplify, sizes))
        if x.shape == sizes:
            return x
        if x.tensor is not None and not x.name and Expr not in map(type, sizes):
            return self.b.constant(x.tensor.reshape(sizes))
        for source in self._views(x):  # of a reshape: from what it is made of
            if source.shape == sizes:
                return source
            x = source
        target = self._reshape_target(x, sizes)
        if any(type(s) is Expr for s in target):
            simpler = self._try_flatten(x, sizes) or self._try_squeeze(x, sizes)
            if simpler is not None:
                simpler.shape = sizes
                return simpler
        # With sizes as they are a 0 is a size; nor does ONNX Runtime then put -1 for one of them.
        literal = 0 in sizes or (target == sizes and any(type(s) is Expr for s in sizes))
        made = self.b.Reshape(x, self.vector(target), allowzero=1 if literal else None)
        made.shape = sizes
        return made

    def _views(self, x: Value) -> Iterator[Value]:
        """A value, and what it is another shape of."""
        yield x
        while x.producer is not None and x.producer.op in _SAME_ELEMENTS:
            source = x.producer.inputs[0]
            if source is None or source.shape is None or None in source.shape:
                return
            x = source
            yield x

    def undo_reshape(self, x: Value, sizes: Sequence[Any]) -> Value | None:
        """What a value is another shape of, if that had these sizes; a constant has any."""
        sizes = tuple(map(self.b.scope.simplify, sizes))
        if x.tensor is not None and not x.name and Expr not in map(type, sizes):
            return self.b.constant(x.tensor.reshape(sizes))
        return next((v for v in self._views(x) if v.shape == sizes), None)

    def _try_flatten(self, x: Value, sizes: tuple[Any, ...]) -> Value | None:
        """Flatten needs no numbers, and takes sizes of 0."""
        if len(sizes) != 2 or x.shape is None or None in x.shape:
            return None
        for axis in range(x.rank + 1):
            if prod(x.sizes[:axis]) == sizes[0] and prod(x.sizes[axis:]) == sizes[1]:
                return self.b.Flatten(x, axis=axis)
        return None

    def _try_squeeze(self, x: Value, sizes: tuple[Any, ...]) -> Value | None:
        """Where the shapes differ in sizes of 1 only."""
        old = x.shape
        if old is None or [s for s in old if s != 1] != [s for s in sizes if s != 1]:
            return None
        gone, new, at = [], [], 0
        for i, s in enumerate(sizes):
            while s != 1 and old[at] == 1:
                gone.append(at)
                at += 1
            if s == 1 and (at == len(old) or old[at] != 1):
                new.append(i)
            else:
                at += 1
        gone += range(at, len(old))
        return self.b.unsqueeze(self.b.squeeze(x, *gone), *new)

    def _reshape_target(self, x: Value, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes with 0 for one that stays at its place and -1 for one that follows."""
        symbolic = [i for i, s in enumerate(sizes) if type(s) is Expr]
        if not symbolic or 0 in sizes:
            return sizes
        old = x.shape or ()
        target = list(sizes)
        for i in symbolic:
            if i < len(old) and old[i] == sizes[i]:
                target[i] = 0
        rest = [i for i in symbolic if target[i] != 0]
        # With -1 no other size may be 0: it could then not be inferred.
        others = [sizes[i] for i in symbolic if i not in rest]
        if len(rest) == 1 and all(self._is_positive(s) for s in others):
            target[rest[0]] = -1
        elif len(rest) == 0 and len(symbolic) == 1:
            target[symbolic[0]] = -1  # the same, and it says so for x of unknown sizes too
        elif rest and not all(self._is_positive(sizes[i]) for i in symbolic):
            return sizes  # a size that turns out to be 0 would be taken for one that stays
        return tuple(target)

    def _is_positive(self, size: Any) -> bool:
        return self.b.scope.decide(ge(size, 1)) is True


def dtype_of_number(x: Any) -> torch.dtype:
    """The dtype in which a number of the program is computed."""
    return _NUMBER_DTYPES[type_of(x)]
