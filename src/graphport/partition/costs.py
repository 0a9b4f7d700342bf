"""Latencies of partitions, of the critical path, of devices; profiling; and the problem to solve.

A node takes the longer of its memory and its computing time. A partition takes its critical path:
nodes that do not wait for each other run side by side. A transfer takes the bytes of the distinct
values that a partition takes from another one, over the rate; nothing if both are on the same
devices. Inputs and constants are in every partition that reads them, and are not transferred.
"""

from __future__ import annotations

import inspect
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch.fx import GraphModule, Interpreter, Node

from graphport.arguments import DICT, NODE, check_arguments, instance_of, integer, mapping, number
from graphport.compat.torch import pytree
from graphport.errors import InputError, PartitionError
from graphport.partition.config import Device, NodeLatency, PartitionerConfig, format_device_memory
from graphport.partition.partition import (
    PARTITION,
    PARTITIONS,
    Partition,
    count_bytes,
    get_extra_size_of,
    is_op,
    output_bytes,
)
from graphport.partition.place import (
    assign_devices,
    get_device_partition_stats,
    map_nodes_to_partitions,
    reorganize_partitions,
    sort_topologically,
)
from graphport.process import restore_on_exit, undo_on_exit
from graphport.program import ExportedProgram
from graphport.program.module import CallGuard
from graphport.tensors.concrete import address_range
from graphport.types import Argument, PyTree


class PartitionLatency(NamedTuple):
    """The critical path of a partition: its memory and computing time, and what it takes."""

    mem_latency_sec: float
    computer_latency_sec: float
    overall_latency_sec: float


def node_seconds(latency: NodeLatency) -> float:
    return max(latency.mem_latency_sec, latency.computer_latency_sec)


def get_node_latency(node: Node, latencies: Mapping[Node, NodeLatency]) -> NodeLatency:
    found = latencies.get(node)
    if not isinstance(found, NodeLatency):
        raise PartitionError(
            f"node {node.name!r} has no latency in node_to_latency_mapping",
            fix="node_to_latency_mapping=gp.partition.latencies(gp.partition.profile(gm, *args))",
        )
    return found


def _get_partition_latency(
    partition: Partition, latencies: Mapping[Partition, PartitionLatency]
) -> PartitionLatency:
    found = latencies.get(partition)
    if not isinstance(found, PartitionLatency):
        raise PartitionError(
            f"partition {partition.partition_id} has no latency in partition_to_latency_mapping",
            fix="gp.partition.get_partition_to_latency_mapping(partitions, latencies)",
        )
    return found


@check_arguments(partition=PARTITION, node_to_latency_mapping=DICT)
def get_latency_of_one_partition(
    partition: Partition, node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    """The critical path inside a partition."""
    until: dict[Node, PartitionLatency] = {}
    longest = PartitionLatency(0.0, 0.0, 0.0)
    for node in partition.ops():
        latency = get_node_latency(node, node_to_latency_mapping)
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


@check_arguments(partitions=PARTITIONS, node_to_latency_mapping=DICT)
def get_partition_to_latency_mapping(
    partitions: Sequence[Partition], node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> dict[Partition, PartitionLatency]:
    """The critical path inside each partition."""
    return {p: get_latency_of_one_partition(p, node_to_latency_mapping) for p in partitions}


def transfer_seconds(size: int, rate: float) -> float:
    """How long a transfer takes."""
    if not size:
        return 0.0
    if not rate > 0:
        raise PartitionError(
            f"{size:,} bytes cannot be transferred at {rate} bytes per second",
            fix='a transfer_rate_bytes_per_sec above 0, or float("inf") if transfers cost nothing',
        )
    return size / rate


@check_arguments(
    parent_partition=PARTITION, child_partition=PARTITION, transfer_rate_bytes_per_sec=number(0)
)
def get_comm_latency_between(
    parent_partition: Partition, child_partition: Partition, transfer_rate_bytes_per_sec: float
) -> float:
    """How long the child waits for what it takes from the parent."""
    return _get_comm_latency(parent_partition, child_partition, transfer_rate_bytes_per_sec)


def _get_comm_latency(parent: Partition, child: Partition, rate: float) -> float:
    if parent.logical_device_ids and parent.logical_device_ids == child.logical_device_ids:
        return 0.0
    size = sum(output_bytes(value) for value in child.taken if value in parent.nodes)
    return transfer_seconds(size, rate)


@check_arguments(
    partitions=PARTITIONS, partition_to_latency_mapping=DICT, transfer_rate_bytes_per_sec=number(0)
)
def get_latency_of_partitioned_graph(
    partitions: Sequence[Partition],
    partition_to_latency_mapping: Mapping[Partition, PartitionLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The critical path through all partitions, transfers included."""
    order = sort_topologically(partitions)
    if order is None:
        raise PartitionError("some partitions depend on each other: the graph has no latency")
    until: dict[Partition, float] = {}
    for partition in order:
        ready = (
            until[p] + _get_comm_latency(p, partition, transfer_rate_bytes_per_sec)
            for p in partition.parents
        )
        own = _get_partition_latency(partition, partition_to_latency_mapping).overall_latency_sec
        until[partition] = max(ready, default=0.0) + own
    return max(until.values(), default=0.0)


class DeviceLoad(NamedTuple):
    """What a device does for one micro-batch."""

    compute_sec: float
    transfer_sec: float

    @property
    def overall_sec(self) -> float:
        return self.compute_sec + self.transfer_sec


@check_arguments(
    partitions=PARTITIONS, node_to_latency_mapping=DICT, transfer_rate_bytes_per_sec=number(0)
)
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
    of = map_nodes_to_partitions(partitions)
    compute: dict[int, float] = defaultdict(float)
    received: dict[tuple[int, Node], float] = {}
    for partition in partitions:
        share = 1 / max(1, len(partition.logical_device_ids))
        work = sum(
            node_seconds(get_node_latency(n, node_to_latency_mapping)) for n in partition.ops()
        )
        for device in partition.logical_device_ids:
            compute[device] += work * share
            for value in partition.taken:
                if device not in of[value].logical_device_ids:
                    key = (device, value)
                    received[key] = max(received.get(key, 0.0), share)
    transfer: dict[int, float] = defaultdict(float)
    for (device, value), share in sorted(received.items()):
        transfer[device] += share * transfer_seconds(
            output_bytes(value), transfer_rate_bytes_per_sec
        )
    return {d: DeviceLoad(compute[d], transfer[d]) for d in compute}


@check_arguments(
    partitions=PARTITIONS, node_to_latency_mapping=DICT, transfer_rate_bytes_per_sec=number(0)
)
def get_bottleneck_of_partitioned_graph(
    partitions: Sequence[Partition],
    node_to_latency_mapping: Mapping[Node, NodeLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The time of the busiest device: a pipeline finishes one micro-batch per that time."""
    loads = get_device_loads(partitions, node_to_latency_mapping, transfer_rate_bytes_per_sec)
    return max((load.overall_sec for load in loads.values()), default=0.0)


# Profiles the nodes of a graph on this machine: time and memory.


class NodeProfile(NamedTuple):
    """What one operator took.

    `latency_s` is the median over the runs, `output_bytes` the size of the result, and `peak_bytes`
    what was held while it ran: every value that was alive, its own result, and the parameters that
    it read.
    """

    latency_s: float
    output_bytes: int
    peak_bytes: int


@check_arguments(runs=integer(1), warmup=integer(0))
@restore_on_exit
def profile(
    gm: GraphModule | ExportedProgram,
    /,
    *args: PyTree,
    runs: int = 5,
    warmup: int = 1,
    **kwargs: PyTree,
) -> dict[Node, NodeProfile]:
    """Run a graph node by node and measure each operator.

    Give example inputs as to the module itself; an exported program without any takes those that it
    was exported with. State that a run changes is put back. The nodes are those of the graph, or of
    a copy that `ep.module()` makes: `PartitionerConfig` takes either.

        >>> import torch, graphport as gp
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        >>> found = gp.partition.profile(gm, torch.randn(4, 8))
        >>> [(node.name, p.output_bytes, p.peak_bytes) for node, p in found.items()]
        [('_0', 128, 544)]
    """
    if isinstance(gm, ExportedProgram):
        if not args and not kwargs and gm.example_inputs is not None:
            args, kwargs = gm.example_inputs
        gm = gm.module()
    if not isinstance(gm, GraphModule):
        raise InputError(
            f"profile takes a GraphModule or an ExportedProgram, not {type(gm).__name__}",
            fix=["torch.fx.symbolic_trace(model)", "gp.export(model, args)"],
        )
    inputs = _flatten_arguments(gm, args, kwargs)
    runner = _Profiler(gm)
    state = [(t, t.detach().clone()) for t in (*gm.parameters(), *gm.buffers())]

    def put_back() -> None:
        for t, before in state:
            t.detach().copy_(before)

    with torch.no_grad():
        for _ in range(warmup + runs):
            with undo_on_exit(put_back):
                runner.run(*_clone_tensors(inputs), enable_io_processing=False)
    return {
        node: NodeProfile(statistics.median(times[warmup:]), runner.sizes[node], runner.peaks[node])
        for node, times in runner.times.items()
    }


@check_arguments(profiled=mapping(NODE, instance_of("a NodeProfile", f"{__name__}:NodeProfile")))
def latencies(profiled: Mapping[Node, NodeProfile]) -> dict[Node, NodeLatency]:
    """A profile as `node_to_latency_mapping`: what was measured is both memory and computing."""
    return {node: NodeLatency(found.latency_s, found.latency_s) for node, found in profiled.items()}


class _Profiler(Interpreter):
    """An interpreter that times operators and counts what is alive."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.times: dict[Node, list[float]] = {}
        self.sizes: dict[Node, int] = {}
        self.peaks: dict[Node, int] = {}

    def run_node(self, n: Node) -> Argument:
        if not is_op(n):
            return super().run_node(n)
        start = time.perf_counter()
        result = super().run_node(n)
        taken = time.perf_counter() - start
        if n not in self.times:
            held = [v for node, v in self.env.items() if node.op != "get_attr"]
            held += [self.env[node] for node in n.all_input_nodes if node.op == "get_attr"]
            if n.op == "call_module":
                held += list(self.fetch_attr(str(n.target)).parameters())
            self.sizes[n] = sum(t.numel() * t.element_size() for t in _iter_tensors(result))
            self.peaks[n] = _count_held_bytes([held, result])
        self.times.setdefault(n, []).append(taken)
        return result


def _iter_tensors(value: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _count_held_bytes(value: object) -> int:
    """The bytes of memory that the tensors in a value lie in; what they share counts once."""
    total = reached = 0
    for start, end in sorted(map(address_range, _iter_tensors(value))):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _flatten_arguments(
    gm: GraphModule, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object]:
    """One value per placeholder, from arguments as the module takes them."""
    for hook in gm._forward_pre_hooks.values():
        if isinstance(hook, CallGuard):
            return hook.flat(args, kwargs)
    bound = inspect.signature(gm.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return list(gm.graph.process_inputs(*bound.args, *bound.kwargs.values()))


def _clone_tensors(inputs: PyTree) -> PyTree:
    """Inputs that a run may write to."""
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, inputs)


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
