"""Numbers that are too far by no more than eager's own rounding."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from graphport.onnx.verify.compare import is_rounding, nudge


def test_nudged_floats_are_neighbours() -> None:
    x = torch.randn(100)
    other = nudge(x)
    assert isinstance(other, torch.Tensor)
    assert ((other - x).abs() <= x.abs() * 2**-22).all() and (other != x).all()
    assert {bool(up) for up in other > x} == {True, False}
    for same in (torch.arange(3), torch.ones(2, dtype=torch.float16), 3.0):
        assert nudge(same) is same


@pytest.mark.parametrize(
    ("error", "noise", "excused"),
    [(3e-5, 1e-5, True), (3e-5, 1e-6, False), (1e-2, 1e-1, False), (float("inf"), 1.0, False)],
)
def test_what_is_excused(error: float, noise: float, excused: bool) -> None:
    want = torch.randn(50)
    have, nudged = want.clone(), want.clone()
    have[3] += error
    nudged[7] += noise
    assert is_rounding(have, want, nudged) is excused


class Cancelling(torch.nn.Module):
    """Amplifies the rounding of its input to more than the tolerance of float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x + 1000.0).sin().exp() - x.sin()).cumsum(0)


def wrong(b, self):  # type: ignore[no-untyped-def]
    return b.Add(b.Sin(self), b.scalar(1e-3, like=self))


def test_an_error_is_no_rounding() -> None:
    x = torch.randn(64)
    lowerings = {"aten::sin": wrong}
    program = gp.onnx.export(Cancelling(), (x,), custom_lowerings=lowerings)
    assert not program.verify().ok
    assert gp.onnx.export(Cancelling(), (x,)).verify().ok
