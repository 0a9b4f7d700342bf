"""Lowers random operators to ONNX Runtime's generator, with torch's distributions.

All of them are made from uniform and normal numbers in float32 or float64. ONNX Runtime has kernels
for those up to opset 21 only, and programs that draw are written at that by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder, Number, Operand
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.activation import leaky_relu
from graphport.onnx.lowerings.factory import emit_full
from graphport.symbolic import sub

DRAWS = ("RandomUniform", "RandomNormal")

# Bits of a uniform number of torch: as many as the mantissa has.
_MANTISSA_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def _emit_random(b: Builder, op: str, sizes: Sequence[Size], dtype: torch.dtype) -> Value:
    """RandomUniform or RandomNormal, of sizes that may be symbolic."""
    if not b.has(op, dtype):
        raise UnsupportedError(
            f"ONNX Runtime has no kernel of {op} at opset {b.opset}",
            fix=f"opset={b.newest_opset(op)}",
        )
    if all(type(s) is int for s in sizes):
        return b.shaped(getattr(b, op)(shape=list(sizes), dtype=dtype), sizes)
    like = emit_full(b, sizes, 0, dtype)
    return b.shaped(getattr(b, f"{op}Like")(like, dtype=dtype), sizes)


def _draw_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _draw_uniform(b: Builder, dtype: torch.dtype) -> Value:
    """From 0 up to but not 1, in the sizes of the result and in float32 or float64."""
    return _emit_random(b, "RandomUniform", b.result.sizes, _draw_dtype(dtype))


def _draw_normal(b: Builder) -> Value:
    return _emit_random(b, "RandomNormal", b.result.sizes, _draw_dtype(b.result.dtype))


def _draw_unit(b: Builder) -> Value:
    """Uniform numbers in the dtype of the result; rounding must not make a 1 of them."""
    dtype = b.result.dtype
    numbers = _draw_uniform(b, dtype)
    if numbers.dtype is dtype:
        return numbers
    scale = float(2 ** _MANTISSA_BITS[dtype])
    return b.cast(b.Div(b.Floor(b.Mul(numbers, scale)), scale), dtype)


@lower(aten.rand.default, aten.rand.generator, needs=DRAWS)
def rand(b: Builder, size: object, dtype: object) -> Value:
    return _draw_unit(b)


@lower(aten.rand_like.default, aten.rand_like.generator, needs=DRAWS)
def rand_like(b: Builder, self: Value, dtype: object) -> Value:
    return _draw_unit(b)


@lower(aten.uniform.default, needs=DRAWS)
def uniform(b: Builder, self: Value, from_: float, to: float) -> Value:
    return b.Add(b.Mul(_draw_unit(b), to - from_), from_)


# Normal and what is made of it


@lower(aten.randn.default, aten.randn.generator, needs=DRAWS)
def randn(b: Builder, size: object, dtype: object) -> Value:
    return _draw_normal(b)


@lower(aten.randn_like.default, aten.randn_like.generator, needs=DRAWS)
def randn_like(b: Builder, self: Value, dtype: object) -> Value:
    return _draw_normal(b)


@lower(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor, needs=DRAWS)
def normal(b: Builder, mean: Operand, std: Operand) -> Value:
    return _draw_scaled_normal(b, mean, std)


@lower(aten.normal.float_float, needs=DRAWS)
def normal_float(b: Builder, mean: float, std: float, size: object, dtype: object) -> Value:
    return _draw_scaled_normal(b, mean, std)


@lower(aten.normal_functional.default, needs=DRAWS)
def normal_functional(b: Builder, self: Value, mean: float, std: float) -> Value:
    return _draw_scaled_normal(b, mean, std)


@lower(aten.log_normal.default, needs=DRAWS)
def log_normal(b: Builder, self: Value, mean: float, std: float) -> Value:
    return b.Exp(_draw_scaled_normal(b, mean, std))


def _draw_scaled_normal(b: Builder, mean: Operand, std: Operand) -> Value:
    numbers = _draw_normal(b)
    mean, std = b.common(mean, std, dtype=numbers.dtype)
    return b.Add(b.Mul(numbers, std), mean)


# By the inverse of their distribution


def _draw_exponential(b: Builder, dtype: torch.dtype) -> Value:
    return b.Neg(b.Log(b.Sub(1.0, _draw_uniform(b, dtype))))


@lower(aten.exponential.default, needs=DRAWS)
def exponential(b: Builder, self: Value, lambd: float) -> Value:
    numbers = _draw_exponential(b, b.result.dtype)
    return numbers if lambd == 1 else b.Div(numbers, lambd)


@lower(aten.cauchy.default, needs=DRAWS)
def cauchy(b: Builder, self: Value, median: float, sigma: float) -> Value:
    angle = b.Mul(b.Sub(_draw_uniform(b, b.result.dtype), 0.5), math.pi)
    return b.Add(b.Mul(b.Div(b.Sin(angle), b.Cos(angle)), sigma), median)


@lower(aten.geometric.default, needs=DRAWS)
def geometric(b: Builder, self: Value, p: float) -> Value:
    if p == 1:
        return emit_full(b, b.result.sizes, 1, b.result.dtype)
    trials = b.Div(_draw_exponential(b, b.result.dtype), -math.log1p(-p))
    return b.Max(b.Ceil(trials), 1.0)


# Integers


@lower(aten.randint.default, aten.randint.generator, needs=DRAWS)
def randint(b: Builder, high: Number, size: object, dtype: object) -> Value:
    return _draw_integers(b, 0, high)


@lower(aten.randint.low, aten.randint.low_generator, needs=DRAWS)
def randint_low(b: Builder, low: Number, high: Number, size: object, dtype: object) -> Value:
    return _draw_integers(b, low, high)


@lower(aten.randint_like.default, aten.randint_like.generator, needs=DRAWS)
def randint_like(b: Builder, self: Value, high: Number, dtype: object) -> Value:
    return _draw_integers(b, 0, high)


@lower(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype, needs=DRAWS)
def randint_like_low(b: Builder, self: Value, low: Number, high: Number, dtype: object) -> Value:
    return _draw_integers(b, low, high)


@lower(aten.random.default, needs=DRAWS)
def random(b: Builder, self: Value) -> Value:
    return _draw_integers(b, 0, _exclusive_limit(b.result.dtype))


@lower(aten.random.to, needs=DRAWS)
def random_to(b: Builder, self: Value, to: Number) -> Value:
    return _draw_integers(b, 0, to)


@lower(getattr(aten.random, "from"), needs=DRAWS)
def random_from(b: Builder, self: Value, from_: Number, to: Number) -> Value:
    return _draw_integers(b, from_, _exclusive_limit(b.result.dtype) if to is None else to)


def _exclusive_limit(dtype: torch.dtype) -> int:
    """What is beyond the largest integer that torch draws for a dtype."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return 2 ** _MANTISSA_BITS[dtype] + 1
    return min(torch.iinfo(dtype).max + 1, 1 << 63)


def _draw_integers(b: Builder, low: Number, high: Number) -> Value:
    """Of a float64, so that each of them is as likely."""
    numbers = _draw_uniform(b, torch.float64)
    places = b.cast(b.Floor(b.Mul(numbers, b.scalar(sub(high, low), torch.float64))), torch.int64)
    return places if low == 0 else b.Add(places, b.scalar(low, torch.int64))


@lower(aten.randperm.default, aten.randperm.generator, needs=DRAWS)
def randperm(b: Builder, n: Size, dtype: object) -> Value:
    """The order of random numbers."""
    keys = _draw_uniform(b, torch.float64)
    return b.TopK(keys, [n], axis=0, outputs=2)[1]


@lower(aten.rrelu.default, needs=DRAWS)
def rrelu(b: Builder, self: Value, lower: float, upper: float, training: bool) -> Value:
    """A slope for each element; the mean of them when not in training."""
    if not training:
        return leaky_relu(b, self, (lower + upper) / 2)
    slopes = b.Add(b.Mul(_draw_uniform(b, self.dtype), float(upper - lower)), float(lower))
    x = b.cast(self, slopes.dtype)
    return b.Where(b.LessOrEqual(x, 0.0), b.Mul(x, slopes), x)


# Choices


@lower(aten.bernoulli.default, needs=DRAWS)
def bernoulli(b: Builder, self: Value) -> Value:
    return _draw_bernoulli(b, self)


@lower(aten.bernoulli.p, needs=DRAWS)
def bernoulli_p(b: Builder, self: Value, p: float) -> Value:
    return _draw_bernoulli(b, p)


@lower(aten.bernoulli.Tensor, needs=DRAWS)
def bernoulli_tensor(b: Builder, self: Value, p: Value) -> Value:
    return _draw_bernoulli(b, p)


def _draw_bernoulli(b: Builder, p: Operand) -> Value:
    wide = torch.float64 if type(p) is Value and p.dtype is torch.float64 else torch.float32
    return b.Less(_draw_uniform(b, wide), *b.common(p, dtype=wide))


@lower(aten.multinomial.default, needs=DRAWS)
def multinomial(b: Builder, self: Value, num_samples: Size, replacement: bool) -> Value:
    """Without replacement those that come first if each is waited for; else by running totals."""
    weights = b.cast(self, torch.float64)
    if not replacement:
        sizes = self.sizes
        times = b.Neg(b.Log(b.Sub(1.0, _emit_random(b, "RandomUniform", sizes, torch.float64))))
        return b.TopK(b.Div(weights, times), [num_samples], axis=-1, outputs=2)[1]
    totals = b.CumSum(weights, b.scalar(self.rank - 1, torch.int64))
    everything = b.ReduceSum(weights, [-1])
    places = b.Mul(_draw_uniform(b, torch.float64), everything)
    below = b.LessOrEqual(b.unsqueeze(totals, self.rank - 1), b.unsqueeze(places, self.rank))
    return b.ReduceSum(b.cast(below, torch.int64), [-1], keepdims=0)
