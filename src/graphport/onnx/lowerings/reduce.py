"""Reductions: sums, extremes, moments, norms.

Integers are summed as integers. What is reduced may be empty: a sum is then 0, a mean nan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder, Number
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.elementwise import HALVES
from graphport.onnx.registry import lower, table
from graphport.symbolic import Expr, ge

aten = torch.ops.aten
Dims = int | Sequence[int] | None


# Dims


def axes_of(x: Value, dim: Dims) -> list[int]:
    """The dims of a value that are reduced, none of them negative: all if there are none given."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % x.rank for d in dims}) if x.rank else []


def apply(b: Builder, op: str, x: Value, axes: list[int], keepdim: bool) -> Value:
    """A reducing operator of ONNX; of a number without dims too."""
    if not x.rank:
        return getattr(b, op)(x, keepdims=0)
    whole = len(axes) == x.rank and not keepdim
    return getattr(b, op)(x, None if whole else axes, keepdims=int(keepdim))


def count_of(x: Value, axes: list[int]) -> Any:
    """How many elements become one, as a number."""
    total: Any = 1
    for a in axes:
        total = total * x.shape[a]  # type: ignore[index]
    return total


def is_certain(b: Builder, count: Any) -> bool:
    """Whether there is something to reduce."""
    return b.scope.decide(ge(count, 1)) is True if type(count) is Expr else count >= 1


def wide(b: Builder, x: Value, dtype: torch.dtype | None = None) -> Value:
    """In the dtype of the result; halves in float32, for what takes several steps."""
    dtype = dtype or x.dtype
    return b.cast(x, torch.float32 if dtype in HALVES else dtype)


# Sums


def total(b: Builder, x: Value, axes: list[int], keepdim: bool) -> Value:
    if not x.rank:
        return x
    return apply(b, "ReduceSum", x, axes, keepdim)


@lower(aten.sum.default)
def sum(b: Builder, self: Value, dtype: Any) -> Value:
    return sum_dims(b, self, None, False, dtype)


@lower(aten.sum.dim_IntList)
def sum_dims(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    x = b.cast(self, b.result.dtype)
    if x.dtype is torch.bool:  # with dtype=torch.bool
        x = b.cast(x, torch.int64)
    return total(b, x, axes_of(x, dim), keepdim)


@lower(aten.nansum.default)
def nansum(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    if self.dtype.is_floating_point:
        self = b.Where(b.IsNaN(self), b.scalar(0.0, like=self), self)
    return sum_dims(b, self, dim, keepdim, dtype)


@lower(aten.prod.default)
def prod(b: Builder, self: Value, dtype: Any) -> Value:
    return _prod(b, self, None, False)


@lower(aten.prod.dim_int)
def prod_dim(b: Builder, self: Value, dim: int, keepdim: bool, dtype: Any) -> Value:
    return _prod(b, self, dim, keepdim)


def _prod(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
    x = b.cast(self, b.result.dtype)
    x = b.cast(x, torch.int64) if x.dtype is torch.bool else x
    return x if not x.rank else apply(b, "ReduceProd", x, axes_of(x, dim), keepdim)


@lower(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, self: Value, dim: Dims) -> Value:
    found = b.cast(b.cast(self, torch.bool), torch.int64)
    return total(b, found, axes_of(found, dim), False)


# Moments


def average(b: Builder, x: Value, axes: list[int], keepdim: bool) -> Value:
    """ReduceMean, which ONNX Runtime takes to be 0 for nothing; torch says nan."""
    count = count_of(x, axes)
    if not x.rank:
        return x
    if is_certain(b, count):
        return apply(b, "ReduceMean", x, axes, keepdim)
    return b.Div(total(b, x, axes, keepdim), b.scalar(count, like=x))


@lower(aten.mean.default)
def mean(b: Builder, self: Value, dtype: Any) -> Value:
    return mean_dim(b, self, None, False, dtype)


@lower(aten.mean.dim)
def mean_dim(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    x = b.cast(self, b.result.dtype)
    return average(b, x, axes_of(x, dim), keepdim)


@lower(aten.nanmean.default)
def nanmean(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    x = wide(b, self, b.result.dtype)
    known = b.Not(b.IsNaN(x))
    axes = axes_of(x, dim)
    sums = total(b, b.Where(known, x, b.scalar(0.0, like=x)), axes, keepdim)
    return b.Div(sums, total(b, b.cast(known, x.dtype), axes, keepdim))


def _variance(
    b: Builder, self: Value, dim: Dims, correction: Any, keepdim: bool
) -> tuple[Value, Value]:
    """The variance, and the mean with the dims that are reduced."""
    correction = 1 if correction is None else correction
    x = wide(b, self)
    axes = axes_of(x, dim)
    middle = average(b, x, axes, True)
    away = b.Sub(x, middle)
    if correction == 0:
        return average(b, b.Mul(away, away), axes, keepdim), middle
    squares = apply(b, "ReduceSumSquare", away, axes, keepdim)
    freedom = count_of(x, axes) - correction
    if type(freedom) is Expr:
        return b.Div(squares, b.Max(b.scalar(freedom, like=x), 0.0)), middle
    return b.Div(squares, float(max(freedom, 0))), middle


def _moment(root: bool) -> Any:
    def lowering(b: Builder, self: Value, dim: Dims, correction: Any, keepdim: bool) -> Value:
        found, _ = _variance(b, self, dim, correction, keepdim)
        return b.Sqrt(found) if root else found

    return lowering


def _moments(root: bool) -> Any:
    def lowering(
        b: Builder, self: Value, dim: Dims, correction: Any, keepdim: bool
    ) -> tuple[Value, Value]:
        found, middle = _variance(b, self, dim, correction, keepdim)
        return b.Sqrt(found) if root else found, b.reshape(middle, b.result[1].sizes)

    return lowering


table({aten.var.correction: False, aten.std.correction: True}, _moment)
table({aten.var_mean.correction: False, aten.std_mean.correction: True}, _moments)


# Truth


def _truth(op: str) -> Any:
    """ONNX Runtime reduces bools only where there are some: 0 and 255 are what it gives else."""

    def reduced(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
        x = b.cast(self, torch.bool)
        if not x.rank or dim == []:
            return x
        axes = axes_of(x, dim)
        if b.has(op, torch.bool) and is_certain(b, count_of(x, axes)):
            return apply(b, op, x, axes, keepdim)
        return b.cast(apply(b, op, b.cast(x, torch.uint8), axes, keepdim), torch.bool)

    return reduced


def _truth_of_all(op: str) -> Any:
    return lambda b, self: _truth(op)(b, self, None, False)


table({aten.any.default: "ReduceMax", aten.all.default: "ReduceMin"}, _truth_of_all)
table(
    {
        aten.any.dim: "ReduceMax", aten.all.dim: "ReduceMin",
        aten.any.dims: "ReduceMax", aten.all.dims: "ReduceMin",
    },
    _truth,
)  # fmt: skip


# Extremes


def extreme(b: Builder, op: str, x: Value, axes: list[int], keepdim: bool) -> Value:
    """The largest or smallest; nan if there is one, which ONNX Runtime passes over.

    Clip hands nan on and makes 0 of everything else, infinities too.
    """
    if not x.rank:
        return x
    found = apply(b, op, x, axes, keepdim)
    if not x.dtype.is_floating_point:
        return found
    return b.Add(found, apply(b, "ReduceSum", b.Clip(x, 0.0, 0.0), axes, keepdim))


def _of_all(op: str) -> Any:
    return lambda b, self: extreme(b, op, self, axes_of(self, None), False)


def _along(op: str) -> Any:
    return lambda b, self, dim, keepdim: extreme(b, op, self, axes_of(self, dim), keepdim)


table({aten.max.default: "ReduceMax", aten.min.default: "ReduceMin"}, _of_all)
table({aten.amax.default: "ReduceMax", aten.amin.default: "ReduceMin"}, _along)


@lower(aten.aminmax.default)
def aminmax(b: Builder, self: Value, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    axes = axes_of(self, dim)
    keep = keepdim
    return (extreme(b, "ReduceMin", self, axes, keep), extreme(b, "ReduceMax", self, axes, keep))


def _place(b: Builder, op: str, x: Value, dim: int, keepdim: bool) -> Value:
    """Where the extreme is: the first of equal ones, the first nan if there is one.

    nan is told from infinity only by coming first: where both are, the first of the two is taken.
    """
    if x.dtype is torch.bool:
        x = b.cast(x, torch.uint8)
    elif x.dtype.is_floating_point:
        most = math.inf if op == "ArgMax" else -math.inf
        x = b.Where(b.IsNaN(x), b.scalar(most, like=x), x)
    return getattr(b, op)(x, axis=dim % x.rank, keepdims=int(keepdim))


def _arg(op: str) -> Any:
    def lowering(b: Builder, self: Value, dim: int | None, keepdim: bool) -> Value:
        if not self.rank:
            return b.expand(b.scalar(0, torch.int64), b.result.sizes)
        if dim is None:
            return b.reshape(_place(b, op, b.reshape(self, [-1]), 0, keepdim), b.result.sizes)
        return _place(b, op, self, dim, keepdim)

    return lowering


table({aten.argmax.default: "ArgMax", aten.argmin.default: "ArgMin"}, _arg)


def _with_place(op: str) -> Any:
    def lowering(b: Builder, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        if not self.rank:
            return self, b.scalar(0, torch.int64)
        axis = dim % self.rank
        place = _place(b, op, self, axis, True)
        values = b.GatherElements(self, place, axis=axis)
        if keepdim:
            return values, place
        return b.squeeze(values, axis), b.squeeze(place, axis)

    return lowering


table({aten.max.dim: "ArgMax", aten.min.dim: "ArgMin"}, _with_place)


# Norms


@lower(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    b: Builder, self: Value, ord: Number, dim: Dims, keepdim: bool, dtype: Any
) -> Value:
    x = wide(b, self, b.result.dtype)
    return norm(b, x, float(ord), axes_of(x, dim), keepdim)  # type: ignore[arg-type]


@lower(aten.norm.ScalarOpt_dim)
def norm_dim(b: Builder, self: Value, p: Number | None, dim: Dims, keepdim: bool) -> Value:
    x = wide(b, self, b.result.dtype)
    order = 2.0 if p is None else float(p)  # type: ignore[arg-type]
    return norm(b, x, order, axes_of(x, dim), keepdim)


@lower(aten.norm.ScalarOpt_dim_dtype)
def norm_dtype(
    b: Builder, self: Value, p: Number | None, dim: Dims, keepdim: bool, dtype: Any
) -> Value:
    return norm_dim(b, self, p, dim, keepdim)


@lower(aten.norm.Scalar)
def norm_scalar(b: Builder, self: Value, p: Number) -> Value:
    return norm_dim(b, self, p, None, False)


def norm(b: Builder, x: Value, order: float, axes: list[int], keepdim: bool) -> Value:
    if not x.rank and order != 0:
        return b.Abs(x)
    if order == math.inf:
        return extreme(b, "ReduceMax", b.Abs(x), axes, keepdim)
    if order == -math.inf:
        return extreme(b, "ReduceMin", b.Abs(x), axes, keepdim)
    if order == 0:
        return total(b, b.cast(b.cast(x, torch.bool), x.dtype), axes, keepdim)
    if order in (1, 2):
        return apply(b, f"ReduceL{order:.0f}", x, axes, keepdim)
    return b.Pow(total(b, b.Pow(b.Abs(x), order), axes, keepdim), 1 / order)


@lower(aten.dist.default)
def dist(b: Builder, self: Value, other: Value, p: Number) -> Value:
    x, y = b.common(self, other)
    away = wide(b, b.Sub(x, y))
    return norm(b, away, float(p), axes_of(away, None), False)  # type: ignore[arg-type]


@lower(aten.logsumexp.default)
def logsumexp(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
    x = b.cast(self, b.result.dtype)
    return x if not x.rank else apply(b, "ReduceLogSumExp", x, axes_of(x, dim), keepdim)
