"""ResNet-50 from scratch: convolutions, batch norm, residual adds, global pooling.

`spec(Dim)` leaves batch, height and width open; image sizes are multiples of 32.

    python examples/resnet.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the width, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = conv_bn(inputs, width, 1)
        self.spatial = conv_bn(width, width, 3, stride)
        self.expand = conv_bn(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.reduce(x))
        y = self.relu(self.spatial(y))
        y = self.expand(y)
        return self.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_bn(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        stages: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(count):
                stride = 2 if block == 0 and stage > 0 else 1
                stages.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stages(self.stem(image))
        return self.head(self.pool(x).flatten(1))


def resnet50(num_classes: int = 1000) -> ResNet:
    return ResNet((3, 4, 6, 3), num_classes)


def example(batch: int = 2, size: int = 64) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def spec(Dim: type) -> dict[str, Any]:
    """Batch and image size; 32 * Dim, because a stride of 2 is taken five times."""
    height, width = Dim("height", min=1, max=32), Dim("width", min=1, max=32)
    return {"image": {0: Dim("batch", min=1, max=1024), 2: 32 * height, 3: 32 * width}}


def batch_spec(Dim: type) -> dict[str, Any]:
    return {"image": {0: Dim("batch", min=1, max=1024)}}


def main() -> None:
    import graphport as gp

    model = resnet50().eval()
    program = gp.export(model, (example(),), dynamic_shapes=spec(gp.Dim))
    other = example(batch=3, size=96)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(other), model(other))
    print(f"resnet50: {len(program.graph.nodes)} nodes, equal to eager on {tuple(other.shape)}")


if __name__ == "__main__":
    main()
