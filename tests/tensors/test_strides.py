"""Memory formats of results where sizes of 1 leave open how an operand lies in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import graphport as gp


def images() -> Iterator[Tensor]:
    """Of all sizes, channels last and not, with sizes of 1 among them."""
    for n, c, h, w in itertools.product((1, 2), (1, 2), (1, 4), (1, 3)):
        yield torch.rand(n, c, h, w)
        yield torch.rand(n, h, w, c).permute(0, 3, 1, 2)
        yield torch.rand(n, w, c, h).permute(0, 2, 3, 1)


def lines() -> Iterator[Tensor]:
    for n, c, w in itertools.product((1, 2), (1, 2), (1, 4)):
        yield torch.rand(n, c, w)
        yield torch.rand(n, w, c).permute(0, 2, 1)


def _conv(x: Tensor) -> Tensor:
    return getattr(F, f"conv{x.dim() - 2}d")(x, torch.ones(3, x.shape[1], *[1] * (x.dim() - 2)))


def _conv_transpose(x: Tensor) -> Tensor:
    weight = torch.ones(x.shape[1], 3, *[2] * (x.dim() - 2))
    return getattr(F, f"conv_transpose{x.dim() - 2}d")(x, weight)


ON_IMAGES: dict[str, Callable[[Tensor], Any]] = {
    "conv2d": _conv,
    "conv_transpose2d": _conv_transpose,
    "max_pool2d": lambda x: F.max_pool2d(x, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "cat": lambda x: torch.cat([x, x], 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
    "relu": torch.relu,
    "add": lambda x: x + 1,
    "sub": lambda x: 1 - x,
    "pow": lambda x: x**2,
    "compare": lambda x: x > 0,
    "div": lambda x: x / 2,
    "clamp": lambda x: x.clamp(0, 1),
    "where": lambda x: torch.where(x > 0, x, 1),
    "sum": lambda x: x + x,
    "product": lambda x: x * torch.ones(1, x.shape[1], 1, 1),
    "softmax": lambda x: x.softmax(1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "clone": lambda x: x.clone(),
}
ON_LINES = {
    "conv1d": _conv,
    "conv_transpose1d": _conv_transpose,
    "avg_pool1d": lambda x: F.avg_pool1d(x, 1),
}


def differences(fn: Callable[[Tensor], Any], x: Tensor) -> list[str]:
    want = fn(x)
    result = gp.export(fn, (x,)).graph.output_node().args[0][0]
    found = result.meta["val"]
    if found.stride() == want.stride():
        return []
    return [f"{tuple(x.shape)} {x.stride()}: eager {want.stride()}, captured {found.stride()}"]


@pytest.mark.parametrize("name", ON_IMAGES)
def test_images(name: str) -> None:
    assert [d for x in images() for d in differences(ON_IMAGES[name], x)] == []


@pytest.mark.parametrize("name", ON_LINES)
def test_lines(name: str) -> None:
    assert [d for x in lines() for d in differences(ON_LINES[name], x)] == []
