"""Shape rules of reductions, and of cumulative operators, sorting and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.promote import Promotion
from graphport.ops.registry import Rule, overloads, register_rule, shape_rule
from graphport.ops.sizes import establish, establish_equal, establish_sizes, wrap_dim, wrap_dims
from graphport.symbolic import le
from graphport.tensors.abstract import Abstract, Size, Sizes, preserve_strides

Dims = int | Sequence[int] | None


def reduce_dims(self: Abstract, dims: Dims, keepdim: bool, dtype: torch.dtype) -> Abstract:
    """`self` without the dims, or with 1 in their place; always contiguous."""
    gone = set(wrap_dims(dims, self.rank))
    if keepdim:
        sizes: Sizes = tuple(1 if d in gone else s for d, s in enumerate(self.sizes))
    else:
        sizes = tuple(s for d, s in enumerate(self.sizes) if d not in gone)
    return Abstract(sizes, dtype, self.device)


def reduces(promotion: Promotion) -> Rule:
    """A rule for (self, dim, keepdim, *, dtype) with any of the last three absent."""

    def rule(
        self: Abstract,
        dim: Dims = None,
        keepdim: bool = False,
        *_: object,
        dtype: torch.dtype | None = None,
        **__: object,
    ) -> Abstract:
        return reduce_dims(self, dim, keepdim, dtype or promotion(self.dtype))

    return rule


register_rule(overloads("sum.default,dim_IntList prod.dim_int nansum"), reduces(promote.to_sum))
register_rule(overloads("nanmean amax amin max min median nanmedian"), reduces(promote.keep_dtype))
register_rule([aten.logsumexp.default], reduces(promote.to_float))
register_rule(
    overloads("any.default,dim,dims all.default,dim,dims"),
    reduces(lambda dtype: torch.uint8 if dtype is torch.uint8 else torch.bool),
)


def _refuse_integer(dtype: torch.dtype) -> torch.dtype:
    if promote.dtype_category(dtype) < 2:
        raise ShapeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {dtype}"
        )
    return dtype


register_rule([aten.mean.default, aten.mean.dim], reduces(_refuse_integer))


@shape_rule(aten.prod.default)
def prod(self: Abstract, *, dtype: torch.dtype | None) -> Abstract:
    return self.like((), dtype or promote.to_sum(self.dtype))


@shape_rule(aten.argmax.default, aten.argmin.default)
def argmax(self: Abstract, dim: int | None, keepdim: bool) -> Abstract:
    return reduce_dims(self, dim, keepdim, torch.int64)


@shape_rule(aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim, aten.mode.default)
def extreme_along(self: Abstract, dim: int, keepdim: bool) -> tuple[Abstract, Abstract]:
    values = reduce_dims(self, dim, keepdim, self.dtype)
    return values, values.like(dtype=torch.int64)


@shape_rule(aten.kthvalue.default)
def kthvalue(self: Abstract, k: Size, dim: int, keepdim: bool) -> tuple[Abstract, Abstract]:
    _check_count(self, k, dim, "kthvalue")
    return extreme_along(self, dim, keepdim)


def _check_count(self: Abstract, k: Size, dim: int, what: str) -> None:
    size = self.sizes[wrap_dim(dim, self.rank)] if self.rank else 1
    if k is not size:
        if not establish(le(k, size)):
            raise ShapeError(
                f"{what}: selected number k = {k} is out of range for dimension {dim} of {self}"
            )


@shape_rule(aten.var.correction, aten.std.correction)
def var(self: Abstract, dim: Dims, *, correction: object, keepdim: bool) -> Abstract:
    if promote.dtype_category(self.dtype) < 2:
        raise ShapeError(f"std and var only support floating point and complex dtypes, got {self}")
    return reduce_dims(self, dim, keepdim, promote.to_real(self.dtype))


@shape_rule(aten.var_mean.correction, aten.std_mean.correction)
def var_mean(
    self: Abstract, dim: Dims, *, correction: object, keepdim: bool
) -> tuple[Abstract, Abstract]:
    return var(self, dim, correction=correction, keepdim=keepdim), reduce_dims(
        self, dim, keepdim, self.dtype
    )


@shape_rule(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    self: Abstract, ord: object, dim: Dims, keepdim: bool, *, dtype: torch.dtype | None
) -> Abstract:
    return reduce_dims(self, dim, keepdim, promote.to_real(dtype or promote.to_float(self.dtype)))


@shape_rule(aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def norm(self: Abstract, p: object, dim: Dims = None, keepdim: bool = False) -> Abstract:
    return reduce_dims(self, dim, keepdim, promote.to_real(self.dtype))


@shape_rule(aten.count_nonzero.dim_IntList)
def count_nonzero(self: Abstract, dim: Dims) -> Abstract:
    return reduce_dims(self, dim, False, torch.int64)


@shape_rule(aten.cumsum.default, aten.cumprod.default)
def cumulative(self: Abstract, dim: int, *, dtype: torch.dtype | None) -> Abstract:
    wrap_dim(dim, self.rank)
    return self.like(dtype=dtype or promote.to_sum(self.dtype))


@shape_rule(aten.logcumsumexp.default)
def logcumsumexp(self: Abstract, dim: int) -> Abstract:
    return self.like()


@shape_rule(aten.cummax.default, aten.cummin.default)
def cumulative_extreme(self: Abstract, dim: int) -> tuple[Abstract, Abstract]:
    wrap_dim(dim, self.rank)
    return self.like(), self.like(dtype=torch.int64)


@shape_rule(aten.softmax.int, aten.log_softmax.int)
def softmax(self: Abstract, dim: int, dtype: torch.dtype | None) -> Abstract:
    wrap_dim(dim, self.rank)
    return self.like(dtype=dtype or self.dtype)


@shape_rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(self: Abstract, dim: int, half_to_float: bool) -> Abstract:
    wrap_dim(dim, self.rank)
    dtype = torch.float32 if half_to_float else self.dtype
    return self.like(dtype=dtype)


@shape_rule(aten.sort.default)
def sort(self: Abstract, dim: int, descending: bool) -> tuple[Abstract, Abstract]:
    wrap_dim(dim, self.rank)
    layout = preserve_strides(self)
    return (
        Abstract(self.sizes, self.dtype, self.device, layout),
        Abstract(self.sizes, torch.int64, self.device, layout),
    )


@shape_rule(aten.sort.stable)
def sort_stable(
    self: Abstract, *, stable: bool | None, dim: int, descending: bool
) -> tuple[Abstract, Abstract]:
    return sort(self, dim, descending)


@shape_rule(aten.argsort.default)
def argsort(self: Abstract, dim: int, descending: bool) -> Abstract:
    return sort(self, dim, descending)[1]


@shape_rule(aten.topk.default)
def topk(
    self: Abstract, k: Size, dim: int, largest: bool, sorted: bool
) -> tuple[Abstract, Abstract]:
    _check_count(self, k, dim, "topk")
    dim = wrap_dim(dim, self.rank)
    sizes = (*self.sizes[:dim], k, *self.sizes[dim + 1 :]) if self.rank else ()
    return self.like(sizes), self.like(sizes, torch.int64)


@shape_rule(aten.histc.default)
def histc(self: Abstract, bins: int, min: object, max: object) -> Abstract:
    return self.like((bins,))


def _check_weight(weight: Abstract | None, elements: Sizes) -> None:
    if weight is not None:
        if not establish_sizes(weight.sizes, elements):
            raise ShapeError(
                f"histogram: a weight of {weight} for elements of size {list(elements)}"
            )


@shape_rule(aten.histogram.bin_ct)
def histogram(
    self: Abstract, bins: int, *, weight: Abstract | None, **_: object
) -> tuple[Abstract, Abstract]:
    _check_weight(weight, self.sizes)
    return self.like((bins,)), self.like((bins + 1,))


@shape_rule(aten.histogram.bins_tensor)
def histogram_edges(
    self: Abstract, bins: Abstract, *, weight: Abstract | None, **_: object
) -> tuple[Abstract, Abstract]:
    _check_weight(weight, self.sizes)
    return self.like((bins.sizes[0] - 1,)), self.like(bins.sizes)


def _check_points(self: Abstract, bins: Sequence[object], weight: Abstract | None) -> None:
    """A point for each row, a coordinate for each way to count."""
    if not establish_equal(self.sizes[-1], len(bins)):
        raise ShapeError(f"histogramdd: {len(bins)} bins for points of {self}")
    _check_weight(weight, self.sizes[:-1])


@shape_rule(aten._histogramdd_bin_edges.default)
def _histogramdd_bin_edges(
    self: Abstract, bins: Sequence[int], *, weight: Abstract | None, **_: object
) -> list[Abstract]:
    _check_points(self, bins, weight)
    return [self.like((n + 1,)) for n in bins]


@shape_rule(aten._histogramdd_from_bin_cts.default)
def _histogramdd_from_bin_cts(
    self: Abstract, bins: Sequence[int], *, weight: Abstract | None, **_: object
) -> Abstract:
    _check_points(self, bins, weight)
    return self.like(tuple(bins))


@shape_rule(aten._histogramdd_from_bin_tensors.default)
def _histogramdd_from_bin_tensors(
    self: Abstract, bins: Sequence[Abstract], *, weight: Abstract | None, **_: object
) -> Abstract:
    _check_points(self, bins, weight)
    return self.like(tuple(edges.sizes[0] - 1 for edges in bins))
