"""A graph to be partitioned, with its configuration, and checks that it can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch.fx import GraphModule, Node

from graphport.errors import PartitionError
from graphport.partition.config import Device, NodeLatency, PartitionerConfig, format_device_memory
from graphport.partition.costs import (
    get_bottleneck_of_partitioned_graph,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
)
from graphport.partition.partition import (
    Partition,
    count_bytes,
    get_extra_size_of,
    is_op,
    output_bytes,
)
from graphport.partition.place import (
    assign_devices,
    get_device_partition_stats,
    reorganize_partitions,
)

T = TypeVar("T")


@dataclass(eq=False)
class Problem:
    gm: GraphModule
    config: PartitionerConfig
    ops: list[Node]
    latencies: dict[Node, NodeLatency]

    @property
    def devices(self) -> Sequence[Device]:
        return self.config.devices

    @property
    def rate(self) -> float:
        return self.config.transfer_rate_bytes_per_sec

    @property
    def largest(self) -> Device:
        return max(self.devices, key=lambda d: d.available_mem_bytes)

    def latency(self, partitions: Sequence[Partition]) -> float:
        """The critical path through partitions that are linked and placed."""
        latencies = get_partition_to_latency_mapping(partitions, self.latencies)
        return get_latency_of_partitioned_graph(partitions, latencies, self.rate)

    def value(self, partitions: Sequence[Partition]) -> float:
        """What the objective comes to."""
        if self.config.objective == "latency":
            return self.latency(partitions)
        return get_bottleneck_of_partitioned_graph(partitions, self.latencies, self.rate)


def make_problem(gm: GraphModule, config: PartitionerConfig) -> Problem:
    ops = [node for node in gm.graph.nodes if is_op(node)]
    if not ops:
        raise PartitionError(
            "No Partition since no operations in the module: its outputs are inputs or constants"
        )
    latencies = resolve_node_keys(config.node_to_latency_mapping, ops)
    for node, latency in latencies.items():
        if not all(0 <= seconds < math.inf for seconds in latency):
            raise PartitionError(f"node {node.name!r} takes {latency}", where=node.format_node())
    return Problem(gm, config, ops, latencies)


def resolve_node_keys(mapping: Mapping[Node | str, T], ops: Sequence[Node]) -> dict[Node, T]:
    """A mapping of this graph's nodes; nodes of a copy of it, and names, stand for its own."""
    named = {key if isinstance(key, str) else key.name: value for key, value in mapping.items()}
    return {
        node: mapping[node] if node in mapping else named[node.name]
        for node in ops
        if node in mapping or node.name in named
    }


def graph_bytes(job: Problem) -> int:
    return count_bytes(node for node in job.gm.graph.nodes if node.op != "output")


def check_memory(job: Problem) -> None:
    """Refuse what fits in no way: the whole, or one of its nodes."""
    needed, there = graph_bytes(job), sum(d.available_mem_bytes for d in job.devices)
    if needed > there:
        raise PartitionError(
            f"Devices do not have enough memory for the module: it needs {needed:,} bytes, and"
            f" {len(job.devices)} devices have {there:,} ({format_device_memory(job.devices)})",
            fix="more devices, or devices with more memory",
        )
    for node in job.ops:
        check_node_memory(job, node)


def check_node_memory(job: Problem, node: Node) -> None:
    needed = get_extra_size_of(node, set())
    if needed > job.largest.available_mem_bytes:
        inputs = sum(output_bytes(n) for n in node.all_input_nodes)
        raise PartitionError(
            f"node {node.name!r} is too large to fit any device: it needs {needed:,} bytes"
            f" ({inputs:,} for its inputs, {needed - inputs:,} for its weights and output), and the"
            f" devices have: {format_device_memory(job.devices)}",
            where=node.format_node(),
            fix=f"a device with at least {needed:,} bytes",
        )


def place_partitions(job: Problem, partitions: Sequence[Partition]) -> None:
    """Link partitions, and find devices for those that have none."""
    reorganize_partitions(partitions)
    homeless = assign_devices(partitions, job.devices)
    if homeless is not None:
        left = get_device_partition_stats(partitions, job.devices).device_to_left_mem_bytes
        first = homeless.ops()[0]
        room = ", ".join(f"{d.name} {size:,}" for d, size in left.items())
        raise PartitionError(
            "Cannot Get a Valid Partition to Logical Device Mapping: partition"
            f" {homeless.partition_id}, which begins with node {first.name!r}, needs"
            f" {homeless.used_mem_bytes:,} bytes, and the bytes left are: {room}",
            where=first.format_node(),
            fix="more devices, devices with more memory, or mode=PartitionMode.optimal",
        )


def make_whole_partition(job: Problem) -> list[Partition]:
    """The whole graph on the largest device."""
    only = Partition(0)
    only.nodes = {node for node in job.gm.graph.nodes if node.op != "output"}
    only.recalculate_mem_size()
    only.logical_device_ids = [job.largest.logical_id]
    return [only]
