"""Lowers matrix and vector products, linear layers and `einsum`.

`MatMul` broadcasts as torch does and takes integers; `Gemm` adds within, for floats of two dims.
Operands are those that torch's operator takes: both of the dtype of the result, unless it says so.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder, Number, is_float32
from graphport.onnx.emit.ir import Node, Value
from graphport.onnx.lower.registry import lower
from graphport.onnx.lowerings.reduce import sum_axes
from graphport.ops.registry import overloads
from graphport.symbolic import Expr, ge, min_


def emit_matmul(b: Builder, x: Value, y: Value) -> Value:
    """x @ y.

    ONNX Runtime brings a size of 0 together with a 1 only for a right operand of two dims: vectors
    become matrices, and a 1 becomes 0 with the other. Of a transpose and a vector on the right it
    makes one operator of its own, which computes something else.
    """
    xs, ys = x.shape or (), y.shape or ()
    if len(ys) == 1 and len(xs) > 1:
        return b.squeeze(emit_matmul(b, x, b.unsqueeze(y, 1)), len(xs) - 1)
    if len(xs) == 1 and len(ys) > 2 and _can_be_empty(b, ys[:-2]):
        return b.squeeze(emit_matmul(b, b.unsqueeze(x, 0), y), len(ys) - 2)
    if len(ys) > 2 and len(xs) > 1:
        x, y = _match_empty_batch(b, x, y), _match_empty_batch(b, y, x)
    if max(len(xs), len(ys)) < 3:
        return b.MatMul(x, y)
    rank = max(x.rank, y.rank)
    out = b.MatMul(operand(b, x, y.rank), operand(b, y, x.rank))
    out = b.squeeze(out, 0) if out.rank > rank else out
    return _zero_empty_products(b, out, xs[-1], (*xs[:-2], *ys[:-2]))


def _zero_empty_products(b: Builder, out: Value, inner: Any, batch: Iterable[Any]) -> Value:
    """A batch of products over a size that may be 0: ONNX Runtime clears only the first of them."""
    single = all(s == 1 for s in batch)
    if single or not _can_be_empty(b, [inner]) or inner in (out.shape or ()):
        return out
    return b.Where(b.Equal(b.sizes.element(inner), 0), b.scalar(0, like=out), out)


def operand(b: Builder, x: Value, other: int) -> Value:
    """An operand, with the rank of the other, if a transpose took its first dim behind the batch.

    ONNX Runtime fuses such a transpose with the product, also through a scale and a cast. It
    divides by the first size: at 0 that ends the process, so there is a dim before it if that may
    be. What begins with a cast, of a product of different ranks, ends the process when the model is
    loaded: the cast goes first.
    """
    turned = _find_transpose(x)
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
    known = [
        s for s in ((source.shape or (None,))[0], (x.shape or ())[perm.index(0)]) if s is not None
    ]
    if known and not _can_be_empty(b, known[:1]):
        return x
    if turned is not x.producer:
        return b.unsqueeze(x, 0)
    return b.Transpose(b.unsqueeze(source, 0), perm=[0, *(p + 1 for p in perm)])


_FUSED_THROUGH = {"Cast", "Div", "Identity", "Mul"}


def _find_transpose(x: Value) -> Node | None:
    """The transpose that a value comes from, with nothing between that ONNX Runtime minds."""
    node = x.producer
    while node is not None and node.op in _FUSED_THROUGH:
        node = next((v.producer for v in node.inputs if v is not None and v.shape == x.shape), None)
    return node if node is not None and node.op == "Transpose" else None


def _can_be_empty(b: Builder, sizes: Iterable[Any]) -> bool:
    return any(s is not None and b.scope.decide(ge(s, 1)) is not True for s in sizes)


def _match_empty_batch(b: Builder, x: Value, other: Value) -> Value:
    """With batch dims of 1 that are 0 where those of the other are."""
    theirs, mine = (other.shape or ())[:-2], (x.shape or ())[:-2]
    wide = (*(1,) * (len(theirs) - len(mine)), *mine)
    shift = len(wide) - len(theirs)
    sizes = [
        min_(theirs[i - shift], 1)
        if i >= shift and s == 1 and _can_be_empty(b, [theirs[i - shift]])
        else s
        for i, s in enumerate(wide)
    ]
    return x if sizes == list(wide) else b.expand(x, (*sizes, *(x.shape or ())[-2:]))


@lower(*overloads("matmul mm bmm mv dot vdot"))
def matmul(b: Builder, self: Value, other: Value) -> Value:
    return emit_matmul(b, self, other)


@lower(aten.mm.dtype, aten.bmm.dtype)
def mm_dtype(b: Builder, self: Value, mat2: Value, out_dtype: Any) -> Value:
    """The product in a wider dtype than that of its operands."""
    return emit_matmul(b, b.cast(self, out_dtype), b.cast(mat2, out_dtype))


@lower(aten._int_mm.default)
def _int_mm(b: Builder, self: Value, mat2: Value) -> Value:
    return b.MatMulInteger(self, mat2)


@lower(aten.linalg_vecdot.default)
def linalg_vecdot(b: Builder, x: Value, y: Value, dim: int) -> Value:
    return b.ReduceSum(b.Mul(x, y), [dim], keepdims=0)


# With a bias or another term


def _add_scaled(b: Builder, self: Value, product: Value, beta: Number, alpha: Number) -> Value:
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
    whole = beta in (0, 1) or not _can_be_empty(b, (mat1.shape or ())[1:])
    if mat1.dtype.is_floating_point and is_float32(beta) and is_float32(alpha) and whole:
        bias = None if beta == 0 else self
        return b.Gemm(
            mat1,
            mat2,
            bias,
            alpha=_attribute_or_none(alpha),
            beta=bias and _attribute_or_none(beta),
        )
    return _add_scaled(b, self, b.MatMul(mat1, mat2), beta, alpha)


def _attribute_or_none(x: Any) -> float | None:
    return None if x == 1 else float(x)


@lower(aten.addmm.dtype, aten.baddbmm.dtype)
def addmm_dtype(
    b: Builder, self: Value, mat1: Value, mat2: Value, out_dtype: Any, beta: Number, alpha: Number
) -> Value:
    return _add_scaled(b, self, mm_dtype(b, mat1, mat2, out_dtype), beta, alpha)


@lower(aten.addmv.default)
def addmv(b: Builder, self: Value, mat: Value, vec: Value, beta: Number, alpha: Number) -> Value:
    return _add_scaled(b, self, emit_matmul(b, mat, vec), beta, alpha)


@lower(aten.baddbmm.default)
def baddbmm(
    b: Builder, self: Value, batch1: Value, batch2: Value, beta: Number, alpha: Number
) -> Value:
    return _add_scaled(b, self, emit_matmul(b, batch1, batch2), beta, alpha)


@lower(aten.addbmm.default)
def addbmm(
    b: Builder, self: Value, batch1: Value, batch2: Value, beta: Number, alpha: Number
) -> Value:
    return _add_scaled(
        b, self, sum_axes(b, emit_matmul(b, batch1, batch2), [0], False), beta, alpha
    )


@lower(aten.addr.default)
def addr(b: Builder, self: Value, vec1: Value, vec2: Value, beta: Number, alpha: Number) -> Value:
    dtype = b.result.dtype
    if dtype is torch.bool:
        both = b.And(b.unsqueeze(vec1, 1), vec2) if alpha else b.constant(torch.tensor(False))
        return b.Or(self, both) if beta else b.expand(both, b.result.sizes)
    vec1, vec2 = b.common(vec1, vec2, dtype=dtype)
    scaled = vec1 if alpha == 1 else b.Mul(vec1, alpha)
    return _add_scaled(b, self, b.Mul(b.unsqueeze(scaled, 1), vec2), beta, 1)


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
        raise UnsupportedError("torch.cross without a dim, of dynamic sizes", fix="dim=-1")
    return linalg_cross(b, self, other, dim)


@lower(aten.trace.default)
def trace(b: Builder, self: Value) -> Value:
    """What is off the diagonal is replaced, not multiplied by 0: it may be infinite."""
    x = b.cast(self, b.result.dtype)
    on = b.cast(b.EyeLike(x, dtype=torch.int32), torch.bool)
    return sum_axes(b, b.Where(on, x, 0), [0, 1], False)


@lower(aten.bilinear.default)
def bilinear(b: Builder, input1: Value, input2: Value, weight: Value, bias: Value | None) -> Value:
    """x1 @ W gives a matrix per row, and that @ x2 the result."""
    k, i, j = weight.shape or ()
    lead = b.result.sizes[:-1]
    first = emit_matmul(b, input1, b.reshape(b.Transpose(weight, perm=[1, 0, 2]), [i, k * j]))  # type: ignore[operator]
    out = emit_matmul(b, b.reshape(first, [*lead, k, j]), b.unsqueeze(input2, -1))
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
    b: Builder, self: Value, mat2: Value, offs: Value | None, bias: Value | None, out_dtype: Any
) -> Value:
    """One product per group. What is past the last offset is not defined: the last group has it."""
    x, y = b.common(self, mat2, dtype=out_dtype or b.result.dtype)
    if bias is not None:
        raise UnsupportedError("_grouped_mm with a bias has no ONNX lowering")
    if offs is None:
        return emit_matmul(b, x, y)
    (groups,) = offs.shape or (None,)
    if not isinstance(groups, int):
        raise UnsupportedError("_grouped_mm with a dynamic number of groups")
    along = {(2, 3): (0, None), (3, 2): (None, 1), (2, 2): (1, 0)}[x.rank, y.rank]
    parts = [
        _split_at_offsets(b, v, offs, groups, axis)
        if axis is not None
        else _split_groups(b, v, groups)
        for v, axis in zip((x, y), along, strict=True)
    ]
    products = [b.MatMul(p, q) for p, q in zip(*parts, strict=True)]
    if along == (1, 0):
        return b.Concat(*(b.unsqueeze(p, 0) for p in products), axis=0)
    out = products[0] if groups == 1 else b.Concat(*products, axis=1 if along[1] is None else 2)
    return b.squeeze(out, 0)


def _split_at_offsets(b: Builder, x: Value, offs: Value, groups: int, axis: int) -> list[Value]:
    """The parts of a dim that end at offsets."""
    if groups == 1:
        return [x]
    ends = b.Concat(
        b.Slice(b.cast(offs, torch.int64), [0], [groups - 1]),
        b.Shape(x, start=axis, end=axis + 1),
        axis=0,
    )
    starts = b.Concat([0], b.Slice(ends, [0], [groups - 1]), axis=0)
    return _split_dim(b, x, b.Sub(ends, starts), groups, axis)


def _split_groups(b: Builder, x: Value, groups: int) -> list[Value]:
    return [x] if groups == 1 else _split_dim(b, x, [1] * groups, groups, 0)


def _split_dim(b: Builder, x: Value, lengths: Any, count: int, axis: int) -> list[Value]:
    parts = list(b.Split(x, lengths, axis=axis, outputs=count))
    for p in parts:
        b.shaped(p, [None] * x.rank)
    return parts


# Linear layers.


@lower(aten.linear.default)
def linear(b: Builder, input: Value, weight: Value, bias: Value | None) -> Value:
    """Gemm for rows; for more dims MatMul, on the weight as tools that quantise expect it.

    A weight that is used elsewhere too (tied to an embedding), or that is given at run time, is not
    transposed: ONNX Runtime's own operator takes it as it is, as fast as MatMul does; for Gemm
    the dims before the last become rows, and adding to a bias takes it 3 to 5% longer.
    """
    floats = input.dtype.is_floating_point and weight.rank == 2
    if input.rank == 2 and floats:
        return b.Gemm(input, weight, bias, transB=1)
    as_it_lies = input.rank > 2 and floats and (weight in b.shared or weight.data is None)
    if as_it_lies and b.has("FusedMatMul", input.dtype):
        out = b.FusedMatMul(operand(b, input, weight.rank), weight, transB=1)
        out = b.squeeze(out, 0) if out.rank > input.rank else out
        return out if bias is None else b.Add(out, bias)
    if as_it_lies:
        rows = b.reshape(input, [math.prod(input.shape[:-1]), input.shape[-1]])  # type: ignore
        return b.reshape(b.Gemm(rows, weight, bias, transB=1), b.result.sizes)
    out = emit_matmul(b, input, weight if weight.rank == 1 else b.transposed(weight))
    return out if bias is None else b.Add(out, bias)


# `einsum` as `MatMul`, or as a product and a sum where there is nothing to contract.
#
# Operands are taken in from left to right. A label that only one operand has and nobody asks for is
# summed at once, one that an operand has twice is its diagonal. The two operands are then brought
# to [batch, left, contracted] and [batch, contracted, right]: a runtime takes transposed matrices
# as they are, where `Einsum` moves its operands about.

Labels = list[str]


@lower(aten.einsum.default)
def einsum(b: Builder, equation: str, tensors: Sequence[Value], path: object) -> Value:
    """In whatever order it is computed, the result is the same."""
    terms, wanted = _parse_equation(equation, [t.rank for t in tensors])
    operands = [_take_diagonals(b, t, labels) for t, labels in zip(tensors, terms, strict=True)]
    x, labels = operands[0]
    for i, (y, more) in enumerate(operands[1:], 2):
        later = {label for _, term in operands[i:] for label in term} | set(wanted)
        x, labels = _contract_pair(b, (x, labels), (y, more), later)
    x, labels = _sum_unwanted(b, x, labels, set(wanted))
    return b.transpose(x, [labels.index(label) for label in wanted])


def _parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of operands and of the result; dims of `...` have labels of their own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    written = left.split(",")
    widths = [r - len(t.replace("...", "")) for t, r in zip(written, ranks, strict=True)]
    most = max((w for w, t in zip(widths, written, strict=True) if "..." in t), default=0)
    unnamed = [f".{i}" for i in range(most)]

    def labels(term: str, width: int) -> Labels:
        before, dots, after = term.partition("...")
        return [*before, *(unnamed[most - width :] if dots else ()), *after]

    terms = [labels(t, w) for t, w in zip(written, widths, strict=True)]
    if arrow:
        return terms, labels(right, most)
    letters = left.replace(",", "").replace(".", "")
    once = [c for c in string.ascii_uppercase + string.ascii_lowercase if letters.count(c) == 1]
    return terms, [*unnamed, *once]


def _take_diagonals(b: Builder, x: Value, labels: Labels) -> tuple[Value, Labels]:
    """The diagonal of dims with one label: what is off it replaced by 0, and summed."""
    while len(set(labels)) < len(labels):
        again = next(i for i, label in enumerate(labels) if label in labels[:i])
        first = labels.index(labels[again])
        size = (x.shape or ())[again]
        order = [i for i in range(len(labels)) if i not in (first, again)]
        moved = b.transpose(x, [*order, first, again])
        if isinstance(size, int):
            on = b.constant(torch.eye(size, dtype=torch.bool))
        else:
            count = b.Range(b.scalar(0, torch.int64), b.sizes.number(size), 1)
            on = b.Equal(b.unsqueeze(count, 1), count)
        x = sum_axes(b, b.Where(on, moved, 0), [x.rank - 1], False)
        labels = [*(labels[i] for i in order), labels[first]]
    return x, labels


def _sum_unwanted(b: Builder, x: Value, labels: Labels, wanted: set[str]) -> tuple[Value, Labels]:
    """Without the dims that nobody asks for."""
    axes = [i for i, label in enumerate(labels) if label not in wanted]
    if not axes:
        return x, labels
    return sum_axes(b, x, axes, False), [label for label in labels if label in wanted]


def _contract_pair(
    b: Builder, one: tuple[Value, Labels], other: tuple[Value, Labels], wanted: set[str]
) -> tuple[Value, Labels]:
    """Two operands as one, with the labels that are wanted later."""
    x, xs = _sum_unwanted(b, *one, wanted | set(other[1]))
    y, ys = _sum_unwanted(b, *other, wanted | set(xs))
    x, xs, y, ys = _match_sizes(b, x, xs, y, ys, wanted)
    inner = [label for label in xs if label in ys and label not in wanted]
    batch = [label for label in xs if label in ys and label in wanted]
    left = [label for label in xs if label not in ys]
    right = [label for label in ys if label not in xs]
    if not inner or not (left or right):
        both = [*batch, *left, *right, *inner]
        product = b.Mul(_align_labels(b, x, xs, both), _align_labels(b, y, ys, both))
        return _sum_unwanted(b, product, both, wanted)
    out = _matmul(b, (x, xs), (y, ys), batch, left, inner, right)
    return out, [*batch, *left, *right]


def _match_sizes(
    b: Builder, x: Value, xs: Labels, y: Value, ys: Labels, wanted: set[str]
) -> tuple[Value, Labels, Value, Labels]:
    """A size of 1 goes with any other: where dims are merged it has to be the same."""
    for label in [label for label in xs if label in ys]:
        p, q = (x.shape or ())[xs.index(label)], (y.shape or ())[ys.index(label)]
        if p == q or (p != 1 and q != 1):
            continue
        if q == 1:
            y, ys = _drop_label(b, y, ys, label)
            if label not in wanted:
                x, xs = _sum_unwanted(b, x, xs, set(xs) - {label})
        else:
            x, xs = _drop_label(b, x, xs, label)
            if label not in wanted:
                y, ys = _sum_unwanted(b, y, ys, set(ys) - {label})
    return x, xs, y, ys


def _drop_label(b: Builder, x: Value, labels: Labels, label: str) -> tuple[Value, Labels]:
    return b.squeeze(x, labels.index(label)), [s for s in labels if s != label]


def _align_labels(b: Builder, x: Value, labels: Labels, order: Labels) -> Value:
    """In an order of labels, with dims of 1 for those that it does not have."""
    own = [label for label in order if label in labels]
    x = b.transpose(x, [labels.index(label) for label in own])
    first = order.index(own[0]) if own else len(order)
    return b.unsqueeze(x, *(i - first for i, s in enumerate(order) if i >= first and s not in own))


def _matmul(
    b: Builder,
    one: tuple[Value, Labels],
    other: tuple[Value, Labels],
    batch: Labels,
    left: Labels,
    inner: Labels,
    right: Labels,
) -> Value:
    x, xs = one
    y, ys = other
    size: dict[str, Any] = {
        **dict(zip(ys, y.shape or (), strict=True)),
        **dict(zip(xs, x.shape or (), strict=True)),
    }
    x = _align_labels(b, x, xs, [*batch, *left, *inner])
    y = _align_labels(b, y, ys, [*batch, *inner, *right])
    # Several dims to the left stay as they are where they can be a batch of their own.
    many_rows = len(left) > 1 and bool(batch)
    if many_rows or len(inner) > 1:
        rows = [_multiply_sizes(size, left)] if len(left) > 1 and batch else [size[s] for s in left]
        x = b.reshape(x, [*(size[s] for s in batch), *rows, _multiply_sizes(size, inner)])
    if len(inner) > 1 or len(right) > 1:
        columns = [_multiply_sizes(size, right)] if right else []
        y = b.reshape(y, [*(size[s] for s in batch), _multiply_sizes(size, inner), *columns])
    if not left and batch:
        x = b.unsqueeze(x, -2)
    if not right and batch:
        y = b.unsqueeze(y, -1)
    out = emit_matmul(b, x, y)
    if many_rows or len(right) > 1:
        return b.reshape(out, [size[s] for s in (*batch, *left, *right)])
    if batch and not (left and right):
        return b.squeeze(out, -1 if left else -2)
    return out


def _multiply_sizes(size: dict[str, Any], labels: Labels) -> int | Expr:
    out: Any = 1
    for label in labels:
        out = out * size[label]
    return out
