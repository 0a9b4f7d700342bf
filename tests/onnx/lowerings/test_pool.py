"""Pooling: every number of dims, the last window of ceil_mode, adaptive windows of any length."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import assert_close, check_onnx
from tests.onnx.lowerings.test_conv import longs
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import row

BIG = {"h": 4, "w": 4, "t": 4}
SPECS = {1: "b 3 t", 2: "b 3 h w", 3: "b 2 t h w"}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
ADAPTIVE_MEAN = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
UNPOOL = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}
MAKES = (torch.randn, halves, doubles, longs)

ROWS = [
    *(
        row(lambda a, fn=fn: fn(a, 2), SPECS[n], least=BIG, name=f"max_pool{n}d")
        for n, fn in MAX.items()
    ),
    *(
        row(
            lambda a, fn=fn: fn(a, 3, 2, 1, return_indices=True),
            SPECS[n],
            least=BIG,
            name=f"max_pool{n}d_indices",
        )
        for n, fn in MAX.items()
    ),
    *(
        row(
            lambda a: F.max_pool2d(a, (2, 3), (1, 2), (1, 1), return_indices=True),
            "b 3 h w",
            least=BIG,
            make=make,
            name=f"max_pool2d_{make.__name__}",
        )
        for make in MAKES
    ),
    row(
        lambda a: F.max_pool1d(a, 2, 2, 1, dilation=6),
        "b 3 t",
        least={"t": 5},
        name="max_pool1d_nothing_between_taps",
    ),
    row(
        lambda a: F.max_pool2d(a, 2, 1, 1, dilation=2),
        "3 h w",
        least=BIG,
        name="max_pool2d_unbatched",
    ),
    *(
        row(lambda a, fn=fn: fn(a, 3, 2, 1), SPECS[n], least=BIG, name=f"avg_pool{n}d")
        for n, fn in MEAN.items()
    ),
    *(
        row(
            lambda a: F.avg_pool1d(a, 3, 2, 1, count_include_pad=False),
            "b 3 t",
            least=BIG,
            make=make,
            name=f"avg_pool1d_{make.__name__}",
        )
        for make in MAKES
    ),
    *(
        row(
            lambda a: F.avg_pool2d(a, 3, 2, 1, divisor_override=4),
            "b 3 h w",
            least=BIG,
            make=make,
            name=f"avg_pool2d_divisor_{make.__name__}",
        )
        for make in (torch.randn, doubles)
    ),
    row(lambda a: F.lp_pool2d(a, 3.0, 2), "b 3 h w", least=BIG, name="lp_pool2d"),
    *(
        row(
            lambda a, fn=fn, size=size: fn(a, size),
            SPECS[n],
            least=BIG,
            name=f"adaptive_avg_pool{n}d_{size}",
        )
        for (n, fn), size in itertools.product(ADAPTIVE_MEAN.items(), (1, 3))
    ),
    *(
        row(
            lambda a, fn=fn, size=size: fn(a, size, return_indices=True),
            SPECS[n],
            least=BIG,
            name=f"adaptive_max_pool{n}d_{size}",
        )
        for (n, fn), size in itertools.product(ADAPTIVE_MAX.items(), (1, 3))
    ),
    row(
        lambda a: F.adaptive_avg_pool2d(a, (2, 4)),
        "b 3 h w",
        least=BIG,
        make=doubles,
        name="adaptive_avg_pool2d_doubles",
    ),
    row(
        lambda a: F.adaptive_avg_pool2d(a, (None, 4)),
        "3 h w",
        least=BIG,
        name="adaptive_avg_pool2d_none",
    ),
    row(
        lambda a: F.adaptive_max_pool2d(a, (5, 2)),
        "3 h w",
        least=BIG,
        name="adaptive_max_pool2d_unbatched",
    ),
    row(
        lambda a: F.interpolate(a, scale_factor=1.5, mode="area"), "b 3 h w", least=BIG, name="area"
    ),
    row(
        lambda a: F.interpolate(a, scale_factor=0.5, mode="area"),
        "b 3 h w",
        least=BIG,
        name="area_smaller",
    ),
    *(
        row(
            lambda a, n=n: UNPOOL[n](
                *MAX[n](a, 2, return_indices=True), 2, output_size=a.shape[2:]
            ),
            SPECS[n],
            least=BIG,
            name=f"max_unpool{n}d",
        )
        for n in UNPOOL
    ),
    row(
        lambda a, u: torch.ops.aten.fractional_max_pool2d(a, [2, 3], [3, 1], u.sigmoid()),
        "b 3 h w",
        "b 3 2",
        least=BIG,
        name="fractional_max_pool2d",
    ),
    row(
        lambda a, u: torch.ops.aten.fractional_max_pool3d(a, [2, 2, 1], [2, 3, 2], u.sigmoid()),
        "b 2 t h w",
        "b 2 3",
        least=BIG,
        name="fractional_max_pool3d",
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


NAN, INF = math.nan, math.inf
SPECIAL = {
    "nan": [NAN, 1.0, 2.0, NAN, 3.0, 4.0, -INF, NAN, INF, NAN, NAN, INF],
    "-inf": [-INF, -INF, -INF, -INF, -INF, 1.0, -INF, -INF, 2.0, -INF, -INF, -INF],
    "inf": [INF, 1.0, 2.0, INF, -INF, INF, 3.0, 4.0, INF, -INF, 1.0, 2.0],
    "lowest": [torch.finfo(torch.float32).min] * 7 + [-INF] * 5,
}


def largest(x: torch.Tensor, size: int, step: int, pad: int, hole: int) -> torch.Tensor:
    """By definition: one window after the other."""
    line = F.pad(x, (pad, pad), value=-INF)
    reach = hole * (size - 1) + 1
    starts = range(0, line.shape[-1] - reach + 1, step)
    return torch.stack([line[..., s : s + reach : hole].amax(-1) for s in starts], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", SPECIAL)
def test_largest_of_special_values(name: str, dtype: torch.dtype) -> None:
    """nan if there is one, -inf if there is nothing else."""
    x = torch.tensor(SPECIAL[name]).to(dtype).reshape(1, 1, -1)
    for how in ((2, 1, 0, 1), (3, 2, 1, 1), (2, 2, 1, 2), (12, 12, 0, 1)):
        made = gp.onnx.export(lambda x, how=how: F.max_pool1d(x, *how), (x,))
        assert_close(made(x), largest(x, *how), str(how))
        square = gp.onnx.export(
            lambda x, how=how: F.max_pool2d(x, *how), (torch.ones(1, 1, 12, 12),)
        )
        flat = x.expand(1, 12, 12)[None].float()
        assert_close(square(flat)[0, 0, -1], largest(flat, *how)[0, 0, -1], str(how))


@pytest.mark.parametrize("size", [3, 5])
def test_adaptive_largest_of_special_values(size: int) -> None:
    for values in SPECIAL.values():
        x = torch.tensor(values).reshape(1, 1, -1)
        made = gp.onnx.export(lambda x: F.adaptive_max_pool1d(x, size), (x,))
        bounds = [(i * 12 // size, -(-(i + 1) * 12 // size)) for i in range(size)]
        want = torch.stack([x[..., low:high].amax(-1) for low, high in bounds], -1)
        assert_close(made(x), want, "adaptive")


def test_places_of_special_values() -> None:
    x = torch.tensor([[1.0, NAN, INF, NAN], [-INF, -INF, NAN, INF], [INF, 1.0, INF, -INF]])[None]
    for fn in (F.max_pool1d, F.adaptive_max_pool1d):
        made = gp.onnx.export(lambda x, fn=fn: fn(x, 2, return_indices=True), (x,))
        assert made(x)[1].tolist() == [[[1, 3], [0, 2], [0, 2]]]


PLACES: dict[str, tuple[int, Any]] = {
    "line": (1, lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True)),
    "image": (2, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    "volume": (3, lambda x: F.max_pool3d(x, 2, return_indices=True)),
    "dilated": (2, lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2, return_indices=True)),
    "adaptive line": (1, lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True)),
    "adaptive halves": (2, lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True)),
    "adaptive image": (2, lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True)),
    "adaptive volume": (3, lambda x: F.adaptive_max_pool3d(x, (4, 5, 1), return_indices=True)),
    "back": (2, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_the_last_of_several_nans(name: str, dtype: torch.dtype) -> None:
    n, fn = PLACES[name]
    x = torch.randint(-2, 3, (2, 3, *[6] * n)).to(dtype)
    x[torch.rand(x.shape) < 0.4] = NAN
    check_onnx(lambda x: fn(x), (x,))
    dynamic = ({d: gp.Dim(f"d{d}", min=4) for d in range(2, 2 + n)},)
    check_onnx(lambda x: fn(x), (x,), dynamic_shapes=dynamic, others=[(x[..., :4],)])


def test_the_place_of_the_last_nan_of_fractional_windows() -> None:
    x = torch.randn(2, 3, 6, 6)
    x[torch.rand(x.shape) < 0.4] = NAN
    pool = torch.ops.aten.fractional_max_pool2d
    check_onnx(lambda x, u: pool(x, [3, 3], [2, 2], u), (x, torch.rand(2, 3, 2)))


CEIL = [
    (size, kernel, stride, pad)
    for size, kernel, stride in itertools.product((4, 5, 7), (2, 3), (2, 3))
    for pad in (0, 1)
]


@pytest.mark.parametrize("include", [False, True])
def test_last_window_of_ceil_mode(include: bool) -> None:
    """The rule differs from that of older opsets in corners."""

    def pools(*lines: torch.Tensor) -> list[Any]:
        return [
            (
                F.max_pool1d(x, kernel, stride, pad, 1, True),
                F.avg_pool1d(x, kernel, stride, pad, True, include),
            )
            for x, (_, kernel, stride, pad) in zip(lines, CEIL, strict=True)
        ]

    check_onnx(pools, tuple(torch.randn(1, 2, size) for size, *_ in CEIL))
    check_onnx(pools, tuple(torch.randint(-9, 9, (1, 2, size)).double() for size, *_ in CEIL))
    check_onnx(pools, tuple(torch.randn(1, 2, size) for size, *_ in CEIL), opset=18)


def test_windows_of_one_length_are_one_node() -> None:
    h = 2 * gp.Dim("half", min=1)
    fn = F.adaptive_avg_pool2d
    program = check_onnx(lambda x: fn(x, (2, 3)), (torch.randn(2, 3, 8, 6),))
    assert [n.op_type for n in program.model_proto.graph.node] == ["AveragePool"]
    halved = check_onnx(
        lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 3)),
        (torch.randn(2, 3, 8, 6),),
        dynamic_shapes=({2: h},),
        others=[(torch.randn(2, 3, 14, 6),)],
    )
    assert [n.op_type for n in halved.model_proto.graph.node] == ["AveragePool"]


NO_PLANES = {
    "mean": lambda x: F.adaptive_avg_pool1d(x, 2),
    "mean of other lengths": lambda x: F.adaptive_avg_pool1d(x, 3),
    "mean of all": lambda x: F.adaptive_avg_pool1d(x, 1),
    "mean of planes": lambda x: F.adaptive_avg_pool2d(x.unsqueeze(-1), (2, 1)),
}


@pytest.mark.parametrize("name", NO_PLANES)
def test_no_planes(name: str) -> None:
    fn, x = NO_PLANES[name], torch.randn(3, 4)
    dims = ({0: gp.Dim("c")},)
    check_onnx(fn, (x,), dynamic_shapes=dims, others=[(x[:1],), (x[:0],)])
    if name != "mean of planes":  # which eager refuses
        batch, dims = torch.randn(2, 3, 4), ({0: gp.Dim("n"), 1: gp.Dim("c")},)
        others = [(batch[:, :1],), (batch[:, :0],), (batch[:0],)]
        check_onnx(fn, (batch,), dynamic_shapes=dims, others=others)
