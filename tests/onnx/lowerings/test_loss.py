"""Losses and distances: every reduction, ignored classes, weights, empty batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import ints, positive, row

REDUCTIONS = ("none", "mean", "sum")
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
PAIRS: dict[str, Callable[..., torch.Tensor]] = {
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "soft_margin_loss": F.soft_margin_loss,
    "poisson_nll_loss": F.poisson_nll_loss,
    "hinge_embedding_loss": F.hinge_embedding_loss,
    "kl_div": F.kl_div,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "smooth_l1_loss_beta": lambda a, b, **how: F.smooth_l1_loss(a, b, beta=0.3, **how),
    "smooth_l1_loss_zero": lambda a, b, **how: F.smooth_l1_loss(a, b, beta=0.0, **how),
    "huber_loss": lambda a, b, **how: F.huber_loss(a, b, delta=0.7, **how),
    "kl_div_log": lambda a, b, **how: F.kl_div(a, b, log_target=True, **how),
    "bce": lambda a, b, **how: F.binary_cross_entropy(a.sigmoid(), b.sigmoid(), **how),
    "margin_ranking": lambda a, b, **how: F.margin_ranking_loss(a, b, a.sign(), 0.2, **how),
    "multilabel_soft_margin": F.multilabel_soft_margin_loss,
}
SPATIAL = {"rows": ("b 5", "b"), "line": ("b 5 t", "b t"), "image": ("b 5 3 2", "b 3 2")}


def labels(size: Sequence[int]) -> torch.Tensor:
    """Classes, every other one of them ignored."""
    found = torch.randint(0, 5, tuple(size))
    found.view(-1)[::2] = -100
    return found


ROWS = [
    *(
        row(
            lambda a, b, fn=fn, how=how: fn(a, b, reduction=how),
            "b t",
            "b t",
            make=[torch.randn, positive],
            name=f"{name}_{how}",
        )
        for (name, fn), how in itertools.product(PAIRS.items(), REDUCTIONS)
    ),
    *(
        row(
            lambda a, b, fn=PAIRS[name]: fn(a, b),
            "b t",
            "b t",
            make=make,
            name=f"{name}_{make.__name__}",
        )
        for name in ("mse_loss", "smooth_l1_loss", "bce_with_logits")
        for make in (halves, doubles)
    ),
    row(
        lambda a, b, w, p: F.binary_cross_entropy_with_logits(a, b, w, pos_weight=p),
        "b 5",
        "b 5",
        "b 5",
        "5",
        make=positive,
        name="bce_with_logits_weights",
    ),
    row(
        lambda a, b, w: F.binary_cross_entropy(a.sigmoid(), b.sigmoid(), w),
        "b 5",
        "b 5",
        "5",
        make=positive,
        name="bce_weight",
    ),
    *(
        row(
            lambda a, i, how=how: F.nll_loss(a, i, reduction=how),
            *SPATIAL[kind],
            make=[torch.randn, labels],
            name=f"nll_loss_{kind}_{how}",
        )
        for kind, how in itertools.product(SPATIAL, REDUCTIONS)
    ),
    *(
        row(
            lambda a, i, w, how=how, smooth=smooth: F.cross_entropy(
                a, i, w, reduction=how, ignore_index=2, label_smoothing=smooth
            ),
            *SPATIAL[kind],
            "5",
            make=[torch.randn, ints(5), positive],
            name=f"cross_entropy_{kind}_{how}_{smooth}",
        )
        for kind, how, smooth in itertools.product(SPATIAL, REDUCTIONS, (0.0, 0.2))
    ),
    *(
        row(
            lambda a, i, how=how, smooth=smooth: F.cross_entropy(
                a, i, reduction=how, label_smoothing=smooth
            ),
            "b 5 t",
            "b t",
            make=[torch.randn, labels],
            name=f"cross_entropy_ignored_{how}_{smooth}",
        )
        for how, smooth in itertools.product(REDUCTIONS, (0.0, 0.2))
    ),
    *(
        row(
            lambda a, p, w, how=how: F.cross_entropy(
                a, p.softmax(1), w, reduction=how, label_smoothing=0.1
            ),
            "b 5 t",
            "b 5 t",
            "5",
            make=[torch.randn, torch.randn, positive],
            name=f"cross_entropy_probabilities_{how}",
        )
        for how in REDUCTIONS
    ),
    row(
        lambda a, i: F.cross_entropy(a, i),
        "5",
        "",
        make=[torch.randn, ints(5)],
        name="cross_entropy_unbatched",
    ),
    row(
        lambda a, i: F.cross_entropy(a, i),
        "b 5",
        "b",
        make=[halves, ints(5)],
        name="cross_entropy_halves",
    ),
    *(
        row(
            lambda a, i, w, how=how: F.multi_margin_loss(a, i, 2, 0.6, w, reduction=how),
            "b 5",
            "b",
            "5",
            make=[torch.randn, ints(5), positive],
            least={"b": 1},
            name=f"multi_margin_loss_{how}",
        )
        for how in REDUCTIONS
    ),
    *(
        row(
            lambda a, i, how=how: F.multi_margin_loss(a, i, reduction=how),
            "t",
            "",
            least={"t": 5},
            make=[torch.randn, ints(5)],
            name=f"multi_margin_loss_unbatched_{how}",
        )
        for how in REDUCTIONS
    ),
    # Of an empty batch torch gives memory that nobody wrote.
    *(
        row(
            lambda a, i, how=how: F.multilabel_margin_loss(a, i - 1, reduction=how),
            "b 5",
            "b 5",
            make=[torch.randn, ints(6)],
            least={"b": 1},
            name=f"multilabel_margin_loss_{how}",
        )
        for how in REDUCTIONS
    ),
    row(
        lambda a, i: F.multilabel_margin_loss(a, i - 1, reduction="none"),
        "5",
        "5",
        make=[torch.randn, ints(6)],
        name="multilabel_margin_loss_unbatched",
    ),
    row(
        lambda a, b, y: F.cosine_embedding_loss(a, b, y.sign()),
        "b t",
        "b t",
        "b",
        name="cosine_embedding_loss",
    ),
    row(
        lambda a, b, c: F.triplet_margin_loss(a, b, c, swap=True),
        "b t",
        "b t",
        "b t",
        name="triplet_margin_loss",
    ),
    *(
        row(
            lambda a, b, dim=dim: F.cosine_similarity(a, b, dim=dim),
            *specs,
            name=f"cosine_similarity_{'_'.join(specs).replace(' ', '')}",
        )
        for dim, *specs in (
            (1, "b t", "b t"),
            (1, "b t", "t"),
            (-1, "b t", "b 1"),
            (0, "b 4", "1 4"),
            (0, "b 3 4", "4"),
            (0, "", ""),
        )
    ),
    *(
        row(lambda a, b, p=p: torch.cdist(a, b, p=p), "b t 4", "b n 4", name=f"cdist_{p}")
        for p in (0.0, 1.0, 2.0, 3.0, math.inf)
    ),
    row(lambda a, b: torch.cdist(a, b), "b t 4", "n 4", name="cdist_broadcast"),
    row(lambda a, b: torch.cdist(a, b), "30 4", "7 4", name="cdist_of_many"),
    *(
        row(lambda a, p=p: F.pdist(a, p=p), "b 4", least={"b": 2}, name=f"pdist_{p}")
        for p in (1.0, 2.0, math.inf)
    ),
    row(
        lambda a, b: F.pairwise_distance(a, b, p=3.0, keepdim=True),
        "b t",
        "b t",
        name="pairwise_distance",
    ),
]

test_static = pytest.mark.slow(static_test(ROWS))
test_dynamic = dynamic_test(ROWS)


def test_operands_of_two_dtypes() -> None:
    check_onnx(lambda a, b: F.mse_loss(a, b), (torch.randn(3), torch.randn(3).double()))


def test_a_half_overflows_as_in_eager() -> None:
    x = torch.tensor([-12.0, 1.0, 3.0]).half()
    check_onnx(lambda a: F.soft_margin_loss(a, torch.ones_like(a), reduction="none"), (x,))


def forward_of_nll(how: int) -> Any:
    def both(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
        image = torch.ops.aten.nll_loss2d_forward(x[..., None, None], i[:, None, None], w, how, 2)
        return torch.ops.aten.nll_loss_forward(x, i, w, how, 2), image

    return both


@pytest.mark.parametrize("how", [0, 1, 2])
def test_forward_operators(how: int) -> None:
    check_onnx(forward_of_nll(how), (torch.randn(4, 5), torch.tensor([0, 2, 4, 1]), torch.rand(5)))


def test_cosine_similarity_of_halves_that_are_zero() -> None:
    """1e-8, below which no length counts, is 0 among halves."""
    x = torch.zeros(2, 3, dtype=torch.float16)
    program = gp.onnx.export(F.cosine_similarity, (x, x))
    assert program(x, x).isnan().all() and torch.cosine_similarity(x, x).isnan().all()


def test_a_mean_over_sizes_that_broadcasting_leaves_open() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.huber_loss(torch.arange(max(x.shape[0], 3), dtype=torch.float32), x.sin())

    x = torch.rand(3)
    program = gp.onnx.export(fn, (x,), dynamic_shapes=({0: gp.Dim.AUTO},))
    for given in (x, torch.rand(5)):
        torch.testing.assert_close(program(given), fn(given))
