"""Lowers cumulative operators: sums to CumSum, the others to a Scan along the first dim."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from graphport.compat.operators import aten
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Value
from graphport.onnx.lower.registry import Fn, lower, lower_table
from graphport.onnx.lowerings.control import emit_scan, prepend_number
from graphport.onnx.lowerings.elementwise import HALVES
from graphport.onnx.lowerings.reduce import is_nonempty
from graphport.onnx.lowerings.special import log_add_exp


@lower(aten.cumsum.default)
def cumsum(b: Builder, self: Value, dim: int, dtype: object) -> Value:
    x = b.cast(self, b.result.dtype)
    x = b.cast(x, torch.int64) if x.dtype is torch.bool else x
    if not x.rank:
        return x
    return b.CumSum(_to_float64(b, x), b.scalar(dim % x.rank, torch.int64))


def _to_float64(b: Builder, x: Value) -> Value:
    """In float64, in which torch runs along floats: neither digits nor what overflows are lost."""
    return b.cast(x, torch.float64) if x.dtype.is_floating_point else x


@lower(aten.cumprod.default)
def cumprod(b: Builder, self: Value, dim: int, dtype: object) -> Value:
    x = b.cast(self, b.result.dtype)
    x = b.cast(x, torch.int64) if x.dtype is torch.bool else x
    if not x.rank:
        return x
    x = _to_float64(b, x)
    if b.has("CumProd", x.dtype):
        return b.CumProd(x, b.scalar(dim % x.rank, torch.int64))
    return _accumulate(b, x, dim, 1, lambda so_far, x: b.Mul(so_far, x))


@lower(aten.logcumsumexp.default)
def logcumsumexp(b: Builder, self: Value, dim: int) -> Value:
    if not self.rank:
        return self
    x = b.cast(self, torch.float32) if self.dtype in HALVES else self
    return _accumulate(b, x, dim, -math.inf, lambda so_far, x: log_add_exp(b, so_far, x))


def _accumulate(
    b: Builder, x: Value, dim: int, start: float, step: Callable[[Value, Value], Value]
) -> Value:
    """All results of a step along a dim. `start` changes nothing that it is put before."""
    line = _ScanDim(b, x, dim)
    first = line.row(start, x.dtype)
    (states,) = emit_scan(b, [line.rows(start)], [first], lambda *args: [step(*args)])
    return line.undo(states)


class _ScanDim:
    """The dim to run along put first, and back; a row before it unless it is certain to have one.

    A Scan has to have something to run along.
    """

    def __init__(self, b: Builder, x: Value, dim: int) -> None:
        self.b, self.x = b, x
        axis = dim % x.rank
        sizes = x.shape or ()
        self.size = sizes[axis]
        self.others = [*sizes[:axis], *sizes[axis + 1 :]]
        self.perm = [axis, *(d for d in range(x.rank) if d != axis)]
        self.padded = not is_nonempty(b, self.size)

    def row(self, number: float, dtype: torch.dtype) -> Value:
        return self.b.expand(self.b.scalar(number, dtype), self.others)

    def rows(self, start: float) -> Value:
        made = self.b.transpose(self.x, self.perm)
        return prepend_number(self.b, made, 0, start) if self.padded else made

    def places(self) -> Value:
        """The place of each row."""
        if type(self.size) is int:
            return self.b.constant(torch.arange(-1 if self.padded else 0, self.size))
        b = self.b
        start, step = b.scalar(-1 if self.padded else 0, torch.int64), b.scalar(1, torch.int64)
        return b.Range(start, b.sizes.number(self.size), step)

    def undo(self, made: Value) -> Value:
        if self.padded:
            made = self.b.Slice(made, [1], [torch.iinfo(torch.int64).max], [0])
        return self.b.transpose(made, [self.perm.index(d) for d in range(self.x.rank)])


def _lower_extreme(op: str) -> Fn:
    """Results and their places: of equal ones the last, and the last nan once there is one."""

    def lowering(b: Builder, self: Value, dim: int) -> tuple[Value, Value]:
        if not self.rank:
            return self, b.scalar(0, torch.int64)
        x = b.cast(self, torch.uint8) if self.dtype is torch.bool else self
        floats = x.dtype.is_floating_point

        def step(best: Value, place: Value, x: Value, at: Value) -> list[Value]:
            better = getattr(b, op)(x, best)
            if floats:
                better = b.Or(better, b.IsNaN(x))
            return [b.Where(better, x, best), b.Where(better, at, place)]

        line = _ScanDim(b, x, dim)
        start = _neutral_value(x.dtype, op == "GreaterOrEqual")
        states = [line.row(start, x.dtype), line.row(0, torch.int64)]
        values, places = emit_scan(b, [line.rows(start), line.places()], states, step)
        return line.undo(values), line.undo(places)

    return lowering


def _neutral_value(dtype: torch.dtype, largest: bool) -> float:
    """What every number of a dtype is better than, or equal to."""
    if dtype.is_floating_point:
        return -math.inf if largest else math.inf
    info = torch.iinfo(dtype)
    return info.min if largest else info.max


lower_table({"cummax": "GreaterOrEqual", "cummin": "LessOrEqual"}, _lower_extreme)
