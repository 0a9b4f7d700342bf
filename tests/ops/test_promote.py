"""Type promotion agrees with torch.result_type: all pairs of dtypes, all classes of operands."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from graphport.ops import promote
from graphport.tensors.abstract import Abstract

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)
NUMBERS = (True, 3, 2.5, 1j)
SIZES = ((), (2,), (2, 3), (0,))


def abstract(x: Any) -> Any:
    return Abstract(tuple(x.shape), x.dtype, x.device) if isinstance(x, torch.Tensor) else x


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=dtype) for size in SIZES]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_pairs(default: torch.dtype) -> None:
    operands = [t for dtype in DTYPES for t in tensors(dtype)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for a, b in product(operands, [*operands, *NUMBERS]):
            assert promote.result_type(map(abstract, (a, b))) is torch.result_type(a, b), (a, b)
        for a, b in product(NUMBERS, NUMBERS):
            assert promote.result_type((a, b)) is torch.result_type(a, b), (a, b)
    finally:
        torch.set_default_dtype(before)


def test_three_operands() -> None:
    """Classes of operands are combined, not pairs; the oracle is an operator that takes a list."""
    dtypes = (torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.complex64)
    operands = [torch.ones(s, dtype=d) for d in dtypes for s in ((), (2,))]
    condition = torch.ones((), dtype=torch.bool)
    for a, b in product(operands, operands):
        have = promote.result_type(map(abstract, (a, b)))
        assert have is torch.where(condition, a, b).dtype, (a, b)
    for a, b, c in product(operands, operands, operands):
        same_rank = [t.reshape(-1) for t in (a, b, c)]
        have = promote.result_type(map(abstract, same_rank))
        assert have is torch.cat(same_rank).dtype, (a, b, c)
