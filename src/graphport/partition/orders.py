"""Orders in which a graph may run, and what spans of one hold, compute and receive."""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.fx import Node

from graphport.partition.jobs import Job
from graphport.partition.latency import node_seconds
from graphport.partition.pieces import SOURCES, is_op, output_bytes, runs_after, total_bytes
from graphport.partition.spans import Edge, Spans

RESOLUTION = 2.0**52
"""Times are whole numbers of units, of which all together are about this many."""


@dataclass(eq=False)
class Order:
    """A job's nodes in one order; times are in `unit` seconds."""

    ops: list[Node]
    memory: Spans
    time: Spans
    crossing: Any
    """Per position the time by which transferring what is made before it and used from it on delays
    the end: what others wait for anyway does not."""
    may_cut: Any
    """Whether no tuple crosses a position: stages hand each other tensors."""
    unit: float

    @property
    def is_chain(self) -> bool:
        """Whether every node takes values from the one before it, and from no other."""
        return all(
            [v for v in node.all_input_nodes if is_op(v)] == [before]
            for before, node in zip(self.ops, self.ops[1:], strict=False)
        )


def weigh(job: Job, ops: list[Node]) -> Order:
    n = len(ops)
    at = {node: i for i, node in enumerate(ops)}
    costs = [node_seconds(job.latencies[node]) for node in ops]
    sends = {node: output_bytes(node) / job.rate for node in ops}
    # Each value is received at most once per node that uses it.
    slack = slacks(job)
    most = sum(costs) + sum(sends[node] * len(node.users) for node in ops)
    unit = 2.0 ** math.ceil(math.log2(most / RESOLUTION)) if most > 0 else 1.0
    held: list[Edge] = []
    received: list[Edge] = []
    crossing: Any = np.zeros(n + 1, dtype=np.int64)
    tuples: Any = np.zeros(n + 1, dtype=np.int64)
    sources: dict[Any, set[int]] = {}
    size: dict[Any, int] = {}
    for node in ops:
        uses = sorted(at[user] for user in node.users if user in at)
        i, send = at[node], round(sends[node] / unit)
        held += [(i, use, output_bytes(node)) for use in uses]
        received += [(a, b, send) for a, b in zip([i, *uses], uses, strict=False)]
        if uses:
            delay = round(max(0.0, sends[node] - slack[node]) / unit)
            crossing[i + 1] += delay
            crossing[uses[-1] + 1] -= delay
            if any(user.target is operator.getitem for user in node.users):
                tuples[i + 1] += 1
                tuples[uses[-1] + 1] -= 1
        weights = total_bytes(node) - output_bytes(node)
        if weights:
            # Those of a module that is called several times are there once.
            key: Any = ("weights", node.target if node.op == "call_module" else node)
            sources.setdefault(key, set()).add(i)
            size[key] = weights
        for source in node.all_input_nodes:
            if source.op in SOURCES:
                key = source.target if source.op == "get_attr" else source
                sources.setdefault(key, set()).add(i)
                size[key] = total_bytes(source)
    for key, places in sources.items():
        uses = sorted(places)
        held += [(a, b, size[key]) for a, b in zip([-1, *uses], uses, strict=False)]
    return Order(
        ops=ops,
        memory=Spans([output_bytes(node) for node in ops], held),
        time=Spans([round(cost / unit) for cost in costs], received),
        crossing=np.cumsum(crossing),
        may_cut=np.cumsum(tuples) == 0,
        unit=unit,
    )


def slacks(job: Job) -> dict[Node, float]:
    """How much later each node could end without delaying the last one, without transfers."""
    cost = {node: node_seconds(job.latencies[node]) for node in job.ops}
    head: dict[Node, float] = {}
    tail: dict[Node, float] = {}
    for node in job.ops:
        head[node] = max((head[v] for v in node.all_input_nodes if v in head), default=0.0)
        head[node] += cost[node]
    for node in reversed(job.ops):
        tail[node] = max((tail[u] + cost[u] for u in node.users if u in tail), default=0.0)
    path = max(head.values())
    return {node: path - head[node] - tail[node] for node in job.ops}


def orders(job: Job) -> list[list[Node]]:
    """Orders that differ: the graph's own, depth first, with the fewest bytes between nodes, and
    with those last that the end waits for."""
    position = {node: i for i, node in enumerate(job.ops)}
    newest: dict[Node, int] = {}

    def depth_first(node: Node) -> float:
        """Behind what has just run: a branch is finished before the next one begins."""
        newest[node] = len(newest)
        return -max((newest.get(v, 0) for v in node.all_input_nodes), default=0)

    waiting = {node: sum(user in position for user in node.users) for node in job.ops}

    def fewest_bytes(node: Node) -> float:
        freed = sum(output_bytes(v) for v in node.all_input_nodes if waiting.get(v) == 1)
        return output_bytes(node) - freed

    slack = slacks(job)
    ways = (depth_first, fewest_bytes, lambda node: -slack[node])
    found = [job.ops, *(_sorted(job.ops, way) for way in ways)]
    return [list(ops) for ops in dict.fromkeys(map(tuple, found))]


def _sorted(ops: Sequence[Node], priority: Callable[[Node], float]) -> list[Node]:
    """The nodes with those first that are ready and have the smallest priority when they are."""
    position = {node: i for i, node in enumerate(ops)}
    behind: dict[Node, list[Node]] = {node: [] for node in ops}
    missing = dict.fromkeys(ops, 0)
    for node in ops:
        for before in {*node.all_input_nodes, *runs_after(node)}:
            if before in behind:
                behind[before].append(node)
                missing[node] += 1
    ready = [(priority(node), position[node]) for node in ops if not missing[node]]
    heapq.heapify(ready)
    found = []
    while ready:
        node = ops[heapq.heappop(ready)[1]]
        found.append(node)
        for after in behind[node]:
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(ready, (priority(after), position[after]))
    return found
