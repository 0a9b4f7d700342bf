"""Convolutional networks: batch and image size dynamic, eval and training, channels-last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import graphport as gp
from examples import mobilenet, resnet
from tests.helpers import check

CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def image(batch: int, height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, height, width)


def small_resnet() -> nn.Module:
    return resnet.ResNet((1, 1, 1, 1), num_classes=5)


def small_mobilenet() -> nn.Module:
    return mobilenet.MobileNet(mobilenet.SMALL[:4], num_classes=5)


NETWORKS = {"resnet": small_resnet, "mobilenet": small_mobilenet}
PIXELS = {2: 32 * gp.Dim("height", min=1, max=8), 3: 32 * gp.Dim("width", min=1, max=8)}
SPEC = ({0: gp.Dim("batch", min=1, max=64), **PIXELS},)


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_and_image_size_are_dynamic(name: str) -> None:
    others = [(image(1, 64, 64),), (image(3, 96, 32),), (image(1, 32, 32),)]
    check(NETWORKS[name]().eval(), (image(2, 64, 64),), dynamic_shapes=SPEC, others=others, **CLOSE)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_writes_the_statistics(name: str) -> None:
    model = NETWORKS[name]().train()
    ep = check(
        model, (image(2, 64, 64),), dynamic_shapes=SPEC, others=[(image(3, 96, 64),)], **CLOSE
    )
    statistics = [n for n, _ in model.named_buffers()]
    assert sorted(ep.graph_signature.buffers_to_mutate.values()) == sorted(statistics)


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_last(name: str) -> None:
    def last(*sizes: int) -> tuple[Tensor]:
        return (image(*sizes).to(memory_format=torch.channels_last),)

    model = NETWORKS[name]().eval().to(memory_format=torch.channels_last)
    check(model, last(2, 64, 64), dynamic_shapes=SPEC, others=[last(3, 96, 64)], **CLOSE)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_image_at_capture_stays_a_batch(name: str) -> None:
    others = [(image(4, 64, 64),), (image(1, 32, 96),)]
    check(NETWORKS[name]().eval(), (image(1, 64, 64),), dynamic_shapes=SPEC, others=others, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("make", [resnet.resnet50, mobilenet.mobilenet_v3_small])
def test_the_examples_in_full(make: Any) -> None:
    others = [(image(1, 96, 64),), (image(3, 64, 64),)]
    check(make().eval(), (image(2, 64, 64),), dynamic_shapes=SPEC, others=others, **CLOSE)


# Small networks, each for the operators that it is made of.


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolution, joined by concatenation."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.enter, self.down = block(3, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.rise = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up = block(4 * width, 2 * width)
        self.leave = nn.Conv2d(3 * width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enter(x)
        b = self.down(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        up = self.up(torch.cat([self.rise(c), b], 1))
        up = F.interpolate(up, size=a.shape[2:], mode="bilinear", align_corners=False)
        return self.leave(torch.cat([up, a], 1))


class Generator(nn.Module):
    """DCGAN: noise to an image."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(8, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z[:, :, None, None])


class Pyramid(nn.Module):
    """A feature pyramid: each level is brought to the size of the one below and added."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.stages = nn.ModuleList(
            [nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(c, 6, 1) for c in (4, 8, 8)])

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = []
        for stage, side in zip(self.stages, self.lateral, strict=True):
            x = stage(x).relu()
            levels.append(side(x))
        out = [levels[-1]]
        for level in reversed(levels[:-1]):
            up = F.interpolate(out[0], size=level.shape[-2:], mode=self.mode)
            out.insert(0, level + up)
        return [*out, F.max_pool2d(out[-1], 1, 2)]


class SuperResolution(nn.Module):
    """An autoencoder that folds pixels into channels and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.PixelUnshuffle(2), nn.Conv2d(12, 6, 3, padding=1), nn.PReLU()
        )
        self.decode = nn.Sequential(nn.Conv2d(6, 48, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encode(x)
        flat = code.flatten(2).softmax(-1).view_as(code)
        return self.decode(code * flat)


class Detector(nn.Module):
    """Scores and boxes of a grid; the best ones above a threshold, their number data-dependent."""

    def __init__(self, best: int = 6) -> None:
        super().__init__()
        self.best = best
        self.trunk = nn.Conv2d(3, 8, 3, 2, 1)
        self.score, self.box = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features = self.trunk(x).relu()
        scores, labels = self.score(features).flatten(2).transpose(1, 2).softmax(-1).max(-1)
        boxes = self.box(features).flatten(2).transpose(1, 2).sigmoid()
        top, where = scores.topk(self.best, dim=1)
        boxes = boxes.gather(1, where[..., None].expand(-1, -1, 4))
        labels = labels.gather(1, where)
        keep = top > 0.5
        which, slot = keep.nonzero(as_tuple=True)
        return boxes[keep], labels[keep], top[which, slot], which


class Attention(nn.Module):
    """A non-local block: attention over the pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Conv2d(4, 12, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, 2, c // 2, h * w).unbind(1)
        out = F.scaled_dot_product_attention(*(t.transpose(-1, -2) for t in (q, k, v)))
        return x + self.mix(out.transpose(-1, -2).reshape(b, c, h, w))


BATCH = gp.Dim("batch", min=1, max=64)


def free(step: int, channels: int = 3) -> tuple[Any, Any]:
    """A spec with sizes in steps, and images for it."""
    height, width = gp.Dim("height", min=2, max=32), gp.Dim("width", min=2, max=32)
    sizes = (
        {0: BATCH, 2: step * height, 3: step * width}
        if step > 1
        else {0: BATCH, 2: height, 3: width}
    )
    shapes = ((2, 4, 6), (1, 5, 4), (3, 8, 7))
    return (sizes,), [(image(b, step * h, step * w, channels),) for b, h, w in shapes]


SMALL = {
    "unet": (UNet, *free(4)),
    "pyramid_nearest": (lambda: Pyramid("nearest"), *free(8)),
    "pyramid_bilinear": (lambda: Pyramid("bilinear"), *free(8)),
    "super_resolution": (SuperResolution, *free(2)),
    "attention": (Attention, *free(1, channels=4)),
    "generator": (Generator, ({0: BATCH},), [(torch.randn(n, 8),) for n in (2, 1, 5)]),
    "detector": (Detector, *free(4)),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name: str) -> None:
    make, spec, (first, *others) = SMALL[name]
    check(make().eval(), first, dynamic_shapes=spec, others=others, **CLOSE)


@pytest.mark.parametrize("name", ["unet", "generator"])
def test_small_networks_in_training(name: str) -> None:
    make, spec, (first, _, other) = SMALL[name]
    check(make().train(), first, dynamic_shapes=spec, others=[other], **CLOSE)
