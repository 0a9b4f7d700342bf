"""Many programs, in several processes; one that dies or hangs is a failure of its program."""

from __future__ import annotations

import multiprocessing
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.checks import Failure, Tally, check
from tests.fuzz.program import generate

PATIENCE = 120.0
"""Seconds after which a program hangs."""
TOGETHER = 500
"""Programs that a process runs before it makes room for another."""


@dataclass
class Options:
    programs: int = 1000
    seed: int = 0
    processes: int = 0
    """Where 0, everything runs in this one, which dies with a program that does."""
    compile_share: float = 0.0
    without: tuple[str, ...] = ()
    failures: Path | None = None


def run_one(options: Options, number: int) -> Tally:
    """Generate the program of that number, and check it."""
    name = f"{options.seed}:{number}"
    compile_it = random.Random(f"{name}:compile").random() < options.compile_share
    try:
        program = generate(options.seed, number, options.without)
    except Exception:
        return _fault(name, "generated", traceback.format_exc())
    try:
        return check(program, compile_it)
    except Exception:
        return _fault(name, "checked", traceback.format_exc(), program.parts)


def _fault(name: str, route: str, detail: str, parts: dict[str, Any] | None = None) -> Tally:
    """The generator itself is at fault."""
    return Tally(programs=1, failures=[Failure(name, route, "fault", "", detail, parts or {})])


def run(options: Options) -> Tally:
    total = Tally()
    began = time.perf_counter()
    shown = began
    for tally in _tallies(options):
        total.add(tally)
        if options.failures is not None and tally.failures:
            with options.failures.open("a") as file:
                file.writelines(f.as_json() + "\n" for f in tally.failures)
        now = time.perf_counter()
        if options.processes and now - shown > 30:
            shown = now
            rate = total.programs / (now - began)
            print(
                f"{total.programs} programs, {rate:.1f} per second, {len(total.failures)} failures",
                file=sys.stderr,
                flush=True,
            )
    return total


def _tallies(options: Options) -> Iterator[Tally]:
    if not options.processes:
        for number in range(options.programs):
            yield run_one(options, number)
        return
    starts = range(0, options.programs, TOGETHER)
    todo = [(start, min(start + TOGETHER, options.programs)) for start in reversed(starts)]
    workers: list[Worker] = []
    while todo or workers:
        while todo and len(workers) < options.processes:
            workers.append(Worker(options, *todo.pop()))
        wait([w.results for w in workers], timeout=5)
        for worker in list(workers):
            yield from worker.finished()
            if worker.ended:
                workers.remove(worker)
                if worker.next < worker.stop:
                    todo.append((worker.next, worker.stop))


class Worker:
    """A process that runs programs one after the other."""

    def __init__(self, options: Options, start: int, stop: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.options, self.next, self.stop = options, start, stop
        self.results, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(theirs, options, start, stop))
        self.process.start()
        theirs.close()
        self.since = time.perf_counter()
        self.ended = False

    def finished(self) -> Iterator[Tally]:
        try:
            while self.results.poll():
                yield self.results.recv()
                self.next += 1
                self.since = time.perf_counter()
        except EOFError:
            self.process.join()
            self.ended = True
            if self.next < self.stop:
                yield self._lost("crash", f"exit code {self.process.exitcode}")
        else:
            if time.perf_counter() - self.since > PATIENCE:
                self.process.kill()
                self.process.join()
                self.ended = True
                yield self._lost("hang", f"more than {PATIENCE} s")

    def _lost(self, kind: str, detail: str) -> Tally:
        seed, number = self.options.seed, self.next
        self.next += 1
        parts = generate(seed, number, self.options.without).parts
        failure = Failure(f"{seed}:{number}", "any", kind, "", detail, parts)
        return Tally(programs=1, failures=[failure])


def _work(results: Connection, options: Options, start: int, stop: int) -> None:
    torch.set_num_threads(1)
    for number in range(start, stop):
        results.send(run_one(options, number))
    results.close()


# What is told

KINDS = {
    "at the call: a size that the example or Dim does not allow": r"at the call.*(shape|requires)|"
    r"at the call.*Runtime assertion",
    "at the call: another layout, on which the program depends": r"at the call.*(strides|offset)",
    "at the call: inputs that share memory, one of which is written to": r"at the call.*memory",
    "at export: a write that has no functional form, or to shared memory": r"MutationError",
    "at export: a size or a branch that needs more than Dim says": r"ConstraintViolation|SizeWarn",
    "at export: depends on data": r"DataDependentError",
    "at export: no ONNX lowering": r"MissingLoweringError",
    "at export: not supported": r"UnsupportedError",
}


def by_kind(refusals: Counter[str]) -> Counter[str]:
    """Refusals by what they are about, the first kind that a text fits."""
    found: Counter[str] = Counter()
    for text, count in refusals.items():
        fits = (kind for kind, pattern in KINDS.items() if re.search(pattern, text))
        found[next(fits, "other")] += count
    return found


def summary(total: Tally, most: int = 40) -> str:
    lines = [f"{total.programs} programs"]
    sections: list[tuple[str, Counter[Any]]] = [
        ("checks", total.checks),
        ("refusals by kind", by_kind(total.refusals)),
        ("refusals", total.refusals),
        ("excused", total.excused),
        ("accepted, where eager raises", total.accepted),
        ("failures", Counter(f"{f.route}: {f.kind}" for f in total.failures)),
    ]
    for title, counts in sections:
        lines.append(f"\n{title}: {sum(counts.values())}")
        for text, count in counts.most_common(most):
            lines.append(f"{count:8d}  {text.splitlines()[0]}")
    return "\n".join(lines)
