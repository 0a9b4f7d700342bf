"""Where to cut an order into stages, one per device: dynamic programming over the positions.

A state says which devices are taken; a step takes one more. Devices of the same memory are alike,
so a state is a number of devices per memory size. If that is too many states, the devices are taken
in the order given, and any may be left out: that is not exact.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge
from typing import Any, NamedTuple

import numpy as np

from graphport.partition.config import Device
from graphport.partition.orders import Order

MAX_WORK = 5_000_000
"""Of steps times positions; what 50 passes over them take is then some seconds."""


class Step(NamedTuple):
    """From one state to a later one, by a stage on a device of this kind; none: left out."""

    before: int
    after: int
    kind: int | None


class Stage(NamedTuple):
    """The positions from `start` up to `end`, on a device with this memory."""

    start: int
    end: int
    memory: int


@dataclass(eq=False)
class Fleet:
    """The kinds of devices by memory, and the steps between the sets of those taken."""

    memory: list[int]
    states: int
    steps: list[Step]
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
            steps += [Step(i, i + 1, memory.index(size)), Step(i, i + 1, None)]
        return Fleet(memory, len(sizes) + 1, steps, exact=False)
    strides = [math.prod(count + 1 for count in counts[:k]) for k in range(len(counts))]
    return Fleet(
        memory,
        states,
        [
            Step(state, state + stride, kind)
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

    def least_bottleneck(self) -> list[Stage] | None:
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

    def _within(self, limit: int) -> list[Stage] | None:
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

    def _back(self, reached: Any, ends: list[Any], state: int) -> list[Stage]:
        into: dict[int, list[Step]] = {}
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
                    stages.append(Stage(int(starts[0]), end, self.fleet.memory[step.kind]))
                    end = stages[-1].start
                    break
            state = step.before
        return stages[::-1]

    def least_transfer(self) -> list[Stage] | None:
        """The stages between which the least is transferred, or None if there is no way to cut."""
        n = self.n
        crossing = [0, *self.order.crossing[1:].tolist()]
        fits = [reach.tolist() for reach in self.fits]
        may_cut = self.may_cut.tolist()
        cost = [[math.inf] * (n + 1) for _ in range(self.fleet.states)]
        cost[0][0] = 0
        least = cost[0]
        came: dict[tuple[int, int], tuple[Step, int]] = {}
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
                stages.append(Stage(start, end, self.fleet.memory[step.kind]))
            state, end = step.before, start
        return stages[::-1]
