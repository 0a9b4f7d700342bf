"""Preallocates results whose sizes are known before a session runs.

Memory that ONNX Runtime has allocated cannot be resized by torch, which eager's results can: by
`resize_`, or by being given as `out=`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from graphport.onnx.ir import Value
from graphport.onnx.lower import described
from graphport.ops.abstract import Abstract, Size
from graphport.program.check_steps import MOST_OPERATIONS
from graphport.symbolic import Expr, symbols
from graphport.symbolic.printing import to_str

Allocate = Callable[[Sequence[Any]], torch.Tensor]
"""Memory for a result, by the inputs of its region."""


def rooms_of(outputs: Sequence[Value], inputs: Sequence[Node]) -> list[Allocate | None]:
    """By output, what allocates it; None where the inputs do not tell its sizes."""
    places = _places(inputs)
    return [_room(value, places) for value in outputs]


def _room(value: Value, places: dict[Expr, str]) -> Allocate | None:
    if value.shape is None or None in value.shape:
        return None
    sizes: tuple[Any, ...] = tuple(value.shape)
    expressions = [n for n in sizes if isinstance(n, Expr)]
    if not all(s in places for n in expressions for s in symbols(n)):
        return None
    if any(n.size > MOST_OPERATIONS for n in expressions):
        return None  # not to be written out
    names: dict[str, Any] = {"math": math, "empty": torch.empty, "dtype": value.dtype}
    if expressions:
        text = "".join(f"{to_str(n, places)}, " for n in sizes)
        made = f"empty(({text}), dtype=dtype, device='cpu')"
    else:  # a third of the time of torch.empty: 0.7 of 2.1 microseconds for each result
        names["empty"] = torch._C._dynamo.guards._empty_strided_cpu
        strides = torch.empty(sizes, device="meta").stride()
        made = f"empty({sizes}, {strides}, dtype)"
    allocate: Allocate = eval(f"lambda args: {made}", names)
    return allocate


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
