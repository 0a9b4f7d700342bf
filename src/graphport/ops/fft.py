"""Shape rules of the three Fourier transforms to which torch reduces all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.compat.operators import aten
from graphport.errors import ShapeError
from graphport.ops import promote
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import establish, require_nonempty, wrap_dim
from graphport.symbolic import ge
from graphport.tensors.abstract import (
    Abstract,
    Size,
    Sizes,
    get_example_size,
    permute_strides,
    preserve_strides,
)


def _sort_by_stride(self: Abstract, dims: Sequence[int]) -> list[int]:
    """Dims from the slowest to the fastest, at the example sizes."""
    strides = self.strides
    return sorted(dims, key=lambda d: -get_example_size(strides[d]))


def _lay_out_transformed(
    self: Abstract, sizes: Sizes, dims: list[int], dtype: torch.dtype
) -> Abstract:
    """The kernel gathers the transformed dims at the end, in their order, and leaves them there."""
    require_nonempty("fft", self, [size for d in dims for size in (self.sizes[d], sizes[d])])
    batch = _sort_by_stride(self, [d for d in range(self.rank) if d not in dims])
    order = [*batch, *dims]
    strides = None if order == list(range(self.rank)) else permute_strides(sizes, order)
    return Abstract(sizes, dtype, self.device, strides)


@shape_rule(aten._fft_c2c.default)
def _fft_c2c(self: Abstract, dim: Sequence[int], normalization: int, forward: bool) -> Abstract:
    dims = [wrap_dim(d, self.rank) for d in dim]
    if not dims:
        return Abstract(self.sizes, self.dtype, self.device, preserve_strides(self))
    return _lay_out_transformed(self, self.sizes, _sort_by_stride(self, dims), self.dtype)


@shape_rule(aten._fft_r2c.default)
def _fft_r2c(self: Abstract, dim: Sequence[int], normalization: int, onesided: bool) -> Abstract:
    if self.dtype not in promote.COMPLEX_OF:
        raise ShapeError(f"Only supports floating-point dtypes, but found: {self.dtype}")
    *others, last = [wrap_dim(d, self.rank) for d in dim]
    sizes = self.sizes
    if onesided:
        sizes = (*sizes[:last], sizes[last] // 2 + 1, *sizes[last + 1 :])
    dims = [*_sort_by_stride(self, others), last]
    return _lay_out_transformed(self, sizes, dims, promote.COMPLEX_OF[self.dtype])


@shape_rule(aten._fft_c2r.default)
def _fft_c2r(
    self: Abstract, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> Abstract:
    """All dims but the last are transformed first, as complex numbers."""
    *others, last = [wrap_dim(d, self.rank) for d in dim]
    half = last_dim_size // 2 + 1
    # The kernel takes as many from memory, whether they are there or not.
    if not establish(ge(self.sizes[last], half)):
        raise ShapeError(
            f"_fft_c2r: a result of {last_dim_size} needs the first {half} of a spectrum, got "
            f"{self.sizes[last]}"
        )
    source = _fft_c2c(self, others, normalization, False) if others else self
    sizes = (*self.sizes[:last], last_dim_size, *self.sizes[last + 1 :])
    return _lay_out_transformed(source, sizes, [last], promote.REAL_OF[self.dtype])
