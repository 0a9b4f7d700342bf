"""Losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.rows import Row, check_dynamic, check_static, complexes, ints, positive, row

SOME = {"b": 1, "t": 1}
PAIRS = {
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "soft_margin_loss": F.soft_margin_loss,
    "poisson_nll_loss": F.poisson_nll_loss,
    "hinge_embedding_loss": F.hinge_embedding_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}

ROWS = [
    *(
        row(
            lambda a, b, fn=fn, how=how: fn(a, b, reduction=how),
            "b t",
            "b t",
            least=SOME,
            make=[torch.randn, positive],
            name=f"{name}_{how}",
        )
        for name, fn in PAIRS.items()
        for how in ("none", "mean", "sum")
    ),
    *(
        row(
            lambda a, b, how=how: F.kl_div(a, b, reduction=how),
            "b t",
            "b t",
            least=SOME,
            make=[torch.randn, positive],
            name=f"kl_div_{how}",
        )
        for how in ("none", "batchmean")
    ),
    row(
        lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
        "b t",
        "b t",
        least=SOME,
        name="binary_cross_entropy",
    ),
    *(
        row(
            lambda a, i, how=how: F.cross_entropy(a, i, reduction=how),
            "b 5",
            "b",
            make=[torch.randn, ints(5)],
            least=SOME,
            name=f"cross_entropy_{how}",
        )
        for how in ("none", "mean")
    ),
    row(
        lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1, reduction="none"),
        "b 5 t",
        "b t",
        make=[torch.randn, ints(5)],
        least=SOME,
        name="cross_entropy_spatial",
    ),
    row(
        lambda a, p: F.cross_entropy(a, p.softmax(1)),
        "b 5",
        "b 5",
        least=SOME,
        name="cross_entropy_probabilities",
    ),
    row(
        lambda a, i: F.nll_loss(a.log_softmax(1), i, reduction="none"),
        "b 5",
        "b",
        make=[torch.randn, ints(5)],
        name="nll_loss",
    ),
    row(
        lambda a, i: F.multi_margin_loss(a, i),
        "b 5",
        "b",
        make=[torch.randn, ints(5)],
        least=SOME,
        name="multi_margin_loss",
    ),
    row(lambda a, b: F.cosine_similarity(a, b), "b t", "b t", name="cosine_similarity"),
    row(
        lambda a, b, y: F.cosine_embedding_loss(a, b, y.sign()),
        "b t",
        "b t",
        "b",
        least=SOME,
        name="cosine_embedding_loss",
    ),
    row(
        lambda a, b, c: F.triplet_margin_loss(a, b, c),
        "b t",
        "b t",
        "b t",
        least=SOME,
        name="triplet_margin_loss",
    ),
    row(lambda a, b: F.pairwise_distance(a, b), "b t", "b t", name="pairwise_distance"),
    row(F.l1_loss, "b t", "b t", make=complexes, least=SOME, name="complex_l1_loss"),
    row(
        lambda a, y: F.ctc_loss(a.log_softmax(-1), y + 1, (5, 5, 5), (2, 2, 2)),
        "5 3 6",
        "3 2",
        make=[torch.randn, ints(5)],
        name="ctc_loss",
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)
