"""Operators that work element by element: arithmetic, comparison, activation, type conversion.

Operands are brought to one dtype first, as torch promotes them; the builder casts the result to the
dtype that capture knows it has.
"""

from __future__ import annotations

from typing import Any

import torch

from graphport.onnx.builder import Builder, Operand
from graphport.onnx.ir import Value
from graphport.onnx.registry import lower, table

aten = torch.ops.aten


def _unary(op: str) -> Any:
    """In the dtype of the result: integers become floats where torch says so."""

    def lowering(b: Builder, self: Value) -> Value:
        return getattr(b, op)(b.cast(self, b.result.dtype))

    return lowering


table(
    {
        aten.abs.default: "Abs", aten.acos.default: "Acos", aten.acosh.default: "Acosh",
        aten.asin.default: "Asin", aten.asinh.default: "Asinh", aten.atan.default: "Atan",
        aten.atanh.default: "Atanh", aten.ceil.default: "Ceil", aten.cos.default: "Cos",
        aten.cosh.default: "Cosh", aten.erf.default: "Erf", aten.exp.default: "Exp",
        aten.floor.default: "Floor", aten.log.default: "Log", aten.neg.default: "Neg",
        aten.reciprocal.default: "Reciprocal", aten.relu.default: "Relu",
        aten.round.default: "Round", aten.sigmoid.default: "Sigmoid", aten.sign.default: "Sign",
        aten.sin.default: "Sin", aten.sinh.default: "Sinh", aten.sqrt.default: "Sqrt",
        aten.tan.default: "Tan", aten.tanh.default: "Tanh",
    },
    _unary,
)  # fmt: skip


def _compare(op: str) -> Any:
    def lowering(b: Builder, self: Operand, other: Operand) -> Value:
        return getattr(b, op)(*b.common(self, other))

    return lowering


table(
    {
        aten.eq.Tensor: "Equal", aten.eq.Scalar: "Equal",
        aten.ge.Tensor: "GreaterOrEqual", aten.ge.Scalar: "GreaterOrEqual",
        aten.gt.Tensor: "Greater", aten.gt.Scalar: "Greater",
        aten.le.Tensor: "LessOrEqual", aten.le.Scalar: "LessOrEqual",
        aten.lt.Tensor: "Less", aten.lt.Scalar: "Less",
    },
    _compare,
)  # fmt: skip


@lower(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, self: Value, other: Operand, alpha: Any) -> Value:
    x, y = b.common(self, other, dtype=b.result.dtype)
    if b.result.dtype is torch.bool:
        return b.Or(x, y) if alpha else x
    return b.Add(x, y if alpha == 1 else b.Mul(y, alpha))


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, self: Value, other: Operand, alpha: Any) -> Value:
    x, y = b.common(self, other, dtype=b.result.dtype)
    return b.Sub(x, y if alpha == 1 else b.Mul(y, alpha))


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, self: Value, other: Operand) -> Value:
    x, y = b.common(self, other, dtype=b.result.dtype)
    return b.And(x, y) if b.result.dtype is torch.bool else b.Mul(x, y)


@lower(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, self: Value, other: Operand) -> Value:
    return b.Div(*b.common(self, other, dtype=b.result.dtype))
