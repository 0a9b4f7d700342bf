"""Sizes and numbers that depend on data: how many there are, what a tensor holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import dynamic_test, static_test
from tests.ops.rows import bools, ints, row

PICK = ints(3)
R = torch.randn


def counts(size: Any) -> torch.Tensor:
    return torch.randint(4, tuple(size))


ROWS = [
    row(lambda a: a.nonzero(), "b t", make=bools, name="nonzero"),
    row(lambda a: a.nonzero(), "b t", make=PICK, name="nonzero_integers"),
    row(lambda a: a.round().nonzero(), "b t", name="nonzero_floats"),
    row(lambda a: a.round().half().nonzero(), "b t", name="nonzero_halves"),
    row(lambda a: a.nonzero(), "", make=bools, name="nonzero_number"),
    row(lambda a: a.nonzero(as_tuple=True), "b t c", make=bools, name="nonzero_tuple"),
    row(lambda a: (torch.argwhere(a), torch.where(a)), "b t", make=bools, name="argwhere"),
    row(
        lambda a: torch.nonzero_static(a, size=3, fill_value=7),
        "b t",
        make=bools,
        name="nonzero_static",
    ),
    row(
        lambda a: torch.nonzero_static(a, size=a.shape[0]),
        "b t",
        make=bools,
        name="nonzero_static_symbolic",
    ),
    row(lambda a, m: a[m].sum() + a[m].shape[0], "b t", "b t", make=[R, bools], name="mask_sum"),
    row(lambda a, m: a[m] @ a[m].T, "b t", "b", make=[R, bools], name="mask_matmul"),
    row(lambda a, m: torch.cat([a[m], a[~m]]), "b t", "b", make=[R, bools], name="mask_parts"),
    row(
        lambda a, m: torch.zeros_like(a[m]) + torch.arange(a[m].shape[0])[:, None],
        "b t",
        "b",
        make=[R, bools],
        name="mask_count",
    ),
    row(lambda a, m: a[m.nonzero()[:, 0]], "b t", "b", make=[R, bools], name="index_by_nonzero"),
    row(
        lambda a, r: a.repeat_interleave(r, 0),
        "b t",
        "b",
        make=[R, counts],
        name="repeat_interleave",
    ),
    row(
        lambda a, r: a.repeat_interleave(r, 1),
        "b t",
        "t",
        make=[R, counts],
        name="repeat_interleave_columns",
    ),
    row(
        lambda a, r: a.repeat_interleave(r),
        "b t",
        "1",
        make=[R, counts],
        name="repeat_interleave_flat",
    ),
    row(lambda r: torch.repeat_interleave(r), "k", make=counts, name="repeat_interleave_positions"),
    row(lambda r: torch.repeat_interleave(r.int()), "k", make=counts, name="repeat_interleave_int"),
    row(
        lambda a: a.repeat_interleave(2, 0, output_size=2 * a.shape[0]),
        "b t",
        name="repeat_interleave_size",
    ),
    row(
        lambda a, r: a.repeat_interleave(r * 0 + 2, 0, output_size=2 * a.shape[0]),
        "b t",
        "b",
        make=[R, counts],
        name="repeat_interleave_tensor_size",
    ),
    row(
        lambda a: torch.unique(a)[1:], "b t", make=PICK, least={"b": 1, "t": 1}, name="unique_rest"
    ),
    row(lambda a: torch.bincount(a).cumsum(0), "t", make=PICK, name="bincount_cumsum"),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_sizes_from_a_number(dtype: torch.dtype) -> None:
    def program(x, n):  # type: ignore[no-untyped-def]
        k = n.item()
        return (
            torch.arange(k),
            torch.zeros(k, 2),
            torch.ones(3, k),
            x[:k],
            x[k:],
            x[..., :k],
            torch.full((k,), k),
            x.new_zeros(k + 1),
            k,
            2 * k + 1,
        )

    x = torch.randn(5, 6)
    check_onnx(
        program,
        (x, torch.tensor(3, dtype=dtype)),
        dynamic_shapes=({0: gp.Dim("b")}, None),
        others=[(x, torch.tensor(k, dtype=dtype)) for k in (0, 1, 5, 9)],
    )


def test_negative_number_counts_from_the_end() -> None:
    x = torch.randn(5, 6)
    check_onnx(
        lambda x, n: x[: n.item()],
        (x, torch.tensor(3)),
        others=[(x, torch.tensor(n)) for n in (-2, 0, 7, -9)],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_numbers_with_a_fraction(dtype: torch.dtype) -> None:
    def program(x, s):  # type: ignore[no-untyped-def]
        k = s.sum().item()
        return x * k, torch.full((2,), k), x.clamp(max=k), k

    x, s = torch.randn(4, 3), torch.tensor([1.5, -0.25], dtype=dtype)
    check_onnx(program, (x, s), others=[(x, s * 2), (x, s - s)])


def test_truth_of_a_tensor_as_a_number() -> None:
    x = torch.randn(4)
    check_onnx(
        lambda x: (x * (x > 9).any().item(), (x > 0).all().item()),
        (x,),
        others=[(x.abs(),), (x.abs() + 10,)],
    )


def test_lists_of_numbers() -> None:
    def program(x, lengths):  # type: ignore[no-untyped-def]
        first, second = x.split(lengths.tolist())
        return first.sum(0), second * 2

    x = torch.randn(6, 3)
    check_onnx(
        program,
        (x, torch.tensor([2, 4])),
        others=[(x, torch.tensor([6, 0])), (x, torch.tensor([3, 3]))],
    )


def test_a_number_read_twice_is_one() -> None:
    def program(x, n):  # type: ignore[no-untyped-def]
        k = n.max().item()
        torch._check(k <= 5)
        rows = torch.arange(k)[:, None] < n
        return x[:k] * 2, rows, x.new_ones(k, k)

    x, n = torch.randn(5, 2), torch.tensor([1, 4, 2])
    check_onnx(program, (x, n), others=[(x, n.clamp(max=2)), (x, n - n)])


def test_mask_with_positions_beside() -> None:
    """How many ones there are is not a size of the result then."""
    x, mask = torch.randn(4, 5, 6), torch.tensor([True, True, False, True])
    check_onnx(lambda x, m, i: x[m, i], (x, mask, torch.tensor([0, -1, 2])))
    check_onnx(lambda x, m: x[m, [2]], (x, mask), others=[(x, mask | True), (x, mask & False)])


def test_several_of_them_together() -> None:
    """Tokens of chosen rows, gathered, sorted, and written back."""

    def program(x, scores):  # type: ignore[no-untyped-def]
        chosen = (scores > 0).nonzero()[:, 0]
        order = chosen[scores[chosen].argsort(descending=True)]
        out = torch.zeros_like(x)
        out[order] = x[order] * torch.arange(order.shape[0])[:, None]
        total = torch.zeros(3).index_add(0, order % 3, x[order].sum(1))
        return out, total, order, x[scores > 0].shape[0]

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(n, 4), torch.randn(n)

    n = gp.Dim("n")
    check_onnx(
        program,
        inputs(6),
        dynamic_shapes=({0: n}, {0: n}),
        others=[inputs(9), inputs(1), inputs(0), (torch.randn(3, 4), -torch.rand(3))],
    )


def test_an_assertion_on_the_whole_of_a_tensor_is_left_out() -> None:
    """As models of text and images compare their placeholders with what is to stand there."""

    def program(ids, features):  # type: ignore[no-untyped-def]
        places = ids == 7
        torch._check_tensor_all(places.sum() * 3 == features.numel())
        embedded = ids[..., None].expand(-1, -1, 3).to(features.dtype)
        return embedded.masked_scatter(places[..., None], features)

    def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor([[7, 1, 7, 2, 3]]).repeat(batch, 1)
        return ids, torch.randn(batch, 2, 3)

    batch = gp.Dim("batch", max=8)
    check_onnx(
        program, inputs(2), dynamic_shapes=({0: batch}, {0: batch}), others=[inputs(1), inputs(5)]
    )


def test_the_first_of_elements_goes_with_all_of_them() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return y[:1].expand_as(y), y[:1] + y

    x = torch.tensor([1.0, -2, 3, 4])
    check_onnx(f, (x,), others=[(-x,), (x - 2,), (x - 9,)])
