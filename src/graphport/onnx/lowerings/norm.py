"""Lowers batch, layer, group, instance, RMS and weight normalisation.

ONNX wants a scale where torch may have none, so it is given ones. Statistics of a batch are
computed apart: ONNX Runtime has no kernel for BatchNormalization in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.conv import sizes_of
from graphport.onnx.lowerings.reduce import is_nonempty
from graphport.symbolic import ge, max_, prod


def _emit_full(b: Builder, sizes: Any, number: float, dtype: torch.dtype) -> Value:
    """One number everywhere: small ones are constants."""
    sizes = tuple(sizes)
    if all(type(s) is int for s in sizes) and prod(sizes) <= 1 << 16:
        return b.constant(torch.full(sizes, number, dtype=dtype))
    return b.expand(b.scalar(number, dtype), sizes)


def _promote_floats(b: Builder, *values: Value | None) -> list[Value | None]:
    """In the one dtype that is computed in: parameters may be of a wider one than the input."""
    given = [v for v in values if v is not None]
    dtype = given[0].dtype
    for v in given[1:]:
        dtype = torch.promote_types(dtype, v.dtype)
    return [v if v is None else b.cast(v, dtype) for v in values]


# Batches


@lower(aten.batch_norm.default, ignores="momentum cudnn_enabled")
def batch_norm(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    eps: float,
) -> Value:
    if training or running_mean is None or running_var is None:
        return _BatchStatistics(b, input, eps).normalise(weight, bias)
    return _normalise(b, input, weight, bias, running_mean, running_var, eps)


def _normalise(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    if input.rank < 2:
        return input  # has no elements, or torch refuses it
    x, w, c, m, v = _promote_floats(b, input, weight, bias, mean, var)
    assert x is not None
    channels = sizes_of(x)[1:2] if weight is None else weight.shape
    w = w if w is not None else _emit_full(b, channels, 1.0, x.dtype)
    c = c if c is not None else _emit_full(b, channels, 0.0, x.dtype)
    if x.dtype is torch.float64:  # an attribute has 32 bits
        v, eps = b.Add(v, eps), 0.0
    return b.BatchNormalization(x, w, c, m, v, epsilon=eps)


class _BatchStatistics:
    """The statistics of a batch, by channel."""

    def __init__(self, b: Builder, x: Value, eps: float) -> None:
        self.b, self.x, self.eps = b, x, eps
        wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        axes = [0, *range(2, x.rank)]
        shape = sizes_of(x)
        self.count = prod(shape[a] for a in axes)
        self.some = is_nonempty(b, self.count)
        wider = b.cast(x, wide)
        mean = self._mean(wider, axes)
        self.mean = b.squeeze(b.shaped(mean, _channel_shape(shape)), *axes)
        apart = b.Sub(wider, mean)
        self.var = b.squeeze(
            b.shaped(self._mean(b.Mul(apart, apart), axes), _channel_shape(shape)), *axes
        )

    def _mean(self, x: Value, axes: list[int]) -> Value:
        """Of nothing it is 0, and nobody looks at it."""
        b = self.b
        if self.some:
            return b.ReduceMean(x, axes)
        return b.Div(b.ReduceSum(x, axes), b.scalar(max_(self.count, 1), x.dtype))

    def normalise(self, weight: Value | None, bias: Value | None) -> Value:
        return _normalise(self.b, self.x, weight, bias, self.mean, self.var, self.eps)

    def inverse(self) -> Value:
        return self.b.Reciprocal(self.b.Sqrt(self.b.Add(self.var, self.eps)))

    def updated(self, mean: Value, var: Value, momentum: float) -> tuple[Value, Value]:
        """Running statistics after the batch; the variance without bias."""
        b = self.b
        count = self.count
        if type(count) is int:
            unbiased = b.Mul(self.var, count / (count - 1) if count > 1 else float("nan"))
        else:
            n = b.scalar(count, self.var.dtype)
            unbiased = b.Mul(self.var, b.Div(n, b.Sub(n, 1.0)))
        return self._moved(mean, self.mean, momentum), self._moved(var, unbiased, momentum)

    def _moved(self, old: Value, new: Value, momentum: float) -> Value:
        b = self.b
        kept = b.Mul(old, 1 - momentum)
        moved = b.Add(kept, b.Mul(b.cast(new, old.dtype), momentum))
        if self.some:
            return moved
        return b.Where(b.Equal(b.scalar(self.count, torch.int64), 0), old, moved)


def _channel_shape(shape: Sequence[Size]) -> tuple[Any, ...]:
    return tuple(s if i == 1 else 1 for i, s in enumerate(shape))


@lower(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        out = _normalise(b, input, weight, bias, running_mean, running_var, eps)
        none = _emit_full(b, (0,), 0.0, b.result[1].dtype)
        return out, none, none, running_mean, running_var
    if input.rank < 2:
        return input, running_mean, running_var, running_mean, running_var
    batch = _BatchStatistics(b, input, eps)
    out = batch.normalise(weight, bias)
    return out, batch.mean, batch.inverse(), *batch.updated(running_mean, running_var, momentum)


@lower(aten._batch_norm_with_update_functional.default)
def _batch_norm_with_update_functional(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Any:
    batch = _BatchStatistics(b, input, eps)
    reserve = _emit_full(b, (0,), 0, b.result[3].dtype)
    new = batch.updated(running_mean, running_var, momentum)
    return batch.normalise(weight, bias), batch.mean, batch.inverse(), reserve, *new


@lower(aten._native_batch_norm_legit.no_stats, ignores="training momentum")
def _native_batch_norm_legit_no_stats(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> Any:
    batch = _BatchStatistics(b, input, eps)
    return batch.normalise(weight, bias), batch.mean, batch.inverse()


@lower(aten.native_batch_norm.default, ignores="momentum")
def native_batch_norm(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    eps: float,
) -> Any:
    if training or running_mean is None or running_var is None:
        batch = _BatchStatistics(b, input, eps)
        return batch.normalise(weight, bias), batch.mean, batch.inverse()
    out = _normalise(b, input, weight, bias, running_mean, running_var, eps)
    none = _emit_full(b, (0,), 0.0, b.result[1].dtype)
    return out, none, none


@lower(aten._native_batch_norm_legit_no_training.default, aten._batch_norm_no_update.default)
def _native_batch_norm_legit_no_training(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Any:
    out = _normalise(b, input, weight, bias, running_mean, running_var, eps)
    return out, *(_emit_full(b, (0,), 0, r.dtype) for r in b.result[1:])


# The last dims


@lower(aten.layer_norm.default, ignores="cudnn_enable")
def layer_norm(
    b: Builder,
    input: Value,
    normalized_shape: Any,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Value:
    x, w, c = _promote_floats(b, input, weight, bias)
    assert x is not None
    axis = x.rank - len(normalized_shape)
    sizes = tuple(sizes_of(x)[axis:])
    if b.has("LayerNormalization", x.dtype, eps) and _is_nonempty(b, sizes):
        w = w if w is not None else _emit_full(b, sizes, 1.0, x.dtype)
        return b.LayerNormalization(x, w, c, axis=axis - x.rank, epsilon=eps)
    axes = list(range(axis, x.rank))
    apart = b.Sub(x, b.ReduceMean(x, axes))
    out = b.Mul(apart, _inverse_std(b, b.ReduceMean(b.Mul(apart, apart), axes), eps))
    out = out if w is None else b.Mul(out, w)
    return out if c is None else b.Add(out, c)


@lower(aten.native_layer_norm.default)
def native_layer_norm(
    b: Builder,
    input: Value,
    normalized_shape: Any,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    axes = list(range(input.rank - len(normalized_shape), input.rank))
    x = b.cast(input, b.result[1].dtype)
    mean = b.ReduceMean(x, axes)
    apart = b.Sub(x, mean)
    inverse = _inverse_std(b, b.ReduceMean(b.Mul(apart, apart), axes), eps)
    return layer_norm(b, input, normalized_shape, weight, bias, eps), mean, inverse


def _is_nonempty(b: Builder, sizes: Sequence[Size]) -> bool:
    """Whether there is something to normalise: the operators of ONNX Runtime refuse nothing."""
    return all(b.scope.decide(ge(s, 1)) is True for s in sizes)


def _inverse_std(b: Builder, var: Value, eps: float) -> Value:
    return b.Reciprocal(b.Sqrt(b.Add(var, eps)))


@lower(aten.rms_norm.default)
def rms_norm(
    b: Builder, input: Value, normalized_shape: Any, weight: Value | None, eps: float | None
) -> Value:
    axis = len(normalized_shape)
    x, w = _promote_floats(b, input, weight)
    assert x is not None
    eps = _default_eps(x.dtype) if eps is None else eps
    sizes = sizes_of(x)[-axis:]
    if b.has("RMSNormalization", x.dtype, eps) and _is_nonempty(b, sizes):
        scale = w if w is not None else _emit_full(b, sizes, 1.0, x.dtype)
        return b.RMSNormalization(x, scale, axis=-axis, epsilon=eps)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    up = b.cast(x, wide)
    out = b.Mul(up, _inverse_rms(b, up, axis, eps))
    return out if w is None else b.Mul(out, b.cast(w, wide))


def _default_eps(dtype: torch.dtype) -> float:
    """The epsilon of the dtype that torch computes in: of halves that is float32."""
    return torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps


def _inverse_rms(b: Builder, x: Value, dims: int, eps: float) -> Value:
    axes = list(range(x.rank - dims, x.rank))
    return _inverse_std(b, b.ReduceMean(b.Mul(x, x), axes), eps)


@lower(aten._fused_rms_norm.default)
def _fused_rms_norm(
    b: Builder, input: Value, normalized_shape: Any, weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    x = b.cast(input, b.result[1].dtype)
    root = _inverse_rms(
        b, x, len(normalized_shape), _default_eps(input.dtype) if eps is None else eps
    )
    return rms_norm(b, input, normalized_shape, weight, eps), root


# Groups of channels, and planes


@lower(aten.group_norm.default, ignores="cudnn_enabled")
def group_norm(
    b: Builder, input: Value, num_groups: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """Groups as planes. ONNX Runtime decomposes GroupNormalization into more than this."""
    sizes: tuple[Any, ...] = sizes_of(input)
    x, w, c = _promote_floats(b, input, weight, bias)
    assert x is not None
    rest = prod(sizes[1:]) // num_groups
    flat = b.reshape(x, (sizes[0], num_groups, rest))
    out = b.reshape(b.shaped(_normalise_planes(b, flat, None, None, eps), flat.shape or ()), sizes)
    after = range(1, len(sizes) - 1)
    out = out if w is None else b.Mul(out, b.unsqueeze(w, *after))
    return out if c is None else b.Add(out, b.unsqueeze(c, *after))


def _normalise_planes(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """Each plane by itself; in float64 computed, since ONNX Runtime does it in float32 only."""
    sizes: tuple[Any, ...] = sizes_of(x)
    if x.dtype is not torch.float64 and _is_nonempty(b, sizes[2:]):
        w = weight if weight is not None else _emit_full(b, sizes[1:2], 1.0, x.dtype)
        c = bias if bias is not None else _emit_full(b, sizes[1:2], 0.0, x.dtype)
        return b.InstanceNormalization(x, w, c, epsilon=eps)
    axes = list(range(2, x.rank))
    apart = b.Sub(x, b.ReduceMean(x, axes))
    out = b.Mul(apart, _inverse_std(b, b.ReduceMean(b.Mul(apart, apart), axes), eps))
    after = range(1, x.rank - 1)
    out = out if weight is None else b.Mul(out, b.unsqueeze(weight, *after))
    return out if bias is None else b.Add(out, b.unsqueeze(bias, *after))


@lower(aten.native_group_norm.default)
def native_group_norm(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Size,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    x = b.reshape(b.cast(input, b.result[1].dtype), (N, group, C * HxW // group))
    mean = b.ReduceMean(x, [2])
    apart = b.Sub(x, mean)
    inverse = _inverse_std(b, b.ReduceMean(b.Mul(apart, apart), [2], keepdims=0), eps)
    count = C * HxW // group
    if b.scope.decide(ge(count, 1)) is not True:
        inverse = b.Where(b.Equal(b.sizes.element(count), 0), math.nan, inverse)
    mean = b.squeeze(b.shaped(mean, (N, group, 1)), 2)
    sizes = sizes_of(input)
    own = (*sizes[:2], prod(sizes[2:]))
    if len(own) < 3 or not all(map(b.scope.same, (N, C, HxW), own)):
        input = b.reshape(input, (N, C, HxW))  # eager reads the storage, whatever the strides
    out = group_norm(b, input, group, weight, bias, eps)
    return b.reshape(out, sizes), mean, inverse


@lower(aten.instance_norm.default, ignores="momentum cudnn_enabled")
def instance_norm(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    eps: float,
) -> Value:
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        return _normalise(b, input, weight, bias, running_mean, running_var, eps)
    x, w, c = _promote_floats(b, input, weight, bias)
    assert x is not None
    return _normalise_planes(b, x, w, c, eps)


# Weights


@lower(aten._weight_norm.default)
def _weight_norm(b: Builder, v: Value, g: Value, dim: int) -> Value:
    return b.Mul(v, b.Div(g, _norm_except(b, v, dim)))


@lower(aten._weight_norm_interface.default)
def _weight_norm_interface(b: Builder, v: Value, g: Value, dim: int) -> tuple[Value, Value]:
    return _weight_norm(b, v, g, dim), _norm_except(b, v, dim)


def _norm_except(b: Builder, v: Value, dim: int) -> Value:
    """Along all dims but one; -1 stands for none, as torch has it."""
    axes = [a for a in range(v.rank) if a != dim]
    return b.ReduceL2(v, axes, keepdims=0 if dim == -1 else 1)
