"""Normalisation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.ops.rows import Row, check_dynamic, check_static, positive, row

TO_LAST = lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t
SOME = {"b": 1, "t": 1, "h": 2, "w": 2}

ROWS = [
    row(lambda a, w, b: F.layer_norm(a, (8,), w, b), "b t 8", "8", "8", name="layer_norm"),
    row(lambda a: F.layer_norm(a, a.shape[1:]), "b t c", name="layer_norm_symbolic"),
    row(lambda a, w: F.rms_norm(a, (8,), w), "b t 8", "8", name="rms_norm"),
    row(
        lambda a, w, b: F.group_norm(a, 2, w, b), "b 4 h w", "4", "4", least=SOME, name="group_norm"
    ),
    row(
        lambda a, m, v: F.batch_norm(a, m, v),
        "b 4 h w",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        name="batch_norm",
    ),
    row(
        lambda a, m, v: F.batch_norm(a, m, v, training=True),
        "b 4 h w",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        least=SOME,
        name="batch_norm_training",
    ),
    row(
        lambda a: F.batch_norm(a, None, None, training=True),
        "b 4 t",
        least={"b": 2, "t": 2},
        name="batch_norm_stateless",
    ),
    row(F.instance_norm, "b 4 h w", least=SOME, name="instance_norm"),
    row(lambda a: F.local_response_norm(a, 2), "b 4 h w", least=SOME, name="local_response_norm"),
    row(lambda a: F.normalize(a, p=1.0, dim=0), "b t", name="normalize"),
    row(lambda a: torch.renorm(a, 2, 0, 1.0), "b t c", name="renorm"),
    row(lambda a: F.group_norm(a, 2), "b 4 h w", view=TO_LAST, name="channels_last_group_norm"),
    row(lambda a: F.instance_norm(a), "b 4 h w", view=TO_LAST, name="channels_last_instance_norm"),
    row(
        lambda a: F.layer_norm(a, (4,)),
        "b t c",
        view=lambda t: t.transpose(0, 1),
        fixed="c",
        name="transposed_layer_norm",
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)


def test_instance_norm_is_one_node_unless_it_keeps_statistics() -> None:
    x = torch.randn(2, 3, 4)
    names = [
        [n.target for n in gp.export(model, (x,)).graph.nodes if n.op == "call_function"]
        for model in (nn.InstanceNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True))
    ]
    assert names[0] == [torch.ops.aten.instance_norm.default]
    assert len(names[1]) > 1


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_without_channels(training: bool) -> None:
    """Eager hands nothing on as it is, and refuses everything else."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, training=training)

    program = gp.export(fn, (torch.empty(0),), dynamic_shapes={"x": {0: gp.Dim.AUTO}})
    assert program.module()(torch.empty(0)).shape == (0,)
    with pytest.raises(gp.errors.ShapeError, match="needs a dimension of channels"):
        gp.export(fn, (torch.randn(5),))
