"""Assertions on data-dependent values, the values of 0-d integer tensors, and data for drafts.

A condition on one value that is a range becomes the range of that value, constrained and asserted
where the value is made. Every other condition is asserted where it was stated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from graphport import source
from graphport.capture.trace.items import is_repeatable
from graphport.capture.trace.recorder import Recorder
from graphport.compat.operators import aten
from graphport.compat.torch import DisableTorchFunction, OpOverload, disable_current_modes
from graphport.errors import DataDependentError, NoDataError
from graphport.ops.registry import overload_table, overloads
from graphport.ops.sizes import is_proven
from graphport.program.input_checks import ASSERTION_PREFIX
from graphport.symbolic import Expr, Fact, ge, le, max_, min_, symbolic_repr, symbols
from graphport.tensors.abstract import holds_number
from graphport.tensors.lazy import WeightlessTensor, lacks_data
from graphport.types import Args, Argument, Function, Kwargs

ASSERTION_OPS = overloads("_assert_scalar sym_constrain_range sym_constrain_range_for_size")
"""What a program asserts."""


class Assertions:
    """Follows the facts of a scope into the graph."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.scope = recorder.scope
        self.seen = 0
        """How many facts have been looked at."""
        self.settled: set[Expr] = set()
        """Values that an assertion makes a constant: there is no range to check."""

    def flush(self) -> None:
        """Assert the facts that came up since the last time."""
        new = self.scope.facts[self.seen :]
        self.seen = len(self.scope.facts)
        within = self.recorder.frame.parent is not None
        for fact in new:
            # In a branch only what the branch relies on is checked, and only where it runs.
            about = not self.scope.outlasts(fact) if within else self._is_about_data(fact)
            if about and not (_is_range(fact.cond) and self._is_local(fact)):
                self._state(fact)

    def finish(self) -> None:
        """Assert what is left, and the ranges."""
        self.flush()
        for symbol in self.scope.symbols[self.recorder.frame.since :]:
            fresh = self.scope.is_fresh(symbol) and symbol not in self.settled
            if fresh and symbol.type is int:
                self._constrain(symbol)

    def _is_about_data(self, fact: Fact) -> bool:
        return any(self.scope.is_fresh(s) for s in symbols(fact.cond))

    def _is_local(self, fact: Fact) -> bool:
        """Whether a fact is about values of the graph that is being written alone."""
        since = self.recorder.frame.since
        return all(s.index >= since for s in symbols(fact.cond))

    def _state(self, fact: Fact) -> None:
        cond = fact.cond
        if cond.kind == "eq0" and len(symbols(cond)) == 1 and self._is_local(fact):
            self.settled.add(symbols(cond)[0])
        node = self._assert(self.recorder.number(cond), cond, fact.message)
        if fact.where is not None:  # it is written down only with the next operator
            node.meta["stack_trace"] = fact.where.trace

    def _assert(self, node: Node, cond: Expr, message: str = "") -> Node:
        text = message or f"{ASSERTION_PREFIX} {symbolic_repr(cond)} on node '{node.name}'"
        args = (node, text)
        return self.recorder.node(aten._assert_scalar.default, args, {}, None, "_assert_scalar")

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
        recorder = self.recorder
        value = recorder.number(symbol)
        if value.target is aten.sym_size.int and value.args[0].op != "placeholder":
            value.args[0].append(value)  # it may have been read only now, at the end
        # On the value itself: what other assertions compute comes only later in the graph.
        with recorder.graph.inserting_before(value.next), recorder.copy_metadata(value):
            recorder.node(
                aten.sym_constrain_range.default, (value,), limits, None, "sym_constrain_range"
            )
            for end, limit in limits.items():
                compare, cond = _LIMITS[end], (ge if end == "min" else le)(symbol, limit)
                self._assert(recorder.apply(compare, (value, limit), cond), cond)


def hoist_assertions(graph: Graph) -> None:
    """Let a graph check what it assumes as soon as it is known.

    Sizes are written as what they turned out to be: on others an operator would fail before a check
    that comes later, and in its own words.
    """
    checks = [n for n in graph.nodes if n.target in ASSERTION_OPS]
    for check in reversed(checks):  # so that the first stays the first
        order = {node: i for i, node in enumerate(graph.nodes)}
        chain = sorted(_collect_arithmetic(check), key=order.__getitem__)
        known = {n for node in chain for n in node.all_input_nodes}.difference(chain)
        last = max(known, key=order.__getitem__, default=check)
        if last.op == "placeholder" or last is check:
            continue
        module = {k: v for k, v in last.meta.items() if k == "nn_module_stack"}
        after = order[last]
        for node in chain:
            if order[node] > after:
                last.append(node)
                node.meta = {**node.meta, **module}
                last = node


def _collect_arithmetic(check: Node) -> set[Node]:
    """A check and the arithmetic that leads to it."""
    found, waiting = {check}, [check]
    while waiting:
        for n in waiting.pop().all_input_nodes:
            is_arithmetic = n.op == "call_function" and holds_number(n)
            if is_arithmetic and n not in found and all(map(holds_number, n.all_input_nodes)):
                found.add(n)
                waiting.append(n)
    return found


_LIMITS = {"min": operator.ge, "max": operator.le}


def _is_range(cond: Expr) -> bool:
    """A linear inequality on one symbol."""
    return (
        cond.kind == "ge0"
        and len(symbols(cond)) == 1
        and (
            cond.args[0].kind == "symbol"
            or (
                cond.args[0].kind == "add" and all(t.kind == "symbol" for t, _ in cond.args[0].args)
            )
        )
    )


# Infers 0-d integer tensors whose value is a size: `torch.tensor(x.shape[0]) // 2`.
#
# Such a tensor holds no data that capture would not know. Its value is followed as an expression
# through plain arithmetic, so that `.item()`, and a slice written with it, give the size back.


def _divide_truncating(a: Argument, b: Argument) -> Argument:
    """Division towards zero, where that is the floor."""
    positive = is_proven(ge(a, 0)) and is_proven(ge(b, 1))
    return a // b if positive else None


_ARITHMETIC: dict[OpOverload, Function] = overload_table(
    {
        "add.Tensor,Scalar": operator.add,
        "sub.Tensor,Scalar": operator.sub,
        "mul.Tensor,Scalar": operator.mul,
        "rsub.Scalar,Tensor": lambda a, b: b - a,
        "neg": operator.neg,
        "floor_divide": operator.floordiv,
        "maximum": max_,
        "minimum": min_,
        "clone _to_copy scalar_tensor": lambda a: a,
    }
)
_DIVISION = {"floor": operator.floordiv, "trunc": _divide_truncating}
_IGNORED_KEYWORDS = ("dtype", "device", "layout", "pin_memory", "memory_format")


def infer_scalar(op: OpOverload, operands: list[object], kwargs: Kwargs) -> Argument:
    """The value of an integer scalar made by `op`, when it follows from those of its operands.

    Operands are Python numbers, expressions, or None for a tensor of unknown value.
    """
    if op is aten.div.Tensor_mode:
        fn = _DIVISION.get(kwargs["rounding_mode"])
    elif all(k in _IGNORED_KEYWORDS for k in kwargs):
        fn = _ARITHMETIC.get(op)
    else:
        fn = None
    if fn is None or not all(_is_integer(x) for x in operands):
        return None
    if fn in (operator.floordiv, _divide_truncating) and not isinstance(operands[1], Expr):
        if operands[1] == 0:
            return None
    return fn(*operands)


def _is_integer(x: object) -> bool:
    return x.type is int if isinstance(x, Expr) else type(x) is int


class ConcreteRun:
    """Values of the nodes of a graph that is still growing. The graph never mutates anything."""

    def __init__(self, graph: Graph, given: Callable[[], dict[Node, Any]]) -> None:
        self._graph = graph
        self._given = given
        self._values: dict[Node, Any] = {}

    def value(self, node: Node) -> Argument:
        if node.graph is not self._graph:
            raise DataDependentError(
                "a branch or loop body reads data, and there is no example of what it is given",
                where=source.locate_user_line(),
                fix="read it outside, or compute with the tensor: torch.where, torch.cond",
            )
        self._values.update(self._given())
        needed = collect_ancestors(node)
        with disable_tracing():
            self._require_data(needed)
            self._run(needed)
        return self._values[node]

    def find_value(self, node: Node) -> Argument:
        """The value of a node that follows from what is given and at hand; None of any other."""
        needed, given = collect_ancestors(node), self._given()
        with disable_tracing():
            for n in needed:
                is_known = _has_data(given.get(n)) if n.op == "placeholder" else is_repeatable(n)
                if node.graph is not self._graph or not is_known:
                    return None
            self._values.update((n, value) for n, value in given.items() if n in needed)
            self._run(needed)
        return self._values[node]

    def call(self, fn: Function, args: Args, kwargs: Kwargs) -> Argument:
        """What a function returns for the values of nodes."""
        given, keywords = map_arg((args, kwargs), self.value)
        with disable_tracing():
            return fn(*given, **keywords)

    def read_data(self, node: Node, read: Callable[[torch.Tensor], Any]) -> Argument:
        """What `read` makes of the data of a tensor."""
        data = self.value(node)
        with disable_tracing():
            return read(data.detach())

    def _require_data(self, needed: set[Node]) -> None:
        """What a value is computed from must be there; what is in a file is read."""
        for n in needed:
            t = self._values[n] if n.op == "placeholder" else None
            if isinstance(t, WeightlessTensor) and t.has_data:
                self._values[n] = t.read()
            elif isinstance(t, torch.Tensor) and lacks_data(t):
                raise NoDataError(
                    f"draft_export takes the data that the program asks for from the example, "
                    f"where {n.name} has none: it is on the meta device, fake, or made by "
                    "gp.fake_mode()",
                    where=source.locate_user_line(),
                    fix="pass real tensors, and a model with its weights",
                )

    def _run(self, needed: set[Node]) -> None:
        for n in self._graph.nodes if not needed <= self._values.keys() else ():
            if n in needed and n not in self._values:
                args, kwargs = map_arg((n.args, n.kwargs), self._values.__getitem__)
                self._values[n] = n.target(*args, **kwargs)


def collect_ancestors(node: Node) -> set[Node]:
    """A node and all that it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        new = [i for i in waiting.pop().all_input_nodes if i not in found]
        found.update(new)
        waiting += new
    return found


def _has_data(x: object) -> bool:
    return isinstance(x, torch.Tensor) and not lacks_data(x)


@contextmanager
def disable_tracing() -> Iterator[None]:
    """Computes on real tensors during capture: the modes are off meanwhile."""
    with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
        yield
