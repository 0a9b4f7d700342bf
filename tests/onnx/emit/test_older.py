"""Files of opsets 11 to 19: the same results, in the operators that these opsets have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import graphport as gp
from graphport.errors import UnsupportedError
from tests.onnx.helpers import check_onnx

OPSETS = (11, 12, 13, 14, 15, 17, 19)


def r(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.block(y.view(x.shape[0], -1, 4)).softmax(1)


def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean((0, -1)), x.sum(-1), x.amax(1), x.norm(), x.argmax(1), x.min(1)[1]


def shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    turned = x.reshape(-1, 2, x.shape[1]).transpose(0, 1)
    return turned.reshape(x.shape[0], -1), x[None].squeeze(0), *x.split([1, 3], 1)


def integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.argsort(1)
    return n.clamp(1, 2), torch.maximum(n, n.flip(0)), n >= 2, n <= 1, n.mode(1)[0]


def triangles(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.tril(), x.triu(1), x.triu(-1)


def images(x: torch.Tensor) -> torch.Tensor:
    image = x[None, None]
    larger = F.interpolate(image, scale_factor=2.0, mode="bilinear")
    return F.pad(larger, (1, 2)) + F.interpolate(image, size=(larger.shape[2], 11))


def placed(x: torch.Tensor) -> torch.Tensor:
    return x.scatter(1, x.argsort(1), x.log_softmax(0))


sample = functools.partial(F.grid_sample, align_corners=False)

FUNCTIONS: list[Callable[..., Any]] = [sums, shapes, integers, triangles, images, placed]


@pytest.mark.parametrize("opset", OPSETS)
def test_functions_at_all_sizes(opset: int) -> None:
    rows = ({0: 2 * gp.Dim("half", min=1)},)
    for fn in FUNCTIONS:
        program = check_onnx(fn, (r(4, 4),), dynamic_shapes=rows, others=[(r(6, 4),)], opset=opset)
        assert program.model_proto.opset_import[0].version == opset


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_a_network(opset: int) -> None:
    spec, others = ({0: gp.Dim("batch", min=1)},), [(r(5, 3, 6, 6),)]
    model = Network().eval()
    check_onnx(model, (r(2, 3, 6, 6),), dynamic_shapes=spec, others=others, opset=opset)


@pytest.mark.parametrize("opset", [11, 13])
def test_shapes_without_elements(opset: int) -> None:
    """A 0 in a shape is a size of the operand before opset 14."""
    n, m = gp.Dim("n"), gp.Dim("m")
    others = [(r(0, 4),), (r(6, 0),), (r(0, 0),), (r(2, 2),)]
    for fn in (
        lambda x: x[:, :, None].expand(-1, -1, 3).reshape(x.shape[0] * x.shape[1], 3),
        lambda x: (x + 1).reshape(-1).reshape(x.shape[1], x.shape[0]),
        lambda x: x[:, None, :0].reshape(0, 7),
    ):
        check_onnx(fn, (r(3, 4),), dynamic_shapes=({0: n, 1: m},), others=others, opset=opset)


def test_a_condition_of_the_file() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.sum().int().item()
        torch._check(n > 2)
        return x * n, x.sum()

    for opset in (11, 13):
        program = check_onnx(fn, (torch.ones(3),), opset=opset)
        with pytest.raises(gp.errors.RequirementError):
            program.session.run({"x": torch.zeros(3)})


@pytest.mark.parametrize(
    ("fn", "opset", "first"),
    [
        (lambda x: x.long() & 3, 17, 18),
        (lambda x: x.scatter_add(0, x.argsort(0), x), 13, 16),
        (lambda x: sample(x[None, None], x[None, :, None, :2]), 13, 16),
        (lambda x: sample(x[None, None, None], x[None, None, :, None, :3]), 17, 20),
        (lambda x: F.celu(x, 2.0), 11, 12),
        (lambda x: x.split([x.shape[0] - 2, 2]), 12, 13),
    ],
)
def test_what_an_opset_has_not_is_refused(fn: Any, opset: int, first: int) -> None:
    spec = ({0: gp.Dim("n", min=4)},)
    with pytest.raises(UnsupportedError, match=f"fix  opset={first}"):
        gp.onnx.export(fn, (r(6, 6),), dynamic_shapes=spec, opset=opset)


def test_interpolated_grids() -> None:
    grid = torch.rand(1, 4, 4, 2, generator=torch.Generator().manual_seed(0))
    for opset in (16, 18, 20):
        check_onnx(sample, (r(1, 2, 5, 5), grid), opset=opset)


def test_functions_of_modules_need_a_newer_format() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    program = gp.onnx.export(model, (r(2, 4),), opset=13, module_functions=[nn.Linear])
    assert program.model_proto.ir_version == 8
    assert gp.onnx.export(model, (r(2, 4),), opset=13).model_proto.ir_version == 7
