"""Products of matrices and vectors.

`MatMul` broadcasts as torch does and takes integers; `Gemm` adds within, for floats of two dims.
Operands are those that torch's operator takes: both of the dtype of the result, unless it says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder, Number
from graphport.onnx.ir import Node, Value
from graphport.onnx.lowerings.reduce import total
from graphport.onnx.registry import lower
from graphport.symbolic import ge, min_

aten = torch.ops.aten


def product(b: Builder, x: Value, y: Value) -> Value:
    """x @ y.

    ONNX Runtime brings a size of 0 together with a 1 only for a right operand of two dims: vectors
    become matrices, and a 1 becomes 0 with the other. Of a transpose and a vector on the right it
    makes one operator of its own, which computes something else.
    """
    xs, ys = x.shape or (), y.shape or ()
    if len(ys) == 1 and len(xs) > 1:
        return b.squeeze(product(b, x, b.unsqueeze(y, 1)), len(xs) - 1)
    if len(xs) == 1 and len(ys) > 2 and _may_be_empty(b, ys[:-2]):
        return b.squeeze(product(b, b.unsqueeze(x, 0), y), len(ys) - 2)
    if len(ys) > 2 and len(xs) > 1:
        x, y = _emptied(b, x, y), _emptied(b, y, x)
    if max(len(xs), len(ys)) < 3:
        return b.MatMul(x, y)
    rank = max(x.rank, y.rank)
    out = b.MatMul(operand(b, x, y.rank), operand(b, y, x.rank))
    out = b.squeeze(out, 0) if out.rank > rank else out
    return _zero_of_nothing(b, out, xs[-1], (*xs[:-2], *ys[:-2]))


def _zero_of_nothing(b: Builder, out: Value, inner: Any, batch: Iterable[Any]) -> Value:
    """A batch of products over a size that may be 0: ONNX Runtime clears only the first of them."""
    single = all(s == 1 for s in batch)
    if single or not _may_be_empty(b, [inner]) or inner in (out.shape or ()):
        return out
    return b.Where(b.Equal(b.sizes.element(inner), 0), b.scalar(0, like=out), out)


def operand(b: Builder, x: Value, other: int) -> Value:
    """An operand, with the rank of the other, if a transpose took its first dim behind the batch.

    ONNX Runtime fuses such a transpose with the product, also through a scale and a cast. It
    divides by the first size: at 0 that ends the process, so there is a dim before it if that may
    be. What begins with a cast, of a product of different ranks, ends the process when the model is
    loaded: the cast goes first.
    """
    turned = _transposed(x)
    if turned is None or x.rank < 3:
        return x
    source, perm = turned.inputs[0], turned.attributes["perm"]
    if source is None or perm[:-2] != list(range(1, x.rank - 1)):
        return x
    cast = x.producer
    if cast is not None and cast.op == "Cast" and cast.inputs[0] is turned.outputs[0]:
        if x.rank != other:
            made = b.Transpose(b.Cast(source, dtype=x.dtype, **cast.attributes), perm=perm)
            return operand(b, made, other)
    if not _may_be_empty(b, (source.shape or ())[:1]):
        return x
    if turned is not x.producer:
        return b.unsqueeze(x, 0)
    return b.Transpose(b.unsqueeze(source, 0), perm=[0, *(p + 1 for p in perm)])


_FUSED_THROUGH = {"Cast", "Div", "Identity", "Mul"}


def _transposed(x: Value) -> Node | None:
    """The transpose that a value comes from, with nothing between that ONNX Runtime minds."""
    node = x.producer
    while node is not None and node.op in _FUSED_THROUGH:
        node = next((v.producer for v in node.inputs if v is not None and v.shape == x.shape), None)
    return node if node is not None and node.op == "Transpose" else None


def _may_be_empty(b: Builder, sizes: Iterable[Any]) -> bool:
    return any(s is not None and b.scope.decide(ge(s, 1)) is not True for s in sizes)


def _emptied(b: Builder, x: Value, other: Value) -> Value:
    """With batch dims of 1 that are 0 where those of the other are."""
    theirs, mine = (other.shape or ())[:-2], (x.shape or ())[:-2]
    wide = (*(1,) * (len(theirs) - len(mine)), *mine)
    shift = len(wide) - len(theirs)
    sizes = [
        min_(theirs[i - shift], 1)
        if i >= shift and s == 1 and _may_be_empty(b, [theirs[i - shift]]) else s
        for i, s in enumerate(wide)
    ]  # fmt: skip
    return x if sizes == list(wide) else b.expand(x, (*sizes, *(x.shape or ())[-2:]))


@lower(
    aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default,
    aten.vdot.default,
)  # fmt: skip
def matmul(b: Builder, self: Value, other: Value) -> Value:
    return product(b, self, other)


@lower(aten.mm.dtype, aten.bmm.dtype)
def mm_dtype(b: Builder, self: Value, mat2: Value, out_dtype: Any) -> Value:
    """The product in a wider dtype than that of its operands."""
    return product(b, b.cast(self, out_dtype), b.cast(mat2, out_dtype))


@lower(aten._int_mm.default)
def _int_mm(b: Builder, self: Value, mat2: Value) -> Value:
    return b.MatMulInteger(self, mat2)


@lower(aten.linalg_vecdot.default)
def linalg_vecdot(b: Builder, x: Value, y: Value, dim: int) -> Value:
    return b.ReduceSum(b.Mul(x, y), [dim], keepdims=0)


# With something added


def _plus(b: Builder, self: Value, product: Value, beta: Number, alpha: Number) -> Value:
    """beta * self + alpha * product; with a beta of 0 not even a nan of self counts."""
    if alpha != 1:
        product = b.Mul(product, alpha)
    if beta == 0:
        return product
    self = b.cast(self, product.dtype)
    return b.Add(self if beta == 1 else b.Mul(self, beta), product)


@lower(aten.addmm.default)
def addmm(b: Builder, self: Value, mat1: Value, mat2: Value, beta: Number, alpha: Number) -> Value:
    # Of a sum over nothing Gemm gives the bias without its factor.
    whole = beta in (0, 1) or not _may_be_empty(b, (mat1.shape or ())[1:])
    if mat1.dtype.is_floating_point and _is_attribute(beta) and _is_attribute(alpha) and whole:
        bias = None if beta == 0 else self
        return b.Gemm(mat1, mat2, bias, alpha=_factor(alpha), beta=bias and _factor(beta))
    return _plus(b, self, b.MatMul(mat1, mat2), beta, alpha)


def _is_attribute(x: Number) -> bool:
    """Whether an attribute holds a number as it is: it is of 32 bits."""
    return isinstance(x, (int, float)) and torch.tensor(x, dtype=torch.float32).item() == x


def _factor(x: Any) -> float | None:
    return None if x == 1 else float(x)


@lower(aten.addmm.dtype, aten.baddbmm.dtype)
def addmm_dtype(
    b: Builder,
    self: Value,
    mat1: Value,
    mat2: Value,
    out_dtype: Any,
    beta: Number,
    alpha: Number,
) -> Value:
    return _plus(b, self, mm_dtype(b, mat1, mat2, out_dtype), beta, alpha)


@lower(aten.addmv.default)
def addmv(b: Builder, self: Value, mat: Value, vec: Value, beta: Number, alpha: Number) -> Value:
    return _plus(b, self, product(b, mat, vec), beta, alpha)


@lower(aten.baddbmm.default)
def baddbmm(
    b: Builder, self: Value, batch1: Value, batch2: Value, beta: Number, alpha: Number
) -> Value:
    return _plus(b, self, product(b, batch1, batch2), beta, alpha)


@lower(aten.addbmm.default)
def addbmm(
    b: Builder, self: Value, batch1: Value, batch2: Value, beta: Number, alpha: Number
) -> Value:
    return _plus(b, self, total(b, product(b, batch1, batch2), [0], False), beta, alpha)


@lower(aten.addr.default)
def addr(b: Builder, self: Value, vec1: Value, vec2: Value, beta: Number, alpha: Number) -> Value:
    dtype = b.result.dtype
    if dtype is torch.bool:
        both = b.And(b.unsqueeze(vec1, 1), vec2) if alpha else b.constant(torch.tensor(False))
        return b.Or(self, both) if beta else b.expand(both, b.result.sizes)
    vec1, vec2 = b.common(vec1, vec2, dtype=dtype)
    scaled = vec1 if alpha == 1 else b.Mul(vec1, alpha)
    return _plus(b, self, b.Mul(b.unsqueeze(scaled, 1), vec2), beta, 1)


# Of vectors


@lower(aten.outer.default, aten.ger.default)
def outer(b: Builder, self: Value, vec2: Value) -> Value:
    x, y = b.common(self, vec2, dtype=b.result.dtype)
    column = b.unsqueeze(x, 1)
    return b.And(column, y) if x.dtype is torch.bool else b.Mul(column, y)


@lower(aten.kron.default)
def kron(b: Builder, self: Value, other: Value) -> Value:
    """Every element of self times all of other: dims take turns, and are merged in pairs."""
    x, y = b.common(self, other, dtype=b.result.dtype)
    rank = max(x.rank, y.rank)
    x = b.unsqueeze(x, *range(rank - x.rank))
    y = b.unsqueeze(y, *range(rank - y.rank))
    x = b.unsqueeze(x, *range(1, 2 * rank, 2))
    y = b.unsqueeze(y, *range(0, 2 * rank, 2))
    both = b.And(x, y) if x.dtype is torch.bool else b.Mul(x, y)
    return b.reshape(both, b.result.sizes)


@lower(aten.linalg_cross.default)
def linalg_cross(b: Builder, self: Value, other: Value, dim: int) -> Value:
    """x1*y2 - x2*y1 and so on: both turned by one, either way."""
    rank = len(b.result.sizes)
    x, y = b.common(self, other, dtype=b.result.dtype)
    dim = dim if dim < 0 else dim - rank
    one, two = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])

    def turned(v: Value, by: torch.Tensor) -> Value:
        return b.Gather(v, by, axis=dim + v.rank)

    return b.Sub(b.Mul(turned(x, one), turned(y, two)), b.Mul(turned(x, two), turned(y, one)))


@lower(aten.cross.default)
def cross(b: Builder, self: Value, other: Value, dim: int | None) -> Value:
    if dim is None:
        dim = next((i for i, s in enumerate(b.result.sizes) if s == 3), None)
    if dim is None:
        raise UnsupportedError("torch.cross of a dim that is found when it runs", fix="dim=-1")
    return linalg_cross(b, self, other, dim)


@lower(aten.trace.default)
def trace(b: Builder, self: Value) -> Value:
    """What is off the diagonal is replaced, not multiplied by 0: it may be infinite."""
    x = b.cast(self, b.result.dtype)
    on = b.cast(b.EyeLike(x, dtype=torch.int32), torch.bool)
    return total(b, b.Where(on, x, 0), [0, 1], False)


@lower(aten.bilinear.default)
def bilinear(b: Builder, input1: Value, input2: Value, weight: Value, bias: Value | None) -> Value:
    """x1 @ W gives a matrix per row, and that @ x2 the result."""
    k, i, j = weight.shape or ()
    lead = b.result.sizes[:-1]
    first = product(b, input1, b.reshape(b.Transpose(weight, perm=[1, 0, 2]), [i, k * j]))  # type: ignore[operator]
    out = product(b, b.reshape(first, [*lead, k, j]), b.unsqueeze(input2, -1))
    out = b.squeeze(out, -1)
    return out if bias is None else b.Add(out, bias)


# Statistics


@lower(aten.cov.default)
def cov(
    b: Builder, self: Value, correction: int, fweights: Value | None, aweights: Value | None
) -> Value:
    """Of rows; weights say how often an observation counts, or how much."""
    dtype = b.result.dtype
    x = b.cast(self, dtype)
    x = x if x.rank == 2 else b.reshape(x, (1, math.prod(x.shape or ())))
    given = [b.cast(w, dtype) for w in (fweights, aweights) if w is not None]
    weights = given[0] if len(given) == 1 else b.Mul(*given) if given else None
    if weights is None:
        count = b.scalar((x.shape or ())[1], dtype)  # type: ignore[arg-type]
    else:
        count = b.ReduceSum(weights, keepdims=0)
    weighted = x if weights is None else b.Mul(x, weights)
    x = b.Sub(x, b.Div(b.ReduceSum(weighted, [1]), count))
    weighted = x if weights is None else b.Mul(x, weights)
    less: Any = b.scalar(correction, dtype)
    if aweights is not None and weights is not None and correction != 0:
        both = b.Mul(weights, b.cast(aweights, dtype))
        less = b.Mul(less, b.Div(b.ReduceSum(both, keepdims=0), count))
    factor = b.Max(b.Sub(count, less), 0.0)
    out = b.Div(b.MatMul(x, b.transpose(weighted, [1, 0])), factor)
    return b.reshape(out, b.result.sizes)


@lower(aten.corrcoef.default)
def corrcoef(b: Builder, self: Value) -> Value:
    c = cov(b, self, 1, None, None)
    if not b.result.sizes:
        return b.Div(c, c)
    n = b.result.sizes[0]
    c = b.shaped(c, (n, n))
    on = b.cast(b.EyeLike(c, dtype=torch.int32), torch.bool)
    size = b.Sqrt(b.ReduceSum(b.Where(on, c, 0.0), [1]))
    scaled = b.Div(b.Div(c, size), b.reshape(size, (1, n)))
    return b.Clip(scaled, -1.0, 1.0)


# Of groups of rows


@lower(aten._grouped_mm.default)
def _grouped_mm(
    b: Builder,
    self: Value,
    mat2: Value,
    offs: Value | None,
    bias: Value | None,
    out_dtype: Any,
) -> Value:
    """One product per group. What is past the last offset is not defined: the last group has it."""
    x, y = b.common(self, mat2, dtype=out_dtype or b.result.dtype)
    if bias is not None:
        raise UnsupportedError("_grouped_mm with a bias has no ONNX lowering")
    if offs is None:
        return product(b, x, y)
    (groups,) = offs.shape or (None,)
    if not isinstance(groups, int):
        raise UnsupportedError("_grouped_mm of a number of groups that is not fixed")
    along = {(2, 3): (0, None), (3, 2): (None, 1), (2, 2): (1, 0)}[x.rank, y.rank]
    parts = [
        _of_offsets(b, v, offs, groups, axis) if axis is not None else _one_by_one(b, v, groups)
        for v, axis in zip((x, y), along, strict=True)
    ]
    products = [b.MatMul(p, q) for p, q in zip(*parts, strict=True)]
    if along == (1, 0):
        return b.Concat(*(b.unsqueeze(p, 0) for p in products), axis=0)
    out = products[0] if groups == 1 else b.Concat(*products, axis=1 if along[1] is None else 2)
    return b.squeeze(out, 0)


def _of_offsets(b: Builder, x: Value, offs: Value, groups: int, axis: int) -> list[Value]:
    """The parts of a dim that end at offsets."""
    if groups == 1:
        return [x]
    ends = b.Concat(b.Slice(b.cast(offs, torch.int64), [0], [groups - 1]),
                    b.Shape(x, start=axis, end=axis + 1), axis=0)  # fmt: skip
    starts = b.Concat([0], b.Slice(ends, [0], [groups - 1]), axis=0)
    return _parts(b, x, b.Sub(ends, starts), groups, axis)


def _one_by_one(b: Builder, x: Value, groups: int) -> list[Value]:
    return [x] if groups == 1 else _parts(b, x, [1] * groups, groups, 0)


def _parts(b: Builder, x: Value, lengths: Any, count: int, axis: int) -> list[Value]:
    parts = list(b.Split(x, lengths, axis=axis, outputs=count))
    for p in parts:
        b.shaped(p, [None] * x.rank)
    return parts
