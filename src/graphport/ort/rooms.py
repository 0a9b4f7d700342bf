"""Memory for results, from torch, where their sizes are known before a session runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from graphport.onnx.ir import Value
from graphport.onnx.lower import described
from graphport.ops.abstract import Abstract, Size
from graphport.symbolic import Expr, symbols
from graphport.symbolic.printing import to_str

Sizes = Callable[[Sequence[Any]], tuple[int, ...]]


def sizes_of(outputs: Sequence[Value], inputs: Sequence[Node]) -> list[Sizes | None]:
    """By output, its sizes as a function of the inputs; None where they do not tell."""
    return [_sizes(value, _places(inputs)) for value in outputs]


def _sizes(value: Value, places: dict[Expr, str]) -> Sizes | None:
    if value.shape is None or None in value.shape:
        return None
    sizes: Any = value.shape
    if not all(s in places for n in sizes if isinstance(n, Expr) for s in symbols(n)):
        return None
    text = ", ".join(to_str(n, places) if isinstance(n, Expr) else str(n) for n in sizes)
    made: Sizes = eval(f"lambda args: ({text}{',' * (len(sizes) == 1)})", {"math": math})
    return made


def _places(inputs: Sequence[Node]) -> dict[Expr, str]:
    """Where the symbols are to be read."""
    found: dict[Expr, str] = {}
    for i, node in enumerate(inputs):
        about = described(node.meta.get("val"))
        if isinstance(about, Expr):
            rows: list[tuple[Size, str]] = [(about, f"args[{i}]")]
        else:
            sizes = about.sizes if isinstance(about, Abstract) else ()
            rows = [(size, f"args[{i}].shape[{d}]") for d, size in enumerate(sizes)]
        for size, place in rows:
            if isinstance(size, Expr) and size.kind == "symbol":
                found.setdefault(size, place)
    return found
