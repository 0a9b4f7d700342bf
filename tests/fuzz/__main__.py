"""Random whole programs on every route: `python -m tests.fuzz --programs 2000 --seed 7`."""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from pathlib import Path

import torch

from tests.fuzz.checks import Failure
from tests.fuzz.program import Program, generate
from tests.fuzz.run import Options, run, run_one, summary
from tests.fuzz.shrink import reproducer, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="a new one unless it is given")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--compile-share", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--failures", type=Path, help="a file for failures, a line of JSON each")
    parser.add_argument("--show", metavar="SEED:NUMBER", help="one program: shrink its failure")
    parser.add_argument("--shrink", type=Path, help="a file of failures: shrink one of each kind")
    parser.add_argument("--without", nargs="*", default=(), metavar="TABLE", help="of operators")
    line = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if line.seed is None else line.seed
    options = Options(
        line.programs, seed, line.processes, line.compile_share, tuple(line.without), line.failures
    )
    if line.show:
        return show(line.show, options)
    if line.shrink:
        return shrink_all(line.shrink)
    print(f"seed {seed}", flush=True)
    total = run(options)
    print(summary(total))
    return 1 if total.failures else 0


def show(name: str, options: Options) -> int:
    torch.set_num_threads(1)
    options.seed, number = map(int, name.split(":"))
    program = generate(options.seed, number, options.without)
    failures = run_one(options, number).failures
    if not failures:
        print(program.source)
        return 0
    for failure in {f.signature: f for f in reversed(failures)}.values():
        print(reproducer(*shrink(copy.deepcopy(program), failure)))
    return 1


def shrink_all(file: Path) -> int:
    torch.set_num_threads(1)
    seen: set[str] = set()
    for line in file.read_text().splitlines():
        failure = Failure(**json.loads(line))
        if failure.kind in ("crash", "hang", "fault") or failure.program in seen:
            continue
        seen.add(failure.program)
        print(reproducer(*shrink(Program.of_parts(failure.parts), failure)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
