"""`aot_based`: the partitions and devices that the configuration names."""

from __future__ import annotations

from graphport.errors import PartitionError
from graphport.partition.jobs import Job, by_node
from graphport.partition.linking import in_order, set_parents_and_children
from graphport.partition.pieces import Partition


def aot_based(job: Job) -> list[Partition]:
    ids = by_node(job.config.node_to_partition_mapping, job.ops)
    missing = [node for node in job.ops if node not in ids]
    if missing:
        raise PartitionError(
            f"node_to_partition_mapping says nothing of {_some([n.name for n in missing])}",
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
    set_parents_and_children(partitions)
    if in_order(partitions) is None:
        raise PartitionError(
            "the partitions of node_to_partition_mapping wait for each other",
            fix="ids that never lead back to a partition that was left",
        )
    return partitions


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more nodes"
