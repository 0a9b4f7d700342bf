"""Windows that slide along spatial dims, taken out of a tensor with Gather.

Convolution, pooling and resampling have operators of their own in ONNX; this is for the element
types that ONNX Runtime has no kernels of them for, and for windows that those do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Size, Value
from graphport.symbolic import Expr


def sizes_of(x: Value) -> tuple[Any, ...]:
    """The sizes of a value of known rank."""
    assert x.shape is not None, "the rank is not known"
    return x.shape


def each(value: Any, n: int) -> list[Any]:
    """One number per spatial dim."""
    if not isinstance(value, (list, tuple)):
        return [value] * n
    return list(value) * n if len(value) == 1 else list(value)


def unless(values: Sequence[int], default: int) -> list[int] | None:
    """None for what an attribute is by itself."""
    return None if all(v == default for v in values) else list(values)


def is_plain(*numbers: Any) -> bool:
    """Whether all numbers are known."""
    return not any(type(x) is Expr for x in numbers)


class Numbers:
    """Numbers that are computed at export where the sizes are known, and else in the model."""

    def __init__(self, b: Builder, value: torch.Tensor | Value) -> None:
        self.b = b
        self.value = value

    @staticmethod
    def up_to(b: Builder, n: Size) -> Numbers:
        """0, 1, ..., n - 1."""
        if type(n) is int:
            return Numbers(b, torch.arange(n))
        zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)
        return Numbers(b, b.Range(zero, b.sizes.number(n), one))

    @property
    def node(self) -> Value:
        return self.value if isinstance(self.value, Value) else self.b.constant(self.value)

    def _with(self, other: Any, op: str, fn: Callable[[Any, Any], torch.Tensor]) -> Numbers:
        y = other.value if isinstance(other, Numbers) else other
        if isinstance(self.value, torch.Tensor) and not isinstance(y, (Value, Expr)):
            return Numbers(self.b, fn(self.value, y))
        return Numbers(self.b, getattr(self.b, op)(self.node, y))

    def __add__(self, other: Any) -> Numbers:
        return self._with(other, "Add", lambda x, y: x + y)

    def __sub__(self, other: Any) -> Numbers:
        return self._with(other, "Sub", lambda x, y: x - y)

    def __mul__(self, other: Any) -> Numbers:
        return self._with(other, "Mul", lambda x, y: x * y)

    def __floordiv__(self, other: Any) -> Numbers:
        """Of numbers that are not negative."""
        return self._with(other, "Div", lambda x, y: x // y)

    def __truediv__(self, other: Any) -> Numbers:
        return self._with(other, "Div", lambda x, y: x / y)

    def __lt__(self, other: Any) -> Numbers:
        return self._with(other, "Less", lambda x, y: x < y)

    def at_most(self, other: Any) -> Numbers:
        return self._with(other, "Min", lambda x, y: torch.minimum(x, torch.as_tensor(y).to(x)))

    def at_least(self, other: Any) -> Numbers:
        return self._with(other, "Max", lambda x, y: torch.maximum(x, torch.as_tensor(y).to(x)))

    def _alone(self, op: str, fn: Callable[[torch.Tensor], torch.Tensor]) -> Numbers:
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, fn(self.value))
        return Numbers(self.b, getattr(self.b, op)(self.value))

    def floor(self) -> Numbers:
        return self._alone("Floor", torch.floor)

    def abs(self) -> Numbers:
        return self._alone("Abs", torch.abs)

    def total(self, dim: int) -> Numbers:
        """The sum along a dim, which stays."""
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.sum(dim, keepdim=True))
        return Numbers(self.b, self.b.ReduceSum(self.value, [dim]))

    def to(self, dtype: torch.dtype) -> Numbers:
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.to(dtype))
        return Numbers(self.b, self.b.cast(self.value, dtype))

    def then(self, dims: int) -> Numbers:
        """With so many dims of size 1 at the end."""
        if isinstance(self.value, torch.Tensor):
            return Numbers(self.b, self.value.reshape(*self.value.shape, *[1] * dims))
        rank = self.value.rank
        return Numbers(self.b, self.b.unsqueeze(self.value, *range(rank, rank + dims)))


def all_dims(rank: int) -> list[int]:
    """The axes of a Pad.

    Without any ONNX Runtime takes its zeros for what a MaxPool pads with, and moves them there; and
    where some are left out it fails to move a transpose from before the Pad to behind it.
    """
    return list(range(rank))


def padded(b: Builder, x: Value, before: Sequence[Any], after: Sequence[Any], fill: Any) -> Value:
    """The last dims with so much more, or less, at each end."""
    if not any(type(p) is Expr or p for p in (*before, *after)):
        return x
    first = x.rank - len(before)
    none = [0] * first
    pads = [*none, *before, *none, *after]
    out = b.Pad(x, pads, None if fill == 0 else fill, all_dims(x.rank))
    sizes = [*sizes_of(x)]
    for i, (p, q) in enumerate(zip(before, after, strict=True), first):
        sizes[i] = None if sizes[i] is None else sizes[i] + p + q
    return b.shaped(out, sizes)


def windows(
    b: Builder, x: Value, out: Sequence[Size], kernel: Sequence[Size], stride: Sequence[int],
    dilation: Sequence[int],
) -> Value:  # fmt: skip
    """[..., h, w] as [..., out_h, kernel_h, out_w, kernel_w]."""
    first = x.rank - len(out)
    for i, (o, k, s, d) in enumerate(zip(out, kernel, stride, dilation, strict=True)):
        index = (Numbers.up_to(b, o) * s).then(1) + Numbers.up_to(b, k) * d
        x = b.Gather(x, index.node, axis=first + 2 * i)
    return x
