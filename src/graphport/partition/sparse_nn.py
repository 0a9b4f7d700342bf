"""`sparse_nn`: embedding tables spread over the devices, everything else on each of them.

For recommenders, whose memory is embedding tables. Nodes in order become partitions that fit a
device and have either embeddings only or none; partitions of one kind are then combined as far as
memory allows. Each partition of embeddings gets a device, and those without are on all of them. All
devices have the same memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from graphport.errors import PartitionError
from graphport.partition.config import memory_of
from graphport.partition.jobs import Job, place
from graphport.partition.linking import combined, reorganize_partitions, set_levels
from graphport.partition.pieces import SOURCES, Partition, bytes_of, get_extra_size_of, runs_after

_EMBEDDINGS = (
    torch.nn.functional.embedding,
    torch.nn.functional.embedding_bag,
    torch.embedding,
    torch.embedding_bag,
    torch.ops.aten.embedding,
    torch.ops.aten.embedding_bag,
    torch.ops.aten._embedding_bag,
    torch.ops.aten._embedding_bag_forward_only,
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


def sparse_nn(job: Job) -> list[Partition]:
    memory = job.devices[0].available_mem_bytes
    if any(d.available_mem_bytes != memory for d in job.devices):
        raise PartitionError(
            f"All devices must have same memory size! They have: {memory_of(job.devices)}",
            fix="devices of the same size, or mode=PartitionMode.optimal",
        )
    try:
        return _spread_over(job, job.ops, memory)
    except PartitionError as error:
        try:
            return _spread_over(job, _by_phase(job), memory)
        except PartitionError:
            raise error from None


def _by_phase(job: Job) -> list[Node]:
    """First what needs no embeddings, then these, then what needs them: more of them side by side.

    An exported program has what prepares each lookup right before it.
    """
    phase: dict[Node, int] = {}
    for node in job.ops:
        needs = [phase[v] for v in (*node.all_input_nodes, *runs_after(node)) if v in phase]
        phase[node] = max(needs, default=0)
        # Odd phases have embeddings.
        phase[node] += phase[node] % 2 != is_embedding(node, job.gm)
    return sorted(job.ops, key=phase.__getitem__)


def _spread_over(job: Job, ops: Sequence[Node], memory: int) -> list[Partition]:
    dense, sparse = _partitions(job, ops, memory, memory)
    shared = sum(p.used_mem_bytes for p in dense)
    if any(shared + p.used_mem_bytes > memory for p in sparse):
        # Tables that leave no room for what all devices hold: again, in smaller partitions.
        dense, sparse = _partitions(job, ops, memory, memory - shared)
    partitions = sorted((*dense, *sparse), key=lambda p: p.partition_id)
    if sparse:
        _spread(job, dense, sparse, memory)
    place(job, partitions)
    return partitions


def _partitions(
    job: Job, ops: Sequence[Node], memory: int, room: int
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
        held.update(n for n in node.all_input_nodes if n.op in SOURCES)
        held.add(node)
        used += extra
    partitions = [Partition(i, group) for i, group in enumerate(groups)]
    reorganize_partitions(partitions)
    dense = [p for p, kind in zip(partitions, kinds, strict=True) if not kind]
    sparse = [p for p, kind in zip(partitions, kinds, strict=True) if kind]
    partitions, dense = _combine(partitions, dense, memory)
    _, sparse = _combine(partitions, sparse, room)
    return dense, sparse


def _combine(
    partitions: list[Partition], some: list[Partition], memory: int
) -> tuple[list[Partition], list[Partition]]:
    """Combine the smallest of some partitions with the largest that it fits with, while any does.

    Levels at most one apart: there is no way from one to the other past a third.
    """
    while True:
        set_levels(partitions)
        by_size = sorted(some, key=lambda p: p.used_mem_bytes)
        for other in reversed(by_size[1:]):
            smallest = by_size[0]
            if abs(smallest.bfs_level - other.bfs_level) > 1:
                continue
            if bytes_of(smallest.nodes | other.nodes) <= memory:
                partitions = combined(other, smallest, partitions)
                some = [*(p for p in some if p is not smallest and p is not other), partitions[-1]]
                break
        else:
            return partitions, some


def _spread(job: Job, dense: list[Partition], sparse: list[Partition], memory: int) -> None:
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
