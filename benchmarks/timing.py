"""How long calls take, of contenders that share a machine."""

from __future__ import annotations

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
LEAST = 4
"""Rows of each, however long they take."""


def in_turn(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Seconds per call, medians; in another order each time, for `seconds` per contender."""
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in runs}
    until = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < until or len(min(times.values(), key=len)) < LEAST * ROW:
        for name, run in order.sample(list(runs.items()), len(runs)):
            time.sleep(PAUSE)
            run()
            for _ in range(ROW):
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}
