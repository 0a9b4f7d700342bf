"""Verification of what is right: every alarm is a difference, or a fault of verification.

    python -m tests.onnx.alarms --seeds 5 --operators add topk --models bert

Operators of PyTorch's database and whole models are exported with open sizes, where they can be,
and verified with values that each seed draws anew. An alarm is a report that is not ok, or anything
that `verify` raises. Those that are real differences are in `DIFFERENCES`, with their reasons.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

import graphport as gp
from graphport.onnx.verify import samples
from tests.onnx import sweep, zoo

SEEDS = 5
SAMPLES = 3
DTYPES = (torch.float32, torch.int64, torch.bool)

# What differs from eager, and why: these are faults of a lowering, or of eager.
DIFFERENCES: dict[str, str] = {
    "lu_unpack": "fewer pivots than rows at other sizes: eager reads beyond them",
    "nn.functional.conv_transpose2d": "no items, and a width of 0: ONNX Runtime refuses the width",
}


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
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of sizes."""

    def add(self, other: Tally) -> None:
        self.verified += other.verified
        self.outcomes.update(other.outcomes)


def check(program: gp.onnx.ONNXProgram, name: str, seed: int, tally: Tally) -> Iterator[Alarm]:
    """Verify with the values of a seed."""
    with mock.patch.object(samples, "_SEED", seed):
        try:
            report = program.verify(limit=4)
        except Exception as error:  # noqa: BLE001  nothing but a report may come of it
            yield Alarm(name, seed, f"{type(error).__name__}: {error}"[:1000])
            return
    tally.verified += 1
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
    try:
        program = gp.onnx.export(model, (), case.inputs, dynamic_shapes=case.spec(gp.Dim))
    except gp.errors.ConstraintViolationError:
        program = gp.onnx.export(model, (), case.inputs)
    yield from check(program, case.name, seed, tally)


Job = tuple[str, str, int]
"""`operator` or `model`, its name, and a seed."""


def work(jobs: list[Job], pipe: Any) -> None:
    """Do jobs one after the other, and tell of each before and after it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operators = {sweep.name_of(op): op for op in sweep.op_db}
    models = {case.name: case for case in zoo.cases()}
    for job in jobs:
        kind, name, seed = job
        tally = Tally()
        pipe.send((job, None, None))
        found = list(
            of_operator(operators[name], seed, tally)
            if kind == "operator"
            else of_model(models[name], seed, tally)
        )
        pipe.send((job, found, tally))


def done(jobs: list[Job]) -> Iterator[tuple[Job, list[Alarm], Tally]]:
    """What came of jobs, in a process of their own: a kernel may end it."""
    spawn = multiprocessing.get_context("spawn")
    while jobs:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(jobs, theirs))
        process.start()
        theirs.close()
        while True:
            try:
                job, found, tally = ours.recv()
            except EOFError:
                break
            jobs = jobs[jobs.index(job) :]
            if tally is not None:
                yield job, found, tally
                jobs = jobs[1:]
        process.join()
        if jobs:
            _, name, seed = jobs[0]
            alarm = Alarm(name, seed, f"the process ended with {process.exitcode}")
            yield jobs[0], [alarm], Tally()
            jobs = jobs[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operators", nargs="*", help="all, unless some are named")
    parser.add_argument("--models", nargs="*", help="all, unless some are named")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args()
    everything = options.operators is None and options.models is None
    seeds = range(options.first, options.first + options.seeds)
    jobs: list[Job] = []
    if everything or options.operators is not None:
        names = [sweep.name_of(op) for op in sweep.chosen(options.operators or ())]
        jobs += [("operator", name, seed) for seed in seeds for name in names]
    if everything or options.models is not None:
        names = [c.name for c in zoo.cases() if not options.models or c.name in options.models]
        jobs += [("model", name, seed) for seed in seeds for name in names]
    total, began, counts = Tally(), time.perf_counter(), Counter[str]()
    for i, ((_, name, _), found, tally) in enumerate(done(jobs)):
        total.add(tally)
        if i % 100 == 99:
            print(f"{i + 1} of {len(jobs)}: {total.verified} programs", file=sys.stderr, flush=True)
        known = DIFFERENCES.get(name)
        counts["differences" if known else "alarms"] += len(found)
        for alarm in found:
            print(f"known ({known}): {alarm}" if known else alarm, flush=True)
    print(f"{total.verified} programs at {sum(total.outcomes.values())} sizes: {total.outcomes}")
    print(
        f"{counts['alarms']} alarms, {counts['differences']} differences that are known, in "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if counts["alarms"] else 0


if __name__ == "__main__":
    sys.exit(main())
