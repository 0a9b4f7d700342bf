"""Values at other sizes: they have the properties of the example, and what operators need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import graphport as gp
from graphport.onnx.verify.drawing import Need, draw_like, repeat_example
from graphport.onnx.verify.samples import Samples

SIZES = [[3, 7], [1, 1], [6, 2], [4, 0], [0, 5], [9, 31]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def is_sorted(t: Tensor) -> bool:
    return bool((t.diff(dim=-1) >= 0).all())


def is_prefix(t: Tensor) -> bool:
    return bool((t.to(torch.int8).diff(dim=-1) <= 0).all())


def square(t: Tensor) -> Tensor:
    return torch.tril(torch.ones(t.shape[-2:])).bool()


LOWEST = torch.finfo(torch.float32).min
EXAMPLES: dict[str, tuple[Tensor, Callable[[Tensor], bool]]] = {
    "floats": (torch.randn(4, 5), lambda t: len(t.unique()) == t.numel()),
    "positive": (torch.rand(4, 5) + 0.1, lambda t: bool((t > 0).all())),
    "constant": (torch.ones(4, 5), lambda t: bool((t == 1).all())),
    "whole floats": (torch.tensor([[3.0, 7, 1], [9, 2, 4]]), lambda t: torch.equal(t, t.round())),
    "probabilities": (
        torch.softmax(torch.randn(4, 5), -1),
        lambda t: not t.numel() or torch.allclose(t.sum(-1), torch.ones(len(t)), atol=1e-4),
    ),
    "sorted": (torch.randn(4, 5).sort(-1).values, is_sorted),
    "halves": (torch.randn(4, 5).half(), lambda t: t.dtype is torch.float16),
    "eighths": (torch.randn(4, 5).to(torch.float8_e5m2), lambda t: t.element_size() == 1),
    "indices": (torch.randint(2, 9, (4, 5)), lambda t: bool(((t >= 2) & (t < 9)).all())),
    "positions": (
        torch.arange(5).expand(4, 5),
        lambda t: torch.equal(t, torch.arange(t.shape[1]).expand(t.shape)),
    ),
    "places": (
        torch.rand(4, 5).argsort(-1),
        lambda t: torch.equal(t.sort(-1).values, torch.arange(t.shape[1]).expand(t.shape)),
    ),
    "ignored labels": (
        torch.tensor([[-100, 3, 5], [2, -100, 9]]),
        lambda t: bool(((t == -100) | ((t >= 2) & (t <= 9))).all()),
    ),
    "causal": (square(torch.empty(5, 5)), lambda t: torch.equal(t, square(t))),
    "causal to add": (
        torch.full((5, 5), -math.inf).triu(1),
        lambda t: torch.equal(t == 0, square(t)) and bool(((t == 0) | (t == -math.inf)).all()),
    ),
    "least to add": (
        torch.where(square(torch.empty(5, 5)), 0.0, LOWEST),
        lambda t: torch.equal(t, torch.where(square(t), 0.0, LOWEST)),
    ),
    "padding": (
        torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
        lambda t: is_prefix(t) and (not t.numel() or bool((t.sum(-1) > 0).all())),
    ),
    "padding before": (torch.tensor([[0, 1, 1], [1, 1, 1]]), lambda t: is_prefix(t.flip(-1))),
    "one hot": (
        F.one_hot(torch.tensor([0, 2, 1, 2]), 4),
        lambda t: not t.numel() or bool((t.sum(-1) == 1).all()),
    ),
    "scattered": (
        torch.tensor([[True, False, True, True], [False, True, False, True]]),
        lambda t: not t.numel() or bool(t.any(-1).all()),
    ),
    "complex": (torch.randn(4, 5, dtype=torch.complex64), lambda t: t.is_complex()),
    "not numbers": (torch.tensor([[1.0, math.nan], [0.5, 0.25]]), lambda t: not t.isinf().any()),
    "nothing": (torch.empty(0, 5), lambda t: t.dtype is torch.float32),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_kept(name: str) -> None:
    example, keeps = EXAMPLES[name]
    for seed in range(3):
        for sizes in SIZES:
            made = draw_like(example, sizes, seeded(seed), None)
            assert list(made.shape) == sizes and made.dtype is example.dtype
            assert keeps(made), (sizes, made)


@pytest.mark.parametrize("name", ["floats", "indices", "padding", "scattered", "places"])
def test_values_are_new(name: str) -> None:
    example, _ = EXAMPLES[name]
    one, other = (draw_like(example, [16, 12], seeded(seed), None) for seed in range(2))
    assert not torch.equal(one, other)
    assert not torch.equal(one, repeat_example(example, [16, 12]))


def test_matrices() -> None:
    root = torch.randn(4, 4)
    positive = draw_like(root @ root.T + torch.eye(4), [7, 7], seeded(), None)
    assert torch.linalg.cholesky_ex(positive).info == 0
    lower = draw_like(torch.randn(4, 4).tril(), [7, 7], seeded(), None)
    assert torch.equal(lower, lower.tril()) and bool(lower.diagonal().abs().min() > 0.01)


def test_what_is_needed() -> None:
    example = torch.tensor([0, 3, 5, 9])
    offsets = Need(0, 4, varies=True, ascending=True, first=0)
    made = draw_like(example, [6], seeded(), offsets)
    assert is_sorted(made) and made[0] == 0 and made.max() <= 4
    lengths = draw_like(torch.tensor([2, 2, 3]), [5], seeded(), Need(total=11))
    assert lengths.sum() == 11 and bool((lengths >= 0).all())
    few = draw_like(torch.arange(9), [20], seeded(), Need(0, 8))
    assert few.max() <= 8 and few.min() >= 0


def test_writes_go_to_different_places() -> None:
    index = torch.stack([torch.randperm(9)[:3] for _ in range(4)])
    made = draw_like(index, [8, 5], seeded(), Need(0, 8))
    assert bool((made.sort(-1).values.diff(dim=-1) > 0).all())


# What operators need


class Bag(nn.Module):
    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, include_last_offset=last)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.bag(ids, offsets)


n, k = gp.Dim("n", min=3), gp.Dim("k", min=1)
OFFSETS = torch.tensor([0, 3, 5, 9])
PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "topk": lambda: (
        lambda s, b: b[s.topk(3).indices],
        (torch.randn(8), torch.randn(8, 4)),
        ({0: n}, {0: n}),
    ),
    "bag": lambda: (Bag(), (torch.randint(0, 10, (12,)), OFFSETS), ({0: n}, {0: k})),
    "last offset": lambda: (
        Bag(last=True),
        (torch.randint(0, 10, (12,)), torch.tensor([0, 3, 5, 12])),
        ({0: n}, {0: gp.Dim("bags", min=2)}),
    ),
    "searchsorted": lambda: (
        lambda e, v: torch.searchsorted(e, v),
        (torch.randn(9).sort().values, torch.randn(5)),
        ({0: n}, {0: k}),
    ),
    "rows": lambda: (
        lambda t, i: t[i] + t.index_select(0, i),
        (torch.randn(8, 3), torch.tensor([7, 2, 0, 5])),
        ({0: n}, {0: k}),
    ),
    "gather": lambda: (
        lambda t, i: t.gather(1, i),
        (torch.randn(4, 8), torch.randint(0, 8, (4, 8))),
        ({1: n}, {1: n}),
    ),
    "scatter": lambda: (
        lambda t, i, v: t.scatter(0, i, v),
        (torch.randn(8), torch.tensor([7, 2, 0]), torch.randn(3)),
        ({0: n}, {0: k}, {0: k}),
    ),
    "shifted": lambda: (
        lambda t, i: F.embedding(i.unsqueeze(0) + 2, t),
        (torch.randn(8, 3), torch.arange(6)),
        ({0: n}, {0: k}),
    ),
    "labels": lambda: (
        F.cross_entropy,
        (torch.randn(6, 5), torch.tensor([0, 4, 2, -100, 1, 4])),
        ({0: k, 1: n}, {0: k}),
    ),
    "sort": lambda: (
        lambda s, b: (b[s.argsort()], s.sort().values),
        (torch.randn(8), torch.randn(8, 4)),
        ({0: n}, {0: n}),
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_right(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    target, args, shapes = PROGRAMS[name]()
    report = gp.onnx.export(target, args, dynamic_shapes=shapes).verify(limit=4)
    assert report.ok and not report.notes, report
    assert sum(t.compared for t in report.sizes_tried) > 3, report


def test_indices_follow_the_size_of_what_they_point_into() -> None:
    ep = gp.export(
        lambda t, i: t[i], (torch.randn(8), torch.tensor([7, 2])), dynamic_shapes=({0: n}, {0: k})
    )
    samples = Samples(ep, [torch.randn(8), torch.tensor([7, 2])])
    rows, places = samples.symbols
    small, large = (samples.drawn({rows: size, places: 40})[1] for size in (3, 100))
    assert small.max() <= 2 and large.max() > 20


def test_values_that_the_program_needs_as_they_are() -> None:
    def f(x: Tensor, code: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and code.shape[0] != 4 and not (code % 7 == 3).all():
            raise ValueError("no such code")
        return x * code.sum()

    codes = torch.tensor([3, 10, 31, 17])
    report = gp.onnx.export(f, (torch.randn(3), codes), dynamic_shapes=({0: n}, {0: k})).verify()
    assert report.ok and not report.sizes_refused, report
