"""Lowers reductions: sums, extremes, moments, norms.

Integers are summed as integers. What is reduced may be empty: a sum is then 0, a mean nan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.control import emit_scan, prepend_number
from graphport.onnx.lowerings.elementwise import HALVES
from graphport.symbolic import Expr, ge

Dims = int | Sequence[int] | None


# Dims


def axes_of(x: Value, dim: Dims) -> list[int]:
    """The dims of a value that are reduced, none of them negative: all if there are none given."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % x.rank for d in dims}) if x.rank else []


def apply_reduction(b: Builder, op: str, x: Value, axes: list[int], keepdim: bool) -> Value:
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


def is_nonempty(b: Builder, count: Any) -> bool:
    """Whether there is something to reduce."""
    return b.scope.decide(ge(count, 1)) is True if type(count) is Expr else count >= 1


def widen_input(b: Builder, x: Value, dtype: torch.dtype | None = None) -> Value:
    """In the dtype of the result; halves in float32, for what takes several steps."""
    dtype = dtype or x.dtype
    return b.cast(x, torch.float32 if dtype in HALVES else dtype)


# Sums


def sum_axes(b: Builder, x: Value, axes: list[int], keepdim: bool) -> Value:
    """A sum; of integers the last digits, where ONNX Runtime adds up in float64 and saturates."""
    if not x.rank:
        return x
    if x.dtype.is_floating_point or _is_exact_in_float64(x, axes):
        return apply_reduction(b, "ReduceSum", x, axes, keepdim)
    if x.dtype is not torch.int64:
        return b.cast(sum_axes(b, b.cast(x, torch.int64), axes, keepdim), x.dtype)
    return _reduce_exactly(b, x, axes, keepdim, _sum_by_cumsum)


_SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16)


def _is_exact_in_float64(x: Value, axes: list[int]) -> bool:
    """Whether the sums of an int64 are below 2^53, in which float64 is exact."""
    made = x.producer
    if made is None or made.op != "Cast" or made.inputs[0] is None or x.dtype is not torch.int64:
        return False
    source, count = made.inputs[0].dtype, count_of(x, axes)
    few = type(count) is int and count <= 1 << 22
    return source in _SMALL_INTEGERS or (source is torch.int32 and few)


def _reduce_exactly(b: Builder, x: Value, axes: list[int], keepdim: bool, along: Any) -> Value:
    """One dim after the other; all of them as one."""
    if len(axes) == x.rank and x.rank > 1:
        whole = _reduce_exactly(b, b.reshape(x, [count_of(x, axes)]), [0], False, along)
        return b.reshape(whole, [1] * x.rank) if keepdim else whole
    for axis in reversed(axes):
        x = along(b, x, axis)
    return x if keepdim else b.squeeze(x, *axes)


def _sum_by_cumsum(b: Builder, x: Value, axis: int) -> Value:
    if not is_nonempty(b, count_of(x, [axis])):
        x = prepend_number(b, x, axis, 0)
    return b.Gather(b.CumSum(x, b.scalar(axis, torch.int64)), [-1], axis=axis)


def _product_by_scan(b: Builder, x: Value, axis: int) -> Value:
    perm = [axis, *(d for d in range(x.rank) if d != axis)]
    sizes = x.shape or ()
    one = b.expand(b.scalar(1, like=x), [s for d, s in enumerate(sizes) if d != axis])
    rows = b.transpose(x, perm)
    if not is_nonempty(b, sizes[axis]):
        rows = prepend_number(b, rows, 0, 1)
    (products,) = emit_scan(b, [rows], [one], lambda total, x: [b.Mul(total, x)])
    last = b.shaped(b.Gather(products, b.scalar(-1, torch.int64), axis=0), one.shape or ())
    return b.unsqueeze(last, axis)


@lower(aten.sum.default)
def sum(b: Builder, self: Value, dtype: torch.dtype | None) -> Value:
    return sum_dims(b, self, None, False, dtype)


@lower(aten.sum.dim_IntList)
def sum_dims(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: object) -> Value:
    x = _cast_to_sum_dtype(b, self)
    return sum_axes(b, x, axes_of(x, dim), keepdim)


def _cast_to_sum_dtype(b: Builder, self: Value) -> Value:
    """In the dtype of the result; integers in int64, of which the result has the last digits."""
    x = b.cast(self, b.result.dtype)
    return x if x.dtype.is_floating_point else b.cast(x, torch.int64)


@lower(aten.nansum.default)
def nansum(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> Value:
    if self.dtype.is_floating_point:
        self = b.Where(b.IsNaN(self), b.scalar(0.0, like=self), self)
    return sum_dims(b, self, dim, keepdim, dtype)


@lower(aten.prod.default)
def prod(b: Builder, self: Value, dtype: object) -> Value:
    return _prod(b, self, None, False)


@lower(aten.prod.dim_int)
def prod_dim(b: Builder, self: Value, dim: int, keepdim: bool, dtype: object) -> Value:
    return _prod(b, self, dim, keepdim)


def _prod(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
    x = _cast_to_sum_dtype(b, self)
    if not x.rank:
        return x
    if x.dtype is torch.int64 and self.dtype is not torch.bool:  # in float64 too
        return _reduce_exactly(b, x, axes_of(x, dim), keepdim, _product_by_scan)
    return apply_reduction(b, "ReduceProd", x, axes_of(x, dim), keepdim)


@lower(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, self: Value, dim: Dims) -> Value:
    found = b.cast(b.cast(self, torch.bool), torch.int64)
    return sum_axes(b, found, axes_of(found, dim), False)


# Moments


def average_axes(b: Builder, x: Value, axes: list[int], keepdim: bool) -> Value:
    """ReduceMean, which ONNX Runtime takes to be 0 for nothing; torch says nan."""
    if not x.rank:
        return x
    if None in (x.shape or ()):  # sizes that broadcasting has left open
        ones = b.shaped(b.Expand(b.scalar(1, like=widen_input(b, x)), b.Shape(x)), x.shape or ())
        return b.Div(*(sum_axes(b, v, axes, keepdim) for v in (widen_input(b, x), ones)))
    count = count_of(x, axes)
    if is_nonempty(b, count):
        return apply_reduction(b, "ReduceMean", x, axes, keepdim)
    x = widen_input(b, x)  # halves hold neither the sum nor the count
    return b.Div(sum_axes(b, x, axes, keepdim), b.scalar(count, like=x))


@lower(aten.mean.default)
def mean(b: Builder, self: Value, dtype: torch.dtype | None) -> Value:
    return mean_dim(b, self, None, False, dtype)


@lower(aten.mean.dim)
def mean_dim(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: object) -> Value:
    x = b.cast(self, b.result.dtype)
    return average_axes(b, x, axes_of(x, dim), keepdim)


@lower(aten.nanmean.default)
def nanmean(b: Builder, self: Value, dim: Dims, keepdim: bool, dtype: object) -> Value:
    x = widen_input(b, self, b.result.dtype)
    known = b.Not(b.IsNaN(x))
    axes = axes_of(x, dim)
    sums = sum_axes(b, b.Where(known, x, b.scalar(0.0, like=x)), axes, keepdim)
    return b.Div(sums, sum_axes(b, b.cast(known, x.dtype), axes, keepdim))


def _variance(
    b: Builder, self: Value, dim: Dims, correction: int, keepdim: bool
) -> tuple[Value, Value]:
    """The variance, and the mean with the dims that are reduced."""
    correction = 1 if correction is None else correction
    x = widen_input(b, self)
    axes = axes_of(x, dim)
    middle = average_axes(b, x, axes, True)
    away = b.Sub(x, middle)
    if correction == 0:
        return average_axes(b, b.Mul(away, away), axes, keepdim), middle
    squares = apply_reduction(b, "ReduceSumSquare", away, axes, keepdim)
    freedom = count_of(x, axes) - correction
    if type(freedom) is Expr:
        return b.Div(squares, b.Max(b.scalar(freedom, like=x), 0.0)), middle
    return b.Div(squares, float(max(freedom, 0))), middle


def _lower_moment(root: bool) -> Any:
    def lowering(b: Builder, self: Value, dim: Dims, correction: int, keepdim: bool) -> Value:
        found, _ = _variance(b, self, dim, correction, keepdim)
        return b.Sqrt(found) if root else found

    return lowering


def _lower_moments(root: bool) -> Any:
    def lowering(
        b: Builder, self: Value, dim: Dims, correction: int, keepdim: bool
    ) -> tuple[Value, Value]:
        found, middle = _variance(b, self, dim, correction, keepdim)
        return b.Sqrt(found) if root else found, b.reshape(middle, b.result[1].sizes)

    return lowering


lower_table({"var.correction": False, "std.correction": True}, _lower_moment)
lower_table({"var_mean.correction": False, "std_mean.correction": True}, _lower_moments)


# any, all


def _lower_truth(op: str) -> Any:
    """ONNX Runtime reduces bools only where there are some: 0 and 255 are what it gives else."""

    def reduced(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
        x = b.cast(self, torch.bool)
        if not x.rank or dim == []:
            return x
        axes = axes_of(x, dim)
        if b.has(op, torch.bool) and is_nonempty(b, count_of(x, axes)):
            return apply_reduction(b, op, x, axes, keepdim)
        return b.cast(apply_reduction(b, op, b.cast(x, torch.uint8), axes, keepdim), torch.bool)

    return reduced


def _lower_truth_of_all(op: str) -> Any:
    return lambda b, self: _lower_truth(op)(b, self, None, False)


lower_table({"any _is_any_true": "ReduceMax", "all _is_all_true": "ReduceMin"}, _lower_truth_of_all)
lower_table({"any.dim,dims": "ReduceMax", "all.dim,dims": "ReduceMin"}, _lower_truth)


# Extremes


def reduce_extreme(b: Builder, op: str, x: Value, axes: list[int], keepdim: bool) -> Value:
    """The largest or smallest; nan if there is one, which ONNX Runtime passes over.

    Clip hands nan on and makes 0 of everything else, infinities too.
    """
    if not x.rank:
        return x
    found = apply_reduction(b, op, x, axes, keepdim)
    if not x.dtype.is_floating_point:
        return found
    return b.Add(found, apply_reduction(b, "ReduceSum", b.Clip(x, 0.0, 0.0), axes, keepdim))


def _lower_extreme_of_all(op: str) -> Any:
    return lambda b, self: reduce_extreme(b, op, self, axes_of(self, None), False)


def _lower_extreme_along(op: str) -> Any:
    return lambda b, self, dim, keepdim: reduce_extreme(b, op, self, axes_of(self, dim), keepdim)


lower_table({"max": "ReduceMax", "min": "ReduceMin"}, _lower_extreme_of_all)
lower_table({"amax": "ReduceMax", "amin": "ReduceMin"}, _lower_extreme_along)


@lower(aten.aminmax.default)
def aminmax(b: Builder, self: Value, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    axes = axes_of(self, dim)
    keep = keepdim
    return (
        reduce_extreme(b, "ReduceMin", self, axes, keep),
        reduce_extreme(b, "ReduceMax", self, axes, keep),
    )


def find_extreme(
    b: Builder, op: str, x: Value, dim: int, keepdim: bool, last_nan: bool = False
) -> Value:
    """Where the extreme is: the first of equal ones, the first (or last) nan if there is one."""
    axis, kept = dim % x.rank, int(keepdim)
    if x.dtype is torch.bool:
        x = b.cast(x, torch.uint8)
    found = getattr(b, op)(x, axis=axis, keepdims=kept)
    if not x.dtype.is_floating_point:
        return found
    nan = b.cast(b.IsNaN(x), torch.uint8)
    some = b.cast(b.ReduceMax(nan, [axis], keepdims=kept), torch.bool)
    last = int(last_nan) or None
    return b.Where(some, b.ArgMax(nan, axis=axis, keepdims=kept, select_last_index=last), found)


def _lower_arg_extreme(op: str) -> Any:
    def lowering(b: Builder, self: Value, dim: int | None, keepdim: bool) -> Value:
        if not self.rank:
            return b.expand(b.scalar(0, torch.int64), b.result.sizes)
        if dim is None:
            flat = b.reshape(self, [count_of(self, axes_of(self, None))])
            return b.reshape(find_extreme(b, op, flat, 0, keepdim), b.result.sizes)
        return find_extreme(b, op, self, dim, keepdim)

    return lowering


lower_table({"argmax": "ArgMax", "argmin": "ArgMin"}, _lower_arg_extreme)


def _lower_extreme_with_index(op: str) -> Any:
    def lowering(b: Builder, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        if not self.rank:
            return self, b.scalar(0, torch.int64)
        axis = dim % self.rank
        return _gather_extremes(b, self, find_extreme(b, op, self, axis, True), axis, keepdim)

    return lowering


def _gather_extremes(
    b: Builder, x: Value, place: Value, axis: int, keepdim: bool
) -> tuple[Value, Value]:
    """The elements at places that have the dim still, and the places."""
    values = b.GatherElements(x, place, axis=axis)
    if keepdim:
        return values, place
    return b.squeeze(values, axis), b.squeeze(place, axis)


lower_table({"max.dim": "ArgMax", "min.dim": "ArgMin"}, _lower_extreme_with_index)


# Norms


@lower(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    b: Builder, self: Value, ord: Number, dim: Dims, keepdim: bool, dtype: object
) -> Value:
    x = widen_input(b, self, b.result.dtype)
    return norm(b, x, float(ord), axes_of(x, dim), keepdim)  # type: ignore[arg-type]


@lower(aten.norm.ScalarOpt_dim)
def norm_dim(b: Builder, self: Value, p: Number | None, dim: Dims, keepdim: bool) -> Value:
    x = widen_input(b, self, b.result.dtype)
    order = 2.0 if p is None else float(p)  # type: ignore[arg-type]
    return norm(b, x, order, axes_of(x, dim), keepdim)


@lower(aten.norm.ScalarOpt_dim_dtype)
def norm_dtype(
    b: Builder, self: Value, p: Number | None, dim: Dims, keepdim: bool, dtype: object
) -> Value:
    return norm_dim(b, self, p, dim, keepdim)


@lower(aten.norm.Scalar)
def norm_scalar(b: Builder, self: Value, p: Number) -> Value:
    return norm_dim(b, self, p, None, False)


def norm(b: Builder, x: Value, order: float, axes: list[int], keepdim: bool) -> Value:
    if not x.rank and order != 0:
        return b.Abs(x)
    if order == math.inf:
        return reduce_extreme(b, "ReduceMax", b.Abs(x), axes, keepdim)
    if order == -math.inf:
        return reduce_extreme(b, "ReduceMin", b.Abs(x), axes, keepdim)
    if order == 0:
        return sum_axes(b, b.cast(b.cast(x, torch.bool), x.dtype), axes, keepdim)
    if order in (1, 2):
        return apply_reduction(b, f"ReduceL{order:.0f}", x, axes, keepdim)
    return b.Pow(sum_axes(b, b.Pow(b.Abs(x), order), axes, keepdim), 1 / order)


@lower(aten.dist.default)
def dist(b: Builder, self: Value, other: Value, p: Number) -> Value:
    x, y = b.common(self, other)
    away = widen_input(b, b.Sub(x, y))
    return norm(b, away, float(p), axes_of(away, None), False)  # type: ignore[arg-type]


@lower(aten.logsumexp.default)
def logsumexp(b: Builder, self: Value, dim: Dims, keepdim: bool) -> Value:
    x = widen_input(b, self, b.result.dtype)
    return x if not x.rank else log_sum_exp(b, x, axes_of(x, dim), keepdim)


def log_sum_exp(b: Builder, x: Value, axes: list[int], keepdim: bool) -> Value:
    """By the largest of them, which ONNX Runtime's own operator does not find behind -inf."""
    most = b.ReduceMax(x, axes)
    most = b.Where(b.IsInf(most), 0.0, most)
    out = b.Add(b.Log(b.ReduceSum(b.Exp(b.Sub(x, most)), axes)), most)
    return out if keepdim else b.squeeze(out, *axes)


# Order


def _median_index(b: Builder, x: Value, axis: int, count: Size, skip: bool) -> Value:
    """The place of the median of so many, the dim kept: of the lower one of two, nan behind."""
    size: Any = x.shape[axis]  # type: ignore[index]
    floats = x.dtype.is_floating_point
    key = b.Where(b.IsNaN(x), b.scalar(math.inf, like=x), x) if floats else x
    places = b.shaped(b.TopK(key, [size], axis=axis, largest=0, outputs=2)[1], x.shape or ())
    if not (floats and skip):
        return b.Gather(places, b.sizes.element((count - 1) // 2), axis=axis)
    valid = b.ReduceSum(b.cast(b.Not(b.IsNaN(x)), torch.int64), [axis], keepdims=1)
    return b.GatherElements(places, b.Div(b.Sub(valid, 1), 2), axis=axis)


def _lower_median(skip: bool) -> Any:
    def lowering(b: Builder, self: Value) -> Value:
        """Of nothing it is what torch makes of nan.

        One more is put behind the numbers, where it is in nobody's way.
        """
        floats = self.dtype.is_floating_point
        count = count_of(self, list(range(self.rank)))
        x = ordered = all_of = b.reshape(self, [count])
        if not is_nonempty(b, count):
            nothing = torch.median(torch.empty(0, dtype=x.dtype))
            last = nothing if floats else torch.tensor(torch.iinfo(x.dtype).max, dtype=x.dtype)
            x, ordered = (
                b.shaped(b.Concat(all_of, b.constant(end[None]), axis=0), [count + 1])
                for end in (nothing, last)
            )
        place = _median_index(b, ordered, 0, count, skip)
        found = b.reshape(b.Gather(x, place, axis=0), [])
        if skip or not floats:
            return found
        return b.Add(found, b.ReduceSum(b.Clip(all_of, 0.0, 0.0), keepdims=0))

    return lowering


def _lower_median_dim(skip: bool) -> Any:
    def lowering(b: Builder, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        if not self.rank:
            return self, b.scalar(0, torch.int64)
        axis = dim % self.rank
        place = _median_index(b, self, axis, count_of(self, [axis]), skip)
        if self.dtype.is_floating_point and not skip:
            none = b.cast(b.IsNaN(self), torch.uint8)
            some = b.cast(b.ReduceMax(none, [axis], keepdims=1), torch.bool)
            place = b.Where(some, b.ArgMax(none, axis=axis, keepdims=1), place)
        return _gather_extremes(b, self, place, axis, keepdim)

    return lowering


lower_table({"median": False, "nanmedian": True}, _lower_median)
lower_table({"median.dim": False, "nanmedian.dim": True}, _lower_median_dim)


@lower(aten.mode.default)
def mode(b: Builder, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """The last of the smallest of the most frequent: every element is compared with every other."""
    if not self.rank:
        return self, b.scalar(0, torch.int64)
    axis = dim % self.rank
    x = b.cast(self, torch.uint8) if self.dtype is torch.bool else self
    alike = b.Equal(b.unsqueeze(x, axis + 1), b.unsqueeze(x, axis))
    counts = b.ReduceSum(b.cast(alike, torch.int64), [axis + 1], keepdims=0)
    frequent = b.Equal(counts, b.ReduceMax(counts, [axis], keepdims=1))
    most = math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).max
    least = b.ReduceMin(b.Where(frequent, x, b.scalar(most, like=x)), [axis], keepdims=1)
    chosen = b.cast(b.Equal(x, least), torch.uint8)
    place = b.ArgMax(chosen, axis=axis, keepdims=1, select_last_index=1)
    return _gather_extremes(b, self, place, axis, keepdim)
