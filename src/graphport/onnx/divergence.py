"""Where a model and eager part: the first node whose operands agree and whose result does not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from graphport.onnx.judgement import Judgement
from graphport.onnx.probing import Probe, ancestors
from graphport.source import of_trace

_AT_ONCE = 8
"""Values to look at in one run: more of them change what ONNX Runtime fuses."""

Judge = Callable[[str, Any, Any], Judgement]
"""(name of a node, the model's value, eager's value)"""


@dataclass(frozen=True)
class Divergence:
    """A node of the program, where it comes from, and how far its values are apart."""

    node: Node
    module: str
    source: str
    judgement: Judgement

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        lines = [f"{self.node.name} ({self.node.target}){where}"]
        if self.judgement.note:
            lines[0] += f": {self.judgement.note}"
        if self.source:
            lines.append(f"  at {self.source}")
        return "\n".join(lines)


def first_divergence(probe: Probe, output: Node, judge: Judge) -> Divergence:
    """Search backwards from a result that differs.

    Between values that agree and one that does not, the interval is narrowed by looking at a few
    values at a time. Branches make that a guess: if an operand of the node that was found differs
    too, the search goes on from there.
    """
    search = _Search(probe, judge)
    suspect = output
    while True:
        suspect = search.narrowed(suspect)
        worse = search.first_bad(search.operands(suspect))
        if worse is None:
            return _described(suspect, search.known.get(suspect.name))
        suspect = worse


class _Search:
    def __init__(self, probe: Probe, judge: Judge) -> None:
        self.probe = probe
        self.judge = judge
        self.known: dict[str, Judgement] = {}

    def narrowed(self, bad: Node) -> Node:
        """A node that differs, before which the last that was looked at agrees."""
        before = ancestors(bad)
        order = [n for n in self.probe.graph.nodes if n in before and n.name in self.probe.values]
        if bad not in order:
            order.append(bad)
        good, worst = -1, len(order) - 1
        while worst - good > 1:
            step = max(1, -(-(worst - good - 1) // _AT_ONCE))
            places = list(range(good + step, worst, step)) or [good + 1]
            self.look([order[i] for i in places])
            wrong = [i for i in places if not self.known[order[i].name].ok]
            good = max((i for i in places if not wrong or i < wrong[0]), default=good)
            worst = wrong[0] if wrong else worst
        return order[worst]

    def operands(self, node: Node) -> list[Node]:
        """The nearest nodes before one that are values of the model."""
        found: dict[Node, None] = {}
        waiting, seen = list(node.all_input_nodes), set()
        while waiting:
            n = waiting.pop()
            if n in seen:
                continue
            seen.add(n)
            if n.name in self.probe.values:
                found[n] = None
            else:
                waiting.extend(n.all_input_nodes)
        return list(found)

    def first_bad(self, nodes: list[Node]) -> Node | None:
        self.look(nodes)
        return next((n for n in nodes if not self.known[n.name].ok), None)

    def look(self, nodes: list[Node]) -> None:
        names = [n.name for n in nodes if n.name not in self.known]
        if not names:
            return
        have, want = self.probe.model(names), self.probe.eager(names)
        for name in names:
            self.known[name] = self.judge(name, have[name], want[name])


def _described(node: Node, found: Judgement | None) -> Divergence:
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]  # of several results: the operator that has them
    stack = node.meta.get("nn_module_stack")
    module = str(list(stack.values())[-1][0]) if stack else ""
    where = of_trace(node.meta.get("stack_trace"))
    return Divergence(node, module, "" if where is None else str(where), found or Judgement(False))
