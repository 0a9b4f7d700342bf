"""Attention kept as one operator."""

from __future__ import annotations

import torch

from graphport.errors import ShapeError
from graphport.ops.abstract import Abstract
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import broadcast, require_equal
from graphport.ops.strides import preserved

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
                  "attention: query {0} and key {1} differ in last dim", query, key)  # fmt: skip
    require_equal(key.sizes[-2], value.sizes[-2],
                  "attention: key {0} and value {1} differ in length", key, value)  # fmt: skip
    lead = query.sizes[:-2]
    if not enable_gqa and lead != key.sizes[:-2]:
        lead = broadcast(lead, key.sizes[:-2], value.sizes[:-2])
    sizes = (*lead, query.sizes[-2], value.sizes[-1])
    if attn_mask is not None:
        broadcast((*lead, query.sizes[-2], key.sizes[-2]), attn_mask.sizes)
    if _is_fused(query, key, value, dropout_p, enable_gqa):
        # The fused CPU kernel writes its result in the layout of the query.
        return Abstract(sizes, query.dtype, query.device, preserved(query))
    return query.like(sizes)


def _is_fused(
    query: Abstract, key: Abstract, value: Abstract, dropout_p: float, enable_gqa: bool
) -> bool:
    return (
        query.rank == 4
        and dropout_p == 0.0
        and query.sizes[-1] == value.sizes[-1]
        and all(a._strides is None or a._strides[-1] == 1 for a in (query, key, value))
        and (enable_gqa or query.sizes[:2] == key.sizes[:2] == value.sizes[:2])
    )
