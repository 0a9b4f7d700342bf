"""Tensors made from sizes and numbers; random ones are the same for the same seed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, check_dynamic, check_static, ints, positive, row

ROWS = [
    *(row(lambda a, fn=fn: fn(a.shape[0], 3) + a[:, :1], "b t", least={"t": 1}, name=fn.__name__)
      for fn in (torch.zeros, torch.ones, torch.rand, torch.randn)),
    *(row(lambda a, fn=fn: fn(a), "b t", name=fn.__name__) for fn in (
        torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like,
    )),
    row(lambda a: torch.full((2, a.shape[1]), 7), "b t", name="full_int"),
    row(lambda a: torch.full(a.shape, 0.5), "b t", name="full"),
    row(lambda a: torch.full_like(a, 3), "b t", name="full_like"),
    row(lambda a: a.new_zeros(a.shape[1], 2), "b t", name="new_zeros"),
    row(lambda a: a.new_ones((3,), dtype=torch.int32), "b t", name="new_ones"),
    row(lambda a: a.new_full((a.shape[0],), 2.0), "b t", name="new_full"),
    row(lambda a: torch.arange(a.shape[0]), "b t", name="arange"),
    row(lambda a: torch.arange(1, a.shape[0] + 1, 2), "b t", name="arange_step"),
    row(lambda a: torch.arange(0.0, 1.0, 0.25) + a[0, 0], "b t", least={"b": 1, "t": 1},
        name="arange_float"),
    row(lambda a: torch.linspace(0, 1, a.shape[1]), "b t", name="linspace"),
    row(lambda a: torch.linspace(a.sum() * 0, 1, a.shape[1]), "b t", name="linspace_tensor"),
    row(lambda a: torch.logspace(0, 1, a.shape[1]), "b t", name="logspace"),
    row(lambda a: torch.logspace(0, 3, a.shape[1], base=2.0, dtype=torch.int64), "b t",
        name="logspace_integers"),
    row(lambda a: torch.logspace(a.sum() * 0, 1, steps=a.shape[1]), "b t", name="logspace_tensor"),
    row(lambda a: torch.eye(a.shape[0]), "b t", name="eye"),
    row(lambda a: torch.eye(a.shape[0], a.shape[1]), "b t", name="eye_rectangle"),
    row(lambda a: torch.randint(9, (a.shape[0], 2)), "b t", name="randint"),
    row(lambda a: torch.randint(2, 9, (a.shape[0],), dtype=torch.int32), "b t",
        name="randint_low"),
    row(lambda a: torch.randint_like(a, 9), "b t", name="randint_like"),
    row(lambda a: torch.randperm(a.shape[0]), "b t", name="randperm"),
    row(lambda a: torch.bernoulli(a.sigmoid()), "b t", name="bernoulli"),
    row(lambda a: torch.multinomial(a, 2), "b 5", make=positive, least={"b": 1},
        name="multinomial"),
    row(lambda a: torch.normal(a, 1.0), "b t", name="normal"),
    row(lambda a: torch.poisson(a), "b t", make=positive, name="poisson"),
    row(lambda a: a.clone().uniform_(0, 2), "b t", name="uniform_"),
    row(lambda a: a.clone().normal_(), "b t", name="normal_"),
    row(lambda a: a.clone().bernoulli_(), "b t", name="bernoulli_"),
    row(lambda a: a.clone().exponential_(), "b t", name="exponential_"),
    row(lambda a: a.clone().random_(9), "b t", make=ints(3), name="random_"),
    row(lambda a: F.dropout(a, 0.5, training=True), "b t", name="dropout"),
    row(lambda a: F.dropout2d(a, 0.5, training=True), "b 3 h w", least={"b": 1}, name="dropout2d"),
    row(lambda a: F.alpha_dropout(a, 0.5, training=True), "b t", name="alpha_dropout"),
    row(lambda a: F.rrelu(a, training=True), "b t", name="rrelu"),
    row(lambda a: torch.tensor([1.0, 2.0]) + a[:, :2], "b 3", name="literal"),
    row(lambda a: torch.tensor(a.shape[0]) + 1, "b t", name="size_as_tensor"),
    row(lambda a: torch.hann_window(a.shape[0]), "b t", fixed="b", name="hann_window"),
]  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
