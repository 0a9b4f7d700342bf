"""This checkout against another commit of it: capture, ONNX export, import, calls of the backend.

    python benchmarks/against.py --commit main~20

Each has a process with its own sources, which measures when it is told to: they take turns, in
another order each round, and a row shows the median of the rounds' ratios. Above 1 is slower. Time
is that of the processor, which other work on the machine does not change much.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAYERS = 4
CALLS = 200
IMPORT = """
import torch, time
began = time.process_time()
import graphport
graphport.export, graphport.onnx.export
print(time.process_time() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commit", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    line = parser.parse_args()
    if line.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", line.commit, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        sides = [Side(ROOT / "src"), Side(Path(folder) / "src")]
        print(f"| task | here, ms | {line.commit}, ms | ratio |\n| --- | --- | --- | --- |")
        for task in sides[0].tasks:
            here, there = measure(sides, task, line.rounds)
            ratio = statistics.median(a / b for a, b in zip(here, there, strict=True))
            times = " | ".join(f"{statistics.median(t) * 1e3:.3f}" for t in (here, there))
            print(f"| {task} | {times} | {ratio:.3f} |", flush=True)
        for side in sides:
            side.close()


class Side:
    """A process that runs graphport from a folder."""

    def __init__(self, source: Path) -> None:
        # As installed: compiled, in both.
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
        self._env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--commit", "", "--serve"],
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tasks = ["import", *self._answer().split()]

    def run(self, task: str) -> float:
        if task == "import":
            command = [sys.executable, "-c", IMPORT]
            return float(subprocess.check_output(command, env=self._env, text=True))
        assert self._process.stdin is not None
        print(task, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a process has ended: its error is above")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(sides: list[Side], task: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both, by round. The first one warms up."""
    order = random.Random(0)
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds + 1):
        for k in order.sample([0, 1], 2):
            seconds = sides[k].run(task)
            if i:
                times[k].append(seconds)
    return times


def serve() -> None:
    """Answer the name of a task with the seconds that it took."""
    warnings.simplefilter("ignore")
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    tasks = make_tasks()
    print(*tasks, file=results, flush=True)
    for line in sys.stdin:
        print(tasks[line.strip()](), file=results, flush=True)


def make_tasks() -> dict[str, Callable[[], float]]:
    import torch

    import graphport as gp
    from examples import huggingface as models

    torch.set_num_threads(1)
    tasks: dict[str, Callable[[], float]] = {}
    for name in ("bert", "gpt2", "llama", "t5", "vit"):
        model, args, kwargs, spec = getattr(models, name)(LAYERS)
        shapes = spec(gp.Dim)

        def capture(model: Any = model, args: Any = args, kw: Any = kwargs, s: Any = shapes) -> Any:
            return gp.export(model, args, kw, dynamic_shapes=s)

        tasks[f"capture-{name}"] = lambda capture=capture: _seconds(capture)

        def lower(capture: Callable[[], Any] = capture) -> float:
            program = capture()
            return _seconds(lambda: gp.onnx.export(program).model_proto)

        tasks[f"onnx-{name}"] = lower
    tasks["backend-call"] = _make_backend_call()
    return tasks


def _make_backend_call() -> Callable[[], float]:
    """A call of a small model: most of it is the way to ONNX Runtime and back."""
    import torch

    import graphport as gp

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    compiled = torch.compile(model.eval(), backend=gp.ort.OrtBackend())
    x = torch.rand(2, 8)

    def calls() -> float:
        with torch.no_grad():
            return _seconds(lambda: [compiled(x) for _ in range(CALLS)]) / CALLS

    return calls


def _seconds(run: Callable[[], Any]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
