"""Saving and loading programs, against torch's own; each contender the one that it captured."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.huggingface import Case

GRAPHPORT, TORCH = "graphport", "torch"


@dataclass
class Times:
    """Seconds of each repetition by contender, or why it failed."""

    program: str
    what: str
    runs: dict[str, list[float]] = field(default_factory=lambda: {GRAPHPORT: [], TORCH: []})
    errors: dict[str, str] = field(default_factory=dict)

    def least(self, name: str) -> float | None:
        return min(self.runs[name]) if self.runs[name] and name not in self.errors else None

    @property
    def ratio(self) -> float | None:
        ours, theirs = self.least(GRAPHPORT), self.least(TORCH)
        return theirs / ours if ours and theirs else None


def clocked(times: Times, name: str, work: Callable[[], Any]) -> None:
    """One repetition, in wall time: files wait for the disk."""
    if name in times.errors:
        return
    gc.collect()
    start = time.perf_counter()
    try:
        work()
    except Exception as error:
        lines = str(error).strip().splitlines()
        times.errors[name] = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
    else:
        times.runs[name].append(time.perf_counter() - start)


def captured(case: Case) -> dict[str, Any]:
    import graphport as gp

    given = (case.model, case.args, case.kwargs)
    ours = gp.export(*given, dynamic_shapes=case.spec(gp.Dim))
    spec = case.spec(torch.export.Dim)
    theirs = torch.export.export(*given, dynamic_shapes=spec, strict=False)
    return {GRAPHPORT: ours, TORCH: theirs}


def linear_layers(megabytes: int) -> Case:
    """Weights and little else, in layers of 64 MB."""
    layers = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(megabytes // 64)]
    spec = lambda Dim: {"input": {0: Dim("batch", min=1, max=64)}}  # noqa: E731
    return Case(torch.nn.Sequential(*layers).eval(), (torch.randn(2, 4096),), {}, spec)


def times(title: str, case: Case, repeats: int) -> list[Times]:
    """Each to and from a file of its own."""
    import graphport as gp

    programs = captured(case)
    save, load = Times(title, "save"), Times(title, "load")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.gpx", Path(folder) / "theirs.pt2"
        for _ in range(repeats):
            clocked(save, GRAPHPORT, lambda: gp.save(programs[GRAPHPORT], ours))
            clocked(save, TORCH, lambda: torch.export.save(programs[TORCH], theirs))
            clocked(load, GRAPHPORT, lambda: gp.load(ours))
            clocked(load, TORCH, lambda: torch.export.load(theirs))
    return [save, load]
