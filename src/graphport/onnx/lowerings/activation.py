"""Lowers activation functions, softmax and dropout.

Where ONNX has an operator that ONNX Runtime has a kernel for in the dtype, it is that operator; it
is a formula otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.elementwise import HALVES, widen_operand
from graphport.onnx.lowerings.special import erf_of, expm1_of, log1p_of


@lower(aten.relu.default)
def relu(b: Builder, self: Value) -> Value:
    if self.dtype is torch.bool:
        return self
    # ONNX Runtime stops at a Clip of float64 behind a Relu, which it would make one.
    whole = self.dtype.is_floating_point and self.dtype is not torch.float64
    return b.Relu(self) if whole else b.Max(self, 0)


@lower(aten.sigmoid.default)
def sigmoid(b: Builder, self: Value) -> Value:
    return b.Sigmoid(b.cast(self, b.result.dtype))


@lower(aten.silu.default)
def silu(b: Builder, self: Value) -> Value:
    """The form that measures fastest on ONNX Runtime."""
    return b.Mul(self, b.Sigmoid(self))


@lower(aten.gelu.default)
def gelu(b: Builder, self: Value, approximate: str) -> Value:
    tanh = approximate == "tanh"
    if tanh and self.rank and b.has("FastGelu", self.dtype):
        return b.FastGelu(self)
    if b.has("Gelu", self.dtype):
        return b.Gelu(self, approximate="tanh" if tanh else None)
    x = widen_operand(b, self)
    if tanh:
        cubic = b.Mul(b.Add(b.Mul(b.Mul(b.Mul(x, x), x), 0.044715), x), math.sqrt(2 / math.pi))
        return b.Mul(b.Mul(x, 0.5), b.Add(b.Tanh(cubic), 1.0))
    return b.Mul(b.Mul(x, 0.5), b.Add(erf_of(b, b.Mul(x, math.sqrt(0.5))), 1.0))


@lower(aten.mish.default)
def mish(b: Builder, self: Value) -> Value:
    x = widen_operand(b, self)
    return b.Mul(x, b.Tanh(_softplus(b, x)))


def _softplus(b: Builder, x: Value) -> Value:
    if b.has("Softplus", x.dtype):
        return b.Softplus(x)
    return b.Add(b.Max(x, 0.0), log1p_of(b, b.Exp(b.Neg(b.Abs(x)))))


@lower(aten.softplus.default)
def softplus(b: Builder, self: Value, beta: float, threshold: float) -> Value:
    """The argument itself past the threshold; where that is nothing in its precision, unsaid."""
    x = widen_operand(b, self)
    scaled = x if beta == 1 else b.Mul(x, beta)
    soft = _softplus(b, scaled)
    soft = soft if beta == 1 else b.Div(soft, beta)
    if self.dtype is not torch.float64 and threshold >= 20:
        return soft
    return b.Where(b.Greater(scaled, threshold), x, soft)


@lower(aten.log_sigmoid.default)
def log_sigmoid(b: Builder, self: Value) -> Value:
    return b.Neg(_softplus(b, b.Neg(widen_operand(b, self))))


@lower(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, self: Value) -> tuple[Value, Value]:
    """The second result is what CPU kernels keep for the gradient: exp(-|x|)."""
    result, buffer = b.result
    x = b.cast(self, torch.float32) if self.dtype in HALVES else self
    soft = b.Neg(_softplus(b, b.Neg(x)))
    return b.cast(soft, result.dtype), b.cast(b.Exp(b.Neg(b.Abs(x))), buffer.dtype)


@lower(aten.hardswish.default)
def hardswish(b: Builder, self: Value) -> Value:
    return b.Mul(self, _hardsigmoid(b, self))


@lower(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, self: Value) -> Value:
    return _hardsigmoid(b, self)


def _hardsigmoid(b: Builder, x: Value) -> Value:
    if x.dtype is torch.float16 or b.has("HardSigmoid", x.dtype):
        return b.HardSigmoid(x, alpha=1 / 6, beta=0.5)
    return b.Div(b.Clip(b.Add(x, 3.0), 0.0, 6.0), 6.0)


@lower(aten.hardtanh.default)
def hardtanh(b: Builder, self: Value, min_val: float, max_val: float) -> Value:
    return b.Clip(self, min_val, max_val)


@lower(aten.relu6.default)
def relu6(b: Builder, self: Value) -> Value:
    return b.Clip(self, 0, 6)


@lower(aten.leaky_relu.default)
def leaky_relu(b: Builder, self: Value, negative_slope: float) -> Value:
    if b.has("LeakyRelu", self.dtype):
        return b.LeakyRelu(self, alpha=float(negative_slope))
    return b.Where(b.Greater(self, 0.0), self, b.Mul(self, negative_slope))


@lower(aten.prelu.default, aten._prelu_kernel.default)
def prelu(b: Builder, self: Value, weight: Value) -> Value:
    """A slope per channel, of the second dim."""
    if weight.rank == 1 and self.rank > 1:
        weight = b.reshape(weight, [weight.shape[0], *[1] * (self.rank - 2)])  # type: ignore[index]
    elif weight.rank == 1:
        weight = b.reshape(weight, [])
    if b.has("PRelu", self.dtype):
        return b.PRelu(self, weight)
    return b.Where(b.Greater(self, 0.0), self, b.Mul(self, weight))


@lower(aten.elu.default)
def elu(b: Builder, self: Value, alpha: float, scale: float, input_scale: float) -> Value:
    if scale == 1 and input_scale == 1 and b.has("Elu", self.dtype):
        return b.Elu(self, alpha=float(alpha))
    x = widen_operand(b, self)
    inner = x if input_scale == 1 else b.Mul(x, input_scale)
    if b.has("Elu", x.dtype):
        below = b.Elu(inner, alpha=float(alpha))
    else:
        below = b.Mul(expm1_of(b, inner), alpha)
    out = b.Where(b.Greater(x, 0.0), x, below)
    return out if scale == 1 else b.Mul(out, scale)


@lower(aten.celu.default)
def celu(b: Builder, self: Value, alpha: float) -> Value:
    if self.dtype is torch.float32:  # the only one that the standard has
        return b.Celu(self, alpha=float(alpha))
    return elu(b, self, alpha, 1, 1 / alpha)


_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@lower(aten.selu.default)
def selu(b: Builder, self: Value) -> Value:
    if b.has("Selu", self.dtype):
        return b.Selu(self, alpha=_SELU[0], gamma=_SELU[1])
    return elu(b, self, _SELU[0], _SELU[1], 1)


@lower(aten.glu.default)
def glu(b: Builder, self: Value, dim: int) -> Value:
    dim %= self.rank
    # The size of a half is said: ONNX Runtime does not split a size of 0 by a number of pieces.
    half = b.result.sizes[dim]
    x, gate = b.Split(self, [half, half], axis=dim, outputs=2)
    return b.Mul(x, b.Sigmoid(b.shaped(gate, b.result.sizes)))


@lower(aten.threshold.default)
def threshold(b: Builder, self: Value, threshold: float, value: float) -> Value:
    low = b.LessOrEqual(self, b.scalar(threshold, like=self))
    return b.Where(low, b.scalar(value, like=self), self)


@lower(aten.hardshrink.default)
def hardshrink(b: Builder, self: Value, lambd: float) -> Value:
    inside = b.LessOrEqual(b.Abs(self), lambd)
    return b.Where(inside, b.scalar(0.0, like=self), self)


@lower(aten.softshrink.default)
def softshrink(b: Builder, self: Value, lambd: float) -> Value:
    """x without what of it is within [-lambd, lambd]."""
    return b.Sub(self, b.Clip(self, -lambd, lambd))


# Softmax


def softmax(b: Builder, x: Value, axis: int) -> Value:
    return b.Softmax(x, axis=axis)


def log_softmax(b: Builder, x: Value, axis: int) -> Value:
    """ONNX Runtime's kernel for doubles does not see a nan or an infinity; that of Softmax does."""
    log = b.LogSoftmax(x, axis=axis)
    if x.dtype is not torch.float64:
        return log
    return b.Add(log, b.Mul(b.Softmax(x, axis=axis), 0.0))


def _softmax(of_row: Callable[[Builder, Value, int], Value]) -> Any:
    def lowering(b: Builder, self: Value, dim: int) -> Value:
        """In the dtype of the result; of a single number it is that of a row of one."""
        x = b.cast(self, b.result.dtype)
        if x.rank == 0:
            return b.reshape(of_row(b, b.reshape(x, [1]), 0), [])
        return of_row(b, x, dim % x.rank)

    return lowering


def _with_dtype(of_row: Any) -> Any:
    plain = _softmax(of_row)
    return lambda b, self, dim, dtype: plain(b, self, dim)


def _with_half(of_row: Any) -> Any:
    plain = _softmax(of_row)
    return lambda b, self, dim, half_to_float: plain(b, self, dim)


lower_table({"softmax.int": softmax, "log_softmax.int": log_softmax}, _with_dtype)
lower_table({"_softmax": softmax, "_log_softmax": log_softmax}, _with_half)


@lower(aten._safe_softmax.default)
def _safe_softmax(b: Builder, self: Value, dim: int, dtype: object) -> Value:
    """Zeros, not nan, for a row that is masked as a whole."""
    out = _softmax(softmax)(b, self, dim)
    masked = b.IsInf(self, detect_positive=0)
    if self.rank:
        least = b.ReduceMin(b.cast(masked, torch.uint8), [dim], keepdims=1)
        masked = b.cast(least, torch.bool)
    return b.Where(masked, b.scalar(0.0, like=out), out)


# Dropout


def emit_dropout(b: Builder, x: Value, p: float, train: bool) -> Value:
    """Nothing unless in training."""
    return x if not train or p == 0 else _dropout_with_mask(b, x, p)[0]


def _dropout_with_mask(b: Builder, x: Value, p: float) -> tuple[Value, Value]:
    """What is left, scaled, and which it is."""
    kept = _dropout_mask(b, x, p)
    scale = 1 / (1 - p) if p < 1 else 0.0
    return b.shaped(b.Where(kept, b.Mul(x, scale), 0.0), x.shape or ()), kept


def _dropout_mask(b: Builder, x: Value, p: float) -> Value:
    """By the mask: ONNX Runtime takes a Dropout away whose mask nobody uses, in training or not."""
    if p == 1:
        return b.expand(b.scalar(False, torch.bool), x.shape or ())
    ratio = b.scalar(p, torch.float32)
    return b.shaped(b.Dropout(x, ratio, b.scalar(True, torch.bool), outputs=2)[1], x.shape or ())


@lower(aten.dropout.default)
def dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    return emit_dropout(b, input, p, train)


@lower(aten.native_dropout.default)
def native_dropout(b: Builder, input: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    if train is False or p == 0:
        return input, b.expand(b.scalar(True, torch.bool), input.shape or ())
    return _dropout_with_mask(b, input, p)


def _ones_by_channel(b: Builder, x: Value) -> Value:
    """Ones over the first two dims."""
    sizes = (*(x.shape or ())[:2], *[1] * (x.rank - 2))
    return b.expand(b.scalar(1.0, like=x), sizes)


@lower(aten.feature_dropout.default)
def feature_dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    """Whole channels are dropped."""
    if not train or p == 0:
        return input
    return b.Mul(input, emit_dropout(b, _ones_by_channel(b, input), p, train))


_LEAST_SELU = _SELU[0] * _SELU[1]


def _alpha_dropout(b: Builder, x: Value, like: Value, p: float, train: bool) -> Value:
    """What is dropped becomes the least value of selu; mean and variance are kept."""
    if not train or p == 0:
        return x
    if p == 1:
        return b.Mul(x, 0.0)
    scale = 1 / math.sqrt((_LEAST_SELU**2 * p + 1) * (1 - p))
    chosen = b.Where(_dropout_mask(b, like, p), x, b.scalar(-_LEAST_SELU, like=x))
    return b.Add(b.Mul(chosen, scale), _LEAST_SELU * scale * p)


@lower(aten.alpha_dropout.default)
def alpha_dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    return _alpha_dropout(b, input, input, p, train)


@lower(aten.feature_alpha_dropout.default)
def feature_alpha_dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    return _alpha_dropout(b, input, _ones_by_channel(b, input), p, train)
