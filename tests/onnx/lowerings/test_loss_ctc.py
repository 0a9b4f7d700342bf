"""Connectionist temporal classification, at several sizes and in all the ways to call it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx

frames, batch, width = gp.Dim("frames", min=1), gp.Dim("batch", min=1), gp.Dim("width")
lines = {0: batch}


def chances(t: int, n: int, c: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(t, n, c, dtype=dtype).log_softmax(-1)


def labels(*sizes: int, blank: int = 0, c: int = 5) -> torch.Tensor:
    found = torch.randint(c - 1, sizes)
    return found + (found >= blank)


def lengths(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def loss(**options: Any) -> Any:
    return lambda x, y, xs, ys: F.ctc_loss(x, y, xs, ys, **options)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_lengths_that_are_tensors(reduction: str, zero_infinity: bool) -> None:
    """A target may be empty, or have no room in its frames."""
    torch.manual_seed(0)
    check_onnx(
        loss(reduction=reduction, zero_infinity=zero_infinity),
        (chances(8, 3), labels(3, 4), lengths(8, 7, 5), lengths(4, 2, 3)),
        dynamic_shapes=({0: frames, 1: batch}, {0: batch, 1: width}, lines, lines),
        others=[
            (chances(12, 4), labels(4, 6), lengths(12, 3, 0, 9), lengths(6, 5, 2, 0)),
            (chances(1, 1), labels(1, 1), lengths(1), lengths(1)),
            (chances(3, 2), labels(2, 0), lengths(3, 0), lengths(0, 0)),
        ],
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_lengths_that_are_numbers(reduction: str) -> None:
    torch.manual_seed(0)
    check_onnx(
        lambda x, y: F.ctc_loss(x, y, (4, 3, 0), (3, 1, 2), blank=2, reduction=reduction),
        (chances(8, 3), labels(3, 4, blank=2)),
        dynamic_shapes=({0: gp.Dim("frames", min=4)}, {1: gp.Dim("width", min=3)}),
        others=[(chances(5, 3), labels(3, 9, blank=2))],
    )


@pytest.mark.parametrize("blank", [0, 4])
def test_targets_one_after_another(blank: int) -> None:
    torch.manual_seed(0)
    fn = loss(blank=blank, reduction="none")
    check_onnx(
        fn,
        (chances(8, 3), labels(6, blank=blank), lengths(8, 7, 5), lengths(4, 0, 2)),
        dynamic_shapes=({0: frames, 1: batch}, {0: width}, lines, lines),
        others=[
            (chances(12, 4), labels(9, blank=blank), lengths(12, 9, 0, 9), lengths(0, 5, 3, 1)),
            (chances(3, 2), labels(0), lengths(3, 0), lengths(0, 0)),
        ],
    )
    numbers = (8, 7, 5), (4, 0, 2)
    check_onnx(lambda x, y: fn(x, y, *numbers), (chances(8, 3), labels(6, blank=blank)))
    numbers = (8, 7, 5), (0, 0, 0)
    check_onnx(lambda x, y: fn(x, y, *numbers), (chances(8, 3), labels(0)))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_sequence(reduction: str) -> None:
    torch.manual_seed(0)
    fn = loss(reduction=reduction)
    x, y = chances(8, 1)[:, 0], labels(3)
    check_onnx(
        fn,
        (x, y, lengths(7), lengths(3)),
        dynamic_shapes=({0: frames}, {0: width}, None, None),
        others=[(chances(9, 1)[:, 0], labels(4), lengths(9), lengths(4))],
    )
    check_onnx(fn, (x, y, torch.tensor(8), torch.tensor(3)))
    check_onnx(lambda x, y: fn(x, y, (8,), (3,)), (x, y))


def test_many_frames() -> None:
    """Chances far below what a float holds: it is their logarithms that are added."""
    torch.manual_seed(0)
    check_onnx(
        loss(reduction="none"),
        (chances(200, 3, 30), labels(3, 40, c=30), lengths(200, 77, 180), lengths(40, 20, 9)),
    )


def test_doubles() -> None:
    torch.manual_seed(0)
    x = chances(20, 2, dtype=torch.float64)
    check_onnx(loss(), (x, labels(2, 4).int(), lengths(20, 11).int(), lengths(4, 3).int()))


def test_labels_past_the_end_are_not_read() -> None:
    y = torch.tensor([[1, 2, -1], [3, 3, 99]])
    check_onnx(loss(reduction="none"), (chances(6, 2), y, lengths(6, 6), lengths(2, 2)))
