"""The process after an export that was interrupted, anywhere."""

from __future__ import annotations

import functools
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.process import _PATCHES, Patch, restore_on_exit
from tests.interrupts import Point, difference, interrupt, model_state, points, process_state, said


class Branching(nn.Module):
    """Submodules, a buffer that is written, Python state, a branch on data and one on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("count", torch.zeros(1))
        self.seen: list[int] = [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.seen = [2]
        x = self.norm(self.first(x)) + self.count
        x = torch.cond(x.sum() > 0, lambda y: y * max(y.shape[0], 2), lambda y: y - 1, (x,))
        return x[: x.shape[0]].relu()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean = x.mean()
        return Double.apply(self.norm(x)) - mean


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).softmax(-1)


def clip(x: torch.Tensor) -> torch.Tensor:
    return x - x.max() if x.max() > 1 else x


X = torch.arange(12.0).reshape(3, 4)
SPEC = ({0: gp.Dim("b", min=2, max=64)},)


def _export(model: nn.Module) -> Any:
    return gp.export(model, (X,), dynamic_shapes=SPEC)


def _onnx(model: nn.Module) -> Any:
    return gp.onnx.export(model, (X,), dynamic_shapes=SPEC, verify=True)


def _training(model: nn.Module) -> Any:
    return gp.export(model, (X,), training=True)


def _strict(model: nn.Module) -> Any:
    return gp.export(model, (X,), dynamic_shapes=SPEC, strict=True)


def _draft(model: nn.Module) -> Any:
    return gp.draft_export(clip, (X,))


def _fake(model: nn.Module) -> Any:
    with gp.fake_mode():
        return nn.Linear(4, 4)


def _decompose(model: nn.Module) -> Any:
    return CAPTURED.run_decompositions()


def _again(model: nn.Module) -> Any:
    return gp.export(CAPTURED_MODULE, (X,))


def _compile(model: nn.Module) -> Any:
    torch.compiler.reset()
    return torch.compile(model, backend=gp.ort.OrtBackend())(X)


def _trace(model: nn.Module) -> Any:
    return gp.fx.meta_trace(model, {"x": X})


def _profile(model: nn.Module) -> Any:
    return gp.partition.profile(CAPTURED, runs=1, warmup=0)


def _save(model: nn.Module) -> None:
    folder = Path(tempfile.gettempdir())
    gp.save(CAPTURED, folder / "m.gpx")
    WIDE.save(folder / "m.onnx", external_data=True)


WIDE = gp.onnx.export(nn.Linear(32, 32), (torch.ones(1, 32),))
CAPTURED = gp.export(Branching(), (X,))
CAPTURED_MODULE = CAPTURED.module()

WAYS: dict[str, tuple[Callable[[nn.Module], Any], type[nn.Module]]] = {
    "export": (_export, Branching),
    "onnx": (_onnx, Plain),
    "training": (_training, Training),
    "strict": (_strict, Plain),
    "draft": (_draft, Plain),
    "fake_mode": (_fake, Plain),
    "decompose": (_decompose, Plain),
    "again": (_again, Plain),
    "save": (_save, Plain),
    "compile": (_compile, Plain),
    "trace": (_trace, Plain),
    "profile": (_profile, Plain),
}


TORCH_AROUND = ("compile", "trace")
"""Ways on which torch's own contexts are around ours, and are torch's to undo."""
FEW = {"compile": 4, "onnx": 20}
"""Where one interrupt takes long."""
MANY = {"compile": 200}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else makes temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _passed(way: str) -> tuple[Callable[[], Any], nn.Module, Counter[Point]]:
    """A way to run, its model, and the places that it passes when all is loaded."""
    run_on, make = WAYS[way]
    model = make()
    run = functools.partial(run_on, model)
    for _ in range(2):
        run()
    return run, model, points(run, around=way not in TORCH_AROUND)


def _sweep(way: str, sample: int | None, known: Iterable[Point] = ()) -> int:
    """Interrupt at the first and the last time that each place is passed; how often it came."""
    run, model, found = _passed(way)
    for point in known:
        found.pop(point, None)
    cases = [(p, n) for p, count in found.items() for n in dict.fromkeys((1, count))]
    if sample is not None and len(cases) > sample:
        cases = random.Random(way).sample(cases, sample)
    whole, mine = process_state(), model_state(model)
    hits = 0
    for point, time in cases:
        error = interrupt(run, point, time)
        hits += error is not None
        if way != "fake_mode":  # which is a context of the user's: also while the error is kept
            at_once = difference(whole, process_state())
            assert set(at_once) <= {"open files"}, (said(point), time)
        del error
        changed = difference(whole, process_state()) + difference(mine, model_state(model))
        assert changed == [], (said(point), time)
    run()
    assert torch.equal(nn.Identity()(X), X)
    assert hits >= 0.9 * len(cases)
    return hits


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_the_process_as_it_was(way: str) -> None:
    _sweep(way, FEW.get(way, 40))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_at_every_line(way: str) -> None:
    """Places that an earlier way has passed are its to try."""
    earlier = itertools.takewhile(lambda w: w != way, WAYS)
    known = {point for w in earlier if w != "compile" for point in _passed(w)[2]}
    _sweep(way, MANY.get(way), known)


@pytest.mark.slow
def test_real_signals() -> None:
    command = [sys.executable, "-m", "tests.signals", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert not [what for what in found if what.startswith("LEFT")], found
    assert sum(found.values()) == 1000 and found.get("dropped by Python", 0) < 50


def test_an_interrupt_that_another_error_covers_up_is_raised() -> None:
    @restore_on_exit
    def work() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("trying to pop from empty mode stack")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_error_while_an_interrupt_is_handled_is_that_error() -> None:
    @restore_on_exit
    def work() -> None:
        raise ValueError("as ever")

    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(ValueError, match="as ever"):
            work()


def test_threads_that_leave_in_any_order() -> None:
    """The patch is there until the last has left, and only then put back."""

    class Owner:
        value = "own"

    patch = Patch(lambda: [(Owner, "value", "patched"), (Owner, "other", "new")])
    patch.hold("a")
    patch.hold("b")
    patch.release("a")
    assert (Owner.value, vars(Owner)["other"]) == ("patched", "new")
    patch.release("b")
    patch.release("b")
    assert Owner.value == "own" and "other" not in vars(Owner)
    _PATCHES.remove(patch)


def test_dynamo_that_is_first_imported_while_a_program_is_captured() -> None:
    """It notes Python's functions by their identity, and ours are in their place."""
    code = """
import torch, math
import torch.nn.functional as F
import graphport as gp

def imports(x):
    import torch._dynamo
    return x * max(x.shape[0], 2)

gp.export(imports, (torch.ones(3),), dynamic_shapes=({0: gp.Dim("b")},))

def fn(x):
    sizes = max(x.shape[0], 2) * min(x.shape[1], 3) * divmod(x.shape[0], 2)[0] * math.pow(2.0, 3.0)
    return F.scaled_dot_product_attention(x, x, x) * sizes

assert torch._dynamo.explain(fn)(torch.ones(3, 4, 8)).graph_break_count == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)
