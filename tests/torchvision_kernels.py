"""Kernels of torchvision's operators in Python: what eager is where its library does not load.

They follow torchvision's own for the CPU, sample by sample, and are meant to be read, not to be
fast. Where the library has loaded, its kernels stay.
"""

from __future__ import annotations

import math
import sys
from functools import cache

import pytest
import torch
from torch import Tensor

from graphport.compat import torchvision


@cache
def register() -> None:
    """Give the operators kernels for the CPU, unless they have some."""
    torchvision.define_operators()
    if not hasattr(torch.ops.torchvision, "qnms"):  # which torchvision asks for when it is imported
        _LIBRARY.define(f"qnms{torchvision.SCHEMAS['nms']}")
    for name, kernel in _KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "CPU"):
            _LIBRARY.impl(name, kernel, "CPU")


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Let torchvision's Python call the kernels, where it has no library of its own."""
    register()
    for module in ("torchvision.extension", "torchvision.ops.roi_align"):
        patch.setattr(sys.modules[module], "_has_ops", lambda: True)


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    areas = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    left, kept = scores.sort(stable=True, descending=True).indices, []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        low = torch.maximum(dets[best, :2], dets[left, :2])
        high = torch.minimum(dets[best, 2:], dets[left, 2:])
        width, height = (high - low).clamp(min=0).unbind(1)
        shared = width * height
        overlap = shared / (areas[best] + areas[left] - shared)
        left = left[~(overlap.double() > iou_threshold)]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


def _sample(plane: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """What planes [C, H, W] have at rows y and columns x, each a list: [C, len(y), len(x)]."""
    sides = []
    for place, size in ((y, plane.shape[1]), (x, plane.shape[2])):
        outside = (place < -1.0) | (place > size)
        place = place.clamp(min=0)
        low = place.long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        above = torch.where(place.long() >= size - 1, torch.zeros_like(place), place - low)
        sides.append((low, high, above, outside))
    (y0, y1, ly, beyond_y), (x0, x1, lx, beyond_x) = sides
    found = (
        ((1 - ly)[:, None] * (1 - lx)) * plane[:, y0][:, :, x0]
        + ((1 - ly)[:, None] * lx) * plane[:, y0][:, :, x1]
        + (ly[:, None] * (1 - lx)) * plane[:, y1][:, :, x0]
        + (ly[:, None] * lx) * plane[:, y1][:, :, x1]
    )
    return found.masked_fill(beyond_y[:, None] | beyond_x, 0.0)


def _places(start: Tensor, size: Tensor, pooled: int, ratio: int) -> tuple[Tensor, int]:
    """Where each bin is sampled: [pooled * samples], and how many samples a bin has."""
    each = size / pooled
    count = ratio if ratio > 0 else math.ceil(each)
    steps = torch.arange(max(count, 0), dtype=start.dtype) + 0.5
    places = start + torch.arange(pooled)[:, None] * each + steps * each / count
    return places.reshape(-1), count


def _align(
    input: Tensor, roi: Tensor, scale: float, window: tuple[int, int], ratio: int, aligned: bool
) -> tuple[Tensor, int]:
    """The sum of the samples of each bin: [C, *window], and their count."""
    x1, y1, x2, y2 = roi[1:] * scale - (0.5 if aligned else 0.0)
    width, height = x2 - x1, y2 - y1
    if not aligned:
        width, height = width.clamp(min=1.0), height.clamp(min=1.0)
    y, rows = _places(y1, height, window[0], ratio)
    x, columns = _places(x1, width, window[1], ratio)
    if rows < 1 or columns < 1:
        return input.new_zeros((input.shape[1], *window)), rows * columns
    found = _sample(input[int(roi[0])], y, x)
    return found.unflatten(1, (window[0], rows)).unflatten(3, (window[1], columns)).sum(
        (2, 4)
    ), rows * columns


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    window = (pooled_height, pooled_width)
    out = input.new_empty((len(rois), input.shape[1], *window))
    for i, roi in enumerate(rois):
        total, count = _align(input, roi, spatial_scale, window, sampling_ratio, aligned)
        out[i] = total / max(count, 1)
    return out


def ps_roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[Tensor, Tensor]:
    window = (pooled_height, pooled_width)
    channels = input.shape[1] // (pooled_height * pooled_width)
    out = input.new_empty((len(rois), channels, *window))
    source = torch.arange(input.shape[1], dtype=torch.int32).reshape(channels, *window)
    for i, roi in enumerate(rois):
        total, count = _align(input, roi, spatial_scale, window, sampling_ratio, True)
        for row in range(pooled_height):
            for column in range(pooled_width):
                own = total[source[:, row, column].long(), row, column]
                out[i, :, row, column] = own / count if count else math.nan
    return out, source.expand(len(rois), -1, -1, -1).contiguous()


def _round(x: float) -> int:
    """As C does: halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    channels, height, width = input.shape[1:]
    out = input.new_zeros((len(rois), channels, pooled_height, pooled_width))
    places = torch.full(out.shape, -1, dtype=torch.int32)
    for k, roi in enumerate(rois):
        x1, y1, x2, y2 = (_round(v) for v in (roi[1:] * spatial_scale).tolist())
        rows = _bins(y1, max(y2 - y1 + 1, 1), pooled_height, height, input.dtype)
        columns = _bins(x1, max(x2 - x1 + 1, 1), pooled_width, width, input.dtype)
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                if bottom <= top or right <= left:
                    continue
                part = input[int(roi[0]), :, top:bottom, left:right].flatten(1)
                best, at = part.max(1)
                out[k, :, i, j] = best
                row, column = at // (right - left) + top, at % (right - left) + left
                places[k, :, i, j] = (row * width + column).int()
    return out, places


def _bins(start: int, length: int, count: int, size: int, dtype: torch.dtype) -> list[list[int]]:
    each = torch.tensor(length, dtype=dtype) / count
    ends = [(math.floor(i * each), math.ceil((i + 1) * each)) for i in range(count)]
    return [[min(max(n + start, 0), size) for n in pair] for pair in ends]


def deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    batch, channels, _height, _width = input.shape
    kernel_h, kernel_w = weight.shape[2:]
    out_h, out_w = offset.shape[2:]
    each = channels // offset_groups
    columns = input.new_zeros((batch, channels, kernel_h * kernel_w, out_h, out_w))
    rows, lines = torch.meshgrid(torch.arange(out_h), torch.arange(out_w), indexing="ij")
    for n in range(batch):
        for c in range(channels):
            for tap in range(kernel_h * kernel_w):
                at = (c // each) * kernel_h * kernel_w + tap
                y = rows * stride_h - pad_h + tap // kernel_w * dilation_h + offset[n, 2 * at]
                x = lines * stride_w - pad_w + tap % kernel_w * dilation_w + offset[n, 2 * at + 1]
                found = _between(input[n, c], y, x)
                columns[n, c, tap] = found * mask[n, at] if use_mask else found
    parts = columns.reshape(batch, groups, channels // groups * kernel_h * kernel_w, out_h * out_w)
    product = weight.reshape(groups, weight.shape[0] // groups, -1) @ parts
    return product.reshape(batch, weight.shape[0], out_h, out_w) + bias[:, None, None]


def _between(plane: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """A pixel beyond the plane is 0."""
    height, width = plane.shape
    total = torch.zeros_like(y)
    for down in (0, 1):
        for over in (0, 1):
            row, column = y.floor() + down, x.floor() + over
            share = (1 - (y - row).abs()) * (1 - (x - column).abs())
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixel = plane[row.clamp(0, height - 1).long(), column.clamp(0, width - 1).long()]
            total += torch.where(inside, share * pixel, 0.0)
    return total


_KERNELS = {
    "nms": nms,
    "roi_align": roi_align,
    "roi_pool": roi_pool,
    "ps_roi_align": ps_roi_align,
    "deform_conv2d": deform_conv2d,
}
