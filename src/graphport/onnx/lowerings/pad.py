"""Padding: with a constant, by reflection, with the edge, around the other side.

torch lists the padding of the last dim first, before and behind. What is negative crops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.errors import UnsupportedError
from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.shape import LAST, sliced
from graphport.onnx.lowerings.spatial import all_dims
from graphport.onnx.registry import lower
from graphport.symbolic import ge, max_, min_

aten = torch.ops.aten


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, self: Value, pad: Sequence[Any], value: Any) -> Value:
    """Pad crops too; where that is all there is to do it is a slice."""
    before, behind = ends(pad, self.rank)
    if all(type(p) is int and p <= 0 for p in pad):
        return cropped(b, self, before, behind)
    fill = None if value == 0 else b.scalar(value, like=self)
    return b.Pad(self, [*before, *behind], fill, all_dims(self.rank))


def ends(pad: Sequence[Any], rank: int) -> tuple[list[Any], list[Any]]:
    """What is added before and behind each dim, from the first dim on."""
    rest = [0] * (rank - len(pad) // 2)
    return [*rest, *pad[-2::-2]], [*rest, *pad[:0:-2]]


def cropped(b: Builder, x: Value, before: Sequence[Any], behind: Sequence[Any]) -> Value:
    """Without what negative padding takes away."""
    dims = [d for d in range(x.rank) if before[d] != 0 or behind[d] != 0]
    if not dims:
        return x
    stops = [_stop(b, behind[d], b.result.sizes[d] - before[d]) for d in dims]
    return b.Slice(x, [-before[d] for d in dims], stops, dims)


def _stop(b: Builder, behind: Any, size: Any) -> Any:
    if type(behind) is int:
        return behind or LAST
    return size


@lower(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: Builder, self: Value, padding: Sequence[Any]) -> Value:
    return _mirrored(b, self, padding, "reflect")


@lower(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(b: Builder, self: Value, padding: Sequence[Any]) -> Value:
    return _mirrored(b, self, padding, "edge")


def _mirrored(b: Builder, x: Value, padding: Sequence[Any], mode: str) -> Value:
    """First what is added, which may come from what is cropped, then what is cropped."""
    added = [max_(p, 0) for p in padding]
    if any(a != 0 for a in added):
        before, behind = ends(added, x.rank)
        x = b.Pad(x, [*before, *behind], mode=mode)
    return cropped(b, x, *ends([min_(p, 0) for p in padding], x.rank))


@lower(aten._pad_circular.default)
def _pad_circular(b: Builder, self: Value, pad: Sequence[Any]) -> Value:
    """What is cropped is gone first; then ends of each dim go to its other side."""
    sizes = self.sizes
    positive = all(b.scope.decide(ge(s, 1)) for s in sizes)  # Pad of nothing fails
    if b.opset >= 19 and positive and all(b.scope.decide(ge(p, 0)) for p in pad):
        before, behind = ends(pad, self.rank)
        return b.Pad(self, [*before, *behind], mode="wrap")
    x = self
    for i in range(len(pad) // 2):
        dim, (left, right) = x.rank - 1 - i, pad[2 * i : 2 * i + 2]
        x = _wrapped(b, x, dim, sizes[dim], left, right)
    return x


def _wrapped(b: Builder, x: Value, dim: int, size: Any, left: Any, right: Any) -> Value:
    rest = size + min_(left, 0) + min_(right, 0)
    if not all(p == 0 or b.scope.decide(ge(rest, p)) for p in (left, right)):
        raise UnsupportedError(f"circular padding of {left} and {right} where {rest} are left")
    if left < 0 or right < 0:
        x = sliced(b, x, dim, max(-left, 0), min(right, 0) or None)
    parts = [x]
    if left > 0:
        parts.insert(0, sliced(b, x, dim, -left, None))
    if right > 0:
        parts.append(sliced(b, x, dim, 0, right))
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=dim)
