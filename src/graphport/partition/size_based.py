"""`size_based`: nodes in order, onto one device after the other, each filled as far as it goes.

The first free device that holds the next node is filled with that node and those that follow. Nodes
that are left when no free device is become partitions of their own, each where the least memory is
left that is enough.
"""

from __future__ import annotations

from torch.fx import Node

from graphport.partition.config import Device
from graphport.partition.jobs import Job, place
from graphport.partition.pieces import SOURCES, Partition, get_extra_size_of


def size_based(job: Job) -> list[Partition]:
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
            device = _first(free, extra) if None not in homes else None
            homes.append(device)
            left = -1
            if device is not None:
                free.remove(device)
                left = device.available_mem_bytes
        groups[-1].append(node)
        held.update(n for n in node.all_input_nodes if n.op in SOURCES)
        held.add(node)
        left -= extra
    partitions = [Partition(i, group) for i, group in enumerate(groups)]
    for partition, home in zip(partitions, homes, strict=True):
        partition.logical_device_ids = [] if home is None else [home.logical_id]
    place(job, partitions)
    return partitions


def _first(free: list[Device], needed: int) -> Device | None:
    return next((d for d in free if d.available_mem_bytes >= needed), None)
