"""Lowers unfold and fold, pixel shuffles and channel shuffles."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.factory import emit_full
from graphport.ops.sizes import wrap_dim
from graphport.symbolic import prod


@lower(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: Builder, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along a dim; those that follow upon each other without a rest are a reshape."""
    if not self.rank:
        return b.Gather(b.reshape(self, [1]), torch.arange(size), axis=0)
    dim = wrap_dim(dimension, self.rank)
    sizes = list(self.sizes)
    count = b.result.sizes[dim]
    if size == step and b.scope.same(count * size, sizes[dim]):
        windows = b.reshape(self, [*sizes[:dim], count, size, *sizes[dim + 1 :]])
    else:
        windows = b.Gather(self, window_positions(b, count, step, size, 1), axis=dim)
    order = [d for d in range(self.rank + 1) if d != dim + 1]
    return b.transpose(windows, [*order, dim + 1])


def window_positions(
    b: Builder, rows: Size, row_step: int, columns: Size, column_step: int
) -> Value:
    """Positions row * row_step + column * column_step."""
    down, across = (
        emit_arange(b, n) if step == 1 else _scale(b, emit_arange(b, n), step)
        for n, step in ((rows, row_step), (columns, column_step))
    )
    if down.tensor is not None and across.tensor is not None:
        return b.constant(down.tensor[:, None] + across.tensor)
    return b.shaped(b.Add(b.unsqueeze(down, 1), across), (rows, columns))


def _scale(b: Builder, x: Value, factor: int) -> Value:
    return b.constant(x.tensor * factor) if x.tensor is not None else b.Mul(x, factor)


@lower(aten.im2col.default)
def im2col(
    b: Builder,
    self: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Rows of windows, then columns of windows; patches become one dim, places another."""
    x = _pad_image(b, self, padding)
    batch, (h, w) = list(x.sizes)[:-2], range(x.rank - 2, x.rank)
    counts = [
        _count_windows(s, *how)
        for s, *how in zip(x.sizes[-2:], kernel_size, dilation, stride, strict=True)
    ]
    rows, columns = (
        window_positions(b, k, d, n, s)
        for k, d, n, s in zip(kernel_size, dilation, counts, stride, strict=True)
    )
    x = b.Gather(b.Gather(x, columns, axis=w), rows, axis=h)  # ..., kh, oh, kw, ow
    x = b.transpose(x, [*range(h), h, h + 2, h + 1, h + 3])
    assert len(batch) in (1, 2)
    return b.reshape(b.shaped(x, (*batch, *kernel_size, *counts)), b.result.sizes)


def _count_windows(size: Size, kernel: int, dilation: int, stride: int) -> Size:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def _pad_image(b: Builder, x: Value, padding: Sequence[int]) -> Value:
    top, left = padding
    if not top and not left:
        return x
    *lead, height, width = x.sizes
    zeros = [0] * len(lead)
    out = b.Pad(x, [*zeros, top, left, *zeros, top, left])
    return b.shaped(out, (*lead, height + 2 * top, width + 2 * left))


@lower(aten.col2im.default)
def col2im(
    b: Builder,
    self: Value,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Col2Im, which wants a batch; in types that it does not have a sum by positions."""
    x = self if self.rank == 3 else b.unsqueeze(self, 0)
    if x.dtype is torch.bfloat16:
        x = b.cast(x, torch.float32)
    if b.has("Col2Im", x.dtype):
        out = b.Col2Im(
            x,
            output_size,
            list(kernel_size),
            dilations=list(dilation),
            pads=[*padding, *padding],
            strides=list(stride),
        )
    else:
        out = _sum_windows(b, x, output_size, kernel_size, dilation, padding, stride)
    return b.reshape(out, b.result.sizes) if self.rank == 2 else out


def _sum_windows(
    b: Builder,
    x: Value,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    batch, patch, _ = x.sizes
    channels = patch // prod(kernel_size)
    height, width = (s + 2 * p for s, p in zip(output_size, padding, strict=True))
    counts = [
        _count_windows(s, *how)
        for s, *how in zip((height, width), kernel_size, dilation, stride, strict=True)
    ]
    rows, columns = (
        window_positions(b, k, d, n, s)
        for k, d, n, s in zip(kernel_size, dilation, counts, stride, strict=True)
    )
    down = b.unsqueeze(b.Mul(rows, b.sizes.number(width)), 1, 3)  # kh, 1, oh, 1
    index = b.Add(down, b.unsqueeze(columns, 0, 2))
    total = prod([*kernel_size, *counts])
    flat = b.shaped(b.Reshape(index, [-1]), (total,))
    image = emit_full(b, [batch, channels, height * width], 0, x.dtype)
    values = b.reshape(x, [batch, channels, total])
    where = b.expand(flat, [batch, channels, total])
    out = b.ScatterElements(image, where, values, axis=2, reduction="add")
    out = b.reshape(
        b.shaped(out, (batch, channels, height * width)), [batch, channels, height, width]
    )
    top, left = padding
    if not top and not left:
        return out
    return b.Slice(out, [top, left], [top + output_size[0], left + output_size[1]], [2, 3])


# Pixels and channels


@lower(aten.pixel_shuffle.default)
def pixel_shuffle(b: Builder, self: Value, upscale_factor: int) -> Value:
    r = upscale_factor
    if self.rank == 4 and b.has("DepthToSpace", self.dtype):
        return b.DepthToSpace(self, blocksize=r, mode="CRD")
    *lead, c, h, w = self.sizes
    n = len(lead)
    x = b.reshape(self, [*lead, c // (r * r), r, r, h, w])
    x = b.transpose(x, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return b.reshape(x, b.result.sizes)


@lower(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: Builder, self: Value, downscale_factor: int) -> Value:
    r = downscale_factor
    *lead, c, h, w = self.sizes
    n = len(lead)
    x = b.reshape(self, [*lead, c, h // r, r, w // r, r])
    x = b.transpose(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return b.reshape(x, b.result.sizes)


@lower(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(b: Builder, self: Value, groups: int) -> Value:
    batch, c, *rest = self.sizes
    x = b.reshape(self, [batch, groups, c // groups, *rest])
    return b.reshape(b.transpose(x, [0, 2, 1, *range(3, self.rank + 1)]), b.result.sizes)
