"""MobileNetV3-like: depthwise convolutions, squeeze-and-excite, hardswish.

The rows of `SMALL` are the inverted residual blocks of MobileNetV3-Small.

    python examples/mobilenet.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Row(NamedTuple):
    kernel: int
    expanded: int
    outputs: int
    excite: bool
    activation: type[nn.Module]
    stride: int


SMALL = (
    Row(3, 16, 16, True, nn.ReLU, 2),
    Row(3, 72, 24, False, nn.ReLU, 2),
    Row(3, 88, 24, False, nn.ReLU, 1),
    Row(5, 96, 40, True, nn.Hardswish, 2),
    Row(5, 240, 40, True, nn.Hardswish, 1),
    Row(5, 240, 40, True, nn.Hardswish, 1),
    Row(5, 120, 48, True, nn.Hardswish, 1),
    Row(5, 144, 48, True, nn.Hardswish, 1),
    Row(5, 288, 96, True, nn.Hardswish, 2),
    Row(5, 576, 96, True, nn.Hardswish, 1),
    Row(5, 576, 96, True, nn.Hardswish, 1),
)


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] = nn.Identity,
) -> nn.Sequential:
    padding = kernel // 2
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=1e-3), activation())


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate computed from the channel means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * nn.functional.hardsigmoid(self.excite(gate))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, row: Row) -> None:
        super().__init__()
        wide, act = row.expanded, row.activation
        self.body = nn.Sequential(
            conv_bn(inputs, wide, activation=act),
            conv_bn(wide, wide, row.kernel, row.stride, groups=wide, activation=act),
            SqueezeExcite(wide) if row.excite else nn.Identity(),
            conv_bn(wide, row.outputs),
        )
        self.residual = row.stride == 1 and inputs == row.outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNet(nn.Module):
    def __init__(self, rows: tuple[Row, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2, activation=nn.Hardswish)
        blocks: list[nn.Module] = []
        inputs = 16
        for row in rows:
            blocks.append(InvertedResidual(inputs, row))
            inputs = row.outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = conv_bn(inputs, 6 * inputs, activation=nn.Hardswish)
        self.head = nn.Sequential(
            nn.Linear(6 * inputs, 1024),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(1024, num_classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(image)))
        return self.head(x.mean((2, 3)))


def mobilenet_v3_small(num_classes: int = 1000) -> MobileNet:
    return MobileNet(SMALL, num_classes)


def example(batch: int = 2, size: int = 64) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def spec(Dim: type) -> dict[str, Any]:
    return {"image": {0: Dim("batch", min=1, max=1024)}}


def main() -> None:
    import graphport as gp

    model = mobilenet_v3_small().eval()
    program = gp.export(model, (example(),), dynamic_shapes=spec(gp.Dim))
    other = example(batch=5)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(other), model(other))
    print(f"mobilenet: {len(program.graph.nodes)} nodes, equal to eager on {tuple(other.shape)}")


if __name__ == "__main__":
    main()
