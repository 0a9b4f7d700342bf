"""Attention kept as one operator."""

from __future__ import annotations

import torch

from graphport.errors import ShapeError
from graphport.ops.abstract import Abstract, permuted
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import broadcast, require_equal

aten = torch.ops.aten


@shape_rule(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    query: Abstract, key: Abstract, value: Abstract, attn_mask: Abstract | None,
    dropout_p: float, is_causal: bool, *, scale: float | None, enable_gqa: bool,
) -> Abstract:  # fmt: skip
    if not query.dtype == key.dtype == value.dtype:
        raise ShapeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    require_equal(query.sizes[-1], key.sizes[-1],
                  "attention: query {0} and key {1} differ in their last dim", query, key)  # fmt: skip
    require_equal(key.sizes[-2], value.sizes[-2],
                  "attention: key {0} and value {1} differ in length", key, value)  # fmt: skip
    lead = query.sizes[:-2]
    if not enable_gqa and lead != key.sizes[:-2]:
        lead = broadcast(lead, key.sizes[:-2], value.sizes[:-2])
    sizes = (*lead, query.sizes[-2], value.sizes[-1])
    if attn_mask is not None:
        broadcast((*lead, query.sizes[-2], key.sizes[-2]), attn_mask.sizes)
    if len(sizes) == 4 and _is_fused(query, value, dropout_p):
        # The fused CPU kernel writes its result as [batch, length, heads, dim].
        return Abstract(sizes, query.dtype, query.device, permuted(sizes, (0, 2, 1, 3)))
    return query.like(sizes)


def _is_fused(query: Abstract, value: Abstract, dropout_p: float) -> bool:
    return (
        query.device.type == "cpu"
        and dropout_p == 0.0
        and query.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and query.sizes[-1] is value.sizes[-1] or query.sizes[-1] == value.sizes[-1]
    )


