"""Lowers backward operators of convolution, pooling and padding.

Other backward operators are decomposed. What is linear along each spatial dim goes
back with the transposed matrix of that dim, and maxima go back to where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.conv import (
    Numbers,
    conv_transpose,
    convolve,
    is_static,
    pad_dims,
    per_dim,
    sizes_of,
)
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.pool import adaptive_bounds, window_counts
from graphport.onnx.lowerings.scatter import make_element_writer, write_updates
from graphport.symbolic import ge

# Convolution


class _Steps(NamedTuple):
    """How the windows of a convolution go, by spatial dim."""

    stride: list[int]
    pads: list[Any]
    dilation: list[int]
    groups: int


@lower(aten.convolution_backward.default, ignores="bias_sizes output_padding")
def convolution_backward(
    b: Builder,
    grad_output: Value,
    input: Value,
    weight: Value,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """The input's is the other kind of convolution, the weight's one of the input with the rest."""
    n = weight.rank - 2
    steps = _Steps(per_dim(stride, n), per_dim(padding, n), per_dim(dilation, n), groups)
    to_input, to_weight, to_bias = output_mask
    found: list[Value | None] = [None, None, None]
    if to_input:
        make = _transposed_input_gradient if transposed else _input_gradient
        found[0] = make(b, grad_output, input, weight, steps)
    if to_weight:
        wide, narrow = (grad_output, input) if transposed else (input, grad_output)
        found[1] = _weight_gradient(b, wide, narrow, weight, steps)
    if to_bias:
        rest = [d for d in range(grad_output.rank) if d != 1]
        found[2] = b.ReduceSum(grad_output, rest, keepdims=0)
    return tuple(found)


def _input_gradient(b: Builder, grad: Value, input: Value, weight: Value, steps: _Steps) -> Value:
    """The other kind of convolution, which goes as far as the windows did."""
    stride, pads, dilation, groups = steps
    reach = [
        (o - 1) * s + d * (k - 1) + 1
        for o, s, d, k in zip(
            sizes_of(grad)[2:], stride, dilation, sizes_of(weight)[2:], strict=True
        )
    ]
    rows = list(zip(sizes_of(input)[2:], pads, reach, strict=True))
    left = [b.scope.simplify(i + 2 * p - r) for i, p, r in rows]
    if is_static(*left, *pads):
        return conv_transpose(b, grad, weight, None, stride, pads, left, groups, dilation)
    none = [0] * len(stride)
    out = conv_transpose(b, grad, weight, None, stride, none, none, groups, dilation)
    out = b.shaped(out, (*sizes_of(input)[:2], *reach))
    return pad_dims(b, out, [-p for p in pads], [i + p - r for i, p, r in rows], 0)


def _transposed_input_gradient(
    b: Builder, grad: Value, input: Value, weight: Value, steps: _Steps
) -> Value:
    stride, pads, dilation, groups = steps
    out = convolve(b, grad, weight, None, stride, pads, pads, dilation, groups)
    # An output padding of a stride or more makes windows that no element has made.
    return _crop_dims(b, out, sizes_of(input)[2:])


def _weight_gradient(b: Builder, wide: Value, narrow: Value, weight: Value, steps: _Steps) -> Value:
    """`wide` convolved with `narrow`, channels for batches: strides and dilations change places."""
    stride, pads, dilation, groups = steps
    n = len(stride)
    batch, channels, *size = sizes_of(wide)
    kernel, few, places = sizes_of(weight)[2:], sizes_of(narrow)[1], sizes_of(narrow)[2:]
    if (
        groups == 1
        and all(k == 1 for k in kernel)
        and all(s == 1 for s in stride)
        and not any(type(p) is not int or p for p in pads)
        and all(map(b.scope.same, size, places))
    ):
        flat = reduce(mul, places)
        x, y = (b.reshape(v, (batch, c, flat)) for v, c in ((wide, channels), (narrow, few)))
        products = emit_matmul(b, y, b.transpose(x, (0, 2, 1)))
        return b.reshape(b.ReduceSum(products, [0], keepdims=0), sizes_of(weight))
    spatial = range(2, 2 + n)
    if groups == 1:
        x = b.transpose(wide, (1, 0, *spatial))
    else:
        parts = b.reshape(wide, (batch, groups, channels // groups, *size))
        parts = b.transpose(parts, (2, 1, 0, *(d + 1 for d in spatial)))
        x = b.reshape(parts, (channels // groups, groups * batch, *size))
    y = b.transpose(narrow, (1, 0, *spatial))
    # Of no channels, in groups, ONNX Runtime never comes to an end.
    some = b.scope.decide(ge(batch, 1)) is True
    out = convolve(b, x, y, None, dilation, pads, pads, stride, groups, by_windows=not some)
    lengths = [
        (i + 2 * p - s * (o - 1) - 1) // d + 1
        for i, p, s, o, d in zip(size, pads, stride, places, dilation, strict=True)
    ]
    out = _crop_dims(b, b.shaped(out, (channels // groups, few, *lengths)), kernel)
    return b.transpose(out, (1, 0, *spatial))


def _crop_dims(b: Builder, x: Value, sizes: Sequence[Size]) -> Value:
    """The first elements of the last dims, so many of each."""
    first = x.rank - len(sizes)
    pairs = zip(sizes_of(x)[first:], sizes, strict=True)
    axes = [d for d, (have, want) in enumerate(pairs, first) if not b.scope.same(have, want)]
    if not axes:
        return x
    return b.Slice(x, [0] * len(axes), [sizes[d - first] for d in axes], axes)


# Linear along each dim


def _apply_along_dims(b: Builder, x: Value, n: int, back: Callable[[Value, int], Value]) -> Value:
    """Each of the n last dims, as the last one, gone through: x and the number of the dim.

    They take turns, since ONNX Runtime multiplies an empty batch from the right only.
    """
    for dim in reversed(range(x.rank - n, x.rank)):
        x = back(x, dim)
        x = b.transpose(x, (*range(x.rank - n), x.rank - 1, *range(x.rank - n, x.rank - 1)))
    return x


def _spread_to_windows(b: Builder, x: Value, start: Numbers, end: Numbers, size: Size) -> Value:
    """Element i of the last dim is given to all places from start[i] to end[i] of a larger one."""
    places = Numbers.arange(b, size)
    matrix = (places < end.append_dims(1)).to(x.dtype) - (places < start.append_dims(1)).to(x.dtype)
    front, last = sizes_of(x)[:-1], sizes_of(x)[-1]
    rows = reduce(mul, front)
    if b.scope.decide(ge(rows, 1)) is not True:  # none, and transposed: refused but in two dims
        x = b.reshape(x, (rows, last))
    out = b.shaped(b.MatMul(x, matrix.node), (*sizes_of(x)[:-1], size))
    return b.reshape(out, (*front, size))


def _divide_by_counts(b: Builder, x: Value, counts: Numbers) -> Value:
    """Divided by the number of elements that the windows along the last dim have."""
    return b.shaped(b.Div(x, counts.to(x.dtype).node), sizes_of(x))


def _avg_pool_backward(n: int) -> Any:
    def lowering(
        b: Builder,
        grad_output: Value,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        kernel = per_dim(kernel_size, n)
        strides, pads = per_dim(stride or kernel, n), per_dim(padding, n)

        def back(x: Value, dim: int) -> Value:
            k, s, p = (settings[dim - x.rank] for settings in (kernel, strides, pads))
            out, size = sizes_of(x)[-1], sizes_of(self)[dim]
            if divisor_override is None:
                counts = window_counts(b, out, k, s, p, size, count_include_pad)
                x = _divide_by_counts(b, x, counts)
            start = Numbers.arange(b, out) * s - p
            return _spread_to_windows(b, x, start, start + k, size)

        x = grad_output
        if divisor_override is not None:
            x = b.shaped(b.Div(x, divisor_override), sizes_of(x))
        return _apply_along_dims(b, x, n, back)

    return lowering


lower_table({"avg_pool2d_backward": 2, "avg_pool3d_backward": 3}, _avg_pool_backward)


def _adaptive_avg_pool_backward(n: int) -> Any:
    def lowering(b: Builder, grad_output: Value, self: Value) -> Value:
        def back(x: Value, dim: int) -> Value:
            size = sizes_of(self)[dim]
            start, end = adaptive_bounds(b, size, sizes_of(x)[-1])
            return _spread_to_windows(b, _divide_by_counts(b, x, end - start), start, end, size)

        return _apply_along_dims(b, grad_output, n, back)

    return lowering


lower_table(
    {"_adaptive_avg_pool2d_backward": 2, "_adaptive_avg_pool3d_backward": 3},
    _adaptive_avg_pool_backward,
)


def _replication_pad_backward(n: int) -> Any:
    def lowering(b: Builder, grad_output: Value, self: Value, padding: Sequence[int]) -> Value:
        def back(x: Value, dim: int) -> Value:
            place = 2 * (x.rank - 1 - dim)
            before, after = padding[place : place + 2]
            if is_static(before, after) and before == after == 0:
                return x
            size = sizes_of(self)[dim]
            source = Numbers.arange(b, sizes_of(x)[-1]) - before
            source = source.clamp_min(0).clamp_max(size - 1)
            return _spread_to_windows(b, x, source, source + 1, size)

        return _apply_along_dims(b, grad_output, n, back)

    return lowering


lower_table(
    {
        "replication_pad1d_backward": 1,
        "replication_pad2d_backward": 2,
        "replication_pad3d_backward": 3,
    },
    _replication_pad_backward,
)


# Back to where the maxima were


def _max_pool_backward(n: int) -> Any:
    """Windows that share their maximum add up there."""

    def lowering(b: Builder, grad_output: Value, indices: Value) -> Value:
        sizes = b.result.sizes
        front = sizes[:-n]
        flat = (*front, reduce(mul, sizes_of(grad_output)[-n:]))
        zeros = b.expand(b.scalar(0, grad_output.dtype), (*front, reduce(mul, sizes[-n:])))
        write = make_element_writer(b, -1, b.reshape(indices, flat))
        out = write_updates(b, write, zeros, b.reshape(grad_output, flat), "sum")
        return b.reshape(b.shaped(out, (*front, reduce(mul, sizes[-n:]))), sizes)

    return lowering


lower_table(
    {"max_pool2d_with_indices_backward": 2, "max_pool3d_with_indices_backward": 3},
    _max_pool_backward,
    ignores="self kernel_size stride padding dilation ceil_mode",
)
lower_table(
    {"adaptive_max_pool2d_backward": 2, "adaptive_max_pool3d_backward": 3},
    _max_pool_backward,
    ignores="self",
)
