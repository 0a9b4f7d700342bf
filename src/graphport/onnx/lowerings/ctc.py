"""Connectionist temporal classification: how likely the alignments of targets with frames are.

A target is read with blanks around and between its labels. From frame to frame the logarithm of the
probability to be at each of these places is carried on: one stays, goes to the next, or leaves out
a blank between two labels that differ. A sequence that has ended is kept as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.columns import at, column, numbers, repeat
from graphport.onnx.lowerings.loss import reduced
from graphport.onnx.lowerings.reduce import log_sum_exp
from graphport.onnx.lowerings.scatter import spread
from graphport.onnx.registry import lower

aten = torch.ops.aten

_MEAN = 1
_NEVER = float("-inf")
Lengths = Value | Sequence[int]


@lower(aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def ctc_loss(
    b: Builder, log_probs: Value, targets: Value, input_lengths: Lengths,
    target_lengths: Lengths, blank: int, reduction: int, zero_infinity: bool,
) -> Value:  # fmt: skip
    single = log_probs.rank == 2
    x = b.unsqueeze(log_probs, 1) if single else log_probs
    batch = (x.shape or ())[1]
    wanted = _vector(b, target_lengths, batch)
    labels = b.cast(targets, torch.int64)
    if single:
        labels = b.unsqueeze(labels, 0)
    elif labels.rank == 1:
        labels = _in_rows(b, labels, target_lengths, wanted, batch)
    labels = _with_blanks(b, labels, wanted, blank)
    ends = column(b, _vector(b, input_lengths, batch))
    chances = _carried(b, x, labels, ends, blank)
    loss = b.Neg(_arrived(b, chances, b.Mul(column(b, wanted), 2)))
    if zero_infinity:
        loss = b.Where(b.Equal(loss, float("inf")), 0.0, loss)
    if reduction == _MEAN:
        loss = b.Div(loss, b.cast(b.Max(wanted, 1), loss.dtype))
    loss = b.shaped(loss, (batch,))
    return b.squeeze(loss, 0) if single and not reduction else reduced(b, loss, reduction)


def _vector(b: Builder, lengths: Lengths, batch: Any) -> Value:
    if isinstance(lengths, Value):
        return b.reshape(b.cast(lengths, torch.int64), (batch,))
    return b.constant(torch.tensor(lengths, dtype=torch.int64))


def _in_rows(b: Builder, targets: Value, lengths: Lengths, wanted: Value, batch: Any) -> Value:
    """Targets that are given one after another, each in a row; what is behind one is not read."""
    if isinstance(lengths, Value):
        width, starts = None, b.Sub(b.CumSum(wanted, b.scalar(0, torch.int64)), wanted)
        places = _up_to(b, b.ReduceMax(wanted, [0], keepdims=0))
    else:
        width, starts = max(lengths), b.constant(torch.tensor([0, *accumulate(lengths[:-1])]))
        places = numbers(b, width)
    end = b.Sub(b.squeeze(b.Shape(targets), 0), 1)
    index = b.Min(b.Add(column(b, starts), places), end)
    return b.shaped(b.Gather(targets, index, axis=0), (batch, width))


def _up_to(b: Builder, size: Value) -> Value:
    return b.shaped(b.Range(b.scalar(0, torch.int64), size, 1), (None,))


def _places(b: Builder, x: Value) -> Value:
    """The positions in each row."""
    _, width = x.shape or ()
    if width is not None:
        return numbers(b, width)
    return _up_to(b, b.squeeze(b.Shape(x, start=1, end=2), 0))


def _with_blanks(b: Builder, labels: Value, lengths: Value, blank: int) -> Value:
    """A blank before each label, and behind the last; past its end a row is blank."""
    batch, width = labels.shape or ()
    labels = b.Where(b.Less(_places(b, labels), column(b, lengths)), labels, blank)
    pairs = b.Pad(b.unsqueeze(b.shaped(labels, (batch, width)), 2), [0, 0, 1, 0, 0, 0], blank)
    row = b.Pad(b.Flatten(pairs, axis=1), [0, 0, 0, 1], blank)
    return b.shaped(row, (batch, None if width is None else 2 * width + 1))


def _carried(b: Builder, x: Value, labels: Value, ends: Value, blank: int) -> Value:
    """The logarithm of the probability to be at each place at the end of each sequence."""
    first = b.Where(b.Equal(_places(b, labels), 0), 0.0, b.scalar(_NEVER, x.dtype))
    skips = b.Not(b.Equal(labels, b.Slice(b.Pad(labels, [0, 2, 0, 0], blank), [0], [-2], [1])))

    def step(t: Value, before: Value) -> list[Value]:
        moved = b.Pad(before, [0, 2, 0, 0], _NEVER)
        next_one, after_it = b.Slice(moved, [1], [-1], [1]), b.Slice(moved, [0], [-2], [1])
        ways = [b.unsqueeze(b.shaped(v, labels.shape or ()), 0)
                for v in (before, next_one, b.Where(skips, after_it, _NEVER))]  # fmt: skip
        chance = log_sum_exp(b, b.Concat(*ways, axis=0), [0], False)
        now = b.Add(chance, b.GatherElements(at(b, x, t, -3), labels, axis=1))
        return [b.shaped(b.Where(b.Less(t, ends), now, before), labels.shape or ())]

    return repeat(b, (x.shape or ())[0], [spread(b, first, labels)], step)[0]


def _arrived(b: Builder, chances: Value, end: Value) -> Value:
    """At the last label, or at the blank behind it."""
    places = _places(b, chances)
    there = b.Or(b.Equal(places, end), b.Equal(places, b.Sub(end, 1)))
    return log_sum_exp(b, b.Where(there, chances, _NEVER), [1], False)
