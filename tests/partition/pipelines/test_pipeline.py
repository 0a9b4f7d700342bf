"""Pipelines of real processes: launched here, and as ranks of torchrun."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.errors import PipelineError, StageError
from tests.partition.pipelines.children import children, none_left, running
from tests.partition.pipelines.models import BATCH, Counting, tied

close = torch.testing.assert_close
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("runtime", ["torch", "ort"])
def test_two_processes_give_what_the_program_gives(runtime: str) -> None:
    model, program, inputs = tied()
    with gp.partition.launch(program, processes=2, micro_batches=3, runtime=runtime) as pipe:
        assert len(children()) == 2
        for batch in (6, 1, 7, 2):
            args, kwargs = inputs(batch)
            close(pipe.run(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError, match="to be <= 64, but got 65"):
            pipe.run(*inputs(65)[0], **inputs(65)[1])
        with pytest.raises(ValueError, match=r"^kwargs was a dict with the keys \['mask'\]"):
            pipe.run(torch.zeros(2, 5, dtype=torch.int64))
        args, kwargs = inputs(3)  # what was wrong with arguments ends nothing
        close(pipe.run(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)
    assert none_left()
    with pytest.raises(PipelineError, match="it is closed"):
        pipe.run(*args, **kwargs)
    pipe.close()


class Mixed(nn.Module):
    """What crosses: bool, bfloat16, int, a number, something 0-d, and something empty."""

    def forward(self, x: Tensor, y: list[Tensor]) -> dict[str, Any]:
        bits, half, count = x > 0, x.bfloat16(), x.shape[0] * 2
        index, none, total = y[0] + 1, x[:, :0], y[1].sum()
        return {
            "where": torch.where(bits, half, 0),
            "sum": index.reshape(-1)[:3] * total,
            "none": none + 1,
            "n": count,
        }


@pytest.mark.slow
def test_everything_crosses() -> None:
    x, y = torch.randn(3, 4), [torch.arange(6), torch.tensor([2, 3])]
    shapes = {"x": BATCH, "y": [None, None]}
    program = gp.export(Mixed(), (x, y), dynamic_shapes=shapes)
    last = [n.name for n in program.graph.nodes if n.op == "call_function"][-6:]
    halves = lambda n: int(n.name in last)
    with gp.partition.launch(program, 2, stages=halves) as pipe:
        for batch in (3, 0, 5):
            x = torch.randn(batch, 4)
            close(pipe.run(x, y), Mixed()(x, y))
    assert none_left()


@pytest.mark.slow
def test_state_stays_in_its_process() -> None:
    model = Counting()
    program = gp.export(copy.deepcopy(model), (torch.randn(3, 4),), dynamic_shapes=(BATCH,))
    with gp.partition.launch(program, 2, stages=["b"]) as pipe:
        for batch in (3, 1):
            x = torch.randn(batch, 4)
            close(pipe.run(x), model(x))
    assert none_left()


@pytest.mark.slow
def test_a_process_maps_the_weights_of_its_stage_only() -> None:
    """64 MB for each of two layers; a process has less than both of them."""
    model = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).eval()
    program = gp.export(model, (torch.randn(1, 4096),))
    with gp.partition.launch(program, 2) as pipe:
        x = torch.randn(1, 4096)
        close(pipe.run(x), model(x), rtol=1e-4, atol=1e-4)
        for pid in children():
            mapped = [
                line
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
                if line.endswith("(deleted)")
            ]
            sizes = [int(b, 16) - int(a, 16) for a, b in (m.split()[0].split("-") for m in mapped)]
            assert 64 << 20 <= sum(sizes) < 80 << 20
    assert none_left()


@pytest.mark.slow
def test_a_pipeline_that_is_forgotten_ends() -> None:
    program = gp.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    pipe = gp.partition.launch(program, 1)
    assert len(children()) == 1
    del pipe
    assert none_left()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"processes": 3, "stages": 2}, "cut into 2 stages, but processes=3"),
        ({"processes": 99}, "99 stages, but the program has"),
        ({"runtime": "tpu"}, "there is no runtime 'tpu'"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"micro_batches": 2, "batch": "rows"}, "no input of the program has a dim 'rows'"),
    ],
)
def test_wrong_wishes_start_nothing(options: dict[str, Any], said: str) -> None:
    _, program, _ = tied()
    with pytest.raises(StageError, match=said):
        gp.partition.launch(program, **options)
    assert none_left()


def test_a_pipeline_outside_of_torchrun_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program, _ = tied()
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(StageError, match="torchrun --nproc-per-node 2"):
        gp.partition.pipeline(program, stages=2)


SCRIPT = """
import json, sys
import torch
import graphport as gp
from tests.partition.pipelines.models import tied

torch.manual_seed(0)
model, program, inputs = tied()
with gp.partition.pipeline(program, stages=2, micro_batches=2, runtime=sys.argv[1]) as pipe:
    for batch in (4, 3):
        torch.manual_seed(batch)
        args, kwargs = inputs(batch)
        found = pipe.run(*args, **kwargs)
        if pipe.rank == 0:
            torch.testing.assert_close(found, model(*args, **kwargs), rtol=1e-4, atol=1e-5)
        else:
            assert found is None
print(json.dumps([pipe.rank, pipe.stages]) + "\\n", end="", flush=True)  # as one piece
"""


def torchrun(folder: Path, script: str, *args: str, seconds: float = 200) -> Any:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.run(
        [*command, "2", str(path), *args],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["torch", "ort"])
def test_the_same_script_on_every_rank(tmp_path: Path, runtime: str) -> None:
    done = torchrun(tmp_path, SCRIPT, runtime)
    assert done.returncode == 0, done.stderr
    said = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [rank for rank, _ in said] == [0, 1]
    assert said[0][1] == said[1][1] and len(said[0][1]) == 2


FAILING = """
import os, sys, time
import torch
import graphport as gp
from graphport.partition.pipelines import stage_server
from tests.partition.pipelines.models import tied

how, rank = sys.argv[1], int(os.environ["RANK"])

def failing(program):
    def run(values):
        if rank == 1:
            {"raise": lambda: 1 / 0, "kill": lambda: os.kill(os.getpid(), 9),
             "hang": lambda: time.sleep(600)}[how]()
        return real(values)
    real = torch_runtime(program)
    return run

torch_runtime = stage_server.RUNTIMES["torch"]
stage_server.RUNTIMES["torch"] = failing
torch.manual_seed(rank if how == "differ" else 0)
model, program, inputs = tied()
args, kwargs = inputs(4)
try:
    pipe = gp.partition.pipeline(program, stages=2, timeout=3)
    pipe.run(*args, **kwargs)
except gp.errors.PipelineError as error:
    print(f"rank {rank}: {error}", flush=True)
    raise SystemExit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "stage 1 of 2 (rank 1) raised ZeroDivisionError: division by zero"),
        ("kill", "stage 1 of 2 (rank 1) is gone"),
        ("hang", "stage 1 of 2 (rank 1) did not finish within 3 s"),
        ("differ", "stage 1 of 2 (rank 1) has another program than rank 0"),
    ],
)
def test_a_rank_that_fails_ends_all(tmp_path: Path, how: str, said: str) -> None:
    done = torchrun(tmp_path, FAILING, how)
    assert done.returncode != 0
    assert f"rank 0: GP521 {said}" in done.stdout or how == "kill", done.stdout + done.stderr
    assert not running(str(tmp_path / "script.py"))
