"""Composite operators whose kernel in torch takes plain sizes only: written out for any sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphport.capture.tracer import Tracer, inside, special
from graphport.ops import OpInfo
from graphport.ops.sizes import require, wrap_dim
from graphport.symbolic import ge

aten = torch.ops.aten


@special(
    aten.gradient.scalarint, aten.gradient.scalararray, aten.gradient.array,
    aten.gradient.scalarrayint, aten.gradient.scalarrayarray,
)  # fmt: skip
def gradient(tracer: Tracer, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    x, order = args[0], kwargs.get("edge_order", 1)
    sizes = tracer.value(x).abstract.sizes
    chosen = kwargs.get("dim")
    given = range(len(sizes)) if chosen is None else chosen if _is_list(chosen) else [chosen]
    dims = [wrap_dim(d, len(sizes)) for d in given]
    spacing = kwargs.get("spacing")
    spaces = spacing if _is_list(spacing) else [1 if spacing is None else spacing] * len(dims)
    if len(spaces) != len(dims) or order not in (1, 2):
        return inside(tracer, info.op.decompose, args, kwargs)  # which says what is wrong
    for d in dims:
        require(ge(sizes[d], order + 1), "torch.gradient expected each dimension size to be at "
                "least edge_order+1, got {0} in dim {1}", sizes[d], d)  # fmt: skip
    return [inside(tracer, _along, (x, d, space, order), {})
            for d, space in zip(dims, spaces, strict=True)]  # fmt: skip


def _is_list(x: Any) -> bool:
    return isinstance(x, Sequence)


def _along(x: Tensor, dim: int, space: Any, order: int) -> Tensor:
    """Differences of neighbours on both sides; at the ends, of the nearest values."""

    def ends(*places: int) -> list[Tensor]:
        return [x.select(dim, i).unsqueeze(dim) for i in places]

    size = x.shape[dim]
    center = (x.narrow(dim, 2, size - 2) - x.narrow(dim, 0, size - 2)) / 2
    if order == 1:
        (a, b), (y, z) = ends(0, 1), ends(-2, -1)
        first, last = b - a, z - y
    else:
        (a, b, c), (w, y, z) = ends(0, 1, 2), ends(-3, -2, -1)
        first, last = b * 2 - (a * 3 + c) / 2, (z * 3 + w) / 2 - y * 2
    return torch.cat([first, center, last], dim) / space
