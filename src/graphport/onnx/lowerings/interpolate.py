"""Lowers interpolation and grid sampling.

Resize of ONNX is exact where it rounds as torch does: always for the modes that interpolate, for
the nearest element where no quotient is near an integer. Anything else is gathered with torch's own
arithmetic: elements by index, or two (linear) or four (cubic) taps a dim with their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.conv import Numbers, is_static, sizes_of
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.symbolic import Expr, eq, ge, prod

_RESIZE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


Dim = tuple[Any, Any, "float | None"]
"""The size of a dim, that of the result, and the factor between them if one is given."""


def _resize_dims(
    x: Value, out: Sequence[object], given: Sequence[float | None] | None, whole: Sequence[int]
) -> list[Dim]:
    """Factors say how far apart samples are; sizes do where there are none.

    They do as well where a size becomes one of the `whole` multiples of itself.
    """
    scales = given or [None] * len(out)
    return [
        (size, o, s if s is not None and s > 0 and o not in [size * n for n in whole] else None)
        for size, o, s in zip(sizes_of(x)[2:], out, scales, strict=True)
    ]


def _emit_resize(b: Builder, x: Value, factors: Any, out: Sequence[object], **how: object) -> Value:
    """By factors if there are any, else to sizes.

    ONNX Runtime moves transposes from before a Resize to behind it, and then has no kernel for the
    order of dims. What may come from one is resized plane by plane, through a Reshape.
    """
    batch, channels, *spatial = sizes_of(x)
    moved = _can_be_transposed(x)
    front = (batch * channels, 1) if moved else (batch, channels)
    if moved:
        x = b.reshape(x, (*front, *spatial))
    scales = None if factors is None else torch.tensor([1.0, 1.0, *factors])
    made = b.Resize(x, None, scales, [*front, *out] if factors is None else None, **how)
    return b.reshape(b.shaped(made, (*front, *out)), (batch, channels, *out)) if moved else made


_LAYOUT_BARRIERS = set("Conv ConvTranspose MaxPool AveragePool Reshape Flatten Einsum".split())


def _can_be_transposed(x: Value, depth: int = 8) -> bool:
    """Whether there is a transpose before a value, with nothing between that ends its way."""
    made = x.producer
    if made is None or made.op in _LAYOUT_BARRIERS:
        return False
    if made.op == "Transpose" or depth == 0:
        return True
    return any(_can_be_transposed(v, depth - 1) for v in made.inputs if v is not None and v.shape)


# Nearest


def _lower_nearest(exact: bool) -> Any:
    def lowering(b: Builder, x: Value, given: Sequence[float | None] | None) -> Value:
        out = b.result.sizes[2:]
        dims = _resize_dims(x, out, given, _exact_factors(exact, len(out)))
        if b.has("Resize", x.dtype) and all(_is_exact(b, exact, *dim) for dim in dims):
            return _emit_resize(
                b,
                x,
                None,
                out,
                mode="nearest",
                coordinate_transformation_mode="half_pixel" if exact else "asymmetric",
                nearest_mode="round_prefer_ceil" if exact else "floor",
            )
        for axis, (size, o, scale) in enumerate(dims, 2):
            if size != o or scale is not None or not is_static(size, o):
                places = _nearest_positions(
                    b, exact, size, o, scale, _exact_factors(exact, len(out))
                )
                x = b.Gather(x, places.node, axis=axis)
        return x

    return lowering


def _exact_factors(exact: bool, n: int) -> tuple[int, ...]:
    """In images torch goes by the sizes where they stay, or double, whatever the factor."""
    return (1, 2) if n == 2 and not exact else ()


def _nearest_positions(
    b: Builder, exact: bool, size: Size, out: Any, scale: float | None, whole: Sequence[int] = ()
) -> Numbers:
    """Which element is the nearest: torch says, or its formula does."""
    if is_static(size, out):
        op = aten._upsample_nearest_exact1d if exact else aten.upsample_nearest1d
        line = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
        return Numbers(b, op(line, [out], scale).reshape(out).long())
    place = Numbers.arange(b, out).to(torch.float32)
    step = _sample_step(b, size, out, scale, torch.float32, whole=whole)
    place = (place + 0.5 if exact else place) * step
    return place.floor().to(torch.int64).clamp_max(size - 1)


def _is_exact(b: Builder, exact: bool, size: Size, out: Any, scale: float | None) -> bool:
    """Whether Resize picks the elements that torch does, computing in float32 as well."""
    if not is_static(size, out):
        factors = [f for f in _POWERS if scale in (None, f)]
        return any(b.scope.decide(eq(size * f, out)) is True for f in factors)
    if not size or not out:
        return False
    theirs = torch.arange(out, dtype=torch.float32)
    factor = torch.tensor(out, dtype=torch.float32) / size
    if exact:
        theirs = torch.floor((theirs + 0.5) / factor - 0.5 + 0.5)
    else:
        theirs = torch.floor(theirs / factor)
    ours = _nearest_positions(b, exact, size, out, scale).value
    return torch.equal(theirs.clamp(0, size - 1).long(), ours)


# Factors by which sizes can be divided without rounding.
_POWERS = (1, 2, 4, 8, 16)


# Between elements


def _sample_step(
    b: Builder,
    size: Size,
    out: Any,
    scale: float | None,
    dtype: torch.dtype,
    align: bool = False,
    whole: Sequence[int] = (),
) -> Numbers:
    """How far apart samples are, in elements."""
    if align:
        more = _to_numbers(b, out - 1, dtype)
        return _to_numbers(b, size - 1, dtype) / more.clamp_min(1) * more.clamp_max(1)
    by_size = _to_numbers(b, size, dtype) / _to_numbers(b, out, dtype)
    if scale is None:
        return by_size
    step = _to_numbers(b, 1.0 / scale, dtype)
    for n in whole:
        if b.scope.decide(eq(out, size * n)) is not False:
            same = b.Equal(b.sizes.number(out), b.sizes.number(size * n))
            step = Numbers(b, b.Where(same, by_size.node, step.node))
    return step


def _to_numbers(b: Builder, x: Any, dtype: torch.dtype) -> Numbers:
    return Numbers(b, b.scalar(x, dtype) if type(x) is Expr else torch.tensor(x, dtype=dtype))


def _lower_interpolation(mode: str, antialias: bool = False) -> Any:
    def lowering(
        b: Builder, x: Value, align_corners: bool, given: Sequence[float | None] | None
    ) -> Value:
        out = b.result.sizes[2:]
        is_bytes = not x.dtype.is_floating_point
        # A size that stays is left as it is.
        whole = (1,) if mode == "linear" or antialias or is_bytes else ()
        dims = _resize_dims(x, out, None if align_corners else given, whole)
        by_scale = not all(_is_consistent(b, *dim) for dim in dims)
        # What has its sizes already ONNX Runtime hands on, whatever the factors.
        stays = all(size == o for size, o, _ in dims)
        fits = not by_scale or (not stays and all(_is_floor(*dim) for dim in dims))
        if x.dtype in _RESIZE_DTYPES and fits and not antialias:
            return _emit_resize(
                b,
                x,
                [s or 1.0 for _, _, s in dims] if by_scale else None,
                out,
                mode=mode,
                cubic_coeff_a=-0.75 if mode == "cubic" else None,
                coordinate_transformation_mode="align_corners" if align_corners else "half_pixel",
            )
        wide = x.dtype is torch.float64 or is_bytes
        dtype = torch.float64 if wide else torch.float32
        axes = list(enumerate(dims, 2))
        for axis, (size, o, scale) in reversed(axes) if is_bytes else axes:
            step = _sample_step(b, size, o, scale, dtype, align_corners, whole)
            if antialias:
                x = _antialias_dim(b, x, axis, mode, size, o, step, is_bytes)
            else:
                x = _sample_dim(b, x, axis, mode, size, o, step, align_corners, is_bytes)
        return x

    return lowering


def _is_consistent(b: Builder, size: Size, out: object, scale: float | None) -> bool:
    """Whether a factor says no more than the sizes do."""
    if scale is None:
        return True
    if is_static(size, out):
        return size * scale == out
    return float(scale).is_integer() and b.scope.decide(eq(size * int(scale), out)) is True


def _is_floor(size: Size, out: object, scale: float | None) -> bool:
    """Whether Resize, which multiplies in float32, finds the size that torch does.

    With a factor from 1 to 1.5 a size of 2 and more may stay as it is.
    """
    if scale is None:
        return size is out or size == out
    if is_static(size, out):
        return int(torch.tensor(scale, dtype=torch.float32) * size) == out
    return float(scale * 256).is_integer() and scale < 256 and not 1 < scale < 1.5


def _sample_dim(
    b: Builder,
    x: Value,
    axis: int,
    mode: str,
    size: Size,
    out: Size,
    step: Numbers,
    align_corners: bool,
    is_bytes: bool,
) -> Value:
    """One dim, from the elements around each place."""
    dtype = _dtype(step)
    place = Numbers.arange(b, out).to(dtype)
    place = place * step if align_corners else (place + 0.5) * step - 0.5
    if mode == "linear":
        place = place.clamp_min(0)
    low = place.floor().clamp_max(size - 1) if mode == "linear" else place.floor()
    part = (place - low).clamp_min(0).clamp_max(1).append_dims(1)
    first, weights = _TAPS[mode](b, part)
    around = torch.arange(first, first + _TAP_COUNTS[mode])
    after = x.rank - axis - 1
    if is_bytes:
        places = low.to(torch.int64).append_dims(2)
        k, j = (
            (places + taps).clamp_min(0).clamp_max(size - 1) for taps in (around[:, None], around)
        )
        weights, unit = _in_fixed_point(*_join_taps(weights.append_dims(1), k, j))
        near = b.cast(b.Gather(x, j.node, axis=axis), dtype)
        products = b.Mul(near, weights.append_dims(after).node)
        return _to_bytes(b, b.ReduceSum(products, [axis + 1, axis + 2], keepdims=0), unit)
    index = (low.to(torch.int64).append_dims(1) + around).clamp_min(0).clamp_max(size - 1)
    near = b.cast(b.Gather(x, index.node, axis=axis), dtype)
    return b.ReduceSum(b.Mul(near, weights.append_dims(after).node), [axis + 1], keepdims=0)


# Of bytes torch's kernel adds products of integers: weights in fixed point, with as many digits as
# 16 bits hold of the largest, and results that are rounded to bytes after each dim, the last first.


def _in_fixed_point(weights: Numbers, largest: Numbers) -> tuple[Numbers, Numbers]:
    """Weights as integers, in float64, and what stands for 1."""
    units = torch.exp2(torch.arange(1.0, 23.0, dtype=torch.float64))
    fitting = (largest * units + 0.5 < 2.0**15).to(torch.float64)
    unit = (fitting * units).largest().clamp_min(1.0)
    sign = (weights < 0.0).to(torch.float64) * -2.0 + 1.0
    return (weights.abs() * unit + 0.5).floor() * sign, unit


def _join_taps(weights: Numbers, k: Numbers, j: Numbers) -> tuple[Numbers, Numbers]:
    """The weights of taps that the border moves to one place, added up at the last of them.

    And the largest sum on the way. `weights` and `k` vary along the dim before the last, `j` along
    the last; places do not descend.
    """
    count = weights.value.shape[-2]  # type: ignore[index]
    at_or_before = torch.ones(count, count, dtype=torch.float64).triu()
    sums = (weights * _mark_equal(k, j) * at_or_before).total(-2)
    joined_later = (_mark_equal(j, k) * (1 - at_or_before)).total(-2).clamp_max(1.0)
    return sums * (joined_later * -1.0 + 1.0), sums.largest()


def _mark_equal(low: Numbers, high: Numbers) -> Numbers:
    """1 where numbers are equal of which one is not above the other, else 0."""
    return (low < high).to(torch.float64) * -1.0 + 1.0


def _to_bytes(b: Builder, total: Value, unit: Numbers) -> Value:
    rounded = b.Floor(b.Div(b.Add(total, (unit * 0.5).node), unit.node))
    return b.cast(b.Clip(rounded, 0.0, 255.0), torch.uint8)


def _linear_taps(b: Builder, t: Numbers) -> tuple[int, Numbers]:
    """1 - t and t."""
    signs = torch.tensor([-1.0, 1.0])
    return 0, t * signs.to(_dtype(t)) + torch.tensor([1.0, 0.0]).to(_dtype(t))


def _cubic_taps(b: Builder, t: Numbers) -> tuple[int, Numbers]:
    """The convolution of Keys with a = -0.75, as a polynomial in t for each tap."""
    a = -0.75
    rows = torch.tensor(
        [
            [0.0, a, -2 * a, a],
            [1.0, 0.0, -(a + 3), a + 2],
            [0.0, -a, 2 * a + 3, -(a + 2)],
            [0.0, 0.0, a, -a],
        ],
        dtype=_dtype(t),
    )
    total = t * rows[:, 3] + rows[:, 2]
    total = total * t + rows[:, 1]
    return -1, total * t + rows[:, 0]


_TAPS = {"linear": _linear_taps, "cubic": _cubic_taps}
_TAP_COUNTS = {"linear": 2, "cubic": 4}


def _dtype(x: Numbers) -> torch.dtype:
    return x.value.dtype


def _antialias_dim(
    b: Builder, x: Value, axis: int, mode: str, size: Size, out: Size, step: Numbers, is_bytes: bool
) -> Value:
    """One of the last two dims, as a product with a matrix: each sample takes from its whole reach.

    Resize of ONNX Runtime has other weights than torch at the borders.
    """
    dtype = _dtype(step)
    here = (Numbers.arange(b, out).to(dtype) + 0.5) * step
    apart = (Numbers.arange(b, size).to(dtype) + 0.5).append_dims(1) - here
    weights = _FILTERS[mode]((apart / step.clamp_min(1)).abs())
    weights = weights / weights.total(0)
    if is_bytes:
        weights, unit = _in_fixed_point(weights, weights.largest())
    # Not MatMul: ONNX Runtime fails on an empty batch with a matrix on the left of it.
    equation = "nchw,hk->nckw" if axis == 2 else "nchw,wk->nchk"
    sizes = list(sizes_of(x))
    sizes[axis] = out
    made = b.shaped(b.Einsum(b.cast(x, dtype), weights.node, equation=equation), sizes)
    return _to_bytes(b, made, unit) if is_bytes else made


def _triangle_filter(x: Numbers) -> Numbers:
    return (x * -1.0 + 1.0).clamp_min(0)


def _keys_filter(x: Numbers) -> Numbers:
    """The convolution of Keys with a = -0.5, its two pieces each held where it is 0."""
    near, far = x.clamp_max(1), x.clamp_min(1).clamp_max(2)
    return (near * 1.5 - 2.5) * near * near + 1.0 + (((far - 5.0) * far + 8.0) * far - 4.0) * -0.5


_FILTERS = {"linear": _triangle_filter, "cubic": _keys_filter}


# The overloads: with all factors in a list (`.vec`), or with an argument for each

_NEAREST: dict[int, Callable[[Any], Any]] = {
    0: lambda fn: lambda b, input, output_size, scale_factors: fn(b, input, scale_factors),
    1: lambda fn: lambda b, self, output_size, scales: fn(b, self, [scales]),
    2: lambda fn: (
        lambda b, self, output_size, scales_h, scales_w: fn(b, self, [scales_h, scales_w])
    ),
    3: lambda fn: (
        lambda b, self, output_size, scales_d, scales_h, scales_w: fn(
            b, self, [scales_d, scales_h, scales_w]
        )
    ),
}
_INTERPOLATING: dict[int, Callable[[Any], Any]] = {
    0: lambda fn: (
        lambda b, input, output_size, align_corners, scale_factors: fn(
            b, input, align_corners, scale_factors
        )
    ),
    1: lambda fn: (
        lambda b, self, output_size, align_corners, scales: fn(b, self, align_corners, [scales])
    ),
    2: lambda fn: (
        lambda b, self, output_size, align_corners, scales_h, scales_w: fn(
            b, self, align_corners, [scales_h, scales_w]
        )
    ),
    3: lambda fn: (
        lambda b, self, output_size, align_corners, scales_d, scales_h, scales_w: fn(
            b, self, align_corners, [scales_d, scales_h, scales_w]
        )
    ),
}
_LINEAR, _CUBIC = _lower_interpolation("linear"), _lower_interpolation("cubic")
_SMOOTH_LINEAR = _lower_interpolation("linear", antialias=True)
_SMOOTH_CUBIC = _lower_interpolation("cubic", antialias=True)


def _register(n: int, name: str, fn: object, calls: dict[int, Callable[[Any], Any]]) -> None:
    lower_table({name: n, f"{name}.vec": 0}, lambda kind: calls[kind](fn))


for _row in (
    (1, "upsample_nearest1d", _lower_nearest(False), _NEAREST),
    (2, "upsample_nearest2d", _lower_nearest(False), _NEAREST),
    (3, "upsample_nearest3d", _lower_nearest(False), _NEAREST),
    (1, "_upsample_nearest_exact1d", _lower_nearest(True), _NEAREST),
    (2, "_upsample_nearest_exact2d", _lower_nearest(True), _NEAREST),
    (3, "_upsample_nearest_exact3d", _lower_nearest(True), _NEAREST),
    (1, "upsample_linear1d", _LINEAR, _INTERPOLATING),
    (2, "upsample_bilinear2d", _LINEAR, _INTERPOLATING),
    (3, "upsample_trilinear3d", _LINEAR, _INTERPOLATING),
    (2, "upsample_bicubic2d", _CUBIC, _INTERPOLATING),
    (2, "_upsample_bilinear2d_aa", _SMOOTH_LINEAR, _INTERPOLATING),
    (2, "_upsample_bicubic2d_aa", _SMOOTH_CUBIC, _INTERPOLATING),
):
    _register(*_row)


# At the places of a grid

_MODES = ("linear", "nearest", "cubic")
_PADDING = ("zeros", "border", "reflection")


@lower(aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    b: Builder,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    return b.GridSample(
        input,
        grid,
        mode=_MODES[interpolation_mode],
        padding_mode=_PADDING[padding_mode],
        align_corners=int(align_corners),
    )


@lower(aten.affine_grid_generator.default)
def affine_grid_generator(b: Builder, theta: Value, size: Any, align_corners: bool) -> Value:
    spatial = size[2:]
    if not align_corners or all(b.scope.decide(ge(s, 2)) is True for s in spatial):
        return b.AffineGrid(theta, [*size], align_corners=int(align_corners))
    if not is_static(*spatial):
        raise UnsupportedError("AffineGrid: align_corners of sizes that may be 1")
    # Of one place ONNX takes the first corner, torch the middle.
    lines = [torch.linspace(-1, 1, s) if s > 1 else torch.zeros(s) for s in reversed(spatial)]
    places = torch.meshgrid(*reversed(lines), indexing="ij")
    places = torch.stack([*reversed(places), torch.ones(*spatial)]).to(theta.dtype)
    moved = emit_matmul(b, theta, b.constant(places.reshape(len(places), -1)))
    count = prod(spatial)
    by_place = b.Transpose(b.shaped(moved, (size[0], len(spatial), count)), perm=[0, 2, 1])
    return b.reshape(by_place, (size[0], *spatial, len(spatial)))
