"""Lowers convolutions, and gathers sliding windows for what ONNX has no kernel for.

ONNX Runtime convolves in float32 (and what it computes in it). In float64 and in integers a
convolution is a product of windows with the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import emit_range
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.symbolic import Expr


@lower(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(
    b: Builder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: object,
    dilation: Sequence[int],
    groups: int,
) -> Value:
    pads = per_dim(padding, weight.rank - 2)
    return convolve(b, input, weight, bias, stride, pads, pads, dilation, groups)


@lower(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def conv_padding(
    b: Builder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: str,
    dilation: object,
    groups: int,
) -> Value:
    """The odd one of an uneven "same" goes to the end."""
    n = weight.rank - 2
    total: list[Any] = [0] * n
    if padding == "same":
        total = [
            d * (k - 1) for d, k in zip(per_dim(dilation, n), _kernel_sizes(weight), strict=True)
        ]
    before = [t // 2 for t in total]
    after = [t - p for t, p in zip(total, before, strict=True)]
    return convolve(b, input, weight, bias, stride, before, after, dilation, groups)


@lower(aten.convolution.default)
def convolution(
    b: Builder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    if transposed:
        return conv_transpose(
            b, input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv(b, input, weight, bias, stride, padding, dilation, groups)


@lower(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    b: Builder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: object,
    padding: object,
    output_padding: object,
    groups: int,
    dilation: object,
) -> Value:
    n = weight.rank - 2
    strides, pads, more, holes = (
        per_dim(v, n) for v in (stride, padding, output_padding, dilation)
    )
    _require_static(*strides, *pads, *more, *holes)
    x = _add_batch_dim(b, input, n)
    # ONNX Runtime refuses what a larger dilation would allow.
    fits = all(m < s for m, s in zip(more, strides, strict=True))
    if b.has("ConvTranspose", _compute_dtype(input)) and fits:
        out = b.ConvTranspose(
            x,
            weight,
            bias,
            strides=omit_default(strides, 1),
            pads=omit_default([*pads, *pads], 0),
            dilations=omit_default(holes, 1),
            output_padding=omit_default(more, 0),
            group=None if groups == 1 else groups,
        )
        return out if x is input else b.squeeze(out, 0)
    # The same as a convolution with the weight turned round, over an input with gaps.
    reach = [d * (k - 1) for d, k in zip(holes, _kernel_sizes(weight), strict=True)]
    x = _insert_zeros(b, x, strides)
    before = [r - p for r, p in zip(reach, pads, strict=True)]
    after = [r - p + m - (s - 1) for r, p, m, s in zip(reach, pads, more, strides, strict=True)]
    x, weight = pad_dims(b, x, before, after, 0), _flip_weight(b, weight, groups)
    out = convolve(b, x, weight, bias, [1] * n, [0] * n, [0] * n, holes, groups)
    return out if x.rank == input.rank else b.squeeze(out, 0)


def convolve(
    b: Builder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: object,
    before: Sequence[Any],
    after: Sequence[Any],
    dilation: object,
    groups: int,
    by_windows: bool = False,
) -> Value:
    """With the kernel of ONNX Runtime if there is one, unless `by_windows` is asked for."""
    n = weight.rank - 2
    strides, holes = per_dim(stride, n), per_dim(dilation, n)
    _require_static(*strides, *holes)
    x = _add_batch_dim(b, input, n)
    if not is_static(*before, *after):
        x, before, after = pad_dims(b, x, before, after, 0), [0] * n, [0] * n
    # How many groups there are is an attribute: a number that varies is none.
    if not by_windows and is_static(groups) and b.has("Conv", _compute_dtype(input)):
        out = b.Conv(
            x,
            weight,
            bias,
            strides=omit_default(strides, 1),
            pads=omit_default([*before, *after], 0),
            dilations=omit_default(holes, 1),
            group=None if groups == 1 else groups,
        )
    else:
        x = pad_dims(b, x, before, after, 0)
        out = _convolve_windows(b, x, weight, bias, strides, holes, groups)
    return out if input.rank == n + 2 else b.squeeze(out, 0)


_EINSUM_LABELS = (("a", "i"), ("d", "j"), ("e", "k"))


def _convolve_windows(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Value:
    """The windows of x times the weight, in any dtype that can be multiplied."""
    n = weight.rank - 2
    batch, channels = sizes_of(x)[:2]
    kernel = _kernel_sizes(weight)
    spatial = [
        b.scope.simplify((size - d * (k - 1) - 1) // s + 1)
        for size, d, k, s in zip(sizes_of(x)[2:], dilation, kernel, stride, strict=True)
    ]
    letters = _EINSUM_LABELS[:n]
    out_channels, *inner = sizes_of(weight)
    each_group: tuple[Any, ...] = (out_channels,)
    g = ""
    if groups != 1:
        g = "g"
        each_group = (groups, out_channels // groups)
        x = b.reshape(x, (batch, groups, channels // groups, *sizes_of(x)[2:]))
        weight = b.reshape(weight, (*each_group, *inner))
    x = gather_windows(b, x, spatial, kernel, stride, dilation)
    places = "".join(p for p, _ in letters)
    inside = "".join(k for _, k in letters)
    equation = f"n{g}c{''.join(map(''.join, letters))},{g}oc{inside}->n{g}o{places}"
    out = b.shaped(b.Einsum(x, weight, equation=equation), (batch, *each_group, *spatial))
    out = b.reshape(out, (batch, out_channels, *spatial))
    return out if bias is None else b.Add(out, b.unsqueeze(bias, *range(1, n + 1)))


def _insert_zeros(b: Builder, x: Value, stride: list[int]) -> Value:
    """Zeros after every element: stride - 1 of them."""
    sizes = list(sizes_of(x))
    for i, s in enumerate(stride, 2):
        if s > 1:
            none = [0] * (len(sizes) - i - 1)
            apart = pad_dims(b, b.unsqueeze(x, i + 1), [0, *none], [s - 1, *none], 0)
            sizes[i] = sizes[i] * s
            x = b.reshape(apart, sizes)
    return x


def _flip_weight(b: Builder, weight: Value, groups: int) -> Value:
    """The weight of a transposed convolution as that of a plain one."""
    n = weight.rank - 2
    axes = list(range(2, weight.rank))
    first, second, *kernel = sizes_of(weight)
    turned = b.Slice(weight, [-1] * n, [-(1 << 31)] * n, axes, [-1] * n)
    parts = b.reshape(turned, (groups, first // groups, second, *kernel))
    parts = b.transpose(parts, (0, 2, 1, *(a + 1 for a in axes)))
    return b.reshape(parts, (groups * second, first // groups, *kernel))


def _compute_dtype(x: Value) -> torch.dtype:
    """The dtype in which ONNX Runtime would convolve."""
    return torch.float32 if x.dtype is torch.bfloat16 else x.dtype


def _kernel_sizes(weight: Value) -> tuple[Size, ...]:
    return tuple(sizes_of(weight)[2:])


def _add_batch_dim(b: Builder, x: Value, n: int) -> Value:
    return x if x.rank == n + 2 else b.unsqueeze(x, 0)


def _require_static(*numbers: object) -> None:
    if not is_static(*numbers):
        raise UnsupportedError("ONNX convolves with fixed strides, paddings and dilations only")


# Gathers windows that slide along spatial dims.
#
# Convolution, pooling and resampling have operators of their own in ONNX; this is for the element
# types that ONNX Runtime has no kernels of them for, and for windows that those do not have.


def sizes_of(x: Value) -> tuple[Any, ...]:
    """The sizes of a value of known rank."""
    assert x.shape is not None, "the rank is not known"
    return x.shape


def per_dim(value: object, n: int) -> list[Any]:
    """One number per spatial dim."""
    if not isinstance(value, (list, tuple)):
        return [value] * n
    return list(value) * n if len(value) == 1 else list(value)


def omit_default(values: Sequence[int], default: int) -> list[int] | None:
    """None for what an attribute is by itself."""
    return None if all(v == default for v in values) else list(values)


def is_static(*numbers: object) -> bool:
    """Whether all numbers are known."""
    return not any(type(x) is Expr for x in numbers)


class Numbers:
    """Numbers that are computed at export where the sizes are known, and else in the model."""

    def __init__(self, b: Builder, value: torch.Tensor | Value) -> None:
        self.b = b
        self.value = value

    @staticmethod
    def arange(b: Builder, n: Size) -> Numbers:
        """0, 1, ..., n - 1."""
        if type(n) is int:
            return Numbers(b, torch.arange(n))
        return Numbers(b, emit_range(b, b.sizes.number(n)))

    @property
    def node(self) -> Value:
        return self.value if isinstance(self.value, Value) else self.b.constant(self.value)

    def _with(self, other: object, op: str, fn: Callable[[Any, Any], torch.Tensor]) -> Numbers:
        y = other.value if isinstance(other, Numbers) else other
        if isinstance(self.value, torch.Tensor) and not isinstance(y, (Value, Expr)):
            return Numbers(self.b, fn(self.value, y))
        return Numbers(self.b, getattr(self.b, op)(self.node, y))

    def __add__(self, other: object) -> Numbers:
        return self._with(other, "Add", lambda x, y: x + y)

    def __sub__(self, other: object) -> Numbers:
        return self._with(other, "Sub", lambda x, y: x - y)

    def __mul__(self, other: object) -> Numbers:
        return self._with(other, "Mul", lambda x, y: x * y)

    def __floordiv__(self, other: object) -> Numbers:
        """Of numbers that are not negative."""
        return self._with(other, "Div", lambda x, y: x // y)

    def __truediv__(self, other: object) -> Numbers:
        return self._with(other, "Div", lambda x, y: x / y)

    def __lt__(self, other: object) -> Numbers:
        return self._with(other, "Less", lambda x, y: x < y)

    def clamp_max(self, other: object) -> Numbers:
        return self._with(other, "Min", lambda x, y: torch.minimum(x, torch.as_tensor(y).to(x)))

    def clamp_min(self, other: object) -> Numbers:
        return self._with(other, "Max", lambda x, y: torch.maximum(x, torch.as_tensor(y).to(x)))

    def _apply_unary(self, op: str, fn: Callable[[torch.Tensor], torch.Tensor]) -> Numbers:
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, fn(self.value))
        return Numbers(self.b, getattr(self.b, op)(self.value))

    def floor(self) -> Numbers:
        return self._apply_unary("Floor", torch.floor)

    def abs(self) -> Numbers:
        return self._apply_unary("Abs", torch.abs)

    def total(self, dim: int) -> Numbers:
        """The sum along a dim, which stays."""
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.sum(dim, keepdim=True))
        return Numbers(self.b, self.b.ReduceSum(self.value, [dim]))

    def largest(self) -> Numbers:
        """Of all, in no dims."""
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.amax())
        return Numbers(self.b, self.b.ReduceMax(self.value, keepdims=0))

    def to(self, dtype: torch.dtype) -> Numbers:
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.to(dtype))
        return Numbers(self.b, self.b.cast(self.value, dtype))

    def append_dims(self, dims: int) -> Numbers:
        """With so many dims of size 1 at the end."""
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.reshape(*self.value.shape, *[1] * dims))
        rank = self.value.rank
        return Numbers(self.b, self.b.unsqueeze(self.value, *range(rank, rank + dims)))


def list_dims(rank: int) -> list[int]:
    """The axes of a Pad.

    Without any ONNX Runtime takes its zeros for what a MaxPool pads with, and moves them there; and
    where some are left out it fails to move a transpose from before the Pad to behind it.
    """
    return list(range(rank))


def pad_dims(
    b: Builder, x: Value, before: Sequence[object], after: Sequence[object], fill: Number
) -> Value:
    """The last dims with so much more, or less, at each end."""
    if not any(type(p) is Expr or p for p in (*before, *after)):
        return x
    first = x.rank - len(before)
    none = [0] * first
    pads = [*none, *before, *none, *after]
    out = b.Pad(x, pads, None if fill == 0 else fill, list_dims(x.rank))
    sizes = [*sizes_of(x)]
    for i, (p, q) in enumerate(zip(before, after, strict=True), first):
        sizes[i] = None if sizes[i] is None else sizes[i] + p + q
    return b.shaped(out, sizes)


def gather_windows(
    b: Builder,
    x: Value,
    out: Sequence[Size],
    kernel: Sequence[Size],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Value:
    """[..., h, w] as [..., out_h, kernel_h, out_w, kernel_w]."""
    first = x.rank - len(out)
    for i, (o, k, s, d) in enumerate(zip(out, kernel, stride, dilation, strict=True)):
        index = (Numbers.arange(b, o) * s).append_dims(1) + Numbers.arange(b, k) * d
        x = b.Gather(x, index.node, axis=first + 2 * i)
    return x
