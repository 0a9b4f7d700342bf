"""`optimal`: the smallest bottleneck, or the shortest critical path, that can be found and proven.

Stages are spans of an order in which the graph may run, one per device. Several orders are tried,
and for each the best places to cut are found by dynamic programming, with the memory of each device
and the cost of transfers (bytes over the rate, for what a stage takes from earlier ones). For the
critical path, stages are then cut further and nodes moved (`refining`, `moving`).

What is proven:
- For a chain, where each node takes values from the one before it only, the result is the best of
  all with one stage per device (`exact`). Which device takes which stage is free. If there are so
  many different memory sizes that this would take long, devices are taken as listed, and `exact`
  stays False.
- For other graphs `bound` says below what nothing can be: for the bottleneck the slowest node, and
  all nodes evenly over all devices; for the critical path that of the nodes without transfers. If
  memory allows every cut, the bottleneck is at most an even share, plus the slowest node, plus the
  largest transfer at a cut: below twice `bound` plus that transfer.
- The result is never worse than `size_based`, the whole on one device, or the partitions given as
  `node_to_partition_mapping`, nor than `sparse_nn` up to MODERATE and `cost_aware` and `kl_based`
  up to SMALL nodes: these are tried too. They may put several partitions on a device, or one on
  several, which a stage per device does not; `bound` is then that of all nodes evenly over all
  devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from graphport.errors import PartitionError
from graphport.partition.aot_based import aot_based
from graphport.partition.config import PartitionMode, memory_of
from graphport.partition.cutting import Cutter, Fleet, Stage, make_fleet
from graphport.partition.jobs import Job, graph_bytes, whole
from graphport.partition.latency import get_latency_of_one_partition, node_seconds
from graphport.partition.linking import reorganize_partitions
from graphport.partition.orders import Order, orders, weigh
from graphport.partition.pieces import Partition
from graphport.partition.placing import fits
from graphport.partition.refining import refined

SMALL = 40
MODERATE = 2000

Modes = Mapping[PartitionMode, Callable[[Job], list[Partition]]]


@dataclass(eq=False)
class Plan:
    """Partitions, and what is known about them."""

    partitions: list[Partition]
    chosen: str
    bound: float | None = None
    exact: bool = False


def optimal(job: Job, others: Modes) -> Plan:
    """The best of the pipelines over several orders and of what the other modes find."""
    plans = list(_pipelines(job))
    plans += _others(job, others)
    if not plans:
        raise PartitionError(
            f"no way was found to spread the module over the devices: all of it needs"
            f" {graph_bytes(job):,} bytes, and values that one device takes from another need"
            f" memory on both; the devices have: {memory_of(job.devices)}",
            fix="more devices, or devices with more memory",
        )
    values = []
    for plan in plans:
        reorganize_partitions(plan.partitions)
        values.append(job.value(plan.partitions))
    value = min(values)
    # The first of equal ones: pipelines stand in front.
    plan = plans[values.index(value)]
    prove(job, plan)
    return plan


def prove(job: Job, plan: Plan) -> None:
    """Say how good a plan is; what is `exact` stays so."""
    value = job.value(plan.partitions)
    plan.bound = value if plan.exact else min(value, _bound(job, plan))
    plan.exact = plan.bound == value


def _pipelines(job: Job) -> Iterator[Plan]:
    """The best stages for each order."""
    weighed = [weigh(job, ops) for ops in orders(job)]
    needed = max(order.memory.most for order in weighed)
    fleet = make_fleet(job.devices, needed, len(job.ops))
    for order in weighed:
        stages, everywhere = _cut(job, order, fleet)
        if stages is not None:
            partitions = _partitions(job, order, stages)
            exact = order.is_chain and fleet.exact and everywhere
            yield Plan(partitions, f"{len(stages)} stages", exact=exact)
            if job.config.objective == "latency" and not order.is_chain:
                yield Plan(refined(job, partitions), f"{len(stages)} stages, cut further")


def _cut(job: Job, order: Order, fleet: Fleet) -> tuple[list[Stage] | None, bool]:
    """Stages, and whether they were free to begin anywhere; between the parts of tuples if must."""
    for everywhere in (False, True):
        cutter = Cutter(order, fleet, everywhere)
        latency = job.config.objective == "latency"
        stages = cutter.least_transfer() if latency else cutter.least_bottleneck()
        if stages is not None or cutter.may_cut.all():
            break
    return stages, bool(cutter.may_cut.all())


def _partitions(job: Job, order: Order, stages: list[Stage]) -> list[Partition]:
    """Stages on devices with the memory that they were found for; the tightest first."""
    partitions = [Partition(i, order.ops[s.start : s.end]) for i, s in enumerate(stages)]
    free = sorted(job.devices, key=lambda d: d.available_mem_bytes)
    for stage in sorted(stages, key=lambda stage: stage.memory):
        device = next(d for d in free if d.available_mem_bytes >= stage.memory)
        free.remove(device)
        partitions[stages.index(stage)].logical_device_ids = [device.logical_id]
    return partitions


def _others(job: Job, modes: Modes) -> Iterator[Plan]:
    if graph_bytes(job) <= job.largest.available_mem_bytes:
        yield Plan(whole(job), "one device")
    tried: list[tuple[str, Callable[[Job], list[Partition]]]] = [
        (mode.name, cut) for mode, cut in modes.items() if len(job.ops) <= _LIMITS.get(mode, SMALL)
    ]
    if job.config.node_to_partition_mapping and fits(given := aot_based(job), job.devices):
        yield Plan(given, "node_to_partition_mapping")
    for name, cut in tried:
        try:
            yield Plan(cut(job), name)
        except PartitionError:
            continue  # a mode that finds nothing is no better


_LIMITS = {PartitionMode.size_based: 10**9, PartitionMode.sparse_nn: MODERATE}


def _bound(job: Job, plan: Plan) -> float:
    """Below this nothing can be that the plan was chosen from."""
    if job.config.objective == "latency":
        return get_latency_of_one_partition(whole(job)[0], job.latencies).overall_latency_sec
    costs = [node_seconds(job.latencies[node]) for node in job.ops]
    even = sum(costs) / len(job.devices)
    on_several = any(len(p.logical_device_ids) > 1 for p in plan.partitions)
    return even if on_several else max(even, *costs, 0.0)
