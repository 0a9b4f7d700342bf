"""Fourier transforms. Their layout is that of the passes that compute them: the meta kernels know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from graphport.ops import promote
from graphport.ops.abstract import Abstract, Size, Sizes
from graphport.ops.meta import layout_by_meta
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import wrap_dim

aten = torch.ops.aten


def _transformed(
    op: OpOverload, self: Abstract, sizes: Sizes, dtype: torch.dtype, *args: Any
) -> Abstract:
    return Abstract(sizes, dtype, self.device, layout_by_meta(op, sizes, self, *args))


def _resized(self: Abstract, dim: Sequence[int], last: Size) -> Sizes:
    """The last transformed dim has another size."""
    at = wrap_dim(dim[-1], self.rank)
    return (*self.sizes[:at], last, *self.sizes[at + 1 :])


@shape_rule(aten._fft_c2c.default)
def fft_c2c(self: Abstract, dim: Sequence[int], normalization: int, forward: bool) -> Abstract:
    op = aten._fft_c2c.default
    return _transformed(op, self, self.sizes, self.dtype, dim, normalization, forward)


@shape_rule(aten._fft_r2c.default)
def fft_r2c(self: Abstract, dim: Sequence[int], normalization: int, onesided: bool) -> Abstract:
    sizes = self.sizes
    if onesided:
        sizes = _resized(self, dim, self.sizes[wrap_dim(dim[-1], self.rank)] // 2 + 1)
    dtype = promote.COMPLEX_OF[self.dtype]
    op = aten._fft_r2c.default
    return _transformed(op, self, sizes, dtype, dim, normalization, onesided)


@shape_rule(aten._fft_c2r.default)
def fft_c2r(
    self: Abstract, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> Abstract:
    sizes = _resized(self, dim, last_dim_size)
    dtype = promote.REAL_OF[self.dtype]
    op = aten._fft_c2r.default
    return _transformed(op, self, sizes, dtype, dim, normalization, last_dim_size)
