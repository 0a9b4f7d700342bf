"""graphport against torch: time, graph size, growth with depth, memory, import, latency.

Every contender captures the same model with the same spec in the same process. Repetitions are
interleaved, so that noise of the machine hits all alike; the first round warms up and is thrown
away; the table shows medians. `floor` is the eager forward under a dispatch mode that does nothing,
its arithmetic included: a yardstick for a run that sees every operator, not a lower bound.

A contender that fails shows "fails", is left out of the means, and is listed with its error.

    python benchmarks/bench.py --quick --only llama
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import backend, files, onnx_models  # noqa: E402
from benchmarks.files import Times  # noqa: E402
from examples import huggingface, resnet  # noqa: E402  the repository is importable only from here
from examples.huggingface import Case  # noqa: E402

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
GRAPHPORT, EXPORT, DECOMPOSED, FLOOR = "graphport", "torch.export", "decomposed", "floor"
CORE = "graphport, decomposed"
TEXT = {"hidden": 512, "heads": 8, "batch": 2, "length": 32}


def resnet_case(layers: int, batch: int = 2, size: int = 64) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = resnet.resnet50().eval()
    return Case(model, (resnet.example(batch=batch, size=size),), {}, resnet.spec)


@dataclass(frozen=True)
class Workload:
    """A model; `usual` are sizes at which it is used, where capture is content with less."""

    title: str
    layers: int
    build: Callable[..., Case]
    dims: str
    usual: dict[str, int]

    def as_used(self, layers: int) -> Case:
        return self.build(layers, **self.usual)


def text(build: Callable[..., Case]) -> Callable[..., Case]:
    return lambda layers, **sizes: build(layers, **{**TEXT, **sizes})


def image(layers: int, **sizes: int) -> Case:
    return huggingface.vit(layers, hidden=512, heads=8, **sizes)


WORKLOADS = {
    "bert": Workload("BERT", 12, text(huggingface.bert), "batch, length", {"length": 128}),
    "gpt2": Workload("GPT-2", 12, text(huggingface.gpt2), "batch, length", {"length": 128}),
    "llama": Workload("LLaMA", 16, text(huggingface.llama), "batch, length", {"length": 128}),
    "t5": Workload(
        "T5", 6, text(huggingface.t5), "batch, source, target", {"length": 128, "target_length": 32}
    ),
    "vit": Workload("ViT", 12, image, "batch", {"image": 224, "batch": 1}),
    "resnet": Workload(
        "ResNet", 50, resnet_case, "batch, height, width", {"size": 224, "batch": 1}
    ),
}


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass
class Cell:
    """What one contender did with one model: seconds per run and nodes, or an error."""

    runs: list[float] = field(default_factory=list)
    nodes: int = 0
    error: str = ""
    calls: int = 0

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.runs) if self.runs and not self.error else None


@dataclass
class Row:
    model: str
    shapes: str
    cells: dict[str, Cell]

    def ratio(self, over: str, under: str) -> float | None:
        above, below = (self.cells[name].seconds for name in (over, under))
        return above / below if above is not None and below is not None else None


def run_floor(case: Case, dynamic: bool) -> Iterator[tuple[str, Any]]:
    with torch.no_grad(), Nothing():
        case.model(*case.args, **case.kwargs)
    yield FLOOR, None


def run_graphport(case: Case, dynamic: bool) -> Iterator[tuple[str, Any]]:
    """As `run_torch`."""
    program = run_capture(case, dynamic)
    yield GRAPHPORT, program
    yield CORE, program.run_decompositions()


def run_graphport_only(case: Case, dynamic: bool) -> Iterator[tuple[str, Any]]:
    yield GRAPHPORT, run_capture(case, dynamic)


def run_capture(case: Case, dynamic: bool) -> Any:
    import graphport as gp

    shapes = case.spec(gp.Dim) if dynamic else None
    return gp.export(case.model, case.args, case.kwargs, dynamic_shapes=shapes)


def run_torch(case: Case, dynamic: bool) -> Iterator[tuple[str, Any]]:
    """Two contenders in one run: the decompositions start from the program just exported."""
    program = run_export(case, dynamic)
    yield EXPORT, program
    yield DECOMPOSED, program.run_decompositions()


def run_export(case: Case, dynamic: bool) -> Any:
    shapes = case.spec(torch.export.Dim) if dynamic else None
    return torch.export.export(
        case.model, case.args, case.kwargs, dynamic_shapes=shapes, strict=False
    )


def run_export_only(case: Case, dynamic: bool) -> Iterator[tuple[str, Any]]:
    yield EXPORT, run_export(case, dynamic)


Runner = Callable[[Case, bool], Iterator[tuple[str, Any]]]
YIELDS: dict[Runner, tuple[str, ...]] = {
    run_floor: (FLOOR,),
    run_graphport: (GRAPHPORT, CORE),
    run_graphport_only: (GRAPHPORT,),
    run_torch: (EXPORT, DECOMPOSED),
    run_export_only: (EXPORT,),
}


def nodes_of(program: Any) -> int:
    """Calls in the graph; placeholders and the output are the same for everyone."""
    return sum(node.op == "call_function" for node in program.graph.nodes)


def run_once(
    runner: Runner,
    case: Case,
    dynamic: bool,
    cells: dict[str, Cell],
    *,
    keep: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """One run of one runner; an error goes to the step that raised it and the steps after it."""
    names = YIELDS[runner]
    gc.collect()  # nobody pays for the garbage of the contender before
    reached = 0
    start = clock()
    try:
        for name, program in runner(case, dynamic):
            seconds = clock() - start
            if keep:
                cells[name].runs.append(seconds)
            if program is not None:
                # Counting is outside the clock: shift the start by what it took.
                counting = clock()
                cells[name].nodes = nodes_of(program)
                start += clock() - counting
            reached += 1
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
        for name in names[reached:]:
            cells[name].error = reason


def measure(case: Case, dynamic: bool, runners: list[Runner], repeats: int) -> dict[str, Cell]:
    cells = {name: Cell() for names in YIELDS.values() for name in names}
    for round_ in range(repeats + 1):
        for runner in runners:
            if runner is run_torch and cells[DECOMPOSED].error:
                runner = run_export_only  # what failed once is not tried again
            if not cells[YIELDS[runner][0]].error:
                run_once(runner, case, dynamic, cells, keep=round_ > 0)
    return cells


def cases_of(
    keys: list[str], quick: bool, as_used: bool = False
) -> Iterator[tuple[str, str, Case, bool]]:
    """Workloads with fixed sizes, then with dynamic ones: title, sizes, case, whether dynamic."""
    for key in keys:
        work = WORKLOADS[key]
        # A ResNet has one depth; the others are cut to a quarter for a quick look.
        layers = max(2, work.layers // 4) if quick and key != "resnet" else work.layers
        case = work.as_used(layers) if as_used else work.build(layers)
        for dynamic in (False, True):
            yield f"{work.title}-{layers}", work.dims if dynamic else "static", case, dynamic


def compare(keys: list[str], runners: list[Runner], repeats: int, quick: bool) -> list[Row]:
    rows = []
    for title, shapes, case, dynamic in cases_of(keys, quick):
        say(f"{title}, {shapes}")
        rows.append(Row(title, shapes, measure(case, dynamic, runners, repeats)))
    return rows


IN_A_ROW = 3


def grow(cases: list[Case], rows: list[Row], runners: list[Runner], rounds: dict[str, int]) -> None:
    """How each contender grows over the cases: by itself, in CPU time, the least of many runs.

    A round goes through all cases, so that a bad moment of the machine hits one of each and not all
    of one. Within a round a case runs several times in a row: a small one after a large one finds
    the caches of the processor full of the other's. The least is what the work takes, anything
    above it is the machine.
    """
    for runner in runners:
        (name,) = YIELDS[runner]
        cells = [{name: Cell()} for _ in cases]
        for round_ in range(rounds[name] + 1):
            say(f"{rows[0].model} to {rows[-1].model}, {name}, {round_} of {rounds[name]}")
            for case, cell in zip(cases, cells, strict=True):
                for _ in range(IN_A_ROW if round_ else 1):
                    run_once(runner, case, True, cell, keep=round_ > 0, clock=time.process_time)
        for row, cell in zip(rows, cells, strict=True):
            seen = cell[name]
            row.cells[name] = Cell([min(seen.runs)] if seen.runs else [], seen.nodes, seen.error)


def depth(layers: list[int], runners: list[Runner], rounds: dict[str, int]) -> list[Row]:
    """LLaMA with dynamic sizes at growing depth; narrow, since width does not change the graph."""
    rows = [Row(f"LLaMA-{count}", "batch, length", no_cells()) for count in layers]
    narrow = {"hidden": 128, "heads": 4, "batch": 2, "length": 32}
    cases = [huggingface.llama(count, **narrow) for count in layers]
    grow(cases, rows, runners, rounds)
    if run_graphport_only in runners:
        for case, row in zip(cases, rows, strict=True):
            row.cells[GRAPHPORT].calls = python_calls(case)
    return rows


def python_calls(case: Case) -> int:
    """Calls of Python functions that a capture takes: its growth without the machine's noise."""
    profile = cProfile.Profile()
    profile.enable()
    run_capture(case, True)
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


class Chain(torch.nn.Module):
    """Every input must be one shorter than the one before: as many facts as inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        total = inputs[0]
        for x in inputs[1:]:
            total = total[1:] * 2 + x
        return total.sum()


def related(counts: list[int], runners: list[Runner], rounds: dict[str, int]) -> list[Row]:
    """Growing numbers of dynamic dims, which the program relates to each other."""
    rows = [Row(f"chain of {count}", str(count), no_cells()) for count in counts]
    grow([chain(count) for count in counts], rows, runners, rounds)
    return rows


def chain(count: int) -> Case:
    inputs = tuple(torch.zeros(2 * count + 8 - i) for i in range(count))
    return Case(Chain(), inputs, {}, lambda Dim: (({0: Dim.AUTO},) * count,))


def no_cells() -> dict[str, Cell]:
    return {name: Cell() for name in (GRAPHPORT, EXPORT)}


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's memory from before exec
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stored(repeats: int, quick: bool) -> list[Times]:
    """Files of a large graph, and of large weights."""
    layers, size = (4, 128) if quick else (16, 1024)
    say("files")
    found = files.times(f"LLaMA-{layers}", WORKLOADS["llama"].build(layers), repeats)
    return found + files.times(f"{size} MB of weights", files.linear_layers(size), repeats)


def exported(keys: list[str], repeats: int, quick: bool) -> list[onnx_models.Result]:
    """From model to saved ONNX, and what the files run like."""
    results = []
    for title, sizes, case, dynamic in cases_of(keys, quick, as_used=True):
        say(f"ONNX, {title}, {sizes}")
        results.append(onnx_models.compare(title, sizes, case, dynamic, repeats))
    return results


def memory_child(contender: str, megabytes: int) -> None:
    """Capture linear layers of 64 MB each and print the growth of the peak, in bytes."""
    runner = run_graphport_only if contender == GRAPHPORT else run_torch

    def case(width: int, count: int) -> Case:
        layers = [torch.nn.Linear(width, width, bias=False) for _ in range(count)]
        spec = lambda Dim: {"input": {0: Dim("batch", min=1, max=64)}}  # noqa: E731
        return Case(torch.nn.Sequential(*layers).eval(), (torch.randn(2, width),), {}, spec)

    def capture(one: Case) -> None:
        for name, _ in runner(one, True):
            if name == contender:
                return

    capture(case(8, 2))  # imports and caches are not what is measured
    big = case(4096, megabytes // 64)
    before = peak_memory()
    capture(big)
    print(json.dumps(peak_memory() - before))


def memory(contenders: list[str], megabytes: int) -> dict[str, Cell]:
    cells = {}
    for name in contenders:
        say(f"memory, {name}")
        command = [sys.executable, "-W", "ignore", __file__, "--memory-child", name]
        done = subprocess.run([*command, str(megabytes)], capture_output=True, text=True)
        if done.returncode == 0:
            cells[name] = Cell(runs=[json.loads(done.stdout.splitlines()[-1])])
        else:
            cells[name] = Cell(error=(done.stderr.strip().splitlines() or ["no output"])[-1][:160])
    return cells


CHECKED_DIMS = (1, 16, 256)


def check_cost(dims: int, repeats: int) -> float:
    """Seconds that `.module()` spends on checking one dynamic dim, of `dims` in tensors of four."""
    import graphport as gp

    rank = min(dims, 4)
    tensors = tuple(torch.zeros([2] * rank) for _ in range(dims // rank))
    shapes = tuple(
        {d: gp.Dim(f"d{t}_{d}", max=1024) for d in range(rank)} for t in range(len(tensors))
    )
    program = gp.export(lambda *inputs: inputs[0] + 1, tensors, dynamic_shapes=(shapes,))
    accepts = program.checks.accepts
    rounds = 20_000 // dims + 1
    runs = []
    for _ in range(10 * repeats):
        start = time.perf_counter()
        for _ in range(rounds):
            accepts(tensors)
        runs.append((time.perf_counter() - start) / rounds)
    return min(runs) / dims  # anything above the least is the machine


IMPORT = """
import json, sys, time
start = time.perf_counter()
import torch
middle, before = time.perf_counter(), set(sys.modules)
{statement}
print(json.dumps([middle - start, time.perf_counter() - middle, sorted(set(sys.modules) - before)]))
"""
WATCHED = ("onnx", "onnxruntime", "sympy", "torch.export")


def import_time(statement: str, repeats: int) -> dict[str, Any]:
    """Seconds of `import torch`, of the statement after it, and the watched modules it added."""
    command = [sys.executable, "-c", IMPORT.format(statement=statement)]
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1][:160]}
        runs.append(json.loads(done.stdout))
    added = [
        package
        for package in WATCHED
        if any(name == package or name.startswith(package + ".") for name in runs[0][2])
    ]
    return {
        "torch": statistics.median(run[0] for run in runs),
        "more": statistics.median(run[1] for run in runs),
        "modules": len(runs[0][2]),
        "watched": added,
    }


def geometric_mean(values: list[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def table(header: list[str], lines: list[list[str]]) -> str:
    """A Markdown table with its columns aligned, numbers to the right."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]

    def text(line: list[str]) -> str:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([text(header), text(rule), *map(text, lines)])


def milliseconds(cell: Cell) -> str:
    if cell.error:
        return "fails"
    return "" if cell.seconds is None else f"{cell.seconds * 1e3:,.0f}"


def calls(cell: Cell) -> str:
    return f"{cell.nodes:,}" if cell.nodes else ""


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}x"


RATIOS = ((EXPORT, GRAPHPORT), (DECOMPOSED, GRAPHPORT), (GRAPHPORT, FLOOR))


def comparison_table(rows: list[Row]) -> str:
    """The main table, and a row of geometric means for static and for dynamic sizes."""
    header = ["model", "sizes", "graphport ms", "nodes", "torch.export ms", "nodes", "ratio"]
    header += ["+ decompositions ms", "nodes", "ratio", "floor ms", "graphport / floor"]
    lines = []
    for row in rows:
        ours, export, core, floor = (
            row.cells[name] for name in (GRAPHPORT, EXPORT, DECOMPOSED, FLOOR)
        )
        export_ratio, core_ratio, floor_ratio = (times(row.ratio(*pair)) for pair in RATIOS)
        line = [row.model, row.shapes, milliseconds(ours), calls(ours), milliseconds(export)]
        line += [calls(export), export_ratio, milliseconds(core), calls(core), core_ratio]
        lines.append([*line, milliseconds(floor), floor_ratio])
    for name, static in (("static", True), ("dynamic", False)):
        some = [row for row in rows if (row.shapes == "static") == static]
        means = []
        for pair in RATIOS:
            known = [ratio for row in some if (ratio := row.ratio(*pair)) is not None]
            mean = times(geometric_mean(known))
            # A mean over fewer models than the table shows says over how many.
            means.append(
                f"{mean} ({len(known)} of {len(some)})" if 0 < len(known) < len(some) else mean
            )
        line = ["geometric mean", name, "", "", "", "", means[0], "", "", means[1], "", means[2]]
        lines.append(line)
    return table(header, lines)


def depth_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        line = [row.model, row.shapes]
        for name in (GRAPHPORT, EXPORT):
            cell = row.cells[name]
            per_node = cell.seconds * 1e6 / cell.nodes if cell.seconds and cell.nodes else None
            line += [milliseconds(cell), calls(cell), "" if per_node is None else f"{per_node:.0f}"]
            if name == GRAPHPORT:
                line.append(f"{cell.calls / cell.nodes:.0f}" if cell.calls else "")
        lines.append(line)
    header = ["model", "sizes", "graphport ms", "nodes", "µs per node", "calls per node"]
    return table([*header, "torch.export ms", "nodes", "µs per node"], lines)


def related_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        ours, theirs = row.cells[GRAPHPORT], row.cells[EXPORT]
        each = f"{ours.seconds * 1e3 / int(row.shapes):.2f}" if ours.seconds else ""
        ratio = theirs.seconds / ours.seconds if theirs.seconds and ours.seconds else None
        lines.append([row.shapes, milliseconds(ours), each, milliseconds(theirs), times(ratio)])
    return table(["dims", "graphport ms", "per dim", "torch.export ms", "ratio"], lines)


def decompositions_table(rows: list[Row]) -> str:
    """`run_decompositions()` alone: the time with it less the time without."""
    lines, ratios = [], []
    for row in rows:
        spans = []
        for whole, first in ((CORE, GRAPHPORT), (DECOMPOSED, EXPORT)):
            all_, part = row.cells[whole].seconds, row.cells[first].seconds
            spans.append(None if all_ is None or part is None else all_ - part)
        ours, theirs = spans
        ratio = theirs / ours if ours and theirs else None
        ratios += [] if ratio is None else [ratio]
        shown = ["fails" if x is None else f"{x * 1e3:,.0f}" for x in spans]
        nodes = [calls(row.cells[name]) for name in (CORE, DECOMPOSED)]
        lines.append([row.model, row.shapes, shown[0], nodes[0], shown[1], nodes[1], times(ratio)])
    count = f" ({len(ratios)} of {len(rows)})" if len(ratios) < len(rows) else ""
    mean = f"{times(geometric_mean(ratios))}{count}"
    lines.append(["geometric mean", "", "", "", "", "", mean])
    return table(["model", "sizes", "graphport ms", "nodes", "torch ms", "nodes", "ratio"], lines)


def files_table(rows: list[Times]) -> str:
    lines = []
    for row in rows:
        seconds = [row.least(name) for name in (files.GRAPHPORT, files.TORCH)]
        shown = ["fails" if x is None else f"{x * 1e3:,.0f}" for x in seconds]
        lines.append([row.program, row.what, *shown, times(row.ratio)])
    return table(["program", "", "graphport ms", "torch ms", "ratio"], lines)


def failures(rows: list[Row]) -> list[str]:
    return [
        f"- {name} fails on {row.model} ({row.shapes}): {cell.error}"
        for row in rows
        for name, cell in row.cells.items()
        if cell.error
    ]


LEAST = "CPU time, the least of many runs"
LIKE_FOR_LIKE = (
    "graphport and `torch.export` both keep composite operators: the first ratio compares like "
    "with like. With decompositions, torch does more work and ends in a lower-level graph. The "
    "floor computes the forward as well, which capture does not."
)


def onnx_parts(result: dict[str, Any]) -> list[str]:
    """What is said about ONNX."""
    parts = [
        "From model to saved ONNX, against `torch.onnx.export(dynamo=True)` (one run of it, the "
        "median of ours):",
        onnx_models.table(result["onnx"], table),
        "What the files take to run in ONNX Runtime, milliseconds, medians, same session options. "
        "Inputs are of a size at which such models are used: 2 x 128 tokens, for T5 another 2 x 32 "
        "to be written, one image of 224 x 224 pixels. Ratios are medians of the ratios in each "
        "round of calls:",
        onnx_models.latency_table(result["onnx"], table),
    ]
    failed = [
        f"- {name} fails on {r.model} ({r.sizes}): {reason}"
        for r in result["onnx"]
        for name, reason in r.errors.items()
    ]
    if failed:
        parts += ["Left out:", "\n".join(failed)]
    if result["fresh"]:
        ours, theirs = (result["fresh"][n] for n in (onnx_models.OURS, onnx_models.TORCH))
        parts.append(
            f"In a fresh process, from `import` to a saved 2-layer BERT, beyond `import torch`: "
            f"graphport {ours:.2f} s, torch.onnx {theirs:.2f} s, {theirs / ours:.1f}x."
        )
    if result["large"]:
        size, seconds, peak = result["large"]
        parts.append(
            f"A model with {size} GB of weights in safetensors shards, built under "
            f"`gp.fake_mode()`: exported and saved in {seconds:.0f} s, peak resident memory "
            f"{peak / 1e9:.2f} GB."
        )
    return parts


def report(result: dict[str, Any]) -> str:
    """The whole result as Markdown, for the terminal and for docs/benchmarks.md alike."""
    parts = [result["about"], "## Capture", LIKE_FOR_LIKE, comparison_table(result["models"])]
    failed = failures(result["models"])
    if failed:
        parts.append("Left out of the means:\n\n" + "\n".join(failed))
    if result["depth"]:
        parts.append(f"Growth with depth, all with dynamic sizes; {LEAST}:")
        parts.append(depth_table(result["depth"]))
    if result["related"]:
        parts.append(f"Dynamic dims that the program relates to each other (`Dim.AUTO`); {LEAST}:")
        parts.append(related_table(result["related"]))
    if any(row.cells[CORE].seconds for row in result["models"]):
        parts.append("## Decompositions")
        parts.append("`run_decompositions()` alone:")
        parts.append(decompositions_table(result["models"]))
    if result["files"]:
        parts.append("## Files")
        parts.append("`gp.save`, `gp.load` and torch's own, the least of the runs:")
        parts.append(files_table(result["files"]))
    if result["onnx"]:
        parts += ["## ONNX", *onnx_parts(result)]
    if result["backend"]:
        parts += ["## torch.compile", *backend.parts(result["backend"], table)]
    if result["memory"] or result["checks"] or result["import"]:
        parts.append("## Memory, checks, import")
    if result["memory"]:
        size = f"{result['megabytes'] / 1024:g} GB"
        each = [
            f"{name} {'fails' if cell.error else f'{cell.runs[0] / 2**20:,.0f} MB'}"
            for name, cell in result["memory"].items()
        ]
        parts.append(
            f"Peak memory beyond the model, capturing {size} of weights: " + ", ".join(each) + "."
        )
    if result["checks"]:
        each = [f"{cost * 1e6:.2f} µs with {dims}" for dims, cost in result["checks"].items()]
        parts.append(f"Checks of `.module()`, for each dynamic dim: {', '.join(each)}.")
    if "error" in result["import"]:
        parts.append(f"`import graphport` fails: {result['import']['error']}")
    elif result["import"]:
        seen = result["import"]
        watched = ", ".join(seen["watched"]) or "none"
        parts.append(
            f"`import graphport` takes {seen['more'] * 1e3:.0f} ms after `import torch` "
            f"({seen['torch'] * 1e3:,.0f} ms) and adds {seen['modules']} modules; "
            f"of {', '.join(WATCHED)} it adds: {watched}."
        )
    return "\n\n".join(parts)


def write_page(text: str) -> None:
    path = ROOT / "docs" / "benchmarks.md"
    before, rest = path.read_text().split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer layers, one repetition")
    parser.add_argument("--only", action="append", choices=sorted(WORKLOADS), metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--without-graphport", action="store_true", help="the opponents alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--write", action="store_true", help="also rewrite docs/benchmarks.md")
    parser.add_argument("--memory-child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # torch.export and transformers warn about themselves; none of it concerns a measurement.
    warnings.simplefilter("ignore")
    # Capture runs on one thread. The floor computes, and on a busy machine a team of threads waits
    # for its slowest member: the same forward took from 44 to 552 ms with two.
    torch.set_num_threads(1)
    if options.memory_child:
        memory_child(options.memory_child[0], int(options.memory_child[1]))
        return
    if options.write and (options.quick or options.only or options.without_graphport):
        parser.error("--write takes a full run: the table would pass for one")

    quick, ours = options.quick, not options.without_graphport
    repeats = options.repeats or (1 if quick else 3)
    ahead: list[Runner] = [run_graphport] if ours else []
    alone: list[Runner] = [run_graphport_only] if ours else []
    contenders = [*([GRAPHPORT] if ours else []), EXPORT, DECOMPOSED]
    megabytes = 256 if quick else 1024
    whole = not options.only
    result: dict[str, Any] = {
        "about": f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, one thread; {repeats} runs each after a warm-up, medians.",
        "models": compare(
            options.only or list(WORKLOADS), [*ahead, run_torch, run_floor], repeats, quick
        ),
        "depth": [],
        "related": [],
        "files": [],
        "onnx": [],
        "backend": {},
        "fresh": {},
        "large": (),
        "memory": {},
        "checks": {},
        "import": {},
        "megabytes": megabytes,
    }
    if whole or "llama" in options.only:
        layers = [2, 4, 8] if quick else [4, 8, 16, 32, 64]
        rounds = {GRAPHPORT: 2 if quick else 6, EXPORT: 1}
        result["depth"] = depth(layers, [*alone, run_export_only], rounds)
    if whole:
        counts = [1, 4, 16] if quick else [1, 4, 16, 64]
        result["related"] = related(counts, [*alone, run_export_only], rounds)
        if ours:
            result["files"] = stored(repeats, quick)
    if ours:
        result["onnx"] = exported(options.only or list(WORKLOADS), repeats, quick)
        result["backend"] = backend.measured(options.only or list(WORKLOADS), quick)
    if whole and ours:
        say("ONNX from a fresh process")
        result["fresh"] = {
            n: onnx_models.fresh(n, 1 if quick else 3)
            for n in (onnx_models.OURS, onnx_models.TORCH)
        }
        say("ONNX of a large model")
        result["large"] = (2 if quick else 8, *onnx_models.large(2 if quick else 8))
    if whole:
        result["memory"] = memory(contenders, megabytes)
        if ours:
            say("checks")
            result["checks"] = {dims: check_cost(dims, repeats) for dims in CHECKED_DIMS}
        result["import"] = (
            import_time("from graphport import export", 3 if quick else 7) if ours else {}
        )
    if options.json:
        print(json.dumps(result, indent=2, default=asdict))
    else:
        print(report(result))
    if options.write:
        write_page(report(result))


if __name__ == "__main__":
    main()
