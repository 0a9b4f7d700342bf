"""Incomplete gamma functions on ONNX Runtime: for small and large numbers, and at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx, check_special
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import row

BOTH: dict[str, Callable[..., Any]] = {f.__name__: f for f in (torch.igamma, torch.igammac)}


def grid(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every size of both, and more of x near a, where one turns from 0 to 1."""
    a = torch.logspace(-4, 6, 61, dtype=dtype)[:, None]
    ratio = torch.cat([torch.linspace(0.5, 1.5, 41), torch.logspace(-4, 3, 20)]).to(dtype)
    sizes = torch.logspace(-6, 7, 40, dtype=dtype).expand(len(a), -1)
    x = torch.cat([a * ratio, sizes], dim=1)
    return a.expand_as(x).reshape(-1), x.reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_values(name: str, dtype: torch.dtype) -> None:
    check_onnx(lambda a, x: BOTH[name](a, x), grid(dtype))


@pytest.mark.parametrize("name", BOTH)
def test_tails(name: str) -> None:
    """They keep their digits, as far as torch's own do (it has pi of float32)."""
    a, x = grid(torch.float64)
    program, want = check_onnx(lambda a, x: BOTH[name](a, x), (a, x)), BOTH[name](a, x)
    torch.testing.assert_close(program(a, x), want, rtol=1e-8, atol=1e-280)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_ends(name: str, dtype: torch.dtype) -> None:
    """And where one method takes over from another."""
    some = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        -1.0,
        1e-30,
        0.5,
        1,
        20,
        200,
        999.9,
        1000,
        1e30,
    ]
    a, x = (
        t.reshape(-1) for t in torch.meshgrid(torch.tensor(some), torch.tensor(some), indexing="ij")
    )
    check_special(BOTH[name], (a.to(dtype), x.to(dtype)))


def some(size: Sequence[int]) -> torch.Tensor:
    return torch.rand(tuple(size)) * 9


ROWS = [
    *(row(fn, "b t", "t", make=some, name=name) for name, fn in BOTH.items()),
    row(torch.special.gammainc, "b 1", "t", make=some, name="gammainc"),
    row(torch.special.gammaincc, "", "", make=some, name="zero_dims"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
