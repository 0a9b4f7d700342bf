"""What partitions cost: their own time, the critical path through them, the busiest device.

A node takes the longer of its memory and its computing time. A partition takes its critical path:
nodes that do not wait for each other run side by side. A transfer takes the bytes of the distinct
values that a partition takes from another one, over the rate; nothing if both are on the same
devices. Inputs and constants are in every partition that reads them, and are not transferred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.fx import Node

from graphport.arguments import DICT, number, takes
from graphport.errors import PartitionError
from graphport.partition.config import NodeLatency
from graphport.partition.linking import in_order, owners
from graphport.partition.pieces import PARTITION, PARTITIONS, Partition, output_bytes


class PartitionLatency(NamedTuple):
    """The critical path of a partition: its memory and computing time, and what it takes."""

    mem_latency_sec: float
    computer_latency_sec: float
    overall_latency_sec: float


def node_seconds(latency: NodeLatency) -> float:
    return max(latency.mem_latency_sec, latency.computer_latency_sec)


def latency_of(node: Node, latencies: Mapping[Node, NodeLatency]) -> NodeLatency:
    found = latencies.get(node)
    if not isinstance(found, NodeLatency):
        raise PartitionError(
            f"node {node.name!r} has no latency in node_to_latency_mapping",
            fix="node_to_latency_mapping=gp.partition.latencies(gp.partition.profile(gm, *args))",
        )
    return found


def _latency_of(
    partition: Partition, latencies: Mapping[Partition, PartitionLatency]
) -> PartitionLatency:
    found = latencies.get(partition)
    if not isinstance(found, PartitionLatency):
        raise PartitionError(
            f"partition {partition.partition_id} has no latency in partition_to_latency_mapping",
            fix="gp.partition.get_partition_to_latency_mapping(partitions, latencies)",
        )
    return found


@takes(partition=PARTITION, node_to_latency_mapping=DICT)
def get_latency_of_one_partition(
    partition: Partition, node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    """The critical path inside a partition."""
    until: dict[Node, PartitionLatency] = {}
    longest = PartitionLatency(0.0, 0.0, 0.0)
    for node in partition.ops():
        latency = latency_of(node, node_to_latency_mapping)
        before = PartitionLatency(0.0, 0.0, 0.0)
        for value in node.all_input_nodes:
            reached = until.get(value)
            if reached is not None and reached.overall_latency_sec > before.overall_latency_sec:
                before = reached
        until[node] = PartitionLatency(
            before.mem_latency_sec + latency.mem_latency_sec,
            before.computer_latency_sec + latency.computer_latency_sec,
            before.overall_latency_sec + node_seconds(latency),
        )
        if until[node].overall_latency_sec > longest.overall_latency_sec:
            longest = until[node]
    return longest


@takes(partitions=PARTITIONS, node_to_latency_mapping=DICT)
def get_partition_to_latency_mapping(
    partitions: Sequence[Partition], node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> dict[Partition, PartitionLatency]:
    """The critical path inside each partition."""
    return {p: get_latency_of_one_partition(p, node_to_latency_mapping) for p in partitions}


def seconds(size: int, rate: float) -> float:
    """How long a transfer takes."""
    if not size:
        return 0.0
    if not rate > 0:
        raise PartitionError(
            f"{size:,} bytes cannot be transferred at {rate} bytes per second",
            fix='a transfer_rate_bytes_per_sec above 0, or float("inf") if transfers cost nothing',
        )
    return size / rate


@takes(parent_partition=PARTITION, child_partition=PARTITION, transfer_rate_bytes_per_sec=number(0))
def get_comm_latency_between(
    parent_partition: Partition, child_partition: Partition, transfer_rate_bytes_per_sec: float
) -> float:
    """How long the child waits for what it takes from the parent."""
    return _wait(parent_partition, child_partition, transfer_rate_bytes_per_sec)


def _wait(parent: Partition, child: Partition, rate: float) -> float:
    if parent.logical_device_ids and parent.logical_device_ids == child.logical_device_ids:
        return 0.0
    size = sum(output_bytes(value) for value in child.taken if value in parent.nodes)
    return seconds(size, rate)


@takes(
    partitions=PARTITIONS, partition_to_latency_mapping=DICT,
    transfer_rate_bytes_per_sec=number(0),
)  # fmt: skip
def get_latency_of_partitioned_graph(
    partitions: Sequence[Partition],
    partition_to_latency_mapping: Mapping[Partition, PartitionLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The critical path through all partitions, transfers included."""
    order = in_order(partitions)
    if order is None:
        raise PartitionError("some partitions wait for each other: the graph has no latency")
    until: dict[Partition, float] = {}
    for partition in order:
        ready = (
            until[p] + _wait(p, partition, transfer_rate_bytes_per_sec) for p in partition.parents
        )
        own = _latency_of(partition, partition_to_latency_mapping).overall_latency_sec
        until[partition] = max(ready, default=0.0) + own
    return max(until.values(), default=0.0)


class DeviceLoad(NamedTuple):
    """What a device does for one micro-batch."""

    compute_sec: float
    transfer_sec: float

    @property
    def overall_sec(self) -> float:
        return self.compute_sec + self.transfer_sec


@takes(partitions=PARTITIONS, node_to_latency_mapping=DICT, transfer_rate_bytes_per_sec=number(0))
def get_device_loads(
    partitions: Sequence[Partition],
    node_to_latency_mapping: Mapping[Node, NodeLatency],
    transfer_rate_bytes_per_sec: float,
) -> dict[int, DeviceLoad]:
    """What each device does for one micro-batch: all its nodes, and receiving what they need.

    A device runs its nodes one after the other, and receives each value once however many of its
    nodes use it. A partition that is on several devices runs on each for a part of the
    micro-batches.
    """
    of = owners(partitions)
    compute: dict[int, float] = defaultdict(float)
    received: dict[tuple[int, Node], float] = {}
    for partition in partitions:
        share = 1 / max(1, len(partition.logical_device_ids))
        work = sum(node_seconds(latency_of(n, node_to_latency_mapping)) for n in partition.ops())
        for device in partition.logical_device_ids:
            compute[device] += work * share
            for value in partition.taken:
                if device not in of[value].logical_device_ids:
                    key = (device, value)
                    received[key] = max(received.get(key, 0.0), share)
    transfer: dict[int, float] = defaultdict(float)
    for (device, value), share in sorted(received.items()):
        transfer[device] += share * seconds(output_bytes(value), transfer_rate_bytes_per_sec)
    return {d: DeviceLoad(compute[d], transfer[d]) for d in compute}


@takes(partitions=PARTITIONS, node_to_latency_mapping=DICT, transfer_rate_bytes_per_sec=number(0))
def get_bottleneck_of_partitioned_graph(
    partitions: Sequence[Partition],
    node_to_latency_mapping: Mapping[Node, NodeLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The time of the busiest device: a pipeline finishes one micro-batch per that time."""
    loads = get_device_loads(partitions, node_to_latency_mapping, transfer_rate_bytes_per_sec)
    return max((load.overall_sec for load in loads.values()), default=0.0)
