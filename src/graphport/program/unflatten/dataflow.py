"""Dataflow between module calls: arguments, results, origins of values, and buffer writes.

Tensors come first. A number is then found in the sizes of the tensors that a call takes, if it can
be; else it is passed like a tensor.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from graphport import errors, source
from graphport.program.signature import ConstantArgument, OutputKind
from graphport.program.unflatten.calls import Call, State, is_size, operands
from graphport.symbolic import Expr, evaluate, symbols
from graphport.symbolic.bridge import NUMBERS, from_torch
from graphport.tensors.abstract import get_val, holds_number
from graphport.types import PyTree

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


@dataclass(frozen=True)
class FromArgument:
    """An argument of the call."""


@dataclass(frozen=True)
class FromNode:
    """Computed by a node of the call, or returned by a call that it makes."""


@dataclass(frozen=True)
class Recomputed:
    """A number: made again here, by the same function."""


@dataclass(frozen=True)
class FromState:
    """State of the module, by its name below it."""

    name: str


@dataclass(frozen=True)
class FromOtherModule:
    """State of a module that is not below this one."""

    name: str


@dataclass(frozen=True)
class FromSize:
    """A number: solved from the size of an argument, which is `factor*number + offset`.

    Or by an argument that is such a number itself: that has no dim.
    """

    tensor: Node
    dim: int | None
    factor: int = 1
    offset: int = 0


ValueOrigin = FromArgument | FromNode | Recomputed | FromState | FromOtherModule | FromSize
Step = tuple[Callable[[Node, Call], "list[Step]"], Node, Call]
"""What is left to do for a value that a call uses."""


class Dataflow:
    """For every call: its arguments, its results, and the way to each value that it uses."""

    def __init__(
        self,
        program: ExportedProgram,
        root: Call,
        home: dict[Node, Call],
        state: State,
        writes: BufferWrites,
    ) -> None:
        self.program = program
        self.root = root
        self.state = state
        self.writes = writes
        self.home = home
        """The call that each node belongs to."""
        self.inputs: dict[Call, dict[Node, int]] = defaultdict(dict)
        """With the place of each among the arguments."""
        self.outputs: dict[Call, dict[Node, None]] = defaultdict(dict)
        self.producers: dict[Call, dict[Node, Call]] = defaultdict(dict)
        """By call: values that a call within it returns, and the first that does."""
        self.ways: dict[Call, dict[Node, ValueOrigin]] = defaultdict(dict)
        self.results = _collect_results(program, state, writes)
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
                if holds_number(value) is numbers:
                    self.need(value, call)

    def leaves(self, arguments: PyTree) -> list[PyTree]:
        """The nodes of a kept signature; None where there is a constant, or nothing is left."""
        return [
            None if isinstance(a, ConstantArgument) else self._nodes.get(a.name) for a in arguments
        ]

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
        state = value if value in self.state.names else self.writes.find_holding_state(value, call)
        if state is not None:
            return self._state(value, state, call)
        if holds_number(value):
            return self._number(value, call)
        return self._value(value, call)

    def _state(self, value: Node, state: Node, call: Call) -> list[Step]:
        names = self.state.names[state]
        own = next((n for n in names if call.owns(n)), None)
        if own is not None:
            self.ways[call][value] = FromState(own[len(call.path) + 1 :] if call.path else own)
        elif call.signature is not None and value not in self.inputs[call]:
            self.ways[call][value] = FromOtherModule(names[0])
        else:
            return self._take(value, call)
        return []

    def _value(self, value: Node, call: Call) -> list[Step]:
        if call.encloses(self._home[value]):
            self.propagate_result(value, call)
            return []
        return self._take(value, call)

    def propagate_result(self, value: Node, call: Call) -> list[Call]:
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
        self.ways[call][value] = FromNode()
        return found

    def _take(self, value: Node, call: Call) -> list[Step]:
        assert call.parent is not None
        if call.signature is not None and value not in self.inputs[call]:
            raise _signature_error(call, value, "uses", "which is not among its arguments")
        self._argument(value, call)
        return [(self._need, value, call.parent)]

    def _argument(self, value: Node, call: Call) -> None:
        given = self.inputs[call]
        given.setdefault(value, len(given))
        self.ways[call][value] = FromArgument()

    def _give(self, value: Node, call: Call) -> None:
        if call.signature is not None and value not in self._results_of(call):
            how = "which the program goes on with and which is not among its results"
            raise _signature_error(call, value, "makes", how)
        self._result(value, call)
        self.need(value, call)

    def _result(self, value: Node, call: Call) -> None:
        self.outputs[call][value] = None
        if call.parent is not None and self.root.encloses(call):
            known = self.producers[call.parent].setdefault(value, call)
            if call.number < known.number:
                self.producers[call.parent][value] = call

    def _results_of(self, call: Call) -> set[object]:
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
        found = self._size(get_val(value), call)
        if found is not None:
            self.ways[call][value] = found
            return []
        if not is_size(value):
            return self._value(value, call)
        return [(self._compute, value, call), *reversed(list(self._operands(value, call)))]

    def _operands(self, value: Node, call: Call) -> Iterator[Step]:
        """The numbers that one is made of, up to a tensor that does not come to the call."""
        for operand in operands(value):
            if holds_number(operand) or operand in self.state.names:
                yield self._need, operand, call
            elif operand not in self.ways[call]:
                return

    def _compute(self, value: Node, call: Call) -> list[Step]:
        missing = next((n for n in operands(value) if n not in self.ways[call]), None)
        if missing is None:
            self.ways[call][value] = Recomputed()
            return []
        # The tensor does not come here; its size does, from where the tensor is.
        self._home[value] = owner = self._home[missing]
        self.ways[owner][missing] = FromNode()
        self.ways[owner][value] = Recomputed()
        return self._value(value, call) if owner is not call else []

    def _size(self, val: Any, call: Call) -> FromSize | None:
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
        given = [(v, get_val(v)) for v in self.inputs[call]]
        sizes: list[tuple[Node, int | None, Any]] = [
            (v, d, from_torch(s))
            for v, val in given
            if isinstance(val, torch.Tensor)
            for d, s in enumerate(val.shape)
        ]
        if call.signature is not None:  # which cannot be given more
            sizes += [(v, None, from_torch(val)) for v, val in given if isinstance(val, NUMBERS)]
        for value, dim, size in sizes:
            if number in (size, scope.simplify(size)):
                return FromSize(value, dim)
        for value, dim, size in sizes if number.kind == "symbol" else ():
            solution = _solve_linear(scope.simplify(size), number)
            if solution is not None:
                return FromSize(value, dim, *solution)
        return None


def _solve_linear(size: object, symbol: Expr) -> tuple[int, int] | None:
    """Factor and offset of a size that is `factor*symbol + offset`."""
    if type(size) is not Expr or symbols(size) != symbols(symbol):
        return None
    offset = int(evaluate(size, {symbol: 0}))
    factor = int(evaluate(size, {symbol: 1})) - offset
    return (factor, offset) if factor and factor * symbol + offset is size else None


def _collect_results(
    program: ExportedProgram, state: State, writes: BufferWrites
) -> list[tuple[PyTree, Node | None]]:
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


def _signature_error(call: Call, value: Node, verb: str, how: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"the module {call.path!r} cannot keep its call signature: it {verb} {value.name!r}, {how}",
        where=source.locate_stack_trace(value.meta.get("stack_trace")),
        fix=f"leave {call.path!r} out of preserve_module_call_signature, or pass what it uses as "
        "arguments and return what it makes",
    )


# Buffer writes: in the module that owns the buffer, at the end of its call.
#
# The graph says what a buffer holds in the end. A module that is called several times reads what
# its last call left: such values in between are written to the buffer too, and read from it, so
# that all calls are calls of one module. That is sound for any value that stands in for the
# buffer's memory between two writes, as long as nobody reads after a write what was there before.

_STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class BufferWrites:
    """What each call writes."""

    def __init__(
        self, program: ExportedProgram, root: Call, home: dict[Node, Call], state: State
    ) -> None:
        self.home = home
        self.state = state
        self.at: dict[Call, list[tuple[Node, Node]]] = defaultdict(list)
        """By call: the input that stands for the state, and the value for it."""
        self.held: dict[Node, list[tuple[Call, Node]]] = defaultdict(list)
        """Values that are read from the state instead, in a call and those within it."""
        self._held_in: dict[Call, list[tuple[Node, Node]]] = defaultdict(list)
        """By call: the same values, with their states."""
        self.left: dict[Node, tuple[Call, Node]] = {}
        """Values that a call leaves in the state and does not return: they are read from there."""
        self._order = {n: i for i, n in enumerate(program.graph.nodes)}
        self._by_path: dict[str, list[Call]] = defaultdict(list)
        for call in root.calls():
            self._by_path[call.path].append(call)
        output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
        for value, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
            if spec.kind in _STATE_MUTATIONS and value in home and spec.target is not None:
                self._place(state.inputs[spec.target], value, root)

    def find_holding_state(self, value: Node, call: Call) -> Node | None:
        """The state that holds the value while the call runs."""
        if value in self.left and not self.left[value][0].encloses(call):
            return self.left[value][1]
        return next((s for c, s in self.held.get(value, ()) if c.encloses(call)), None)

    def overwritten(self, call: Call) -> set[Node]:
        """Inputs and values whose memory the call writes to."""
        states = {state for state, _ in self.at.get(call, ())}
        held = {v for v, s in self._held_in.get(call, ()) if s in states}
        return states | held | (set(self.left) if call.parent is None else set())

    def _place(self, state: Node, value: Node, root: Call) -> None:
        names = self.state.names[state]
        around = self.home[value].chain
        call = next(c for c in around if any(map(c.owns, names)))
        if call is root or not self._is_last(state, call):
            return
        self.at[call].append((state, value))
        signature = call.signature
        if signature is not None and all(value.name != a.name for a in signature.outputs):
            self.left[value] = (call, state)
        earlier = self._by_path[call.path]
        for before in reversed(earlier[: earlier.index(call)]):
            last = self._counterpart(value, call, before)
            if last is None or not self._is_last(state, before):
                break
            self.at[before].append((state, last))
            self.held[last].append((call, state))
            self._held_in[call].append((last, state))
            call, value = before, last

    def _counterpart(self, value: Node, call: Call, before: Call) -> Node | None:
        """The value at the same place of the call before, if this call reads it."""
        same = self._same_place(value, call, before)
        if same is None or same.target is not value.target:
            return None
        one, other = get_val(same), get_val(value)
        if one.dtype is not other.dtype or tuple(one.shape) != tuple(other.shape):
            return None
        return same if any(self._is_within(u, call) for u in same.users) else None

    def _same_place(self, value: Node, call: Call, other: Call) -> Node | None:
        """What another call has where this one has a value."""
        at = self.home[value]
        places = [at.places[value]]
        while at is not call:
            assert at.parent is not None
            places.append(at.parent.places[at])
            at = at.parent
        found: Node | Call = other
        for i in reversed(places):
            if isinstance(found, Node) or i >= len(found.items):
                return None
            found = found.items[i]
        return found if isinstance(found, Node) else None

    def _is_last(self, state: Node, call: Call) -> bool:
        """Whether nobody outside reads after the call what was there before it."""
        for seen in self._views(state):
            if seen is not state and self._is_within(seen, call):
                continue  # leaves the call as a copy
            if any(self._order[u] > call.last and not is_size(u) for u in seen.users):
                return False
        return True

    def _views(self, state: Node) -> Iterable[Node]:
        """The input for a state, and its views."""
        found, waiting = {state: None}, [state]
        while waiting:
            for user in waiting.pop().users:
                if user not in found and find_viewed_node(user) in found:
                    found[user] = None
                    waiting.append(user)
        return found

    def _is_within(self, node: Node, call: Call) -> bool:
        return node in self.home and call.encloses(self.home[node])


def find_viewed_node(node: Node) -> Node | None:
    """The node that a node's result may be a view of."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return node.args[0] if is_view or node.target is operator.getitem else None


def is_view_of(node: Node, memory: set[Node]) -> bool:
    """Whether a value is, or is a view of, one of these."""
    seen: Node | None = node
    while seen is not None:
        if seen in memory:
            return True
        seen = find_viewed_node(seen)
    return False
