"""Nodes moved between devices while the critical path becomes shorter.

With every node a partition of its own there are no circles to avoid: only memory limits what is
where. Each step looks at the transfers on the critical path, and moves one end of one to the other
device, alone or with the part of the path that is with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from torch.fx import Node

from graphport.partition.jobs import Job
from graphport.partition.latency import node_seconds
from graphport.partition.pieces import SOURCES, bytes_of, output_bytes, runs_after

Homes = dict[Node, int]
"""The device of each node."""

MOST_STEPS = 200


def moved(job: Job, homes: Mapping[Node, int]) -> Homes:
    """The best places that single steps lead to."""
    memory = {d.logical_id: d.available_mem_bytes for d in job.devices}
    best, path = dict(homes), _critical(job, homes)
    least = path[0]
    for _ in range(MOST_STEPS):
        found = None
        for nodes, there in _moves(path[1], best):
            trial = {**best, **dict.fromkeys(nodes, there)}
            # What stays behind takes what was moved from elsewhere, and may need more than before.
            if any(_bytes_on(trial, d) > memory[d] for d in (there, best[nodes[0]])):
                continue
            new = _critical(job, trial)
            if new[0] < least:
                found, least, path = trial, new[0], new
        if found is None:
            break
        best = found
    return best


def _critical(job: Job, homes: Mapping[Node, int]) -> tuple[float, list[Node]]:
    """How long the critical path is, and its nodes."""
    until: dict[Node, float] = {}
    came: dict[Node, Node | None] = {}
    for node in job.ops:
        start, last = 0.0, None
        for value in (*node.all_input_nodes, *runs_after(node)):
            if value not in until:
                continue
            ready = until[value]
            if homes[value] != homes[node] and node in value.users:
                ready += output_bytes(value) / job.rate
            if ready > start:
                start, last = ready, value
        until[node] = start + node_seconds(job.latencies[node])
        came[node] = last
    at: Node | None = max(job.ops, key=until.__getitem__)
    length, path = until[at], []
    while at is not None:
        path.append(at)
        at = came[at]
    return length, path[::-1]


def _moves(path: list[Node], homes: Mapping[Node, int]) -> Iterator[tuple[list[Node], int]]:
    """What could go where: for each transfer on a path, either end, and all that is with it."""
    runs: list[list[Node]] = []
    for node in path:
        if not runs or homes[runs[-1][-1]] != homes[node]:
            runs.append([])
        runs[-1].append(node)
    for before, after in pairwise(runs):
        here, there = homes[before[0]], homes[after[0]]
        yield before[-1:], there
        yield before, there
        yield after[:1], here
        yield after, here


def _bytes_on(homes: Mapping[Node, int], device: int) -> int:
    nodes = {node for node, home in homes.items() if home == device}
    nodes |= {v for node in nodes for v in node.all_input_nodes if v.op in SOURCES}
    return bytes_of(nodes)
