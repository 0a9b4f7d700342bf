"""`torch.compile(backend="graphport")` against eager, inductor and a bare ONNX Runtime session.

Each measurement is a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.timing import in_turn, ratio, usual

ROOT = Path(__file__).resolve().parents[1]
EAGER, OURS, INDUCTOR, BARE = "eager", "graphport", "inductor", "bare session"
CONTENDERS = (EAGER, OURS, INDUCTOR, BARE)
SECONDS = 12.0
"""To spend on each contender."""

Run = Callable[[], Any]


def make(contender: str, case: Any, threads: int) -> Run:
    """A call of the model by a contender, compiled when it is first made."""
    call = pytree.tree_leaves((case.args, case.kwargs))
    if contender == EAGER:
        return lambda: case.model(*case.args, **case.kwargs)
    if contender == INDUCTOR:
        fast = torch.compile(case.model)
        return lambda: fast(*case.args, **case.kwargs)
    if contender == OURS:
        from graphport.runtime import OrtBackend

        backend = OrtBackend({"ort_session_options": session_options(threads)})
        compiled = torch.compile(case.model, backend=backend)
        return lambda: compiled(*case.args, **case.kwargs)
    return bare(case, call, threads)


def session_options(threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return options


def bare(case: Any, inputs: list[torch.Tensor], threads: int) -> Run:
    """A session of the exported model, its inputs bound once."""
    import graphport as gp
    from graphport.onnx.target.session import Session, to_ort_value

    program = gp.onnx.export(case.model, case.args, case.kwargs, target="ort")
    made = Session(program.skeleton, program.tensors, session_options(threads))
    binding = made.session.io_binding()
    for name, t in zip(made.inputs, inputs, strict=True):
        binding.bind_ortvalue_input(name, to_ort_value(t))
    for name in made.outputs:
        binding.bind_output(name)
    return lambda: made.session.run_with_iobinding(binding)


# In processes of their own


def latency_child(model: str, threads: int, quick: bool) -> dict[str, Any]:
    """Seconds per call, and to the first result where Dynamo has been used before, by contender."""
    case = _case(model, threads, quick)
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    runs: dict[str, Run] = {}
    first: dict[str, float] = {}
    for contender in CONTENDERS:
        began = time.perf_counter()
        try:
            run = make(contender, case, threads)
            run()
        except Exception as error:
            say(f"{contender} fails on {model}: {str(error).splitlines()[0][:120]}")
            continue
        first[contender] = time.perf_counter() - began
        runs[contender] = run
    return {"call": in_turn(runs, 0.3 if quick else SECONDS), "first": first}


def _case(model: str, threads: int, quick: bool = False) -> Any:
    from benchmarks.bench import WORKLOADS

    torch.set_num_threads(threads)
    workload = WORKLOADS[model]
    case = workload.as_used(2 if quick else workload.layers)
    case.model.eval()
    return case


def memory_child(model: str, contender: str) -> dict[str, Any]:
    """Bytes of the process, the model included, and those that compiling and a call have added."""
    case = _case(model, 1)
    import graphport.runtime  # noqa: F401

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    before = resident()
    run = make(contender, case, 1)
    run()
    after = resident()
    return {"resident": after, "added": after - before, "weights": _weights(case.model)}


def _weights(model: torch.nn.Module) -> int:
    return sum(p.nbytes for p in (*model.parameters(), *model.buffers()))


def resident() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def overhead_child() -> dict[str, Any]:
    """Seconds per call of a small elementwise function, in a row of calls; the least of many."""
    from examples.huggingface import Case

    torch.set_num_threads(1)
    x = torch.randn(64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).relu().sigmoid()

    case = Case(function, (x,), {}, lambda Dim: None)
    runs = {name: make(name, case, 1) for name in (OURS, BARE)}
    fast = torch.compile(function, backend="eager")
    runs["Dynamo alone"] = lambda: fast(x)
    runs[EAGER] = lambda: function(x)
    rows = {name: functools.partial(_repeated, run) for name, run in runs.items()}
    least = dict.fromkeys(rows, math.inf)
    for _ in range(200):
        for name, row in rows.items():
            began = time.perf_counter()
            row()
            least[name] = min(least[name], (time.perf_counter() - began) / ROW)
    return least


ROW = 50
"""Calls in a row."""


def _repeated(run: Run) -> None:
    for _ in range(ROW):
        run()


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "latency": latency_child,
    "memory": memory_child,
    "overhead": overhead_child,
}


def child(what: str, *arguments: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.backend", what, *map(str, arguments)]
    # Inductor keeps on disk what it has compiled: a first result is to be a first one.
    cold = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True, env={**os.environ, **cold}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


# All of it


def measured(keys: list[str], quick: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"latency": {}, "first": {}, "memory": {}}
    say("torch.compile: overhead")
    result["overhead"] = child("overhead")
    for key in keys:
        for threads in (1, 2):
            say(f"torch.compile: {key}, {threads} threads")
            found = child("latency", key, threads, int(quick))
            result["latency"][f"{key}, {threads}"] = found["call"]
            result["first"].setdefault(key, found["first"])
        if not quick:
            result["memory"][key] = {c: child("memory", key, c) for c in (OURS, BARE)}
    return result


def parts(result: dict[str, Any], table: Callable[[list[str], list[list[str]]], str]) -> list[str]:
    """What is said about the backend."""
    lines, ratios = [], {name: [] for name in (EAGER, INDUCTOR, BARE)}
    for key, call in result["latency"].items():
        model, threads = key.split(", ")
        first = result["first"][model]
        line = [model, threads]
        line += [f"{usual(call, c) * 1e3:.2f}" if c in call else "fails" for c in CONTENDERS]
        line.append(f"{ratio(call, OURS, BARE):.3f}" if {OURS, BARE} <= call.keys() else "")
        line += [
            f"{first[c]:.1f}" if threads == "1" and c in first else "" for c in (OURS, INDUCTOR)
        ]
        lines.append(line)
        for name, some in ratios.items():
            if name in call and OURS in call:
                some.append(ratio(call, name, OURS))
    means = [f"{statistics.geometric_mean(r):.2f}x" if r else "" for r in ratios.values()]
    lines.append(["geometric mean", "theirs / ours", means[0], "", *means[1:], "", "", ""])
    header = [
        "model",
        "threads",
        "eager ms",
        "graphport ms",
        "inductor ms",
        "bare session ms",
        "graphport / bare",
        "first result s",
        "inductor s",
    ]
    said = [
        '`torch.compile(backend="graphport")`, milliseconds for a call without gradients, medians, '
        "with inputs of the same sizes. Ratios are medians of the ratios in each round of calls:",
        table(header, lines),
    ]
    over = {name: seconds * 1e6 for name, seconds in result["overhead"].items()}
    said.append(
        f"A call of `(x + 1).relu().sigmoid()` on 64 numbers takes {over[OURS]:.0f} µs, and a bare "
        f"session {over[BARE]:.0f}; Dynamo's own checks are "
        f"{over['Dynamo alone'] - over[EAGER]:.0f} of the difference. The least of 200 rows of "
        f"{ROW} calls."
    )
    if result["memory"]:
        said.append(
            "Resident memory of a process with the torch model, after compiling and a first call, "
            "and what these have added:"
        )
        header = [
            "model",
            "weights MB",
            "graphport MB",
            "bare session MB",
            "graphport / bare",
            "graphport adds MB",
            "bare session adds MB",
        ]
        said.append(table(header, [_memory_row(*row) for row in result["memory"].items()]))
    return said


def _memory_row(model: str, found: dict[str, Any]) -> list[str]:
    ours, bare = found[OURS], found[BARE]
    sizes = [ours["weights"], ours["resident"], bare["resident"], ours["added"], bare["added"]]
    weights, *others = [f"{size / 2**20:.0f}" for size in sizes]
    ratio = f"{ours['resident'] / bare['resident']:.2f}"
    return [model, weights, *others[:2], ratio, *others[2:]]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, *arguments = sys.argv[1:]
    converted = [int(a) if a.isdigit() else a for a in arguments]
    with torch.no_grad():
        print(json.dumps(CHILDREN[what](*converted)))
