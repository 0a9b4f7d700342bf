"""Bessel and Airy functions on ONNX Runtime: where they grow, decay and oscillate, and the ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx, check_special, with_gaps
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

special = torch.special
OSCILLATING: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        special.bessel_j0,
        special.bessel_j1,
        special.bessel_y0,
        special.bessel_y1,
        special.spherical_bessel_j0,
        special.airy_ai,
    )
}
MONOTONIC: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        special.modified_bessel_i0,
        special.modified_bessel_i1,
        special.modified_bessel_k0,
        special.modified_bessel_k1,
        special.scaled_modified_bessel_k0,
        special.scaled_modified_bessel_k1,
    )
}
ALL = OSCILLATING | MONOTONIC

# Where torch goes from one formula to another, and what is not a usual number.
EDGES = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 2, 2.09, -2.09, 5, -5, 8, -8, 104])
TINY = torch.logspace(-20, 0, 80)
LINE = torch.cat([torch.linspace(-30, 30, 1201), torch.linspace(80, 110, 61), TINY, -TINY, EDGES])
LARGE = torch.logspace(1.5, 8, 400)
PRECISION = {torch.float32: 2e-6, torch.float64: 1e-13}


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", MONOTONIC)
def test_relative(name: str, dtype: torch.dtype) -> None:
    """To the last digits, however small or large; infinite where torch is."""
    fn, x = MONOTONIC[name], torch.cat([LINE, LARGE, -LARGE]).to(dtype)
    program, want = check_special(fn, (x,)), fn(with_gaps(x))
    tiny = 1e-37 if dtype is torch.float32 else 1e-300
    torch.testing.assert_close(program(x), want, rtol=PRECISION[dtype], atol=tiny, equal_nan=True)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", OSCILLATING)
def test_absolute(name: str, dtype: torch.dtype) -> None:
    """Beside a root no digit is certain, but there are as many after the point as elsewhere."""
    fn, x = OSCILLATING[name], LINE.to(dtype)
    program, want = check_special(fn, (x,)), fn(with_gaps(x))
    close = {"rtol": PRECISION[dtype], "atol": PRECISION[dtype]}
    torch.testing.assert_close(program(x), want, equal_nan=True, **close)


@pytest.mark.parametrize("name", OSCILLATING)
def test_large(name: str) -> None:
    """The angle is rounded as torch does it, which a large float32 depends on altogether."""
    fn, x = OSCILLATING[name], torch.cat([LARGE, -LARGE])
    program = check_onnx(lambda x: fn(x), (x,))
    close = {"rtol": 1e-4, "atol": 1e-7}
    torch.testing.assert_close(program(x), fn(x), equal_nan=True, **close)
    if name != "special_airy_ai":  # whose angle is a power: the last digit of a double is left
        check_onnx(lambda x: fn(x), (x.double(),))


def test_the_smallest() -> None:
    """What overflows near 0."""
    x = torch.tensor([1e-38, 1e-37, 1e-30, 1e-25])
    check_special(lambda x: [fn(x) for fn in ALL.values()], (x,))


ROWS = [
    *(row(fn, "b t", name=name) for name, fn in ALL.items()),
    row(lambda x: [fn(x) for fn in ALL.values()], "b t", make=ints(12), name="int"),
    row(lambda x: [fn(x) for fn in ALL.values()], "b t", make=bools, name="bool"),
    row(special.bessel_j1, "", name="zero_dims"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
