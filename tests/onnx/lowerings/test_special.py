"""Special and elementary functions on ONNX Runtime: to the precision of the dtype, tails too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.onnx.helpers import check_onnx, check_special, with_gaps
from tests.onnx.rows import doubles, dynamic_test, static_test
from tests.ops.rows import ints, positive, row

EDGES = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
LINE = torch.cat(
    [
        torch.linspace(-30, 30, 601),
        torch.logspace(-20, 1.9, 60),
        -torch.logspace(-20, 1.9, 60),
        EDGES,
    ]
)
UNIT = torch.cat([torch.linspace(-1, 1, 401), torch.logspace(-30, -1, 60), EDGES, LINE[:3]])

WIDE: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        torch.erf,
        torch.erfc,
        torch.special.erfcx,
        torch.special.ndtr,
        torch.special.log_ndtr,
        torch.i0,
        torch.special.i0e,
        torch.special.i1,
        torch.special.i1e,
        torch.atan,
        torch.asinh,
        torch.expm1,
        torch.log1p,
        torch.exp2,
        torch.log2,
        torch.log10,
        torch.tan,
        torch.sinh,
        torch.cosh,
        torch.acosh,
        torch.special.entr,
    )
}
NARROW: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (torch.asin, torch.acos, torch.atanh, torch.erfinv, torch.special.ndtri, torch.logit)
}
# Relative; the function itself is ill-conditioned where torch and a formula differ by more.
PRECISION = {torch.float32: 4e-6, torch.float64: 1e-12}


def close(fn: Callable[..., Any], x: torch.Tensor) -> None:
    program = check_special(fn, (x,))
    have, want = program(x), fn(with_gaps(x))
    tiny = 1e-30 if x.dtype is torch.float32 else 1e-290
    torch.testing.assert_close(have, want, rtol=PRECISION[x.dtype], atol=tiny, equal_nan=True)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_precision(name: str, dtype: torch.dtype) -> None:
    if name == "special_ndtr":
        check_special(WIDE[name], (LINE.to(dtype),))
        return
    close(WIDE[name], LINE.to(dtype))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", NARROW)
def test_precision_within_one(name: str, dtype: torch.dtype) -> None:
    close(NARROW[name], UNIT.to(dtype))


@pytest.mark.parametrize("fn", [torch.lgamma, torch.digamma], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_gamma(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    """Poles at 0 and the negative integers, roots in between."""
    x = torch.cat([torch.linspace(-20.05, 60, 800), torch.arange(-5.0, 40), LINE[-125:]])
    if fn is torch.digamma:  # what is infinite at a pole is of any size beside it
        x = x[~((x < 0) & ((x - x.round()).abs() < 1e-3) & (x != x.round()))]
    check_special(fn, (x.to(dtype),))


def test_angles() -> None:
    """In all quadrants, with signed zeros and infinities."""
    some = torch.cat([EDGES, torch.tensor([1.0, -1.0, 0.3, -2.0, 1e-8])])
    y, x = (t.reshape(-1) for t in torch.meshgrid(some, some, indexing="ij"))
    check_special(torch.atan2, (y, x))
    check_special(torch.atan2, (y.double(), x.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_digits(dtype: torch.dtype) -> None:
    """To the last of them, subnormal numbers and the largest included."""
    info = torch.finfo(dtype)
    some = [1.0, -1.0, 2.0, 0.5, 1.5, -3.0, info.max, info.min, info.tiny, info.tiny / 2, 0.1]
    x = torch.cat([torch.tensor(some), EDGES]).to(dtype)
    x, y = (t.reshape(-1) for t in torch.meshgrid(x, x, indexing="ij"))
    exact(lambda x, y: torch.nextafter(x, y), x, y)
    if dtype is not torch.bfloat16:
        exact(lambda x: tuple(torch.frexp(x)), x)


def exact(fn: Callable[..., Any], *x: torch.Tensor) -> None:
    program, want = check_special(fn, x), fn(*map(with_gaps, x))
    torch.testing.assert_close(program(*x), want, rtol=0, atol=0, equal_nan=True)


def test_zeta() -> None:
    x, q = torch.tensor([0.5, 1, 2, 2.5, 3, 7]), torch.tensor([-7.5, -2, -0.5, 0, 0.1, 1, 5, 30])
    grid = tuple(t.reshape(-1).double() for t in torch.meshgrid(x, q, indexing="ij"))
    check_onnx(lambda x, q: torch.special.zeta(x, q), grid)
    line = torch.cat([torch.linspace(0.1, 20, 60), torch.tensor([-1.5, 0.0, -6.25])]).double()
    check_onnx(lambda x: [torch.special.polygamma(n, x) for n in range(5)], (line,), scale=10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trigamma_next_to_poles(dtype: torch.dtype) -> None:
    """Eager rounds the angle: everything depends on that there, and poles are large numbers."""
    poles = -torch.arange(10, dtype=dtype).repeat_interleave(40)
    apart = torch.linspace(-0.01, 0.01, 400, dtype=dtype)
    ends = torch.tensor([0.0, -3.0, -8.0, -20.5, 1e10, math.inf, -math.inf, math.nan], dtype=dtype)
    x = torch.cat([poles + apart, ends])
    program = check_special(lambda x: torch.polygamma(1, x), (x,))
    torch.testing.assert_close(program(x), torch.polygamma(1, x), rtol=2e-6, atol=0, equal_nan=True)


def test_no_overflow() -> None:
    x, y = torch.tensor([1e30, 3e-30, 0.0, math.inf]), torch.tensor([1e30, 4e-30, 0.0, 1.0])
    check_special(torch.hypot, (x, y))
    check_special(torch.hypot, (x.double() ** 8, y.double() ** 8))
    a, b = (
        torch.tensor([500.0, -500, math.inf, -math.inf, 3.0]),
        torch.tensor([499.0, -600, math.inf, -math.inf, math.inf]),
    )
    check_special(lambda a, b: (torch.logaddexp(a, b), torch.logaddexp2(a, b)), (a, b))


def halves(size: Sequence[int]) -> torch.Tensor:
    return torch.rand(tuple(size)).half()


ROWS = [
    *(
        row(fn, "b t", make=halves, name=f"half_{name}")
        for name, fn in (WIDE | NARROW).items()
        if not name.endswith(("erfcx", "ndtr", "ndtri"))
    ),
    *(row(fn, "b t", make=ints(4), name=f"int_{name}") for name, fn in WIDE.items()),
    *(row(fn, "b t", "t") for fn in (torch.atan2, torch.hypot, torch.logaddexp)),
    *(row(fn, "b t", "t", make=positive) for fn in (torch.xlogy, torch.special.xlog1py)),
    row(lambda x: (torch.xlogy(x, 2.0), torch.xlogy(0, x)), "b t", make=positive, name="xlogy_2"),
    row(lambda x: torch.logit(x, 0.1), "b t", make=halves, name="logit_eps"),
    row(lambda x: (torch.lgamma(x), torch.digamma(x)), "b t", make=doubles, name="gamma"),
    row(lambda x: torch.mvlgamma(x + 2, 3), "b t", make=positive, name="mvlgamma"),
    row(torch.sinc, "b t"),
    row(torch.angle, "b t"),
    row(torch.angle, "b t", make=ints(4), name="angle_int"),
    row(lambda x: torch.special.polygamma(1, x), "b t", make=positive, name="polygamma"),
    row(torch.special.zeta, "b t", "t", make=[positive, positive]),
    row(torch.erfc, "", name="zero_dims"),
]

test_static = static_test(ROWS)


test_dynamic = dynamic_test(ROWS)
