"""Equal calls of a module, found: they are calls of one piece of code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from graphport.program.signature import ConstantArgument
from graphport.program.unflattening.calls import Call, graph_key
from graphport.program.unflattening.flow import Computed, Flow, Made, SizeOf, Taken


@dataclass(eq=False)
class Piece:
    """What equal calls do."""

    call: Call
    """The first of them."""
    results: dict[Any, None] = field(default_factory=dict)
    """Places of the values that any of the calls returns to whoever made it."""

    @property
    def name(self) -> str:
        return self.call.key


class Pieces:
    """The piece of each call."""

    def __init__(self, root: Call, flow: Flow, graphs: GraphModule) -> None:
        self.flow = flow
        self.graphs = graphs
        self.of: dict[Call, Piece] = {}
        self.places: dict[Call, dict[Node, Any]] = {}
        self._known: dict[Any, Piece] = {}
        for call in (*root.silent, root):
            self._find(call)
        while any(self._complete(piece) for piece in self):
            pass

    def __iter__(self) -> Any:
        return iter(dict.fromkeys(self.of.values()))

    def _find(self, call: Call) -> None:
        for item in call.items:
            if isinstance(item, Call):
                self._find(item)
        self.places[call] = {node: place for place, node in call.nodes()}
        piece = self._known.setdefault(self._body(call), Piece(call))
        piece.results.update((self.place(v, call), None) for v in self.flow.outputs[call])
        self.of[call] = piece

    def _complete(self, piece: Piece) -> bool:
        """Let the first call find what only a later one returns, and has from a call within it."""
        found = False
        for value, place in self.places[piece.call].items():
            if place in piece.results and value not in self.flow.ways[piece.call]:
                for inner in self.flow.hand_out(value, piece.call):
                    self.of[inner].results[self.place(value, inner)] = None
                found = True
        return found

    def place(self, value: Node, call: Call) -> Any:
        """Where in a call a value is made, in terms that are the same for equal calls."""
        return self.places[call].get(value) or self._value(value, call)

    # What a call does, as something that can be compared.

    def _body(self, call: Call) -> Any:
        flow = self.flow
        items = tuple(self._item(item, call) for item in call.items)
        writes = flow.writes.at.get(call, ())
        kept: Any = None
        if call.signature is not None:
            sides = (call.signature.inputs, call.signature.outputs)
            kept = (str(call.signature.in_spec), str(call.signature.out_spec), *(
                tuple(v if v is None else self._value(v, call) for v in flow.leaves(side))
                for side in sides))  # fmt: skip
        numbers = tuple(
            self._value(v, call) for v in flow.outputs[call] if v not in self.places[call]
        )
        return (
            call.path, call.kind, len(flow.inputs[call]), items, kept, numbers,
            tuple((self._value(s, call), self._value(v, call)) for s, v in writes),
        )  # fmt: skip

    def _item(self, item: Node | Call, call: Call) -> Any:
        if isinstance(item, Call):
            given = tuple(self._value(v, call) for v in self.flow.inputs[item])
            return ("call", id(self.of[item]), given, *self._constants(item))
        return ("node", str(item.target), self._arg(item.args, call), self._arg(item.kwargs, call))

    def _constants(self, call: Call) -> list[Any]:
        """What a module that keeps its signature is given besides values: its own may not use it,
        but one that takes its place does.
        """
        inputs = call.signature.inputs if call.signature is not None else ()
        return [self._arg(a.value, call) for a in inputs if isinstance(a, ConstantArgument)]

    def _arg(self, x: Any, call: Call) -> Any:
        if isinstance(x, Node):
            return self._value(x, call)
        if isinstance(x, (list, tuple)):
            return (type(x).__name__, *(self._arg(y, call) for y in x))
        if isinstance(x, dict):
            return ("dict", *((k, self._arg(v, call)) for k, v in x.items()))
        return (type(x).__name__, repr(x))

    def _value(self, value: Node, call: Call) -> Any:
        if value.op == "get_attr":
            return graph_key(getattr(self.graphs, str(value.target)))
        way = self.flow.ways[call][value]
        if isinstance(way, Taken):
            return ("taken", list(self.flow.inputs[call]).index(value))
        if isinstance(way, Made):
            return ("made", self.places[call].get(value) or self._given(value, call))
        if isinstance(way, SizeOf):
            return ("size", self._value(way.tensor, call), way.dim, way.factor, way.offset)
        if isinstance(way, Computed):
            return ("number", str(value.target), self._arg(value.args, call))
        return way

    def _given(self, value: Node, call: Call) -> Any:
        """A number that a call within this one returns; or an input of the program."""
        for i, item in enumerate(call.items):
            if isinstance(item, Call) and value in self.flow.outputs[item]:
                return (i, self.place(value, item))
        return value.name
