"""Arithmetic, comparison, logic and type conversion on ONNX Runtime."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from tests.onnx.helpers import check_onnx, check_special
from tests.onnx.rows import brains, doubles, dynamic_test, halves, static_test
from tests.ops.rows import bools, ints, positive, row

NAN, INF = math.nan, math.inf
EDGES = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 300.0, -0.125])


def signed(size: Sequence[int]) -> torch.Tensor:
    """Integers of both signs, no zero among them."""
    found = torch.randint(1, 9, tuple(size))
    return found * (torch.randint(2, tuple(size)) * 2 - 1)


UNARY = (
    torch.abs,
    torch.neg,
    torch.sign,
    torch.floor,
    torch.ceil,
    torch.round,
    torch.trunc,
    torch.frac,
    torch.exp,
    torch.sin,
    torch.cos,
    torch.tanh,
    torch.square,
    torch.isnan,
    torch.isfinite,
    torch.isinf,
    torch.signbit,
    torch.deg2rad,
    torch.rad2deg,
    torch.nan_to_num,
    torch.logical_not,
)
BINARY = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.remainder,
    torch.fmod,
    torch.floor_divide,
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.ge,
    torch.copysign,
    torch.heaviside,
    torch.rsub,
    torch.logical_xor,
)
INTEGER = (
    torch.add,
    torch.mul,
    torch.remainder,
    torch.fmod,
    torch.floor_divide,
    torch.true_divide,
    torch.bitwise_and,
    torch.bitwise_or,
    torch.bitwise_xor,
    torch.gcd,
    torch.lcm,
    torch.maximum,
)

ROWS = [
    *(row(fn, "b t") for fn in UNARY),
    *(row(fn, "b t", make=positive) for fn in (torch.log, torch.rsqrt, torch.sqrt)),
    *(row(fn, "b t", "t") for fn in BINARY),
    *(row(fn, "b t", "t", make=signed, name=f"int_{fn.__name__}") for fn in INTEGER),
    *(
        row(fn, "b t", "t", make=bools, name=f"bool_{fn.__name__}")
        for fn in (
            torch.add,
            torch.mul,
            torch.logical_and,
            torch.logical_or,
            torch.bitwise_xor,
            torch.eq,
            torch.maximum,
            torch.ne,
            torch.lt,
        )
    ),
    *(
        row(
            lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode),
            "b t",
            "t",
            make=make,
            name=f"div_{mode}_{make.__name__}",
        )
        for mode in ("floor", "trunc", None)
        for make in (signed, torch.randn, halves)
    ),
    *(
        row(
            lambda x, by=by: (x // by, x % by, torch.fmod(x, by)),
            "b t",
            make=make,
            name=f"by_{by}_{make.__name__}",
        )
        for by in (3, -3)
        for make in (signed, torch.randn)
    ),
    row(lambda x: x % 0.7, "b t", make=signed, name="int_by_float"),
    row(lambda x: 1.0 - x, "b t", make=ints(2), name="one_minus_mask"),
    row(lambda x: x * 2.0, "b t", make=ints(2), name="mask_times_float"),
    row(lambda x: (1.0 - x.float()) * -10000.0, "b t", make=bools, name="additive_mask"),
    row(lambda x: 3 - x, "b t", make=ints(5), name="rsub_int"),
    row(lambda x, y: torch.add(x, y, alpha=3), "b t", "t", make=ints(5), name="add_alpha"),
    row(lambda x, y: torch.sub(x, y, alpha=0.5), "b t", "t", name="sub_alpha"),
    row(lambda x: x * x.shape[0] + x % (x.shape[1] + 1), "b t", make=ints(9), name="symbolic_int"),
    row(lambda x: x * x.shape[0] / (x.shape[1] + 1), "b t", name="symbolic_float"),
    row(lambda x: torch.remainder(x, x.shape[0] + 1), "b t", name="symbolic_remainder"),
    row(lambda x: x // (x.shape[0] + 1), "b t", make=signed, name="symbolic_floor_divide"),
    row(lambda x: x.clamp(max=x.shape[1] - 2), "b t", make=ints(9), name="symbolic_clamp"),
    row(lambda x: x > x.shape[0], "b t", make=ints(9), name="symbolic_compare"),
    row(lambda x: x.clamp(-1, 0.5), "b t", name="clamp"),
    row(lambda x: x.clamp(min=0.5), "b t", make=ints(3), name="clamp_int_by_float"),
    row(lambda x, low: torch.clamp(x, low, low + 1), "b t", "t", name="clamp_tensor"),
    row(lambda x: torch.clamp_min(x, 1), "b t", make=ints(5), name="clamp_min"),
    row(torch.addcmul, "b t", "b 1", "t"),
    row(
        lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
        "b t",
        "b 1",
        "t",
        make=[torch.randn, torch.randn, positive],
        name="addcdiv",
    ),
    row(lambda x, y: torch.lerp(x, y, 0.3), "b t", "t", name="lerp_near"),
    row(lambda x, y: torch.lerp(x, y, 0.8), "b t", "t", name="lerp_far"),
    row(torch.lerp, "b t", "b t", "t", make=[torch.randn, torch.randn, positive]),
    row(
        lambda m, x, y: torch.where(m, x, y),
        "b 1",
        "b t",
        "t",
        make=[bools, torch.randn, ints(4)],
        name="where_promotes",
    ),
    row(
        lambda m, x: torch.where(m, x, -1e9),
        "b t",
        "b t",
        make=[bools, halves],
        name="where_scalar_half",
    ),
    row(lambda m, x: torch.where(m, 2, x), "b t", "b t", make=[bools, ints(4)], name="where_self"),
    row(lambda m: torch.where(m, 1.0, 0.0), "b t", make=bools, name="where_scalars"),
    row(lambda m, x: torch.where(m, x, ~x), "b t", "b t", make=bools, name="where_bool"),
    row(
        lambda x, m: x.masked_fill(m, -INF),
        "b t",
        "t",
        make=[torch.randn, bools],
        name="masked_fill",
    ),
    row(lambda x, m: x.masked_fill(m, True), "b t", "t", make=bools, name="masked_fill_bool"),
    row(lambda x, y: torch.isclose(x, y + 1e-9), "b t", "b t", name="isclose"),
    row(lambda x, y: (x << y, x >> y), "b t", "t", make=[signed, ints(9)], name="shifts"),
    row(lambda x: (x << 2, x >> 1), "b t", make=signed, name="shifts_by_number"),
    row(lambda x: (x & 3, x | 8, x ^ 5, ~x), "b t", make=signed, name="bits_with_number"),
    *(row(lambda x, e=e: x**e, "b t", name=f"pow_{e}") for e in (2, 3, 2.0, -2, 0, 1, 7)),
    *(
        row(lambda x, e=e: x**e, "b t", make=positive, name=f"pow_positive_{e}")
        for e in (0.5, -0.5, -1, 1.7)
    ),
    *(row(lambda x, e=e: x**e, "b t", make=signed, name=f"int_pow_{e}") for e in (0, 1, 2, 5)),
    row(torch.pow, "b t", "t", make=[positive, torch.randn], name="pow_tensors"),
    row(torch.pow, "b t", "t", make=[signed, ints(30)], name="int_pow_tensors"),
    row(lambda x: 2**x, "b t", make=ints(66), name="two_to_the_int"),
    row(lambda x: 3**x, "b t", make=ints(50), name="three_to_the_int"),
    row(lambda x: 2.5**x, "b t", name="number_pow"),
    *(
        row(lambda x, d=d: torch.round(x * 100, decimals=d), "b t", name=f"round_{d}")
        for d in (2, -1, 0)
    ),
    row(lambda x: torch.nan_to_num(x, nan=1.0, posinf=2.0), "b t", name="nan_to_num_given"),
    row(
        lambda x: (x.half(), x.double(), x.long(), x.bool(), x.to(torch.int8)),
        "b t",
        name="conversions",
    ),
    row(
        lambda x: (x.float(), x.bool(), x.to(torch.uint8)),
        "b t",
        make=ints(300),
        name="conversions_of_ints",
    ),
    row(
        lambda x, y: (x.type_as(y), y.to(x)),
        "b t",
        "b t",
        make=[torch.randn, ints(4)],
        name="conversions_like",
    ),
    row(lambda x: x + 1, "", name="zero_dims"),
    row(lambda x, y: x * y, "b t", "", make=[ints(4), torch.randn], name="zero_dims_promote"),
]
OTHER_DTYPES = [
    *(row(fn, "b t", make=doubles, name=f"double_{fn.__name__}") for fn in UNARY),
    *(row(fn, "b t", make=brains, name=f"bfloat16_{fn.__name__}") for fn in UNARY),
    *(row(fn, "b t", "b t", make=halves, name=f"half_{fn.__name__}") for fn in BINARY),
    *(
        row(
            lambda x, y, fn=fn: fn(x.int(), y.int()),
            "b t",
            "t",
            make=signed,
            name=f"int32_{fn.__name__}",
        )
        for fn in INTEGER
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)
test_dtypes = pytest.mark.slow(dynamic_test(OTHER_DTYPES))


@pytest.mark.parametrize(
    "fn",
    [*UNARY, torch.sgn, torch.isposinf, torch.isneginf, torch.sqrt],
    ids=lambda fn: fn.__name__,
)
def test_edges(fn: Callable[..., Any]) -> None:
    """What is not a number, infinities and signed zeros."""
    check_special(fn, (EDGES,))


@pytest.mark.parametrize("fn", [*BINARY, torch.pow], ids=lambda fn: fn.__name__)
def test_edges_of_two(fn: Callable[..., Any]) -> None:
    x, y = (t.reshape(-1) for t in torch.meshgrid(EDGES, EDGES, indexing="ij"))
    check_special(fn, (x, y))


def test_numbers_beyond_halves() -> None:
    """torch computes on halves in float32."""
    x = torch.tensor([1e-3, 2.0]).half()
    check_onnx(lambda x: (x * 1e5, x / 1e5 * 1e5, x * 1e-8, x + 1e6), (x,))


def test_bounds_that_are_not_numbers() -> None:
    check_special(lambda x: (x.clamp(min=NAN), x.clamp(3, 1)), (torch.randn(4),))


def test_integers_stay_integers() -> None:
    big = torch.tensor([7000000049, -7000000049, 3037000500, 2**62])
    check_onnx(lambda x: (x + 1, x * x, x**3, x % 1000, x // -7, x - 1, x.abs()), (big,))
    check_onnx(
        lambda x, e: x**e,
        (torch.tensor([3, -3, 1, -1, 2, 0, 5]), torch.tensor([39, 39, -3, -3, -1, 0, 27])),
    )


LOWEST = {dtype: torch.iinfo(dtype).min for dtype in (torch.int64, torch.int32, torch.int8)}


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """What floats do not hold, and both ends."""
    most = torch.iinfo(dtype).max
    near = [most - 1, most // 2 + 2, most // 100, 127, 7, 3, 2, 1]
    return torch.tensor([-most - 1, most, *near, *(-n for n in near)], dtype=dtype)


@pytest.mark.parametrize("dtype", LOWEST, ids=str)
def test_quotients_and_remainders_of_all_integers(dtype: torch.dtype) -> None:
    """Exact at both ends. Torch itself dies of the lowest integer divided by -1 towards zero."""
    x, y = (t.flatten() for t in torch.meshgrid(extremes(dtype), extremes(dtype), indexing="ij"))
    check_onnx(lambda x, y: (x // y, x % y, torch.fmod(x, y)), (x, y))
    for n in (-1, 1, 7, -7, 100):
        check_onnx(lambda x, n=n: (x // n, x % n, torch.fmod(x, n)), (x,))
    kept = (x != LOWEST[dtype]) | (y != -1)
    check_onnx(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (x[kept], y[kept]))


def test_no_quotient_ends_the_process() -> None:
    x, y = torch.tensor([LOWEST[torch.int64], 5]), torch.tensor([-1, -1])
    made = gp.onnx.export(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (x, x + 7))
    assert made(x, y).tolist() == [LOWEST[torch.int64], -5]
    check_onnx(torch.gcd, (x, y))


def test_time_stamps() -> None:
    t = torch.tensor([1760000000123456789])
    check_onnx(lambda t: (torch.fmod(t, 1000), t // 1000, t % 1000, -t // 1000, -t % 1000), (t,))


DIVISIONS = {
    "floor": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "trunc": functools.partial(torch.div, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_nothing_divided_by_zero(name: str) -> None:
    """By the size that is 0, by a number, by a tensor; else it is an error, as in torch."""
    fn = DIVISIONS[name]
    dims = ({0: gp.Dim("b", min=0), 1: gp.Dim("n", min=0)},)
    x, none = torch.arange(6).reshape(2, 3), torch.zeros(3, 0, dtype=torch.int64)
    check_onnx(lambda x: fn(x, x.shape[1]), (x,), dynamic_shapes=dims, others=[(none,)])
    by = torch.tensor(5)
    made = check_onnx(
        lambda x, y: fn(x, y),
        (x, by),
        dynamic_shapes=(*dims, None),
        others=[(none, torch.tensor(0))],
    )
    with pytest.raises(Exception, match="by zero"):
        made(x, torch.tensor(0))


SUMS = {
    "trace": lambda x: x.trace(),
    "einsum": lambda x: torch.einsum("ij,ij->i", x, x % 3),
    "diagonal": lambda x: torch.einsum("ii->i", x),
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 1), keepdim=True), x.sum(dtype=torch.int32)),
    "mm": lambda x: (x @ x, x @ x[0]),
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "prod": lambda x: (x.prod(), x.prod(0)),
    "cumsum": lambda x: (x.cumsum(0), x.cumprod(1)),
    "avg_pool": lambda x: nn.functional.avg_pool2d(x[None], 2, 1, 1),
    "avg_pool by": lambda x: nn.functional.avg_pool2d(x[None], 2, 1, divisor_override=-1),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_integers_are_exact(name: str, dtype: torch.dtype) -> None:
    """And wrap around: ONNX Runtime adds up in float64, and stops at the largest integer."""
    if name.startswith("avg") and dtype is torch.int32:
        return  # torch has none
    x = extremes(dtype)[:16].reshape(4, 4)
    check_onnx(SUMS[name], (x,))


def test_small_integers() -> None:
    """They wrap around as in torch, and quotients do not overflow on the way."""
    x = torch.arange(-128, 128).to(torch.int8)
    y = torch.full_like(x, 3)
    check_onnx(lambda x, y: (x // y, x % y, x + y, x * y, x << 1, x >> 2, x // 3), (x, y))
    u = torch.arange(256).to(torch.uint8)
    check_onnx(lambda x: (x + 200, x * 3, x // 7, x % 7, x << 3, x >> 3, ~x), (u,))


def test_shifts_beyond_the_width() -> None:
    x = torch.tensor([5, -5, 2**62, -(2**63)])
    for shift in (0, 1, 31, 62, 63, 64, 100, -1):
        by = torch.full_like(x, shift)
        check_onnx(lambda x, by: (x << by, x >> by), (x, by))


def test_arithmetic_is_one_node() -> None:
    """Nothing around what ONNX has an operator for."""
    x, dims = torch.randn(2, 3), ({0: gp.Dim("b")},)
    for fn, op in (
        (lambda x: x * 2, "Mul"),
        (lambda x: 1 - x, "Sub"),
        (lambda x: x**2, "Pow"),
        (lambda x: x.clamp(0, 1), "Clip"),
        (lambda x: x > 0, "Greater"),
        (lambda x: torch.fmod(x, 2), "Mod"),
        (lambda x: x.to(torch.float16), "Cast"),
    ):
        program = gp.onnx.export(fn, (x,), dynamic_shapes=dims)
        assert [n.op_type for n in program.model_proto.graph.node] == [op]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_numbers_that_small_integers_do_not_hold(dtype: torch.dtype) -> None:
    """They wrap around too, before anything is computed with them."""
    x = torch.arange(-128, 128).to(dtype)
    check_onnx(
        lambda x: (
            x + 100200,
            x * 70001,
            66000 - x,
            x // 66300,
            x % 66300,
            x == 65536 + 44,
            x < 66000,
            x & 66559,
            x >> 65537,
        ),
        (x,),
    )


def test_all_bits_of_unsigned_integers_are_shifted() -> None:
    x = torch.tensor([255, 128, 127, 1], dtype=torch.uint8)
    by = torch.tensor([7, 7, 7, 0], dtype=torch.uint8)
    check_onnx(lambda x, by: (x >> by, x >> 7, x << 7, x >> 8), (x, by))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_infinity_has_no_bound_where_none_is_given(dtype: torch.dtype) -> None:
    x = EDGES.to(dtype)
    check_special(lambda x: (x.clamp(min=0), x.clamp(max=1), x.clamp_min(-2), x.clamp_max(2)), (x,))


def test_logarithms_of_powers_are_whole() -> None:
    for dtype in (torch.float32, torch.float64):
        twos = 2.0 ** torch.arange(-40, 60).to(dtype)
        check_onnx(lambda x: x.log2().floor(), (twos,))
        tens = torch.tensor([10.0**i for i in range(16)], dtype=dtype)[
            : 11 if dtype.itemsize < 8 else 16
        ]
        check_onnx(lambda x: x.log10().floor(), (tens,))
    check_special(lambda x: (x.log2(), x.log10()), (EDGES,))


def test_what_is_beyond_eight_bits_is_not_the_largest_number() -> None:
    x = torch.tensor([1.0, -1.5, 1e6, -1e6, INF, -INF, NAN])
    for dtype in (torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        check_special(lambda x, dtype=dtype: x.to(dtype).float(), (x,))
