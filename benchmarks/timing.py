"""How long calls take, of contenders that share a machine."""

from __future__ import annotations

import operator
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

ROW = 4
"""Calls in a row, after one that does not count: it finds the caches as another contender left
them, and that one's threads may still spin on the cores."""
PAUSE = 0.05
"""Seconds in which such threads go to sleep. Without, two threads are no faster than one here."""
LEAST = 12
"""Rounds, however long they take."""

Rounds = dict[str, list[float]]
"""Seconds per call by contender, one number for each round."""


def in_turn(runs: Mapping[str, Callable[[], Any]], seconds: float) -> Rounds:
    """Each contender once a round, in another order each time, for `seconds` per contender."""
    order = random.Random(0)
    rounds: Rounds = {name: [] for name in runs}
    until = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < until or len(min(rounds.values(), key=len)) < LEAST:
        for name, run in order.sample(list(runs.items()), len(runs)):
            time.sleep(PAUSE)
            run()
            rounds[name].append(statistics.median(_seconds(run) for _ in range(ROW)))
    return rounds


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def usual(rounds: Rounds, name: str) -> float:
    """Seconds per call, the median."""
    return statistics.median(rounds[name])


def ratio(rounds: Rounds, over: str, under: str) -> float:
    """How many times longer `over` takes, the median of the rounds.

    What slows the machine for longer than a round slows both, and does not count.
    """
    return statistics.median(map(operator.truediv, rounds[over], rounds[under]))
