"""Lowerings that write by index: scatter, index_put, masks, slices written back, bags."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx, nodes
from tests.onnx.lowerings.test_index import signed
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

PICK = ints(3)
R = torch.randn
NAN, INF = float("nan"), float("inf")


def assign(*index: Any) -> Any:
    """`x[index] = values`, with the tensors of `index` given after the values where it has None."""

    def program(x: torch.Tensor, values: Any, *tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        x = x.clone()
        x[tuple(next(given) if i is None else i for i in index)] = values
        return x

    return program


def distinct(size: Any) -> torch.Tensor:
    """Positions that do not repeat: which of several writes stays is not defined."""
    count = size[0] if len(size) else 1
    return torch.randperm(16)[:count].view(size)


ALL = slice(None)

ROWS = [
    row(assign(..., None), "b t 16", "k", "k", make=[R, R, distinct], name="put_last"),
    row(assign(..., None), "b t 16", "b t k", "k", make=[R, R, distinct], name="put_last_each"),
    row(assign(..., None), "b 16", "", "k", make=[R, R, distinct], name="put_last_number"),
    row(assign(None), "16 t", "k t", "k", make=[R, R, distinct], name="put_rows"),
    row(assign(None), "16 t", "t", "k", make=[R, R, distinct], name="put_one_row"),
    row(assign(None), "16 t", "t", "", make=[R, R, distinct], name="put_by_number"),
    row(assign(ALL, None), "b 16 t", "k t", "k", make=[R, R, distinct], name="put_columns"),
    row(assign(ALL, None), "b 16 t", "b k 1 t", "k 1", make=[R, R, distinct], name="put_by_matrix"),
    row(
        assign(None, None),
        "16 16 t",
        "k t",
        "k",
        "k",
        make=[R, R, distinct, distinct],
        name="put_two",
    ),
    row(
        assign(ALL, None, None),
        "b 16 16",
        "b k",
        "k",
        "k",
        make=[R, R, distinct, distinct],
        name="put_two_inner",
    ),
    row(
        assign(ALL, None, None),
        "b 16 16",
        "k",
        "k",
        "k",
        make=[R, R, distinct, distinct],
        name="put_two_inner_row",
    ),
    row(
        assign(ALL, None, None),
        "b 16 16",
        "b 1",
        "k",
        "k",
        make=[R, R, distinct, distinct],
        name="put_two_inner_column",
    ),
    row(
        assign(None, ALL, None),
        "16 t 16",
        "k t",
        "k",
        "k",
        make=[R, R, distinct, distinct],
        name="put_two_apart",
    ),
    row(
        assign(None, None),
        "16 16 t",
        "k n t",
        "k 1",
        "n",
        make=[R, R, distinct, distinct],
        name="put_outer",
    ),
    row(lambda a, v: assign([0, -1], [1, 2])(a, v), "4 4 t", "t", name="put_constants"),
    row(lambda a, i: assign(..., None)(a, 7, i), "b 3", "k", make=[R, signed], name="put_a_number"),
    row(lambda a, m: assign(None)(a, 0.5, m), "b t", "b t", make=[R, bools], name="put_mask"),
    row(assign(None), "b t", "t", "b", make=[R, R, bools], name="put_mask_rows"),
    row(assign(None), "b t c", "c", "b t", make=[R, R, bools], name="put_mask_first"),
    row(assign(ALL, None), "b t c", "b 1 c", "t", make=[R, R, bools], name="put_mask_columns"),
    row(assign(ALL, None), "b t c", "b 1", "t c", make=[R, R, bools], name="put_mask_last"),
    row(
        lambda a, m: assign(None)(a, a[m] * 2, m),
        "b t",
        "b t",
        make=[R, bools],
        name="put_mask_each",
    ),
    row(
        lambda a, m: assign(None)(a, a[m] * 2, m),
        "b t c",
        "b t",
        make=[R, bools],
        name="put_mask_each_row",
    ),
    row(
        lambda a, m: assign(ALL, None)(a, a[:, m] + 1, m),
        "b t c",
        "t",
        make=[R, bools],
        name="put_mask_each_column",
    ),
    row(
        lambda a, m, i: assign(None, None)(a, 3.0, m, i),
        "b 3",
        "b",
        "1",
        make=[R, bools, signed],
        name="put_mask_and_index",
    ),
    row(
        lambda a, i, v: a.index_put((i,), v, accumulate=True),
        "3 t",
        "k",
        "k t",
        make=[R, signed, R],
        name="accumulate",
    ),
    row(
        lambda a, i, v: a.index_put((i,), v, accumulate=True),
        "3 t",
        "k",
        "t",
        make=[R, signed, R],
        name="accumulate_row",
    ),
    row(
        lambda a, i, v: torch.ops.aten.index_put(a, [None, i], v, True),
        "b 3 t",
        "k",
        "b k t",
        make=[R, signed, R],
        name="accumulate_columns",
    ),
    row(
        lambda a, i, j, v: a.index_put((i, j), v, accumulate=True),
        "3 3 t",
        "k",
        "k",
        "k t",
        make=[R, signed, signed, R],
        name="accumulate_two",
    ),
    row(
        lambda a, m, v: a.index_put((m,), v, accumulate=True),
        "b t",
        "b t",
        "1",
        make=[R, bools, R],
        name="accumulate_mask",
    ),
    row(
        lambda a, i, s: a.scatter(1, i, s),
        "b 16",
        "b 1",
        "b t",
        make=[R, PICK, R],
        least={"t": 1},
        name="scatter_part_of_source",
    ),
    row(lambda a, i: a.scatter(1, i, 2.5), "b 3", "b k", make=[R, PICK], name="scatter_number"),
    row(
        lambda a, i, s: a.scatter(0, i, s, reduce="add"),
        "3 t",
        "k t",
        "k t",
        make=[R, PICK, R],
        name="scatter_add_reduce",
    ),
    row(
        lambda a, i, s: a.scatter(0, i, s, reduce="multiply"),
        "3 t",
        "k t",
        "k t",
        make=[R, PICK, R],
        name="scatter_multiply",
    ),
    row(
        lambda a, i: a.scatter(0, i, 2.0, reduce="multiply"),
        "3 t",
        "k t",
        make=[R, PICK],
        name="scatter_multiply_number",
    ),
    row(
        lambda a, i, s: a.scatter_add(0, i, s),
        "",
        "",
        "",
        make=[R, ints(1), R],
        name="scatter_add_number",
    ),
    *(
        row(
            lambda a, i, s, r=r, own=own: a.scatter_reduce(1, i, s, r, include_self=own),
            "b 3",
            "b k",
            "b k",
            make=[R, PICK, R],
            name=f"scatter_{r}{'' if own else '_others'}",
        )
        for r in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    *(
        row(
            lambda a, i, s, r=r, own=own, d=d: a.index_reduce(d, i, s, r, include_self=own),
            ("3 t", "b 3 t")[d],
            "k",
            ("k t", "b k t")[d],
            make=[R, PICK, R],
            name=f"index_{r}_{d}{'' if own else '_others'}",
        )
        for r in ("prod", "mean", "amax", "amin")
        for own in (True, False)
        for d in (0, 1)
    ),
    row(
        lambda a, i, s: a.index_add(1, i, s, alpha=2.5),
        "b 3 t",
        "k",
        "b k t",
        make=[R, PICK, R],
        name="index_add_alpha",
    ),
    row(
        lambda a, i, s: a.index_copy(1, i, s),
        "b 16 t",
        "k",
        "b k t",
        make=[R, distinct, R],
        name="index_copy",
    ),
    row(
        lambda a, i, s: a.index_copy(0, i, s),
        "16 t",
        "k",
        "k t",
        make=[R, distinct, R],
        name="index_copy_rows",
    ),
    row(
        lambda a, i: a.index_fill(0, i, torch.tensor(3)),
        "3 t",
        "k",
        make=[R, PICK],
        name="index_fill_rows",
    ),
    row(
        lambda a, i, s: (a.index_add(0, i, s), a.index_copy(0, i, s), a.index_fill(0, i, 2)),
        "",
        "",
        "",
        make=[R, ints(1), R],
        name="index_number",
    ),
    row(lambda a, i, s: a.put(i, s), "4 4", "k", "k", make=[R, distinct, R], name="put_flat"),
    row(
        lambda a, i, s: a.put(i, s, accumulate=True),
        "3 4",
        "b k",
        "b k",
        make=[R, signed, R],
        name="put_flat_accumulate",
    ),
    row(
        lambda a, m, s: a.masked_scatter(m, s),
        "b t",
        "b t",
        "b t",
        make=[R, bools, R],
        name="masked_scatter",
    ),
    row(
        lambda a, m, s: a.masked_scatter(m, s),
        "b t",
        "t",
        "b t",
        make=[R, bools, R],
        name="masked_scatter_broadcast",
    ),
    row(
        lambda a, m, s: a.masked_scatter(m, s),
        "",
        "",
        "1",
        make=[R, bools, R],
        name="masked_scatter_number",
    ),
    row(lambda a, s: a.slice_scatter(s, 1, 1, 4), "b 6", "b 3", name="slice_scatter"),
    row(lambda a, s: a.slice_scatter(s, 1, -3), "b 6", "b 3", name="slice_scatter_end"),
    row(lambda a, s: a.slice_scatter(s, 1, 0, 6, 2), "b 6", "b 3", name="slice_scatter_steps"),
    row(
        lambda a, s: torch.cat([a, a], 1).slice_scatter(s, 1, a.shape[1]),
        "b t",
        "b t",
        name="slice_scatter_half",
    ),
    row(
        lambda a, s: torch.cat([a, a]).slice_scatter(s, 0, 0, 2 * a.shape[0], 2),
        "b t",
        "b t",
        name="slice_scatter_every_second",
    ),
    row(lambda a, s: a.slice_scatter(s, 0, 0), "b t", "b t", name="slice_scatter_all"),
    row(
        lambda a, s: [a.select_scatter(s, 1, i) for i in (0, 2, -1, -3)],
        "b 4 t",
        "b t",
        name="select_scatter",
    ),
    row(
        lambda a, s: a.select_scatter(s, 1, a.shape[1] - 1),
        "b t",
        "b",
        least={"t": 1},
        name="select_scatter_last",
    ),
    row(lambda a, s: a.diagonal_scatter(s), "4 4 t", "t 4", name="diagonal_scatter"),
    row(lambda a, s: a.diagonal_scatter(s, 1, 2, 0), "3 t 4", "t 2", name="diagonal_above"),
    row(lambda a, s: a.diagonal_scatter(s, -1), "4 4", "3", name="diagonal_below"),
    row(lambda a, s: a.diagonal_scatter(s), "t t", "t", name="diagonal_symbolic"),
]


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is in beta"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


REDUCED = (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("dtype", REDUCED)
def test_reductions_of_a_dtype(dtype: torch.dtype) -> None:
    """Positions repeat; integers of a mean are rounded down, truth values joined."""

    def program(x, i, s):  # type: ignore[no-untyped-def]
        how = ["sum", "prod", "amax", "amin", *(["mean"] if dtype is not torch.bool else [])]
        reduced = [x.scatter_reduce(0, i, s, r, include_self=o) for r in how for o in (True, False)]
        index = i[:, 0]
        return (
            *reduced,
            x.scatter_add(0, i, s),
            x.index_add(0, index, s),
            x.index_put((index,), s, accumulate=True),
            x.put(i, s, accumulate=True),
            x.index_fill(0, index, 1),
            x.scatter(0, i[:1], 1),
            x.index_copy(0, index[:1], s[:1]),
        )

    x, s = (torch.randint(-4, 5, size).to(dtype) for size in ((3, 4), (5, 4)))
    check_onnx(program, (x, torch.randint(3, (5, 4)), s))


@pytest.mark.parametrize("reduce", ["amax", "amin", "sum", "mean", "prod"])
@pytest.mark.parametrize("include_self", [True, False])
def test_nan_is_kept(reduce: str, include_self: bool) -> None:
    x = torch.tensor([1.0, NAN, 2, 2, 5, INF])
    i = torch.tensor([0, 1, 2, 2, 3, 5, 3])
    s = torch.tensor([5.0, 5, NAN, 1, -INF, NAN, INF])
    check_onnx(
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        (x, i, s),
        dynamic_shapes=({0: gp.Dim("n")}, {0: gp.Dim("k")}, {0: gp.Dim("k")}),
        others=[(x, i[:0], s[:0]), (x[:0], i[:0], s[:0]), (x[:1], i[:1], s[:1] * NAN)],
    )


def test_assignment_in_place_at_dynamic_sizes() -> None:
    def program(x, i, v):  # type: ignore[no-untyped-def]
        x = x.clone()
        x[..., i] = v
        x[:, 1] = 3
        x[1:3, :, i] += 1
        x[:, ::2] = 0
        x[..., -1] = v.sum()
        x[1:, :, :-1] *= 2
        x[x > 1.5] = 1.5
        return x

    def inputs(b: int, t: int, k: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(b, t, 8), torch.randperm(8)[:k], torch.randn(k)

    b, t, k = gp.Dim("b"), gp.Dim("t", min=2), gp.Dim("k")
    check_onnx(
        program,
        inputs(4, 5, 3),
        dynamic_shapes=({0: b, 1: t}, {0: k}, {0: k}),
        others=[inputs(3, 2, 8), inputs(6, 9, 1), inputs(5, 3, 0)],
    )


def test_input_written_to() -> None:
    def program(cache, position, new):  # type: ignore[no-untyped-def]
        cache[:, :, position] = new
        return cache.sum(-1)

    cache, position, new = torch.zeros(2, 3, 8, 4), torch.tensor([2, 3]), torch.randn(2, 3, 2, 4)
    check_onnx(program, (cache, position, new))


def test_few_nodes() -> None:
    x, mask, i = torch.randn(4, 4, 4), torch.randn(4, 4, 4) > 0, torch.tensor([0, 2])
    assert nodes(lambda x, m: assign(None)(x, 0, m), x, mask) == ["Where"]
    *reshaped, where = nodes(lambda x, m: assign(None)(x, 0, m), x, mask[0, 0])
    assert set(reshaped) == {"Unsqueeze"} and where == "Where"
    assert nodes(lambda x, i, v: assign(None)(x, v, i), x, i, x[:2]) == ["Unsqueeze", "ScatterND"]
    assert nodes(lambda x, i, v: x.scatter_add(0, i, v), x, mask.long(), x) == ["ScatterElements"]
    assert nodes(lambda x, v: x.slice_scatter(v, 1, 2), x, x[:, :2]) == ["Slice", "Concat"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0])
def test_embedding_with_a_largest_norm(dtype: torch.dtype, p: float) -> None:
    def program(w, i):  # type: ignore[no-untyped-def]
        rows = w * 2
        return F.embedding(i, rows, max_norm=1.5, norm_type=p), rows

    w, i = torch.randn(10, 3).to(dtype), torch.tensor([[1, 2], [1, 9]])
    shapes = (None, {0: gp.Dim("b")})
    check_onnx(program, (w, i), dynamic_shapes=shapes, others=[(w / 9, i), (w, i[:0])])


INDICES, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 3, 3, 5])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 4])
def test_embedding_bag(mode: str, padding_idx: int | None) -> None:
    """With an empty bag, and one in which only padding may be."""

    def program(w, i, o):  # type: ignore[no-untyped-def]
        return (
            F.embedding_bag(i, w, o, mode=mode, padding_idx=padding_idx),
            F.embedding_bag(
                i,
                w,
                torch.cat([o, i.new_full((1,), i.shape[0])]),
                mode=mode,
                padding_idx=padding_idx,
                include_last_offset=True,
            ),
        )

    w = torch.randn(10, 3)
    k, n = gp.Dim("k"), gp.Dim("n", min=1)
    check_onnx(
        program,
        (w, INDICES, OFFSETS),
        dynamic_shapes=(None, {0: k}, {0: n}),
        others=[
            (w, INDICES[:5], OFFSETS[:3]),
            (w, INDICES[:0], OFFSETS[:1]),
            (w, torch.tensor([4, 4, 1]), torch.tensor([0, 2])),
        ],
    )
    check_onnx(
        lambda w, i: F.embedding_bag(i, w, mode=mode, padding_idx=padding_idx),
        (w, INDICES.view(2, 4)),
        dynamic_shapes=(None, {0: gp.Dim("b"), 1: gp.Dim("t", min=1)}),
        others=[(w, INDICES.view(4, 2)), (w, INDICES.view(8, 1))],
    )


def test_embedding_bag_with_weights() -> None:
    def program(w, i, o, p):  # type: ignore[no-untyped-def]
        return F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p)

    for dtype in (torch.float32, torch.float64, torch.float16):
        w, p = torch.randn(10, 3).to(dtype), torch.randn(8).to(dtype)
        check_onnx(program, (w, INDICES.int(), OFFSETS.int(), p))


def test_embedding_bag_is_not_for_gradients() -> None:
    w = torch.randn(10, 3)
    with pytest.raises(gp.errors.UnsupportedError, match="gradients"):
        gp.onnx.export(lambda w, i, o: torch.embedding_bag(w, i, o), (w, INDICES, OFFSETS))
