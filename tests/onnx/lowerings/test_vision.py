"""torchvision's operators on ONNX Runtime, against kernels in Python."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from tests import torchvision_kernels
from tests.onnx.helpers import check_onnx, nodes

torchvision_kernels.register()
OPS = torch.ops.torchvision
N, K, B, H, W = (gp.Dim(name) for name in "nkbhw")


def boxes(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """On a grid, so that many touch; some with corners that are not in order; scores with ties."""
    low = torch.randint(20, (count, 2))
    scores = torch.randint(5, (count,)).to(dtype)
    if count > 3:
        scores[2], scores[0] = float("nan"), -float("inf")
    return torch.cat([low, low + torch.randint(-1, 10, (count, 2))], 1).to(dtype), scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 1.0, -0.5, 1.5])
def test_nms(dtype: torch.dtype, threshold: float) -> None:
    """The same places in the same order: by score, of equal ones the first."""
    check_onnx(
        lambda dets, scores: OPS.nms(dets, scores, threshold),
        boxes(30, dtype),
        dynamic_shapes=({0: N}, {0: N}),
        others=[boxes(n, dtype) for n in (0, 1, 2, 57, 150)],
    )


def test_an_overlap_just_at_the_threshold() -> None:
    """0.1 is less than the float32 next to it, which an overlap of a tenth is."""
    dets = torch.tensor([[0.0, 0, 10, 1], [0, 0, 1, 1], [0, 0, 10, 1]])
    check_onnx(lambda d, s: OPS.nms(d, s, 0.1), (dets, torch.tensor([3.0, 2, 1])))
    check_onnx(lambda d, s: OPS.nms(d, s, 0.2), (dets, torch.tensor([3.0, 2, 1])))


def test_nms_is_one_operator() -> None:
    assert "NonMaxSuppression" in nodes(lambda d, s: OPS.nms(d, s, 0.5), *boxes(5, torch.float32))


def regions(count: int, batch: int, height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Some of them beyond the image."""
    low = torch.rand(count, 2) * torch.tensor([width, height]) * 6 - 8
    item = torch.randint(batch, (count, 1))
    return torch.cat([item, low, low + torch.rand(count, 2) * 40], 1).to(dtype)


def pooled(
    channels: int, count: int, batch: int, height: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    image = torch.randn(batch, channels, height, width, dtype=dtype)
    return image, regions(count, batch, height, width, dtype)


REGIONS = ({0: B, 2: H, 3: W}, {0: K})
SIZES = [(0, 2, 5, 7), (1, 1, 5, 7), (7, 3, 20, 9), (3, 2, 1, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ratio", [-1, 0, 2])
@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align(aligned: bool, ratio: int, dtype: torch.dtype) -> None:
    check_onnx(
        lambda x, rois: OPS.roi_align(x, rois, 0.3, 3, 2, ratio, aligned),
        pooled(4, 5, 2, 10, 12, dtype),
        dynamic_shapes=REGIONS,
        others=[pooled(4, *sizes, dtype) for sizes in SIZES],
    )


def test_roi_pool() -> None:
    check_onnx(
        lambda x, rois: OPS.roi_pool(x, rois, 0.3, 3, 2)[0],
        pooled(4, 5, 2, 10, 12, torch.float32),
        dynamic_shapes=REGIONS,
        others=[pooled(4, *sizes, torch.float32) for sizes in SIZES],
    )


def test_roi_pool_that_onnx_does_not_have() -> None:
    with pytest.raises(gp.errors.UnsupportedError, match="the places of the maxima"):
        gp.onnx.export(
            lambda x, rois: OPS.roi_pool(x, rois, 1.0, 2, 2)[1],
            pooled(4, 5, 2, 10, 12, torch.float32),
        )


@pytest.mark.parametrize("ratio", [-1, 2])
def test_ps_roi_align(ratio: int) -> None:
    """A region of no height has no samples, of which the mean is nan."""

    def inputs(*sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, rois = pooled(12, *sizes, torch.float32)
        rois[:1, 4] = rois[:1, 2]
        rois[1:2, 3] -= 60
        return image, rois

    check_onnx(
        lambda x, rois: OPS.ps_roi_align(x, rois, 0.3, 3, 2, ratio),
        inputs(5, 2, 10, 12),
        dynamic_shapes=REGIONS,
        others=[inputs(*sizes) for sizes in SIZES],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("groups", "offset_groups", "use_mask", "stride", "pad", "dilation"),
    [
        (1, 1, False, (1, 1), (0, 0), (1, 1)),
        (2, 1, True, (2, 1), (1, 2), (1, 1)),
        (1, 2, True, (1, 2), (2, 1), (2, 1)),
        (2, 4, False, (1, 1), (1, 1), (1, 2)),
    ],
)
def test_deform_conv2d(
    groups: int,
    offset_groups: int,
    use_mask: bool,
    stride: tuple[int, int],
    pad: tuple[int, int],
    dilation: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    kernel = (3, 2)
    weight, bias = torch.randn(6, 4 // groups, *kernel, dtype=dtype), torch.randn(6, dtype=dtype)
    taps = offset_groups * kernel[0] * kernel[1]

    def inputs(batch: int, *size: int) -> tuple[torch.Tensor, ...]:
        out = [
            (s + 2 * p - d * (k - 1) - 1) // step + 1
            for s, p, d, k, step in zip(size, pad, dilation, kernel, stride, strict=True)
        ]
        mask = torch.rand(batch, taps, *out) if use_mask else torch.zeros(batch, 1, 1, 1)
        offset = torch.randn(batch, 2 * taps, *out) * 3
        return tuple(t.to(dtype) for t in (torch.randn(batch, 4, *size), offset, mask))

    open_dims = dict.fromkeys((0, 2, 3), gp.Dim.AUTO)
    check_onnx(
        lambda x, offset, mask: OPS.deform_conv2d(
            x, weight, offset, mask, bias, *stride, *pad, *dilation, groups, offset_groups, use_mask
        ),
        inputs(2, 9, 8),
        dynamic_shapes=(open_dims, open_dims, open_dims if use_mask else {0: gp.Dim.AUTO}),
        others=[inputs(*sizes) for sizes in ((1, 9, 8), (0, 9, 8), (3, 12, 15))],
    )
