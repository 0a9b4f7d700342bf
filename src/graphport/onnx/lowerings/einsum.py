"""`einsum` as `MatMul`, or as a product and a sum where there is nothing to contract.

Operands are taken in from left to right. A label that only one operand has and nobody asks for is
summed at once, one that an operand has twice is its diagonal. The two operands are then brought to
[batch, left, contracted] and [batch, contracted, right]: a runtime takes transposed matrices as
they are, where `Einsum` moves its operands about.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.linalg import product
from graphport.onnx.lowerings.reduce import total
from graphport.onnx.registry import lower
from graphport.symbolic import Expr

aten = torch.ops.aten

Labels = list[str]


@lower(aten.einsum.default)
def einsum(b: Builder, equation: str, tensors: Sequence[Value], path: Any) -> Value:
    """In whatever order it is computed, the result is the same."""
    terms, wanted = _parsed(equation, [t.rank for t in tensors])
    operands = [_without_repeats(b, t, labels) for t, labels in zip(tensors, terms, strict=True)]
    x, labels = operands[0]
    for i, (y, more) in enumerate(operands[1:], 2):
        later = {label for _, term in operands[i:] for label in term} | set(wanted)
        x, labels = _pair(b, (x, labels), (y, more), later)
    x, labels = _summed(b, x, labels, set(wanted))
    return b.transpose(x, [labels.index(label) for label in wanted])


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
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


def _without_repeats(b: Builder, x: Value, labels: Labels) -> tuple[Value, Labels]:
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
        x = total(b, b.Where(on, moved, 0), [x.rank - 1], False)
        labels = [*(labels[i] for i in order), labels[first]]
    return x, labels


def _summed(b: Builder, x: Value, labels: Labels, wanted: set[str]) -> tuple[Value, Labels]:
    """Without the dims that nobody asks for."""
    axes = [i for i, label in enumerate(labels) if label not in wanted]
    if not axes:
        return x, labels
    return total(b, x, axes, False), [label for label in labels if label in wanted]


def _pair(
    b: Builder, one: tuple[Value, Labels], other: tuple[Value, Labels], wanted: set[str]
) -> tuple[Value, Labels]:
    """Two operands as one, with the labels that are wanted later."""
    x, xs = _summed(b, *one, wanted | set(other[1]))
    y, ys = _summed(b, *other, wanted | set(xs))
    x, xs, y, ys = _same_sizes(b, x, xs, y, ys, wanted)
    inner = [label for label in xs if label in ys and label not in wanted]
    batch = [label for label in xs if label in ys and label in wanted]
    left = [label for label in xs if label not in ys]
    right = [label for label in ys if label not in xs]
    if not inner or not (left or right):
        both = [*batch, *left, *right, *inner]
        product = b.Mul(_aligned(b, x, xs, both), _aligned(b, y, ys, both))
        return _summed(b, product, both, wanted)
    out = _matmul(b, (x, xs), (y, ys), batch, left, inner, right)
    return out, [*batch, *left, *right]


def _same_sizes(
    b: Builder, x: Value, xs: Labels, y: Value, ys: Labels, wanted: set[str]
) -> tuple[Value, Labels, Value, Labels]:
    """A size of 1 goes with any other: where dims are merged it has to be the same."""
    for label in [label for label in xs if label in ys]:
        p, q = (x.shape or ())[xs.index(label)], (y.shape or ())[ys.index(label)]
        if p == q or (p != 1 and q != 1):
            continue
        if q == 1:
            y, ys = _dropped(b, y, ys, label)
            if label not in wanted:
                x, xs = _summed(b, x, xs, set(xs) - {label})
        else:
            x, xs = _dropped(b, x, xs, label)
            if label not in wanted:
                y, ys = _summed(b, y, ys, set(ys) - {label})
    return x, xs, y, ys


def _dropped(b: Builder, x: Value, labels: Labels, label: str) -> tuple[Value, Labels]:
    return b.squeeze(x, labels.index(label)), [s for s in labels if s != label]


def _aligned(b: Builder, x: Value, labels: Labels, order: Labels) -> Value:
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
        **dict(zip(ys, y.shape or (), strict=True)), **dict(zip(xs, x.shape or (), strict=True))
    }  # fmt: skip
    x = _aligned(b, x, xs, [*batch, *left, *inner])
    y = _aligned(b, y, ys, [*batch, *inner, *right])
    # Several dims to the left stay as they are where they can be a batch of their own.
    many_rows = len(left) > 1 and bool(batch)
    if many_rows or len(inner) > 1:
        rows = [_product(size, left)] if len(left) > 1 and batch else [size[s] for s in left]
        x = b.reshape(x, [*(size[s] for s in batch), *rows, _product(size, inner)])
    if len(inner) > 1 or len(right) > 1:
        columns = [_product(size, right)] if right else []
        y = b.reshape(y, [*(size[s] for s in batch), _product(size, inner), *columns])
    if not left and batch:
        x = b.unsqueeze(x, -2)
    if not right and batch:
        y = b.unsqueeze(y, -1)
    out = product(b, x, y)
    if many_rows or len(right) > 1:
        return b.reshape(out, [size[s] for s in (*batch, *left, *right)])
    if batch and not (left and right):
        return b.squeeze(out, -1 if left else -2)
    return out


def _product(size: dict[str, Any], labels: Labels) -> int | Expr:
    out: Any = 1
    for label in labels:
        out = out * size[label]
    return out
