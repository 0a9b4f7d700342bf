"""Matches patterns of operators in the program's graph and fuses them into one."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from graphport.compat.operators import aten
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import (
    Call,
    OneOf,
    fusion,
    is_all_true,
    match_pattern,
    number,
    tensor,
    with_optional_cast,
)
from graphport.onnx.lowerings.attention import ROWS_TO_HEADS, is_transposed_from_rows, merge_heads
from graphport.ops.norm import fold_batch_norm, scale_channels
from graphport.ops.registry import overloads
from graphport.symbolic import Expr
from graphport.tensors.abstract import get_val

if TYPE_CHECKING:
    from graphport.onnx.lower.lowerer import Lowerer

MUL, ADD, DIV = aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor
POW = aten.pow.Tensor_Scalar

X, Y = tensor("x"), tensor("y")


# Nothing to do


def _keep_operand(lowerer: Lowerer, node: Node) -> Value | None:
    """The first operand, if the result is of its dtype and sizes."""
    x = lowerer.env.get(node.args[0])
    result = lowerer.b.result
    same = isinstance(x, Value) and x.dtype is result.dtype and x.shape == result.sizes
    return x if same else None


@fusion(ADD, aten.sub.Tensor)
def add_zero(lowerer: Lowerer, node: Node) -> Value | None:
    """x + 0 -> x, for integers: -0.0 + 0 is 0.0."""
    if type(node.args[1]) is not int or node.args[1] != 0:
        return None
    return None if lowerer.b.result.dtype.is_floating_point else _keep_operand(lowerer, node)


@fusion(MUL, DIV)
def mul_one(lowerer: Lowerer, node: Node) -> Value | None:
    """x * 1 -> x."""
    y = node.args[1]
    return _keep_operand(lowerer, node) if type(y) in (int, float) and y == 1 else None


@fusion(aten.bitwise_and.Tensor, aten.logical_and.default)
def and_true(lowerer: Lowerer, node: Node) -> Value | None:
    """x & True -> x."""
    a, b = (lowerer.env.get(n) for n in node.args)
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Value) and isinstance(other, Value) and is_all_true(other):
            if x.dtype is torch.bool and x.shape == lowerer.b.result.sizes:
                return x
    return None


@fusion(aten.ge.Scalar)
def position_is_natural(lowerer: Lowerer, node: Node) -> Value | None:
    """arange(n) >= 0 -> True, in whatever shape: masks are made of it."""
    if node.args[1] != 0 or _find_arange(node.args[0]) is None:
        return None
    b = lowerer.b
    return b.expand(b.scalar(True, torch.bool), b.result.sizes)


def _find_arange(x: Any) -> Node | None:
    """The `arange` from 0 on that a tensor consists of, possibly with dims of 1 added."""
    while isinstance(x, Node):
        if x.target is aten.arange.default:
            return x
        same = (x.target is ADD and x.args[1] == 0) or _is_full_slice(x)
        if not same and x.target not in (aten.unsqueeze.default, aten.view.default):
            return None
        x = x.args[0]
    return None


def _is_full_slice(x: Node) -> bool:
    """x[:]"""
    return x.target is aten.slice.Tensor and x.args[2:] in ((0, sys.maxsize), (None, None))


@fusion(aten.index.Tensor)
def index_all(lowerer: Lowerer, node: Node) -> Value | None:
    """x[arange(n)[:, None], arange(m)] -> x, with dims of 1 between: what vmap makes of x[i, j]."""
    b = lowerer.b
    x, indices = lowerer.env[node.args[0]], node.args[1]
    if len(indices) != x.rank:
        return None
    before = -1
    for dim, index in enumerate(indices):
        found = _find_arange(index)
        if found is None:
            return None
        at = _only_dim(lowerer.env[index].shape)
        if at is None or at + len(b.result.sizes) - lowerer.env[index].rank <= before:
            return None
        before = at + len(b.result.sizes) - lowerer.env[index].rank
        if b.result.sizes[before] != x.shape[dim] or lowerer.env[index].shape[at] != x.shape[dim]:
            return None
    return b.reshape(x, b.result.sizes)


def _only_dim(shape: Any) -> int | None:
    """The one dim that is not of size 1."""
    others = [d for d, s in enumerate(shape) if not (type(s) is int and s == 1)]
    return others[0] if len(others) == 1 else None


@fusion(aten.reshape.default, aten.view.default, aten.flatten.using_ints)
def flat_mean(lowerer: Lowerer, node: Node) -> Value | None:
    """The mean over all of an image, without the dims of 1 that it leaves -> ReduceMean."""
    b = lowerer.b
    x = lowerer.env[node.args[0]]
    if x.producer is None or x.producer.op != "GlobalAveragePool":
        return None
    if x.shape[:2] != b.result.sizes:
        return None
    return b.ReduceMean(x.producer.inputs[0], list(range(2, x.rank)), keepdims=0)


# Normalisation

_SQUARE = OneOf(Call(POW, X, 2), Call(MUL, X, X))
_MEAN = Call(ADD, Call(aten.mean.dim, _SQUARE, [-1], True), number("eps"))
_NORMALISED = OneOf(
    Call(MUL, X, OneOf(Call(aten.rsqrt.default, _MEAN), Call(POW, _MEAN, -0.5))),
    Call(DIV, X, Call(aten.sqrt.default, _MEAN)),
)
_SCALED = Call(MUL, tensor("scale"), with_optional_cast(_NORMALISED))


@fusion(MUL)
def rms_norm(lowerer: Lowerer, node: Node) -> Value | None:
    """scale * x / sqrt(mean(x^2) + eps), computed in float32, -> RMSNormalization."""
    b = lowerer.b
    if not b.has("RMSNormalization", b.result.dtype):
        return None
    found = match_pattern(_SCALED, node)
    if found is None:
        return None
    inner = found["x"]
    scale = lowerer.env[found["scale"]]
    x = lowerer.env[inner]
    if x.dtype is not torch.float32 and x.dtype is not b.result.dtype:
        return None
    if inner.target is aten._to_copy.default and b.result.dtype is not torch.float32:
        x = lowerer.env[inner.args[0]]
    last = x.shape[-1]
    plain = scale.shape == (last,) and type(last) is int and x.shape == b.result.sizes
    if not plain or scale.dtype is not x.dtype or x.dtype is not b.result.dtype:
        return None
    eps = float(found["eps"])
    if not b.has("RMSNormalization", x.dtype, eps):
        return None
    return b.RMSNormalization(x, scale, axis=-1, epsilon=eps)


@fusion(ADD)
def sum_before_layer_norm(lowerer: Lowerer, node: Node) -> Value | None:
    """x + y -> Sum, before a layer norm for ONNX Runtime, which would make one operator of the two.

    That one is slow on CPU: 2.2 ms against 0.28 for 512 rows of 768.
    """
    b = lowerer.b
    if not b.is_tuned or b.result.dtype is not torch.float32 or len(node.args) != 2:
        return None
    if not any(u.target is aten.layer_norm.default for u in node.users) or node.kwargs:
        return None
    values = [lowerer.env.get(n) for n in node.args]
    if any(not isinstance(v, Value) or v.dtype is not torch.float32 for v in values):
        return None
    return b.Sum(*values)


@fusion(aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)
def conv_batch_norm(lowerer: Lowerer, node: Node) -> Any:
    """batch_norm(conv(x)) with fixed statistics -> conv with other weights."""
    b = lowerer.b
    x, weight, bias, mean, var, *flags = node.args
    inside = node.target is aten.batch_norm.default
    result = b.result if inside else b.result[0]
    conv = lowerer.env[x].producer
    if (inside and flags[0]) or conv is None or conv.op != "Conv" or len(x.users) > 1:
        return None
    values = [None if n is None else lowerer.env[n] for n in (weight, bias, mean, var)]
    kernel, old = conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
    given = [v for v in (kernel, old, *values) if v is not None]
    if values[2] is None or any(v.weight is None or v.dtype is not result.dtype for v in given):
        return None
    tied = any(len(n.users) > 1 for n in x.args[1:3] if isinstance(n, Node))
    if tied or any(v in b.main.inputs for v in given):  # used elsewhere, or written to
        return None
    eps = flags[2] if inside else flags[1]
    present = [v is not None for v in (old, *values)]
    name = f"{kernel.name}*{_module_path(values[2].name)}"
    new = [
        b.derived(f"{name}{suffix}", _FoldedParameter(part, present, eps), *given)
        for part, suffix in (("weight", ""), ("bias", ".bias"))
    ]
    out = b.shaped(b.Conv(conv.inputs[0], *new, **conv.attributes), result.sizes)
    if inside:
        return out
    return (out, *(b.constant(torch.empty(0, dtype=r.dtype)) for r in b.result[1:]))


def _module_path(name: str) -> str:
    """`layer1.0.bn1` of `layer1.0.bn1.running_mean`."""
    return name.rpartition(".")[0] or name


class _FoldedParameter:
    """The weight or bias of a convolution with the normalisation after it."""

    def __init__(self, part: str, present: list[bool], eps: float) -> None:
        self.part, self.present, self.eps = part, present, eps

    def __call__(self, kernel: Any, *given: object) -> Any:
        rest = iter(given)
        parts: list[Any] = [next(rest) if there else None for there in self.present]
        bias, scale, shift, mean, var = parts
        factor, offset = fold_batch_norm(bias, mean, var, scale, shift, self.eps)
        new = scale_channels(kernel, factor) if self.part == "weight" else offset
        return new.to(kernel.dtype)


# Activation

_CUBIC = Call(ADD, X, Call(MUL, Call(POW, X, 3.0), 0.044715))
_TANH = Call(ADD, Call(aten.tanh.default, Call(MUL, _CUBIC, math.sqrt(2 / math.pi))), 1.0)
_ERF = Call(
    ADD,
    Call(aten.erf.default, OneOf(Call(DIV, X, math.sqrt(2)), Call(MUL, X, math.sqrt(0.5)))),
    1.0,
)


def _gelu_pattern(factor: object) -> OneOf:
    """0.5 * x * factor, in any order."""
    half = Call(MUL, X, 0.5)
    return OneOf(
        Call(MUL, half, factor),
        Call(MUL, X, Call(MUL, factor, 0.5)),
        Call(MUL, Call(MUL, X, factor), 0.5),
    )


_GELU = {"tanh": _gelu_pattern(_TANH), "none": _gelu_pattern(_ERF)}


@fusion(MUL)
def gelu(lowerer: Lowerer, node: Node) -> Value | None:
    """gelu as models write it themselves -> Gelu."""
    b = lowerer.b
    if not b.has("Gelu", b.result.dtype):
        return None
    for kind, pattern in _GELU.items():
        found = match_pattern(pattern, node)
        if found is not None:
            x = lowerer.env[found["x"]]
            return b.Gelu(x, approximate=kind) if x.dtype is b.result.dtype else None
    return None


# Rotary position embedding

_ROTARY = Call(ADD, Call(MUL, X, tensor("cos")), Call(MUL, tensor("turned"), tensor("sin")))
_SAME_IN_HALVES = overloads("cos sin _to_copy unsqueeze")


@fusion(ADD)
def rotary(lowerer: Lowerer, node: Node) -> Value | None:
    """x * cos + rotate_half(x) * sin -> RotaryEmbedding, where cos and sin repeat in halves."""
    b = lowerer.b
    if not b.has("RotaryEmbedding", b.result.dtype):
        return None
    found = match_pattern(_ROTARY, node)
    if found is None or not _is_rotated_half(found["turned"], found["x"]):
        return None
    x, cos, sin = (lowerer.env[found[name]] for name in ("x", "cos", "sin"))
    if x.rank != 4 or any(c.dtype is not x.dtype or c.rank != 4 for c in (cos, sin)):
        return None
    if not all(_is_repeated_half(found[name]) for name in ("cos", "sin")):
        return None
    sizes = (x.shape[0], 1, x.shape[2], x.shape[3])
    if type(x.shape[3]) is not int or any(c.shape[1:] != sizes[1:] for c in (cos, sin)):
        return None
    if any(c.shape[0] not in (1, x.shape[0]) for c in (cos, sin)):
        return None
    halves = [_first_half(lowerer, c, x) for c in (cos, sin)]
    if not is_transposed_from_rows(x):
        return b.RotaryEmbedding(x, *halves)
    # On rows of all heads, as attention takes them: the moves between are then not needed.
    batch, heads, length, size = x.shape
    turned = b.RotaryEmbedding(merge_heads(b, x), *halves, num_heads=heads)
    split = b.reshape(b.shaped(turned, (batch, length, heads * size)), (batch, length, heads, size))
    return b.transpose(split, ROWS_TO_HEADS)


def _first_half(lowerer: Lowerer, c: Value, x: Value) -> Value:
    """The first half of a table [batch or 1, 1, length, size], as [batch, length, size / 2]."""
    b = lowerer.b
    size = x.sizes[3] // 2
    half = b.shaped(b.Slice(c, [0], [size], [3]), (*c.sizes[:3], size))
    return b.expand(b.squeeze(half, 1), (x.sizes[0], x.sizes[2], size))


def _is_rotated_half(turned: Node, x: Node) -> bool:
    """cat(-x2, x1) of the halves of x."""
    if turned.target is not aten.cat.default or len(turned.args[0]) != 2:
        return False
    dim = turned.args[1] if len(turned.args) > 1 else 0
    size = get_val(x).shape[-1]
    second, first = turned.args[0]
    if dim not in (-1, get_val(x).dim() - 1) or not isinstance(size, int) or size % 2:
        return False
    if second.target is not aten.neg.default:
        return False
    return _is_slice_of(first, x, 0, size // 2) and _is_slice_of(second.args[0], x, size // 2, size)


def _is_slice_of(node: object, x: Node, start: int, end: int) -> bool:
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor:
        return False
    defaults: tuple[Any, ...] = (0, None, None)
    of, dim, first, last, *step = list(node.args) + list(defaults[len(node.args) - 1 :])
    size = get_val(x).shape[-1]
    bounds = range(size)[slice(first, last)] if _are_static(first, last) else None
    plain = of is x and dim in (-1, get_val(x).dim() - 1) and step in ([], [1])
    return plain and bounds == range(start, end)


def _are_static(*numbers: object) -> bool:
    return all(n is None or type(n) is int for n in numbers)


def _is_repeated_half(x: Any) -> bool:
    """Whether the second half of the last dim is the first again: made by cat(f, f)."""
    while isinstance(x, Node):
        if x.target is aten.cat.default:
            parts, dim = x.args[0], x.args[1] if len(x.args) > 1 else 0
            last = dim in (-1, get_val(x).dim() - 1)
            return last and len(parts) == 2 and parts[0] is parts[1]
        scaled = x.target is MUL and not isinstance(x.args[1], Node | Expr)
        moved = x.target is aten.unsqueeze.default and x.args[1] in (-1, get_val(x).dim() - 1)
        if moved or (not scaled and x.target not in _SAME_IN_HALVES):
            return False
        x = x.args[0]
    return False
