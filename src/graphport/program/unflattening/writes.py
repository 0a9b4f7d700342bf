"""Where a program writes to its buffers: in the module that has them, at the end of its call.

The graph says what a buffer holds in the end. A module that is called several times reads what its
last call left: such values in between are written to the buffer too, and read from it, so that all
calls are calls of one module. That is sound for any value that stands in for the buffer's memory
between two writes, as long as nobody reads after a write what was there before.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch.fx import Node

from graphport.program.signature import OutputKind
from graphport.program.unflattening.calls import Call, is_size
from graphport.program.unflattening.state import State

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

_KINDS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class Writes:
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
            if spec.kind in _KINDS and value in home and spec.target is not None:
                self._place(state.inputs[spec.target], value, root)

    def state_read(self, value: Node, call: Call) -> Node | None:
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
        one, other = same.meta["val"], value.meta["val"]
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
        """The input for a state, and what shares its memory."""
        found, waiting = {state: None}, [state]
        while waiting:
            for user in waiting.pop().users:
                if user not in found and shared(user) in found:
                    found[user] = None
                    waiting.append(user)
        return found

    def _is_within(self, node: Node, call: Call) -> bool:
        return node in self.home and call.encloses(self.home[node])


def shared(node: Node) -> Node | None:
    """The node whose memory a node's result may share."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return node.args[0] if is_view or node.target is operator.getitem else None


def shows(node: Node, memory: set[Node]) -> bool:
    """Whether a value is, or is a view of, one of these."""
    seen: Node | None = node
    while seen is not None:
        if seen in memory:
            return True
        seen = shared(seen)
    return False
