"""`torch.onnx.is_in_onnx_export()` is true for a model on its way to ONNX, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.onnx import is_in_onnx_export

import graphport as gp

X = torch.arange(3.0)


class Model(torch.nn.Module):
    """Models branch on it: other operators, or other results."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if is_in_onnx_export() else x - 1


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert is_in_onnx_export() is True
        raise KeyboardInterrupt if x.shape[0] == 1 else ValueError


def test_export_to_onnx() -> None:
    program = gp.onnx.export(Model(), (X,))
    torch.testing.assert_close(program(X), X + 1)
    assert is_in_onnx_export() is False


def test_by_its_full_name() -> None:
    program = gp.onnx.export(lambda x: x + 1 if torch.onnx.is_in_onnx_export() else x, (X,))
    torch.testing.assert_close(program(X), X + 1)


def test_verification_runs_what_was_captured() -> None:
    program = gp.onnx.export(Model(), (X,), verify=True)
    assert program.verify().ok and is_in_onnx_export() is False


def test_a_capture_for_anything_else() -> None:
    torch.testing.assert_close(gp.export(Model(), (X,)).module()(X), X - 1)
    assert Model()(X)[0] == -1


@pytest.mark.parametrize("size", [1, 3], ids=["interrupt", "error"])
def test_after_an_error(size: int) -> None:
    with pytest.raises((KeyboardInterrupt, gp.errors.ForwardError)):
        gp.onnx.export(Broken(), (torch.ones(size),))
    assert is_in_onnx_export() is False


def test_in_another_thread() -> None:
    seen: list[bool] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=lambda: seen.append(is_in_onnx_export()))
        other.start()
        other.join()
        return x + 1 if is_in_onnx_export() else x

    torch.testing.assert_close(gp.onnx.export(program, (X,))(X), X + 1)
    assert seen == [False]


def test_torchs_own_exporter_keeps_its_flag() -> None:
    flags: ModuleType = torch.onnx._internal.exporter._flags
    ask: Callable[[], bool] = flags.set_onnx_exporting_flag(is_in_onnx_export)
    assert ask() is True and is_in_onnx_export() is False
    flags._is_onnx_exporting = True
    try:
        assert is_in_onnx_export() is True
    finally:
        flags._is_onnx_exporting = False
    assert is_in_onnx_export() is False
