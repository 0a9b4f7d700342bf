"""Connectionist temporal classification: how likely the alignments of targets with frames are.

A target is read with blanks around and between its labels. From frame to frame the logarithm of the
probability to be at each of these places is carried on: one stays, goes to the next, or leaves out
a blank between two labels that differ. A sequence that has ended is kept as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.columns import at, column, numbers, repeat
from graphport.onnx.lowerings.loss import reduced
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
    frames, batch, _ = x.shape or ()
    wanted = _vector(b, target_lengths, batch)
    labels = b.cast(targets, torch.int64)
    if single:
        labels = b.unsqueeze(labels, 0)
    elif labels.rank == 1:
        labels = _in_rows(b, labels, target_lengths, wanted, batch)
    labels = _with_blanks(b, labels, wanted, blank)
    ends = column(b, _vector(b, input_lengths, batch))
    last = _carried(b, x, labels, ends, frames, blank)
    loss = _at_the_end(b, last, b.Mul(column(b, wanted), 2))
    if zero_infinity:
        loss = b.Where(b.Equal(loss, float("inf")), 0.0, loss)
    if reduction == _MEAN:
        loss = b.Div(loss, b.cast(b.Max(wanted, 1), loss.dtype))
    loss = b.shaped(loss, (batch,))
    return b.squeeze(loss, 0) if single and not reduction else reduced(b, loss, reduction)


def _vector(b: Builder, lengths: Lengths, batch: object) -> Value:
    if isinstance(lengths, Value):
        return b.reshape(b.cast(lengths, torch.int64), (batch,))
    return b.constant(torch.tensor(lengths, dtype=torch.int64))


def _in_rows(
    b: Builder, targets: Value, lengths: Lengths, wanted: Value, batch: object
) -> Value:
    """Targets that are given one after another, each in a row; what is behind one is not read."""
    if isinstance(lengths, Value):
        starts = b.Sub(b.CumSum(wanted, b.scalar(0, torch.int64)), wanted)
        longest = b.ReduceMax(wanted, [0], keepdims=0)
        places = b.shaped(b.Range(b.scalar(0, torch.int64), longest, 1), (None,))
        width = None
    else:
        starts = b.constant(torch.tensor([0, *accumulate(lengths)][:-1]))
        width = max(lengths, default=0)
        places = numbers(b, width)
    end = b.Sub(b.squeeze(b.Shape(targets), 0), 1)
    index = b.Min(b.Add(column(b, starts), places), end)
    return b.shaped(b.Gather(targets, index, axis=0), (batch, width))


def _with_blanks(b: Builder, labels: Value, lengths: Value, blank: int) -> Value:
    """A blank before each label, and behind the last; past its end a row is blank."""
    batch, width = labels.shape or ()
    if width is None:
        size = b.squeeze(b.Shape(labels, start=1, end=2), 0)
        places = b.shaped(b.Range(b.scalar(0, torch.int64), size, 1), (None,))
    else:
        places = numbers(b, width)
    labels = b.Where(b.Less(places, column(b, lengths)), labels, blank)
    pairs = b.Pad(b.unsqueeze(labels, 2), [0, 0, 1, 0, 0, 0], blank)
    row = b.Pad(b.Flatten(pairs, axis=1), [0, 0, 0, 1], blank)
    return b.shaped(row, (batch, None if width is None else 2 * width + 1))


def _carried(
    b: Builder, x: Value, labels: Value, ends: Value, frames: object, blank: int
) -> Value:
    """The logarithms of the probabilities to be at each place at the end of each sequence."""
    start = b.Pad(b.Expand(b.scalar(0.0, x.dtype), b.Shape(ends)), )
    skips = b.Not(b.Equal(labels, b.Slice(b.Pad(labels, [0, 2, 0, 0], blank), [0], [-2], [1])))

    def step(t: Value, before: Value) -> list[Value]:
        moved = b.Pad(before, [0, 2, 0, 0], _NEVER)
        ways = (
            before,
            b.Slice(moved, [1], [-1], [1]),
            b.Where(skips, b.Slice(moved, [0], [-2], [1]), _NEVER),
        )
        now = b.Add(_log_sum(b, ways), b.GatherElements(at(b, x, t, -3), labels, axis=1))
        return [b.shaped(b.Where(b.Less(t, ends), now, before), labels.shape or ())]

    return repeat(b, frames, [start], step)[0]
