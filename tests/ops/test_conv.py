"""Convolution, pooling, resampling: windows that slide."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, check_dynamic, check_static, row

BIG = {"h": 4, "w": 4, "t": 4, "b": 1}
TO_LAST = lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t

ROWS = [
    row(F.conv1d, "b 3 t", "4 3 3", "4", least=BIG, name="conv1d"),
    row(F.conv2d, "b 3 h w", "4 3 3 3", "4", least=BIG, name="conv2d"),
    row(F.conv3d, "b 2 t h w", "3 2 2 2 2", least=BIG, name="conv3d"),
    row(
        lambda a, w: F.conv2d(a, w, stride=2, padding=1, dilation=2),
        "b 3 h w",
        "4 3 3 3",
        least=BIG,
        name="conv2d_strided",
    ),
    row(
        lambda a, w: F.conv2d(a, w, padding="same"),
        "b 3 h w",
        "4 3 3 3",
        least=BIG,
        name="conv2d_same",
    ),
    row(
        lambda a, w: F.conv2d(a, w, groups=2), "b 4 h w", "4 2 3 3", least=BIG, name="conv2d_groups"
    ),
    row(F.conv2d, "3 h w", "4 3 3 3", least=BIG, name="conv2d_unbatched"),
    row(F.conv_transpose1d, "b 3 t", "3 4 3", least=BIG, name="conv_transpose1d"),
    row(
        lambda a, w: F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1),
        "b 3 h w",
        "3 4 3 3",
        least=BIG,
        name="conv_transpose2d",
    ),
    *(
        row(lambda a, fn=fn: fn(a, 2), "b 3 h w", least=BIG, name=fn.__name__)
        for fn in (F.max_pool2d, F.avg_pool2d)
    ),
    row(
        lambda a: F.max_pool2d(a, 3, 2, 1, ceil_mode=True),
        "b 3 h w",
        least=BIG,
        name="max_pool2d_ceil",
    ),
    row(
        lambda a: F.max_pool2d(a, 2, return_indices=True),
        "b 3 h w",
        least=BIG,
        name="max_pool2d_indices",
    ),
    row(lambda a: F.max_pool1d(a, 2), "b 3 t", least=BIG, name="max_pool1d"),
    row(lambda a: F.avg_pool1d(a, 3, 1, 1), "b 3 t", least=BIG, name="avg_pool1d"),
    row(lambda a: F.lp_pool2d(a, 2.0, 2), "b 3 h w", least=BIG, name="lp_pool2d"),
    row(
        lambda a: F.adaptive_avg_pool2d(a, (2, 3)), "b 3 h w", least=BIG, name="adaptive_avg_pool2d"
    ),
    row(
        lambda a: F.adaptive_avg_pool2d(a, (None, 1)),
        "b 3 h w",
        least=BIG,
        name="adaptive_avg_pool2d_none",
    ),
    row(lambda a: F.adaptive_max_pool1d(a, 2), "b 3 t", least=BIG, name="adaptive_max_pool1d"),
    row(lambda a: F.interpolate(a, scale_factor=2), "b 3 h w", least=BIG, name="nearest"),
    row(
        lambda a: F.interpolate(a, scale_factor=1.5, mode="bilinear"),
        "b 3 h w",
        least=BIG,
        name="bilinear",
    ),
    row(
        lambda a: F.interpolate(a, size=(5, 9), mode="bicubic", align_corners=True),
        "b 3 h w",
        least=BIG,
        name="bicubic",
    ),
    row(
        lambda a: F.interpolate(a, scale_factor=2, mode="linear"), "b 3 t", least=BIG, name="linear"
    ),
    row(
        lambda a: F.interpolate(a, scale_factor=0.5, mode="bilinear", antialias=True),
        "b 3 h w",
        least=BIG,
        name="antialias",
    ),
    row(lambda a: F.pixel_shuffle(a, 2), "b 4 h w", least=BIG, name="pixel_shuffle"),
    row(lambda a: F.pixel_unshuffle(a, 2), "b 4 4 6", least=BIG, name="pixel_unshuffle"),
    row(lambda a: F.channel_shuffle(a, 2), "b 4 h w", least=BIG, name="channel_shuffle"),
    row(
        lambda a, t: F.affine_grid(t, list(a.shape), align_corners=False),
        "b 3 h w",
        "b 2 3",
        least=BIG,
        name="affine_grid",
    ),
    row(
        lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False),
        "b 3 h w",
        "b t 5 2",
        least=BIG,
        name="grid_sample",
    ),
    row(lambda a: F.affine_grid(a, (2, 3, 4, 5), align_corners=False), "2 2 3", name="affine_grid"),
    row(lambda a: F.unfold(a, 2), "b 3 h w", least=BIG, name="unfold"),
    row(lambda a: F.fold(a, (4, 5), 2), "b 12 12", least=BIG, name="fold"),
    *(
        row(fn, "b 3 h w", "4 3 3 3", view=TO_LAST, name=f"channels_last_{name}")
        for name, fn in {
            "conv": F.conv2d,
            "relu": lambda a, w: F.relu(F.conv2d(a, w)) + 1,
            "pool": lambda a, w: F.max_pool2d(F.conv2d(a, w), 2),
            "mean": lambda a, w: F.conv2d(a, w).mean((2, 3)),
            "cat": lambda a, w: torch.cat([a, a], 1),
            "pad": lambda a, w: F.pad(a, (1, 1)),
            "upsample": lambda a, w: F.interpolate(a, scale_factor=2),
            "contiguous": lambda a, w: a.contiguous().flatten(1),
        }.items()
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
