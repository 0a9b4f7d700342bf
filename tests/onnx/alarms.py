"""Verification of what is right: every alarm is a difference, or a fault of verification.

    python -m tests.onnx.alarms --seeds 5 --operators add topk --models bert

Operators of PyTorch's database and whole models are exported with open sizes, where they can be,
and verified with values that each seed draws anew. An alarm is a report that is not ok, or anything
that `verify` raises. Those that are real differences are in `DIFFERENCES`, with their reasons.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import graphport as gp
from graphport.onnx import samples
from tests.onnx import sweep, zoo

SEEDS = 5
SAMPLES = 3
DTYPES = (torch.float32, torch.int64, torch.bool)

# What differs from eager, and why: these are faults of a lowering, or of eager.
DIFFERENCES: dict[str, str] = {}


@dataclass(frozen=True)
class Alarm:
    """What verification says against a program."""

    name: str
    seed: int
    what: str

    def __str__(self) -> str:
        return f"ALARM {self.name} seed {self.seed}: {self.what}"


@dataclass
class Tally:
    """What came of all programs."""

    verified: int = 0
    sizes: int = 0
    outcomes: Counter[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.outcomes = Counter()


def check(program: gp.onnx.ONNXProgram, name: str, seed: int, tally: Tally) -> Iterator[Alarm]:
    """Verify with the values of a seed."""
    with mock.patch.object(samples, "_SEED", seed):
        try:
            report = program.verify(limit=4)
        except Exception as error:  # noqa: BLE001  nothing but a report may come of it
            yield Alarm(name, seed, f"{type(error).__name__}: {error}"[:1000])
            return
    tally.verified += 1
    tally.sizes += len(report.sizes_tried)
    tally.outcomes.update(t.outcome for t in report.sizes_tried)
    if not report.ok or report.notes:
        yield Alarm(name, seed, f"\n{report}")


def of_operator(op: Any, seed: int, tally: Tally, limit: int = SAMPLES) -> Iterator[Alarm]:
    """The first samples of the first dtype that an operator takes."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    torch.manual_seed(seed)
    for i, sample in enumerate(sweep.samples(op, dtype, limit)):
        fn, inputs = sweep.case(op.op, sample)
        if sweep.eager(fn, inputs) is None:
            continue
        program = exported(fn, inputs)
        if program is not None:
            yield from check(program, f"{sweep.name_of(op)} {i}", seed, tally)


def exported(fn: Any, inputs: Any) -> Any:
    """With every size open; with none, where that is refused; None if it cannot be exported."""
    for export in (sweep.graphport_dynamic, sweep.graphport):
        try:
            return export(fn, inputs)
        except gp.errors.ExportError:
            continue
    return None


def of_model(case: zoo.Case, seed: int, tally: Tally) -> Iterator[Alarm]:
    with torch.random.fork_rng(devices=[]), mock.patch.object(torch, "manual_seed"):
        torch.random.default_generator.manual_seed(seed)
        model = case.build()
    program = gp.onnx.export(model, (), case.inputs, dynamic_shapes=case.spec(gp.Dim))
    yield from check(program, case.name, seed, tally)


def alarms(
    operators: Iterable[str] | None, models: Iterable[str] | None, seeds: int, tally: Tally
) -> Iterator[Alarm]:
    for case in zoo.cases() if models is not None else ():
        if not models or case.name in models:
            for seed in range(seeds):
                yield from of_model(case, seed, tally)
    for op in sweep.chosen(operators) if operators is not None else ():
        for seed in range(seeds):
            yield from of_operator(op, seed, tally)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operators", nargs="*", help="all, unless some are named")
    parser.add_argument("--models", nargs="*", help="all, unless some are named")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    operators, models = options.operators, options.models
    if operators is None and models is None:
        operators = models = []
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally, began, found = Tally(), time.perf_counter(), 0
    for alarm in alarms(operators, models, options.seeds, tally):
        known = DIFFERENCES.get(alarm.name.split()[0])
        found += known is None
        print(f"known ({known}): {alarm}" if known else alarm, flush=True)
    seconds = time.perf_counter() - began
    print(f"{tally.verified} programs at {tally.sizes} sizes {dict(tally.outcomes)}")
    print(f"{found} alarms in {seconds:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
