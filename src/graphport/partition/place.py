"""Dependencies between partitions, and their assignment to devices by memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch.fx import GraphModule, Node

from graphport.arguments import check_arguments
from graphport.errors import PartitionError
from graphport.fx.effects import find_effect_dependencies, is_random
from graphport.partition.config import DEVICES, Device
from graphport.partition.partition import (
    PARTITIONS,
    Partition,
    count_bytes,
    get_effect_dependencies,
    is_op,
)


def mark_effect_dependencies(gm: GraphModule) -> None:
    """Note on each node which ones it has to run after although it takes nothing from them.

    Those are what writes to memory, and what has effects of its own, such as drawing a number.
    """
    modules = dict(gm.named_modules(remove_duplicate=False))
    behind: dict[Node, list[Node]] = {}
    for before, after in find_effect_dependencies(gm.graph, modules):
        behind.setdefault(after, []).append(before)
    ops = [node for node in gm.graph.nodes if is_op(node)]
    impure = [node for node in ops if node.is_impure() or is_random(node, modules)]
    for before, after in pairwise(impure):
        behind.setdefault(after, []).append(before)
    for node in gm.graph.nodes:
        node.runs_after = behind.get(node, [])


def map_nodes_to_partitions(partitions: Sequence[Partition]) -> dict[Node, Partition]:
    """The partition of every operator; inputs and constants may be in several."""
    return {node: p for p in partitions for node in p.nodes if is_op(node)}


@check_arguments(partitions=PARTITIONS)
def set_parents_and_children(partitions: Sequence[Partition]) -> None:
    """A partition is the parent of those that take a value from it, or have to run after it."""
    for partition in partitions:
        partition.parents, partition.children = set(), set()
    of = map_nodes_to_partitions(partitions)
    for child in partitions:
        waits = [before for node in child.nodes for before in get_effect_dependencies(node)]
        for before in (*child.taken, *waits):
            parent = of.get(before)
            if parent is not None and parent is not child:
                parent.children.add(child)
                child.parents.add(parent)


@check_arguments(partitions=PARTITIONS)
def reorganize_partitions(partitions: Sequence[Partition]) -> None:
    """Number the partitions as they stand, and set their parents and children."""
    for number, partition in enumerate(partitions):
        partition.partition_id = number
    set_parents_and_children(partitions)


def sort_topologically(partitions: Sequence[Partition]) -> list[Partition] | None:
    """Partitions in topological order; None if they have a cycle."""
    waiting = {p: len(p.parents) for p in partitions}
    ready = [p for p in reversed(partitions) if not waiting[p]]
    found = []
    while ready:
        partition = ready.pop()
        found.append(partition)
        for child in sorted(partition.children, key=lambda p: -p.partition_id):
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return found if len(found) == len(partitions) else None


def set_bfs_levels(partitions: Sequence[Partition]) -> None:
    """The level of a partition is the longest way to it from one without parents."""
    for partition in sort_topologically(partitions) or ():
        partition.bfs_level = 1 + max((p.bfs_level for p in partition.parents), default=-1)


def reaches_itself(partition: Partition) -> bool:
    """Whether a partition is on a cycle."""
    seen: set[Partition] = set()
    ahead = list(partition.children)
    while ahead:
        found = ahead.pop()
        if found is partition:
            return True
        if found not in seen:
            seen.add(found)
            ahead.extend(found.children)
    return False


def combine_partitions(
    a: Partition, b: Partition, partitions: Sequence[Partition]
) -> list[Partition]:
    """The partitions with two of them as one, which stands last."""
    both = Partition(len(partitions))
    both.nodes = a.nodes | b.nodes
    both.recalculate_mem_size()
    found = [*(p for p in partitions if p is not a and p is not b), both]
    reorganize_partitions(found)
    return found


# Assigns partitions to devices, by the memory that is left.


class DeviceStats(NamedTuple):
    """What is on each device, the bytes that are left there, and what is nowhere yet."""

    device_to_partitions: dict[Device, list[Partition]]
    device_to_left_mem_bytes: dict[Device, int]
    no_device_partitions: list[Partition]


@check_arguments(partitions=PARTITIONS, devices=DEVICES)
def get_device_partition_stats(
    partitions: Sequence[Partition], devices: Sequence[Device]
) -> DeviceStats:
    by_id = {d.logical_id: d for d in devices}
    stats = DeviceStats({d: [] for d in devices}, {d: d.available_mem_bytes for d in devices}, [])
    for partition in partitions:
        for logical_id in partition.logical_device_ids:
            device = by_id.get(logical_id)
            if device is None:
                raise PartitionError(
                    f"partition {partition.partition_id} is on device {logical_id}, and the"
                    f" devices are {sorted(by_id)}"
                )
            stats.device_to_partitions[device].append(partition)
            stats.device_to_left_mem_bytes[device] -= partition.used_mem_bytes
        if not partition.logical_device_ids:
            stats.no_device_partitions.append(partition)
    return stats


def fits_memory(partitions: Sequence[Partition], devices: Sequence[Device]) -> bool:
    """Whether every device has the memory for all that is on it."""
    on = get_device_partition_stats(partitions, devices).device_to_partitions
    return all(
        count_bytes(node for p in there for node in p.nodes) <= device.available_mem_bytes
        for device, there in on.items()
    )


def reset_partition_device(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        partition.logical_device_ids = []


def assign_devices(partitions: Sequence[Partition], devices: Sequence[Device]) -> Partition | None:
    """Place every partition that has no device yet; the first that fits nowhere, or None.

    A partition goes where the least memory is left that is enough; a device that it would fill to
    the last byte is taken only if there is no other, unless that leaves partitions without.
    """
    homeless = [p for p in partitions if not p.logical_device_ids]
    found = _try_assign_devices(partitions, devices, to_the_last_byte=False)
    if found is not None:
        reset_partition_device(homeless)
        found = _try_assign_devices(partitions, devices, to_the_last_byte=True)
    return found


def _try_assign_devices(
    partitions: Sequence[Partition], devices: Sequence[Device], to_the_last_byte: bool
) -> Partition | None:
    on, left, homeless = get_device_partition_stats(partitions, devices)
    held: dict[Device, set[Node]] = {
        d: set().union(*(p.nodes for p in there)) for d, there in on.items()
    }
    order = list(left)
    for partition in homeless:
        exact: tuple[Device, int] | None = None
        order.sort(key=left.__getitem__)
        for device in order:
            there = held[device]
            known = sum(size for value, size in partition.taken.items() if value in there)
            extra = partition.used_mem_bytes - known
            if extra < left[device] + to_the_last_byte:
                break
            if extra == left[device] and exact is None:
                exact = device, extra
        else:
            if exact is None:
                return partition
            device, extra = exact
        partition.logical_device_ids.append(device.logical_id)
        left[device] -= extra
        held[device] |= partition.nodes
    return None


@check_arguments(partitions=PARTITIONS, devices=DEVICES)
def get_device_to_partitions_mapping(
    partitions: Sequence[Partition], devices: Sequence[Device]
) -> bool:
    """Place every partition that has no device yet; False if one fits nowhere."""
    return assign_devices(partitions, devices) is None
