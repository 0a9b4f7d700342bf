"""Diagonals and triangles of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphport.onnx.builder import Builder
from graphport.onnx.ir import Value
from graphport.onnx.lowerings.factory import filled
from graphport.onnx.lowerings.shape import counting, wrapped
from graphport.onnx.registry import lower
from graphport.symbolic import max_

aten = torch.ops.aten


def _last(rank: int, dim1: int, dim2: int) -> list[int]:
    """An order of dims in which these two are the last."""
    return [*(d for d in range(rank) if d not in (dim1, dim2)), dim1, dim2]


def _back(b: Builder, x: Value, dim1: int, dim2: int) -> Value:
    order = _last(x.rank, dim1, dim2)
    return b.transpose(x, [order.index(d) for d in range(x.rank)])


@lower(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    """Of the matrix as one row: every (columns + 1)th element, as many as there are columns."""
    order = _last(self.rank, wrapped(dim1, self.rank), wrapped(dim2, self.rank))
    x = b.transpose(self, order)
    *lead, rows, columns = x.sizes
    step: Any = columns + 1
    start = offset if offset >= 0 else -offset * columns
    end = start + max_(columns - max(offset, 0), 0) * step
    flat = b.reshape(x, [*lead, rows * columns])
    return b.Slice(flat, [start], [end], [len(lead)], [step])


@lower(aten.diag_embed.default)
def diag_embed(b: Builder, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    rank = self.rank + 1
    size = self.sizes[-1] + abs(offset)
    return _back(b, _placed(b, self, size, offset), dim1 % rank, dim2 % rank)


def _placed(b: Builder, x: Value, size: Any, offset: int) -> Value:
    """Rows of `x` as diagonals of square matrices that are zero elsewhere."""
    if offset:
        zeros = [0] * (x.rank - 1)
        x = b.Pad(x, [*zeros, 0, *zeros, abs(offset)])
    # Above the main diagonal an element keeps its row, below it its column.
    x = b.unsqueeze(x, x.rank if offset >= 0 else x.rank - 1)
    return b.Where(_on_diagonal(b, size, offset), x, 0)


def _on_diagonal(b: Builder, size: Any, offset: int) -> Value:
    if type(size) is int:
        return b.constant(torch.arange(size) == torch.arange(size)[:, None] + offset)
    along = counting(b, size)
    down = b.unsqueeze(along, 1)
    return b.Equal(along, b.Add(down, offset) if offset else down)


@lower(aten.tril.default)
def tril(b: Builder, self: Value, diagonal: Any) -> Value:
    return b.Trilu(self, _which(b, diagonal), upper=0)


@lower(aten.triu.default)
def triu(b: Builder, self: Value, diagonal: Any) -> Value:
    return b.Trilu(self, _which(b, diagonal), upper=1)


def _which(b: Builder, diagonal: Any) -> Value | None:
    return None if diagonal == 0 else b.sizes.number(diagonal)


@lower(aten.tril_indices.default)
def tril_indices(b: Builder, row: Any, col: Any, offset: Any) -> Value:
    return _indices(b, row, col, offset, 0)


@lower(aten.triu_indices.default)
def triu_indices(b: Builder, row: Any, col: Any, offset: Any) -> Value:
    return _indices(b, row, col, offset, 1)


def _indices(b: Builder, row: Any, col: Any, offset: Any, upper: int) -> Value:
    ones = filled(b, [row, col], True, torch.bool)
    return b.NonZero(b.Trilu(ones, _which(b, offset), upper=upper))


@lower(aten.block_diag.default)
def block_diag(b: Builder, tensors: Sequence[Value]) -> Value:
    """Every block between the zeros of its rows."""
    dtype, columns = b.result.dtype, b.result.sizes[1]
    rows, left = [], 0
    for x in tensors:
        sizes = (1,) * (2 - x.rank) + x.sizes
        block = b.cast(b.reshape(x, sizes), dtype)
        right = columns - left - sizes[1]
        if left != 0 or right != 0:
            block = b.Pad(block, [0, left, 0, right])
        rows.append(block)
        left = left + sizes[1]
    return rows[0] if len(rows) == 1 else b.Concat(*rows, axis=0)
