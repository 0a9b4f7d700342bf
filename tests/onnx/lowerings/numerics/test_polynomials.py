"""Orthogonal polynomials on ONNX Runtime: of degrees that are numbers, and that are tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx, check_special
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

special = torch.special
CHEBYSHEV: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        special.chebyshev_polynomial_t,
        special.chebyshev_polynomial_u,
        special.chebyshev_polynomial_v,
        special.chebyshev_polynomial_w,
        special.shifted_chebyshev_polynomial_t,
        special.shifted_chebyshev_polynomial_u,
        special.shifted_chebyshev_polynomial_v,
        special.shifted_chebyshev_polynomial_w,
    )
}
OTHERS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        special.hermite_polynomial_h,
        special.hermite_polynomial_he,
        special.laguerre_polynomial_l,
        special.legendre_polynomial_p,
    )
}
ALL = CHEBYSHEV | OTHERS

DTYPES = (torch.float32, torch.float64)
DEGREES = [-3, -1, -0.5, 0, 0.7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 40]
NOT_DEGREES = [math.nan, math.inf, -math.inf, 1e20, -1e20]


def neighbours(x: float, dtype: torch.dtype) -> list[float]:
    """A number and the next few of its dtype on either side."""
    found = [x]
    for end in (-2.0, 3.0):
        at = torch.tensor(x, dtype=dtype)
        for _ in range(4):
            at = torch.nextafter(at, torch.tensor(end, dtype=dtype))
            found.append(at.item())
    return found


def arguments(dtype: torch.dtype) -> torch.Tensor:
    """A grid within and around [-1, 1], its ends from nearby, and what overflows soon or late."""
    ends = [y for x in (-1.0, 0.0, 1.0) for y in neighbours(x, dtype)]
    some = [math.inf, -math.inf, 1e-10, 1e-30, -1e-10, 50.0, 1e10, -1e30, 3e38]
    return torch.cat(
        [
            torch.linspace(-3, 3, 151, dtype=dtype),
            torch.linspace(-0.99, 0.99, 80, dtype=dtype),
            torch.tensor(ends + some, dtype=dtype),
        ]
    )


def grid(dtype: torch.dtype, degrees: list[Any]) -> tuple[torch.Tensor, ...]:
    n = torch.tensor(degrees, dtype=dtype)
    return tuple(t.reshape(-1) for t in torch.meshgrid(arguments(dtype), n, indexing="ij"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_degrees(name: str, dtype: torch.dtype) -> None:
    """nan where torch has it: after an overflow."""
    fn = ALL[name]
    check_special(fn, grid(dtype, DEGREES + NOT_DEGREES))


@pytest.mark.parametrize("name", ALL)
def test_fixed_degree(name: str) -> None:
    """Written out if it is small."""
    fixed = (-1, 0, 1, 2, 5, 7, 8, 9, 20, 2.9, -0.5)
    check_special(lambda x: [ALL[name](x, n) for n in fixed], (arguments(torch.float32),))


@pytest.mark.parametrize("name", ["special_hermite_polynomial_h", "special_hermite_polynomial_he"])
def test_hermite_limits(name: str) -> None:
    """Degrees for which torch gives nothing."""
    for dtype, limit in ((torch.float32, 128), (torch.float64, 512)):
        x = torch.linspace(-2, 2, 9, dtype=dtype)[:, None]
        n = torch.tensor([limit - 1, limit, limit + 1, 10 * limit], dtype=dtype)
        check_onnx(lambda x, n: ALL[name](x, n), (x, n))
    check_onnx(lambda x: ALL[name](x, 200), (x.float(),))


@pytest.mark.parametrize(
    "name", ["special_chebyshev_polynomial_t", "special_legendre_polynomial_p"]
)
def test_high_degrees(name: str) -> None:
    """Those that torch has a formula for, or ends early, are not counted up to."""
    x = torch.tensor([1.0, -1.0, 2.0, math.inf, math.nan])[:, None]
    check_special(ALL[name], (x, torch.tensor([1e9, 1e9 + 64, 3e7])))


@pytest.mark.parametrize("name", ALL)
def test_not_a_number(name: str) -> None:
    """From degree 1 on (from 2 on, torch leaves some undefined)."""
    check_special(ALL[name], (torch.tensor(math.nan), torch.tensor([-1.0, 0, 1])))


def test_degree_is_a_size() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return special.legendre_polynomial_p(x, x.shape[0])

    others = [(torch.rand(n),) for n in (1, 3, 12)]
    check_onnx(model, (torch.rand(5),), dynamic_shapes={"x": {0: gp.Dim("n")}}, others=others)


def degrees(size: Any) -> torch.Tensor:
    return torch.randint(-1, 12, tuple(size)).float()


def each(*args: Any) -> list[torch.Tensor]:
    return [fn(*args) for fn in ALL.values()]


ROWS = [
    *(row(fn, "b t", "t", make=[torch.randn, degrees], name=n) for n, fn in ALL.items()),
    row(each, "b 1", "t", make=[torch.randn, ints(12)], name="int_degrees"),
    row(each, "b t", "t", make=[bools, bools], name="bool"),
    row(each, "b t", "", make=ints(9), name="int"),
    row(lambda n: each(0.3, n), "b t", make=ints(12), name="x_is_a_number"),
    row(lambda x: each(x, 3), "b t", name="cubic"),
    row(lambda x: each(x, 0), "b t", make=ints(4), name="constant"),
    row(special.chebyshev_polynomial_u, "", "", make=[torch.randn, degrees], name="zero_dims"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
