"""Linear layers."""

from __future__ import annotations

import math

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.linalg import operand, product
from graphport.onnx.registry import lower

aten = torch.ops.aten


@lower(aten.linear.default)
def linear(b: Builder, input: Value, weight: Value, bias: Value | None) -> Value:
    """Gemm for rows; for more dims MatMul, on the weight as tools that quantise expect it.

    A weight that is used elsewhere too (tied to an embedding), or that is given at run time, is not
    transposed: ONNX Runtime's own operator takes it as it lies, as fast as MatMul does; for Gemm
    the dims before the last become rows, and adding to a bias takes it 3 to 5% longer.
    """
    floats = input.dtype.is_floating_point and weight.rank == 2
    if input.rank == 2 and floats:
        return b.Gemm(input, weight, bias, transB=1)
    as_it_lies = input.rank > 2 and floats and (weight in b.shared or weight.data is None)
    if as_it_lies and b.target == "ort" and b.has("FusedMatMul", input.dtype):
        out = b.FusedMatMul(operand(b, input, weight.rank), weight, transB=1)
        out = b.squeeze(out, 0) if out.rank > input.rank else out
        return out if bias is None else b.Add(out, bias)
    if as_it_lies:
        rows = b.reshape(input, [math.prod(input.shape[:-1]), input.shape[-1]])  # type: ignore
        return b.reshape(b.Gemm(rows, weight, bias, transB=1), b.result.sizes)
    out = product(b, input, weight if weight.rank == 1 else b.transposed(weight))
    return out if bias is None else b.Add(out, bias)
