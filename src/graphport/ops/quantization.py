"""Shape rules of quantisation, and of fake quantisation: floats that few bits can hold."""

from __future__ import annotations

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops.elementwise import map_elements
from graphport.ops.registry import shape_rule, shape_rule_named
from graphport.ops.sizes import establish_equal, establish_sizes, numel, wrap_dim
from graphport.tensors.abstract import Abstract

_ZERO_POINTS = (torch.int32, torch.float32, torch.float16)


@shape_rule(aten.fake_quantize_per_tensor_affine.default)
def fake_quantize_per_tensor(
    self: Abstract, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Abstract:
    _check_operand(self, quant_min, quant_max)
    if not quant_min <= zero_point <= quant_max:
        raise ShapeError("`zero_point` must be between `quant_min` and `quant_max`.")
    return map_elements((self,), self.dtype)


@shape_rule(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor_cachemask(
    self: Abstract, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Abstract, Abstract]:
    return _with_mask(fake_quantize_per_tensor(self, scale, zero_point, quant_min, quant_max))


@shape_rule(aten.fake_quantize_per_tensor_affine.tensor_qparams)
def fake_quantize_tensor_qparams(
    self: Abstract, scale: Abstract, zero_point: Abstract, quant_min: int, quant_max: int
) -> Abstract:
    _check_operand(self, quant_min, quant_max)
    _check_singles(scale=scale, zero_point=zero_point)
    return map_elements((self,), self.dtype)


@shape_rule(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_tensor_qparams_cachemask(
    self: Abstract,
    scale: Abstract,
    zero_point: Abstract,
    fake_quant_enabled: Abstract,
    quant_min: int,
    quant_max: int,
) -> tuple[Abstract, Abstract]:
    out = fake_quantize_tensor_qparams(self, scale, zero_point, quant_min, quant_max)
    return _with_mask(out)


@shape_rule(aten.fake_quantize_per_channel_affine.default)
def fake_quantize_per_channel(
    self: Abstract, scale: Abstract, zero_point: Abstract, axis: int, quant_min: int, quant_max: int
) -> Abstract:
    _check_operand(self, quant_min, quant_max)
    if scale.dtype is not torch.float32 or zero_point.dtype not in _ZERO_POINTS:
        raise ShapeError(
            "Scale must be Float and Zero-point Int32, Float or Half, found "
            f"{scale.dtype} and {zero_point.dtype}"
        )
    if not 0 <= axis < self.rank:
        raise ShapeError("`axis` must be between 0 and number of dimensions of input")
    wanted = self.sizes[axis : axis + 1]
    if not (establish_sizes(scale.sizes, wanted) and establish_sizes(zero_point.sizes, wanted)):
        raise ShapeError("dimensions of scale and zero-point are not consistent with input tensor")
    return map_elements((self,), self.dtype)


@shape_rule(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel_cachemask(
    self: Abstract, scale: Abstract, zero_point: Abstract, axis: int, quant_min: int, quant_max: int
) -> tuple[Abstract, Abstract]:
    args = self, scale, zero_point, axis, quant_min, quant_max
    return _with_mask(fake_quantize_per_channel(*args))


def _check_operand(x: Abstract, low: int, high: int) -> None:
    if not x.dtype.is_floating_point:
        raise ShapeError(f"fake quantisation takes floats, and not {x}")
    if low > high:
        raise ShapeError("`quant_min` should be less than or equal to `quant_max`.")


def _with_mask(out: Abstract) -> tuple[Abstract, Abstract]:
    """With the elements that are within the range: those that have a gradient."""
    return out, map_elements((out,), torch.bool)


# The operators of PT2E. Meta kernels of their own convert halves, or tell other dtypes than eager.

_PT2E = "quantized_decomposed::"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_QUANTIZED = (*_INTEGERS, torch.float8_e5m2, torch.float8_e4m3fn)


@shape_rule_named(f"{_PT2E}quantize_per_tensor", f"{_PT2E}quantize_per_tensor.tensor")
def quantize_per_tensor(
    input: Abstract,
    scale: object,
    zero_point: object,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Abstract:
    _check_singles(scale=scale, zero_point=zero_point)
    return _quantize(input, quant_min, quant_max, dtype)


@shape_rule_named(f"{_PT2E}quantize_per_tensor.tensor2")
def quantize_per_tensor_limits(
    input: Abstract,
    scale: object,
    zero_point: object,
    quant_min: object,
    quant_max: object,
    dtype: torch.dtype,
) -> Abstract:
    return quantize_per_tensor(input, scale, zero_point, 0, 0, dtype)


@shape_rule_named(f"{_PT2E}quantize_per_channel")
def quantize_per_channel(
    input: Abstract,
    scales: Abstract,
    zero_points: Abstract,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Abstract:
    _check_channels(input, axis, scales, zero_points)
    return _quantize(input, quant_min, quant_max, dtype)


def _quantize(x: Abstract, low: int, high: int, dtype: torch.dtype) -> Abstract:
    if x.dtype not in _FLOATS:
        raise ShapeError(f"Expecting input to have dtype torch.float32, but got dtype: {x.dtype}")
    _check_limits(low, high, dtype)
    return map_elements((x,), dtype)


@shape_rule_named(f"{_PT2E}dequantize_per_tensor", f"{_PT2E}dequantize_per_tensor.tensor")
def dequantize_per_tensor(
    input: Abstract,
    scale: object,
    zero_point: object,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None,
) -> Abstract:
    _check_singles(scale=scale, zero_point=zero_point)
    return _dequantize(input, dtype, out_dtype)


@shape_rule_named(f"{_PT2E}dequantize_per_tensor.tensor2")
def dequantize_per_tensor_limits(
    input: Abstract,
    scale: object,
    zero_point: object,
    quant_min: object,
    quant_max: object,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None,
) -> Abstract:
    _check_singles(scale=scale, zero_point=zero_point)
    return _dequantize(input, dtype, out_dtype)


@shape_rule_named(f"{_PT2E}dequantize_per_channel")
def dequantize_per_channel(
    input: Abstract,
    scales: Abstract,
    zero_points: Abstract | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None,
) -> Abstract:
    _check_limits(quant_min, quant_max, dtype)
    _check_channels(input, axis, scales, zero_points)
    return _dequantize(input, dtype, out_dtype)


def _dequantize(q: Abstract, dtype: torch.dtype, out: torch.dtype | None) -> Abstract:
    if q.dtype is not dtype:
        raise ShapeError(f"Expecting input to have dtype {dtype}, but got dtype: {q.dtype}")
    _check_limits(0, 0, dtype)
    return map_elements((q,), out or torch.float32)


@shape_rule_named(f"{_PT2E}choose_qparams_per_token")
def choose_qparams_per_token(input: Abstract, dtype: torch.dtype) -> tuple[Abstract, Abstract]:
    if dtype is not torch.int8:
        raise ShapeError(f"unsupported dtype in choose_qparams_per_token: {dtype}")
    own = torch.float32 if input.dtype is torch.float16 else input.dtype
    scale = input.like((*input.sizes[:-1], 1), own)
    return scale, scale


def _check_singles(**parameters: object) -> None:
    for name, x in parameters.items():
        if isinstance(x, Abstract) and not establish_equal(numel(x.sizes), 1):
            raise ShapeError(f"Expecting {name} tensor to be one element, but received : {x}")


def _check_limits(low: int, high: int, dtype: torch.dtype) -> None:
    if dtype not in _QUANTIZED:
        raise ShapeError(f"Unsupported dtype: {dtype}")
    info = torch.iinfo(dtype) if dtype in _INTEGERS else torch.finfo(dtype)
    if low < info.min or high > info.max:
        raise ShapeError(
            f"quant_min and quant_max out of bounds for dtype {dtype}: {low} and {high}"
        )


def _check_channels(x: Abstract, axis: int, *parameters: Abstract | None) -> None:
    size = x.sizes[wrap_dim(axis, x.rank)]
    for p in parameters:
        if p is not None and p.sizes != (1,) and not establish_sizes(p.sizes, (size,)):
            raise ShapeError(f"{p} does not fit dim {axis} of {x}, which it has a number for each")
