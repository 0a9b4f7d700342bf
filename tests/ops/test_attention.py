"""Attention kept as one operator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, bools, check_dynamic, check_static, row

attend = F.scaled_dot_product_attention
SOME = {"b": 1, "t": 1, "k": 1}
CLOSE = 1e-5

ROWS = [
    row(attend, "b 2 t 8", "b 2 k 8", "b 2 k 8", least=SOME, name="cross", tolerance=CLOSE),
    row(
        lambda q, k, v: attend(q, k, v, is_causal=True),
        "b 2 t 8",
        "b 2 t 8",
        "b 2 t 8",
        least=SOME,
        name="causal",
        tolerance=CLOSE,
    ),
    row(
        lambda q, k, v, m: attend(q, k, v, attn_mask=m),
        "b 2 t 8",
        "b 2 k 8",
        "b 2 k 8",
        "t k",
        least=SOME,
        name="float_mask",
        tolerance=CLOSE,
    ),
    row(
        lambda q, k, v, m: attend(q, k, v, attn_mask=m | True),
        "b 2 t 8",
        "b 2 k 8",
        "b 2 k 8",
        "b 1 t k",
        make=[*[torch.randn] * 3, bools],
        least=SOME,
        name="bool_mask",
        tolerance=CLOSE,
    ),
    row(
        lambda q, k, v: attend(q, k, v, scale=0.3),
        "b t 8",
        "b k 8",
        "b k 8",
        least=SOME,
        name="rank_3",
        tolerance=CLOSE,
    ),
    row(
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        "b 4 t 8",
        "b 2 k 8",
        "b 2 k 8",
        least=SOME,
        name="grouped",
        tolerance=CLOSE,
    ),
    row(
        attend,
        "b 2 t 8",
        "b 2 k 8",
        "b 2 k 4",
        least=SOME,
        name="other_value_size",
        tolerance=CLOSE,
    ),
    row(
        lambda q, k, v: attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2),
        "b t 2 8",
        "b k 2 8",
        "b k 2 8",
        least=SOME,
        name="heads_apart",
        tolerance=CLOSE,
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
