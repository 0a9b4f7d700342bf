"""Operators that Hugging Face transformers defines for itself."""

from __future__ import annotations

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.registry import lower_named


@lower_named("transformers::grouped_mm_fallback")
def grouped_mm_fallback(b: Builder, input: Value, weight: Value, offs: Value) -> Value:
    """Rows sorted by expert, times the matrix of their expert; past the last offset they are 0."""
    (experts,) = offs.shape or (None,)
    if not isinstance(experts, int):
        raise UnsupportedError("a mixture of a number of experts that is not fixed")
    rows, width = b.result.sizes
    ends = b.Concat(b.cast(offs, torch.int64), b.sizes.element(rows), axis=0)
    starts = b.Concat([0], b.Slice(ends, [0], [experts]), axis=0)
    parts = b.Split(input, b.Sub(ends, starts), axis=0, outputs=experts + 1)
    products = [
        b.MatMul(part, b.Gather(weight, b.scalar(i, torch.int64), axis=0))
        for i, part in enumerate(parts[:-1])
    ]
    rest = b.Concat(b.Shape(parts[-1], start=0, end=1), b.sizes.vector([width]), axis=0)
    zero = torch.zeros(1, dtype=b.result.dtype)
    return b.Concat(*products, b.ConstantOfShape(rest, value=zero, dtype=zero.dtype), axis=0)
