"""How much faster a model runs as a pipeline of processes than in one.

    python -m benchmarks.pipeline [--repeats 5] [--batch 16] [--micro-batches 8] [--runtime ort]

Every process has one thread. `in process` is the program's module called here with one thread;
`1 process` adds what sending inputs and results costs; `2 processes` is what is gained by two
stages, and `attainable` what two idle cores could gain at most: the processor time of both stages
over that of the busier one, which other processes on the machine hardly change. Times are the least
of several runs, taken in turn. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import graphport as gp
from examples import resnet
from examples.huggingface import bert

COLUMNS = (
    "model",
    "runtime",
    "batch x micro-batches",
    "in process",
    "1 process",
    "2 processes",
    "gain",
    "attainable",
)


def bert12(batch: int) -> tuple[str, gp.ExportedProgram, dict[str, Any]]:
    """BERT-base but for its vocabulary, whose table would be most of the file."""
    case = bert(layers=12, hidden=768, heads=12, batch=batch, length=64)
    program = gp.export(case.model, case.args, case.kwargs, dynamic_shapes=case.spec(gp.Dim))
    return "BERT-12, length 64", program, case.kwargs


def resnet50(batch: int) -> tuple[str, gp.ExportedProgram, dict[str, Any]]:
    image = resnet.example(batch=batch, size=128)
    program = gp.export(
        resnet.resnet50().eval(), (image,), dynamic_shapes=resnet.batch_spec(gp.Dim)
    )
    return "ResNet-50, 128 x 128", program, {"image": image}


MODELS: dict[str, Callable[[int], tuple[str, gp.ExportedProgram, dict[str, Any]]]] = {
    "bert": bert12,
    "resnet": resnet50,
}


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    with torch.no_grad():
        run()
    return time.perf_counter() - began


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(name: str, options: argparse.Namespace) -> str:
    title, program, inputs = MODELS[name](options.batch)
    settings = {"runtime": options.runtime, "threads": 1}
    count = options.micro_batches
    module: Any = program.module()
    if options.runtime == "ort":
        from graphport.partition.pipelines.stage_server import make_stage_runner

        module = make_stage_runner("ort", program)
    with (
        gp.partition.launch(program, 1, micro_batches=count, **settings) as one,
        gp.partition.launch(program, 2, micro_batches=count, **settings) as two,
    ):
        flat = options.runtime == "ort"
        contenders: list[Callable[[], Any]] = [
            lambda: module(list(inputs.values())) if flat else module(**inputs),
            lambda: one.run(**inputs),
            lambda: two.run(**inputs),
        ]
        for run in contenders:
            seconds(run)
        ids = two.processes.values()
        before = [processor_seconds(pid) for pid in ids]
        times = [[seconds(run) for run in contenders] for _ in range(options.repeats)]
        used = [processor_seconds(pid) - b for pid, b in zip(ids, before, strict=True)]
    least = [min(column) for column in zip(*times, strict=True)]
    rates = [f"{options.batch / t:.1f}/s" for t in least]
    gains = [f"{least[1] / least[2]:.2f}x", f"{sum(used) / max(used):.2f}x"]
    return line(title, options.runtime, f"{options.batch} x {count}", *rates, *gains)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runtime", choices=["torch", "ort"], default="torch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(line(*COLUMNS), line(*["---"] * len(COLUMNS)), sep="\n", flush=True)
    for name in options.models:
        print(row(name, options), flush=True)


if __name__ == "__main__":
    main()
