"""Stages as several partitions each, so that no node waits for more than it has to.

A partition begins when all that it takes is there, and its results are there when all of it is
done. Partitions on one device hand each other values for nothing, so a stage that is cut further
never makes the critical path longer. The finest cut, every node alone, is the shortest; nodes are
then put together again as long as that stays so.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from graphport.partition.jobs import Job
from graphport.partition.linking import (
    in_order,
    owners,
    reorganize_partitions,
    set_parents_and_children,
)
from graphport.partition.moving import moved
from graphport.partition.pieces import Partition, runs_after

MOST = 400
"""Nodes up to which they are put together one by one: that takes the square of their number."""

SAME = 1 + 1e-12
"""Sums of times in another order differ by less."""


def refined(job: Job, stages: Sequence[Partition]) -> list[Partition]:
    """Stages cut further, and up to MOST nodes also moved, with a critical path as short as can be.

    `stages` run one after the other, none needs one behind it.
    """
    best = min((list(stages), _grouped(stages)), key=lambda parts: _latency(job, parts))
    if len(job.ops) > MOST:
        return best
    homes = moved(job, {n: p.logical_device_ids[0] for p in stages for n in p.ops()})
    alone = [_placed([node], homes[node]) for node in job.ops]
    least = _latency(job, alone) * SAME
    return best if _latency(job, best) <= least else _joined(job, alone, least)


def _latency(job: Job, partitions: Sequence[Partition]) -> float:
    reorganize_partitions(partitions)
    return job.latency(partitions)


def _placed(nodes: list[Node], device: int) -> Partition:
    partition = Partition(0, nodes)
    partition.logical_device_ids = [device]
    return partition


def _grouped(stages: Sequence[Partition]) -> list[Partition]:
    """Nodes of a stage together that need the same stages, and that the same stages need.

    Along an edge what is needed grows, and what needs it shrinks: groups do not wait for each other
    in circles.
    """
    of = {node: i for i, stage in enumerate(stages) for node in stage.ops()}
    ops = [node for stage in stages for node in stage.ops()]
    needs: dict[Node, int] = {}
    needed: dict[Node, int] = dict.fromkeys(ops, 0)
    for node in ops:
        needs[node] = 0
        for before in (*node.all_input_nodes, *runs_after(node)):
            if before in of:
                needs[node] |= needs[before] | 1 << of[before]
    for node in reversed(ops):
        for before in (*node.all_input_nodes, *runs_after(node)):
            if before in of:
                needed[before] |= needed[node] | 1 << of[node]
    groups: dict[tuple[int, int, int], list[Node]] = {}
    for node in ops:
        own = ~(1 << of[node])
        groups.setdefault((of[node], needs[node] & own, needed[node] & own), []).append(node)
    return [
        _placed(nodes, stages[stage].logical_device_ids[0])
        for (stage, _, _), nodes in groups.items()
    ]


def _joined(job: Job, partitions: list[Partition], least: float) -> list[Partition]:
    """Partitions put together with those whose values they take, as long as it costs nothing."""
    for node in job.ops:
        for value in node.all_input_nodes:
            of = owners(partitions)
            a, b = of.get(value), of[node]
            if a is None or a is b or a.logical_device_ids != b.logical_device_ids:
                continue
            both = _placed([*a.ops(), *b.ops()], a.logical_device_ids[0])
            trial = [both if p is b else p for p in partitions if p is not a]
            set_parents_and_children(trial)
            if in_order(trial) is not None and job.latency(trial) <= least:
                partitions = trial
    return partitions
