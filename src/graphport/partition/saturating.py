"""`saturate_host`: the partitions once more on devices that are left over.

For each device in use, the smallest idle device that can hold what is on it; if there is one for
each, all partitions are repeated, and so on while devices last.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphport.partition.config import Device
from graphport.partition.pieces import Partition
from graphport.partition.placing import get_device_partition_stats


def saturate_host(partitions: Sequence[Partition], devices: Sequence[Device]) -> None:
    stats = get_device_partition_stats(partitions, devices)
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
