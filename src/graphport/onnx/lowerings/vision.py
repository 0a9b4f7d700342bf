"""Lowers torchvision's operators: suppression of boxes, pooling of regions, deformable convolution.

ONNX Runtime suppresses boxes and pools regions as torchvision does, of boxes whose corners are in
order. Releases before 1.25 have no deformable convolution: it is made of basic operators.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower_named
from graphport.onnx.lowerings.control import emit_loop
from graphport.onnx.lowerings.conv import Numbers, sizes_of
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.sort import sort_dim

_WIDE = (torch.float32, torch.float64)


@lower_named("torchvision::nms")
def nms(b: Builder, dets: Value, scores: Value, iou_threshold: float) -> Value:
    """By rank instead of score: ties and NaN are where torch's stable sort has them."""
    order = sort_dim(b, scores, 0, True)[1]
    dtype = dets.dtype if dets.dtype in _WIDE else torch.float32
    boxes = b.Gather(b.cast(dets, dtype), order, axis=0)
    if dtype is torch.float32 and 0 <= iou_threshold <= 1:
        kept = _suppress(b, boxes, sizes_of(dets)[0], iou_threshold)
    else:
        kept = _suppress_by_matrix(b, boxes, sizes_of(dets)[0], iou_threshold)
    return b.Gather(order, kept, axis=0)


def _round_down(number: float) -> float:
    """The largest float32 that is not above a number: the same float32s are above the two."""
    near = torch.tensor(number, dtype=torch.float32)
    below = torch.nextafter(near, torch.tensor(-float("inf")))
    return (below if near.item() > number else near).item()


def _suppress(b: Builder, boxes: Value, count: Size, threshold: float) -> Value:
    """Places of the boxes that stay, of boxes in order.

    To torchvision a box whose corners are not in order overlaps with nothing, and so does to
    ONNX Runtime one of no area: such a box becomes one.
    """
    low, high = (b.Slice(boxes, [i], [i + 2], [1]) for i in (0, 2))
    corners = b.Concat(low, b.Max(low, high), axis=1)
    total = b.sizes.number(count)
    ranks = b.cast(b.Sub(total, Numbers.arange(b, count).node), torch.float32)
    chosen = b.NonMaxSuppression(
        b.unsqueeze(corners, 0),
        b.unsqueeze(ranks, 0, 1),
        b.reshape(total, [1]),
        b.constant(torch.tensor([_round_down(threshold)])),
    )
    return b.Gather(b.shaped(chosen, (None, 3)), b.scalar(2, torch.int64), axis=1)


def _suppress_by_matrix(b: Builder, boxes: Value, count: Size, threshold: float) -> Value:
    """The same, in any dtype and of any threshold: each box against each box before it.

    A box stays if none suppresses it that stays. What is found of all at once is right for as many
    boxes as there were rounds, and for all when nothing changes any more.
    """
    if boxes.dtype is torch.float32:
        threshold = _round_down(threshold)
    sides = [
        b.shaped(b.Gather(boxes, b.scalar(i, torch.int64), axis=1), (count,)) for i in range(4)
    ]
    rows, (x1, y1, x2, y2) = [b.unsqueeze(side, 1) for side in sides], sides
    width = b.Max(b.Sub(b.Min(rows[2], x2), b.Max(rows[0], x1)), 0.0)
    height = b.Max(b.Sub(b.Min(rows[3], y2), b.Max(rows[1], y1)), 0.0)
    shared = b.Mul(width, height)
    area = b.Mul(b.Sub(x2, x1), b.Sub(y2, y1))
    overlap = b.Div(shared, b.Sub(b.Add(b.unsqueeze(area, 1), area), shared))
    place = Numbers.arange(b, count).node
    before = b.Less(b.unsqueeze(place, 1), place)
    suppresses = b.And(b.Greater(overlap, threshold), before)

    def step(stays: Value) -> tuple[Value, list[Value]]:
        by = b.cast(b.And(suppresses, b.unsqueeze(stays, 1)), torch.int64)
        now = b.Equal(b.ReduceSum(by, [0], keepdims=0), 0)
        changed = b.ReduceSum(b.cast(b.Xor(now, stays), torch.int64), [0], keepdims=0)
        return b.Greater(changed, 0), [b.shaped(now, (count,))]

    (stays,) = emit_loop(b, [b.expand(b.constant(torch.tensor(True)), (count,))], step)
    return b.Compress(place, stays, axis=0)


# Pooling of regions


@lower_named("torchvision::roi_align", needs=["RoiAlign"])
def roi_align(
    b: Builder,
    input: Value,
    rois: Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Value:
    corners = b.Slice(rois, [1], [5], [1])
    if input.dtype is torch.float64:  # attributes have 32 bits
        corners, spatial_scale = b.Mul(corners, spatial_scale), 1.0
    return b.RoiAlign(
        input,
        corners,
        _batch_of(b, rois),
        output_height=pooled_height,
        output_width=pooled_width,
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=spatial_scale,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )


def _batch_of(b: Builder, rois: Value) -> Value:
    """The item of the batch that each region is of."""
    return b.cast(b.Gather(rois, b.scalar(0, torch.int64), axis=1), torch.int64)


@lower_named("torchvision::roi_pool", needs=["MaxRoiPool"])
def roi_pool(
    b: Builder,
    input: Value,
    rois: Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Value, None]:
    if input.dtype is torch.float64 or _is_read(b, 1):
        raise UnsupportedError(
            "ONNX has no roi_pool of float64, and none that gives the places of the maxima",
            fix="torchvision.ops.roi_pool(x.float(), boxes.float(), ...) gives the maxima alone",
        )
    shape = [pooled_height, pooled_width]
    return b.MaxRoiPool(input, rois, pooled_shape=shape, spatial_scale=spatial_scale), None


def _is_read(b: Builder, i: int) -> bool:
    """Whether the program uses a result of the operator that is being lowered."""
    return any(n.target is operator.getitem and n.args[1] == i for n in b.origin.users)


@lower_named("torchvision::ps_roi_align", needs=["RoiAlign"])
def ps_roi_align(
    b: Builder,
    input: Value,
    rois: Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[Value, Value]:
    """Of what each channel has at each place of the window, that of the place's own channels."""
    count, channels, *window = b.result[0].sizes
    corners = b.Mul(b.Slice(rois, [1], [5], [1]), spatial_scale)
    low, high = (b.Slice(corners, [i], [i + 2], [1]) for i in (0, 2))
    # ONNX Runtime has no memory for less than no samples.
    end = high if sampling_ratio > 0 else b.Max(low, high)
    scaled = b.Concat(b.Slice(rois, [0], [1], [1]), low, end, axis=1)
    pooled = roi_align(b, input, scaled, 1.0, pooled_height, pooled_width, sampling_ratio, True)
    places = pooled_height * pooled_width
    own = b.constant(torch.eye(places, dtype=torch.bool))
    b.shaped(pooled, (count, channels * places, *window))
    square = b.reshape(pooled, (count, channels, places, places))
    found = b.ReduceSum(b.Where(own, square, 0.0), [3], keepdims=0)
    out = b.reshape(b.shaped(found, (count, channels, places)), (count, channels, *window))
    if sampling_ratio <= 0:  # a mean of no samples
        steps = b.constant(torch.tensor([pooled_width, pooled_height], dtype=rois.dtype))
        samples = b.Ceil(b.Div(b.Sub(high, low), steps))
        none = b.Equal(b.ReduceMin(b.Abs(samples), [1]), 0.0)
        out = b.Where(b.unsqueeze(none, 2, 3), b.scalar(float("nan"), like=out), out)
    source = Numbers.arange(b, channels * places).to(torch.int32).node
    return out, b.expand(b.reshape(source, (channels, *window)), (count, channels, *window))


# Deformable convolution


@lower_named("torchvision::deform_conv2d")
def deform_conv2d(
    b: Builder,
    input: Value,
    weight: Value,
    offset: Value,
    mask: Value,
    bias: Value,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Value:
    """The product of the weight and of what is found at the places that each tap is moved to."""
    batch, channels, height, width = sizes_of(input)
    made, _, *kernel = sizes_of(weight)
    *_, out_h, out_w = b.result.sizes
    items, parts = batch * offset_groups, channels // offset_groups
    moved = b.reshape(offset, (items, *kernel, 2, out_h, out_w))
    rows = _start_taps(b, kernel[0], out_h, stride_h, pad_h, dilation_h).append_dims(1)
    rows = Numbers(b, b.unsqueeze(rows.node, 1))
    columns = Numbers(
        b, b.unsqueeze(_start_taps(b, kernel[1], out_w, stride_w, pad_w, dilation_w).node, 1)
    )
    taps, places = kernel[0] * kernel[1], out_h * out_w
    y, x = (
        b.reshape(
            b.shaped(
                b.Add(
                    b.Gather(moved, b.scalar(i, torch.int64), axis=3), start.to(input.dtype).node
                ),
                (items, *kernel, out_h, out_w),
            ),
            (items, taps * places, 1),
        )
        for i, start in enumerate((rows, columns))
    )
    by_pixel = b.transpose(b.reshape(input, (items, parts, height * width)), [0, 2, 1])
    pixels = b.reshape(by_pixel, (items * height * width, parts))
    found = _interpolate(b, pixels, y, x, height, width)
    if use_mask:
        found = b.Mul(found, b.reshape(mask, (items, taps * places, 1)))
    by_tap = b.reshape(b.shaped(found, (items, taps * places, parts)), (items, taps, places, parts))
    each = channels // groups * taps
    windows = b.reshape(b.transpose(by_tap, [0, 3, 1, 2]), (batch, groups, each, places))
    by_group = b.reshape(weight, (1, groups, made // groups, each))
    product = emit_matmul(b, by_group, windows)
    sizes = (batch, groups, made // groups, places)
    out = b.reshape(b.shaped(product, sizes), (batch, made, out_h, out_w))
    return b.Add(out, b.unsqueeze(bias, 1, 2))


def _start_taps(
    b: Builder, kernel: Size, out: Size, stride: Any, pad: Any, dilation: Any
) -> Numbers:
    """Where each tap of each window is before it is moved: [kernel, out]."""
    windows = Numbers.arange(b, out) * stride - pad
    return (Numbers.arange(b, kernel) * dilation).append_dims(1) + windows


def _interpolate(b: Builder, pixels: Value, y: Value, x: Value, height: Size, width: Size) -> Value:
    """What images have between their pixels, and 0 beyond them; all pixels of all are in a row."""
    y0, x0 = b.Floor(y), b.Floor(x)
    below, right = b.Sub(y, y0), b.Sub(x, x0)
    dtype = y.dtype
    last = [b.sizes.number(size - 1) for size in (height, width)]
    ends = [b.cast(end, dtype) for end in last]
    first = (Numbers.arange(b, sizes_of(y)[0]) * (height * width)).append_dims(2)
    total: Value | None = None
    for down in (0, 1):
        for over in (0, 1):
            row, column = b.Add(y0, float(down)), b.Add(x0, float(over))
            share = b.Mul(
                below if down else b.Sub(b.scalar(1.0, dtype), below),
                right if over else b.Sub(b.scalar(1.0, dtype), right),
            )
            inside = b.And(_is_within(b, row, ends[0]), _is_within(b, column, ends[1]))
            line = b.Mul(_clamp_to(b, row, ends[0], last[0]), b.sizes.number(width))
            at = b.Add(b.Add(first.node, line), _clamp_to(b, column, ends[1], last[1]))
            pixel = b.Where(inside, b.Gather(pixels, b.Squeeze(at, [2]), axis=0), 0.0)
            part = b.Mul(share, pixel)
            total = part if total is None else b.Add(total, part)
    assert total is not None
    near = b.And(
        b.And(b.Greater(y, -1.0), b.Less(y, b.Add(ends[0], 1.0))),
        b.And(b.Greater(x, -1.0), b.Less(x, b.Add(ends[1], 1.0))),
    )
    return b.Where(near, total, 0.0)


def _is_within(b: Builder, place: Value, end: Value) -> Value:
    return b.And(b.GreaterOrEqual(place, 0.0), b.LessOrEqual(place, end))


def _clamp_to(b: Builder, place: Value, end: Value, last: Value) -> Value:
    """As an index; what is far outside would not be one of int64."""
    inside = b.Max(b.Min(place, end), 0.0)
    return b.Min(b.cast(inside, torch.int64), last)
