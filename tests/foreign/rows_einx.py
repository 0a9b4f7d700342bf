"""einx: its operations, each of which is compiled for sizes that are known.

They are looked up by size, which an open one refuses.
"""

from __future__ import annotations

from typing import Any

import einx
from torch import Tensor

from tests.foreign.rows import Call, Table, integers, noise

TABLE = Table()


def add(name: str, function: Any, inputs: Any, sizes: Any) -> None:
    TABLE.add(name, lambda: Call(function).eval(), inputs, sizes, refused="GP200")


def heads(x: Tensor) -> Tensor:

    return einx.id("b n (h d) -> b h n d", x, h=4)


def summed(x: Tensor) -> Tensor:

    return einx.sum("b [n] d", x) + einx.mean("b [n] d", x)


def multiplied(x: Tensor, y: Tensor) -> Tensor:

    return einx.dot("b n [d], [d] e -> b n e", x, y)


def added(x: Tensor, y: Tensor) -> Tensor:

    return einx.add("b n d, n -> b n d", x, y)


def normalised(x: Tensor) -> Tensor:

    return einx.softmax("b n [d]", x)


def gathered(x: Tensor, y: Tensor) -> Tensor:

    return einx.get_at("b [n] d, b k -> b k d", x, y)


def attended(x: Tensor, y: Tensor) -> Tensor:

    scores = einx.dot("b q (h [c]), b k (h [c]) -> b h q k", x, y, h=4)
    return einx.dot("b h q [k], b [k] (h c) -> b q (h c)", einx.softmax("b h q [k]", scores), y)


SIZES = ((2, 8), (3, 5), (1, 3))
add("id", heads, lambda b, n: (noise(b, n, 32),), SIZES)
add("sum", summed, lambda b, n: (noise(b, n, 6),), SIZES)
add("dot", multiplied, lambda b, n: (noise(b, n, 6), noise(6, 5)), SIZES)
add("add", added, lambda b, n: (noise(b, n, 6), noise(n)), SIZES)
add("softmax", normalised, lambda b, n: (noise(b, n, 6),), SIZES)
add("get_at", gathered, lambda b, n: (noise(b, n, 6), integers(n, b, 4)), SIZES)
add("attention", attended, lambda b, n: (noise(b, n, 16), noise(b, n + 2, 16)), SIZES)
