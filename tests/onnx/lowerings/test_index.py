"""Lowerings that read by index: all forms of `x[...]`, gather, masks, embedding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx, nodes
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row
from tests.ops.test_index import ROWS as CAPTURED

PICK = ints(3)
R = torch.randn


def signed(size: Sequence[int]) -> torch.Tensor:
    """Positions in three elements, from either end."""
    return torch.randint(-3, 3, tuple(size))


ROWS = [
    *CAPTURED,
    row(lambda a, i: a[i], "3 t", "k n", make=[R, signed], name="index_by_matrix"),
    row(lambda a, i: a[..., i], "b t 3", "k", make=[R, signed], name="index_last"),
    row(lambda a, i: a[..., i], "b 3", "k 1", make=[R, signed], name="index_last_by_matrix"),
    row(lambda a, i: a[i], "3 t", "", make=[R, signed], name="index_by_number"),
    row(lambda a, i: a[:, i.int()], "b 3", "k", make=[R, signed], name="index_int32"),
    row(lambda a, i, j: a[i, j], "3 3 t", "k", "k", make=[R, signed, signed], name="index_two"),
    row(
        lambda a, i, j: a[:, i, j],
        "b 3 3 t",
        "k",
        "k",
        make=[R, signed, signed],
        name="index_two_inner",
    ),
    row(
        lambda a, i, j: a[i, :, j],
        "3 t 3 c",
        "k",
        "k",
        make=[R, signed, signed],
        name="index_two_apart",
    ),
    row(
        lambda a, i, j: a[i, :, j],
        "3 t 3",
        "k 1",
        "n",
        make=[R, signed, signed],
        name="index_apart_broadcast",
    ),
    row(
        lambda a, i, j: a[:, i[:, None], j],
        "b 3 3 t",
        "k",
        "n",
        make=[R, signed, signed],
        name="index_outer",
    ),
    row(
        lambda a, i, j: a[i, j[:, None, None]],
        "3 3 t",
        "k",
        "n",
        make=[R, signed, signed],
        name="index_outer_turned",
    ),
    row(
        lambda a, i, j: a[i, j], "3 3 t", "k", "", make=[R, signed, signed], name="index_and_number"
    ),
    row(
        lambda a, i, j: a[i, :, j],
        "3 t 3",
        "",
        "",
        make=[R, signed, signed],
        name="index_two_numbers",
    ),
    row(
        lambda a, i, j: a[i, j, j[:, None]],
        "3 3 3 b",
        "k",
        "k",
        make=[R, signed, signed],
        name="index_three",
    ),
    row(lambda a, i: a[i, i, i, i], "3 3 3 3", "k", make=[R, signed], name="index_all"),
    row(lambda a, i: a[i, 2], "3 4 t", "k", make=[R, signed], name="index_and_select"),
    row(lambda a: a[[0, -1], [1, 2]], "3 3 t", name="index_constants"),
    row(lambda a: a[:, [[0], [-1]], [1, 2]], "b 3 3", name="index_constants_outer"),
    row(lambda a, i: a[None, i], "3 t", "k", make=[R, signed], name="index_new_dim"),
    row(lambda a: a[torch.arange(a.shape[0]), -1], "b 4 t", name="index_last_of_each"),
    row(lambda a, m: a[m], "b t", "b", make=[R, bools], name="mask_rows"),
    row(lambda a, m: a[:, m], "b t c", "t", make=[R, bools], name="mask_columns"),
    row(lambda a, m: a[m], "b t c", "b t", make=[R, bools], name="mask_first"),
    row(lambda a, m: a[:, m], "b t c", "t c", make=[R, bools], name="mask_last"),
    row(lambda a, m: a[m[0]], "t c", "1", make=[R, bools], name="mask_number"),
    row(lambda a, m: a[m.to(torch.uint8)], "b t", "b t", make=[R, bools], name="mask_uint8"),
    row(lambda a, m, i: a[m, i], "b 3", "b", "1", make=[R, bools, signed], name="mask_and_index"),
    row(
        lambda a, m, i: a[m, :, i],
        "b t 3",
        "b",
        "",
        make=[R, bools, signed],
        name="mask_and_number",
    ),
    row(lambda a, m: a[m, :, m], "b t b", "b", make=[R, bools], name="mask_twice"),
    row(lambda a, m: a.masked_select(m), "b t", "b t", make=[R, bools], name="masked_select"),
    row(
        lambda a, m: a.masked_select(m),
        "b t",
        "b 1",
        make=[R, bools],
        name="masked_select_broadcast",
    ),
    row(lambda a, m: a.masked_select(m), "t", "b t", make=[R, bools], name="masked_select_more"),
    row(lambda a, m: a.masked_select(m), "", "t", make=[R, bools], name="masked_select_number"),
    row(lambda a, i: a.gather(0, i), "3 4", "k 2", make=[R, PICK], name="gather_part"),
    row(lambda a, i: a.gather(0, i.int()), "3 t", "k t", make=[R, PICK], name="gather_int32"),
    row(lambda a, i: a.gather(0, i), "", "", make=[R, ints(1)], name="gather_number"),
    row(lambda a, i: a.gather(0, i), "", "k", make=[R, ints(1)], name="gather_from_number"),
    row(lambda a, i: a.gather(-1, i), "3", "", make=[R, PICK], name="gather_one"),
    row(lambda a, i: a.index_select(-1, i), "b 3", "", make=[R, PICK], name="index_select_one"),
    row(lambda a, i: a.index_select(0, i), "", "1", make=[R, ints(1)], name="index_select_number"),
    row(lambda a, i: a.take(i), "3 4", "b t", make=[R, signed], name="take_matrix"),
    row(
        lambda a, i: torch.take_along_dim(a, i, 1),
        "b 3 t",
        "1 k t",
        make=[R, PICK],
        name="take_along_broadcast",
    ),
    row(
        lambda a, i: torch.take_along_dim(a, i, 0),
        "3 1",
        "k t",
        make=[R, PICK],
        name="take_along_broadcast_self",
    ),
    row(
        lambda w, i: F.embedding(i, w, padding_idx=1),
        "5 3",
        "b t",
        make=[R, PICK],
        name="embedding_padding",
    ),
    row(lambda w, i: F.embedding(i.int(), w), "5 c", "b", make=[R, PICK], name="embedding_int32"),
    row(lambda i: F.one_hot(i, 4), "", make=PICK, name="one_hot_number"),
    row(lambda i: F.one_hot(i), "b t", make=PICK, least={"b": 1, "t": 1}, name="one_hot_by_data"),
]


pytestmark = pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


DTYPES = (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    def program(x, i, mask):  # type: ignore[no-untyped-def]
        return (
            x[i],
            x[:, i],
            x[i, i],
            x[mask],
            x.gather(0, i[:, None]),
            x.take(i),
            x.index_select(1, i),
            x.masked_select(mask),
            torch.take_along_dim(x, i[:, None], 0),
            x[mask[:, 0]],
            x[mask[:, 0], i[0]],
        )

    x = torch.randint(-4, 5, (3, 4)).to(dtype)
    check_onnx(program, (x, torch.tensor([0, 2, 1]), torch.randn(3, 4) > 0))


def test_few_nodes() -> None:
    x, i, mask = torch.randn(3, 3, 3), torch.tensor([0, 2]), torch.randn(3, 3, 3) > 0
    assert nodes(lambda x, i: x[:, i], x, i) == ["Gather"]
    assert nodes(lambda x, i: x[..., i], x, i) == ["Gather"]
    assert nodes(lambda x: x[[0, 1], [1, 2]], x) == ["GatherND"]
    assert nodes(lambda x, i: x[i, i], x, i) == ["Unsqueeze", "Concat", "GatherND"]
    assert nodes(lambda x, m: x[m], x, mask[0, 0]) == ["Compress"]
    assert nodes(lambda x, m: x[m], x, mask) == ["Reshape", "Compress"]
    assert nodes(lambda x, i: F.embedding(i, x), x[0], i) == ["Gather"]
    assert nodes(lambda i: F.one_hot(i, 3), i) == ["OneHot"]


def test_outer_positions_are_not_spread() -> None:
    """As masks are put together from positions of the batch and of keys."""
    x, i, j = torch.randn(4, 6), torch.arange(4)[:, None, None, None], torch.arange(6)
    assert "Expand" not in nodes(lambda x, i, j: x[i, j], x, i, j)
    check_onnx(
        lambda x, i, j: x[i, j],
        (x, i, j),
        dynamic_shapes=({0: gp.Dim("b"), 1: gp.Dim("t")}, {0: gp.Dim("b")}, {0: gp.Dim("t")}),
        others=[(torch.randn(1, 2), i[:1], j[:2]), (torch.randn(0, 2), i[:0], j[:2])],
    )
