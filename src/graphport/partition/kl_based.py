"""`kl_based`: the partitions of `size_based`, improved by exchanges after Kernighan and Lin.

Every node in turn is exchanged with the node of another partition, or moved there, that makes the
latency smallest, if that is smaller than it was; no circle may arise, and all partitions have to
find devices. A partition that loses its last node is gone.
"""

from __future__ import annotations

import math

from torch.fx import Node

from graphport.partition.jobs import Job, place
from graphport.partition.latency import (
    PartitionLatency,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
)
from graphport.partition.linking import in_order, owners, reorganize_partitions
from graphport.partition.pieces import Partition
from graphport.partition.placing import get_device_to_partitions_mapping, reset_partition_device
from graphport.partition.size_based import size_based

Known = dict[Partition, PartitionLatency]


def kl_based(job: Job) -> list[Partition]:
    partitions = start = size_based(job)
    homes = [p.logical_device_ids for p in start]
    known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    cost = get_latency_of_partitioned_graph(partitions, known, job.rate)
    for node in job.ops:
        home = owners(partitions)[node]
        best = partitions
        for there in partitions:
            for other in (*there.ops(), None) if there is not home else ():
                trial = _exchanged(partitions, home, node, there, other)
                new = _latency(job, trial, known)
                if new < cost:
                    best, cost = trial, new
        partitions = best
        known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    reset_partition_device(partitions)
    if partitions is start:
        for partition, ids in zip(start, homes, strict=True):
            partition.logical_device_ids = ids
    place(job, partitions)
    return partitions


def _exchanged(
    partitions: list[Partition], home: Partition, node: Node, there: Partition, other: Node | None
) -> list[Partition]:
    """The partitions with one node in another place, and perhaps the other in its own."""
    here, away = Partition(home.partition_id), Partition(there.partition_id)
    here.nodes, away.nodes = set(home.nodes), set(there.nodes)
    here.remove_node(node)
    away.add_node(node)
    if other is not None:
        away.remove_node(other)
        here.add_node(other)
    new = {home: here, there: away}
    return [p for old in partitions if (p := new.get(old, old)).nodes]


def _latency(job: Job, trial: list[Partition], known: Known) -> float:
    """The latency of partitions; infinite if they cannot be."""
    if any(p.used_mem_bytes > job.largest.available_mem_bytes for p in trial):
        return math.inf
    reorganize_partitions(trial)
    if in_order(trial) is None:
        return math.inf
    reset_partition_device(trial)
    if not get_device_to_partitions_mapping(trial, job.devices):
        return math.inf
    latencies = {p: known.get(p) or get_latency_of_one_partition(p, job.latencies) for p in trial}
    return get_latency_of_partitioned_graph(trial, latencies, job.rate)
