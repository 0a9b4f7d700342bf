"""Chooses the cuts between stages: as the user says, or as the partitioner finds best."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from graphport.arguments import FUNCTION, NAMES, integer
from graphport.compat.operators import aten
from graphport.errors import StageError
from graphport.fx.manipulation import size_bytes
from graphport.partition.config import Device, NodeLatency, PartitionerConfig, PartitionMode
from graphport.partition.costs import make_problem
from graphport.partition.optimal import optimal
from graphport.partition.partition import Partition, PartitionResult
from graphport.partition.place import mark_effect_dependencies, sort_topologically
from graphport.program import ExportedProgram
from graphport.symbolic import Scope
from graphport.symbolic.bridge import to_expression
from graphport.tensors.abstract import get_shape, get_val

Stages = int | Sequence[str] | Callable[[Node], int] | PartitionResult


def assign_stages(program: ExportedProgram, stages: Stages) -> tuple[dict[Node, int], int]:
    """The stage of each call of the program's graph, and how many stages there are.

    `stages` is their number, or the nodes or modules with which all but the first begin, or a
    function from a node to its stage, or what a partitioner has found.
    """
    check_stages(program, stages)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    if isinstance(stages, PartitionResult):
        return _assign_by_partitions(calls, stages.partitions), len(stages.partitions)
    if isinstance(stages, int):
        return _balance_stages(program, calls, stages), stages
    if callable(stages):
        return _assign_by_function(calls, stages)
    return _assign_by_names(calls, list(stages))


def check_stages(program: object, stages: object) -> None:
    """Check the program and `stages` without looking at the graph."""
    _require_functional(program)
    if not (isinstance(stages, PartitionResult) or _STAGES.accepts(stages)):
        raise StageError(
            f"stages is {stages!r}: neither a number, nor names, nor a function",
            fix='stages=2, stages=["layers.6"], or stages=lambda node: 0 or 1',
        )


_STAGES = integer() | NAMES | FUNCTION


def _require_functional(program: object) -> None:
    if not isinstance(program, ExportedProgram):
        raise StageError(
            f"a pipeline runs an ExportedProgram, got {type(program).__name__}",
            fix="gp.export(model, args, dynamic_shapes=...)",
        )
    if program.dialect == "TRAINING":
        raise StageError(
            "the program changes its state in place (training=True): it cannot be cut",
            fix="program.run_decompositions({})",
        )


# As the user says


def _assign_by_function(
    calls: Sequence[Node], choose: Callable[[Node], int]
) -> tuple[dict[Node, int], int]:
    places = {}
    for node in calls:
        stage = choose(node)
        if type(stage) is not int or stage < 0:
            raise StageError(f"the stage of {node.name} is {stage!r}: stages are 0, 1, ...")
        places[node] = stage
    for node in calls:
        for source in node.all_input_nodes:
            if places.get(source, 0) > places[node]:
                raise StageError(
                    f"{node.name} is in stage {places[node]}, but takes {source.name} of stage "
                    f"{places[source]}: values only go to later stages",
                    fix=f"put {node.name} in stage {places[source]} or later",
                )
    return places, max(places.values(), default=0) + 1


def _assign_by_names(calls: Sequence[Node], names: list[str]) -> tuple[dict[Node, int], int]:
    starts = [_find_start(calls, name) for name in names]
    if starts and starts[0] == 0:
        starts, names = starts[1:], names[1:]
    for a, b, name in zip([0, *starts], starts, names, strict=False):
        if b <= a:
            raise StageError(f"the stage that begins with {name!r} comes before the one before it")
    places = {node: bisect_right(starts, i) for i, node in enumerate(calls)}
    return places, len(starts) + 1


def _find_start(calls: Sequence[Node], name: str) -> int:
    """Where a node of this name is, or the first one of a module."""
    for i, node in enumerate(calls):
        if node.name == name:
            return i
    for i, node in enumerate(calls):
        stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        if any(path == name or path.startswith(f"{name}.") for path, _ in stack.values()):
            return i
    shown = ", ".join(n.name for n in calls[:4])
    raise StageError(
        f"no node and no module of the program is called {name!r}",
        fix=f"a path such as 'layers.6', or a node: {shown}, ...",
    )


# By the partitioner


def _balance_stages(program: ExportedProgram, calls: Sequence[Node], count: int) -> dict[Node, int]:
    """The stages whose slowest is estimated to be fastest."""
    if count < 1:
        raise StageError(f"a program cannot be cut into {count} stages", fix="stages=2")
    if count > len(calls):
        raise StageError(
            f"{count} stages, but the program has {len(calls)} operators",
            fix=f"stages={len(calls)} or fewer",
        )
    if count == 1:
        return dict.fromkeys(calls, 0)
    module = program.module()
    times = {}
    for node in module.graph.nodes:
        elements, cost = _count_elements(node, program.scope), _estimate_cost(node, program.scope)
        node.size_bytes = size_bytes(
            round(elements * _BYTES_PER_ELEMENT), round(elements * _BYTES_PER_ELEMENT)
        )
        times[node] = NodeLatency(0.0, cost / _MULTIPLICATIONS_PER_SECOND)
    mark_effect_dependencies(module)
    devices = [Device(f"stage {k}", _UNLIMITED_MEMORY, k) for k in range(count)]
    config = PartitionerConfig(devices, PartitionMode.optimal, _BYTES_PER_SECOND, times)
    return _assign_by_partitions(calls, optimal(make_problem(module, config), {}).partitions)


def _assign_by_partitions(
    calls: Sequence[Node], partitions: Sequence[Partition]
) -> dict[Node, int]:
    """Partitions as stages, in an order in which they can run."""
    stage = {p: k for k, p in enumerate(sort_topologically(partitions) or partitions)}
    # The partitioner works on a copy of the graph, whose nodes have the same names.
    of = {node.name: stage[p] for p in partitions for node in p.ops()}
    for node in calls:
        if node.name not in of:
            raise StageError(f"no partition has {node.name}: they are of another program")
    return {node: of[node.name] for node in calls}


_MULTIPLICATIONS_PER_SECOND = 3e10
"""Multiplications per second, roughly, of a core here."""
_BYTES_PER_SECOND = 2e10
"""Bytes per second between stages: several times what there are. Whoever asks for a number of
stages is to get them, also where one would be faster, so transfers decide between close cuts only.
"""
_UNLIMITED_MEMORY = 1 << 60
_BYTES_PER_ELEMENT = 4


# By operator, the sizes of an argument that every element of the result takes a sum over.
_REDUCED_SIZES: dict[Any, Callable[[Sequence[Any]], Sequence[Any]]] = {
    aten.linear.default: lambda a: _shape_or_empty(a[1])[-1:],
    aten.addmm.default: lambda a: _shape_or_empty(a[1])[-1:],
    **dict.fromkeys(
        (aten.mm.default, aten.bmm.default, aten.matmul.default),
        lambda a: _shape_or_empty(a[0])[-1:],
    ),
    **dict.fromkeys(
        (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default),
        lambda a: _shape_or_empty(a[1])[1:],
    ),
    # Scores and their mix: twice the length.
    aten.scaled_dot_product_attention.default: lambda a: (2, *_shape_or_empty(a[1])[-2:-1]),
}
_ELEMENT_COST = 30
"""Multiplications that take as long as reading and writing an element does, on a core here."""


def _shape_or_empty(node: object) -> tuple[object, ...]:
    return (get_shape(node) if isinstance(node, Node) else None) or ()


def _estimate_cost(node: Node, scope: Scope) -> float:
    """Multiplications, and what takes as long; a data-dependent size counts as 1."""
    reduced = _REDUCED_SIZES.get(node.target)
    each = _multiply_sizes(reduced(node.args), scope) if reduced else 0.0
    return _count_elements(node, scope) * (_ELEMENT_COST + each) + 1


def _count_elements(node: Node, scope: Scope) -> float:
    val = get_val(node)
    parts = val if isinstance(val, (tuple, list)) else (val,)
    return sum(_multiply_sizes(p.shape, scope) for p in parts if isinstance(p, torch.Tensor))


def _multiply_sizes(sizes: Sequence[object], scope: Scope) -> float:
    return float(math.prod(scope.hint(to_expression(s)) or 1 for s in sizes))
