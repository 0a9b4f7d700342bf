"""`graphport bench`."""

from __future__ import annotations

import math

import pytest
import torch

import graphport as gp
from graphport.cli.bench import _largest_difference
from tests.cli.helpers import Runner

QUICK = ["--seconds", "0.01", "--threads", "1", "--no-inductor"]
NAMES = ["eager", "torch.compile, graphport", "ONNX Runtime"]


@pytest.fixture(autouse=True)
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_program(run: Runner) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    sizes = {"input": {0: gp.Dim("batch")}}
    gp.save(gp.export(model, (torch.randn(3, 8),), dynamic_shapes=sizes), "p.gpx")
    done = run("bench", "p.gpx", *QUICK, "--json")
    assert done.code == 0, done.err
    data = done.data
    assert data["ok"] and data["threads"] == 1
    assert [c["name"] for c in data["contenders"]] == NAMES
    for contender in data["contenders"]:
        assert 0 < contender["call_sec"] <= contender["first_sec"] and contender["calls"] >= 5
    assert all(c["max_abs_error"] < 1e-5 for c in data["contenders"][1:])


def test_what_a_person_sees(run: Runner) -> None:
    done = run("bench", "models.py:build", *QUICK)
    assert done.code == 0, done.err
    for text in ("1 thread, medians", "speedup", "first result", *NAMES):
        assert text in done.out


@pytest.mark.slow
def test_the_compiler_of_pytorch(run: Runner) -> None:
    done = run("bench", "models.py:build", *QUICK[:-1], "--json")
    assert [c["name"] for c in done.data["contenders"]][1] == "torch.compile, inductor"


def test_who_cannot_do_it_is_told(run: Runner) -> None:
    done = run("bench", "models.py:unsupported", "--input", "x=f32[3,3]", *QUICK, "--json")
    assert done.code == 1
    eager, ours, onnx = done.data["contenders"]
    assert eager["call_sec"] and ours["call_sec"]  # which leaves it to PyTorch
    assert "linalg_eig" in onnx["failure"] and onnx["call_sec"] is None


def test_wrong_commands(run: Runner) -> None:
    assert run("bench", "models.py:build", "--seconds", "0").code == 2
    assert run("bench", "models.py:build", "--threads", "0").code == 2
    done = run("bench", "models.py:forward_fails", "--input", "x=f32[2]", *QUICK)
    assert done.code == 1 and "position" in done.err


def test_differences() -> None:
    inf, nan = math.inf, math.nan
    a = torch.tensor([1.0, inf, nan])
    assert _largest_difference((a, 3), (a.clone(), 3)) == 0.0
    assert _largest_difference([a + 0.5], [a]) == 0.5
    for other in ([1.0, -inf, nan], [1.0, inf, 2.0], [nan, inf, nan]):
        assert _largest_difference(torch.tensor(other), a) == inf
    assert _largest_difference(a[:2], a) == _largest_difference(None, a) == inf
    assert _largest_difference((1, 2.5), (1, 2.0)) == 0.5


CHANGING = """
import torch
from torch import nn


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        x.mul_(1.01)
        return x * self.calls, self.calls


def build():
    return Changing(), (torch.ones(3),)
"""


def test_each_begins_with_the_same_inputs_and_state(run: Runner) -> None:
    (run.folder / "changing.py").write_text(CHANGING)
    done = run("bench", "changing.py:build", *QUICK, "--json")
    assert done.code == 0, done.err
    assert all(c["max_abs_error"] < 1e-5 for c in done.data["contenders"][1:])


GROWING = """
import torch, transformers as hf


class Appends(torch.nn.Module):
    def forward(self, x, cache):
        assert cache.get_seq_length() == 4
        keys, values = cache.update(x, x, 0)
        return keys.sum() + values.sum()


def build():
    cache = hf.DynamicCache()
    cache.update(torch.ones(1, 2, 4, 3), torch.ones(1, 2, 4, 3), 0)
    return Appends(), (torch.ones(1, 2, 1, 3), cache)
"""


def test_each_call_begins_with_the_same_cache(run: Runner) -> None:
    (run.folder / "growing.py").write_text(GROWING)
    done = run("bench", "growing.py:build", *QUICK, "--json")
    assert done.code == 0, done.err
    assert all(c["calls"] >= 5 for c in done.data["contenders"])


def test_inputs_that_the_model_itself_refuses(run: Runner) -> None:
    (run.folder / "table.py").write_text("import torch\nmodel = torch.nn.Embedding(10, 4)\n")
    done = run("bench", "table.py:model", "--input", "input=i64[2](50..99)", *QUICK)
    assert done.code == 1
    assert done.err.startswith("GP150 the model fails in PyTorch: IndexError")
