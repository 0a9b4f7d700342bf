"""`cost_aware`: every node a partition, then combined two by two while the latency does not grow.

Two partitions may become one if their levels are at most one apart or one takes values from the
other, no circle arises, and all partitions still find devices. In every round the pair with the
smallest latency is taken; of equal ones the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from graphport.partition.jobs import Job, place
from graphport.partition.latency import (
    PartitionLatency,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
)
from graphport.partition.linking import (
    combined,
    reaches_itself,
    reorganize_partitions,
    set_levels,
)
from graphport.partition.pieces import Partition, bytes_of
from graphport.partition.placing import get_device_to_partitions_mapping, reset_partition_device


def cost_aware(job: Job) -> list[Partition]:
    partitions = [Partition(i, [node]) for i, node in enumerate(job.ops)]
    reorganize_partitions(partitions)
    known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    while len(partitions) > 1:
        set_levels(partitions)
        cost = get_latency_of_partitioned_graph(partitions, known, job.rate)
        best = None
        near = [
            (a, b)
            for a, b in combinations(partitions, 2)
            if abs(a.bfs_level - b.bfs_level) <= 1 or a in b.parents or b in a.parents
        ]
        for a, b in near:
            new = _latency_with(job, a, b, partitions, known)
            if new <= cost:
                best, cost = (a, b), new
        reset_partition_device(partitions)
        if best is None:
            break
        partitions = combined(*best, partitions)
        known[partitions[-1]] = get_latency_of_one_partition(partitions[-1], job.latencies)
        get_device_to_partitions_mapping(partitions, job.devices)
    reset_partition_device(partitions)
    place(job, partitions)
    return partitions


def _latency_with(
    job: Job,
    a: Partition,
    b: Partition,
    partitions: Sequence[Partition],
    known: dict[Partition, PartitionLatency],
) -> float:
    """The latency with two partitions as one; infinite if they cannot be."""
    if bytes_of(a.nodes | b.nodes) > job.largest.available_mem_bytes:
        return math.inf
    trial = combined(a, b, partitions)
    both = trial[-1]
    if reaches_itself(both):
        return math.inf
    reset_partition_device(trial)
    if not get_device_to_partitions_mapping(trial, job.devices):
        return math.inf
    latencies = {**known, both: get_latency_of_one_partition(both, job.latencies)}
    return get_latency_of_partitioned_graph(trial, latencies, job.rate)
