"""Operators that reduce dims, and those that run along one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, bools, check_dynamic, check_static, complexes, ints, row

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")

SOME = {"b": 1, "t": 1}

ROWS = [
    *(
        row(lambda a, fn=fn: fn(a), "b t", name=f"{fn.__name__}_all")
        for fn in (
            torch.sum,
            torch.mean,
            torch.prod,
            torch.var,
            torch.std,
            torch.any,
            torch.all,
            torch.count_nonzero,
            torch.nansum,
            torch.norm,
        )
    ),
    *(
        row(lambda a, fn=fn: fn(a, 1), "b t c", name=f"{fn.__name__}_dim")
        for fn in (
            torch.sum,
            torch.mean,
            torch.prod,
            torch.any,
            torch.all,
            torch.var,
            torch.logsumexp,
            torch.softmax,
            torch.log_softmax,
            torch.cumsum,
            torch.cumprod,
            torch.logcumsumexp,
        )
    ),
    *(
        row(
            lambda a, fn=fn: fn(a, 1, keepdim=True),
            "b t c",
            least={"t": 1},
            name=f"{fn.__name__}_keepdim",
        )
        for fn in (
            torch.amax,
            torch.amin,
            torch.argmax,
            torch.argmin,
            torch.max,
            torch.min,
            torch.median,
            torch.mode,
        )
    ),
    *(
        row(lambda a, fn=fn: fn(a), "b t", least=SOME, name=f"{fn.__name__}_all")
        for fn in (torch.max, torch.min, torch.argmax, torch.median)
    ),
    row(lambda a: a.sum((0, 2)), "b t c", name="sum_dims"),
    row(lambda a: a.sum((0, -1), keepdim=True), "b t c", name="sum_dims_keepdim"),
    row(lambda a: a.sum(dtype=torch.float64), "b t", make=ints(3), name="sum_dtype"),
    row(torch.sum, "b t", make=ints(3), name="int_sum"),
    row(torch.sum, "b t", make=bools, name="bool_sum"),
    row(torch.sum, "b t", make=complexes, name="complex_sum"),
    row(lambda a: a.mean(0, dtype=torch.float32), "b t", make=ints(3), least=SOME, name="int_mean"),
    row(lambda a: torch.var_mean(a, dim=(0, 1), correction=0), "b t c", name="var_mean"),
    row(lambda a: torch.std(a, dim=1, unbiased=False), "b t c", name="std_biased"),
    row(lambda a: torch.linalg.vector_norm(a, ord=1, dim=-1), "b t", name="vector_norm"),
    row(lambda a: F.normalize(a, dim=-1), "b t", name="normalize"),
    row(lambda a: torch.topk(a, 2), "b 5", name="topk"),
    row(lambda a: torch.sort(a, dim=0, descending=True), "b t", name="sort"),
    row(lambda a: torch.sort(a, stable=True), "b t", name="sort_stable"),
    row(lambda a: torch.argsort(a, 1), "b t", name="argsort"),
    row(lambda a: torch.kthvalue(a, 1, dim=1), "b 5", name="kthvalue"),
    row(lambda a: torch.cummax(a, 1), "b t", name="cummax"),
    row(lambda a: torch.histc(a, 6, -2, 2), "b t", name="histc"),
    row(lambda a: torch.softmax(a, -1, dtype=torch.float64), "b t", name="softmax_dtype"),
    row(lambda a: torch.sum(a), "", name="zero_dim"),
    row(lambda a: torch.amax(a, 0), "", name="zero_dim_amax"),
    row(lambda a: a.sum(1), "b t c", view=lambda t: t.transpose(0, 2), name="transposed"),
    row(
        lambda a: a.softmax(1), "b t c", view=lambda t: t.transpose(0, 2), name="transposed_softmax"
    ),
    row(lambda a: a.cumsum(1), "b t c", view=lambda t: t[:, ::2], name="sliced_cumsum"),
    row(lambda a: a.argmax(-1), "b t", view=lambda t: t[:1].expand(4, -1), name="expanded_argmax"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
