"""Finds module calls with equal bodies, which become one module."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from graphport.program.signature import ConstantArgument
from graphport.program.unflatten.calls import Call, make_graph_key, operands
from graphport.program.unflatten.dataflow import (
    Dataflow,
    FromArgument,
    FromNode,
    FromSize,
    Recomputed,
)


@dataclass(eq=False)
class CallBody:
    """What equal calls do."""

    call: Call
    """The first of them."""
    results: dict[Any, None] = field(default_factory=dict)
    """Places of the values that any of the calls returns to whoever made it."""

    @property
    def name(self) -> str:
        return self.call.key


class CallBodies:
    """The piece of each call."""

    def __init__(self, root: Call, flow: Dataflow, graphs: GraphModule) -> None:
        self.flow = flow
        self.graphs = graphs
        self.of: dict[Call, CallBody] = {}
        self._known: dict[Any, CallBody] = {}
        self._places = _Positions(flow.home)
        self._numbers = InternTable()
        self._values: dict[Call, dict[Node, Any]] = defaultdict(dict)
        for call in (*root.silent, *root.calls_inside_out()):
            self._find(call)
        while any(self._complete(piece) for piece in self):
            pass

    def __iter__(self) -> Any:
        return iter(dict.fromkeys(self.of.values()))

    def _find(self, call: Call) -> None:
        piece = self._known.setdefault(self._body(call), CallBody(call))
        piece.results.update((self.place(v, call), None) for v in self.flow.outputs[call])
        self.of[call] = piece

    def _complete(self, piece: CallBody) -> bool:
        """Let the first call find what only a later one returns, and has from a call within it."""
        found = False
        for place in list(piece.results):
            value = self.node_at(place, piece.call)
            if value is not None and value not in self.flow.ways[piece.call]:
                for inner in self.flow.propagate_result(value, piece.call):
                    self.of[inner].results[self.place(value, inner)] = None
                found = True
        return found

    def place(self, value: Node, call: Call) -> Any:
        """Where in a call a value is made, in terms that are the same for equal calls."""
        return self._places.of(value, call) or self._value(value, call)

    def node_at(self, place: object, call: Call) -> Node | None:
        """The node at a place; None for a number that has none of its own."""
        return self._places.node_at(place, call) if isinstance(place, int) else None

    # What a call does, as something that can be compared.

    def _body(self, call: Call) -> object:
        flow = self.flow
        items = tuple(self._item(item, call) for item in call.items)
        writes = flow.writes.at.get(call, ())
        kept: Any = None
        if call.signature is not None:
            sides = (call.signature.inputs, call.signature.outputs)
            kept = (
                str(call.signature.in_spec),
                str(call.signature.out_spec),
                *(
                    tuple(v if v is None else self._value(v, call) for v in flow.leaves(side))
                    for side in sides
                ),
            )
        numbers = tuple(
            self._value(v, call) for v in flow.outputs[call] if not self._places.of(v, call)
        )
        return (
            call.path,
            call.kind,
            len(flow.inputs[call]),
            items,
            kept,
            numbers,
            tuple((self._value(s, call), self._value(v, call)) for s, v in writes),
        )

    def _item(self, item: Node | Call, call: Call) -> object:
        if isinstance(item, Call):
            given = tuple(self._value(v, call) for v in self.flow.inputs[item])
            return ("call", id(self.of[item]), given, *self._constants(item))
        return ("node", str(item.target), self._arg(item.args, call), self._arg(item.kwargs, call))

    def _constants(self, call: Call) -> list[object]:
        """What a module that keeps its signature is given besides values: its own may not use it,
        but one that takes its place does.
        """
        inputs = call.signature.inputs if call.signature is not None else ()
        return [self._arg(a.value, call) for a in inputs if isinstance(a, ConstantArgument)]

    def _arg(self, x: object, call: Call) -> object:
        if isinstance(x, Node):
            return self._value(x, call)
        if isinstance(x, (list, tuple)):
            return (type(x).__name__, *(self._arg(y, call) for y in x))
        if isinstance(x, dict):
            return ("dict", *((k, self._arg(v, call)) for k, v in x.items()))
        return (type(x).__name__, repr(x))

    def _value(self, value: Node, call: Call) -> Any:
        """How a call comes by a value."""
        known, waiting = self._values[call], [value]
        while value not in known:  # numbers are made of numbers, in long chains
            missing = [n for n in self._number_operands(waiting[-1], call) if n not in known]
            if missing:
                waiting += missing
            else:
                last = waiting.pop()
                known[last] = self._described(last, call)
        return known[value]

    def _number_operands(self, value: Node, call: Call) -> list[Node]:
        way = self.flow.ways[call].get(value)
        if isinstance(way, FromSize):
            return [way.tensor]
        return operands(value) if isinstance(way, Recomputed) else []

    def _described(self, value: Node, call: Call) -> object:
        if value.op == "get_attr":
            return make_graph_key(getattr(self.graphs, str(value.target)))
        way = self.flow.ways[call][value]
        if isinstance(way, FromArgument):
            return ("taken", self.flow.inputs[call][value])
        if isinstance(way, FromNode):
            return ("made", self._places.of(value, call) or self._given(value, call))
        if isinstance(way, FromSize):
            return ("size", self._value(way.tensor, call), way.dim, way.factor, way.offset)
        if isinstance(way, Recomputed):
            return ("number", self._numbers[str(value.target), self._arg(value.args, call)])
        return way

    def _given(self, value: Node, call: Call) -> object:
        """A number that a call within this one returns; or an input of the program."""
        giver = self.flow.producers[call].get(value)
        return (call.places[giver], self.place(value, giver)) if giver is not None else value.name


class InternTable(dict[Any, int]):
    """Numbers from 1 for keys: what is made of many others is compared at once."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self) + 1
        return number


class _Positions:
    """Where nodes are in the calls around them: equal numbers for equal places in two calls.

    A place is that of the item, and the place within that item.
    """

    def __init__(self, home: dict[Node, Call]) -> None:
        self._home = home
        self._numbers = InternTable()
        self._steps: dict[int, tuple[int, int]] = {}
        self._known: dict[Call, dict[Node, int]] = defaultdict(dict)
        self._nodes: dict[Call, dict[int, Node]] = defaultdict(dict)
        self._outermost: dict[Node, Call] = {}
        """Up to where the places of a node are known."""

    def of(self, node: Node, call: Call) -> int | None:
        """None for what is not made in the call."""
        home = self._home.get(node)
        if home is None or not call.encloses(home):
            return None
        found = self._known[call].get(node)
        return self._climb(node, home, call) if found is None else found

    def _climb(self, node: Node, home: Call, call: Call) -> int:
        at = self._outermost.get(node)
        if at is None:
            at = home
            self._note(node, at, at.places[node], 0)
        while at is not call:
            assert at.parent is not None
            self._note(node, at.parent, at.parent.places[at], self._known[at][node])
            at = at.parent
        self._outermost[node] = call
        return self._known[call][node]

    def _note(self, node: Node, call: Call, item: int, within: int) -> None:
        place = self._numbers[item, within]
        self._steps[place] = item, within
        self._known[call][node] = place
        self._nodes[call][place] = node

    def node_at(self, place: int, call: Call) -> Node:
        found = self._nodes[call].get(place)
        if found is None:
            at: Node | Call = call
            while place:
                item, place = self._steps[place]
                assert isinstance(at, Call)
                at = at.items[item]
            assert isinstance(at, Node)
            found = at
        return found
