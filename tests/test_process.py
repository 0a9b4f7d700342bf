"""The process after an export that was interrupted, anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from tests.interrupts import (
    difference,
    interrupt,
    model_state,
    points,
    process_state,
    said,
    times_of,
)


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
}


def _sweep(way: str, sample: int | None = None) -> int:
    """Interrupt at every point that the way passes; the number of interrupts."""
    run_on, make = WAYS[way]
    model = make()
    run = lambda: run_on(model)  # noqa: E731
    for _ in range(2):  # what is loaded or remembered for good
        run()
    found = points(run)
    cases = [(p, n) for p, count in found.items() for n in times_of(count)]
    if sample is not None and len(cases) > sample:
        cases = random.Random(way).sample(cases, sample)
    whole, mine = process_state(), model_state(model)
    hits = 0
    for point, time in cases:
        error = interrupt(run, point, time)
        if way != "fake_mode" and error is not None:  # also while its traceback is kept
            assert difference(whole, process_state()) == [], (said(point), time, "at once")
        hits += error is not None
        del error
        assert difference(whole, process_state()) == [], (said(point), time)
        assert difference(mine, model_state(model)) == [], (said(point), time)
    run()
    assert torch.equal(nn.Identity()(X), X)
    assert hits > 0.9 * len(cases)
    return hits


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_the_process_as_it_was(way: str) -> None:
    _sweep(way, sample=40)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_at_every_line(way: str) -> None:
    print(way, _sweep(way))
