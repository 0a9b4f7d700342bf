"""The order in which tensors lie in memory.

ONNX Runtime gives what it computes row by row. Torch lets the result of an operator lie as its
operands do: views of it depend on that, and so does which random number an element gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphport.ops.abstract import Abstract, permuted
from graphport.symbolic import Scope

Order = tuple[int, ...]
"""Dims from the slowest to the fastest."""


def order_of(about: Abstract, scope: Scope) -> Order | None:
    """The order of the dims of a tensor without gaps; None if it is row by row, or unknown."""
    if about.is_contiguous:
        return None
    sizes, strides = about.sizes, about.strides

    def slowness(dim: int) -> Any:
        hint = scope.hint(strides[dim])
        return -(hint if hint is not None else 0), dim

    order = tuple(sorted(range(about.rank), key=slowness))
    packed = permuted(sizes, order)
    fits = all(
        n == 1 or scope.same(have, want)
        for n, have, want in zip(sizes, strides, packed, strict=True)
    )
    return order if fits and order != tuple(range(about.rank)) else None


def inverse(order: Sequence[int]) -> Order:
    return tuple(order.index(d) for d in range(len(order)))
