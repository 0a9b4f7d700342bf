"""Shape rules of convolution, pooling and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops.registry import Rule, overloads, shape_rule
from graphport.ops.sizes import (
    choose_branch,
    establish,
    establish_equal,
    establish_sizes,
    require_nonempty,
)
from graphport.symbolic import Expr, floor, ge, ite, mul, to_float
from graphport.tensors.abstract import Abstract, Size, Sizes, channels_last_strides

Ints = int | Sequence[int]
S = TypeVar("S", bound=Size)


def _expand_param(value: int | Sequence[S], n: int) -> Sequence[int | S]:
    """One number per spatial dim."""
    if isinstance(value, int):
        return (value,) * n
    if len(value) == n:
        return value
    if len(value) != 1:
        raise ShapeError(
            f"expected a single integer value or a list of {n} values to match the "
            f"dimensions, but got {list(value)}"
        )
    return tuple(value) * n


def count_windows(
    size: Size, kernel: Size, stride: int, before: int, after: int, dilation: int
) -> Size:
    """How many places a window has along a dim."""
    return (size + before + after - dilation * (kernel - 1) - 1) // stride + 1


def _lay_out_1d(sizes: Sizes, like: Abstract) -> Abstract:
    """For operators that work on a line as on an image of height 1."""
    if like.rank == 3 and like._strides is not None:
        (n, c, length), (s0, s1, s2) = like.sizes, like._strides
        image = Abstract((n, c, 1, length), like.dtype, like.device, (s0, s1, s2 * length, s2))
        if image.is_channels_last:
            return Abstract(sizes, like.dtype, like.device, channels_last_strides(sizes))
    return _lay_out(sizes, like)


def _lay_out(
    sizes: Sizes, like: Abstract, *others: Abstract, dtype: torch.dtype | None = None
) -> Abstract:
    """Channels-last when the data (or the weight) is."""
    last = any(a.is_channels_last for a in (like, *others))
    return Abstract(
        sizes, dtype or like.dtype, like.device, channels_last_strides(sizes) if last else None
    )


def _laid_out_convolution(sizes: Sizes, input: Abstract, weight: Abstract) -> Abstract:
    """A line is made contiguous first."""
    if input.rank == 3:
        return _lay_out_1d(sizes, input if input.is_contiguous else input.like())
    return _lay_out(sizes, input, weight)


def _check_channels(
    input: Abstract, weight: Abstract, bias: Abstract | None, groups: int, transposed: bool
) -> None:
    n = weight.rank - 2
    if input.rank not in (n + 1, n + 2):
        raise ShapeError(
            f"conv{n}d: expected {n + 1}D (unbatched) or {n + 2}D (batched) input, but got {input}"
        )
    channel = input.rank - n - 1
    expected, made = weight.sizes[0], weight.sizes[1] * groups
    if not transposed:
        expected, made = made, expected
    if not establish_equal(input.sizes[channel], expected):
        raise ShapeError(
            f"convolution: weight {weight} expects {expected} channels, but the input {input} has "
            f"{input.sizes[channel]}"
        )
    if input.dtype is not weight.dtype:
        raise ShapeError(
            f"Input type ({input.dtype}) and weight type ({weight.dtype}) should be the same"
        )
    if bias is not None and bias.dtype is not input.dtype:
        raise ShapeError(
            f"Input type ({input.dtype}) and bias type ({bias.dtype}) should be the same"
        )
    if groups != 1:
        if not establish_equal(weight.sizes[0] % groups, 0):
            raise ShapeError(f"convolution: weight {weight} does not divide into {groups} groups")
    if bias is not None:
        if not establish_sizes(bias.sizes, (made,)):
            raise ShapeError(f"convolution: expected a bias of {made} elements, got {bias}")


def _check_window(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    for name, least, numbers in (
        ("stride", 1, stride),
        ("padding", 0, padding),
        ("dilation", 1, dilation),
    ):
        if any(type(number) is int and number < least for number in numbers):
            raise ShapeError(f"convolution: a {name} of {list(numbers)} is not supported")


@shape_rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(
    input: Abstract,
    weight: Abstract,
    bias: Abstract | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Abstract:
    n = weight.rank - 2
    pads = _expand_param(padding, n)
    return _conv(input, weight, bias, stride, pads, pads, dilation, groups)


@shape_rule(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def conv_padding(
    input: Abstract,
    weight: Abstract,
    bias: Abstract | None,
    stride: Ints,
    padding: str,
    dilation: Ints,
    groups: int,
) -> Abstract:
    n = weight.rank - 2
    total = [0] * n
    if padding == "same":
        total = [
            d * (k - 1) for d, k in zip(_expand_param(dilation, n), weight.sizes[2:], strict=True)
        ]
    before = [t // 2 for t in total]
    after = [t - b for t, b in zip(total, before, strict=True)]
    return _conv(input, weight, bias, stride, before, after, dilation, groups)


def _conv(
    input: Abstract,
    weight: Abstract,
    bias: Abstract | None,
    stride: Ints,
    before: Sequence[int],
    after: Sequence[int],
    dilation: Ints,
    groups: int,
) -> Abstract:
    _check_channels(input, weight, bias, groups, transposed=False)
    n = weight.rank - 2
    lead = input.rank - n
    steps, holes = _expand_param(stride, n), _expand_param(dilation, n)
    _check_window(steps, before, holes)
    # Of no channels eager gives no channels, whatever the kernel says, and ONNX Runtime hangs.
    require_nonempty(f"conv{n}d", weight, weight.sizes)
    require_nonempty(f"conv{n}d", input, input.sizes[lead:])
    spatial = tuple(
        count_windows(
            input.sizes[lead + i], weight.sizes[2 + i], steps[i], before[i], after[i], holes[i]
        )
        for i in range(n)
    )
    for s in spatial:
        if not establish(ge(s, 1)):
            raise ShapeError(f"conv{n}d: the kernel of {weight} is larger than the input {input}")
    sizes = (*input.sizes[: lead - 1], weight.sizes[0], *spatial)
    return _laid_out_convolution(sizes, input, weight)


@shape_rule(aten.convolution.default)
def convolution(
    input: Abstract,
    weight: Abstract,
    bias: Abstract | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Abstract:
    if transposed:
        return conv_transpose(
            input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv(input, weight, bias, stride, padding, dilation, groups)


@shape_rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    input: Abstract,
    weight: Abstract,
    bias: Abstract | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Abstract:
    _check_channels(input, weight, bias, groups, transposed=True)
    n = weight.rank - 2
    lead = input.rank - n
    steps, pads = _expand_param(stride, n), _expand_param(padding, n)
    extra, holes = _expand_param(output_padding, n), _expand_param(dilation, n)
    _check_window(steps, pads, holes)
    if any(type(e) is int and e < 0 for e in extra):
        raise ShapeError(f"negative output_padding is not supported, got {list(extra)}")
    if any(e and e >= max(s, h) for e, s, h in zip(extra, steps, holes, strict=True)):
        raise ShapeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"{list(extra)}, {list(steps)} and {list(holes)}"
        )
    require_nonempty(f"conv_transpose{n}d", weight, weight.sizes)
    require_nonempty(f"conv_transpose{n}d", input, input.sizes[lead:])
    spatial = tuple(
        (input.sizes[lead + i] - 1) * steps[i]
        - 2 * pads[i]
        + holes[i] * (weight.sizes[2 + i] - 1)
        + extra[i]
        + 1
        for i in range(n)
    )
    sizes = (*input.sizes[: lead - 1], weight.sizes[1] * groups, *spatial)
    return _laid_out_convolution(sizes, input, weight)


def _infer_pooled_size(
    size: Size, kernel: int, stride: int, pad: int, dilation: int, ceil: bool
) -> Size:
    if not ceil:
        return count_windows(size, kernel, stride, pad, pad, dilation)
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (span + stride - 1) // stride + 1
    # The last window must start inside the input or its left padding.
    outside = ge((count - 1) * stride, size + pad)
    drop = choose_branch(outside)
    return count - (ite(outside, 1, 0) if drop is None else int(drop))


def _infer_pool_sizes(
    self: Abstract, n: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
) -> Sizes:
    kernels = _expand_param(kernel, n)
    steps = _expand_param(stride, n) if isinstance(stride, int) or len(stride) else kernels
    pads, holes = _expand_param(padding, n), _expand_param(dilation, n)
    lead = self.rank - n
    require_nonempty("pooling", self, self.sizes[lead - 1 :])
    out = [
        _infer_pooled_size(self.sizes[lead + i], kernels[i], steps[i], pads[i], holes[i], ceil)
        for i in range(n)
    ]
    for s in out:
        if not establish(ge(s, 1)):
            raise ShapeError(
                f"pooling of {self} with a window of {list(kernels)}: the output would be too small"
            )
    return (*self.sizes[:lead], *out)


def _max_pool(n: int) -> Rule:
    def max_pool(
        self: Abstract,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> Abstract:
        return _lay_out(
            _infer_pool_sizes(self, n, kernel_size, stride, padding, dilation, ceil_mode), self
        )

    return max_pool


def _max_pool_with_indices(n: int) -> Rule:
    plain = _max_pool(n)

    def max_pool_with_indices(
        self: Abstract,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> tuple[Abstract, Abstract]:
        out = plain(self, kernel_size, stride, padding, dilation, ceil_mode)
        out = _lay_out_1d(out.sizes, self)
        return out, Abstract(out.sizes, torch.int64, out.device, out._strides)

    return max_pool_with_indices


def _avg_pool(n: int) -> Rule:
    def avg_pool(
        self: Abstract, kernel_size: Ints, stride: Ints, padding: Ints, ceil_mode: bool, *_: object
    ) -> Abstract:
        return _lay_out_1d(
            _infer_pool_sizes(self, n, kernel_size, stride, padding, 1, ceil_mode), self
        )

    return avg_pool


def _adaptive_avg_pool(n: int) -> Rule:
    def adaptive_avg_pool(self: Abstract, output_size: Sequence[Size]) -> Abstract:
        if self.rank not in (n + 1, n + 2):
            raise ShapeError(f"adaptive pooling: Expected {n + 1}D or {n + 2}D tensor, got {self}")
        out = _expand_param(output_size, n)
        if any(s != 1 for s in out):  # a mean, of nothing too, where there is one window
            require_nonempty("adaptive pooling", self, self.sizes[self.rank - n :])
        return _lay_out_1d((*self.sizes[: self.rank - n], *out), self)

    return adaptive_avg_pool


def _adaptive_max_pool(n: int) -> Rule:
    plain = _adaptive_avg_pool(n)

    def adaptive_max_pool(self: Abstract, output_size: Sequence[Size]) -> tuple[Abstract, Abstract]:
        require_nonempty("adaptive pooling", self, self.sizes[1:])
        out = plain(self, output_size)
        return out, Abstract(out.sizes, torch.int64, out.device, out._strides)

    return adaptive_max_pool


_POOLS = {
    _max_pool: (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d),
    _max_pool_with_indices: (
        aten.max_pool1d_with_indices,
        aten.max_pool2d_with_indices,
        aten.max_pool3d_with_indices,
    ),
    _avg_pool: (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d),
    _adaptive_avg_pool: (
        aten.adaptive_avg_pool1d,
        aten.adaptive_avg_pool2d,
        aten.adaptive_avg_pool3d,
    ),
    _adaptive_max_pool: (
        aten.adaptive_max_pool1d,
        aten.adaptive_max_pool2d,
        aten.adaptive_max_pool3d,
    ),
}
for _pool_of, _packets in _POOLS.items():
    for _n, _packet in enumerate(_packets, 1):
        shape_rule(_packet.default)(_pool_of(_n))
shape_rule(aten._adaptive_avg_pool2d.default)(_adaptive_avg_pool(2))
shape_rule(aten._adaptive_avg_pool3d.default)(_adaptive_avg_pool(3))


@shape_rule(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(
    self: Abstract, kernel_size: Ints, output_size: Sequence[int], random_samples: Abstract
) -> tuple[Abstract, Abstract]:
    n = len(output_size)
    require_nonempty("fractional_max_pool", self, self.sizes[self.rank - n - 1 :])
    for size, kernel, out in zip(
        self.sizes[-n:], _expand_param(kernel_size, n), _expand_param(output_size, n), strict=True
    ):
        if not establish(ge(size, out + kernel - 1)):
            raise ShapeError(f"fractional_max_pool: a pool of {kernel} is too large for {self}")
    if not establish_sizes(random_samples.sizes[-2:], (self.sizes[-1 - n], n)):
        raise ShapeError(f"fractional_max_pool: samples {random_samples} for {self}")
    if self.rank == n + 2:
        if not establish_equal(random_samples.sizes[0], self.sizes[0]):
            raise ShapeError(f"fractional_max_pool: samples {random_samples} for {self}")
    sizes = (*self.sizes[: self.rank - len(output_size)], *output_size)
    return self.like(sizes), self.like(sizes, torch.int64)


@shape_rule(
    *overloads("""
        upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
        _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec
    """)
)
def upsample_nearest(
    input: Abstract, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None
) -> Abstract:
    return _upsample(input, output_size, scale_factors)


@shape_rule(
    *overloads("""
        upsample_linear1d.vec upsample_bilinear2d.vec upsample_trilinear3d.vec
        upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec
    """)
)
def upsample_linear(
    input: Abstract,
    output_size: Sequence[Size] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Abstract:
    return _upsample(input, output_size, scale_factors)


def _upsample(
    input: Abstract, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None
) -> Abstract:
    if output_size is None:
        assert scale_factors is not None
        output_size = [
            _scale_size(s, f) for s, f in zip(input.sizes[2:], scale_factors, strict=True)
        ]
    require_nonempty("interpolate", input, (*input.sizes[1:], *output_size))
    return _lay_out((*input.sizes[:2], *output_size), input)


def _scale_size(size: Size, factor: float) -> Size:
    """floor(size * factor); exact integer factors stay integer arithmetic."""
    if factor == int(factor):
        return size * int(factor)
    if isinstance(size, Expr):
        return floor(mul(to_float(size), factor))
    return int(size * factor)


@shape_rule(aten.pixel_shuffle.default)
def pixel_shuffle(self: Abstract, upscale_factor: int) -> Abstract:
    *lead, c, h, w = self.sizes
    r = upscale_factor
    if not establish_equal(c % (r * r), 0):
        raise ShapeError(f"pixel_shuffle: the channels of {self} are not a multiple of {r * r}")
    return _lay_out((*lead, c // (r * r), h * r, w * r), self)


@shape_rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: Abstract, downscale_factor: int) -> Abstract:
    *lead, c, h, w = self.sizes
    r = downscale_factor
    if 0 in self.sizes:  # of nothing the kernel makes a copy
        return _lay_out(self.sizes, self)
    require_nonempty("pixel_unshuffle", self, self.sizes)
    for s in (h, w):
        if not establish_equal(s % r, 0):
            raise ShapeError(f"pixel_unshuffle: {s} of {self} is not a multiple of {r}")
    return _lay_out((*lead, c * (r * r), h // r, w // r), self)


@shape_rule(aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input: Abstract, grid: Abstract, *_: object) -> Abstract:
    if input.rank != grid.rank:
        raise ShapeError(f"grid_sampler: expected as many dims in grid and input: {input}, {grid}")
    if not establish_equal(input.sizes[0], grid.sizes[0]):
        raise ShapeError(f"grid_sampler: batch sizes of input {input} and grid {grid} differ")
    if not establish_equal(grid.sizes[-1], input.rank - 2):
        raise ShapeError(
            f"grid_sampler: expected grid to have size {input.rank - 2} in last dimension, but got "
            f"{grid}"
        )
    require_nonempty("grid_sampler", input, input.sizes[2:])
    return input.like((*input.sizes[:2], *grid.sizes[1:-1]))


@shape_rule(aten.affine_grid_generator.default)
def affine_grid_generator(theta: Abstract, size: Sizes, align_corners: bool) -> Abstract:
    batch, _, *spatial = size
    dims = len(spatial)
    wanted = (batch, dims, dims + 1)
    for have, want in zip(theta.sizes, wanted, strict=True):
        if not establish_equal(have, want):
            raise ShapeError(
                f"Expected a batch of affine matrices of shape {wanted} for size {size}. Got "
                f"{theta}."
            )
    return theta.like((batch, *spatial, dims))


@shape_rule(aten.channel_shuffle.default)
def channel_shuffle(self: Abstract, groups: int) -> Abstract:
    if not establish_equal(self.sizes[1] % groups, 0):
        raise ShapeError(
            f"channel_shuffle: the channels of {self} do not divide into {groups} groups"
        )
    return _lay_out(self.sizes, self)


@shape_rule(aten.im2col.default)
def im2col(
    self: Abstract, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Abstract:
    kernels = _expand_param(kernel_size, 2)
    places = _infer_pool_sizes(self, 2, kernel_size, stride, padding, dilation, False)[-2:]
    *lead, channels = self.sizes[:-2]
    return self.like((*lead, channels * kernels[0] * kernels[1], places[0] * places[1]))


@shape_rule(aten.col2im.default)
def col2im(
    self: Abstract,
    output_size: Sequence[Size],
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> Abstract:
    kernels = _expand_param(kernel_size, 2)
    *lead, channels, columns = self.sizes
    if not establish_equal(channels % (kernels[0] * kernels[1]), 0):
        raise ShapeError(f"col2im: {self} is not a multiple of the kernel {kernels}")
    image = self.like((channels, *output_size))
    places = _infer_pool_sizes(image, 2, kernel_size, stride, padding, dilation, False)[-2:]
    if not establish_equal(columns, places[0] * places[1]):
        raise ShapeError(
            f"col2im: {self} has {columns} columns, but the window has {places[0] * places[1]} "
            "places"
        )
    return self.like((*lead, channels // (kernels[0] * kernels[1]), *output_size))
