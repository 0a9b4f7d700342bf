"""Real signals, at random times, to a process that exports one program after another.

    python -m tests.signals 10000

Prints how many came, how many Python itself dropped (in a destructor), and what was not as before.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from time import monotonic
from typing import Any

from tests.interrupts import difference, model_state, process_state
from tests.test_process import TORCH_AROUND, WAYS

_PESTERER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGINT)
"""
_SPREAD = 0.06
"""Seconds within which a signal comes: about as long as an export takes."""


def pester(count: int, seed: int = 0) -> dict[str, Any]:
    """Interrupt exports of all kinds; what was found after each interrupt."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    ways = [(n, run, make()) for n, (run, make) in WAYS.items() if n not in TORCH_AROUND]
    for _ in range(2):
        for _, run, model in ways:
            run(model)
    with subprocess.Popen(
        [sys.executable, "-c", _PESTERER], stdin=subprocess.PIPE, text=True, bufsize=1
    ) as other:
        assert other.stdin is not None
        before, own = process_state(), [model_state(model) for _, _, model in ways]
        for _ in range(count):
            i = draw.randrange(len(ways))
            name, run, model = ways[i]
            delay = draw.random() * _SPREAD
            until = monotonic() + delay + 2
            try:
                other.stdin.write(f"{delay}\n")
                while monotonic() < until:
                    run(model)
                found["dropped by Python"] += 1
            except KeyboardInterrupt:
                found[f"interrupts of {name}"] += 1
            changed = difference(before, process_state()) + difference(own[i], model_state(model))
            for what in changed:
                found[f"LEFT {name}: {what}"] += 1
            if changed:
                before, own[i] = process_state(), model_state(model)
        other.stdin.close()
    for _, run, model in ways:
        run(model)
    return dict(found)


if __name__ == "__main__":
    # A process that is started in the background of a script ignores interrupts, and so do its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = tempfile.mkdtemp()
    print(json.dumps(pester(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
