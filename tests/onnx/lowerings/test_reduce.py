"""Reductions on ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import bools, ints, row

NAN, INF = math.nan, math.inf
SOME = {"b": 1, "t": 1}


def holes(size: Sequence[int]) -> torch.Tensor:
    """Some of the numbers are none."""
    return torch.where(torch.rand(tuple(size)) < 0.3, torch.tensor(NAN), torch.randn(tuple(size)))


# Of nothing these have a value.
SUMS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "sum_dim": lambda x: x.sum(1),
    "sum_keep": lambda x: x.sum(-2, True),
    "sum_dims": lambda x: x.sum((0, 2)),
    "sum_none": lambda x: x.sum([]),
    "prod": torch.prod,
    "prod_dim": lambda x: x.prod(1, keepdim=True),
    "any": torch.any,
    "any_dim": lambda x: x.any(-1),
    "any_dims": lambda x: x.any((0, 2)),
    "all": torch.all,
    "all_dim": lambda x: x.all(1, True),
    "all_dims": lambda x: x.all((0, 1)),
    "count_nonzero": torch.count_nonzero,
    "count_nonzero_dim": lambda x: x.count_nonzero(1),
    "nansum": lambda x: x.nansum(1),
    "sum_dtype": lambda x: x.sum(1, dtype=torch.float64),
    "sum_int32": lambda x: x.sum(0, dtype=torch.int32),
}
MEANS: dict[str, Callable[..., Any]] = {
    "mean": torch.mean,
    "mean_dim": lambda x: x.mean(1),
    "mean_keep": lambda x: x.mean((0, -1), True),
    "nanmean": lambda x: x.nanmean(1),
    "var": torch.var,
    "var_dim": lambda x: x.var(1),
    "var_0": lambda x: x.var((0, 2), correction=0),
    "std": lambda x: x.std(1, unbiased=False),
    "std_keep": lambda x: x.std((0, 1), correction=2, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1)),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp_dims": lambda x: x.logsumexp((0, 2), True),
    "norm": torch.norm,
    "norm_1": lambda x: x.norm(1, 1),
    "norm_0": lambda x: x.norm(0, 1),
    "norm_3": lambda x: x.norm(3, (0, 1), True),
    "norm_half": lambda x: x.norm(0.5, 1),
    "vector_norm": torch.linalg.vector_norm,
    "vector_norm_dtype": lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=torch.float64),
    "dist": lambda x: torch.dist(x, x * 2, 2),
    "median": torch.median,
    "nanmedian": torch.nanmedian,
}
# Of nothing these have no value.
EXTREMES: dict[str, Callable[..., Any]] = {
    "amax": torch.amax,
    "amax_dim": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 2), True),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
    "max": torch.max,
    "min": torch.min,
    "max_dim": lambda x: tuple(x.max(1)),
    "min_dim": lambda x: tuple(x.min(-1, keepdim=True)),
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "argmax_dim": lambda x: x.argmax(1),
    "argmin_keep": lambda x: x.argmin(-1, keepdim=True),
    "argmax_keep": lambda x: x.argmax(keepdim=True),
}
FLOAT_EXTREMES: dict[str, Callable[..., Any]] = {
    "norm_inf": lambda x: x.norm(INF, 1),
    "norm_minus_inf": lambda x: x.norm(-INF, (0, 1)),
    "median_dim": lambda x: tuple(x.median(1)),
    "nanmedian_dim": lambda x: tuple(x.nanmedian(-1, keepdim=True)),
    "quantile": lambda x: x.quantile(0.3, dim=1),
}

ROWS = [
    *(row(fn, "b t 3", name=name) for name, fn in (SUMS | MEANS).items()),
    *(row(fn, "b t 3", make=ints(9), name=f"ints_{name}") for name, fn in SUMS.items()),
    *(row(fn, "b t 3", least=SOME, name=name) for name, fn in (EXTREMES | FLOAT_EXTREMES).items()),
    row(
        lambda x: (
            x.sum(),
            x.mean(),
            x.var(),
            x.prod(0),
            x.amax(),
            x.max(0),
            x.argmin(0),
            x.any(),
            x.norm(),
            x.logsumexp(0),
            x.sum(-1, True),
            x.count_nonzero(),
        ),
        "",
        name="zero_dims",
    ),
    row(lambda x: torch.mode(x, 1)[0], "b t", make=ints(4), least=SOME, name="mode"),
    row(lambda x: x.to(torch.uint8).any(1), "b t", make=ints(2), name="any_of_bytes"),
    row(lambda x: (torch._is_all_true(x > 0), torch._is_any_true(x > 0)), "b t", name="is_true"),
    row(lambda x: x.to(torch.int16).amax(1), "b t", make=ints(9), least=SOME, name="amax_int16"),
]
OTHER_DTYPES = [
    *(
        row(fn, "b t 3", make=make, name=f"{make.__name__}_{name}")
        for make in (halves, doubles)
        for name, fn in (SUMS | MEANS).items()
    ),
    *(row(fn, "b t 3", make=bools, name=f"bools_{name}") for name, fn in SUMS.items()),
    *(
        row(fn, "b t 3", make=make, least=SOME, name=f"{name}_{i}")
        for i, make in enumerate((halves, doubles, ints(9), bools))
        for name, fn in EXTREMES.items()
        if make is not bools or "arg" not in name
    ),
    *(
        row(fn, "b t 3", make=make, least=SOME, name=f"{make.__name__}_{name}")
        for make in (halves, doubles, holes)
        for name, fn in FLOAT_EXTREMES.items()
        if make is not halves or name != "quantile"
    ),
    *(
        row(fn, "b t 3", make=holes, least=SOME, name=f"holes_{name}")
        for name, fn in (SUMS | MEANS | EXTREMES).items()
        if name != "sum_int32"
    ),
]
FEW = "ignore:.*degrees of freedom"

test_static = pytest.mark.filterwarnings(FEW)(static_test(ROWS))
test_dynamic = pytest.mark.filterwarnings(FEW)(dynamic_test(ROWS))
test_dtypes = pytest.mark.slow(pytest.mark.filterwarnings(FEW)(dynamic_test(OTHER_DTYPES)))


def test_integers_are_not_summed_as_floats() -> None:
    x = torch.tensor([[7000000049, 1], [3, 2**60]])
    check_onnx(lambda x: (x.sum(), x.sum(1), x.prod(1), x.amax(1), x.cumsum(0)), (x,))
    check_onnx(lambda x: (x.sum((0, 1), True), x.prod(), x.prod(0, keepdim=True)), (x - 5,))
    y = torch.full((2, 50000), 2**24 + 1, dtype=torch.int32)
    check_onnx(lambda x: (x.sum(1), x.sum(1, dtype=torch.int32), x.prod(1)), (y,))
    check_onnx(
        lambda x: (x.sum(1), x.prod(0)),
        (x,),
        dynamic_shapes=({0: gp.Dim("b"), 1: gp.Dim("t")},),
        others=[(x[:0],), (x[:, :0],), (x[:1],)],
    )


def test_infinities() -> None:
    x = torch.tensor([[INF, 1.0, 2.0], [-INF, -INF, -INF], [NAN, 1.0, 2.0], [1.0, NAN, -INF]])
    check_onnx(
        lambda x: (
            x.logsumexp(1),
            x.amax(1),
            x.amin(1),
            x.max(1)[0],
            x.min(1),
            x.sum(1),
            x.nansum(1),
            x.norm(INF, 1),
            x.argmax(1),
            x.amax(0),
            x.max(),
            x.prod(1),
        ),
        (x,),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_logsumexp_of_small_numbers_behind_nothing(dtype: torch.dtype) -> None:
    x = torch.full((3, 4), -2000.0, dtype=dtype)
    x[0], x[:, 0], x[2, 3] = -INF, -INF, 2000.0
    check_onnx(lambda x: (x.logsumexp(0), x.logsumexp(1), x.logsumexp((0, 1), True)), (x,))


def test_mean_of_what_has_elements_is_one_node() -> None:
    program = gp.onnx.export(lambda x: x.mean((1, 2)), (torch.randn(2, 3, 4),))
    assert [n.op_type for n in program.model_proto.graph.node] == ["ReduceMean"]
    dims = ({0: gp.Dim("b"), 1: gp.Dim("t", min=1)},)
    program = gp.onnx.export(lambda x: x.mean(1), (torch.randn(2, 3),), dynamic_shapes=dims)
    assert [n.op_type for n in program.model_proto.graph.node] == ["ReduceMean"]


def test_mean_of_halves_is_of_their_exact_sum() -> None:
    """Neither a sum of 777 nor a count of 259 is a bfloat16."""
    x = torch.full((2, 259), 3.0, dtype=torch.bfloat16)
    program = gp.onnx.export(lambda x: x.mean(1), (x,), dynamic_shapes=({1: gp.Dim("n")},))
    assert program(x).tolist() == [3.0, 3.0]
