"""Random numbers: of the same distributions as torch's, from ONNX Runtime's own generator.

All of them are made from uniform and normal numbers in float32 or float64. ONNX Runtime has kernels
for those up to opset 21 only, and programs that draw are written at that by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder, Operand
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.activation import leaky_relu
from graphport.onnx.lowerings.factory import filled
from graphport.onnx.registry import lower
from graphport.symbolic import sub

aten = torch.ops.aten

NEWEST = 21

# Bits of a uniform number of torch: as many as the mantissa has.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def _drawn(b: Builder, op: str, sizes: Sequence[Any], dtype: torch.dtype) -> Value:
    """RandomUniform or RandomNormal, of sizes that may be symbolic."""
    if not b.has(op, dtype):
        raise UnsupportedError(
            f"ONNX Runtime has no kernel of {op} at opset {b.opset}", fix=f"opset={NEWEST}"
        )
    if all(type(s) is int for s in sizes):
        return b.shaped(getattr(b, op)(shape=list(sizes), dtype=dtype), sizes)
    like = filled(b, sizes, 0, dtype)
    return b.shaped(getattr(b, f"{op}Like")(like, dtype=dtype), sizes)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _uniform(b: Builder, dtype: torch.dtype) -> Value:
    """From 0 up to but not 1, in the sizes of the result and in float32 or float64."""
    return _drawn(b, "RandomUniform", b.result.sizes, _wide(dtype))


def _normal(b: Builder) -> Value:
    return _drawn(b, "RandomNormal", b.result.sizes, _wide(b.result.dtype))


def _unit(b: Builder) -> Value:
    """Uniform numbers in the dtype of the result; rounding must not make a 1 of them."""
    dtype = b.result.dtype
    numbers = _uniform(b, dtype)
    if numbers.dtype is dtype:
        return numbers
    scale = float(2 ** _DIGITS[dtype])
    return b.cast(b.Div(b.Floor(b.Mul(numbers, scale)), scale), dtype)


@lower(aten.rand.default, aten.rand.generator, newest=NEWEST)
def rand(b: Builder, size: Any, dtype: Any) -> Value:
    return _unit(b)


@lower(aten.rand_like.default, aten.rand_like.generator, newest=NEWEST)
def rand_like(b: Builder, self: Value, dtype: Any) -> Value:
    return _unit(b)


@lower(aten.uniform.default, newest=NEWEST)
def uniform(b: Builder, self: Value, from_: float, to: float) -> Value:
    return b.Add(b.Mul(_unit(b), to - from_), from_)


# Normal and what is made of it


@lower(aten.randn.default, aten.randn.generator, newest=NEWEST)
def randn(b: Builder, size: Any, dtype: Any) -> Value:
    return _normal(b)


@lower(aten.randn_like.default, aten.randn_like.generator, newest=NEWEST)
def randn_like(b: Builder, self: Value, dtype: Any) -> Value:
    return _normal(b)


@lower(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor, newest=NEWEST)
def normal(b: Builder, mean: Operand, std: Operand) -> Value:
    return _scaled(b, mean, std)


@lower(aten.normal.float_float, newest=NEWEST)
def normal_float(b: Builder, mean: float, std: float, size: Any, dtype: Any) -> Value:
    return _scaled(b, mean, std)


@lower(aten.normal_functional.default, newest=NEWEST)
def normal_functional(b: Builder, self: Value, mean: float, std: float) -> Value:
    return _scaled(b, mean, std)


@lower(aten.log_normal.default, newest=NEWEST)
def log_normal(b: Builder, self: Value, mean: float, std: float) -> Value:
    return b.Exp(_scaled(b, mean, std))


def _scaled(b: Builder, mean: Operand, std: Operand) -> Value:
    numbers = _normal(b)
    mean, std = b.common(mean, std, dtype=numbers.dtype)
    return b.Add(b.Mul(numbers, std), mean)


# By the inverse of their distribution


def _exponential(b: Builder, dtype: torch.dtype) -> Value:
    return b.Neg(b.Log(b.Sub(1.0, _uniform(b, dtype))))


@lower(aten.exponential.default, newest=NEWEST)
def exponential(b: Builder, self: Value, lambd: float) -> Value:
    numbers = _exponential(b, b.result.dtype)
    return numbers if lambd == 1 else b.Div(numbers, lambd)


@lower(aten.cauchy.default, newest=NEWEST)
def cauchy(b: Builder, self: Value, median: float, sigma: float) -> Value:
    angle = b.Mul(b.Sub(_uniform(b, b.result.dtype), 0.5), math.pi)
    return b.Add(b.Mul(b.Div(b.Sin(angle), b.Cos(angle)), sigma), median)


@lower(aten.geometric.default, newest=NEWEST)
def geometric(b: Builder, self: Value, p: float) -> Value:
    if p == 1:
        return filled(b, b.result.sizes, 1, b.result.dtype)
    trials = b.Div(_exponential(b, b.result.dtype), -math.log1p(-p))
    return b.Max(b.Ceil(trials), 1.0)


# Integers


@lower(aten.randint.default, aten.randint.generator, newest=NEWEST)
def randint(b: Builder, high: Any, size: Any, dtype: Any) -> Value:
    return _integers(b, 0, high)


@lower(aten.randint.low, aten.randint.low_generator, newest=NEWEST)
def randint_low(b: Builder, low: Any, high: Any, size: Any, dtype: Any) -> Value:
    return _integers(b, low, high)


@lower(aten.randint_like.default, aten.randint_like.generator, newest=NEWEST)
def randint_like(b: Builder, self: Value, high: Any, dtype: Any) -> Value:
    return _integers(b, 0, high)


@lower(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype, newest=NEWEST)
def randint_like_low(b: Builder, self: Value, low: Any, high: Any, dtype: Any) -> Value:
    return _integers(b, low, high)


@lower(aten.random.default, newest=NEWEST)
def random(b: Builder, self: Value) -> Value:
    return _integers(b, 0, _above(b.result.dtype))


@lower(aten.random.to, newest=NEWEST)
def random_to(b: Builder, self: Value, to: Any) -> Value:
    return _integers(b, 0, to)


@lower(getattr(aten.random, "from"), newest=NEWEST)
def random_from(b: Builder, self: Value, from_: Any, to: Any) -> Value:
    return _integers(b, from_, _above(b.result.dtype) if to is None else to)


def _above(dtype: torch.dtype) -> int:
    """What is beyond the largest integer that torch draws for a dtype."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return 2 ** _DIGITS[dtype] + 1
    return min(torch.iinfo(dtype).max + 1, 1 << 63)


def _integers(b: Builder, low: Any, high: Any) -> Value:
    """Of a float64, so that each of them is as likely."""
    numbers = _uniform(b, torch.float64)
    places = b.cast(b.Floor(b.Mul(numbers, b.scalar(sub(high, low), torch.float64))), torch.int64)
    return places if low == 0 else b.Add(places, b.scalar(low, torch.int64))


@lower(aten.randperm.default, aten.randperm.generator, newest=NEWEST)
def randperm(b: Builder, n: Any, dtype: Any) -> Value:
    """The order of random numbers."""
    keys = _uniform(b, torch.float64)
    return b.TopK(keys, [n], axis=0, outputs=2)[1]


@lower(aten.rrelu.default, newest=NEWEST)
def rrelu(b: Builder, self: Value, lower: Any, upper: Any, training: bool) -> Value:
    """A slope for each element; the mean of them when not in training."""
    if not training:
        return leaky_relu(b, self, (lower + upper) / 2)
    slopes = b.Add(b.Mul(_uniform(b, self.dtype), float(upper - lower)), float(lower))
    x = b.cast(self, slopes.dtype)
    return b.Where(b.LessOrEqual(x, 0.0), b.Mul(x, slopes), x)


# Choices


@lower(aten.bernoulli.default, newest=NEWEST)
def bernoulli(b: Builder, self: Value) -> Value:
    return _chosen(b, self)


@lower(aten.bernoulli.p, newest=NEWEST)
def bernoulli_p(b: Builder, self: Value, p: float) -> Value:
    return _chosen(b, p)


@lower(aten.bernoulli.Tensor, newest=NEWEST)
def bernoulli_tensor(b: Builder, self: Value, p: Value) -> Value:
    return _chosen(b, p)


def _chosen(b: Builder, p: Operand) -> Value:
    wide = torch.float64 if type(p) is Value and p.dtype is torch.float64 else torch.float32
    return b.Less(_uniform(b, wide), *b.common(p, dtype=wide))


@lower(aten.multinomial.default, newest=NEWEST)
def multinomial(b: Builder, self: Value, num_samples: Any, replacement: bool) -> Value:
    """Without replacement those that come first if each is waited for; else by running totals."""
    weights = b.cast(self, torch.float64)
    if not replacement:
        sizes = self.sizes
        times = b.Neg(b.Log(b.Sub(1.0, _drawn(b, "RandomUniform", sizes, torch.float64))))
        return b.TopK(b.Div(weights, times), [num_samples], axis=-1, outputs=2)[1]
    totals = b.CumSum(weights, b.scalar(self.rank - 1, torch.int64))
    everything = b.ReduceSum(weights, [-1])
    places = b.Mul(_uniform(b, torch.float64), everything)
    below = b.LessOrEqual(b.unsqueeze(totals, self.rank - 1), b.unsqueeze(places, self.rank))
    return b.ReduceSum(b.cast(below, torch.int64), [-1], keepdims=0)
