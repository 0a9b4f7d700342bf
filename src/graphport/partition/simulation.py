"""A pipeline without the devices: when each would do what, from the costs of nodes and transfers.

A device runs one partition for one micro-batch at a time, nodes one after the other; before that it
receives what comes from other devices. Inputs are where they are needed, at the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from graphport.arguments import (
    DICT,
    GRAPH_MODULE,
    NONE,
    POSITIVE,
    PROGRAM,
    integer,
    number,
    several,
    takes,
)
from graphport.errors import PartitionError
from graphport.fx.manipulation import get_size_of_all_nodes
from graphport.partition.config import Device, NodeLatency, PartitionerConfig, PartitionMode, check
from graphport.partition.jobs import make_job
from graphport.partition.latency import (
    get_bottleneck_of_partitioned_graph,
    latency_of,
    node_seconds,
    seconds,
)
from graphport.partition.linking import mark_order, owners
from graphport.partition.optimal import optimal
from graphport.partition.pieces import Partition, output_bytes
from graphport.program import ExportedProgram

_ENOUGH = 1 << 60


class Task(NamedTuple):
    """A partition's work for one micro-batch: it receives until `ready`, and computes from then."""

    partition: Partition
    device: int
    micro_batch: int
    start: float
    ready: float
    end: float


def schedule(
    partitions: Sequence[Partition],
    node_to_latency_mapping: Mapping[Node, NodeLatency],
    transfer_rate_bytes_per_sec: float,
    micro_batches: int,
) -> list[Task]:
    """When each device does what; earlier micro-batches first.

    The partitions are linked and placed, as those of a result are.
    """
    of = owners(partitions)
    work = {
        p: sum(node_seconds(latency_of(n, node_to_latency_mapping)) for n in p.ops())
        for p in partitions
    }

    def device(partition: Partition, batch: int) -> int:
        ids = partition.logical_device_ids
        return ids[batch % len(ids)]

    missing = {(p, b): len(p.parents) for p in partitions for b in range(micro_batches)}
    place = {p: i for i, p in enumerate(partitions)}
    free: dict[int, float] = {}
    present: set[tuple[int, int, Node]] = set()
    done: dict[tuple[Partition, int], float] = {}
    waiting = [(0.0, b, place[p]) for (p, b), count in missing.items() if not count]
    heapq.heapify(waiting)
    tasks = []
    while waiting:
        begin, batch, index = heapq.heappop(waiting)
        partition = partitions[index]
        where = device(partition, batch)
        start = max(begin, free.get(where, 0.0))
        if start > begin:
            heapq.heappush(waiting, (start, batch, index))
            continue
        received = [v for v in partition.taken if (where, batch, v) not in present]
        size = sum(output_bytes(v) for v in received if device(of[v], batch) != where)
        present.update((where, batch, v) for v in received)
        ready = start + seconds(size, transfer_rate_bytes_per_sec)
        end = ready + work[partition]
        tasks.append(Task(partition, where, batch, start, ready, end))
        free[where] = done[partition, batch] = end
        for child in partition.children:
            missing[child, batch] -= 1
            if not missing[child, batch]:
                begin = max(done[parent, batch] for parent in child.parents)
                heapq.heappush(waiting, (begin, batch, place[child]))
    return tasks


class Scaling(NamedTuple):
    """What a number of devices comes to.

    `throughput` is in micro-batches per second while the pipeline is full, `speedup` over one
    device, and `efficiency` the speedup per device. `bound`: no cut has a higher speedup.
    `latency_s` is how long the first micro-batch takes.
    """

    devices: int
    stages: int
    bottleneck_s: float
    latency_s: float
    throughput: float
    speedup: float
    efficiency: float
    bound: float


@takes(
    fx_module=GRAPH_MODULE | PROGRAM, node_to_latency_mapping=DICT,
    transfer_rate_bytes_per_sec=POSITIVE, devices=several(integer(1)),
    memory_bytes=number(0) | NONE,
)  # fmt: skip
def simulate(
    fx_module: GraphModule | ExportedProgram,
    node_to_latency_mapping: Mapping[Any, NodeLatency],
    transfer_rate_bytes_per_sec: float,
    devices: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    memory_bytes: int | None = None,
) -> list[Scaling]:
    """How throughput grows with the number of devices, each cut by `PartitionMode.optimal`.

    Sizes have to be known, as for `Partitioner.partition_graph`. `memory_bytes` is what each device
    has, by default enough for everything; numbers of devices that are too few for it are left out.
    """
    gm = fx_module.module() if isinstance(fx_module, ExportedProgram) else fx_module
    get_size_of_all_nodes(gm)
    mark_order(gm)
    memory = _ENOUGH if memory_bytes is None else memory_bytes
    found = []
    for count in devices:
        config = PartitionerConfig(
            [Device(f"device {i}", memory, i) for i in range(count)],
            PartitionMode.optimal,
            transfer_rate_bytes_per_sec,
            node_to_latency_mapping,
        )
        check(config)
        job = make_job(gm, config)
        alone = sum(node_seconds(latency_of(node, job.latencies)) for node in job.ops)
        try:
            plan = optimal(job, {})
        except PartitionError:
            continue
        parts = plan.partitions
        bottleneck = get_bottleneck_of_partitioned_graph(parts, job.latencies, job.rate)
        latency = max(t.end for t in schedule(parts, job.latencies, job.rate, 1))
        speedup = alone / bottleneck if bottleneck else float(count)
        bound = alone / plan.bound if plan.bound else float(count)
        throughput = 1 / bottleneck if bottleneck else float("inf")
        found.append(
            Scaling(
                count, len(parts), bottleneck, latency, throughput, speedup, speedup / count, bound
            )
        )
    return found
