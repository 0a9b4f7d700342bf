"""`torch.no_grad()` and `detach()` inside of a program: what takes no part in differentiation.

The graph has no regions. A value that was computed without gradients from something that has them
is detached where the rest of the program reads it, so that differentiating the captured program
gives the gradients of the original. What the program itself detaches stays detached wherever a run
may have a gradient, whether or not the example asks for one.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Node

from graphport.capture.recorder import Recorder

aten = torch.ops.aten


def reaches(node: Node, state: Collection[Node], known: dict[Node, bool]) -> bool:
    """Whether a run can have a gradient at a node, of an input or of `state` that has one.

    `known` is what was found out about nodes before.
    """
    waiting = [node]
    while waiting:
        top = waiting[-1]
        val = top.meta.get("val")
        reads = [] if top.target is aten.detach.default else top.all_input_nodes
        if top in known:
            waiting.pop()
        elif not _is_differentiable(val) or top.op == "placeholder":
            known[top] = _is_differentiable(val) and (val.requires_grad or top not in state)
        elif any(known.get(n) for n in reads) or all(n in known for n in reads):
            known[top] = any(known.get(n) for n in reads)
        else:
            waiting.extend(n for n in reads if n not in known)
    return known[node]


def cut(recorder: Recorder, results: Iterable[Any]) -> dict[Node, Node]:
    """Detach what leaves a region without gradients. Returns replacements for results."""
    inside = {n: None for n in recorder.grad_modes if n.graph is recorder.graph}
    if not inside or not recorder.grad_mode:
        return {}
    tracked = _tracked(recorder, inside)
    returned = {r for r in results if isinstance(r, Node)}
    apart: dict[Node, Node] = {}
    for node in list(inside):
        val = node.meta["val"]
        # An autograd.Function runs without gradients too, but its results have them.
        if node not in tracked or not isinstance(val, torch.Tensor) or val.requires_grad:
            continue
        outside = [u for u in node.users if u not in inside and u.target is not aten.detach.default]
        if not outside and node not in returned:
            continue
        with recorder.graph.inserting_after(node):
            detached = recorder.graph.call_function(aten.detach.default, (node,))
        detached.meta = dict(node.meta)
        for user in outside:
            user.replace_input_with(node, detached)
        apart[node] = detached
    return apart


def _tracked(recorder: Recorder, inside: dict[Node, None]) -> set[Node]:
    """Nodes that a run of the graph would differentiate through."""
    tracked: set[Node] = set()
    for node in recorder.graph.nodes:
        val = node.meta.get("val")
        if node.op == "placeholder":
            if isinstance(val, torch.Tensor) and val.requires_grad:
                tracked.add(node)
        elif any(n in tracked for n in node.all_input_nodes):
            if node.target is not aten.detach.default and _is_differentiable(val):
                tracked.add(node)
                if node.target is operator.getitem and node.args[0] in inside:
                    inside[node] = None
    return tracked


def _is_differentiable(val: Any) -> bool:
    if isinstance(val, (list, tuple)):
        return any(map(_is_differentiable, val))
    return isinstance(val, torch.Tensor) and (val.is_floating_point() or val.is_complex())
