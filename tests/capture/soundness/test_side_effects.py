"""Strict mode, and what the default mode warns of."""

from __future__ import annotations

import itertools
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import CaptureWarning, StrictError

HISTORY: list[Any] = []
LAST: Any = None
CALLS = itertools.count()


class Attribute(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.cache = y
        return y + 1


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.store["hidden"] = [x.sin()]
        return x


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global LAST
        LAST = x.sin()
        return x


class Listed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        HISTORY.append(x + 1)
        return x


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return x * self.step


class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return x * len(self.seen)


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "first"):
            del self.first
            return x * 2
        return x


class InBranch(Counter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return torch.cond(x.sum() > 0, lambda x: x * self.step, lambda x: x + 1, (x,))


class OfClass(nn.Module):
    last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).last = x.sin()
        return x


class OfSettings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = types.SimpleNamespace()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.settings.last = x.sin()
        return x


class Inherited(Global):
    pass


def closed_over() -> Any:
    last = None

    def forward(x: torch.Tensor) -> torch.Tensor:
        nonlocal last
        last = x.sin()
        return x

    return forward


LEAKS = {
    Attribute: "self.cache",
    Nested: "self.store",
    Global: "LAST",
    Listed: "HISTORY",
    OfClass: "OfClass.last",
    OfSettings: "self.settings",
    Inherited: "LAST",
    closed_over: "last",
}
STATE = {Counter: "self.step", Ring: "self.seen", Forgetful: "self.first", InBranch: "self.step"}
SPEC = {"x": {0: Dim("n")}}


@pytest.fixture(autouse=True)
def _globals() -> Any:
    yield
    globals()["LAST"] = OfClass.last = None
    HISTORY.clear()


def export(model: Any, **options: Any) -> gp.ExportedProgram:
    return gp.export(model, (torch.randn(3),), dynamic_shapes=SPEC, **options)


@pytest.mark.parametrize("kind", LEAKS, ids=lambda c: c.__name__)
def test_tensors_that_outlive_the_call(kind: Any) -> None:
    what = f"a tensor of the program is kept beyond the call, in {LEAKS[kind]}"
    with pytest.raises(StrictError, match=what) as caught:
        export(kind(), strict=True)
    assert caught.value.where.file == __file__
    assert "forward" in caught.value.where.function
    with pytest.warns(CaptureWarning, match=what):
        export(kind())


@pytest.mark.parametrize("kind", STATE, ids=lambda c: c.__name__)
def test_state_that_the_program_changes_and_reads(kind: Any) -> None:
    what = f"the program changes {STATE[kind]} and computes something else the next time"
    with pytest.raises(StrictError, match=what):
        export(kind(), strict=True)
    model = kind()
    with pytest.warns(CaptureWarning, match=what):
        export(model)
    assert vars(model).get("step", 1) == 1
    assert vars(model).get("seen", []) == []
    assert vars(model).get("first", True)


def test_state_that_makes_no_difference() -> None:
    class Harmless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(Harmless())
        export(Harmless(), strict=True)


def test_an_assigned_buffer_is_no_leak() -> None:
    class Assigned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean + x.mean()
            return x - self.mean

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(Assigned(), strict=True)


def test_a_capture_that_is_not_repeatable() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * next(CALLS)

    with pytest.raises(StrictError, match="capturing the program again") as caught:
        export(f, strict=True)
    assert "x * next(CALLS)" in caught.value.where.text
    export(f)


def test_a_branch_that_is_not_repeatable() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * next(CALLS), lambda x: x + 1, (x,))

    with pytest.raises(StrictError, match="gives another graph: mul = "):
        export(program, strict=True)


def test_a_decision_by_the_text_of_a_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if f"{x.shape[0]}" == "3" else x

    with pytest.raises(StrictError, match="the text of a size"):
        export(f, strict=True)


def test_text_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print("rows", x.shape[0])
        assert x.shape[0] >= 0, f"{x.shape[0]} rows"
        return x * 2

    export(f, strict=True)
    assert capsys.readouterr().out == "rows n\nrows n\n"


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: Dim("a", min=2, max=4)}, "y": {0: Dim("a", min=2, max=4)}},
        {"x": {0: 2 * Dim("h")}, "y": {0: 2 * Dim("h")}},
        {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}},
        None,
    ],
    ids=["narrow", "derived", "auto", "static"],
)
def test_sound_programs_pass(shapes: Any) -> None:
    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return self.layer(x + y).softmax(-1) + torch.rand(3) + x.shape[0]

    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ep = gp.export(Sound(), (x, x), dynamic_shapes=shapes, strict=True)
    assert ep.module()(x, x).shape == (4, 3)
