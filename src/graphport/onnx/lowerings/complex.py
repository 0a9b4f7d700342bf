"""Lowers complex operators, on pairs of real and imaginary values.

Inputs, outputs and state of the model have them in a last dim of two, as torch.view_as_real. What
only moves or adds numbers does so with both parts (`BY_PARTS`); the rest is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from graphport.compat.operators import aten
from graphport.compat.torch import OpOverload
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Complex, Size, Value
from graphport.onnx.lower.registry import BY_PARTS, LOWERINGS, fusion, lower_complex
from graphport.onnx.lowerings.factory import emit_linspace
from graphport.onnx.lowerings.linalg import einsum as real_einsum
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.ops.registry import overloads
from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract

if TYPE_CHECKING:
    from torch.fx import Node

    from graphport.onnx.lower.lowerer import Lowerer

Operand = Any
"""A `Complex`, a `Value` of real numbers, or a number."""

BY_PARTS.update(
    overloads("""
        reshape view _unsafe_view permute transpose.int t unsqueeze squeeze.default,dim,dims expand
        slice.Tensor select.int cat stack split.Tensor split_with_sizes split.sizes chunk unbind.int
        flip roll clone contiguous detach alias lift_fresh_copy repeat index_select gather
        index.Tensor sum.default,dim_IntList mean.default,dim cumsum neg diagonal tril triu unfold
        flatten.using_ints trace narrow movedim.int reflection_pad1d replication_pad1d copy
        where.self select_copy.int repeat_interleave.self_int tile rot90 fft_fftshift fft_ifftshift
        index_put slice_scatter select_scatter constant_pad_nd masked_fill.Scalar
        where.ScalarOther,ScalarSelf
    """)
)


# Parts


def to_parts(
    b: Builder, x: Operand, dtype: torch.dtype | None = None
) -> tuple[Value, Value | None]:
    """Real and imaginary part in a dtype; None for an imaginary part that is 0 throughout."""
    dtype = dtype or b.result.dtype.to_real()
    if isinstance(x, Complex):
        return b.cast(x.re, dtype), b.cast(x.im, dtype)
    if isinstance(x, Value):
        return b.cast(x, dtype), None
    if isinstance(x, complex):
        return b.scalar(x.real, dtype), b.scalar(x.imag, dtype)
    return b.scalar(x, dtype), None


def to_both_parts(b: Builder, x: Operand) -> tuple[Value, Value]:
    re, im = to_parts(b, x)
    return re, im if im is not None else _zeros(b, re)


def _zeros(b: Builder, like: Value) -> Value:
    return b.expand(b.scalar(0.0, like.dtype), like.shape or ())


def make_complex(b: Builder, re: Value, im: Value | None) -> Complex:
    """Parts that have the sizes of the result."""
    sizes = b.result.sizes
    if im is None:
        im = _zeros(b, b.shaped(re, sizes))
    return Complex(_expand_to(b, re, sizes), _expand_to(b, im, sizes))


def _expand_to(b: Builder, x: Value, sizes: Sequence[Size]) -> Value:
    return x if x.shape == tuple(sizes) else b.expand(x, sizes)


def call_real_lowering(b: Builder, op: OpOverload, *args: Any, **kwargs: Any) -> Value:
    """The lowering of an operator on real operands."""
    lowering = LOWERINGS[op]
    first = next(x for x in args if isinstance(x, Value))
    result, b.result = b.result, Abstract(first.shape or (), first.dtype, torch.device("cpu"))  # type: ignore[arg-type]
    try:
        made = lowering.fn(b, **lowering.bind(args, kwargs))
    finally:
        b.result = result
    assert isinstance(made, Value)
    return made


# To and from real numbers


@lower_complex(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(b: Builder, self: Complex) -> Value:
    last = self.rank
    packed = b.Concat(b.unsqueeze(self.re, last), b.unsqueeze(self.im, last), axis=last)
    return b.shaped(packed, (*(self.shape or ()), 2))


@lower_complex(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(b: Builder, self: Value) -> Complex:
    axis = self.rank - 1
    if self.tensor is not None:
        return Complex(*(b.constant(t) for t in self.tensor.unbind(-1)))
    return Complex(*(b.Gather(self, b.scalar(i, torch.int64), axis=axis) for i in range(2)))


@fusion(aten.select.int)
def part_of_pair(lowerer: Lowerer, node: Node) -> Value | None:
    """view_as_real(x)[..., 0] is the real part of x, [..., 1] the imaginary."""
    pair, dim, index = node.args
    if getattr(pair, "target", None) is not aten.view_as_real.default:
        return None
    x = lowerer.env[pair.args[0]]
    if dim not in (-1, x.rank) or index not in (0, 1, -1, -2):
        return None
    return x.im if index in (1, -1) else x.re


@lower_complex(aten.real.default)
def real_part(b: Builder, self: Complex) -> Value:
    return self.re


@lower_complex(aten.imag.default)
def imag(b: Builder, self: Complex) -> Value:
    return self.im


@lower_complex(aten.complex.default)
def complex_(b: Builder, real: Value, imag: Value) -> Complex:
    return make_complex(b, *b.common(real, imag, dtype=b.result.dtype.to_real()))


@lower_complex(aten.polar.default)
def polar(b: Builder, abs: Value, angle: Value) -> Complex:
    return make_complex(b, b.Mul(abs, b.Cos(angle)), b.Mul(abs, b.Sin(angle)))


@lower_complex(aten._to_copy.default, aten.to.dtype)
def to_copy(b: Builder, self: Operand, dtype: object) -> Operand:
    if b.result.dtype.is_complex:
        return Complex(*to_both_parts(b, self))
    if b.result.dtype is torch.bool:
        return b.Or(b.cast(self.re, torch.bool), b.cast(self.im, torch.bool))
    return b.cast(self.re, b.result.dtype)


@lower_complex(
    aten._conj.default, aten.conj.default, aten.conj_physical.default, aten._conj_physical.default
)
def conj(b: Builder, self: Complex) -> Complex:
    return Complex(self.re, b.Neg(self.im))


@lower_complex(aten.resolve_conj.default, aten.resolve_neg.default)
def resolve_conj(b: Builder, self: Complex) -> Complex:
    return self


@lower_complex(*overloads("linspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor"))
def linspace(b: Builder, start: Operand, end: Operand, steps: Any, dtype: object) -> Complex:
    """Both parts go from end to end."""
    kind = b.result.dtype.to_real()
    ends = zip(to_both_parts(b, start), to_both_parts(b, end), strict=True)
    return Complex(*(emit_linspace(b, *pair, steps, kind) for pair in ends))


@lower_complex(aten.full.default)
def full(b: Builder, size: object, fill_value: Number, dtype: object) -> Complex:
    re, im = to_both_parts(b, fill_value)
    return Complex(b.expand(re, b.result.sizes), b.expand(im, b.result.sizes))


@lower_complex(aten.full_like.default)
def full_like(b: Builder, self: Operand, fill_value: Number, dtype: torch.dtype | None) -> Operand:
    if b.result.dtype.is_complex:
        return full(b, b.result.sizes, fill_value, dtype)
    return b.expand(b.scalar(fill_value, b.result.dtype), b.result.sizes)


def _lower_fill(value: float) -> Callable[..., Operand]:
    def lowering(b: Builder, self: Operand, dtype: torch.dtype | None) -> Operand:
        return full_like(b, self, value, dtype)

    return lowering


lower_complex(aten.zeros_like.default)(_lower_fill(0.0))
lower_complex(aten.ones_like.default)(_lower_fill(1.0))


# Arithmetic


def _sum(op: str) -> Callable[..., Complex]:
    def lowering(b: Builder, self: Operand, other: Operand, alpha: Number) -> Complex:
        (re, im), (u, v) = to_parts(b, self), to_parts(b, other)
        if alpha != 1:
            u, v = _multiply(b, (u, v), to_parts(b, alpha))
        emit = getattr(b, op)
        if v is not None:
            im = emit(im, v) if im is not None else v if op == "Add" else b.Neg(v)
        return make_complex(b, emit(re, u), im)

    return lowering


add = lower_complex(aten.add.Tensor, aten.add.Scalar)(_sum("Add"))
sub = lower_complex(aten.sub.Tensor, aten.sub.Scalar)(_sum("Sub"))

Pair = tuple[Value, Value | None]


def _multiply(b: Builder, one: Pair, other: Pair, op: Callable[..., Value] | None = None) -> Pair:
    """(a + bi)(c + di), for any bilinear product."""
    mul = op or b.Mul
    (p, q), (r, s) = one, other
    if q is None or s is None:
        first = None if q is None else mul(q, r)
        return mul(p, r), first if s is None else mul(p, s)
    return b.Sub(mul(p, r), mul(q, s)), b.Add(mul(p, s), mul(q, r))


@lower_complex(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, self: Operand, other: Operand) -> Complex:
    return make_complex(b, *_multiply(b, to_parts(b, self), to_parts(b, other)))


@lower_complex(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, self: Operand, other: Operand) -> Complex:
    (p, q), (r, s) = to_parts(b, self), to_parts(b, other)
    if s is None:
        return make_complex(b, b.Div(p, r), None if q is None else b.Div(q, r))
    return make_complex(b, *_divide(b, (p, q), (r, s)))


def _divide(b: Builder, one: Pair, other: tuple[Value, Value]) -> Pair:
    """By the larger part of the divisor, so that nothing is too large on the way."""
    (p, q), (r, s) = one, other
    q = _zeros(b, p) if q is None else q
    wide = b.GreaterOrEqual(b.Abs(r), b.Abs(s))
    large, small = b.Where(wide, r, s), b.Where(wide, s, r)
    ratio = b.Div(small, large)
    scale = b.Add(large, b.Mul(small, ratio))
    x, y = b.Where(wide, p, q), b.Where(wide, q, p)
    re = b.Div(b.Add(x, b.Mul(y, ratio)), scale)
    # q - p*ratio, or q*ratio - p
    im = b.Where(wide, b.Sub(q, b.Mul(p, ratio)), b.Sub(b.Mul(q, ratio), p))
    return re, b.Div(im, scale)


@lower_complex(aten.reciprocal.default)
def reciprocal(b: Builder, self: Complex) -> Complex:
    return div(b, 1.0, self)


@lower_complex(aten.square.default)
def square(b: Builder, self: Complex) -> Complex:
    return mul(b, self, self)


@lower_complex(aten.pow.Tensor_Scalar)
def pow_(b: Builder, self: Complex, exponent: Any) -> Complex:
    """Whole powers by squaring."""
    if isinstance(exponent, Expr) or exponent != int(exponent.real) or not 0 <= exponent.real <= 64:
        raise UnsupportedError(f"complex numbers to the power of {exponent} have no ONNX lowering")
    count, power = int(exponent.real), self
    out: Complex | None = None
    while count:
        if count & 1:
            out = power if out is None else mul(b, out, power)
        count >>= 1
        if count:
            power = mul(b, power, power)
    return out or full(b, b.result.sizes, 1.0, None)


# Functions


@lower_complex(aten.abs.default)
def abs_(b: Builder, self: Complex) -> Value:
    """In twice the precision: squares are neither too large nor too small there."""
    re, im = to_parts(b, self, torch.float64)
    assert im is not None
    return b.Sqrt(b.Add(b.Mul(re, re), b.Mul(im, im)))


@lower_complex(aten.angle.default)
def angle(b: Builder, self: Complex) -> Value:
    return call_real_lowering(b, aten.atan2.default, self.im, self.re)


@lower_complex(aten.exp.default)
def exp(b: Builder, self: Complex) -> Complex:
    size = b.Exp(self.re)
    return Complex(b.Mul(size, b.Cos(self.im)), b.Mul(size, b.Sin(self.im)))


@lower_complex(aten.log.default)
def log(b: Builder, self: Complex) -> Complex:
    size = abs_(b, self)
    return Complex(b.cast(b.Log(size), self.re.dtype), angle(b, self))


@lower_complex(aten.log2.default)
def log2(b: Builder, self: Complex) -> Complex:
    return mul(b, log(b, self), 1 / math.log(2))


@lower_complex(aten.log10.default)
def log10(b: Builder, self: Complex) -> Complex:
    return mul(b, log(b, self), 1 / math.log(10))


@lower_complex(aten.sgn.default)
def sgn(b: Builder, self: Complex) -> Complex:
    size = b.cast(abs_(b, self), self.re.dtype)
    zero = b.Equal(size, 0.0)
    safe = b.Where(zero, 1.0, size)
    return Complex(b.Div(self.re, safe), b.Div(self.im, safe))


@lower_complex(aten.sqrt.default)
def sqrt(b: Builder, self: Complex) -> Complex:
    """The root with a real part that is not negative, from |z| and the real part."""
    re, im = to_parts(b, self, torch.float64)
    assert im is not None
    size = b.Sqrt(b.Add(b.Mul(re, re), b.Mul(im, im)))
    up = b.Sqrt(b.Mul(b.Add(size, b.Abs(re)), 0.5))
    none = b.Equal(up, 0.0)
    other = b.Div(b.Mul(b.Abs(im), 0.5), b.Where(none, 1.0, up))
    right = b.GreaterOrEqual(re, 0.0)
    y = b.Where(right, other, up)
    return Complex(b.Where(right, up, other), b.Where(b.Less(im, 0.0), b.Neg(y), y))


@lower_complex(aten.rsqrt.default)
def rsqrt(b: Builder, self: Complex) -> Complex:
    return div(b, 1.0, sqrt(b, self))


@lower_complex(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    b: Builder, self: Complex, ord: Any, dim: int, keepdim: bool, dtype: object
) -> Value:
    """Of the sizes of the numbers."""
    size = b.shaped(b.cast(abs_(b, self), b.result.dtype), self.shape or ())
    lowering = LOWERINGS[aten.linalg_vector_norm.default]
    made = lowering.fn(b, **lowering.bind((size, ord, dim, keepdim), {}))
    assert isinstance(made, Value)
    return made


@lower_complex(aten.sin.default)
def sin(b: Builder, self: Complex) -> Complex:
    x, y = self.re, self.im
    return Complex(b.Mul(b.Sin(x), b.Cosh(y)), b.Mul(b.Cos(x), b.Sinh(y)))


@lower_complex(aten.cos.default)
def cos(b: Builder, self: Complex) -> Complex:
    x, y = self.re, self.im
    return Complex(b.Mul(b.Cos(x), b.Cosh(y)), b.Neg(b.Mul(b.Sin(x), b.Sinh(y))))


@lower_complex(aten.sinh.default)
def sinh(b: Builder, self: Complex) -> Complex:
    x, y = self.re, self.im
    return Complex(b.Mul(b.Sinh(x), b.Cos(y)), b.Mul(b.Cosh(x), b.Sin(y)))


@lower_complex(aten.cosh.default)
def cosh(b: Builder, self: Complex) -> Complex:
    x, y = self.re, self.im
    return Complex(b.Mul(b.Cosh(x), b.Cos(y)), b.Mul(b.Sinh(x), b.Sin(y)))


# Questions


@lower_complex(aten.eq.Tensor, aten.eq.Scalar)
def eq(b: Builder, self: Operand, other: Operand) -> Value:
    dtype = _common_dtype(self, other)
    (p, q), (r, s) = to_parts(b, self, dtype), to_parts(b, other, dtype)
    same = b.Equal(p, r)
    if q is None or s is None:
        rest = s if q is None else q
        return b.And(same, b.Equal(rest, 0.0))
    return b.And(same, b.Equal(q, s))


@lower_complex(aten.ne.Tensor, aten.ne.Scalar)
def ne(b: Builder, self: Operand, other: Operand) -> Value:
    return b.Not(eq(b, self, other))


def _common_dtype(*operands: Operand) -> torch.dtype:
    kinds = [x.dtype.to_real() for x in operands if isinstance(x, Complex)]
    return max(kinds, key=lambda d: d.itemsize)


@lower_complex(aten.isnan.default)
def isnan(b: Builder, self: Complex) -> Value:
    return b.Or(b.IsNaN(self.re), b.IsNaN(self.im))


@lower_complex(aten.isinf.default)
def isinf(b: Builder, self: Complex) -> Value:
    return b.Or(b.IsInf(self.re), b.IsInf(self.im))


@lower_complex(aten.isfinite.default)
def isfinite(b: Builder, self: Complex) -> Value:
    return b.And(*(b.Less(b.Abs(x), math.inf) for x in (self.re, self.im)))


# Products


@lower_complex(
    aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default
)
def matmul(b: Builder, self: Operand, other: Operand) -> Complex:
    return Complex(*_matmul(b, to_parts(b, self), to_parts(b, other)))


def _matmul(b: Builder, one: Pair, other: Pair) -> tuple[Value, Value]:
    re, im = _multiply(b, one, other, lambda x, y: emit_matmul(b, x, y))
    assert im is not None
    return re, im


@lower_complex(aten.vdot.default)
def vdot(b: Builder, self: Complex, other: Complex) -> Complex:
    return matmul(b, conj(b, self), other)


@lower_complex(aten.linear.default)
def linear(b: Builder, input: Operand, weight: Operand, bias: Operand) -> Complex:
    u, v = to_parts(b, weight)
    turned = tuple(x if x is None or x.rank < 2 else b.transpose(x, [1, 0]) for x in (u, v))
    out = Complex(*_matmul(b, to_parts(b, input), turned))  # type: ignore[arg-type]
    return out if bias is None else add(b, out, bias, 1)


@lower_complex(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(
    b: Builder, self: Operand, mat1: Operand, mat2: Operand, beta: Number, alpha: Number
) -> Complex:
    out = Complex(*_matmul(b, to_parts(b, mat1), to_parts(b, mat2)))
    out = out if alpha == 1 else mul(b, out, alpha)
    if beta == 0:
        return out
    return add(b, out, self if beta == 1 else mul(b, self, beta), 1)


@lower_complex(aten.outer.default)
def outer(b: Builder, self: Operand, vec2: Operand) -> Complex:
    column = tuple(None if x is None else b.unsqueeze(x, 1) for x in to_parts(b, self))
    return make_complex(b, *_multiply(b, column, to_parts(b, vec2)))  # type: ignore[arg-type]


@lower_complex(aten.einsum.default)
def einsum(b: Builder, equation: str, tensors: list[Operand], path: object) -> Complex:
    if len(tensors) == 1:
        return Complex(*(real_einsum(b, equation, [x], None) for x in to_both_parts(b, tensors[0])))
    if len(tensors) > 2:
        raise UnsupportedError("einsum of more than two complex operands has no ONNX lowering")
    one, other = (to_parts(b, t) for t in tensors)
    re, im = _multiply(b, one, other, lambda x, y: real_einsum(b, equation, [x, y], None))
    assert im is not None
    return Complex(re, im)
