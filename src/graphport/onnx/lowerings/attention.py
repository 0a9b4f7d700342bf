"""Lowers scaled dot product attention, and operators of Hugging Face transformers.

`Attention` where ONNX Runtime has it and takes these operands; on flat rows [batch, length, heads *
size] where they come as such, which saves the moves (1 thread, 12 heads of 64, 128 rows: 0.68 ms
against 0.79 by heads and 0.80 in parts). It refuses sizes of 0: where they cannot be excluded it is
decomposed, or with target="ort" put behind a test (0.005 ms).

A row that attends to nothing is 0 in torch, and so it is here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import is_all_true, lower, lower_named
from graphport.onnx.lowerings.activation import emit_dropout
from graphport.onnx.lowerings.control import close_subgraph, open_subgraph
from graphport.onnx.lowerings.linalg import emit_matmul
from graphport.onnx.lowerings.reduce import log_sum_exp, reduce_extreme
from graphport.symbolic import ge

ROWS_TO_HEADS = [0, 2, 1, 3]
"""Between [batch, length, heads, size] and [batch, heads, length, size]."""


class _Call(NamedTuple):
    """What is computed: the operands, and what is known of the result."""

    q: Value
    k: Value
    v: Value
    mask: Value | None
    is_causal: bool
    scale: Any
    result: Any


@lower(aten.scaled_dot_product_attention.default, ignores="enable_gqa")
def scaled_dot_product_attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: Number,
) -> Value:
    call = _Call(query, key, value, attn_mask, is_causal, scale, b.result)
    return _lower_attention(b, call, dropout_p)


@lower(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _scaled_dot_product_flash_attention_for_cpu(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Value | None,
    scale: Number,
) -> tuple[Value, Value]:
    call = _Call(query, key, value, attn_mask, is_causal, scale, b.result[0])
    out = _lower_attention(b, call, dropout_p)
    q, k = (b.cast(x, torch.float32) for x in (query, key))
    scores = _scores(b, q, k, _list_masks(b, attn_mask, is_causal, query, key), scale)
    return out, log_sum_exp(b, scores, [scores.rank - 1], False)


def _lower_attention(b: Builder, call: _Call, dropout: float) -> Value:
    if call.scale is None:
        size = call.q.shape[-1] if call.q.shape else 1
        if isinstance(size, int):
            call = call._replace(scale=size**-0.5 if size else 1.0)
    if call.mask is not None and is_all_true(call.mask):
        call = call._replace(mask=None)
    if not dropout and _can_fuse(b, call):
        out = _emit_fused(b, call)
        if out is not None:
            return out
    return _emit_decomposed(b, call, dropout)


# As one operator


def _can_fuse(b: Builder, call: _Call) -> bool:
    """Whether `Attention` takes the operands as they are."""
    q, k, v, mask, _, scale, _ = call
    if not (b.has("Attention", q.dtype) and q.rank == k.rank == v.rank == 4):
        return False
    if not isinstance(scale, (int, float)) or scale <= 0:
        return False
    if mask is not None and (mask.rank < 2 or mask.dtype not in (torch.bool, q.dtype)):
        return False
    (qb, qh, _, _), (kb, kh, ks, _), (vb, vh, vs, _) = (x.shape or () for x in (q, k, v))
    heads = isinstance(qh, int) and isinstance(kh, int) and kh > 0 and qh % kh == 0
    return heads and kh == vh and qb == kb == vb and ks == vs


def _emit_fused(b: Builder, call: _Call) -> Value | None:
    q, k, v, mask, is_causal, scale, result = call
    batch, heads, length, size = result.sizes
    if _list_maybe_empty(b, (q.shape or ())[3], size):
        return None  # ONNX Runtime refuses heads of no numbers, of which every row counts alike
    doubtful = _list_maybe_empty(b, batch, length, (k.shape or ())[2])
    flat = all(map(is_transposed_from_rows, (q, k, v)))
    if doubtful and not (flat and b.is_tuned):
        return None
    if mask is not None:
        wanted = (*(mask.shape or ())[:-2], length, (k.shape or ())[2])
        mask = b.expand(_raise_lowest(b, mask), wanted)
    options = {"scale": float(scale), "is_causal": 1 if is_causal else None}
    if not flat:
        return _emit_attention(b, q, k, v, mask, **options)
    counts = {"q_num_heads": heads, "kv_num_heads": (k.shape or ())[1]}
    q, k, v = (merge_heads(b, x) for x in (q, k, v))
    sizes = (batch, length, heads * size)
    if not doubtful:
        out = _emit_attention(b, q, k, v, mask, **options, **counts)
    else:
        empty = b.Equal(b.sizes.number(_product(doubtful)), 0)
        with open_subgraph(b, "empty") as nothing:
            close_subgraph(b, nothing, [b.expand(b.scalar(0.0, q.dtype), sizes)])
        with open_subgraph(b, "not_empty") as something:
            close_subgraph(b, something, [_emit_attention(b, q, k, v, mask, **options, **counts)])
        out = b.If(empty, then_branch=nothing, else_branch=something, dtype=q.dtype)
    split = b.reshape(b.shaped(out, sizes), (batch, length, heads, size))
    return b.transpose(split, ROWS_TO_HEADS)


def _emit_attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, **options: Any
) -> Value:
    """Attention, in float32 where a mask is added to halves: torch adds it in float32 too.

    That is no slower (12 heads of 64, 128 rows: 0.94 ms against 1.06).
    """
    if mask is None or not _has_float16_mask(q, mask):
        return b.Attention(q, k, v, mask, **options)
    wide = (b.cast(x, torch.float32) for x in (q, k, v, mask))
    return b.cast(b.Attention(*wide, **options), q.dtype)


def _has_float16_mask(q: Value, mask: Value | None) -> bool:
    return mask is not None and q.dtype is mask.dtype is torch.float16


def _raise_lowest(b: Builder, mask: Value) -> Value:
    """A mask whose lowest floats are the ones next to them.

    ONNX Runtime leaves out what the lowest float is added to, as if it were -inf: a row of them is
    0 instead of an average. To the sum with a score it makes no difference. The constants that a
    mask is made of are replaced if they are in sight, so that it costs nothing.
    """
    if mask.dtype is not torch.float32:
        return mask
    lowest = torch.finfo(mask.dtype).min
    least = torch.nextafter(torch.tensor(lowest), torch.tensor(0.0))
    node = mask.producer
    if mask.tensor is not None:
        low = mask.tensor == lowest
        return b.constant(torch.where(low, least, mask.tensor)) if low.any() else mask
    if node is not None and node.op == "Where":
        where, *values = node.inputs
        made = b.Where(where, *(_raise_lowest(b, v) for v in values if v is not None))
        return b.shaped(made, mask.sizes)
    if node is not None and node.op in _MOVEMENT_OPS and node.inputs[0] is not None:
        inner = _raise_lowest(b, node.inputs[0])
        moved = getattr(b, node.op)(inner, *node.inputs[1:], **node.attributes)
        return b.shaped(moved, mask.sizes)
    if node is not None and node.op == "Cast" and node.inputs[0] is not None:
        if not node.inputs[0].dtype.is_floating_point:
            return mask  # no integer is as low
    return b.Where(b.Equal(mask, lowest), least, mask)


def _list_maybe_empty(b: Builder, *sizes: Any) -> list[Any]:
    """Those of the sizes that are not known to be positive."""
    return [s for s in sizes if b.scope.decide(ge(s, 1)) is not True]


def _product(sizes: list[Any]) -> Any:
    out: Any = 1
    for s in dict.fromkeys(sizes):
        out = out * s
    return out


def is_transposed_from_rows(x: Value) -> bool:
    """Whether a value [batch, heads, length, size] was moved there from rows."""
    made = x.producer
    return made is not None and made.op == "Transpose" and made.attributes["perm"] == ROWS_TO_HEADS


def merge_heads(b: Builder, x: Value) -> Value:
    """What was moved to [batch, heads, length, size], as [batch, length, heads * size]."""
    assert x.producer is not None
    source = x.producer.inputs[0]
    assert source is not None
    batch, heads, length, size = x.shape or ()
    return b.reshape(source, (batch, length, heads * size))  # type: ignore[operator]


# Decomposed


def _emit_decomposed(b: Builder, call: _Call, dropout: float) -> Value:
    """softmax(q @ k.T * scale + mask) @ v, in one dtype that ONNX Runtime computes in."""
    q, k, v, mask, is_causal, scale, result = call
    dtype = torch.float32 if q.dtype is torch.bfloat16 or _has_float16_mask(q, mask) else q.dtype
    if mask is not None and mask.dtype.is_floating_point and mask.dtype is not q.dtype:
        dtype = mask.dtype
    q, k, v = (b.cast(x, dtype) for x in (q, k, v))
    masks = _list_masks(b, mask, is_causal, q, k)
    q, k, v, masks = _group_heads(b, q, k, v, masks)
    scores = _scores(b, q, k, masks, scale)
    weights = emit_dropout(b, b.Softmax(scores, axis=-1), dropout, train=True)
    out = emit_matmul(b, weights, v)
    for row in [] if mask is None else _attended_rows(b, masks):
        out = b.Where(row, out, 0.0)
    return b.reshape(out, result.sizes) if q.rank > len(result.sizes) else out


def _scores(b: Builder, q: Value, k: Value, masks: list[Value], scale: Any) -> Value:
    if scale is None:  # of a size that is not fixed
        q = b.Div(q, b.Sqrt(b.cast(b.sizes.number((q.shape or ())[-1]), q.dtype)))
    elif scale != 1:
        q = b.Mul(q, scale)
    last = k.rank - 1
    scores = emit_matmul(b, q, b.transpose(k, [*range(last - 1), last, last - 1]))
    for mask in masks:
        if mask.dtype is torch.bool:
            scores = b.Where(mask, scores, -math.inf)
        else:
            scores = b.Add(scores, b.cast(mask, scores.dtype))
    return scores


def _list_masks(b: Builder, mask: Value | None, is_causal: bool, q: Value, k: Value) -> list[Value]:
    """Bool masks of what is attended to, and what is added to scores."""
    given = [] if mask is None else [mask]
    if not is_causal:
        return given
    causal = _causal_mask(b, (q.shape or ())[-2], (k.shape or ())[-2])
    if mask is not None and mask.dtype is torch.bool:
        return [b.And(mask, causal)]
    return [causal, *given]


def _causal_mask(b: Builder, length: Any, other: Any) -> Value:
    """A row sees what is not after it."""
    if isinstance(length, int) and isinstance(other, int) and length * other <= 1 << 16:
        return b.constant(torch.ones(length, other, dtype=torch.bool).tril())
    counts = [b.Range(b.scalar(0, torch.int64), b.sizes.number(n), 1) for n in (length, other)]
    return b.LessOrEqual(counts[1], b.unsqueeze(counts[0], 1))


def _attended_rows(b: Builder, masks: list[Value]) -> list[Value]:
    """For each row whether there is anything that it attends to, where that is not certain."""
    if len(masks) == 1 and masks[0].dtype is torch.bool:
        (mask,) = masks
        if mask.tensor is not None and bool(mask.tensor.any(-1).all()):
            return []
        # As floats: ONNX Runtime has no maximum of empty bools.
        return [b.Greater(b.ReduceMax(b.cast(mask, torch.float32), [-1]), 0.0)]
    added = [m for m in masks if m.dtype is not torch.bool and not _is_finite(m)]
    if not added:
        return []
    (mask,) = added
    for other in masks:
        if other.dtype is torch.bool:
            mask = b.Where(other, mask, -math.inf)
    return [b.Not(b.Equal(reduce_extreme(b, "ReduceMax", mask, [mask.rank - 1], True), -math.inf))]


_MOVEMENT_OPS = set("Expand Unsqueeze Squeeze Reshape Transpose Slice Identity Gather".split())


def _is_finite(x: Value | None) -> bool:
    """Whether a mask is made of finite constants, as those with the least float are."""
    if x is None:
        return False
    if x.tensor is not None:
        return bool(x.tensor.isfinite().all())
    node = x.producer
    if node is None:
        return False
    if node.op == "Cast":
        source = node.inputs[0]
        return source is not None and (not source.dtype.is_floating_point or _is_finite(source))
    if node.op == "Where":
        return all(map(_is_finite, node.inputs[1:]))
    return node.op in _MOVEMENT_OPS and _is_finite(node.inputs[0])


def _group_heads(
    b: Builder, q: Value, k: Value, v: Value, masks: list[Value]
) -> tuple[Value, Value, Value, list[Value]]:
    """Fewer heads of keys and values than of queries: each serves several, in a dim of its own."""
    if q.rank < 3 or k.rank < 3:
        return q, k, v, masks
    heads, theirs, last = ((x.shape or ())[-3] for x in (q, k, v))
    if heads == theirs == last or (1 in (heads, theirs) and 1 in (heads, last)):
        return q, k, v, masks
    if theirs != last:
        return q, _repeat_heads(b, k, heads), _repeat_heads(b, v, heads), masks
    *lead, _, length, size = q.shape or ()
    count = heads // theirs  # type: ignore[operator]
    q = b.reshape(q, (*lead, theirs, count, length, size))
    k, v = (b.unsqueeze(x, x.rank - 2) for x in (k, v))
    return q, k, v, [_group_mask(b, m, theirs, count) for m in masks]


def _repeat_heads(b: Builder, x: Value, heads: Any) -> Value:
    *lead, own, length, size = x.shape or ()
    if own == heads or own == 1:
        return x
    wide = b.expand(b.unsqueeze(x, x.rank - 2), (*lead, own, heads // own, length, size))
    return b.reshape(wide, (*lead, heads, length, size))


def _group_mask(b: Builder, mask: Value, groups: Any, count: Any) -> Value:
    if mask.rank < 3:
        return mask
    *lead, heads, length, other = mask.shape or ()
    if heads == 1:
        return b.unsqueeze(mask, mask.rank - 2)
    return b.reshape(mask, (*lead, groups, count, length, other))


# Operators that Hugging Face transformers defines for itself.


@lower_named("transformers::grouped_mm_fallback")
def grouped_mm_fallback(b: Builder, input: Value, weight: Value, offs: Value) -> Value:
    """Rows sorted by expert, times the matrix of their expert; past the last offset they are 0."""
    (experts,) = offs.shape or (None,)
    if not isinstance(experts, int):
        raise UnsupportedError("a mixture of a dynamic number of experts")
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
