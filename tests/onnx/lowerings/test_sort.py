"""Lowerings about order: ties and NaN as torch has them, the distinct, places, counting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx, nodes
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import ints, row

PICK = ints(3)
R = torch.randn
NAN, INF = float("nan"), float("inf")

ROWS = [
    row(lambda a: a.sort(), "b t", name="sort"),
    row(lambda a: a.sort(0, descending=True), "b t c", name="sort_descending"),
    row(lambda a: a.sort(stable=True, dim=1), "b t c", make=PICK, name="sort_stable"),
    row(
        lambda a: a.sort(stable=True, dim=-1, descending=True),
        "b t",
        make=PICK,
        name="sort_stable_descending",
    ),
    row(lambda a: a.argsort(0), "b t", name="argsort"),
    row(
        lambda a: torch.argsort(a, stable=True, descending=True),
        "b t",
        make=PICK,
        name="argsort_stable",
    ),
    row(torch.msort, "b t", name="msort"),
    row(lambda a: (a.sort(), a.argsort(), a.topk(1), a.kthvalue(1)), "", name="sort_number"),
    row(lambda a: a.topk(2), "b 4", name="topk"),
    row(lambda a: a.topk(2, 0, largest=False), "4 t", name="topk_smallest"),
    row(lambda a: a.topk(a.shape[1] - 1, 1), "b t", least={"t": 1}, name="topk_symbolic"),
    row(lambda a: a.topk(min(a.shape[1], 4), 1)[0], "b t", make=PICK, name="topk_at_most"),
    row(lambda a: a.topk(2, sorted=False)[0].sort()[0], "b 4", name="topk_unsorted"),
    row(lambda a: (a.kthvalue(2, 1), a.kthvalue(3, 1, keepdim=True)), "b 4 t", name="kthvalue"),
    row(lambda a: a.kthvalue(a.shape[0], 0), "b t", least={"b": 1}, name="kthvalue_symbolic"),
    row(lambda a: torch.unique(a), "b t", make=PICK, name="unique"),
    row(
        lambda a: torch.unique(a, return_inverse=True, return_counts=True),
        "b t",
        make=PICK,
        name="unique_all",
    ),
    row(
        lambda a: torch.unique(a.round(), return_inverse=True, return_counts=True),
        "b t",
        name="unique_floats",
    ),
    row(
        lambda a: torch.unique(a, dim=0, return_inverse=True, return_counts=True),
        "b 2",
        make=ints(2),
        name="unique_rows",
    ),
    row(
        lambda a: torch.unique(a, dim=1, return_inverse=True),
        "2 b",
        make=ints(2),
        name="unique_columns",
    ),
    row(lambda a: torch.unique_consecutive(a), "b t", make=ints(2), name="unique_consecutive"),
    row(
        lambda a: torch.unique_consecutive(a, return_inverse=True, return_counts=True),
        "b t",
        make=ints(2),
        name="unique_consecutive_all",
    ),
    row(
        lambda a: torch.unique_consecutive(a, dim=0, return_inverse=True, return_counts=True),
        "b 2",
        make=ints(2),
        name="unique_consecutive_rows",
    ),
    row(
        lambda a: torch.unique_consecutive(a, dim=0),
        "t",
        make=ints(2),
        name="unique_consecutive_vector",
    ),
    row(
        lambda e, a: torch.searchsorted(e.sort()[0], a, right=True),
        "k",
        "b t",
        make=PICK,
        name="searchsorted_right",
    ),
    row(
        lambda e, a: torch.searchsorted(e.sort()[0], a, side="right", out_int32=True),
        "b k",
        "b t",
        make=PICK,
        name="searchsorted_rows",
    ),
    row(lambda e: torch.searchsorted(e.sort()[0], 1), "k", make=PICK, name="searchsorted_number"),
    row(
        lambda e, a: torch.searchsorted(e, a, sorter=e.argsort()),
        "b k",
        "b t",
        make=PICK,
        name="searchsorted_sorter",
    ),
    row(
        lambda a, e: torch.bucketize(a, e.sort()[0], right=True, out_int32=True),
        "b t",
        "k",
        make=PICK,
        name="bucketize_right",
    ),
    row(
        lambda a: torch.bucketize(a, torch.tensor([-1.0, 0.0, 2.0])),
        "b t",
        make=PICK,
        name="bucketize_mixed",
    ),
    row(lambda e: torch.bucketize(0.5, e.sort()[0]), "k", name="bucketize_number"),
    row(lambda a, b: torch.isin(a, b, invert=True), "b t", "k n", make=PICK, name="isin_invert"),
    row(lambda a: (torch.isin(a, 1), torch.isin(1, a)), "b", make=PICK, name="isin_number"),
    row(lambda a, b: torch.isin(a, b), "b t", "k", make=[PICK, R], name="isin_mixed"),
    row(lambda a: torch.bincount(a), "t", make=PICK, name="bincount"),
    row(
        lambda a, w: torch.bincount(a, w, 5),
        "t",
        "t",
        make=[PICK, R],
        least={"t": 1},
        name="bincount_weights",
    ),
    row(
        lambda a, w: torch.bincount(a, w.double()),
        "t",
        "t",
        make=[PICK, PICK],
        least={"t": 1},
        name="bincount_doubles",
    ),
    row(lambda a: torch.histc(a, 7, -1, 1), "b t", name="histc"),
    row(lambda a: torch.histc(a, 5), "b t", name="histc_by_data"),
    row(lambda a: torch.histogram(a, 7, range=(-1.0, 1.0)), "b t", name="histogram"),
    row(lambda a: torch.histogram(a, 5, range=(0.5, 0.5))[0], "b t", name="histogram_of_a_point"),
    row(lambda a: torch.histogram(a, 5), "b t", name="histogram_by_data"),
    row(
        lambda a, w: torch.histogram(a, torch.tensor([-1.0, 0, 2]), weight=w, density=True),
        "t",
        "t",
        make=[R, lambda s: torch.rand(s) + 1],
        least={"t": 5},
        name="histogram_by_edges",
    ),
    row(lambda a: torch.histogramdd(a, [3, 2])[0], "b 2", name="histogramdd"),
    row(
        lambda a, w: torch.histogramdd(a, [3, 2], range=[-1.0, 1, -2, 2], weight=w, density=True),
        "t 2",
        "t",
        make=[R, lambda s: torch.rand(s) + 1],
        least={"t": 5},
        name="histogramdd_all",
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LARGEST = [NAN, 1, INF, NAN, -INF, 1, 0, INF]


def of_floats(dtype: torch.dtype) -> torch.Tensor:
    """NaN, both infinities, the limits of the dtype, and ties."""
    limits = torch.finfo(dtype)
    return torch.tensor([*LARGEST, limits.max, limits.min, -0.0], dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(dtype: torch.dtype, descending: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        return (
            x.sort(stable=True, descending=descending),
            torch.argsort(x, stable=True, descending=descending),
            x.topk(3, largest=descending)[0],
            x.topk(9, largest=descending)[0],
            x.kthvalue(3)[0],
            x.kthvalue(10)[0],
            x.msort(),
        )

    x = of_floats(dtype)
    check_onnx(
        program,
        (x,),
        dynamic_shapes=({0: gp.Dim("n", min=11)},),
        others=[(x.flip(0),), (torch.cat([x, x]),)],
    )


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_ties_keep_their_order(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return [
            x.sort(stable=True, dim=dim, descending=down)
            for dim in (0, 1)
            for down in (0 > 1, 1 > 0)
        ]

    check_onnx(program, (torch.randint(-2, 3, (40, 300)).to(dtype),))


def test_integers_are_not_sorted_as_floats() -> None:
    x = torch.tensor([2**53 + 1, 2**53, -(2**63), 2**63 - 1, 2**53 + 2])
    check_onnx(lambda x: (x.sort(), x.topk(2), torch.unique(x, return_inverse=True)), (x,))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_unique(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        both = {"return_inverse": True, "return_counts": True}
        return (
            torch.unique(x, **both),
            torch.unique(x, return_counts=True),
            torch.unique(x, dim=0, **both),
            torch.unique(x.mT, dim=1),
            torch.unique_consecutive(x, **both),
            torch.unique_consecutive(x, dim=0, **both),
        )

    x = torch.tensor([[3, 1, 1], [3, 1, 1], [0, 2, 1], [3, 1, 1]]).to(dtype)
    check_onnx(
        program, (x,), dynamic_shapes=({0: gp.Dim("n")},), others=[(x[:1],), (x[:2],), (x[:0],)]
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_nan_is_distinct(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        both = {"return_inverse": True, "return_counts": True}
        return torch.unique(x, **both), torch.unique_consecutive(x, **both)

    x = of_floats(dtype)
    check_onnx(program, (x,), dynamic_shapes=({0: gp.Dim("n")},), others=[(x[:1],), (x[:0],)])


def test_rows_with_nan_are_distinct() -> None:
    """In which order is not said, with torch either."""
    x = torch.tensor([[NAN, 1], [2, 3], [NAN, 1], [4, 5], [2, 3]])
    program = gp.onnx.export(lambda x: torch.unique(x, dim=0, return_inverse=True), (x,))
    values, inverse = program(x)
    assert values.shape == torch.unique(x, dim=0).shape == (4, 2)
    torch.testing.assert_close(values[inverse], x, equal_nan=True)


def test_nan_comes_after_a_sequence() -> None:
    e, x = torch.tensor([1.0, 2, 2, INF]), torch.tensor([[NAN, -INF, 2], [INF, 3, 1]])
    check_onnx(
        lambda e, x: (torch.searchsorted(e, x), torch.searchsorted(e, x, right=True)),
        (e, x),
        dynamic_shapes=({0: gp.Dim("k")}, {0: gp.Dim("b")}),
        others=[(e[:0], x), (e, x[:0])],
    )


def test_histograms_leave_out_nan_and_have_the_last_edge() -> None:
    x = torch.tensor([NAN, 0.0, 1, 2, 3, 3.5, -1, 0.3, 0.9])
    check_onnx(
        lambda x: (
            torch.histc(x, 10, 0, 3),
            torch.histc(x, 3, 0, 3),
            torch.histogram(x, 10, range=(0.0, 3.0)),
            torch.histc(x[1:], 7),
        ),
        (x,),
    )


def test_few_nodes() -> None:
    x = torch.arange(4)
    assert nodes(lambda x: x.sort(), x) == ["TopK"]
    assert nodes(lambda x: x.argsort(descending=True), x) == ["TopK"]
    assert nodes(lambda x: x.topk(2).values, x) == ["TopK"]
    assert nodes(lambda x: torch.unique(x, return_inverse=True), x) == ["Unique"]
    floats = nodes(lambda x: x.topk(2), x.float())
    assert floats == ["IsNaN", "Cast", "Min", "Where", "TopK", "GatherElements"]
