"""Configuration of the partitioner: devices, mode, latencies, transfer rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from graphport import arguments as kinds
from graphport.arguments import check_fields
from graphport.errors import PartitionError


@check_fields(name=kinds.TEXT, available_mem_bytes=kinds.number(0), logical_id=kinds.integer())
class Device(NamedTuple):
    """A place for partitions; `logical_id` is what a result refers to it by."""

    name: str
    available_mem_bytes: int
    logical_id: int


DEVICES = kinds.several(kinds.instance_of("a Device", f"{__name__}:Device"))


@check_fields(mem_latency_sec=kinds.number(0), computer_latency_sec=kinds.number(0))
class NodeLatency(NamedTuple):
    """What one node takes: moving its memory, and computing. The two overlap."""

    mem_latency_sec: float
    computer_latency_sec: float


class PartitionMode(Enum):
    """How the graph is cut; each has a file of its own, which says what it does."""

    size_based = 0
    sparse_nn = 1
    cost_aware = 2
    kl_based = 3
    aot_based = 4
    optimal = 5


LATENCY_MODES = (PartitionMode.cost_aware, PartitionMode.kl_based, PartitionMode.optimal)
"""The modes that weigh time, and so need latencies and a transfer rate."""

OBJECTIVES = ("bottleneck", "latency")


_LATENCY = kinds.instance_of("a NodeLatency", f"{__name__}:NodeLatency")


@check_fields(
    devices=DEVICES,
    transfer_rate_bytes_per_sec=kinds.number(0),
    node_to_latency_mapping=kinds.mapping(kinds.ANYTHING, _LATENCY),
    node_to_partition_mapping=kinds.mapping(kinds.ANYTHING, kinds.integer(0)),
    partition_to_logical_device_mapping=kinds.mapping(
        kinds.integer(0), kinds.several(kinds.integer())
    ),
    saturate_host=kinds.FLAG,
)
class PartitionerConfig(NamedTuple):
    """The devices and the mode; the modes that weigh time also need what time things take.

    Mappings from nodes may have the nodes of another copy of the same graph as keys, or names:
    every call of `ep.module()` makes a new graph, whose nodes have the same names.
    `saturate_host` repeats the partitions on devices that are left over. `objective` is what
    `PartitionMode.optimal` makes small: "bottleneck", the time of the busiest device, which is
    what limits a pipeline's throughput, or "latency", the critical path of one input.
    """

    devices: Sequence[Device]
    mode: PartitionMode = PartitionMode.size_based
    transfer_rate_bytes_per_sec: float = 0.0
    node_to_latency_mapping: Mapping[Any, NodeLatency] = {}
    node_to_partition_mapping: Mapping[Any, int] = {}
    partition_to_logical_device_mapping: Mapping[int, Sequence[int]] = {}
    saturate_host: bool = False
    objective: str = "bottleneck"


def check_config(config: PartitionerConfig) -> None:
    """What can be said about a configuration without looking at the graph."""
    if not config.devices:
        raise PartitionError(
            "No devices", fix='PartitionerConfig([Device("dev_0", available_mem_bytes, 0)], ...)'
        )
    if not isinstance(config.mode, PartitionMode):
        raise PartitionError(
            f"mode {config.mode!r} is not a PartitionMode",
            fix=f"mode=PartitionMode.{{{', '.join(m.name for m in PartitionMode)}}}",
        )
    if config.objective not in OBJECTIVES:
        raise PartitionError(
            f"objective {config.objective!r} is unknown",
            fix=[f'objective="{name}"' for name in OBJECTIVES],
        )
    if config.mode in LATENCY_MODES and not config.transfer_rate_bytes_per_sec > 0:
        raise PartitionError(
            f"{config.mode.name} weighs transfers between devices, and"
            f" transfer_rate_bytes_per_sec is {config.transfer_rate_bytes_per_sec}",
            fix='transfer_rate_bytes_per_sec=1e9, or float("inf") if transfers cost nothing',
        )


def check_device_ids(devices: Sequence[Device]) -> None:
    """Several partitions refer to devices by their ids, so these have to differ."""
    seen: dict[int, Device] = {}
    for device in devices:
        if device.logical_id in seen:
            raise PartitionError(
                f"devices {seen[device.logical_id].name!r} and {device.name!r} have the same"
                f" logical_id {device.logical_id}",
                fix="give every device a logical_id of its own",
            )
        seen[device.logical_id] = device


def format_device_memory(devices: Sequence[Device]) -> str:
    """The devices' memory for a message; many devices of one size are said once."""
    sizes: dict[int, list[str]] = {}
    for device in devices:
        sizes.setdefault(device.available_mem_bytes, []).append(device.name)
    return ", ".join(
        f"{names[0]} {size:,} bytes"
        if len(names) == 1
        else f"{names[0]} and {len(names) - 1} more {size:,} bytes each"
        for size, names in sizes.items()
    )
