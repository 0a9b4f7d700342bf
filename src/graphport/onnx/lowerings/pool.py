"""Lowers pooling and unpooling.

The rule of ONNX for the last window of `ceil_mode` is that of torch since opset 19. Windows that
the operators of ONNX do not have (adaptive ones of different lengths, sums with a divisor of their
own), and element types that ONNX Runtime does not pool, are gathered and reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.arithmetic import emit_arange, quotient
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.conv import (
    Numbers,
    gather_windows,
    is_static,
    omit_default,
    pad_dims,
    per_dim,
    sizes_of,
)
from graphport.onnx.lowerings.reduce import average_axes, reduce_extreme, sum_axes
from graphport.onnx.lowerings.reduce import find_extreme as place_of
from graphport.symbolic import eq, ge, max_


def _add_batch_dim(
    b: Builder, x: Value, n: int, of_one: bool = False
) -> tuple[Value, Callable[[Value], Value]]:
    """An input with a batch dim, and how to take it from a result again.

    Of its planes, each may be an item; `of_one`: they have to be of one.
    """
    front, sizes = x.sizes[:-n], (b.result[0] if isinstance(b.result, tuple) else b.result).sizes
    if not of_one and b.scope.decide(ge(front[-1], 1)) is not True:
        # ONNX Runtime takes a batch of no items, but no item without planes.
        planes = (reduce(mul, front), 1)
        return b.reshape(x, (*planes, *x.sizes[-n:])), lambda out: b.reshape(
            b.shaped(out, (*planes, *sizes[-n:])), sizes
        )
    if len(front) == 2:
        return x, lambda out: out
    return b.unsqueeze(x, 0), lambda out: b.squeeze(b.shaped(out, (1, *sizes)), 0)


def _spatial_sizes(x: Value, n: int) -> tuple[Size, ...]:
    return tuple(sizes_of(x)[-n:])


def _ends_as_torch(
    b: Builder,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    holes: Sequence[int],
    counts_padding: bool = False,
) -> bool:
    """Whether `ceil_mode` ends as torch's, which leaves out a window of padding alone."""
    if b.opset >= _TORCH_CEIL_OPSET:
        return True
    windows = zip(kernel, strides, pads, holes, strict=True)
    return not counts_padding and all(p + s <= d * (k - 1) + 1 for k, s, p, d in windows)


_TORCH_CEIL_OPSET = 19


# Maximum


def _lower_max_pool(n: int) -> Any:
    def lowering(
        b: Builder,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
    ) -> Any:
        pair = isinstance(b.result, tuple)
        sizes = (b.result[0] if pair else b.result).sizes[-n:]
        kernel, pads, holes = (per_dim(v, n) for v in (kernel_size, padding, dilation))
        strides = per_dim(stride, n) if stride else kernel
        x, unbatched = _add_batch_dim(b, self, n)
        # Between the taps of a window there may be nothing of a smaller input.
        reaches = all(
            p == 0 or d == 1 or b.scope.decide(ge(s, d)) is True
            for p, d, s in zip(pads, holes, _spatial_sizes(x, n), strict=True)
        )
        known = not ceil_mode or _ends_as_torch(b, kernel, strides, pads, holes)
        if b.has("MaxPool", _pool_dtype(x.dtype)) and reaches and known:
            window = {
                "kernel_shape": kernel,
                "strides": omit_default(strides, 1),
                "pads": omit_default([*pads, *pads], 0),
                "dilations": omit_default(holes, 1),
                "ceil_mode": int(ceil_mode) or None,
            }
            values = unbatched(_emit_max_pool(b, x, window))
            return (values, unbatched(_max_positions(b, x, window, n))) if pair else values
        lowest = _lowest_number(x.dtype)
        padded = _pad_to_windows(b, x, sizes, kernel, strides, pads, holes, lowest)
        win = gather_windows(b, padded, sizes, kernel, strides, holes)
        starts = [
            Numbers.arange(b, o) * s - p for o, s, p in zip(sizes, strides, pads, strict=True)
        ]
        made = _reduce_windows(b, win, starts, sizes, kernel, holes, _spatial_sizes(x, n))
        return (unbatched(made[0]), unbatched(made[1])) if pair else unbatched(made[0])

    return lowering


lower_table(
    {
        "max_pool1d max_pool1d_with_indices": 1,
        "max_pool2d max_pool2d_with_indices": 2,
        "max_pool3d max_pool3d_with_indices": 3,
    },
    _lower_max_pool,
)


def _emit_max_pool(b: Builder, x: Value, window: dict[str, Any]) -> Value:
    """The largest of each window; nan if there is one.

    ONNX Runtime passes over nan unless it is at certain places. A mean of what is 0, or nan where x
    is, is added: 1.3 ms instead of 0.5 for the first pooling of a ResNet.
    """
    if not x.dtype.is_floating_point:
        return b.MaxPool(x, **window)
    nan = _find_nan_windows(b, x, window)
    if x.dtype is not torch.float32 or _is_bounded(x):
        return b.Add(b.MaxPool(x, **window), nan)
    # Of nothing but -inf it is the lowest float, which twice is -inf again.
    return b.Add(b.Mul(b.MaxPool(b.Mul(x, 0.5), **window), 2.0), nan)


def _find_nan_windows(b: Builder, x: Value, window: dict[str, object]) -> Value:
    """For each window 0, or nan."""
    if window.get("dilations"):  # which means have since opset 19
        found = b.MaxPool(b.cast(b.IsNaN(x), torch.float32), **window)
        nan, zero = (b.scalar(v, like=x) for v in (math.nan, 0.0))
        return b.Where(b.Greater(found, 0.0), nan, zero)
    marks = b.cast(b.Clip(x, 0.0, 0.0), torch.float32)
    return b.cast(b.AveragePool(marks, count_include_pad=1, **window), x.dtype)


_BOUNDED = {"Relu", "Sigmoid", "Softmax", "Abs", "Exp", "Tanh", "Elu", "Selu", "Celu", "Softplus"}


def _is_bounded(x: Value) -> bool:
    """Whether a value is certain not to be -inf."""
    return x.producer is not None and x.producer.op in _BOUNDED


def _max_positions(b: Builder, x: Value, window: dict[str, Any], n: int) -> Value:
    """Where in its plane the maximum of each window is; the last nan if there is one.

    To count slows ONNX Runtime down by far, so that it is not asked for the values too.
    """
    spatial = _spatial_sizes(x, n)
    plane = reduce(mul, spatial)
    _, index = b.MaxPool(x, outputs=2, **window)
    # ONNX counts through the whole tensor, torch within each plane.
    index = b.Mod(index, b.scalar(plane, torch.int64))
    if not x.dtype.is_floating_point:
        return index
    small = type(plane) is int and plane < 1 << 24
    kind = torch.float32 if small else torch.float64
    places = b.reshape(b.cast(emit_arange(b, plane), kind), spatial)
    last = b.MaxPool(b.Where(b.IsNaN(x), places, b.scalar(-1.0, like=places)), **window)
    return b.Where(b.Less(last, 0.0), index, b.cast(last, torch.int64))


def _lowest_number(dtype: torch.dtype) -> Any:
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _pool_dtype(dtype: torch.dtype) -> torch.dtype:
    """What ONNX Runtime has a kernel for, where the builder widens to it."""
    small = dtype in (torch.bfloat16, torch.int16, torch.uint16)
    return torch.float32 if small else torch.float64 if dtype is torch.int32 else dtype


def _pad_to_windows(
    b: Builder,
    x: Value,
    out: Sequence[Size],
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    fill: Number,
) -> Value:
    """The input with as much around it as the windows reach."""
    after = [
        (o - 1) * s + d * (k - 1) + 1 - size - p
        for o, k, s, d, p, size in zip(
            out, kernel, stride, dilation, pads, _spatial_sizes(x, len(out)), strict=True
        )
    ]
    return pad_dims(b, x, pads, after, fill)


def _reduce_windows(
    b: Builder,
    win: Value,
    starts: Sequence[Numbers],
    out: Sequence[Size],
    kernel: Sequence[Size],
    dilation: Sequence[int],
    spatial: Sequence[Size],
    ends: Sequence[Numbers] = (),
) -> tuple[Value, Value]:
    """The maxima of windows [..., out, kernel, ...], and where in the plane they are.

    Where windows end before their last tap, the taps behind show what is before the end once more.
    """
    n = len(out)
    lead = win.rank - 2 * n
    front = sizes_of(win)[:lead]
    order = [*range(lead), *range(lead, win.rank, 2), *range(lead + 1, win.rank, 2)]
    flat = b.reshape(
        b.shaped(b.transpose(win, order), (*front, *out, *kernel)),
        (*front, *out, reduce(mul, kernel)),
    )
    inner = place_of(b, "ArgMax", flat, -1, False, last_nan=True)
    place: Value | None = None
    for i in range(n):
        rest = reduce(mul, kernel[i + 1 :], 1)
        tap = inner if type(rest) is int and rest == 1 else b.Div(inner, rest)
        tap = b.Mod(tap, kernel[i]) if i else tap
        tap = tap if dilation[i] == 1 else b.Mul(tap, dilation[i])
        here = b.Add(tap, starts[i].append_dims(n - 1 - i).node)
        here = b.Min(here, (ends[i] - 1).append_dims(n - 1 - i).node) if ends else here
        place = here if place is None else b.Add(b.Mul(place, spatial[i]), here)
    assert place is not None
    return reduce_extreme(b, "ReduceMax", flat, [flat.rank - 1], False), place


# Mean


def _lower_avg_pool(n: int) -> Any:
    def lowering(
        b: Builder,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None = None,
    ) -> Value:
        kernel, pads = per_dim(kernel_size, n), per_dim(padding, n)
        strides = per_dim(stride, n) if stride else kernel
        x, unbatched = _add_batch_dim(b, self, n)
        include = count_include_pad and (any(pads) or ceil_mode)
        known = not ceil_mode or _ends_as_torch(b, kernel, strides, pads, [1] * n, bool(include))
        if b.has("AveragePool", _pool_dtype(x.dtype)) and divisor_override is None and known:
            return unbatched(
                b.AveragePool(
                    x,
                    kernel_shape=kernel,
                    strides=omit_default(strides, 1),
                    pads=omit_default([*pads, *pads], 0),
                    ceil_mode=int(ceil_mode) or None,
                    count_include_pad=int(include) or None,
                )
            )
        sizes, ones = b.result.sizes[-n:], [1] * n
        padded = _pad_to_windows(b, x, sizes, kernel, strides, pads, ones, 0)
        win = gather_windows(b, padded, sizes, kernel, strides, ones)
        summed = sum_axes(b, win, list(range(3, 3 + 2 * n, 2)), False)
        if divisor_override is not None:
            return unbatched(_divide(b, summed, b.scalar(divisor_override, like=summed)))
        counts = [
            window_counts(b, o, k, s, p, size, count_include_pad)
            for o, k, s, p, size in zip(
                sizes, kernel, strides, pads, _spatial_sizes(x, n), strict=True
            )
        ]
        count = reduce(mul, (c.append_dims(n - 1 - i) for i, c in enumerate(counts)))
        return unbatched(_divide(b, summed, count.to(summed.dtype).node))

    return lowering


def _divide(b: Builder, x: Value, y: Value) -> Value:
    return b.Div(x, y) if x.dtype.is_floating_point else quotient(b, x, y)


def _avg_pool1d(
    b: Builder,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Value:
    return _lower_avg_pool(1)(b, self, kernel_size, stride, padding, ceil_mode, count_include_pad)


lower(aten.avg_pool1d.default)(_avg_pool1d)
lower_table({"avg_pool2d": 2, "avg_pool3d": 3}, _lower_avg_pool)


def window_counts(
    b: Builder, out: Size, kernel: int, stride: int, pad: int, size: Size, include: bool
) -> Numbers:
    """How many elements each window along a dim has: those within the padded input, or all."""
    start = Numbers.arange(b, out) * stride - pad
    end = (start + kernel).clamp_max(size + pad)
    return end - start if include else end.clamp_max(size) - start.clamp_min(0)


# Adaptive: the windows follow from the size of the result


class _AdaptiveWindows:
    """The windows along one dim: from `floor(i * size / out)` to `ceil((i + 1) * size / out)`."""

    def __init__(self, b: Builder, size: Size, out: object) -> None:
        self.start, self.end = adaptive_bounds(b, size, out)
        self.count = self.end - self.start
        counts = self.count.value
        if isinstance(counts, torch.Tensor):
            self.length = int(counts.max())
        else:
            self.length = size // _nonzero_size(b, out) + 2
        taps = self.start.append_dims(1) + Numbers.arange(b, self.length)
        self.inside = taps < self.end.append_dims(1)
        self.index = taps.clamp_max(self.end.append_dims(1) - 1).node


def adaptive_bounds(b: Builder, size: Size, out: Any) -> tuple[Numbers, Numbers]:
    """Where the windows along one dim begin and end."""
    some, i = _nonzero_size(b, out), Numbers.arange(b, out) * size
    return i // some, (i + (size + out - 1)) // some


def _nonzero_size(b: Builder, out: object) -> Any:
    """A size to divide by: if it is 0, nothing is divided."""
    return out if is_static(out) or b.scope.decide(ge(out, 1)) is True else max_(out, 1)


def _fixed_window(b: Builder, size: Size, out: Any) -> int | None:
    """The fixed length of all windows along a dim, if they have one."""
    if is_static(size, out):
        return size // out if out and size % out == 0 else None
    factor = b.scope.simplify(size // out) if b.scope.decide(ge(out, 1)) is True else None
    if type(factor) is int and b.scope.decide(eq(factor * out, size)) is True:
        return factor
    return None


def _lower_adaptive_avg_pool(n: int) -> Any:
    def lowering(b: Builder, self: Value, output_size: object) -> Value:
        x, unbatched = _add_batch_dim(b, self, n)
        spatial, out = _spatial_sizes(x, n), b.result.sizes[-n:]
        if 0 in out:
            return b.expand(b.scalar(0, x.dtype), b.result.sizes)
        if all(type(o) is int and o == 1 for o in out):
            filled = all(b.scope.decide(ge(s, 1)) is True for s in spatial)
            if filled and b.has("GlobalAveragePool", _pool_dtype(x.dtype)):
                return unbatched(b.GlobalAveragePool(x))
            return unbatched(average_axes(b, x, list(range(2, 2 + n)), True))
        lengths = [_fixed_window(b, s, o) for s, o in zip(spatial, out, strict=True)]
        if all(length == 1 for length in lengths):
            return self
        if None not in lengths and b.has("AveragePool", _pool_dtype(x.dtype)):
            return unbatched(b.AveragePool(x, kernel_shape=lengths, strides=lengths))
        for i, (size, o, length) in enumerate(zip(spatial, out, lengths, strict=True), 2):
            if length == 1:
                continue
            if type(o) is int and o == 1:
                x = b.ReduceMean(x, [i])
                continue
            x = _average_windows(b, x, i, _AdaptiveWindows(b, size, o))
        return unbatched(x)

    return lowering


def _average_windows(b: Builder, x: Value, axis: int, dim: _AdaptiveWindows) -> Value:
    after = x.rank - axis - 1
    win = b.Where(dim.inside.append_dims(after).node, b.Gather(x, dim.index, axis=axis), 0.0)
    return b.Div(
        b.ReduceSum(win, [axis + 1], keepdims=0), dim.count.to(x.dtype).append_dims(after).node
    )


lower_table(
    {
        "adaptive_avg_pool1d": 1,
        "adaptive_avg_pool2d _adaptive_avg_pool2d": 2,
        "adaptive_avg_pool3d _adaptive_avg_pool3d": 3,
    },
    _lower_adaptive_avg_pool,
)


def _lower_adaptive_max_pool(n: int) -> Any:
    def lowering(b: Builder, self: Value, output_size: object) -> tuple[Value, Value]:
        x, unbatched = _add_batch_dim(b, self, n)
        spatial, out = _spatial_sizes(x, n), b.result[0].sizes[-n:]
        if 0 in out:
            return tuple(b.expand(b.scalar(0, r.dtype), r.sizes) for r in b.result)  # type: ignore[return-value]
        lengths = [_fixed_window(b, s, o) for s, o in zip(spatial, out, strict=True)]
        if None not in lengths and b.has("MaxPool", _pool_dtype(x.dtype)):
            window = {"kernel_shape": lengths, "strides": lengths}
            return unbatched(_emit_max_pool(b, x, window)), unbatched(
                _max_positions(b, x, window, n)
            )
        dims = [_AdaptiveWindows(b, s, o) for s, o in zip(spatial, out, strict=True)]
        for i, dim in enumerate(dims):
            x = b.Gather(x, dim.index, axis=2 + 2 * i)
        values, places = _reduce_windows(
            b,
            x,
            [d.start for d in dims],
            out,
            [d.length for d in dims],
            [1] * n,
            spatial,
            [d.end for d in dims],
        )
        return unbatched(values), unbatched(places)

    return lowering


lower_table(
    {"adaptive_max_pool1d": 1, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3},
    _lower_adaptive_max_pool,
)


# Back to where the maxima were


@lower(aten.max_unpool2d.default)
def max_unpool2d(b: Builder, self: Value, indices: Value, output_size: object) -> Value:
    return _unpool(b, self, indices, 2)


@lower(aten.max_unpool3d.default)
def max_unpool3d(
    b: Builder, self: Value, indices: Value, output_size: object, stride: object, padding: object
) -> Value:
    """What they were strided by says nothing more: the indices are of the result."""
    return _unpool(b, self, indices, 3)


def _unpool(b: Builder, x: Value, indices: Value, n: int) -> Value:
    sizes = b.result.sizes
    front = sizes[:-n]
    flat = (*front, reduce(mul, _spatial_sizes(x, n)))
    zeros = b.expand(b.scalar(0, x.dtype), (*front, reduce(mul, sizes[-n:])))
    out = b.ScatterElements(zeros, b.reshape(indices, flat), b.reshape(x, flat), axis=-1)
    return b.reshape(b.shaped(out, (*front, reduce(mul, sizes[-n:]))), sizes)


# Fractional: the places of the windows are drawn, for each plane its own


def _lower_fractional_max_pool(columns: Sequence[int]) -> Any:
    """`columns`: which of the samples is for which dim."""
    n = len(columns)

    def lowering(
        b: Builder, self: Value, kernel_size: Any, output_size: object, random_samples: Value
    ) -> tuple[Value, Value]:
        x, unbatched = _add_batch_dim(b, self, n, of_one=True)
        spatial, out = _spatial_sizes(x, n), [int(o) for o in b.result[0].sizes[-n:]]
        kernel = per_dim(kernel_size, n)
        front = tuple(sizes_of(x)[:2])
        place: Value | None = None
        for i, (size, o, k) in enumerate(zip(spatial, out, kernel, strict=True)):
            start = _window_starts(b, random_samples, columns[i], size, o, k)
            taps = b.Add(b.unsqueeze(start, 3), torch.arange(k))  # n, c, out, kernel
            taps = b.unsqueeze(taps, *(2 + 2 * j + e for j in range(n) if j != i for e in (0, 1)))
            place = taps if place is None else b.Add(b.Mul(place, size), taps)
        assert place is not None
        full = (*front, *(s for pair in zip(out, kernel, strict=True) for s in pair))
        count = reduce(mul, full[2:])
        flat = b.reshape(x, (*front, reduce(mul, spatial)))
        index = b.reshape(b.shaped(place, full), (*front, count))
        order = [0, 1, *range(2, 2 + 2 * n, 2), *range(3, 3 + 2 * n, 2)]
        whole = (*front, *out, reduce(mul, kernel))

        def laid_out(value: Value) -> Value:
            parts = b.transpose(b.reshape(b.shaped(value, (*front, count)), full), order)
            return b.reshape(b.shaped(parts, (*front, *out, *kernel)), whole)

        values = laid_out(b.GatherElements(flat, index, axis=2))
        best = place_of(b, "ArgMax", values, -1, True, last_nan=True)
        places = b.squeeze(b.GatherElements(laid_out(index), best, axis=-1), -1)
        largest = reduce_extreme(b, "ReduceMax", values, [values.rank - 1], False)
        return unbatched(largest), unbatched(places)

    return lowering


def _window_starts(
    b: Builder, samples: Value, column: int, size: Size, out: int, kernel: int
) -> Value:
    """Where windows start: `int((i + u) * alpha) - int(u * alpha)`, the last at the end."""
    u = b.Gather(samples, b.constant(torch.tensor([column])), axis=2)
    shape = (*sizes_of(samples)[:2], 1)
    last = b.expand(b.scalar(size - kernel, torch.int64), shape)
    if out == 1:
        return last
    alpha = b.Div(b.scalar(size - kernel, samples.dtype), out - 1)
    steps = b.constant(torch.arange(out - 1).to(samples.dtype))
    ends, begins = (b.cast(b.Mul(v, alpha), torch.int64) for v in (b.Add(u, steps), u))
    return b.Concat(b.Sub(ends, begins), last, axis=2)


lower_table(
    {"fractional_max_pool2d": (1, 0), "fractional_max_pool3d": (0, 1, 2)},
    _lower_fractional_max_pool,
)
