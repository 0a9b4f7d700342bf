"""Shape rules of torchvision's operators: pooling of regions, deformable convolution."""

from __future__ import annotations

import torch

from graphport.errors import ShapeError
from graphport.ops.conv import count_windows
from graphport.ops.registry import shape_rule_named
from graphport.ops.sizes import establish, establish_equal, establish_sizes
from graphport.symbolic import ge
from graphport.tensors.abstract import Abstract, Size


def check_boxes(name: str, dets: Abstract, scores: Abstract) -> None:
    """What `nms` needs of boxes and their scores."""
    if dets.rank != 2 or not establish_equal(dets.sizes[1], 4):
        raise ShapeError(f"{name}: boxes should be of sizes [N, 4], got {dets}")
    if scores.rank != 1 or not establish_equal(scores.sizes[0], dets.sizes[0]):
        raise ShapeError(f"{name}: expected a score for each box of {dets}, got {scores}")
    if dets.dtype is not scores.dtype or not dets.dtype.is_floating_point:
        raise ShapeError(f"{name}: boxes and scores should be floats of one dtype, got {dets}")


def _pool(
    name: str, input: Abstract, rois: Abstract, height: Size, width: Size, channels: Size
) -> Abstract:
    """A window of so many channels for each region."""
    if input.rank != 4:
        raise ShapeError(f"{name}: expected an input of sizes [N, C, H, W], got {input}")
    if rois.rank != 2 or not establish_equal(rois.sizes[1], 5):
        raise ShapeError(f"{name}: rois should be of sizes [K, 5], got {rois}")
    if input.dtype is not rois.dtype:
        raise ShapeError(
            f"{name}: expected rois of the dtype of the input, got {rois} beside {input}"
        )
    return input.like((rois.sizes[0], channels, height, width))


def _pool_by_position(
    name: str, input: Abstract, rois: Abstract, height: Size, width: Size
) -> tuple[Abstract, Abstract]:
    """Each place of the window has channels of its own; and which they are."""
    if input.rank == 4 and not establish_equal(input.sizes[1] % (height * width), 0):
        raise ShapeError(
            f"{name}: input channels must be a multiple of pooling height * pooling width, "
            f"got {input}"
        )
    channels = input.sizes[1] // (height * width) if input.rank == 4 else 0
    out = _pool(name, input, rois, height, width, channels)
    return out, out.like(dtype=torch.int32)


@shape_rule_named("torchvision::roi_align")
def roi_align(
    input: Abstract,
    rois: Abstract,
    spatial_scale: float,
    pooled_height: Size,
    pooled_width: Size,
    sampling_ratio: int,
    aligned: bool,
) -> Abstract:
    channels = input.sizes[1] if input.rank == 4 else 0
    return _pool("roi_align", input, rois, pooled_height, pooled_width, channels)


@shape_rule_named("torchvision::roi_pool")
def roi_pool(
    input: Abstract, rois: Abstract, spatial_scale: float, pooled_height: Size, pooled_width: Size
) -> tuple[Abstract, Abstract]:
    channels = input.sizes[1] if input.rank == 4 else 0
    out = _pool("roi_pool", input, rois, pooled_height, pooled_width, channels)
    return out, out.like(dtype=torch.int32)


@shape_rule_named("torchvision::ps_roi_align")
def ps_roi_align(
    input: Abstract,
    rois: Abstract,
    spatial_scale: float,
    pooled_height: Size,
    pooled_width: Size,
    sampling_ratio: int,
) -> tuple[Abstract, Abstract]:
    return _pool_by_position("ps_roi_align", input, rois, pooled_height, pooled_width)


@shape_rule_named("torchvision::ps_roi_pool")
def ps_roi_pool(
    input: Abstract, rois: Abstract, spatial_scale: float, pooled_height: Size, pooled_width: Size
) -> tuple[Abstract, Abstract]:
    return _pool_by_position("ps_roi_pool", input, rois, pooled_height, pooled_width)


@shape_rule_named("torchvision::deform_conv2d")
def deform_conv2d(
    input: Abstract,
    weight: Abstract,
    offset: Abstract,
    mask: Abstract,
    bias: Abstract,
    stride_h: Size,
    stride_w: Size,
    pad_h: Size,
    pad_w: Size,
    dilation_h: Size,
    dilation_w: Size,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Abstract:
    given = [input, weight, offset, *([mask] if use_mask else [])]
    if any(t.rank != 4 or t.dtype is not input.dtype for t in given):
        raise ShapeError(
            "deform_conv2d: input, weight, offset and mask are of 4 dims and of one dtype, got "
            f"{', '.join(map(str, given))}"
        )
    if not establish_equal(weight.sizes[1] * groups, input.sizes[1]) or not (
        establish_equal(weight.sizes[0] % groups, 0)
    ):
        raise ShapeError(
            f"deform_conv2d: weight {weight} in {groups} groups does not fit the input {input}"
        )
    if not establish_equal(input.sizes[1] % offset_groups, 0):
        raise ShapeError(f"deform_conv2d: {offset_groups} offset groups do not divide {input}")
    if not establish_sizes(bias.sizes, (weight.sizes[0],)):
        raise ShapeError(f"deform_conv2d: expected a bias for each of {weight}, got {bias}")
    steps = zip((stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), strict=True)
    spatial = tuple(
        count_windows(size, kernel, stride, pad, pad, dilation)  # type: ignore[arg-type]
        for size, kernel, (stride, pad, dilation) in zip(
            input.sizes[2:], weight.sizes[2:], steps, strict=True
        )
    )
    if not all(establish(ge(s, 1)) for s in spatial):
        raise ShapeError(f"deform_conv2d: the kernel of {weight} is larger than the input {input}")
    taps = weight.sizes[2] * weight.sizes[3] * offset_groups
    for name, t, each in (("offset", offset, 2), ("mask", mask, 1)):
        wanted = (input.sizes[0], each * taps, *spatial)
        if (name == "offset" or use_mask) and not establish_sizes(t.sizes, wanted):
            raise ShapeError(
                f"deform_conv2d: expected {name} of sizes [{', '.join(map(str, wanted))}], got {t}"
            )
    return input.like((input.sizes[0], weight.sizes[0], *spatial))
