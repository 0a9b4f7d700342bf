"""`optimal`: the smallest bottleneck or critical path that is found, with a bound.

Stages are spans of an order in which the graph may run, one per device. Several orders are tried,
and for each the best places to cut are found by dynamic programming, with the memory of each device
and the cost of transfers (bytes over the rate, for what a stage takes from earlier ones). For the
critical path, stages are then cut further and nodes moved.

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

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import ge
from typing import Any, NamedTuple

import numpy as np
from torch.fx import Node

from graphport.errors import PartitionError
from graphport.partition.config import Device, PartitionMode, format_device_memory
from graphport.partition.costs import (
    Problem,
    get_latency_of_one_partition,
    graph_bytes,
    make_whole_partition,
    node_seconds,
)
from graphport.partition.modes import aot_based
from graphport.partition.orders import Order, list_orders, weigh_order
from graphport.partition.partition import (
    SOURCE_OPS,
    Partition,
    count_bytes,
    get_effect_dependencies,
    output_bytes,
)
from graphport.partition.place import (
    fits_memory,
    map_nodes_to_partitions,
    reorganize_partitions,
    set_parents_and_children,
    sort_topologically,
)

SMALL = 40
MODERATE = 2000

Modes = Mapping[PartitionMode, Callable[[Problem], list[Partition]]]


@dataclass(eq=False)
class Plan:
    """Partitions, and what is known about them."""

    partitions: list[Partition]
    chosen: str
    bound: float | None = None
    exact: bool = False


def optimal(job: Problem, others: Modes) -> Plan:
    """The best of the pipelines over several orders and of what the other modes find."""
    plans = list(_plan_pipelines(job))
    plans += _plan_other_modes(job, others)
    if not plans:
        raise PartitionError(
            f"no way was found to spread the module over the devices: all of it needs"
            f" {graph_bytes(job):,} bytes, and values that one device takes from another need"
            f" memory on both; the devices have: {format_device_memory(job.devices)}",
            fix="more devices, or devices with more memory",
        )
    values = []
    for plan in plans:
        reorganize_partitions(plan.partitions)
        values.append(job.value(plan.partitions))
    value = min(values)
    # The first of equal ones: pipelines stand in front.
    plan = plans[values.index(value)]
    bound_plan(job, plan)
    return plan


def bound_plan(job: Problem, plan: Plan) -> None:
    """Say how good a plan is; what is `exact` stays so."""
    value = job.value(plan.partitions)
    plan.bound = value if plan.exact else min(value, _lower_bound(job, plan))
    plan.exact = plan.bound == value


def _plan_pipelines(job: Problem) -> Iterator[Plan]:
    """The best stages for each order."""
    weighed = [weigh_order(job, ops) for ops in list_orders(job)]
    needed = max(order.memory.most for order in weighed)
    fleet = make_fleet(job.devices, needed, len(job.ops))
    for order in weighed:
        stages, everywhere = _cut_order(job, order, fleet)
        if stages is not None:
            partitions = _make_partitions(job, order, stages)
            exact = order.is_chain and fleet.exact and everywhere
            yield Plan(partitions, f"{len(stages)} stages", exact=exact)
            if job.config.objective == "latency" and not order.is_chain:
                yield Plan(refine_stages(job, partitions), f"{len(stages)} stages, cut further")


def _cut_order(job: Problem, order: Order, fleet: Fleet) -> tuple[list[StageRange] | None, bool]:
    """Stages, and whether they were free to begin anywhere; between the parts of tuples if must."""
    for everywhere in (False, True):
        cutter = Cutter(order, fleet, everywhere)
        latency = job.config.objective == "latency"
        stages = cutter.least_transfer() if latency else cutter.least_bottleneck()
        if stages is not None or cutter.may_cut.all():
            break
    return stages, bool(cutter.may_cut.all())


def _make_partitions(job: Problem, order: Order, stages: list[StageRange]) -> list[Partition]:
    """Stages on devices with the memory that they were found for; the tightest first."""
    partitions = [Partition(i, order.ops[s.start : s.end]) for i, s in enumerate(stages)]
    free = sorted(job.devices, key=lambda d: d.available_mem_bytes)
    for stage in sorted(stages, key=lambda stage: stage.memory):
        device = next(d for d in free if d.available_mem_bytes >= stage.memory)
        free.remove(device)
        partitions[stages.index(stage)].logical_device_ids = [device.logical_id]
    return partitions


def _plan_other_modes(job: Problem, modes: Modes) -> Iterator[Plan]:
    if graph_bytes(job) <= job.largest.available_mem_bytes:
        yield Plan(make_whole_partition(job), "one device")
    tried: list[tuple[str, Callable[[Problem], list[Partition]]]] = [
        (mode.name, cut)
        for mode, cut in modes.items()
        if len(job.ops) <= _MODE_LIMITS.get(mode, SMALL)
    ]
    if job.config.node_to_partition_mapping and fits_memory(given := aot_based(job), job.devices):
        yield Plan(given, "node_to_partition_mapping")
    for name, cut in tried:
        try:
            yield Plan(cut(job), name)
        except PartitionError:
            continue  # a mode that finds nothing is no better


_MODE_LIMITS = {PartitionMode.size_based: 10**9, PartitionMode.sparse_nn: MODERATE}


def _lower_bound(job: Problem, plan: Plan) -> float:
    """Below this nothing can be that the plan was chosen from."""
    if job.config.objective == "latency":
        return get_latency_of_one_partition(
            make_whole_partition(job)[0], job.latencies
        ).overall_latency_sec
    costs = [node_seconds(job.latencies[node]) for node in job.ops]
    even = sum(costs) / len(job.devices)
    on_several = any(len(p.logical_device_ids) > 1 for p in plan.partitions)
    return even if on_several else max(even, *costs, 0.0)


# Cuts an order into stages, one per device: dynamic programming over the positions.
#
# A state says which devices are taken; a step takes one more. Devices of the same memory are alike,
# so a state is a number of devices per memory size. If that is too many states, the devices are
# taken in the order given, and any may be left out: that is not exact.

MAX_WORK = 5_000_000
"""Of steps times positions; what 50 passes over them take is then some seconds."""


class FleetStep(NamedTuple):
    """From one state to a later one, by a stage on a device of this kind; none: left out."""

    before: int
    after: int
    kind: int | None


class StageRange(NamedTuple):
    """The positions from `start` up to `end`, on a device with this memory."""

    start: int
    end: int
    memory: int


@dataclass(eq=False)
class Fleet:
    """The kinds of devices by memory, and the steps between the sets of those taken."""

    memory: list[int]
    states: int
    steps: list[FleetStep]
    exact: bool


def make_fleet(devices: Sequence[Device], needed: int, positions: int) -> Fleet:
    """`needed`: what a stage takes at most; devices with more are alike."""
    sizes = [min(d.available_mem_bytes, needed) for d in devices]
    memory = sorted(set(sizes), reverse=True)
    # More stages than positions there are not.
    counts = [min(sizes.count(size), positions) for size in memory]
    states = math.prod(count + 1 for count in counts)
    if states * len(memory) * (positions + 2000) > MAX_WORK and len(memory) > 1:
        steps = []
        for i, size in enumerate(sizes):
            steps += [FleetStep(i, i + 1, memory.index(size)), FleetStep(i, i + 1, None)]
        return Fleet(memory, len(sizes) + 1, steps, exact=False)
    strides = [math.prod(count + 1 for count in counts[:k]) for k in range(len(counts))]
    return Fleet(
        memory,
        states,
        [
            FleetStep(state, state + stride, kind)
            for state in range(states)
            for kind, (stride, count) in enumerate(zip(strides, counts, strict=True))
            if state // stride % (count + 1) < count
        ],
        exact=True,
    )


class Cutter:
    """Cuts one order into stages for one fleet."""

    def __init__(self, order: Order, fleet: Fleet, everywhere: bool = False) -> None:
        self.order, self.fleet = order, fleet
        self.n = len(order.ops)
        self.may_cut = order.may_cut | everywhere
        self.fits = [order.memory.reach(size) for size in fleet.memory]

    def least_bottleneck(self) -> list[StageRange] | None:
        """The stages whose slowest is fastest, or None if there is no way to cut.

        A bisection over the time: whether stages within it exist is one pass over the steps. The
        times are whole numbers, so that it ends with the smallest.
        """
        time = self.order.time
        best = self._within(time.most)
        if best is None:
            return None
        low = -1
        while True:
            high = max(time.weight(stage.start, stage.end) for stage in best)
            if high - low <= 1:
                return best
            middle = (low + high) // 2
            found = self._within(middle)
            if found is None:
                low = middle
            else:
                best = found

    def _within(self, limit: int) -> list[StageRange] | None:
        """Stages that all take at most this long, or None."""
        n = self.n
        quick = self.order.time.reach(limit)
        ends = [np.minimum(quick, fits) for fits in self.fits]
        reached: Any = np.zeros((self.fleet.states, n + 1), dtype=bool)
        reached[0, 0] = True
        for step in self.fleet.steps:
            if step.kind is None:
                reached[step.after] |= reached[step.before]
            else:
                starts = np.flatnonzero(reached[step.before, :n])
                if len(starts):
                    change: Any = -np.bincount(ends[step.kind][starts] + 1, minlength=n + 2)
                    change[starts + 1] += 1
                    reached[step.after] |= (np.cumsum(change)[: n + 1] > 0) & self.may_cut
            if reached[step.after, n]:
                return self._back(reached, ends, step.after)
        return None

    def _back(self, reached: Any, ends: list[Any], state: int) -> list[StageRange]:
        into: dict[int, list[FleetStep]] = {}
        for step in self.fleet.steps:
            into.setdefault(step.after, []).append(step)
        end, stages = self.n, []
        while end:
            for step in into[state]:
                if step.kind is None:
                    if reached[step.before, end]:
                        break
                    continue
                starts = np.flatnonzero(reached[step.before, :end] & (ends[step.kind][:end] >= end))
                if len(starts):
                    stages.append(StageRange(int(starts[0]), end, self.fleet.memory[step.kind]))
                    end = stages[-1].start
                    break
            state = step.before
        return stages[::-1]

    def least_transfer(self) -> list[StageRange] | None:
        """The stages between which the least is transferred, or None if there is no way to cut."""
        n = self.n
        crossing = [0, *self.order.crossing[1:].tolist()]
        fits = [reach.tolist() for reach in self.fits]
        may_cut = self.may_cut.tolist()
        cost = [[math.inf] * (n + 1) for _ in range(self.fleet.states)]
        cost[0][0] = 0
        least = cost[0]
        came: dict[tuple[int, int], tuple[FleetStep, int]] = {}
        for step in self.fleet.steps:
            source, target = cost[step.before], cost[step.after]
            if step.kind is None:
                for j in range(n + 1):
                    if source[j] < target[j]:
                        target[j] = source[j]
                        came[step.after, j] = step, j
                continue
            until = fits[step.kind]
            usable: list[tuple[float, int]] = []
            for j in range(1, n + 1):
                i = j - 1
                if source[i] < math.inf and until[i] > i:
                    heapq.heappush(usable, (source[i] + crossing[i], i))
                while usable and until[usable[0][1]] < j:
                    heapq.heappop(usable)
                if usable and may_cut[j] and usable[0][0] < target[j]:
                    target[j] = usable[0][0]
                    came[step.after, j] = step, usable[0][1]
            if len(fits) == 1:
                # Devices that are all alike: once another one helps nowhere, more do not either.
                if all(map(ge, target, least)):
                    break
                least = list(map(min, target, least))
        state = min(range(self.fleet.states), key=lambda state: cost[state][n])
        if cost[state][n] == math.inf:
            return None
        stages, end = [], n
        while end:
            step, start = came[state, end]
            if step.kind is not None:
                stages.append(StageRange(start, end, self.fleet.memory[step.kind]))
            state, end = step.before, start
        return stages[::-1]


# Moves nodes between devices while the critical path becomes shorter.
#
# With every node a partition of its own there are no circles to avoid: only memory limits what is
# where. Each step looks at the transfers on the critical path, and moves one end of one to the
# other device, alone or with the part of the path that is with it.

NodeDevices = dict[Node, int]
"""The device of each node."""

MAX_MOVES = 200


def move_nodes(job: Problem, homes: Mapping[Node, int]) -> NodeDevices:
    """The best places that single steps lead to."""
    memory = {d.logical_id: d.available_mem_bytes for d in job.devices}
    best, path = dict(homes), _find_critical_path(job, homes)
    least = path[0]
    for _ in range(MAX_MOVES):
        found = None
        for nodes, there in _propose_moves(path[1], best):
            trial = {**best, **dict.fromkeys(nodes, there)}
            # What stays behind takes what was moved from elsewhere, and may need more than before.
            if any(_count_device_bytes(trial, d) > memory[d] for d in (there, best[nodes[0]])):
                continue
            new = _find_critical_path(job, trial)
            if new[0] < least:
                found, least, path = trial, new[0], new
        if found is None:
            break
        best = found
    return best


def _find_critical_path(job: Problem, homes: Mapping[Node, int]) -> tuple[float, list[Node]]:
    """How long the critical path is, and its nodes."""
    until: dict[Node, float] = {}
    came: dict[Node, Node | None] = {}
    for node in job.ops:
        start, last = 0.0, None
        for value in (*node.all_input_nodes, *get_effect_dependencies(node)):
            if value not in until:
                continue
            ready = until[value]
            if homes[value] != homes[node] and node in value.users:
                ready += output_bytes(value) / job.rate
            if ready > start:
                start, last = ready, value
        until[node] = start + node_seconds(job.latencies[node])
        came[node] = last
    at: Node | None = max(job.ops, key=until.__getitem__)
    length, path = until[at], []
    while at is not None:
        path.append(at)
        at = came[at]
    return length, path[::-1]


def _propose_moves(path: list[Node], homes: Mapping[Node, int]) -> Iterator[tuple[list[Node], int]]:
    """What could go where: for each transfer on a path, either end, and all that is with it."""
    runs: list[list[Node]] = []
    for node in path:
        if not runs or homes[runs[-1][-1]] != homes[node]:
            runs.append([])
        runs[-1].append(node)
    for before, after in pairwise(runs):
        here, there = homes[before[0]], homes[after[0]]
        yield before[-1:], there
        yield before, there
        yield after[:1], here
        yield after, here


def _count_device_bytes(homes: Mapping[Node, int], device: int) -> int:
    nodes = {node for node, home in homes.items() if home == device}
    nodes |= {v for node in nodes for v in node.all_input_nodes if v.op in SOURCE_OPS}
    return count_bytes(nodes)


# Refines stages to several partitions each, so that no node waits for more than it has to.
#
# A partition begins when all that it takes is there, and its results are there when all of it is
# done. Partitions on one device hand each other values for nothing, so a stage that is cut further
# never makes the critical path longer. The finest cut, every node alone, is the shortest; nodes are
# then put together again as long as that stays so.

MAX_REFINED_NODES = 400
"""Nodes up to which they are put together one by one: that takes the square of their number."""

TOLERANCE = 1 + 1e-12
"""Sums of times in another order differ by less."""


def refine_stages(job: Problem, stages: Sequence[Partition]) -> list[Partition]:
    """Stages cut further, with a critical path as short as can be; up to a count, nodes also moved.

    The count is MAX_REFINED_NODES. `stages` run one after the other, none needs one behind it.
    """
    best = min(
        (list(stages), _group_nodes(stages)), key=lambda parts: _relink_and_measure(job, parts)
    )
    if len(job.ops) > MAX_REFINED_NODES:
        return best
    homes = move_nodes(job, {n: p.logical_device_ids[0] for p in stages for n in p.ops()})
    alone = [_make_partition([node], homes[node]) for node in job.ops]
    least = _relink_and_measure(job, alone) * TOLERANCE
    return best if _relink_and_measure(job, best) <= least else _merge_partitions(job, alone, least)


def _relink_and_measure(job: Problem, partitions: Sequence[Partition]) -> float:
    reorganize_partitions(partitions)
    return job.latency(partitions)


def _make_partition(nodes: list[Node], device: int) -> Partition:
    partition = Partition(0, nodes)
    partition.logical_device_ids = [device]
    return partition


def _group_nodes(stages: Sequence[Partition]) -> list[Partition]:
    """Nodes of a stage together that need the same stages, and that the same stages need.

    Along an edge what is needed grows, and what needs it shrinks: groups do not wait for each other
    in circles.
    """
    of = {node: i for i, stage in enumerate(stages) for node in stage.ops()}
    ops = [node for stage in stages for node in stage.ops()]
    needs: dict[Node, int] = {}
    needed: dict[Node, int] = dict.fromkeys(ops, 0)
    for node in ops:
        needs[node] = 0
        for before in (*node.all_input_nodes, *get_effect_dependencies(node)):
            if before in of:
                needs[node] |= needs[before] | 1 << of[before]
    for node in reversed(ops):
        for before in (*node.all_input_nodes, *get_effect_dependencies(node)):
            if before in of:
                needed[before] |= needed[node] | 1 << of[node]
    groups: dict[tuple[int, int, int], list[Node]] = {}
    for node in ops:
        own = ~(1 << of[node])
        groups.setdefault((of[node], needs[node] & own, needed[node] & own), []).append(node)
    return [
        _make_partition(nodes, stages[stage].logical_device_ids[0])
        for (stage, _, _), nodes in groups.items()
    ]


def _merge_partitions(job: Problem, partitions: list[Partition], least: float) -> list[Partition]:
    """Partitions put together with those whose values they take, as long as it costs nothing."""
    for node in job.ops:
        for value in node.all_input_nodes:
            of = map_nodes_to_partitions(partitions)
            a, b = of.get(value), of[node]
            if a is None or a is b or a.logical_device_ids != b.logical_device_ids:
                continue
            both = _make_partition([*a.ops(), *b.ops()], a.logical_device_ids[0])
            trial = [both if p is b else p for p in partitions if p is not a]
            set_parents_and_children(trial)
            if sort_topologically(trial) is not None and job.latency(trial) <= least:
                partitions = trial
    return partitions
