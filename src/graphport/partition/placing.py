"""Partitions onto devices, by the memory that is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch.fx import Node

from graphport.arguments import takes
from graphport.errors import PartitionError
from graphport.partition.config import DEVICES, Device
from graphport.partition.pieces import PARTITIONS, Partition, bytes_of


class DeviceStats(NamedTuple):
    """What is on each device, the bytes that are left there, and what is nowhere yet."""

    device_to_partitions: dict[Device, list[Partition]]
    device_to_left_mem_bytes: dict[Device, int]
    no_device_partitions: list[Partition]


@takes(partitions=PARTITIONS, devices=DEVICES)
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


def fits(partitions: Sequence[Partition], devices: Sequence[Device]) -> bool:
    """Whether every device has the memory for all that is on it."""
    on = get_device_partition_stats(partitions, devices).device_to_partitions
    return all(
        bytes_of(node for p in there for node in p.nodes) <= device.available_mem_bytes
        for device, there in on.items()
    )


def reset_partition_device(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        partition.logical_device_ids = []


def first_without_device(
    partitions: Sequence[Partition], devices: Sequence[Device]
) -> Partition | None:
    """Place every partition that has no device yet; the first that fits nowhere, or None.

    A partition goes where the least memory is left that is enough; a device that it would fill to
    the last byte is taken only if there is no other, unless that leaves partitions without.
    """
    homeless = [p for p in partitions if not p.logical_device_ids]
    found = _first_without(partitions, devices, to_the_last_byte=False)
    if found is not None:
        reset_partition_device(homeless)
        found = _first_without(partitions, devices, to_the_last_byte=True)
    return found


def _first_without(
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


@takes(partitions=PARTITIONS, devices=DEVICES)
def get_device_to_partitions_mapping(
    partitions: Sequence[Partition], devices: Sequence[Device]
) -> bool:
    """Place every partition that has no device yet; False if one fits nowhere."""
    return first_without_device(partitions, devices) is None
