"""Cumulative operators on ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import bools, ints, row

OPS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_last": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod_first": lambda x: x.cumprod(0),
    "cummax": lambda x: tuple(x.cummax(1)),
    "cummin": lambda x: tuple(x.cummin(-1)),
}
FLOATS: dict[str, Callable[..., Any]] = {
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cumsum_dtype": lambda x: x.cumsum(1, dtype=torch.float64),
}

ROWS = [
    *(row(fn, "b t 3", name=name) for name, fn in (OPS | FLOATS).items()),
    *(row(fn, "b t 3", make=ints(4), name=f"ints_{name}") for name, fn in OPS.items()),
    row(lambda x: x.int().cumsum(1, dtype=torch.int32), "b t", make=ints(4), name="cumsum_int32"),
    row(lambda x: x.to(torch.int16).cummax(0).values, "b t", make=ints(4), name="cummax_int16"),
    row(
        lambda x: (x.cumsum(0), x.cumprod(0), tuple(x.cummax(0)), x.logcumsumexp(0)),
        "",
        name="zero_dims",
    ),
    row(lambda x: x.cumprod(0), "b", name="line"),
    row(lambda x: x.diff(dim=1), "b t 3", least={"t": 1}, name="diff"),
    row(lambda x: x.diff(2), "b t", make=ints(9), least={"t": 3}, name="diff_2"),
    row(lambda x: torch.cumulative_trapezoid(x, dim=0), "b t", least={"b": 1}),
]
OTHER_DTYPES = [
    *(
        row(fn, "b t 3", make=make, name=f"{make.__name__}_{name}")
        for make in (halves, doubles)
        for name, fn in (OPS | FLOATS).items()
    ),
    *(row(fn, "b t 3", make=bools, name=f"bools_{name}") for name, fn in OPS.items()),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
test_dtypes = pytest.mark.slow(dynamic_test(OTHER_DTYPES))


def test_edges() -> None:
    """The last of equal ones, and of those that are no numbers."""
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, 3, 3, nan, 2, nan], [-inf, -inf, 1, 1, inf, inf], [2, 2, 1, 1, 0, 0]])
    check_onnx(lambda x: (tuple(x.cummax(1)), tuple(x.cummin(1)), x.cumprod(1)), (x,))
    check_onnx(lambda x: x.logcumsumexp(1), (x,))


def test_integers_stay_integers() -> None:
    x = torch.tensor([7000000049, 3, 2**40])
    check_onnx(lambda x: (x.cumsum(0), x.cumprod(0), tuple(x.cummin(0))), (x,))


def test_far_apart() -> None:
    """Early sums are not lost beside a late, large one."""
    check_onnx(lambda x: x.logcumsumexp(0), (torch.tensor([-200.0, -201.0, 0.0, 300.0]),))
