"""Lowers discrete Fourier transforms.

Of a fixed length they are a product with the matrix of roots of unity, which is exact to the last
bits; from 256 on `DFT` for powers of two, which ONNX Runtime computes as well as torch and faster.
For other lengths it loses half of the digits, and its inverse does in any precision: those that are
long, or not known, are computed in float64, the inverse from the forward transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Complex, Size, Value
from graphport.onnx.lower.registry import lower_complex
from graphport.onnx.lowerings.complex import view_as_complex, view_as_real
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.shape import slice_dim
from graphport.ops.sizes import invert_permutation
from graphport.symbolic import Expr

_LARGEST_MATRIX = 1024
"""The greatest length for which the matrix is stored: 4 MB."""
_SMALLEST_DFT = 256
"""The least power of two for `DFT`: measured on 4 rows, 0.05 ms for 512 against 0.12."""


@lower_complex(aten._fft_r2c.default)
def _fft_r2c(
    b: Builder, self: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    scale = _normalization_factor(self.shape or (), dim, normalization)
    *others, last = dim
    out = _transform_dim(b, self, last, onesided)
    for d in others:
        out = _transform_dim(b, out, d)
    return _apply_factor(b, out, scale)


@lower_complex(aten._fft_c2c.default)
def _fft_c2c(
    b: Builder, self: Complex, dim: Sequence[int], normalization: int, forward: bool
) -> Complex:
    scale = _normalization_factor(self.shape or (), dim, normalization)
    return _apply_factor(b, _transform_dims(b, self, dim, forward), scale)


@lower_complex(aten._fft_c2r.default)
def _fft_c2r(
    b: Builder, self: Complex, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> Value:
    *others, last = (d % self.rank for d in dim)
    sizes_given = self.shape or ()
    sizes = [*sizes_given]
    sizes[last] = last_dim_size
    scale = _normalization_factor(sizes, dim, normalization)
    half = last_dim_size // 2 + 1
    if sizes_given[last] != half:
        self = Complex(slice_dim(b, self.re, last, 0, half), slice_dim(b, self.im, last, 0, half))
    x = _transform_dims(b, self, others, forward=False)
    if isinstance(last_dim_size, int) and last_dim_size <= _LARGEST_MATRIX:
        out = _half_spectrum_to_real(b, x, last, last_dim_size)
    else:
        out = _transform_dims(
            b, _mirror_spectrum(b, x, last, last_dim_size), [last], forward=False
        ).re
    return out if scale is None else b.Mul(out, _emit_factor(b, scale, out.dtype))


def _transform_dims(b: Builder, x: Complex, dim: Sequence[int], forward: bool) -> Complex:
    """Over several dims; the inverse without its factor is that of the conjugate, conjugated."""
    if not dim:
        return x
    if not forward:
        x = Complex(x.re, b.Neg(x.im))
    for d in dim:
        x = _transform_dim(b, x, d)
    return x if forward else Complex(x.re, b.Neg(x.im))


# Factors


def _normalization_factor(sizes: Sequence[object], dim: Sequence[int], normalization: int) -> Any:
    """What the result is multiplied by: None, 1/sqrt(n) or 1/n."""
    if normalization == 0:
        return None
    count: Any = 1
    for d in dim:
        count = count * sizes[d]
    return count, {1: -0.5, 2: -1.0}[normalization]


def _emit_factor(b: Builder, scale: Any, dtype: torch.dtype) -> Value:
    count, power = scale
    if isinstance(count, Expr):
        n = b.cast(b.sizes.number(count), dtype)
        return b.Reciprocal(n if power == -1.0 else b.Sqrt(n))
    return b.scalar(float(count) ** power if count else 1.0, dtype)


def _apply_factor(b: Builder, x: Complex, scale: object) -> Complex:
    if scale is None:
        return x
    factor = _emit_factor(b, scale, x.re.dtype)
    return Complex(b.Mul(x.re, factor), b.Mul(x.im, factor))


# One dim


def _transform_dim(b: Builder, x: Any, dim: int, onesided: bool = False) -> Complex:
    """The sum of x[t] * exp(-2 pi i k t / n) over t, for all k or for the first half of them."""
    n = (x.shape or ())[dim]
    if not isinstance(n, int) or n > _LARGEST_MATRIX or (n >= _SMALLEST_DFT and n & (n - 1) == 0):
        return _transform_by_dft(b, x, dim, onesided)
    cos, sin = _roots_of_unity(n, n // 2 + 1 if onesided else n)
    if isinstance(x, Value):
        return _transform_by_matrix(b, [x], dim, torch.cat([cos, -sin], 1))
    both = torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
    return _transform_by_matrix(b, [x.re, x.im], dim, both)


def _roots_of_unity(
    rows: int, columns: int, n: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of 2 pi t k / n.

    Of the remainder of t*k, so that whole turns are left out while they are exact. Quarters of a
    turn are exact, too: what is real in eager would have an argument of any sign otherwise.
    """
    n = rows if n is None else n
    t, k = torch.arange(rows), torch.arange(columns)
    step = t[:, None] * k % n
    angle, is_quarter = step.double() * (2 * math.pi / n), 4 * step % n == 0
    cos, sin = (torch.where(is_quarter, x.round() + 0.0, x) for x in (angle.cos(), angle.sin()))
    return cos, sin


def _transform_by_matrix(b: Builder, x: list[Value], dim: int, matrix: torch.Tensor) -> Complex:
    """Real parts, then imaginary ones, side by side in and out."""
    out = _multiply_along(b, x, dim, matrix)
    count = matrix.shape[1] // 2
    axis = dim % out.rank
    halves = b.Split(out, [count, count], axis=axis, outputs=2)
    sizes = [*(x[0].shape or ())]
    sizes[dim] = count
    return Complex(*(b.shaped(h, sizes) for h in halves))


def _multiply_along(b: Builder, x: list[Value], dim: int, matrix: torch.Tensor) -> Value:
    """Along a dim, which is the last one while it lasts."""
    rank = x[0].rank
    order = [i for i in range(rank) if i != dim % rank] + [dim % rank]
    rows = [b.transpose(v, order) for v in x]
    row = rows[0] if len(rows) == 1 else b.Concat(*rows, axis=rank - 1)
    out = emit_matmul(b, row, b.constant(matrix.to(row.dtype)))
    return b.transpose(out, invert_permutation(order))


def _half_spectrum_to_real(b: Builder, x: Complex, dim: int, n: int) -> Value:
    """From the first half of a spectrum; of its ends only the real part counts."""
    half = n // 2 + 1
    cos, sin = _roots_of_unity(half, n, n)
    weight = torch.full((half, 1), 2.0, dtype=torch.float64)
    weight[0] = 1
    if n % 2 == 0:
        weight[-1] = 1
    return _multiply_along(b, [x.re, x.im], dim, torch.cat([cos * weight, -sin * weight]))


def _mirror_spectrum(b: Builder, x: Complex, dim: int, n: Size) -> Complex:
    """The whole spectrum of real numbers: its second half is the first, conjugated, backwards."""
    axis = dim % x.rank
    # Backwards from the element n - half, the last with a mirror image, down to the second.
    start = b.Sub(b.sizes.element(n), b.Shape(x.re, start=axis, end=axis + 1))
    sizes = [*(x.shape or ())]
    sizes[axis] = n

    def backwards(v: Value) -> Value:
        return b.Slice(v, start, [0], [axis], [-1])

    re = b.Concat(x.re, backwards(x.re), axis=axis)
    im = b.Concat(x.im, b.Neg(backwards(x.im)), axis=axis)
    return Complex(b.shaped(re, sizes), b.shaped(im, sizes))


def _transform_by_dft(b: Builder, x: Any, dim: int, onesided: bool) -> Complex:
    n = (x.shape or ())[dim]
    dtype = x.dtype.to_real()
    exact = isinstance(n, int) and n & (n - 1) == 0
    wide = dtype if exact else torch.float64
    axis = dim % x.rank
    sizes = [*(x.shape or ())]
    sizes[axis] = n // 2 + 1 if onesided else n
    if isinstance(x, Complex):
        packed = view_as_real(b, Complex(b.cast(x.re, wide), b.cast(x.im, wide)))
    else:
        packed = b.unsqueeze(b.cast(x, wide), x.rank)
    options = {"onesided": 1 if onesided else None}
    if b.opset >= 20:
        out = b.DFT(packed, None, b.scalar(axis, torch.int64), **options)
    else:
        out = b.DFT(packed, axis=axis, **options)
    out = view_as_complex(b, b.shaped(out, (*sizes, 2)))
    return Complex(*(b.shaped(b.cast(v, dtype), sizes) for v in (out.re, out.im)))
