"""Lowers losses (CTC included) and distances, in the dtype of the result; halves in float32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.arithmetic import emit_arange
from graphport.onnx.emit.builder import Builder, Number
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import lower, lower_named
from graphport.onnx.lowerings.activation import log_sigmoid, log_softmax
from graphport.onnx.lowerings.control import emit_counted_loop
from graphport.onnx.lowerings.conv import Numbers, sizes_of
from graphport.onnx.lowerings.linalg import emit_matmul, linear
from graphport.onnx.lowerings.numerics.factorizations import as_column, take_at
from graphport.onnx.lowerings.reduce import (
    average_axes,
    axes_of,
    log_sum_exp,
    norm,
    sum_axes,
    widen_input,
)
from graphport.onnx.lowerings.scatter import expand_number
from graphport.symbolic import Expr, max_

_NONE, _MEAN = 0, 1


def reduce_loss(b: Builder, x: Value, reduction: int) -> Value:
    """The loss of each element, their mean, or their sum."""
    if reduction == _NONE:
        return x
    return (average_axes if reduction == _MEAN else sum_axes)(b, x, axes_of(x, None), False)


def _widen_operands(b: Builder, *values: Value) -> list[Value]:
    """In one dtype, as torch promotes them, and wide enough to compute in."""
    return [widen_input(b, v) for v in b.common(*values)]


# Element by element


@lower(aten.mse_loss.default)
def mse_loss(b: Builder, self: Value, target: Value, reduction: int) -> Value:
    away = b.Sub(*_widen_operands(b, self, target))
    return reduce_loss(b, b.Mul(away, away), reduction)


@lower(aten.l1_loss.default)
def l1_loss(b: Builder, self: Value, target: Value, reduction: int) -> Value:
    return reduce_loss(b, b.Abs(b.Sub(*_widen_operands(b, self, target))), reduction)


@lower(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: Builder, self: Value, target: Value, reduction: int, beta: float) -> Value:
    if beta == 0:
        return l1_loss(b, self, target, reduction)
    away = b.Abs(b.Sub(*_widen_operands(b, self, target)))
    near = b.Mul(b.Mul(away, away), 0.5 / beta)
    return reduce_loss(b, b.Where(b.Less(away, beta), near, b.Sub(away, 0.5 * beta)), reduction)


@lower(aten.huber_loss.default)
def huber_loss(b: Builder, self: Value, target: Value, reduction: int, delta: float) -> Value:
    away = b.Abs(b.Sub(*_widen_operands(b, self, target)))
    near = b.Mul(b.Mul(away, away), 0.5)
    far = b.Mul(b.Sub(away, 0.5 * delta), delta)
    return reduce_loss(b, b.Where(b.LessOrEqual(away, delta), near, far), reduction)


@lower(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, self: Value, target: Value, reduction: int) -> Value:
    x, y = _widen_operands(b, self, target)
    power = b.Exp(b.Neg(b.Mul(y, x)))
    if b.result.dtype is torch.float16:
        power = b.Where(b.Less(power, 65520.0), power, float("inf"))  # what a half does not hold
    return reduce_loss(b, b.Log(b.Add(power, 1.0)), reduction)


@lower(aten.kl_div.default)
def kl_div(b: Builder, self: Value, target: Value, reduction: int, log_target: bool) -> Value:
    x, y = _widen_operands(b, self, target)
    if log_target:
        return reduce_loss(b, b.Mul(b.Exp(y), b.Sub(y, x)), reduction)
    own = b.Where(b.Equal(y, 0.0), 0.0, b.Mul(y, b.Log(y)))
    return reduce_loss(b, b.Sub(own, b.Mul(y, x)), reduction)


@lower(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int
) -> Value:
    """Logarithms are held at -100, so that a certain error costs something finite."""
    x, y = _widen_operands(b, self, target)
    yes, no = (b.Max(b.Log(v), -100.0) for v in (x, b.Sub(1.0, x)))
    loss = b.Sub(b.Mul(b.Sub(y, 1.0), no), b.Mul(y, yes))
    return reduce_loss(b, _weight_loss(b, loss, weight), reduction)


@lower(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder,
    self: Value,
    target: Value,
    weight: Value | None,
    pos_weight: Value | None,
    reduction: int,
) -> Value:
    x, y = _widen_operands(b, self, target)
    log = log_sigmoid(b, x)
    if pos_weight is not None:
        log = b.Mul(b.Add(b.Mul(b.Sub(widen_input(b, pos_weight), 1.0), y), 1.0), log)
    loss = b.Sub(b.Mul(b.Sub(1.0, y), x), log)
    return reduce_loss(b, _weight_loss(b, loss, weight), reduction)


def _weight_loss(b: Builder, loss: Value, weight: Value | None) -> Value:
    return loss if weight is None else b.Mul(loss, b.cast(weight, loss.dtype))


# Classes


class _ClassTargets:
    """Targets that are numbers of classes; those that are ignored point at the first."""

    def __init__(
        self, b: Builder, x: Value, target: Value, weight: Value | None, ignore_index: int
    ) -> None:
        self.b, self.axis = b, 0 if x.rank == 1 else 1
        index = b.cast(target, torch.int64)
        self.counts = b.Not(b.Equal(index, b.scalar(ignore_index, torch.int64)))
        self.index = b.Where(self.counts, index, 0)
        self.weight = None
        if weight is not None:
            self.weight = b.Gather(b.cast(weight, x.dtype), self.index, axis=0)

    def masked(self, loss: Value) -> Value:
        return self.b.Where(self.counts, loss, 0.0)

    def pick_classes(self, x: Value) -> Value:
        """What is at the classes, for each target."""
        b = self.b
        place = b.unsqueeze(self.index, self.axis)
        sizes = (*(self.index.shape or ())[: self.axis], 1, *(self.index.shape or ())[self.axis :])
        return b.squeeze(b.shaped(b.GatherElements(x, place, axis=self.axis), sizes), self.axis)

    def nll(self, x: Value) -> Value:
        """The loss of each target."""
        loss = self.b.Neg(self.pick_classes(x))
        return self.masked(loss if self.weight is None else self.b.Mul(loss, self.weight))

    def amount(self, dtype: torch.dtype) -> Value:
        """What a mean divides by: the weights of targets that count."""
        b = self.b
        if self.weight is None:
            return reduce_loss(b, b.cast(self.counts, dtype), 2)
        return reduce_loss(b, self.masked(self.weight), 2)

    def reduced(self, loss: Value, reduction: int) -> Value:
        if reduction != _MEAN:
            return reduce_loss(self.b, loss, reduction)
        return self.b.Div(reduce_loss(self.b, loss, 2), self.amount(loss.dtype))


@lower(aten.nll_loss_nd.default, aten.nll_loss.default, aten.nll_loss2d.default)
def nll_loss(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> Value:
    x = widen_input(b, self)
    classes = _ClassTargets(b, x, target, weight, ignore_index)
    return classes.reduced(classes.nll(x), reduction)


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    x = widen_input(b, self)
    classes = _ClassTargets(b, x, target, weight, ignore_index)
    amount = b.scalar(0, x.dtype) if reduction == _NONE else classes.amount(x.dtype)
    return classes.reduced(classes.nll(x), reduction), amount


@lower(aten.cross_entropy_loss.default)
def cross_entropy_loss(
    b: Builder,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Value:
    x = widen_input(b, self)
    axis = 0 if x.rank == 1 else 1
    log = log_softmax(b, x, axis)
    count: Any = sizes_of(x)[axis]
    by_class = None
    if weight is not None:
        by_class = b.unsqueeze(b.cast(weight, x.dtype), *range(1, x.rank - axis))
    scaled = log if by_class is None else b.Mul(log, by_class)
    share = (
        b.Div(b.scalar(label_smoothing, x.dtype), count)
        if type(count) is Expr
        else (label_smoothing / count if count else 0.0)
    )
    if target.dtype.is_floating_point:
        y = b.cast(target, x.dtype)
        if label_smoothing > 0:
            y = b.Add(b.Mul(y, 1 - label_smoothing), share)
        loss = b.Neg(sum_axes(b, b.Mul(scaled, y), [axis], False))
        return reduce_loss(b, loss, reduction)
    classes = _ClassTargets(b, x, target, weight, ignore_index)
    hard = classes.reduced(classes.nll(log), reduction)
    if label_smoothing <= 0:
        return hard
    soft = classes.masked(b.Neg(sum_axes(b, scaled, [axis], False)))
    soft = classes.reduced(soft, reduction)
    return b.Add(b.Mul(hard, 1 - label_smoothing), b.Mul(soft, share))


# Of a linear layer, in chunks of rows to save memory: what it gives is the same without them.

_REDUCTIONS = {"none": _NONE, "mean": _MEAN, "sum": 2}


class _LinearLayer:
    """The layer in front of the loss."""

    def __init__(
        self,
        b: Builder,
        input: Value,
        weight: Value,
        bias: Value | None,
        target: Value,
        class_weight: Value | None,
        ignore_index: int,
    ) -> None:
        self.b = b
        self.input, self.weight = _widen_operands(b, input, weight)
        bias = None if bias is None else b.cast(bias, self.input.dtype)
        self.log = log_softmax(b, linear(b, self.input, self.weight, bias), 1)
        self.classes = _ClassTargets(b, self.log, target, class_weight, ignore_index)

    def loss(self, reduction: str) -> Value:
        return self.classes.reduced(self.classes.nll(self.log), _REDUCTIONS[reduction])

    def slope(self, reduction: str) -> Value:
        """Of the loss, by what the layer gives."""
        b, classes = self.b, self.classes
        line = Numbers.arange(b, sizes_of(self.weight)[0]).node
        right = b.Equal(b.unsqueeze(classes.index, 1), line)
        away = b.Sub(b.Exp(self.log), b.cast(right, self.log.dtype))
        share = b.cast(classes.counts, away.dtype)
        share = share if classes.weight is None else classes.masked(classes.weight)
        if reduction == "mean":
            share = b.Div(share, classes.amount(away.dtype))
        return b.Mul(away, b.unsqueeze(share, 1))


@lower_named(
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
    ignores="batch_chunk_size acc_policy acc_dtype",
)
def linear_cross_entropy_of_each(
    b: Builder,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    ignore_index: int,
) -> Value:
    layer = _LinearLayer(b, input, linear_weight, linear_bias, target, weight, ignore_index)
    return layer.loss("none")


@lower_named(
    "torch_nn::_linear_cross_entropy_batch_chunked",
    ignores="batch_chunk_size acc_policy acc_dtype allow_retain_graph",
)
def linear_cross_entropy(
    b: Builder,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Value, ...]:
    """The loss, and the gradients that eager computes along with it."""
    if label_smoothing:
        raise UnsupportedError("chunked linear_cross_entropy with label smoothing")
    layer = _LinearLayer(b, input, linear_weight, linear_bias, target, weight, ignore_index)
    slope = layer.slope(reduction)
    gradients = (
        (compute_input_grad, b.MatMul(slope, layer.weight)),
        (compute_linear_weight_grad, b.MatMul(b.transpose(slope, [1, 0]), layer.input)),
        (compute_linear_bias_grad, b.ReduceSum(slope, [0], keepdims=0)),
    )
    found = [
        made if wanted else b.constant(torch.zeros(about.sizes, dtype=about.dtype))
        for about, (wanted, made) in zip(b.result[1:], gradients, strict=True)
    ]
    return layer.loss(reduction), *found


@lower(aten.multi_margin_loss.default)
def multi_margin_loss(
    b: Builder,
    self: Value,
    target: Value,
    p: Number,
    margin: Number,
    weight: Value | None,
    reduction: int,
) -> Value:
    """By how much each other class comes near the right one."""
    x = b.unsqueeze(widen_input(b, self), *range(2 - self.rank))
    index = b.reshape(b.cast(target, torch.int64), (sizes_of(x)[0], 1))
    count = sizes_of(x)[1]
    near = b.Max(b.Add(b.Sub(x, b.GatherElements(x, index, axis=1)), margin), 0.0)
    near = near if p == 1 else b.Mul(near, near)
    if weight is not None:
        near = b.Mul(near, b.Gather(b.cast(weight, x.dtype), index, axis=0))
    others = b.Not(b.Equal(Numbers.arange(b, count).node, index))
    rows = b.ReduceSum(b.Where(others, near, 0.0), [1], keepdims=0)
    loss = b.Div(b.shaped(rows, sizes_of(x)[:1]), b.scalar(count, like=x))
    if reduction != _NONE:
        return reduce_loss(b, loss, reduction)
    return b.reshape(loss, sizes_of(target))


@lower(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    b: Builder, self: Value, target: Value, reduction: int
) -> tuple[Value, Value]:
    """Classes up to the first -1 against all that are not among them; none twice."""
    x, index = (
        b.unsqueeze(v, *range(2 - v.rank))
        for v in (widen_input(b, self), b.cast(target, torch.int64))
    )
    count: Any = sizes_of(x)[1]
    ends = b.CumSum(b.cast(b.Less(index, 0), torch.int64), b.scalar(1, torch.int64))
    listed = b.Equal(ends, 0)
    line = Numbers.arange(b, count).node
    found = b.And(b.Equal(b.unsqueeze(index, 2), line), b.unsqueeze(listed, 2))
    is_target = b.cast(b.ReduceMax(b.cast(found, torch.int32), [1], keepdims=0), torch.bool)
    own = b.GatherElements(x, b.Where(listed, index, 0), axis=1)
    away = b.Sub(b.unsqueeze(x, 1), b.Sub(b.unsqueeze(own, 2), 1.0))
    pairs = b.And(b.unsqueeze(listed, 2), b.Not(b.unsqueeze(is_target, 1)))
    loss = b.ReduceSum(b.Where(pairs, b.Max(away, 0.0), 0.0), [1, 2], keepdims=0)
    loss = b.Div(b.shaped(loss, sizes_of(x)[:1]), b.scalar(count, x.dtype))
    if reduction != _NONE:
        loss = reduce_loss(b, loss, 2)  # of no rows the mean is 0
        loss = (
            loss if reduction != _MEAN else b.Div(loss, b.scalar(max_(sizes_of(x)[0], 1), like=x))
        )
    elif self.rank < 2:
        loss = b.squeeze(loss, 0)
    found = b.shaped(b.cast(is_target, self.dtype), x.shape or ())
    return loss, b.squeeze(found, *range(2 - target.rank))


# Distances


@lower(aten.cosine_similarity.default)
def cosine_similarity(b: Builder, x1: Value, x2: Value, dim: int, eps: float) -> Value:
    """Each by its own length, then the product: an element counts as often as it is repeated."""
    eps = torch.tensor(eps, dtype=b.result.dtype).item()  # of halves, 1e-8 is 0
    x, y = _widen_operands(b, x1, x2)
    rank = max(x.rank, y.rank)
    if rank == 0:
        return b.Mul(*(b.Div(v, b.Max(b.Abs(v), eps)) for v in (x, y)))
    axis = dim % rank
    found = [((1,) * (rank - v.rank) + (v.shape or ()))[axis] for v in (x, y)]
    size = found[0] if found[0] != 1 else found[1]
    whole = (*b.result.sizes[:axis], size, *b.result.sizes[axis:])
    parts = []
    for v, own in zip((x, y), found, strict=True):
        v = v if own == size and v.rank == rank else b.expand(v, whole)
        parts.append(b.Div(v, b.Max(norm(b, v, 2.0, [axis], True), eps)))
    return sum_axes(b, b.shaped(b.Mul(*parts), whole), [axis], False)


@lower(aten.cdist.default, aten._cdist_forward.default)
def cdist(b: Builder, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    """Of many rows torch takes the Euclidean distance from a product, and so is this."""
    x, y = _widen_operands(b, x1, x2)
    many = any(type(s) is int and s > 25 for s in (sizes_of(x)[-2], sizes_of(y)[-2]))
    if p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        squares = [sum_axes(b, b.Mul(v, v), [v.rank - 1], True) for v in (x, y)]
        turned = [
            b.transpose(v, [*range(v.rank - 2), v.rank - 1, v.rank - 2]) for v in (y, squares[1])
        ]
        crossed = b.Mul(emit_matmul(b, x, turned[0]), -2.0)
        return b.Sqrt(b.Max(b.Add(b.Add(crossed, squares[0]), turned[1]), 0.0))
    away = b.Sub(b.unsqueeze(x, x.rank - 1), b.unsqueeze(y, y.rank - 2))
    if sizes_of(x)[-1] == 0:
        return b.expand(b.scalar(0, x.dtype), b.result.sizes)
    if p == 0:  # a nan is not counted, but comes out
        return sum_axes(b, b.Min(b.Ceil(b.Abs(away)), 1.0), [away.rank - 1], False)
    return norm(b, away, p, [away.rank - 1], False)


@lower(aten._pdist_forward.default, aten.pdist.default)
def pdist(b: Builder, self: Value, p: float) -> Value:
    """Every row with those after it."""
    x = widen_input(b, self)
    rows: Any = sizes_of(x)[0]
    if type(rows) is int:
        first, second = map(b.constant, torch.triu_indices(rows, rows, 1))
    else:
        one = b.expand(b.scalar(1, torch.int64), (rows, rows))
        places = b.NonZero(b.Trilu(one, b.scalar(1, torch.int64), upper=1))
        first, second = (b.Gather(places, b.scalar(i, torch.int64), axis=0) for i in (0, 1))
    away = b.Sub(b.Gather(x, first, axis=0), b.Gather(x, second, axis=0))
    return norm(b, away, p, [1], False)


# Connectionist temporal classification (CTC): the likelihood of alignments of targets with frames.
#
# A target is read with blanks around and between its labels. From frame to frame the logarithm of
# the probability to be at each of these places is carried on: one stays, goes to the next, or
# leaves out a blank between two labels that differ. A sequence that has ended is kept as it is.

_CTC_MEAN = 1
_LOG_ZERO = float("-inf")
Lengths = Value | Sequence[int]


@lower(aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def ctc_loss(
    b: Builder,
    log_probs: Value,
    targets: Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> Value:
    single = log_probs.rank == 2
    x = b.unsqueeze(log_probs, 1) if single else log_probs
    batch = (x.shape or ())[1]
    wanted = _lengths_vector(b, target_lengths, batch)
    labels = b.cast(targets, torch.int64)
    if single:
        labels = b.unsqueeze(labels, 0)
    elif labels.rank == 1:
        labels = _unflatten_targets(b, labels, target_lengths, wanted, batch)
    labels = _insert_blanks(b, labels, wanted, blank)
    ends = as_column(b, _lengths_vector(b, input_lengths, batch))
    chances = _run_forward(b, x, labels, ends, blank)
    loss = b.Neg(_final_log_prob(b, chances, b.Mul(as_column(b, wanted), 2)))
    if zero_infinity:
        loss = b.Where(b.Equal(loss, float("inf")), 0.0, loss)
    if reduction == _CTC_MEAN:
        loss = b.Div(loss, b.cast(b.Max(wanted, 1), loss.dtype))
    loss = b.shaped(loss, (batch,))
    return b.squeeze(loss, 0) if single and not reduction else reduce_loss(b, loss, reduction)


def _lengths_vector(b: Builder, lengths: Lengths, batch: object) -> Value:
    if isinstance(lengths, Value):
        return b.reshape(b.cast(lengths, torch.int64), (batch,))
    return b.constant(torch.tensor(lengths, dtype=torch.int64))


def _unflatten_targets(
    b: Builder, targets: Value, lengths: Lengths, wanted: Value, batch: object
) -> Value:
    """Targets that are given one after another, each in a row; what is behind one is not read."""
    if isinstance(lengths, Value):
        width, starts = None, b.Sub(b.CumSum(wanted, b.scalar(0, torch.int64)), wanted)
        places = emit_arange(b, b.ReduceMax(wanted, [0], keepdims=0))
    else:
        width, starts = max(lengths), b.constant(torch.tensor([0, *accumulate(lengths[:-1])]))
        places = emit_arange(b, width)
    end = b.Sub(b.squeeze(b.Shape(targets), 0), 1)
    index = b.Min(b.Add(as_column(b, starts), places), end)
    return b.shaped(b.Gather(targets, index, axis=0), (batch, width))


def _label_positions(b: Builder, x: Value) -> Value:
    """The positions in each row."""
    _, width = x.shape or ()
    if width is not None:
        return emit_arange(b, width)
    return emit_arange(b, b.squeeze(b.Shape(x, start=1, end=2), 0))


def _insert_blanks(b: Builder, labels: Value, lengths: Value, blank: int) -> Value:
    """A blank before each label, and behind the last; past its end a row is blank."""
    batch, width = labels.shape or ()
    labels = b.Where(b.Less(_label_positions(b, labels), as_column(b, lengths)), labels, blank)
    pairs = b.Pad(b.unsqueeze(b.shaped(labels, (batch, width)), 2), [0, 0, 1, 0, 0, 0], blank)
    row = b.Pad(b.Flatten(pairs, axis=1), [0, 0, 0, 1], blank)
    return b.shaped(row, (batch, None if width is None else 2 * width + 1))


def _run_forward(b: Builder, x: Value, labels: Value, ends: Value, blank: int) -> Value:
    """The logarithm of the probability to be at each place at the end of each sequence."""
    first = b.Where(b.Equal(_label_positions(b, labels), 0), 0.0, b.scalar(_LOG_ZERO, x.dtype))
    skips = b.Not(b.Equal(labels, b.Slice(b.Pad(labels, [0, 2, 0, 0], blank), [0], [-2], [1])))

    def step(t: Value, before: Value) -> list[Value]:
        moved = b.Pad(before, [0, 2, 0, 0], _LOG_ZERO)
        next_one, after_it = b.Slice(moved, [1], [-1], [1]), b.Slice(moved, [0], [-2], [1])
        ways = [
            b.unsqueeze(b.shaped(v, labels.shape or ()), 0)
            for v in (before, next_one, b.Where(skips, after_it, _LOG_ZERO))
        ]
        chance = log_sum_exp(b, b.Concat(*ways, axis=0), [0], False)
        now = b.Add(chance, b.GatherElements(take_at(b, x, t, -3), labels, axis=1))
        return [b.shaped(b.Where(b.Less(t, ends), now, before), labels.shape or ())]

    return emit_counted_loop(b, (x.shape or ())[0], [expand_number(b, first, labels)], step)[0]


def _final_log_prob(b: Builder, chances: Value, end: Value) -> Value:
    """At the last label, or at the blank behind it."""
    places = _label_positions(b, chances)
    there = b.Or(b.Equal(places, end), b.Equal(places, b.Sub(end, 1)))
    return log_sum_exp(b, b.Where(there, chances, _LOG_ZERO), [1], False)
