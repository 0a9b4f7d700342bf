"""From model to saved ONNX, against `torch.onnx.export(dynamo=True)`; and what the files run like.

Export time counts from the model to the file on disk. The files of all contenders then run in ONNX
Runtime with the same session options.
"""

from __future__ import annotations

import gc
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.timing import Rounds, in_turn, ratio, usual
from examples.huggingface import Case

ROOT = Path(__file__).resolve().parents[1]
OURS, ORT, TORCH = "graphport", 'graphport, target="ort"', "torch.onnx"
THREADS = (1, 2)


@dataclass
class Result:
    """What became of one model: by contender, seconds and nodes; latencies by number of threads."""

    model: str
    sizes: str
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    latency: dict[int, Rounds] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def ratio(self) -> float | None:
        if OURS in self.seconds and TORCH in self.seconds:
            return self.seconds[TORCH] / self.seconds[OURS]
        return None

    def speed(self, name: str, threads: int) -> float | None:
        """How many times faster than torch.onnx's file."""
        rounds = self.latency[threads]
        return ratio(rounds, TORCH, name) if {TORCH, name} <= rounds.keys() else None


def export_ours(case: Case, dynamic: bool, path: Path, target: str = "onnx") -> None:
    import graphport as gp

    shapes = case.spec(gp.Dim) if dynamic else None
    program = gp.onnx.export(
        case.model, case.args, case.kwargs, dynamic_shapes=shapes, target=target
    )
    program.save(path)


def export_torch(case: Case, dynamic: bool, path: Path) -> None:
    shapes = case.spec(torch.export.Dim) if dynamic else None
    program = torch.onnx.export(
        case.model, case.args, kwargs=case.kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    assert program is not None
    program.save(path)


EXPORTERS: dict[str, Callable[[Case, bool, Path], None]] = {
    OURS: export_ours,
    ORT: lambda case, dynamic, path: export_ours(case, dynamic, path, "ort"),
    TORCH: export_torch,
}


def compare(title: str, sizes: str, case: Case, dynamic: bool, repeats: int) -> Result:
    """Ours is the median of several runs after a warm-up; torch.onnx, which takes minutes, one."""
    result = Result(title, sizes)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{i}.onnx" for i, name in enumerate(EXPORTERS)}
        for name, export in EXPORTERS.items():
            try:
                runs = [
                    _seconds(lambda e=export, n=name: e(case, dynamic, paths[n]))
                    for _ in range(1 if name == TORCH else repeats + 1)
                ]
            except Exception as error:
                lines = re.sub(r"\x1b\[\d+m", "", str(error)).strip().splitlines()
                result.errors[name] = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
                continue
            result.seconds[name] = statistics.median(runs[1:] or runs)
            result.nodes[name] = _nodes(paths[name])
        for threads in THREADS:
            result.latency[threads] = latencies(case, paths, result.seconds, threads)
    return result


def _seconds(work: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _nodes(path: Path) -> int:
    import onnx

    return len(onnx.load(path, load_external_data=False).graph.node)


def latencies(
    case: Case, paths: dict[str, Path], names: Any, threads: int, seconds: float = 8.0
) -> Rounds:
    """Seconds per call of the files."""
    import onnxruntime as ort

    sessions = {}
    for name in names:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        sessions[name] = ort.InferenceSession(
            str(paths[name]), options, providers=["CPUExecutionProvider"]
        )
    flat = [t.numpy() for t in pytree.tree_leaves((case.args, case.kwargs))]
    feeds = {
        name: dict(zip((i.name for i in s.get_inputs()), flat, strict=True))
        for name, s in sessions.items()
    }
    calls = {name: partial(s.run, None, feeds[name]) for name, s in sessions.items()}
    return in_turn(calls, seconds)


def table(results: list[Result], rows: Callable[[list[str], list[list[str]]], str]) -> str:
    """Export time and nodes of all models; `rows` writes a table."""
    lines = []
    for r in results:
        ratio = r.ratio()
        lines.append(
            [
                r.model,
                r.sizes,
                _milliseconds(r, OURS),
                _count(r, OURS),
                _milliseconds(r, TORCH),
                _count(r, TORCH),
                "" if ratio is None else f"{ratio:.1f}x",
            ]
        )
    ratios = [x for r in results if (x := r.ratio()) is not None]
    if ratios:
        mean = f"{statistics.geometric_mean(ratios):.1f}x ({len(ratios)} of {len(results)})"
        lines.append(["geometric mean", "", "", "", "", "", mean])
    header = ["model", "sizes", "graphport ms", "nodes", "torch.onnx ms", "nodes", "ratio"]
    return rows(header, lines)


def latency_table(results: list[Result], rows: Callable[[list[str], list[list[str]]], str]) -> str:
    lines = []
    for r in results:
        for threads, rounds in r.latency.items():
            line = [r.model, r.sizes, str(threads)]
            for name in (TORCH, OURS, ORT):
                line.append(f"{usual(rounds, name) * 1e3:.2f}" if name in rounds else "fails")
                if name != TORCH:
                    line.append(_times(r.speed(name, threads), 3))
            lines.append(line)
    for threads in THREADS:
        line = ["geometric mean", "", str(threads), ""]
        for name in (OURS, ORT):
            speeds = [x for r in results if (x := r.speed(name, threads)) is not None]
            line += ["", _times(statistics.geometric_mean(speeds) if speeds else None, 2)]
        lines.append(line)
    header = [
        "model",
        "sizes",
        "threads",
        "torch.onnx ms",
        "graphport ms",
        "torch.onnx / ours",
        'target="ort" ms',
        "torch.onnx / ours",
    ]
    return rows(header, lines)


def _times(found: float | None, digits: int) -> str:
    return "" if found is None else f"{found:.{digits}f}x"


def _milliseconds(result: Result, name: str) -> str:
    return f"{result.seconds[name] * 1e3:,.0f}" if name in result.seconds else "fails"


def _count(result: Result, name: str) -> str:
    return f"{result.nodes[name]:,}" if name in result.nodes else ""


# From a fresh process

FRESH = """
import sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
import torch, transformers
torch.set_num_threads(1)
from examples import huggingface
case = huggingface.bert(2, hidden=128, heads=4, batch=2, length=16)
start = time.perf_counter()
from benchmarks import onnx_models
onnx_models.EXPORTERS[{name!r}](case, True, __import__("pathlib").Path({path!r}))
print(time.perf_counter() - start)
"""


def fresh(name: str, repeats: int) -> float:
    """Seconds from `import` to a saved 2-layer BERT in a new process, beyond `import torch`."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            code = FRESH.format(root=str(ROOT), name=name, path=f"{folder}/model.onnx")
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            runs.append(float(done.stdout.splitlines()[-1]))
    return statistics.median(runs)


# A model larger than memory ought to be


def large_child(folder: str, gigabytes: int) -> None:
    """Export and save a model whose weights are only in files; prints seconds and peak memory."""
    import graphport as gp
    from benchmarks.bench import peak_memory

    start = time.perf_counter()
    with gp.fake_mode():
        model = wide_model(gigabytes)
    program = gp.onnx.export(
        model, (torch.zeros(2, WIDTH),), dynamic_shapes=({0: gp.Dim("batch")},)
    )
    program.save(Path(folder) / "model.onnx", state_dict=Path(folder) / "weights")
    print(json.dumps([time.perf_counter() - start, peak_memory()]))


WIDTH = 8192
"""256 MB for each layer."""


def wide_model(gigabytes: int) -> torch.nn.Module:
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4 * gigabytes)]
    return torch.nn.Sequential(*layers).eval()


def large(gigabytes: int) -> tuple[float, float]:
    """Seconds and bytes of peak resident memory for so many GB of weights in safetensors shards."""
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder) / "weights", gigabytes)
        module = ["-m", "benchmarks.onnx_models", folder, str(gigabytes)]
        command = [sys.executable, "-W", "ignore", *module]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        seconds, peak = json.loads(done.stdout.splitlines()[-1])
        return seconds, peak


def write_shards(folder: Path, gigabytes: int) -> None:
    """A checkpoint of shards of 1 GB as Hugging Face lays them out; one shard is in memory."""
    from safetensors.torch import save_file

    folder.mkdir()
    where = {}
    for shard in range(gigabytes):
        name = f"model-{shard + 1:05}-of-{gigabytes:05}.safetensors"
        tensors = {f"{4 * shard + i}.weight": torch.randn(WIDTH, WIDTH) for i in range(4)}
        save_file(tensors, folder / name)
        where.update(dict.fromkeys(tensors, name))
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    large_child(sys.argv[1], int(sys.argv[2]))
