"""Products of matrices and vectors, and what linear algebra has an exact formula for."""

from __future__ import annotations

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.registry import lower

aten = torch.ops.aten


@lower(aten.linear.default)
def linear(b: Builder, input: Value, weight: Value, bias: Value | None) -> Value:
    """Gemm for rows; for more dims the transposed weight, which a runtime computes once."""
    if input.rank == 2 and weight.rank == 2:
        return b.Gemm(input, weight, bias, transB=1)
    if weight.rank == 1:
        out = b.MatMul(input, weight)
    else:
        out = b.MatMul(input, b.Transpose(weight, perm=[1, 0]))
    return out if bias is None else b.Add(out, bias)


@lower(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def matmul(b: Builder, self: Value, other: Value) -> Value:
    return b.MatMul(self, other)
