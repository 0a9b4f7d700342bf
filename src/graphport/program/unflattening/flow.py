"""What crosses the borders of calls: what each takes, what it gives, and how it finds each value.

Tensors come first. A number is then found in the sizes of the tensors that a call takes, if it can
be; else it is passed like a tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from graphport import errors, source
from graphport.program.signature import ConstantArgument, OutputKind
from graphport.program.unflattening.calls import NUMBERS, Call, is_number, is_size, operands
from graphport.program.unflattening.state import State
from graphport.program.unflattening.writes import Writes
from graphport.symbolic import Expr, evaluate, symbols
from graphport.symbolic.bridge import from_torch

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


@dataclass(frozen=True)
class Taken:
    """An argument of the call."""


@dataclass(frozen=True)
class Made:
    """Computed by a node of the call, or returned by a call that it makes."""


@dataclass(frozen=True)
class Computed:
    """A number: made again here, by the same function."""


@dataclass(frozen=True)
class Read:
    """State of the module, by its name below it."""

    name: str


@dataclass(frozen=True)
class Elsewhere:
    """State of a module that is not below this one."""

    name: str


@dataclass(frozen=True)
class SizeOf:
    """A number: told by the size of an argument, which is `factor*number + offset`.

    Or by an argument that is such a number itself: that has no dim.
    """

    tensor: Node
    dim: int | None
    factor: int = 1
    offset: int = 0


Way = Taken | Made | Computed | Read | Elsewhere | SizeOf
Step = tuple[Callable[[Node, Call], "list[Step]"], Node, Call]
"""What is left to do for a value that a call uses."""


class Flow:
    """For every call: its arguments, its results, and the way to each value that it uses."""

    def __init__(
        self, program: ExportedProgram, root: Call, home: dict[Node, Call], state: State,
        writes: Writes,
    ) -> None:  # fmt: skip
        self.program = program
        self.root = root
        self.state = state
        self.writes = writes
        self.home = home
        """The call that each node belongs to."""
        self.inputs: dict[Call, dict[Node, int]] = defaultdict(dict)
        """With the place of each among the arguments."""
        self.outputs: dict[Call, dict[Node, None]] = defaultdict(dict)
        self.givers: dict[Call, dict[Node, Call]] = defaultdict(dict)
        """By call: values that a call within it returns, and the first that does."""
        self.ways: dict[Call, dict[Node, Way]] = defaultdict(dict)
        self.results = _results(program, state, writes)
        self._home = dict(home)
        """Also of inputs, and of numbers that are made where their tensors are."""
        self._reached: dict[Node, Call] = {}
        """The outermost call that a value which is made in it has been handed out to."""
        self._kept_results: dict[Call, set[Any]] = {}
        self._nodes = {n.name: n for n in program.graph.nodes}
        for node in program.graph.nodes:
            if node.op == "placeholder" and node not in state.names:
                self._home[node] = root
        self._kept = [c for c in (*root.calls(), *root.silent) if c.signature is not None]
        for numbers in (False, True):
            for value, call in self._uses():
                if is_number(value) is numbers:
                    self.need(value, call)

    def leaves(self, arguments: Any) -> list[Any]:
        """The nodes of a kept signature; None where there is a constant, or nothing is left."""
        return [None if isinstance(a, ConstantArgument) else self._nodes.get(a.name)
                for a in arguments]  # fmt: skip

    def _uses(self) -> Any:
        """(value, call that uses it), in the order of the program."""
        for call in self._kept:
            assert call.signature is not None
            taken = [n for n in self.leaves(call.signature.inputs) if n is not None]
            for node in taken:
                self._argument(node, call)
                if call.parent is not None and self.root.encloses(call):
                    yield node, call.parent
        for node, call in list(self._home.items()):
            yield from ((n, call) for n in operands(node) if n.op != "get_attr")
        for call, written in self.writes.at.items():
            for state, value in written:
                yield state, call
                yield value, call
        for value, target in self.results:
            yield from ((n, self.root) for n in (value, target) if isinstance(n, Node))
        for call in self._kept:
            assert call.signature is not None
            for node in self.leaves(call.signature.outputs):
                if node is not None:
                    yield node, call
                    self._result(node, call)

    def need(self, value: Node, call: Call) -> None:
        """Find a way for a call to a value that it uses.

        Step by step: calls within calls, and numbers made of numbers, go deeper than Python does.
        """
        steps: list[Step] = [(self._need, value, call)]
        while steps:
            step, value, call = steps.pop()
            steps += step(value, call)

    def _need(self, value: Node, call: Call) -> list[Step]:
        if value in self.ways[call]:
            return []
        state = value if value in self.state.names else self.writes.state_read(value, call)
        if state is not None:
            return self._state(value, state, call)
        if is_number(value):
            return self._number(value, call)
        return self._value(value, call)

    def _state(self, value: Node, state: Node, call: Call) -> list[Step]:
        names = self.state.names[state]
        own = next((n for n in names if call.owns(n)), None)
        if own is not None:
            self.ways[call][value] = Read(own[len(call.path) + 1 :] if call.path else own)
        elif call.signature is not None and value not in self.inputs[call]:
            self.ways[call][value] = Elsewhere(names[0])
        else:
            return self._take(value, call)
        return []

    def _value(self, value: Node, call: Call) -> list[Step]:
        if call.encloses(self._home[value]):
            self.hand_out(value, call)
            return []
        return self._take(value, call)

    def hand_out(self, value: Node, call: Call) -> list[Call]:
        """Let the calls within a call return a value that is made there, up to the call itself.

        Those that return it from now on.
        """
        inner = self._reached.get(value)
        if inner is None or not call.encloses(inner):
            inner = self._home[value]
        found = []
        while inner is not call:
            self._give(value, inner)
            found.append(inner)
            assert inner.parent is not None
            inner = inner.parent
        self._reached[value] = call
        self.ways[call][value] = Made()
        return found

    def _take(self, value: Node, call: Call) -> list[Step]:
        assert call.parent is not None
        if call.signature is not None and value not in self.inputs[call]:
            raise _not_in_signature(call, value, "uses", "which is not among its arguments")
        self._argument(value, call)
        return [(self._need, value, call.parent)]

    def _argument(self, value: Node, call: Call) -> None:
        given = self.inputs[call]
        given.setdefault(value, len(given))
        self.ways[call][value] = Taken()

    def _give(self, value: Node, call: Call) -> None:
        if call.signature is not None and value not in self._results_of(call):
            how = "which the program goes on with and which is not among its results"
            raise _not_in_signature(call, value, "makes", how)
        self._result(value, call)
        self.need(value, call)

    def _result(self, value: Node, call: Call) -> None:
        self.outputs[call][value] = None
        if call.parent is not None and self.root.encloses(call):
            known = self.givers[call.parent].setdefault(value, call)
            if call.number < known.number:
                self.givers[call.parent][value] = call

    def _results_of(self, call: Call) -> set[Any]:
        """What a call that keeps its signature returns."""
        if call not in self._kept_results:
            assert call.signature is not None
            self._kept_results[call] = set(self.leaves(call.signature.outputs))
        return self._kept_results[call]

    # Numbers

    def _number(self, value: Node, call: Call) -> list[Step]:
        is_here = value in self._home and call.encloses(self._home[value])
        if value in self.inputs[call] or is_here:
            return self._value(value, call)
        found = self._size(value.meta["val"], call)
        if found is not None:
            self.ways[call][value] = found
            return []
        if not is_size(value):
            return self._value(value, call)
        return [(self._compute, value, call), *reversed(list(self._operands(value, call)))]

    def _operands(self, value: Node, call: Call) -> Iterator[Step]:
        """The numbers that one is made of, up to a tensor that does not come to the call."""
        for operand in operands(value):
            if is_number(operand) or operand in self.state.names:
                yield self._need, operand, call
            elif operand not in self.ways[call]:
                return

    def _compute(self, value: Node, call: Call) -> list[Step]:
        missing = next((n for n in operands(value) if n not in self.ways[call]), None)
        if missing is None:
            self.ways[call][value] = Computed()
            return []
        # The tensor does not come here; its size does, from where the tensor is.
        self._home[value] = owner = self._home[missing]
        self.ways[owner][missing] = Made()
        self.ways[owner][value] = Computed()
        return self._value(value, call) if owner is not call else []

    def _size(self, val: Any, call: Call) -> SizeOf | None:
        """An argument of the call with this size."""
        scope = self.program.scope
        number = from_torch(val)
        if type(number) is not Expr:
            return None
        if any(map(scope.is_fresh, symbols(number))):
            # Assertions on data would be about what they are to ensure: only if there is no choice.
            if call.signature is None:
                return None
        else:
            number = scope.simplify(number)
        given = [(v, v.meta.get("val")) for v in self.inputs[call]]
        sizes: list[tuple[Node, int | None, Any]] = [
            (v, d, from_torch(s)) for v, val in given if isinstance(val, torch.Tensor)
            for d, s in enumerate(val.shape)
        ]  # fmt: skip
        if call.signature is not None:  # which cannot be given more
            sizes += [(v, None, from_torch(val)) for v, val in given if isinstance(val, NUMBERS)]
        for value, dim, size in sizes:
            if number in (size, scope.simplify(size)):
                return SizeOf(value, dim)
        for value, dim, size in sizes if number.kind == "symbol" else ():
            solution = _solution(scope.simplify(size), number)
            if solution is not None:
                return SizeOf(value, dim, *solution)
        return None


def _solution(size: Any, symbol: Expr) -> tuple[int, int] | None:
    """Factor and offset of a size that is `factor*symbol + offset`."""
    if type(size) is not Expr or symbols(size) != symbols(symbol):
        return None
    offset = int(evaluate(size, {symbol: 0}))
    factor = int(evaluate(size, {symbol: 1})) - offset
    return (factor, offset) if factor and factor * symbol + offset is size else None


def _results(
    program: ExportedProgram, state: State, writes: Writes
) -> list[tuple[Any, Node | None]]:
    """What the program gives in the end: values, and the state or input that each is written to.

    Without what is written where it is made.
    """
    done = {pair for written in writes.at.values() for pair in written}
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    inputs = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    found: list[tuple[Any, Node | None]] = []
    for value, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
        target = None
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            target = inputs[str(spec.target)]
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            target = state.inputs[str(spec.target)]
        if target is None or (target, value) not in done:
            found.append((value, target))
    return found


def _not_in_signature(call: Call, value: Node, verb: str, how: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"the module {call.path!r} cannot keep its call signature: it {verb} {value.name!r}, {how}",
        where=source.of_trace(value.meta.get("stack_trace")),
        fix=f"leave {call.path!r} out of preserve_module_call_signature, or pass what it uses as "
        "arguments and return what it makes",
    )
