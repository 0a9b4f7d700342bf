"""Lowers fake quantisation, and the operators that PT2E and torchao quantise with.

Which dtypes each computes in is said here; how that is written, in `emit/quantization.py`. Those
operators are registered by other packages, and are known by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.emit.quantization import (
    HALVES,
    Blocks,
    Parameter,
    emit_dequantize,
    emit_fake_quantize,
    emit_mask,
    emit_quantize,
    find_data,
    find_limits,
    indices_of,
    invert,
    rows_of,
    whole,
)
from graphport.onnx.lower.registry import lower, lower_named
from graphport.ops import promote

# Fake quantisation


@lower(aten.fake_quantize_per_tensor_affine.default)
def fake_quantize_per_tensor(
    b: Builder, self: Value, scale: Parameter, zero_point: Parameter, quant_min: int, quant_max: int
) -> Value:
    """Of float64, too, eager multiplies with the scale in float32."""
    limits = quant_min, quant_max
    return emit_fake_quantize(b, self, scale, zero_point, limits, whole(self), torch.float32)


@lower(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor_cachemask(
    b: Builder, self: Value, scale: Parameter, zero_point: Parameter, quant_min: int, quant_max: int
) -> tuple[Value, Value]:
    out = fake_quantize_per_tensor(b, self, scale, zero_point, quant_min, quant_max)
    return out, emit_mask(b, self, scale, zero_point, (quant_min, quant_max), whole(self))


@lower(aten.fake_quantize_per_tensor_affine.tensor_qparams)
def fake_quantize_tensor_qparams(
    b: Builder, self: Value, scale: Value, zero_point: Value, quant_min: int, quant_max: int
) -> Value:
    zero = _cut_zero(b, zero_point)
    return fake_quantize_per_tensor(b, self, scale, zero, quant_min, quant_max)


def _cut_zero(b: Builder, zero: Value) -> Value:
    """Of floats, eager takes the whole numbers before the point."""
    return b.cast(zero, torch.int64) if zero.dtype.is_floating_point else zero


@lower(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_tensor_qparams_cachemask(
    b: Builder,
    self: Value,
    scale: Value,
    zero_point: Value,
    fake_quant_enabled: Value,
    quant_min: int,
    quant_max: int,
) -> tuple[Value, Value]:
    zero = _cut_zero(b, zero_point)
    out, mask = fake_quantize_per_tensor_cachemask(b, self, scale, zero, quant_min, quant_max)
    enabled = b.cast(b.reshape(fake_quant_enabled, ()), torch.bool)
    return b.Where(enabled, b.cast(out, self.dtype), self), b.Or(b.Not(enabled), mask)


@lower(aten.fake_quantize_per_channel_affine.default)
def fake_quantize_per_channel(
    b: Builder,
    self: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value:
    """Integers are doubles in eager: it makes a difference where zero points are not whole."""
    by_double = self.dtype is torch.float64 or zero_point.dtype.is_floating_point
    product = torch.float64 if by_double else torch.float32
    limits, blocks = (quant_min, quant_max), indices_of(self, axis)
    return emit_fake_quantize(b, self, scale, zero_point, limits, blocks, product)


@lower(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel_cachemask(
    b: Builder,
    self: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> tuple[Value, Value]:
    out = fake_quantize_per_channel(b, self, scale, zero_point, axis, quant_min, quant_max)
    limits = quant_min, quant_max
    return out, emit_mask(b, self, scale, zero_point, limits, indices_of(self, axis))


# Operators of PT2E, which torch.ao.quantization and torchao register

_PT2E = "quantized_decomposed::"


def _channels(x: Value, scales: Value, axis: int) -> Blocks:
    """The indices of a dim; all of them where there is one scale."""
    return whole(x) if scales.sizes == (1,) else indices_of(x, axis)


def _to_float32(b: Builder, x: Value) -> Value:
    return b.cast(x, torch.float32) if x.dtype in HALVES else x


@lower_named(f"{_PT2E}quantize_per_tensor", f"{_PT2E}quantize_per_tensor.tensor")
def quantize_per_tensor(
    b: Builder,
    input: Value,
    scale: Parameter,
    zero_point: Parameter,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    """Numbers in Python are doubles, and so is the reciprocal of the scale."""
    inverse = invert(b, scale, torch.float64)
    x, limits = _to_float32(b, input), (quant_min, quant_max)
    return emit_quantize(b, x, scale, inverse, zero_point, limits, dtype, whole(x))


@lower_named(
    f"{_PT2E}dequantize_per_tensor",
    f"{_PT2E}dequantize_per_tensor.tensor",
    ignores="dtype",
    folds=False,
)
def dequantize_per_tensor(
    b: Builder,
    input: Value,
    scale: Parameter,
    zero_point: Parameter,
    quant_min: int,
    quant_max: int,
    out_dtype: torch.dtype | None,
) -> Value:
    out = out_dtype or torch.float32
    if isinstance(scale, Value):  # it becomes a number of Python
        scale = b.cast(scale, torch.float32)
    limits = quant_min, quant_max
    return emit_dequantize(b, input, scale, zero_point, whole(input), out, out, limits)


@lower_named(f"{_PT2E}quantize_per_channel")
def quantize_per_channel(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    x = _widen_with(b, _to_float32(b, input), scales)
    inverse = invert(b, scales, scales.dtype)
    limits, blocks = (quant_min, quant_max), _channels(x, scales, axis)
    return emit_quantize(b, x, scales, inverse, zero_points, limits, dtype, blocks)


def _widen_with(b: Builder, x: Value, scales: Value) -> Value:
    """The operand of a product with scales, of which doubles make a double."""
    return b.cast(x, promote.promote_types(x.dtype, scales.dtype))


@lower_named(f"{_PT2E}dequantize_per_channel", ignores="dtype", folds=False)
def dequantize_per_channel(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    out_dtype: torch.dtype | None,
) -> Value:
    blocks, limits = _channels(input, scales, axis), (quant_min, quant_max)
    made = _dequantize_promoted(b, input, scales, zero_points, blocks, limits)
    return b.cast(made, out_dtype or torch.float32)


def _dequantize_promoted(
    b: Builder,
    q: Value,
    scales: Value,
    zeros: Value | None,
    blocks: Blocks,
    limits: tuple[int, int],
) -> Value:
    """Difference and product as torch promotes their operands."""
    between = q.dtype if zeros is None else promote.promote_types(q.dtype, zeros.dtype)
    product = promote.promote_types(between, scales.dtype)
    return emit_dequantize(b, q, scales, zeros, blocks, between, product, limits)


@lower_named(f"{_PT2E}quantize_per_channel_group")
def quantize_per_channel_group(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> Value:
    blocks = rows_of(input, _find_group_size(input, scales, group_size))
    return _quantize_promoted(b, input, scales, zero_points, (quant_min, quant_max), dtype, blocks)


def _find_group_size(x: Value, scales: Value, size: int) -> Any:
    """A group is no longer than a row, if that is one group."""
    last = x.sizes[-1]
    return last if scales.sizes[-1] == 1 and type(last) is int and size > last else size


def _quantize_promoted(
    b: Builder,
    x: Value,
    scales: Value,
    zeros: Value,
    limits: tuple[int, int],
    dtype: torch.dtype,
    blocks: Blocks,
) -> Value:
    """The product as torch promotes its operands; zero points are added before it is rounded."""
    x = _widen_with(b, x, scales)
    if zeros.dtype.is_floating_point:
        x = _widen_with(b, x, zeros)
    inverse = invert(b, scales, scales.dtype)
    return emit_quantize(b, x, scales, inverse, zeros, limits, dtype, blocks, zero_first=True)


@lower_named(f"{_PT2E}dequantize_per_channel_group", ignores="dtype", folds=False)
def dequantize_per_channel_group(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    quant_min: int,
    quant_max: int,
    group_size: int,
    output_dtype: torch.dtype,
) -> Value:
    blocks = rows_of(input, _find_group_size(input, scales, group_size))
    limits = quant_min, quant_max
    made = _dequantize_promoted(b, input, scales, zero_points, blocks, limits)
    return b.cast(made, output_dtype)


@lower_named(f"{_PT2E}quantize_per_token")
def quantize_per_token(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    limits = quant_min, quant_max
    return _quantize_promoted(b, input, scales, zero_points, limits, dtype, rows_of(input))


@lower_named(f"{_PT2E}dequantize_per_token", ignores="dtype", folds=False)
def dequantize_per_token(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    output_dtype: torch.dtype,
) -> Value:
    blocks, limits = rows_of(input), (quant_min, quant_max)
    made = _dequantize_promoted(b, input, scales, zero_points, blocks, limits)
    return b.cast(made, output_dtype)


@lower_named(f"{_PT2E}quantize_per_tensor.tensor2")
def quantize_per_tensor_limits(
    b: Builder,
    input: Value,
    scale: Value,
    zero_point: Value,
    quant_min: Value,
    quant_max: Value,
    dtype: torch.dtype,
) -> Value:
    limits = _read_number(b, quant_min), _read_number(b, quant_max)
    return quantize_per_tensor(b, input, scale, zero_point, *limits, dtype)


def _read_number(b: Builder, x: Value) -> int:
    data = None if x.tensor is None else find_data(b, x)
    if data is None:
        raise UnsupportedError("limits of quantised integers that are computed", fix="numbers")
    return int(data)


@lower_named(
    f"{_PT2E}dequantize_per_tensor.tensor2", ignores="quant_min quant_max dtype", folds=False
)
def dequantize_per_tensor_limits(
    b: Builder, input: Value, scale: Value, zero_point: Value, out_dtype: torch.dtype | None
) -> Value:
    limits = find_limits(torch.int32)
    return dequantize_per_tensor(b, input, scale, zero_point, *limits, out_dtype)


@lower_named(f"{_PT2E}fake_quant_per_channel")
def fake_quant_per_channel(
    b: Builder,
    input: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value:
    zeros = b.cast(zero_points, torch.int32) if zero_points.dtype.is_floating_point else zero_points
    limits, blocks = (quant_min, quant_max), _channels(input, scales, axis)
    scales = b.cast(scales, torch.float32)
    return emit_fake_quantize(b, input, scales, zeros, limits, blocks, torch.float32)


@lower_named(f"{_PT2E}convert_element_type.no_fuse")
def convert_element_type(b: Builder, input: Value, dtype: torch.dtype) -> Value:
    return b.cast(input, dtype)


# How parameters are chosen by the numbers at hand


@lower_named(f"{_PT2E}choose_qparams.tensor", ignores="dtype")
def choose_qparams(
    b: Builder, input: Value, quant_min: int, quant_max: int, eps: float
) -> tuple[Value, Value]:
    """What eager gives for a tensor: one dim of one element."""
    low, high = _find_extent(b, input)
    scale = _floor_scale(b, b.Div(b.Sub(high, low), float(quant_max - quant_min)), eps)
    places = b.Round(b.Div(*b.common(low, scale, dtype=scale.dtype)))
    zero = b.Clip(b.Sub(b.scalar(float(quant_min), like=places), places), quant_min, quant_max)
    return b.cast(scale, torch.float64), b.cast(zero, torch.int64)


@lower_named(f"{_PT2E}choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    b: Builder, input: Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Value, Value]:
    low, high = _find_extent(b, input)
    span = b.Div(b.Max(b.Neg(low), high), (quant_max - quant_min) / 2)
    middle = 128 if dtype is torch.uint8 else 0
    return b.cast(_floor_scale(b, span, eps), torch.float64), b.constant(torch.tensor([middle]))


def _find_extent(b: Builder, x: Value, axes: Sequence[int] | None = None) -> tuple[Value, Value]:
    """The smallest and the largest number, with 0 between them."""
    keep = int(axes is not None)
    low, high = (op(x, axes, keepdims=keep) for op in (b.ReduceMin, b.ReduceMax))
    return b.Min(low, 0.0), b.Max(high, 0.0)


def _floor_scale(b: Builder, scale: Value, eps: float) -> Value:
    """No less than a tensor of one number in float32."""
    return b.Max(b.cast(scale, torch.float32), b.constant(torch.tensor([eps])))


@lower_named(f"{_PT2E}choose_qparams_per_token", ignores="dtype")
def choose_qparams_per_token(b: Builder, input: Value) -> tuple[Value, Value]:
    most = b.ReduceMax(b.Abs(input), [-1])
    most = b.cast(most, torch.float32) if most.dtype is torch.float16 else most
    scale = b.Div(b.Max(most, 1e-5), 127.0)
    return scale, b.expand(b.scalar(0.0, like=scale), b.result[1].sizes)


@lower_named(f"{_PT2E}choose_qparams_per_token_asymmetric", ignores="dtype")
def choose_qparams_per_token_asymmetric(b: Builder, input: Value) -> tuple[Value, Value]:
    """A zero point at that end of the range from which it is further away."""
    least, most = map(float, find_limits(torch.int8))
    low, high = _find_extent(b, input, [-1])
    scale = b.Max(b.Div(b.Sub(high, low), most - least), torch.finfo(torch.float32).eps)
    down, up = b.Div(low, scale), b.Div(high, scale)
    error = b.Add(b.Add(down, least), b.Add(up, most))
    zero = b.Where(
        b.Greater(error, 0.0),
        b.Sub(b.scalar(least, like=down), down),
        b.Sub(b.scalar(most, like=up), up),
    )
    zero = b.Round(b.Clip(zero, least, most))
    return b.cast(scale, torch.float64), b.cast(zero, torch.int64)


# Operators of torchao

_AO = "torchao::"


@lower_named(f"{_AO}quantize_affine")
def quantize_affine(
    b: Builder,
    input: Value,
    block_size: Sequence[Any],
    scale: Value,
    zero_point: Value | None,
    output_dtype: torch.dtype,
    quant_min: float | None,
    quant_max: float | None,
) -> Value:
    x = _widen_with(b, input, scale)
    dtype = b.result.dtype  # bytes for unsigned integers of fewer bits
    limits = _choose_limits(output_dtype, quant_min, quant_max)
    inverse, blocks = invert(b, scale, scale.dtype), Blocks.of(x, block_size)
    return emit_quantize(b, x, scale, inverse, zero_point, limits, dtype, blocks)


def _choose_limits(dtype: torch.dtype, low: float | None, high: float | None) -> tuple[int, int]:
    if dtype.is_floating_point:
        info: Any = torch.finfo(dtype)
        own = info.min, info.max
    else:
        own = find_limits(dtype)
    return own[0] if low is None else low, own[1] if high is None else high  # type: ignore


@lower_named(f"{_AO}dequantize_affine", folds=False)
def dequantize_affine(
    b: Builder,
    input: Value,
    block_size: Sequence[Any],
    scale: Value,
    zero_point: Value | None,
    input_dtype: torch.dtype,
    quant_min: float | None,
    quant_max: float | None,
    output_dtype: torch.dtype,
) -> Value:
    limits = _choose_limits(input_dtype, quant_min, quant_max)
    product = promote.promote_types(output_dtype, scale.dtype)
    made = emit_dequantize(
        b, input, scale, zero_point, Blocks.of(input, block_size), output_dtype, product, limits
    )
    return b.cast(made, output_dtype)


@lower_named(f"{_AO}quantize_affine_float8_non_decomposed")
def quantize_affine_float8(
    b: Builder, tensor: Value, scale: Value, float8_dtype: torch.dtype
) -> Value:
    """Divided by the scale, and held within the range."""
    blocks, most = _find_blocks(tensor, scale), torch.finfo(float8_dtype).max
    x = blocks.combine(b, b.Div, b.cast(tensor, torch.float32), scale, torch.float32)
    return b.cast(b.Clip(x, -most, most), float8_dtype)


@lower_named(f"{_AO}dequantize_affine_float8_non_decomposed", folds=False)
def dequantize_affine_float8(
    b: Builder, tensor: Value, scale: Value, output_dtype: torch.dtype
) -> Value:
    wide, blocks = torch.float32, _find_blocks(tensor, scale)
    return b.cast(emit_dequantize(b, tensor, scale, None, blocks, wide, wide), output_dtype)


def _find_blocks(x: Value, scale: Value) -> Blocks:
    """Of as many elements as there are for each element of the scale."""
    if all(s == 1 for s in scale.sizes):
        return whole(x)
    if scale.rank != x.rank:
        raise UnsupportedError("float8 with scales that have other dims than the tensor")
    return Blocks.of(x, [n // s for n, s in zip(x.sizes, scale.sizes, strict=True)])
