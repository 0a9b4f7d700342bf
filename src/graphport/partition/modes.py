"""The modes `aot_based`, `size_based`, `cost_aware`, `kl_based`, `sparse_nn`; `saturate_host`."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import combinations

import torch
from torch.fx import GraphModule, Node

from graphport.compat.operators import aten
from graphport.errors import PartitionError
from graphport.partition import place
from graphport.partition.config import Device, format_device_memory
from graphport.partition.costs import (
    PartitionLatency,
    Problem,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    place_partitions,
    resolve_node_keys,
)
from graphport.partition.partition import (
    SOURCE_OPS,
    Partition,
    count_bytes,
    get_effect_dependencies,
    get_extra_size_of,
)


def aot_based(job: Problem) -> list[Partition]:
    ids = resolve_node_keys(job.config.node_to_partition_mapping, job.ops)
    missing = [node for node in job.ops if node not in ids]
    if missing:
        raise PartitionError(
            "node_to_partition_mapping has no entry for "
            + _format_names([n.name for n in missing]),
            where=missing[0].format_node(),
            fix="an id for every node that is not a placeholder, a get_attr or the output",
        )
    placed = job.config.partition_to_logical_device_mapping
    known = {d.logical_id for d in job.devices}
    partitions = [
        Partition(number, [node for node in job.ops if ids[node] == number])
        for number in dict.fromkeys(ids[node] for node in job.ops)
    ]
    for partition in partitions:
        devices = list(placed.get(partition.partition_id, ()))
        if not devices or not known.issuperset(devices):
            raise PartitionError(
                f"partition_to_logical_device_mapping places partition {partition.partition_id} on"
                f" {devices or 'no device'}, and the devices are {sorted(known)}",
                fix=f"{{{partition.partition_id!r}: [{min(known)}], ...}}",
            )
        partition.logical_device_ids = devices
    place.set_parents_and_children(partitions)
    if place.sort_topologically(partitions) is None:
        raise PartitionError(
            "the partitions of node_to_partition_mapping depend on each other",
            fix="ids whose partitions have no cycle",
        )
    return partitions


def _format_names(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more nodes"


# `size_based`: nodes in order, onto one device after the other, each filled as far as it goes.
#
# The first free device that holds the next node is filled with that node and those that follow.
# Nodes that are left when no free device is become partitions of their own, each where the least
# memory is left that is enough.


def size_based(job: Problem) -> list[Partition]:
    free = list(job.devices)
    groups: list[list[Node]] = []
    homes: list[Device | None] = []
    held: set[Node] = set()
    left = -1
    for node in job.ops:
        extra = get_extra_size_of(node, held)
        if left < extra:
            groups.append([])
            held = set()
            extra = get_extra_size_of(node, held)
            # Once a node has found no free device, those behind it look for none: they may need it.
            device = _find_device(free, extra) if None not in homes else None
            homes.append(device)
            left = -1
            if device is not None:
                free.remove(device)
                left = device.available_mem_bytes
        groups[-1].append(node)
        held.update(n for n in node.all_input_nodes if n.op in SOURCE_OPS)
        held.add(node)
        left -= extra
    partitions = [Partition(i, group) for i, group in enumerate(groups)]
    for partition, home in zip(partitions, homes, strict=True):
        partition.logical_device_ids = [] if home is None else [home.logical_id]
    place_partitions(job, partitions)
    return partitions


def _find_device(free: list[Device], needed: int) -> Device | None:
    return next((d for d in free if d.available_mem_bytes >= needed), None)


# `cost_aware`: every node a partition, then combined two by two while the latency does not grow.
#
# Two partitions may become one if their levels are at most one apart or one takes values from the
# other, no circle arises, and all partitions still find devices. In every round the pair with the
# smallest latency is taken; of equal ones the last.


def cost_aware(job: Problem) -> list[Partition]:
    partitions = [Partition(i, [node]) for i, node in enumerate(job.ops)]
    place.reorganize_partitions(partitions)
    known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    while len(partitions) > 1:
        place.set_bfs_levels(partitions)
        cost = get_latency_of_partitioned_graph(partitions, known, job.rate)
        best = None
        near = [
            (a, b)
            for a, b in combinations(partitions, 2)
            if abs(a.bfs_level - b.bfs_level) <= 1 or a in b.parents or b in a.parents
        ]
        for a, b in near:
            new = _estimate_combined_latency(job, a, b, partitions, known)
            if new <= cost:
                best, cost = (a, b), new
        place.reset_partition_device(partitions)
        if best is None:
            break
        partitions = place.combine_partitions(*best, partitions)
        known[partitions[-1]] = get_latency_of_one_partition(partitions[-1], job.latencies)
        place.get_device_to_partitions_mapping(partitions, job.devices)
    place.reset_partition_device(partitions)
    place_partitions(job, partitions)
    return partitions


def _estimate_combined_latency(
    job: Problem,
    a: Partition,
    b: Partition,
    partitions: Sequence[Partition],
    known: dict[Partition, PartitionLatency],
) -> float:
    """The latency with two partitions as one; infinite if they cannot be."""
    if count_bytes(a.nodes | b.nodes) > job.largest.available_mem_bytes:
        return math.inf
    trial = place.combine_partitions(a, b, partitions)
    both = trial[-1]
    if place.reaches_itself(both):
        return math.inf
    place.reset_partition_device(trial)
    if not place.get_device_to_partitions_mapping(trial, job.devices):
        return math.inf
    latencies = {**known, both: get_latency_of_one_partition(both, job.latencies)}
    return get_latency_of_partitioned_graph(trial, latencies, job.rate)


# `kl_based`: the partitions of `size_based`, improved by exchanges after Kernighan and Lin.
#
# Every node in turn is exchanged with the node of another partition, or moved there, that makes the
# latency smallest, if that is smaller than it was; no circle may arise, and all partitions have to
# find devices. A partition that loses its last node is gone.

KnownLatencies = dict[Partition, PartitionLatency]


def kl_based(job: Problem) -> list[Partition]:
    partitions = start = size_based(job)
    homes = [p.logical_device_ids for p in start]
    known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    cost = get_latency_of_partitioned_graph(partitions, known, job.rate)
    for node in job.ops:
        home = place.map_nodes_to_partitions(partitions)[node]
        best = partitions
        for there in partitions:
            for other in (*there.ops(), None) if there is not home else ():
                trial = _exchange_nodes(partitions, home, node, there, other)
                new = _estimate_latency(job, trial, known)
                if new < cost:
                    best, cost = trial, new
        partitions = best
        known = {p: get_latency_of_one_partition(p, job.latencies) for p in partitions}
    place.reset_partition_device(partitions)
    if partitions is start:
        for partition, ids in zip(start, homes, strict=True):
            partition.logical_device_ids = ids
    place_partitions(job, partitions)
    return partitions


def _exchange_nodes(
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


def _estimate_latency(job: Problem, trial: list[Partition], known: KnownLatencies) -> float:
    """The latency of partitions; infinite if they cannot be."""
    if any(p.used_mem_bytes > job.largest.available_mem_bytes for p in trial):
        return math.inf
    place.reorganize_partitions(trial)
    if place.sort_topologically(trial) is None:
        return math.inf
    place.reset_partition_device(trial)
    if not place.get_device_to_partitions_mapping(trial, job.devices):
        return math.inf
    latencies = {p: known.get(p) or get_latency_of_one_partition(p, job.latencies) for p in trial}
    return get_latency_of_partitioned_graph(trial, latencies, job.rate)


# `saturate_host`: the partitions once more on devices that are left over.
#
# For each device in use, the smallest idle device that can hold what is on it; if there is one for
# each, all partitions are repeated, and so on while devices last.


def saturate_host(partitions: Sequence[Partition], devices: Sequence[Device]) -> None:
    stats = place.get_device_partition_stats(partitions, devices)
    used = [d for d in devices if stats.device_to_partitions[d]]
    idle = [d for d in devices if not stats.device_to_partitions[d]]
    while len(idle) >= len(used):
        twins: dict[Device, Device] = {}
        for device in used:
            needed = device.available_mem_bytes - stats.device_to_left_mem_bytes[device]
            enough = [
                d for d in idle if d not in twins.values() and d.available_mem_bytes >= needed
            ]
            if not enough:
                return
            twins[device] = min(enough, key=lambda d: d.available_mem_bytes)
        idle = [d for d in idle if d not in twins.values()]
        for partition in partitions:
            own = [d for d in used if partition in stats.device_to_partitions[d]]
            ids = [twins[d].logical_id for d in own]
            partition.logical_device_ids = [*partition.logical_device_ids, *ids]


# `sparse_nn`: embedding tables spread over the devices, everything else on each of them.
#
# For recommenders, whose memory is embedding tables. Nodes in order become partitions that fit a
# device and have either embeddings only or none; partitions of one kind are then combined as far as
# memory allows. Each partition of embeddings gets a device, and those without are on all of them.
# All devices have the same memory.

_EMBEDDINGS = (
    torch.nn.functional.embedding,
    torch.nn.functional.embedding_bag,
    torch.embedding,
    torch.embedding_bag,
    aten.embedding,
    aten.embedding_bag,
    aten._embedding_bag,
    aten._embedding_bag_forward_only,
)


def is_embedding(node: Node, gm: GraphModule) -> bool:
    """Whether a node looks rows up in a table, or is a part of what one has found."""
    if node.op == "call_module":
        called = gm.get_submodule(str(node.target))
        return any("Embedding" in type(m).__name__ for m in called.modules())
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return is_embedding(node.args[0], gm)
    target = getattr(node.target, "overloadpacket", node.target)
    return node.op == "call_function" and target in _EMBEDDINGS


def sparse_nn(job: Problem) -> list[Partition]:
    memory = job.devices[0].available_mem_bytes
    if any(d.available_mem_bytes != memory for d in job.devices):
        raise PartitionError(
            f"All devices must have same memory size! They have: "
            f"{format_device_memory(job.devices)}",
            fix="devices of the same size, or mode=PartitionMode.optimal",
        )
    try:
        return _partition_nodes(job, job.ops, memory)
    except PartitionError as error:
        try:
            return _partition_nodes(job, _sort_by_phase(job), memory)
        except PartitionError:
            raise error from None


def _sort_by_phase(job: Problem) -> list[Node]:
    """First what needs no embeddings, then these, then what needs them: more of them side by side.

    An exported program has what prepares each lookup right before it.
    """
    phase: dict[Node, int] = {}
    for node in job.ops:
        needs = [
            phase[v] for v in (*node.all_input_nodes, *get_effect_dependencies(node)) if v in phase
        ]
        phase[node] = max(needs, default=0)
        # Odd phases have embeddings.
        phase[node] += phase[node] % 2 != is_embedding(node, job.gm)
    return sorted(job.ops, key=phase.__getitem__)


def _partition_nodes(job: Problem, ops: Sequence[Node], memory: int) -> list[Partition]:
    dense, sparse = _make_partitions(job, ops, memory, memory)
    shared = sum(p.used_mem_bytes for p in dense)
    if any(shared + p.used_mem_bytes > memory for p in sparse):
        # Tables that leave no room for what all devices hold: again, in smaller partitions.
        dense, sparse = _make_partitions(job, ops, memory, memory - shared)
    partitions = sorted((*dense, *sparse), key=lambda p: p.partition_id)
    if sparse:
        _assign_devices(job, dense, sparse, memory)
    place_partitions(job, partitions)
    return partitions


def _make_partitions(
    job: Problem, ops: Sequence[Node], memory: int, room: int
) -> tuple[list[Partition], list[Partition]]:
    """Partitions without embeddings of up to `memory` bytes, and of embeddings of up to `room`."""
    groups: list[list[Node]] = []
    kinds: list[bool] = []
    held: set[Node] = set()
    used = 0
    for node in ops:
        kind = is_embedding(node, job.gm)
        extra = get_extra_size_of(node, held)
        if not groups or kind != kinds[-1] or used + extra > (room if kind else memory):
            groups.append([])
            kinds.append(kind)
            held, used = set(), 0
            extra = get_extra_size_of(node, held)
        groups[-1].append(node)
        held.update(n for n in node.all_input_nodes if n.op in SOURCE_OPS)
        held.add(node)
        used += extra
    partitions = [Partition(i, group) for i, group in enumerate(groups)]
    place.reorganize_partitions(partitions)
    dense = [p for p, kind in zip(partitions, kinds, strict=True) if not kind]
    sparse = [p for p, kind in zip(partitions, kinds, strict=True) if kind]
    partitions, dense = _combine_smallest(partitions, dense, memory)
    _, sparse = _combine_smallest(partitions, sparse, room)
    return dense, sparse


def _combine_smallest(
    partitions: list[Partition], some: list[Partition], memory: int
) -> tuple[list[Partition], list[Partition]]:
    """Combine the smallest of some partitions with the largest that it fits with, while any does.

    Levels at most one apart: there is no way from one to the other past a third.
    """
    while True:
        place.set_bfs_levels(partitions)
        by_size = sorted(some, key=lambda p: p.used_mem_bytes)
        for other in reversed(by_size[1:]):
            smallest = by_size[0]
            if abs(smallest.bfs_level - other.bfs_level) > 1:
                continue
            if count_bytes(smallest.nodes | other.nodes) <= memory:
                partitions = place.combine_partitions(other, smallest, partitions)
                some = [*(p for p in some if p is not smallest and p is not other), partitions[-1]]
                break
        else:
            return partitions, some


def _assign_devices(
    job: Problem, dense: list[Partition], sparse: list[Partition], memory: int
) -> None:
    if len(sparse) > len(job.devices):
        raise PartitionError(
            f"Need {len(sparse)} devices, but only {len(job.devices)} provided: the embeddings make"
            f" that many partitions of at most {memory:,} bytes",
            fix="more devices, or devices with more memory",
        )
    shared = sum(p.used_mem_bytes for p in dense)
    for partition, device in zip(sparse, job.devices, strict=False):
        if shared + partition.used_mem_bytes > memory:
            first = partition.ops()[0]
            raise PartitionError(
                f"partition_{partition.partition_id} (embedding partition, from node"
                f" {first.name!r}: {partition.used_mem_bytes:,} bytes) and non embedding partitions"
                f" ({shared:,} bytes) can not fit into one device ({memory:,} bytes)",
                where=first.format_node(),
                fix="devices with more memory, or mode=PartitionMode.optimal",
            )
        partition.logical_device_ids = [device.logical_id]
    for partition in dense:
        partition.logical_device_ids = [d.logical_id for d in job.devices[: len(sparse)]]
