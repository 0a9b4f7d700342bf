"""Micro-batches: what is split, what is put together, and what may not be split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import StageError
from graphport.partition.pipelines.micro_batches import SplitBatch
from tests.partition.pipelines.models import BATCH, Counting, tied

close = torch.testing.assert_close


def in_parts(program: gp.ExportedProgram, split: SplitBatch, leaves: list[Any]) -> Any:
    """The program run on each part, the results put together by the names of its outputs."""
    run = program.module()
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    parts = []
    for part in split.split(leaves):
        args, kwargs = pytree.tree_unflatten(part, program.call_spec.in_spec)
        found = pytree.tree_leaves(run(*args, **kwargs))
        parts.append({n: x for n, x in zip(names, found, strict=True) if n})
    joined = split.joined(parts, leaves)
    results = [joined[n] if n else x for n, x in zip(names, found, strict=True)]
    return pytree.tree_unflatten(results, program.call_spec.out_spec)


@settings(max_examples=12)
@given(batch=st.integers(0, 9), count=st.integers(1, 5))
def test_parts_give_the_whole(batch: int, count: int) -> None:
    model, program, inputs = tied()
    args, kwargs = inputs(batch)
    leaves = pytree.tree_leaves((args, kwargs))
    split = SplitBatch(program, count, None)
    sizes = [part[0].shape[0] for part in split.split(leaves)]
    assert sizes == [t.shape[0] for t in leaves[0].tensor_split(max(1, min(count, batch)))]
    assert all(part[1] is leaves[1] for part in split.split(leaves))
    close(in_parts(program, split, leaves), model(*args, **kwargs))


class Sequence(nn.Module):
    """The batch is the second dim, once a factor of another, and a number."""

    def forward(self, x: Tensor, pairs: Tensor, scale: float) -> tuple[Any, ...]:
        both = pairs.reshape(-1, 2, 3).sum(1)
        flat = x.permute(1, 0, 2).reshape(-1, 3)
        return x * scale + both, flat, x.shape[1] * 2, torch.arange(x.shape[0]), scale


def test_the_batch_may_be_any_dim() -> None:
    batch, length = gp.dims("batch", "length", max=50)
    inputs = (torch.randn(4, 6, 3), torch.randn(12, 3), 2.0)
    shapes = {"x": {0: length, 1: batch}, "pairs": {0: 2 * batch}, "scale": None}
    program = gp.export(Sequence(), inputs, dynamic_shapes=shapes)
    leaves = [torch.randn(2, 7, 3), torch.randn(14, 3), 2.0]
    split = SplitBatch(program, 3, "batch")
    assert [(p[0].shape[1], p[1].shape[0]) for p in split.split(leaves)] == [(3, 6), (2, 4), (2, 4)]
    close(in_parts(program, split, leaves), Sequence()(*leaves))


TABLE = torch.linspace(-1, 1, 192).reshape(64, 3)


def refused(fn: Any, *shapes: Any) -> str:
    """Why a function of tensors with a batch in front cannot be split."""

    class Model(nn.Module):
        def forward(self, *xs: Tensor) -> Any:
            return fn(*xs)

    inputs = tuple(torch.randn(shape) for shape in shapes or ((4, 3),))
    program = gp.export(Model(), inputs, dynamic_shapes=(tuple(BATCH for _ in inputs),))
    with pytest.raises(StageError) as error:
        SplitBatch(program, 2, None)
    assert "micro_batches=1" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x - x.mean(0), "mean"),
        (lambda x: x.sum(), "has the sizes []"),
        (lambda x: x @ x.T, "has the sizes [batch, batch]"),
        (lambda x: x.softmax(0), "mixes elements of the batch"),
        (lambda x: x.cumsum(0), "mixes elements of the batch"),
        (lambda x: x.flip(0), "mixes elements of the batch"),
        (lambda x: x.sort(dim=0).values, "mixes elements of the batch"),
        (lambda x: torch.cat([x, x]), "mixes elements of the batch"),
        (lambda x: x.T.reshape(-1), "mixes elements of the batch"),
        (lambda x: x.repeat(2, 1), "mixes elements of the batch"),
        (lambda x: x.repeat(2, 1, 1).flatten(0, 1), "mixes elements of the batch"),
        (lambda x: torch.einsum("bi,ci,cj->bj", x, x, x), "mixes elements of the batch"),
        (lambda x: torch.einsum("...i,ci,cj->...j", x, x, x), "mixes elements of the batch"),
        (lambda x: torch.zeros_like(x).masked_scatter(x > 0, x), "mixes elements of the batch"),
        (lambda x: torch.take(x, x.long().clamp(0, 2)), "mixes elements of the batch"),
        (lambda x: x[1:], "has the sizes [batch - 1, 3]"),
        (lambda x: x[0], "has the sizes [3]"),
        (lambda x: x + torch.arange(x.shape[0])[:, None], "with the positions of the items"),
        (lambda x: x + torch.linspace(0, 1, x.shape[0])[:, None], "with the size of the batch"),
        (lambda x: (x, torch.arange(x.shape[0])), "gives the positions of the items"),
        (lambda x: x[x[:, 0].long().clamp(0, 0)], "indexes into the batch"),
        (
            lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
            "mixes elements of the batch",
        ),
        (lambda x: nn.functional.layer_norm(x.T, (x.shape[0],)), "mixes elements of the batch"),
        (lambda x: x.T.contiguous().tril(), "mixes elements of the batch"),
        (lambda x: x * x.shape[0], "computes with the size of the batch"),
        (
            lambda x: nn.functional.batch_norm(x, None, None, training=True),
            "mixes elements of the batch",
        ),
        (lambda x: (x > 0).nonzero(), "which are not those of a batch"),
        (lambda x: x + TABLE[: x.shape[0]], "by their number"),
        (lambda x: x + TABLE.gather(1, x.long().clamp(0, 2)), "mixes elements of the batch"),
        (lambda x: x + torch.ones(x.shape[0], 1).cumsum(0), "mixes elements of the batch"),
        (lambda x: x.rot90(2, [0, 1]), "mixes elements of the batch"),
        (lambda x: x.renorm(2, 1, 0.5), "mixes elements of the batch"),
        (lambda x: x.topk(x.shape[0], dim=0).values, "mixes elements of the batch"),
        (lambda x: torch.bucketize(x[:, 0], x[:, 1]), "mixes elements of the batch"),
        (lambda x: torch.searchsorted(x[:, 0], x[:, 1]), "mixes elements of the batch"),
        (lambda x: torch.isin(x[:, 0], x[:, 1]), "mixes elements of the batch"),
        (lambda x: nn.functional.embedding(x[:, 0].long() * 0, x), "mixes elements of the batch"),
        (lambda x: x.repeat_interleave(2, 0)[: x.shape[0]], "mixes elements of the batch"),
        (lambda x: x.repeat_interleave(2, 0).chunk(2)[0], "mixes elements of the batch"),
        (lambda x: torch.fft.fft(x, dim=0), "mixes elements of the batch"),
        (lambda x: torch.kron(TABLE[:2, :2], x), "mixes elements of the batch"),
        (lambda x: torch.block_diag(x, x), "mixes elements of the batch"),
        (lambda x: torch.cross(x, x + 1), "mixes elements of the batch"),
        (lambda x: x.unique(dim=1)[:, :1], "mixes elements of the batch"),
        (lambda x: x.index_fill(1, x[:, 0].long().clamp(0, 2), 0.0), "mixes elements of the batch"),
        (lambda x: x.scatter(1, TABLE[:2].long().abs(), 0.0), "mixes elements of the batch"),
        (lambda x: x.roll(x.shape[0], 1), "computes with the size of the batch"),
        (lambda x: gp.scan(lambda c, v: (c + v, c + v), TABLE[0], x)[1], "loops over the batch"),
        (
            lambda x: torch.cond(TABLE.sum() > 0, lambda t: t.flip(0), lambda t: t + 1, (x,)),
            "mixes elements of the batch",
        ),
        (
            lambda x: torch.cond(TABLE.sum() > 0, lambda t: t - t.mean(0), lambda t: t + 1, (x,)),
            "has the sizes [3]",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_programs_that_mix_the_items_are_refused(fn: Any, said: str) -> None:
    text = refused(fn)
    assert said in text and "test_micro_batches.py" in text


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.repeat(1, 2),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.tile(3),
        lambda x: torch.einsum("bi,ij->bj", x, torch.ones(3, 2)),
        lambda x: torch.einsum("...i,...i->...", x, x),
        lambda x: nn.functional.normalize(x),
        lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True),
        lambda x: torch.linalg.cross(x, TABLE[:1].expand(x.shape[0], -1)),
        lambda x: torch.cat([x, TABLE[:1].repeat(x.shape[0], 1)], 1),
        lambda x: x.repeat_interleave(2, 0)[1::2],
        lambda x: x.renorm(2, 0, 0.5),
        lambda x: x @ x.new_ones(3, 3).tril() + torch.zeros_like(x),
        lambda x: x.scatter_add(1, x.long().clamp(0, 2), x + 1),
        lambda x: x.index_add(1, torch.tensor([2, 0]), x[:, :2]),
        lambda x: nn.functional.embedding(x.long().clamp(0, 2), TABLE),
        lambda x: torch.bucketize(x, TABLE[:, 0].sort().values),
        lambda x: gp.map(lambda v: v - v.mean(), x),
        lambda x: torch.cond(TABLE.sum() > 0, lambda t: t * 2, lambda t: t + TABLE[0], (x,)),
        lambda x: x.view(-1, 3)[torch.arange(x.shape[0])[:, None], torch.arange(3)[None]],
    ],
)
def test_items_that_stay_apart(fn: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return fn(x)

    program = gp.export(Model(), (torch.randn(4, 3),), dynamic_shapes=({0: gp.Dim("batch")},))
    x = torch.randn(7, 3)
    parts = [program.module()(part) for part in x.split(3)]
    SplitBatch(program, 3, None)
    torch.testing.assert_close(torch.cat(parts), fn(x))


class Picking(nn.Module):
    """What models of language do to their masks: each item picks its own row."""

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])
        masked = x[rows[:, None], torch.arange(2)[None]]
        zeros = torch.zeros(x.shape[0], 1)
        return masked.sum(1, keepdim=True) + x[rows, last][:, None] + zeros


def test_items_may_pick_their_own() -> None:
    inputs = (torch.randn(4, 3), torch.tensor([0, 1, 2, 1]))
    program = gp.export(Picking(), inputs, dynamic_shapes=(BATCH, BATCH))
    leaves = [torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])]
    close(in_parts(program, SplitBatch(program, 3, None), leaves), Picking()(*leaves))


def test_state_that_changes_is_refused() -> None:
    program = gp.export(Counting(), (torch.randn(3, 4),), dynamic_shapes=(BATCH,))
    with pytest.raises(StageError, match="changes 'calls' in each run"):
        SplitBatch(program, 2, None)


def test_a_static_batch_is_refused() -> None:
    program = gp.export(nn.Linear(3, 3), (torch.randn(4, 3),))
    with pytest.raises(StageError, match="no input of the program has a dynamic first dim"):
        SplitBatch(program, 2, None)
    with pytest.raises(StageError, match="no input of the program has a dim 'rows'"):
        SplitBatch(program, 2, "rows")


def test_a_part_that_the_program_does_not_take_is_refused() -> None:
    shapes = ({0: gp.Dim("batch", min=2)},)
    program = gp.export(nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=shapes)
    split = SplitBatch(program, 2, None)
    assert len(split.split([torch.randn(4, 3)])) == 2
    with pytest.raises(StageError, match="a batch of 3 in 2 micro-batches has one of 1"):
        split.split([torch.randn(3, 3)])


def test_an_input_that_is_changed_is_split_too() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

    program = gp.export(Doubled(), (torch.randn(4, 3),), dynamic_shapes=(BATCH,))
    assert len(SplitBatch(program, 2, None).split([torch.randn(5, 3)])) == 2
