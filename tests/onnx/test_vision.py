"""Convolutional networks that users export first, at any batch and image size."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from examples.resnet import conv_bn
from tests.onnx.helpers import check_onnx
from tests.onnx.test_parity import KINDS, check


class Basic(nn.Module):
    """Two convolutions and what came in, as in a ResNet of 18 layers."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.relu(self.first(x)))
        y += self.shortcut(x)
        return self.relu(y)


def pooled(*stages: nn.Module, features: int) -> nn.Sequential:
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 10))


def stem(outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        conv_bn(3, outputs, kernel, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
    )


def resnet18() -> nn.Module:
    widths = (8, 8, 16, 32, 64)
    blocks = [
        Basic(inputs if i == 0 else outputs, outputs, 2 if i == 0 and inputs != outputs else 1)
        for inputs, outputs in itertools.pairwise(widths)
        for i in range(2)
    ]
    return pooled(stem(8, 7), *blocks, features=64)


def shuffled(x: Tensor, groups: int) -> Tensor:
    """Channels of groups take turns."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, -1, height, width)


class Shuffle(nn.Module):
    """Half of the channels stay as they are, or both halves are made from all at half the size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.halves = outputs // 2, stride == 1
        given = half if self.halves else inputs
        self.left = nn.Identity() if self.halves else self.apart(given, half, stride)
        self.right = nn.Sequential(
            conv_bn(given, half, 1), nn.ReLU(inplace=True), self.apart(half, half, stride)
        )

    @staticmethod
    def apart(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        """Each channel by itself, then all together."""
        by_itself = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        return nn.Sequential(
            by_itself, nn.BatchNorm2d(inputs), conv_bn(inputs, outputs, 1), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.halves else (x, x)
        return shuffled(torch.cat((self.left(left), self.right(right)), dim=1), 2)


def shufflenet() -> nn.Module:
    widths = (8, 16, 32, 64)
    units = [
        Shuffle(inputs if i == 0 else outputs, outputs, 2 if i == 0 else 1)
        for inputs, outputs in itertools.pairwise(widths)
        for i in range(3)
    ]
    last = nn.Sequential(conv_bn(64, 64, 1), nn.ReLU(inplace=True))
    return pooled(stem(8, 3), *units, last, features=64)


def trained(make: object) -> nn.Module:
    """With statistics that are no longer 0 and 1."""
    torch.manual_seed(0)
    model = make()  # type: ignore[operator]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def images(*sizes: int) -> tuple[Tensor]:
    return (torch.randn(sizes[0], 3, *sizes[1:]),)


NETWORKS = pytest.mark.parametrize("make", [resnet18, shufflenet])


@NETWORKS
def test_any_batch(make: object) -> None:
    others = [images(3, 64, 64), images(1, 64, 64)]
    spec = ({0: torch.export.Dim("batch")},)
    check(trained(make), images(2, 64, 64), dynamic_shapes=spec, others=others, kinds=KINDS[1:])


@NETWORKS
def test_any_batch_from_one_image(make: object) -> None:
    spec = ({0: gp.Dim("batch", min=1)},)
    check_onnx(trained(make), images(1, 64, 64), dynamic_shapes=spec, others=[images(3, 64, 64)])


@NETWORKS
def test_any_image(make: object) -> None:
    height, width = 32 * gp.Dim("height", min=1), 32 * gp.Dim("width", min=1)
    program = check_onnx(
        trained(make),
        images(2, 64, 96),
        others=[images(1, 32, 64), images(3, 64, 32)],
        dynamic_shapes=({0: gp.Dim("batch", min=1), 2: height, 3: width},),
    )
    kinds = {n.op_type for n in program.model_proto.graph.node}
    assert "BatchNormalization" not in kinds, "folded into the convolutions"
