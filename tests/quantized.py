"""What tests of quantised programs share: numbers at the edges, and torchao's operators."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.ao.quantization.fx._decomposed  # registers the operators of PT2E

PT2E = torch.ops.quantized_decomposed


def hard_numbers(scale: float) -> Tensor:
    """Halves of a scale, the numbers next to them, and others, within a byte and beyond.

    None that eager cannot cast to int64: that is not defined.
    """
    halves = torch.arange(-600, 600).float() * scale / 2
    ends = [torch.nextafter(halves, torch.tensor(end)) for end in (-1e9, 1e9)]
    return torch.cat([halves, *ends, torch.randn(2000) * scale * 90, torch.tensor([-3e4, 3e4])])


def _register() -> Any:
    """The operators of torchao by their arithmetic, where torchao is not there."""
    library = torch.library.Library("torchao", "DEF")
    library.define(
        "quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
        "ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor"
    )
    library.define(
        "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
        "ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None, "
        "ScalarType output_dtype=float) -> Tensor"
    )
    library.impl("quantize_affine", _quantize, "CompositeImplicitAutograd")
    library.impl("dequantize_affine", _dequantize, "CompositeImplicitAutograd")
    return library


def _split(x: Tensor, block: list[int]) -> tuple[list[int], list[int]]:
    """Sizes of a tensor with a dim of blocks as two, and of parameters there."""
    sizes: list[int] = []
    parameters: list[int] = []
    for size, n in zip(x.shape, block, strict=True):
        if n != size and n > 1:
            sizes += [size // n, n]
            parameters += [size // n, 1]
        else:
            sizes.append(size)
            parameters.append(size if n == 1 else 1)
    return sizes, parameters


def _quantize(
    input: Tensor,
    block_size: list[int],
    scale: Tensor,
    zero_point: Tensor,
    output_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
) -> Tensor:
    sizes, parameters = _split(input, block_size)
    q = torch.round(input.view(sizes) * (1.0 / scale.view(parameters)))
    q = torch.clamp(q + zero_point.view(parameters), quant_min, quant_max)
    return q.view(input.shape).to(output_dtype)


def _dequantize(
    input: Tensor,
    block_size: list[int],
    scale: Tensor,
    zero_point: Tensor,
    input_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    sizes, parameters = _split(input, block_size)
    out = input.view(sizes).to(output_dtype, copy=True)
    out = (out - zero_point.view(parameters).to(output_dtype)) * scale.view(parameters)
    return out.view(input.shape).to(output_dtype)


if importlib.util.find_spec("torchao") is None:
    _LIBRARY = _register()
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
AFFINE = torch.ops.torchao


class Affine(nn.Module):
    """A weight that is stored as integers."""

    def __init__(self, q: Tensor, block: tuple[int, int], limits: tuple[int, int]) -> None:
        super().__init__()
        counts = [size // n for size, n in zip(q.shape, block, strict=True)]
        self.block, self.limits = list(block), limits
        self.register_buffer("q", q)
        self.register_buffer("scale", torch.rand(counts) * 0.1 + 0.01)
        self.register_buffer("zero", torch.randint(0, 2, counts, dtype=q.dtype))

    def dequantize(self) -> Tensor:
        return AFFINE.dequantize_affine(
            self.q, self.block, self.scale, self.zero, self.q.dtype, *self.limits
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dequantize()


def affine(rows: int, columns: int, block: tuple[int, int], limits: tuple[int, int]) -> Affine:
    dtype = torch.uint8 if limits[0] == 0 else torch.int8
    q = torch.randint(limits[0], limits[1] + 1, (rows, columns), dtype=dtype)
    return Affine(q, block, limits)
