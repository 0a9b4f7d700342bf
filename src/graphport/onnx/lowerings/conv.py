"""Convolutions.

ONNX Runtime convolves in float32 (and what it computes in it). In float64 and in integers a
convolution is a product of windows with the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Size, Value
from graphport.onnx.lowerings.spatial import each, is_plain, padded, sizes_of, unless, windows
from graphport.onnx.registry import lower

aten = torch.ops.aten


@lower(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> Value:  # fmt: skip
    pads = each(padding, weight.rank - 2)
    return convolved(b, input, weight, bias, stride, pads, pads, dilation, groups)


@lower(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def conv_padding(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Any, padding: str,
    dilation: Any, groups: int,
) -> Value:  # fmt: skip
    """The odd one of an uneven "same" goes to the end."""
    n = weight.rank - 2
    total: list[Any] = [0] * n
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(each(dilation, n), _kernel(weight), strict=True)]
    before = [t // 2 for t in total]
    after = [t - p for t, p in zip(total, before, strict=True)]
    return convolved(b, input, weight, bias, stride, before, after, dilation, groups)


@lower(aten.convolution.default)
def convolution(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Value:  # fmt: skip
    if transposed:
        return conv_transpose(
            b, input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv(b, input, weight, bias, stride, padding, dilation, groups)


@lower(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    output_padding: Any, groups: int, dilation: Any,
) -> Value:  # fmt: skip
    n = weight.rank - 2
    strides, pads, more, holes = (each(v, n) for v in (stride, padding, output_padding, dilation))
    _require_plain(*strides, *pads, *more, *holes)
    x = _batched(b, input, n)
    # ONNX Runtime refuses what a larger dilation would allow.
    fits = all(m < s for m, s in zip(more, strides, strict=True))
    if b.has("ConvTranspose", _computed(input)) and fits:
        out = b.ConvTranspose(
            x, weight, bias, strides=unless(strides, 1), pads=unless([*pads, *pads], 0),
            dilations=unless(holes, 1), output_padding=unless(more, 0),
            group=None if groups == 1 else groups,
        )  # fmt: skip
        return out if x is input else b.squeeze(out, 0)
    # The same as a convolution with the weight turned round, over an input with gaps.
    reach = [d * (k - 1) for d, k in zip(holes, _kernel(weight), strict=True)]
    x = _spread(b, x, strides)
    before = [r - p for r, p in zip(reach, pads, strict=True)]
    after = [r - p + m - (s - 1) for r, p, m, s in zip(reach, pads, more, strides, strict=True)]
    x, weight = padded(b, x, before, after, 0), _turned(b, weight, groups)
    out = convolved(b, x, weight, bias, [1] * n, [0] * n, [0] * n, holes, groups)
    return out if x.rank == input.rank else b.squeeze(out, 0)


def convolved(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Any,
    before: Sequence[Any], after: Sequence[Any], dilation: Any, groups: int,
    by_windows: bool = False,
) -> Value:  # fmt: skip
    """With the kernel of ONNX Runtime if there is one, unless `by_windows` is asked for."""
    n = weight.rank - 2
    strides, holes = each(stride, n), each(dilation, n)
    _require_plain(*strides, *holes)
    x = _batched(b, input, n)
    if not is_plain(*before, *after):
        x, before, after = padded(b, x, before, after, 0), [0] * n, [0] * n
    # How many groups there are is an attribute: a number that varies is none.
    if not by_windows and is_plain(groups) and b.has("Conv", _computed(input)):
        out = b.Conv(
            x, weight, bias, strides=unless(strides, 1), pads=unless([*before, *after], 0),
            dilations=unless(holes, 1), group=None if groups == 1 else groups,
        )  # fmt: skip
    else:
        x = padded(b, x, before, after, 0)
        out = _product(b, x, weight, bias, strides, holes, groups)
    return out if input.rank == n + 2 else b.squeeze(out, 0)


_LETTERS = (("a", "i"), ("d", "j"), ("e", "k"))


def _product(
    b: Builder, x: Value, weight: Value, bias: Value | None, stride: list[int],
    dilation: list[int], groups: int,
) -> Value:  # fmt: skip
    """The windows of x times the weight, in any dtype that can be multiplied."""
    n = weight.rank - 2
    batch, channels = sizes_of(x)[:2]
    kernel = _kernel(weight)
    spatial = [
        b.scope.simplify((size - d * (k - 1) - 1) // s + 1)
        for size, d, k, s in zip(sizes_of(x)[2:], dilation, kernel, stride, strict=True)
    ]
    letters = _LETTERS[:n]
    out_channels, *inner = sizes_of(weight)
    each_group: tuple[Any, ...] = (out_channels,)
    g = ""
    if groups != 1:
        g = "g"
        each_group = (groups, out_channels // groups)
        x = b.reshape(x, (batch, groups, channels // groups, *sizes_of(x)[2:]))
        weight = b.reshape(weight, (*each_group, *inner))
    x = windows(b, x, spatial, kernel, stride, dilation)
    places = "".join(p for p, _ in letters)
    inside = "".join(k for _, k in letters)
    equation = f"n{g}c{''.join(map(''.join, letters))},{g}oc{inside}->n{g}o{places}"
    out = b.shaped(b.Einsum(x, weight, equation=equation), (batch, *each_group, *spatial))
    out = b.reshape(out, (batch, out_channels, *spatial))
    return out if bias is None else b.Add(out, b.unsqueeze(bias, *range(1, n + 1)))


def _spread(b: Builder, x: Value, stride: list[int]) -> Value:
    """Zeros after every element: stride - 1 of them."""
    sizes = list(sizes_of(x))
    for i, s in enumerate(stride, 2):
        if s > 1:
            none = [0] * (len(sizes) - i - 1)
            apart = padded(b, b.unsqueeze(x, i + 1), [0, *none], [s - 1, *none], 0)
            sizes[i] = sizes[i] * s
            x = b.reshape(apart, sizes)
    return x


def _turned(b: Builder, weight: Value, groups: int) -> Value:
    """The weight of a transposed convolution as that of a plain one."""
    n = weight.rank - 2
    axes = list(range(2, weight.rank))
    first, second, *kernel = sizes_of(weight)
    turned = b.Slice(weight, [-1] * n, [-(1 << 31)] * n, axes, [-1] * n)
    parts = b.reshape(turned, (groups, first // groups, second, *kernel))
    parts = b.transpose(parts, (0, 2, 1, *(a + 1 for a in axes)))
    return b.reshape(parts, (groups * second, first // groups, *kernel))


def _computed(x: Value) -> torch.dtype:
    """The dtype in which ONNX Runtime would convolve."""
    return torch.float32 if x.dtype is torch.bfloat16 else x.dtype


def _kernel(weight: Value) -> tuple[Size, ...]:
    return tuple(sizes_of(weight)[2:])


def _batched(b: Builder, x: Value, n: int) -> Value:
    return x if x.rank == n + 2 else b.unsqueeze(x, 0)


def _require_plain(*numbers: Any) -> None:
    if not is_plain(*numbers):
        raise UnsupportedError("ONNX convolves with fixed strides, paddings and dilations only")
