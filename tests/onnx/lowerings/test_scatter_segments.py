"""Runs along a dim brought together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
NAN, INF = float("nan"), float("inf")


def reduced(reduce: str, **options: Any) -> Any:
    return lambda data, lengths: torch.segment_reduce(data, reduce, lengths=lengths, **options)


def between(reduce: str, **options: Any) -> Any:
    return lambda data, offsets: torch.segment_reduce(data, reduce, offsets=offsets, **options)


def sizes(*lengths: int) -> torch.Tensor:
    return torch.tensor(lengths)


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_lengths(reduce: str, initial: float | None) -> None:
    """Empty segments, too, and other numbers of elements and segments."""
    rows, parts = gp.Dim("rows"), gp.Dim("parts", min=1)
    check_onnx(
        reduced(reduce, initial=initial),
        (torch.randn(7, 3), sizes(3, 0, 4)),
        dynamic_shapes=({0: rows}, {0: parts}),
        others=[
            (torch.randn(11, 3), sizes(0, 1, 9, 1, 0)),
            (torch.randn(1, 3), sizes(1)),
            (torch.randn(0, 3), sizes(0, 0)),
        ],
    )


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_offsets(reduce: str, initial: float | None) -> None:
    """What is before the first segment and after the last is in none."""
    rows, edges = gp.Dim("rows"), gp.Dim("edges", min=2)
    check_onnx(
        between(reduce, initial=initial),
        (torch.randn(7), sizes(0, 3, 3, 7)),
        dynamic_shapes=({0: rows}, {0: edges}),
        others=[
            (torch.randn(11), sizes(0, 1, 1, 4, 9)),
            (torch.randn(6), sizes(2, 2, 4)),
            (torch.randn(0), sizes(0, 0, 0)),
        ],
    )


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_along_another_dim(reduce: str) -> None:
    batch = {0: gp.Dim("batch")}
    check_onnx(
        reduced(reduce, axis=1),
        (torch.randn(2, 5, 3), torch.tensor([[2, 3], [5, 0]])),
        dynamic_shapes=(batch, batch),
        others=[(torch.randn(3, 5, 3), torch.tensor([[0, 5], [1, 4], [4, 1]]))],
    )
    check_onnx(
        between(reduce, axis=1), (torch.randn(2, 5, 3), torch.tensor([[0, 2, 5], [0, 5, 5]]))
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_dtypes(reduce: str, dtype: torch.dtype) -> None:
    check_onnx(reduced(reduce), (torch.randn(7, 3).to(dtype), sizes(3, 0, 4)))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_what_is_not_a_number_stays_in_its_segment(reduce: str) -> None:
    data = torch.tensor([1.0, NAN, 2.0, INF, -INF, 3.0, 4.0, NAN])
    check_onnx(reduced(reduce, unsafe=True), (data, sizes(1, 2, 2, 1, 1)))


def test_int32() -> None:
    check_onnx(reduced("sum"), (torch.randn(7, 3), sizes(3, 0, 4).int()))
