"""Verification of quantised models: integers that differ by the rounding of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphport as gp
from tests.quantized import PT2E

KIND = 0.01, 3, -128, 127, torch.int8


def bytes_of(x: Tensor) -> Tensor:
    return PT2E.quantize_per_tensor(x.sin(), *KIND)


def bytes_and_back(x: Tensor) -> Tensor:
    """The file has unsigned bytes: what the signed ones are follows from the floats."""
    return PT2E.dequantize_per_tensor(bytes_of(x), *KIND) * 3


def fake(x: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x.sin(), 0.01, 3, -128, 127) * 3


def export(fn: Callable[..., Any], error: float) -> Any:
    """With a sine that is wrong by so much."""

    def sine(b: Any, self: Any) -> Any:
        return b.Add(b.Sin(self), error)

    return gp.onnx.export(fn, (torch.randn(50_000),), custom_lowerings={"aten::sin": sine})


@pytest.mark.parametrize("fn", [bytes_of, bytes_and_back, fake])
def test_by_rounding(fn: Callable[..., Any]) -> None:
    report = export(fn, 1e-6).verify(other_sizes=False)
    assert report.ok and "by ties" in str(report)


@pytest.mark.parametrize("fn", [bytes_of, bytes_and_back, fake])
def test_not_by_rounding(fn: Callable[..., Any]) -> None:
    assert not export(fn, 1e-3).verify(other_sizes=False).ok
