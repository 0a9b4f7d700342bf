"""The loss of a linear layer that torch computes in chunks of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.onnx.helpers import check_onnx

NAME = "torch.nn.modules.linear_cross_entropy"
MODULE = pytest.importorskip(NAME, reason="torch has this loss from 2.13 on")
whole = MODULE._linear_cross_entropy_batch_chunked
each = MODULE._linear_cross_entropy_batch_chunked_no_reduction

# Rows in a chunk, and how they are added up.
CHUNKS = (2, "balanced")


def inputs(rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    x, weight, bias = torch.randn(rows, 4), torch.randn(6, 4), torch.randn(6)
    target = torch.randint(6, (rows,))
    target[1::3] = -100
    return x.to(dtype), weight.to(dtype), target, bias.to(dtype), torch.rand(6).to(dtype)


@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_of_each_row(weighted: bool, ignore_index: int) -> None:
    def fn(x: Any, w: Any, y: Any, bias: Any, weight: Any) -> Any:
        y = torch.where(y < 0, ignore_index, y)
        return each(x, w, y, bias, weight if weighted else None, ignore_index, *CHUNKS, x.dtype)

    rows = {0: gp.Dim("rows")}
    check_onnx(
        fn,
        inputs(5),
        dynamic_shapes=(rows, None, rows, None, None),
        others=[inputs(9), inputs(1), inputs(0)],
    )


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_with_gradients(reduction: str, weighted: bool, gradients: bool) -> None:
    def fn(x: Any, w: Any, y: Any, bias: Any, weight: Any) -> Any:
        return whole(
            x,
            w,
            y,
            bias,
            weight if weighted else None,
            reduction,
            -100,
            0.0,
            *CHUNKS,
            x.dtype,
            False,
            gradients,
            gradients,
            gradients,
        )

    rows = {0: gp.Dim("rows")}
    check_onnx(
        fn,
        inputs(5),
        dynamic_shapes=(rows, None, rows, None, None),
        others=[inputs(9), inputs(1), inputs(0)],
    )
    check_onnx(fn, inputs(5, torch.float64))


def test_gradients_that_nobody_asks_for_are_not_computed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            chunks = nn.LinearCrossEntropyOptions(True, batch_chunk_size=2)
            return F.linear_cross_entropy(x, self.head.weight, y, options=chunks)

    x, _, y, *_ = inputs(5)
    program = check_onnx(Model(), (x, y))
    assert "Exp" not in [n.op_type for n in program.model_proto.graph.node]


@pytest.mark.parametrize(
    "settings", [{"batch_chunk_size": 2}, {}, {"chunking_method": "aspect_ratio"}]
)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_chunks_of_open_sizes(reduction: str, settings: dict[str, Any]) -> None:
    """torch asks whether their size is an int, and rounds it to a power of 2."""

    def fn(x: Any, w: Any, y: Any) -> Any:
        chunks = nn.LinearCrossEntropyOptions(True, **settings)
        return F.linear_cross_entropy(x, w, y, reduction=reduction, options=chunks)

    rows, classes = gp.Dim("rows"), gp.Dim("classes", min=6)
    spec = ({0: rows}, {0: classes}, {0: rows})
    check_onnx(fn, inputs(5)[:3], dynamic_shapes=spec, others=[inputs(9)[:3], inputs(1)[:3]])
    program = gp.export(fn, inputs(5)[:3], dynamic_shapes=spec)
    x, _, y, *_ = inputs(7)
    given = (x, torch.randn(40, 4), y)
    torch.testing.assert_close(program.module()(*given), fn(*given))
    with pytest.raises(gp.errors.ForwardError, match="must be positive int"):
        gp.export(
            lambda x, w, y: nn.LinearCrossEntropyOptions(batch_chunk_size=x.shape[0] - 5),
            inputs(5)[:3],
            dynamic_shapes=spec,
        )
