"""What the program assumes of data-dependent values, as assertions in the graph.

A condition on one value that is a range becomes the range of that value, checked where the value is
made. Any other condition is asserted where it was stated.
"""

from __future__ import annotations

import math

import torch

from graphport.capture.recorder import Recorder
from graphport.symbolic import Expr, Fact, symbolic_repr, symbols

aten = torch.ops.aten


class Assertions:
    """Follows the facts of a scope into the graph."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.scope = recorder.scope
        self.seen = 0
        """How many facts have been looked at."""

    def flush(self) -> None:
        """Assert the facts that came up since the last time."""
        new = self.scope.facts[self.seen :]
        self.seen = len(self.scope.facts)
        for fact in new:
            if self._is_about_data(fact) and not _is_range(fact.cond):
                self._assert(fact)

    def finish(self) -> None:
        """Assert what is left, and the ranges."""
        self.flush()
        for symbol in self.scope.symbols:
            if not self.scope.is_backed(symbol) and symbol.type is int:
                self._constrain(symbol)

    def _is_about_data(self, fact: Fact) -> bool:
        return any(self.scope.hint(s) is None for s in symbols(fact.cond))

    def _assert(self, fact: Fact) -> None:
        node = self.recorder.number(fact.cond)
        text = fact.message or (
            f"Runtime assertion failed for expression {symbolic_repr(fact.cond)} "
            f"on node '{node.name}'"
        )
        target = aten._assert_scalar.default
        self.recorder.node(target, (node, text), {}, None, "_assert_scalar")

    def _constrain(self, symbol: Expr) -> None:
        """Check the range of a value right after it is made, when more is known than at first."""
        known, declared = self.scope.range(symbol), self.scope.declared(symbol)
        limits = {}
        if known.lower > declared.lower:
            limits["min"] = int(known.lower)
        if known.upper < declared.upper and known.upper != math.inf:
            limits["max"] = int(known.upper)
        if not limits or not self.recorder.is_defined(symbol):
            return
        value = self.recorder.number(symbol)
        with self.recorder.graph.inserting_after(value):
            self.recorder.node(
                aten.sym_constrain_range.default, (value,), limits, None, "sym_constrain_range"
            )


def _is_range(cond: Expr) -> bool:
    """A linear inequality on one symbol."""
    return cond.kind == "ge0" and len(symbols(cond)) == 1 and (
        cond.args[0].kind == "symbol"
        or (cond.args[0].kind == "add" and all(t.kind == "symbol" for t, _ in cond.args[0].args))
    )  # fmt: skip
