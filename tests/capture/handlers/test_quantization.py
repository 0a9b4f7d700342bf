"""Quantisation-aware training: modules that observe, and those that only quantise."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.errors import CaptureWarning, UnsupportedError


class Observed(nn.Module):
    """The buffers of `FusedMovingAvgObsFakeQuantize`, the default of torch.ao."""

    def __init__(self, *, rows: int = 0) -> None:
        super().__init__()
        count = rows or 1
        self.rows = rows
        self.register_buffer("observer", torch.tensor([1]))
        self.register_buffer("quantiser", torch.tensor([1]))
        self.register_buffer("low", torch.full((count,), -1.0))
        self.register_buffer("high", torch.full((count,), 1.0))
        self.register_buffer("scale", torch.rand(count) * 0.02 + 0.01)
        self.register_buffer("zero", torch.zeros(count, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        switches = self.observer, self.quantiser
        state = self.low, self.high, self.scale, self.zero
        return torch.fused_moving_avg_obs_fake_quant(
            x, *switches, *state, 0.01, -127, 127, 0, per_row_fake_quant=self.rows > 0
        )


def exact(model: nn.Module) -> Any:
    rows = {} if model.rows else {0: gp.Dim("rows")}
    sizes = (4,) if model.rows else (4, 1, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # it is for buffers as they are
        program = gp.onnx.export(model, (torch.randn(4, 8),), dynamic_shapes=(rows,))
    for n in sizes:
        x = torch.randn(n, 8) * 3
        assert torch.equal(program(x), model(x))
    return [n.op_type for n in program.model_proto.graph.node]


@pytest.mark.parametrize("rows", [0, 4])
def test_observers_that_are_off(rows: int) -> None:
    model = Observed(rows=rows)
    model(torch.randn(4, 8))
    model.observer.zero_()
    assert "QuantizeLinear" in exact(model)
    model.quantiser.zero_()
    assert "QuantizeLinear" not in exact(model)


@pytest.mark.filterwarnings("ignore::graphport.errors.CaptureWarning")
def test_parameters_that_are_not_those_of_what_was_observed() -> None:
    model, x = Observed(), torch.randn(4, 8)
    model.observer.zero_()
    with pytest.raises(UnsupportedError, match="with its next call") as error:
        gp.export(model, (x,))
    assert "call the model once" in str(error.value)
    model(x)
    assert "QuantizeLinear" in exact(model)


@pytest.mark.filterwarnings("ignore::graphport.errors.CaptureWarning")
def test_observers_that_are_on() -> None:
    with pytest.raises(UnsupportedError, match="changes its own scale") as error:
        gp.export(Observed(), (torch.randn(4, 8),))
    assert "disable_observer" in str(error.value) and "Observed.forward" in str(error.value)


def test_switches_that_are_inputs() -> None:
    model = Observed()

    def fn(x: Tensor, observer: Tensor) -> Tensor:
        state = model.low, model.high, model.scale, model.zero
        on = model.quantiser
        return torch.fused_moving_avg_obs_fake_quant(x, observer, on, *state, 0.01, -127, 127, 0)

    with pytest.raises(gp.errors.DataDependentError, match="is not known"):
        gp.export(fn, (torch.randn(4, 8), torch.tensor([0])))
