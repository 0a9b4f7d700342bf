"""Integers and bools that differ because floats are compared to choose them.

Two scores that are equal up to rounding, or two rows that are NaN, may give other labels and say
nothing against the model. Such results are judged by what they were chosen from: the floats have to
agree, and the labels have to be right for the model's own floats, or to point at equal ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from graphport.onnx.judgement import Tolerance, judge
from graphport.onnx.lower import described
from graphport.onnx.probing import Probe
from graphport.ops.abstract import Abstract

aten = torch.ops.aten

# Operators that give places in their operand: the number of that result, and the dim by default.
_CHOOSE: dict[Any, tuple[int | None, int | None]] = {
    aten.argmax.default: (None, None),
    aten.argmin.default: (None, None),
    aten.argsort.default: (None, -1),
    aten.argsort.stable: (None, -1),
    aten.max.dim: (1, None),
    aten.min.dim: (1, None),
    aten.sort.default: (1, -1),
    aten.sort.stable: (1, -1),
    aten.topk.default: (1, -1),
    aten.median.dim: (1, -1),
    aten.kthvalue.default: (1, -1),
}


def excused(
    probe: Probe, output: Node, have: torch.Tensor, tolerance: Callable[[str], Tolerance]
) -> bool:
    """Whether other integers than eager's are right for floats that agree with eager's."""
    floats = _chosen_from(output)
    if not floats or any(n.name not in probe.values and n.op != "placeholder" for n in floats):
        return False
    names = [n.name for n in floats if n.op != "placeholder"]
    ours = probe.model(names) if names else {}
    eager = probe.eager([n.name for n in floats])
    if not all(judge(ours[n], eager[n], tolerance(n)).ok for n in names):
        return False
    again = probe.eager([output.name], ours)[output.name]
    if again.shape == have.shape and torch.equal(again, have):
        return True
    choice = _choice(output)
    if choice is None:
        return False
    source, dim = choice
    scores = ours.get(source.name, eager.get(source.name))
    if scores is None:
        return False
    mine, theirs = (_picked(scores, index, dim) for index in (have, again))
    return judge(mine, theirs, tolerance(source.name)).ok


def _chosen_from(output: Node) -> list[Node]:
    """The floats that integers depend on, through integers alone."""
    found: dict[Node, None] = {}
    waiting, seen = [output], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        val = described(node.meta.get("val"))
        if isinstance(val, Abstract) and val.dtype.is_floating_point:
            found[node] = None
        else:
            waiting.extend(node.all_input_nodes)
    return list(found)


def _choice(output: Node) -> tuple[Node, int | None] | None:
    """What an operator that gives places has looked at, and along which dim."""
    node: Any = output
    index = None
    if node.target is operator.getitem:
        node, index = node.args
    known = _CHOOSE.get(node.target)
    if known is None or known[0] != index:
        return None
    names = (a.name for a in node.target._schema.arguments)
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given["self"], given.get("dim", known[1])


def _picked(scores: torch.Tensor, index: torch.Tensor, dim: int | None) -> torch.Tensor:
    if dim is None:
        return scores.reshape(-1)[index.reshape(-1)]
    if index.ndim < scores.ndim:
        index = index.unsqueeze(dim)
    return torch.take_along_dim(scores, index, dim)
