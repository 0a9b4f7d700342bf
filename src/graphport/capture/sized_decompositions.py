"""Decompositions of operators whose result depends on whether a size is 1, or equals another.

Torch's own ask Python for it. Here it is part of the formula, so that the result is right at every
size: `interpolate` copies a dim that keeps its size whatever the scale factor, `linspace` of one
step has no distance between its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphport.symbolic.bridge import sym_ite

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """From both ends towards the middle, as torch's kernel goes; the ends may be tensors."""
    if dtype is None:
        dtype = torch.get_default_dtype()
        dtype = dtype.to_complex() if any(map(_is_complex, (start, end))) else dtype
    if dtype.is_complex:
        if dtype is torch.complex32:
            return NotImplemented
        ends = [(x.real, x.imag) if _is_complex(x) else (x, 0) for x in (start, end)]
        kind = dtype.to_real()
        return torch.complex(
            *(linspace(*pair, steps, dtype=kind, **options) for pair in zip(*ends, strict=True))
        )
    if not dtype.is_floating_point:
        return _whole_numbers(start, end, steps, dtype, options).to(dtype)
    start, end = (x.to(dtype) if isinstance(x, Tensor) else x for x in (start, end))
    step = (end - start) / torch.sym_max(steps - 1, 1)
    places = aten.arange.start_step(0, steps, 1, **options)
    first = places.to(dtype) * step + start
    last = end - (steps - 1 - places).to(dtype) * step
    return torch.where(places < steps / 2, first, last)


def _is_complex(x: Any) -> bool:
    return x.is_complex() if isinstance(x, Tensor) else isinstance(x, complex)


def _whole_numbers(start: Any, end: Any, steps: Any, dtype: torch.dtype, options: Any) -> Any:
    """In doubles, to be cut off. Where a number is whole, the last bit of its product decides.

    The kernel rounds after the sum only. Here a step is two numbers, the first short enough for
    its products to be exact, so that the last addition is the one that rounds.
    """
    low, high = (
        x.to(dtype).double() if isinstance(x, Tensor)
        else aten.scalar_tensor.default(x, dtype=dtype, **options).double()
        for x in (start, end)
    )  # fmt: skip
    step = (high - low) / torch.sym_max(steps - 1, 1)
    short = step.float().double()
    rest = step - short
    places = aten.arange.start_step(0, steps, 1, **options)
    along, left = places.double(), (steps - 1 - places).double()
    first = low + along * short + along * rest
    last = high - left * short - left * rest
    return torch.where(places < torch.sym_max(steps // 2, 1), first, last)


def logspace(
    start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Powers of equally spaced numbers; of whole ones only the ends are whole."""
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or any(map(_is_complex, (start, end))):
        return NotImplemented
    if dtype.is_floating_point:
        return base ** linspace(start, end, steps, dtype=dtype, **options)
    return (base ** _whole_numbers(start, end, steps, dtype, options)).to(dtype)


def upsample_linear(
    input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Any:
    """One dim after the other, between the two nearest positions."""
    if not input.is_floating_point():
        from torch._decomp.decompositions import _upsample_linear

        sizes, scales = _pixel_scales(input, output_size, scale_factors)
        return _upsample_linear(input, sizes, align_corners, scales)
    x = input.float() if input.dtype in HALVES else input
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    for d, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        have = input.shape[d]
        places = torch.arange(size, device=x.device).to(x.dtype)
        if align_corners:
            source = places * ((have - 1) / torch.sym_max(size - 1, 1))
        else:
            source = ((places + 0.5) * _ratio(have, size, scale) - 0.5).clamp(min=0.0)
        low = source.to(torch.int64)
        high = (low + 1).clamp(max=have - 1)
        weight = (source - low).clamp(0.0, 1.0).reshape(size, *[1] * (x.dim() - d - 1))
        near, far = (aten.index.Tensor(x, [*[None] * d, i]) for i in (low, high))
        x = near + (far - near) * weight
    order = torch._prims_common.suggest_memory_format(input)
    return x.to(input.dtype).contiguous(memory_format=order)


def upsample_bicubic2d(
    input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Any:
    """Only of pixels torch's kernel goes by the sizes where they stay."""
    if input.is_floating_point():
        return NotImplemented
    from torch._decomp.decompositions import upsample_bicubic2d_default

    sizes, scales = _pixel_scales(input, output_size, scale_factors)
    return upsample_bicubic2d_default(input, sizes, align_corners, *scales)


def upsample_nearest2d(input: Tensor, output_size: Any, scale_factors: Any = None) -> Tensor:
    """Only in images torch's kernel goes by the sizes where they stay, or double."""
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    rows, columns = (
        (torch.arange(size, device=input.device).to(torch.float32)
         * _ratio(have, size, scale, doubled=True)).to(torch.int64)
        for have, size, scale in zip(input.shape[2:], sizes, scales, strict=True)
    )  # fmt: skip
    out = aten.index.Tensor(input, [None, None, rows.unsqueeze(-1), columns])
    return out.contiguous(memory_format=torch._prims_common.suggest_memory_format(input))


def split(self: Tensor, split_size: Any, dim: int = 0) -> Any:
    """Into one piece at least: torch's own has no piece for a size that turns out to be 0."""
    size = self.shape[dim]
    if isinstance(split_size, int) and split_size == 0:
        return aten.split_with_sizes.default(self, [size], dim)
    before = max(int((size + split_size - 1) // split_size) - 1, 0)
    lengths = [*[split_size] * before, size - before * split_size]
    return aten.split_with_sizes.default(self, lengths, dim)


def isin(
    elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Where an element would be in order, it is, or it is nowhere; nothing is past the last."""
    if elements.dtype is torch.bool or test_elements.dtype is not elements.dtype:
        return NotImplemented
    ordered = test_elements.flatten().sort().values
    place = torch.searchsorted(ordered, elements)
    past = torch.cat([ordered, ordered.new_zeros(1)])
    found = (aten.index.Tensor(past, [place]) == elements) & (place < ordered.shape[0])
    return ~found if invert else found


def _sizes_and_scales(
    input: Tensor, output_size: Any, scale_factors: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    from torch._decomp.decompositions import upsample_compute_output_size

    sizes = upsample_compute_output_size(input.size(), output_size, scale_factors)
    return sizes, scale_factors or [None] * len(sizes)


def _pixel_scales(
    input: Tensor, output_size: Any, scale_factors: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    """With a factor of 1 where a dim keeps its size."""
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    pairs = zip(input.shape[2:], sizes, scales, strict=True)
    return sizes, [
        scale if scale is None else sym_ite(size == have, 1.0, scale) for have, size, scale in pairs
    ]


def _ratio(have: Any, size: Any, scale: float | None, doubled: bool = False) -> Any:
    """How far apart in the input the positions of two neighbours of the result are.

    A dim that keeps its size is copied, and with `doubled` one of twice the size is repeated; the
    scale factor does not count then.
    """
    if scale is None or scale <= 0:
        return have / torch.sym_max(size, 1)
    ratio = sym_ite(size == have, 1.0, 1.0 / scale)
    return sym_ite(size == 2 * have, 0.5, ratio) if doubled else ratio


SIZED = {
    aten.isin.Tensor_Tensor: isin,
    aten.linspace.default: linspace,
    aten.linspace.Tensor_Tensor: linspace,
    aten.linspace.Tensor_Scalar: linspace,
    aten.linspace.Scalar_Tensor: linspace,
    aten.logspace.default: logspace,
    aten.logspace.Tensor_Tensor: logspace,
    aten.logspace.Tensor_Scalar: logspace,
    aten.logspace.Scalar_Tensor: logspace,
    aten.split.Tensor: split,
    **dict.fromkeys(
        (aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec),
        upsample_linear,
    ),
    aten.upsample_bicubic2d.vec: upsample_bicubic2d,
    aten.upsample_nearest2d.vec: upsample_nearest2d,
}
