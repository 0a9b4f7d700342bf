"""Operators whose result depends on sizes being 1 or equal, taken apart: right at every size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.helpers import compare

DIMS = {"nearest": 2, "nearest-exact": 2, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
SIZES = (8, 1, 2, 3, 7, 20)


def check(fn: Callable[..., Any], dims: int, sizes: tuple[int, ...] = SIZES) -> None:
    """At fixed sizes, and captured once for all of them."""
    made = [torch.randn(1, 2, *[n] * dims) for n in sizes]
    shapes = ({d + 2: gp.Dim(f"d{d}", min=1) for d in range(dims)},)
    core = gp.export(fn, (made[0],), dynamic_shapes=shapes).run_decompositions()
    for x in made:
        compare(core, fn, ((x,), {}), rtol=1e-4, atol=1e-4)
    for x in made[2:4]:
        compare(gp.export(fn, (x,)).run_decompositions(), fn, ((x,), {}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.3, 2.3, 1.05], ids=str)
@pytest.mark.parametrize("mode", DIMS)
def test_a_scale_factor_that_leaves_sizes_or_doubles_them(mode: str, scale: float) -> None:
    """Eager copies a dim that keeps its size, whatever the factor."""
    check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), DIMS[mode])


@pytest.mark.parametrize("scale", [1.05, (1.05, 2.0), 1.3], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pixels_that_keep_their_size_under_a_scale_factor(mode: str, scale: Any) -> None:
    """Weights are rounded one by one, which may make a difference of 1."""

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode)

    made = [torch.randint(0, 255, (1, 2, *hw), dtype=torch.uint8) for hw in [(5, 6), (25, 30)]]
    dynamic = ({2: gp.Dim("h", min=2), 3: gp.Dim("w", min=2)},)
    core = gp.export(resize, (made[0],), dynamic_shapes=dynamic).run_decompositions()
    for x in made:
        for run in (core, gp.export(resize, (x,)).run_decompositions()):
            got = run.module()(x)
            assert got.dtype is torch.uint8
            assert (got.int() - resize(x).int()).abs().max() <= 1


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_recomputed_scale_factors(mode: str) -> None:
    again = functools.partial(F.interpolate, mode=mode, recompute_scale_factor=True)
    check(lambda x: again(x, scale_factor=1.3), DIMS[mode])


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_corners_of_one_position(mode: str) -> None:
    resize = functools.partial(F.interpolate, mode=mode, align_corners=True)
    check(lambda x: resize(x, size=[2 * s - 1 for s in x.shape[2:]]), DIMS[mode])


def test_halves_are_interpolated_in_float32() -> None:
    x = torch.randn(1, 2, 3, 5).half()
    fn = functools.partial(F.interpolate, scale_factor=1.3, mode="bilinear")
    compare(gp.export(fn, (x,)).run_decompositions(), fn, ((x,), {}), rtol=1e-3, atol=1e-3)


def test_a_line_of_one_step_or_none() -> None:
    x = torch.randn(5)
    core = gp.export(
        lambda x: torch.linspace(-1.0, 3.0, x.shape[0]),
        (x,),
        dynamic_shapes=({0: gp.Dim("n", min=0)},),
    ).run_decompositions()
    for n in (0, 1, 2, 5, 100):
        want = torch.linspace(-1.0, 3.0, n)
        torch.testing.assert_close(core.module()(torch.randn(n)), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_a_line_of_at_least_one_step(dtype: torch.dtype) -> None:
    def line(x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(-1.0, 3.0, x.shape[0], dtype=dtype)

    spec = ({0: gp.Dim("n", min=1)},)
    run = gp.export(line, (torch.ones(5),), dynamic_shapes=spec).run_decompositions().module()
    for n in (1, 2, 5):
        torch.testing.assert_close(run(torch.ones(n)), line(torch.ones(n)))


WHOLE = [(3, 9), (94.8, -56.6), (29, -64), (-7, -7), (0, 120)]


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
def test_a_line_of_whole_numbers(dtype: torch.dtype, least: int) -> None:
    """What is cut off is what torch's kernel cuts off, which rounds once."""

    def lines(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.linspace(a, b, x.shape[0], dtype=dtype) for a, b in WHOLE]

    spec = ({0: gp.Dim("n", min=least)},)
    ep = gp.export(lines, (torch.ones(5),), dynamic_shapes=spec)
    core = ep.run_decompositions()
    for run in (core.module(), gp.onnx.export(core), gp.onnx.export(ep)):
        for n in (*range(least, 8), 46, 47, 136):
            torch.testing.assert_close(run(torch.ones(n)), lines(torch.ones(n)))


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int64], ids=str)
def test_a_line_between_tensors(dtype: torch.dtype | None) -> None:
    def lines(x: torch.Tensor) -> list[torch.Tensor]:
        line = functools.partial(torch.linspace, steps=x.shape[0], dtype=dtype)
        return [line(x[0], x[-1]), line(x[0], 3.0), line(-1, x[-1]), line(x[0].half(), x[-1])]

    spec = ({0: gp.Dim("n", min=1)},)
    ep = gp.export(lines, (torch.randn(5) * 9,), dynamic_shapes=spec)
    core = ep.run_decompositions()
    for run in (ep.module(), core.module(), gp.onnx.export(ep), gp.onnx.export(core)):
        for n in (1, 2, 5, 8):
            x = torch.randn(n) * 9
            torch.testing.assert_close(run(x), lines(x))


def test_a_line_of_complex_numbers() -> None:
    def lines(x: torch.Tensor) -> list[torch.Tensor]:
        n = x.shape[0]
        return [
            torch.linspace(1 + 2j, 3 - 1j, n),
            torch.linspace(2, 1j, n, dtype=torch.complex128),
            torch.linspace(1, 3, n, dtype=torch.complex64),
            torch.linspace(x[0] * 1j, 2.0, n),
        ]

    spec = ({0: gp.Dim("n", min=1)},)
    ep = gp.export(lines, (torch.randn(5),), dynamic_shapes=spec)
    core = ep.run_decompositions()
    for run in (ep.module(), core.module(), gp.onnx.export(ep), gp.onnx.export(core)):
        for n in (1, 2, 5, 8):
            x = torch.randn(n)
            torch.testing.assert_close(run(x), lines(x))


@pytest.mark.parametrize(
    "line",
    [
        lambda x: torch.linspace(x, 3, x.shape[0]),
        lambda x: torch.linspace(1j, 3, x.shape[0], dtype=torch.float32),
    ],
    ids=["dims", "complex"],
)
def test_lines_that_eager_refuses(line: Callable[..., Any]) -> None:
    for spec in (None, ({0: gp.Dim.AUTO},)):
        with pytest.raises(gp.errors.ExportError, match="linspace"):
            gp.export(lambda x: line(x), (torch.ones(5),), dynamic_shapes=spec)


def test_layout_is_kept() -> None:
    x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    for mode in ("nearest", "bilinear"):
        fn = functools.partial(F.interpolate, scale_factor=2.0, mode=mode)
        core = gp.export(fn, (x,)).run_decompositions()
        assert core.module()(x).stride() == fn(x).stride()


def test_a_split_of_nothing() -> None:
    """A size that only turns out to be 0: one piece, of nothing."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.chunk(2, -1)[-1][0:-1:2] * 1).split(2, -1)[-1]

    ep = gp.export(f, (torch.rand(2),), dynamic_shapes=({0: gp.Dim.AUTO},))
    assert ep.run_decompositions().module()(torch.rand(2)).shape == (0,)


@pytest.mark.parametrize("sizes", [(6, 2), (7, 3), (2, 5), (0, 3)], ids=str)
def test_splits(sizes: tuple[int, int]) -> None:
    size, piece = sizes
    f = lambda x: x.split(piece, 1)
    core = gp.export(f, (torch.rand(3, size),)).run_decompositions()
    compare(core, f, ((torch.rand(3, size),), {}))
