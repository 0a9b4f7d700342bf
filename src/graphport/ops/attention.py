"""Shape rule of scaled dot product attention, kept as one operator."""

from __future__ import annotations

import torch

from graphport.compat.operators import aten
from graphport.compat.schemas import MASKS_EXCLUDE_EACH_OTHER
from graphport.errors import ShapeError
from graphport.ops.registry import shape_rule
from graphport.ops.sizes import broadcast, establish_equal, establish_expandable
from graphport.tensors.abstract import Abstract, Sizes, preserve_strides


@shape_rule(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    query: Abstract,
    key: Abstract,
    value: Abstract,
    attn_mask: Abstract | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> Abstract:
    if not query.dtype == key.dtype == value.dtype:
        raise ShapeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    _check_arguments(query, key, value, attn_mask, dropout_p, enable_gqa)
    if not establish_equal(query.sizes[-1], key.sizes[-1]):
        raise ShapeError(f"attention: query {query} and key {key} differ in last dim")
    if not establish_equal(key.sizes[-2], value.sizes[-2]):
        raise ShapeError(f"attention: key {key} and value {value} differ in length")
    lead = _infer_batch_sizes(query, key, value, enable_gqa)
    sizes = (*lead, query.sizes[-2], value.sizes[-1])
    if attn_mask is not None:
        scores = (*lead, query.sizes[-2], key.sizes[-2])
        if not establish_expandable(attn_mask.sizes, scores):
            raise ShapeError(f"attention: a mask {attn_mask} for query {query} and key {key}")
    fused = _is_fused(query, key, value, dropout_p, enable_gqa)
    if is_causal and attn_mask is not None and (MASKS_EXCLUDE_EACH_OTHER or not fused):
        raise ShapeError("attention: is_causal and attn_mask exclude each other here")
    if fused:
        # The fused CPU kernel writes its result in the layout of the query.
        return Abstract(sizes, query.dtype, query.device, preserve_strides(query))
    return query.like(sizes)


def _check_arguments(
    query: Abstract,
    key: Abstract,
    value: Abstract,
    mask: Abstract | None,
    dropout: float,
    grouped: bool,
) -> None:
    least = 3 if grouped else 2
    if any(a.rank < least or not a.dtype.is_floating_point for a in (query, key, value)):
        raise ShapeError(
            f"attention: expected floats of at least {least} dims, got query {query}, "
            f"key {key} and value {value}"
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise ShapeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, "
            f"but got {mask.dtype} and {query.dtype}"
        )
    if mask is not None and mask.rank < 2:
        raise ShapeError(f"attention: a mask has at least 2 dims, got {mask}")
    if not 0 <= dropout <= 1:
        raise ShapeError(f"dropout probability has to be between 0 and 1, but got {dropout}")


def _infer_batch_sizes(query: Abstract, key: Abstract, value: Abstract, grouped: bool) -> Sizes:
    """All but the last two dims of the result."""
    lead = query.sizes[:-2]
    if not grouped:
        others = (key.sizes[:-2], value.sizes[:-2])
        return lead if lead == others[0] == others[1] else broadcast(lead, *others)
    heads = lead[-1]
    for own in (key.sizes[-3], value.sizes[-3]):
        if own is not heads and not (type(own) is int and own == 0):
            if not establish_equal(heads % own, 0):
                raise ShapeError(
                    "Number of heads in key and value must divide the number of heads in query, "
                    f"but got {own} and {heads}"
                )
    return (*broadcast(lead[:-1], key.sizes[:-3], value.sizes[:-3]), heads)


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
