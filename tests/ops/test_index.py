"""Reading and writing at positions given by tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.helpers import check
from tests.ops.rows import Row, bools, check_dynamic, check_static, ints, row

PICK = ints(3)

ROWS = [
    row(lambda a, i: a[i], "4 t", "k", make=[torch.randn, PICK], name="index"),
    row(lambda a, i: a[:, i], "b 4 t", "k", make=[torch.randn, PICK], name="index_second"),
    row(
        lambda a, i, j: a[i, :, j],
        "4 b 4",
        "k",
        "k",
        make=[torch.randn, PICK, PICK],
        name="index_apart",
    ),
    row(
        lambda a, i, j: a[i, j],
        "4 4 b",
        "k 1",
        "n",
        make=[torch.randn, PICK, PICK],
        name="index_broadcast",
    ),
    row(
        lambda a, i: a.index_select(1, i), "b 4", "k", make=[torch.randn, PICK], name="index_select"
    ),
    row(lambda a, i: a.gather(1, i), "b 4", "b k", make=[torch.randn, PICK], name="gather"),
    row(lambda a, i: torch.take(a, i), "4 4", "k", make=[torch.randn, PICK], name="take"),
    row(
        lambda a, i: torch.take_along_dim(a, i, 1),
        "b 4",
        "b k",
        make=[torch.randn, PICK],
        name="take_along_dim",
    ),
    row(
        lambda a, i: torch.take_along_dim(a, i),
        "4 4",
        "b k",
        make=[torch.randn, PICK],
        name="take_along_flat",
    ),
    row(
        lambda a, i, s: a.scatter(1, i, s),
        "b 4",
        "b 1",
        "b 1",
        make=[torch.randn, PICK, torch.randn],
        name="scatter",
    ),
    row(
        lambda a, i, s: a.scatter_add(1, i, s),
        "b 4",
        "b k",
        "b k",
        make=[torch.randn, PICK, torch.randn],
        name="scatter_add",
    ),
    row(
        lambda a, i, s: a.scatter_reduce(1, i, s, "amax"),
        "b 4",
        "b k",
        "b k",
        make=[torch.randn, PICK, torch.randn],
        name="scatter_reduce",
    ),
    row(
        lambda a, i, s: a.index_add(0, i, s),
        "4 t",
        "k",
        "k t",
        make=[torch.randn, PICK, torch.randn],
        name="index_add",
    ),
    row(
        lambda a, i: a.index_fill(1, i, 7.0),
        "b 4",
        "k",
        make=[torch.randn, PICK],
        name="index_fill",
    ),
    row(
        lambda a, i, v: torch.index_put(a, (i,), v),
        "4 t",
        "1",
        "t",
        make=[torch.randn, PICK, torch.randn],
        name="index_put",
    ),
    row(
        lambda a, m: a.masked_fill(m, 0),
        "b t",
        "b t",
        make=[torch.randn, bools],
        name="masked_fill",
    ),
    row(lambda a, m: a[m], "b t", "b t", make=[torch.randn, bools], name="mask"),
    row(lambda a: a.nonzero(), "b t", name="nonzero"),
    row(lambda a: torch.nonzero_static(a, size=3), "b t", name="nonzero_static"),
    row(lambda a: torch.unique(a, return_counts=True), "b t", make=PICK, name="unique"),
    row(lambda a: torch.bincount(a, minlength=4), "t", make=PICK, name="bincount"),
    row(lambda w, i: F.embedding(i, w), "5 3", "b t", make=[torch.randn, PICK], name="embedding"),
    row(
        lambda w, i: F.embedding_bag(i, w, mode="mean"),
        "5 3",
        "b t",
        make=[torch.randn, PICK],
        least={"t": 1},
        name="embedding_bag",
    ),
    row(lambda i: F.one_hot(i, 4), "b t", make=PICK, name="one_hot"),
    row(lambda a, e: torch.bucketize(a, e.sort()[0]), "b t", "k", name="bucketize"),
    row(lambda e, a: torch.searchsorted(e.sort()[0], a), "k", "b t", name="searchsorted"),
    row(lambda a, b: torch.isin(a, b), "b t", "k", make=PICK, name="isin"),
    row(lambda a: torch.tril_indices(3, 3) + a.shape[0], "b", name="tril_indices"),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)


def test_an_empty_index_may_be_anything() -> None:
    check(lambda x, i: x.gather(0, i), (torch.ones(2, 3), torch.empty(0)))


def test_large_sizes_that_are_equal() -> None:
    """Python has them as two objects."""
    b = gp.Dim("b")
    sizes = ({0: b}, None)
    args = torch.ones(2, 700, 800), torch.ones(1, int("700"), int("800"))
    check(lambda x, y: x + y, args, dynamic_shapes=sizes)
