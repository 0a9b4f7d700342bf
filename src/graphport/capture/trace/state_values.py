"""Values that follow from the program's state alone, where Python reads them.

What buffers and constants hold is known while a program is captured. Python may branch on it: the
program is then for that value, which it checks when it runs.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from graphport import source
from graphport.capture.trace.recorder import Recorder
from graphport.capture.trace.scalars import ConcreteRun, collect_ancestors
from graphport.capture.trace.state import State, StateEntry
from graphport.errors import CaptureWarning, DataDependentError
from graphport.program import InputKind
from graphport.source import Location


class StateValues:
    """The state of a program that is captured, and which of it Python has read."""

    def __init__(self, recorder: Recorder, state: State, *, warns: bool) -> None:
        self._state, self._warns = state, warns
        self.run = ConcreteRun(recorder.graph, self._given)
        self._read: dict[tuple[str, str], tuple[StateEntry, Location | None]] = {}
        """By name and line."""

    def _given(self) -> dict[Node, Any]:
        return {entry.node: entry.tensor for entry in self._state.entries}

    def is_constant(self, node: Node) -> bool:
        """Whether a node is computed from constants alone, which no state dict replaces."""
        constants = {e.node for e in self._state.entries if _is_constant(e)}
        inputs = {n for n in collect_ancestors(node) if n.op == "placeholder"} if constants else ()
        return bool(inputs) and constants.issuperset(inputs)

    def read(self, node: Node) -> Any:
        """The value of a node that depends on state alone; None of any other."""
        found = collect_ancestors(node)
        entries = [e for e in self._state.entries if e.node in found]
        if any(_is_written(e) for e in entries):  # another value at the next call
            return None
        value = self.run.find_value(node)
        if value is not None:
            where = source.locate_user_line()
            for entry in entries:
                self._note(entry, where)
        return value

    def _note(self, entry: StateEntry, where: Location | None) -> None:
        key = entry.names[0], str(where)
        if key in self._read:
            return
        self._read[key] = entry, where
        if self._warns and not _is_constant(entry):
            source.warn(
                f"Python reads {_name(entry)}: the program is for its value as it is now, which it "
                f"checks when it runs\n  at   {where}",
                CaptureWarning,
            )

    def find_changed(self) -> DataDependentError | None:
        """The error for state that Python has read, and that the program has written to since."""
        for entry, where in self._read.values():
            if _is_written(entry):
                return DataDependentError(
                    f"Could not guard on data-dependent expression: Python reads {_name(entry)}, "
                    "which the program writes to: at the next call it has another value",
                    where=where,
                    fix="torch.where(pred, a, b) chooses element by element",
                )
        return None


def _is_constant(entry: StateEntry) -> bool:
    return entry.kind is InputKind.CONSTANT_TENSOR


def _is_written(entry: StateEntry) -> bool:
    return entry.replaced is not None or (
        entry.value is not None and bool(entry.value.storage.mutated)
    )


def _name(entry: StateEntry) -> str:
    return f"{entry.kind.name.lower()} {entry.names[0]!r}"
