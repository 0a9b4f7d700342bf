"""Normalisation: with and without parameters, in training and not, in every float dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.onnx.helpers import check_onnx
from tests.onnx.rows import doubles, dynamic_test, halves, static_test
from tests.ops.rows import positive, row

SOME = {"b": 2, "t": 2, "h": 2, "w": 2}
aten = torch.ops.aten
MAKES = (torch.randn, halves, doubles)

ROWS = [
    *(
        row(
            lambda a, w, c: F.layer_norm(a, (8,), w, c),
            "b t 8",
            "8",
            "8",
            make=make,
            name=f"layer_norm_{make.__name__}",
        )
        for make in MAKES
    ),
    row(lambda a: F.layer_norm(a, (5, 8)), "b 5 8", name="layer_norm_two_dims"),
    row(lambda a, w: F.layer_norm(a, (5, 8), w), "b 5 8", "5 8", name="layer_norm_no_bias"),
    row(lambda a: F.layer_norm(a, a.shape[1:]), "b t c", name="layer_norm_symbolic"),
    row(
        lambda a, w, c: F.layer_norm(a, w.shape, w, c),
        "b t",
        "t",
        "t",
        name="layer_norm_symbolic_weight",
    ),
    row(
        lambda a: torch.native_layer_norm(a, (8,), None, None, 1e-5),
        "b t 8",
        name="native_layer_norm",
    ),
    *(
        row(
            lambda a, w: F.rms_norm(a, (8,), w, eps=1e-5),
            "b t 8",
            "8",
            make=make,
            name=f"rms_norm_{make.__name__}",
        )
        for make in MAKES
    ),
    *(
        row(
            lambda a: F.rms_norm(a * 1e-3, (5, 8)),
            "b 5 8",
            make=make,
            name=f"rms_norm_without_weight_or_eps_{make.__name__}",
        )
        for make in MAKES
    ),
    row(lambda a: F.rms_norm(a, a.shape[1:]), "b t c", name="rms_norm_symbolic"),
    row(lambda a, w: aten._fused_rms_norm(a, [8], w, None), "b t 8", "8", name="fused_rms_norm"),
    *(
        row(
            lambda a, w, c: F.group_norm(a, 2, w, c),
            "b 4 h w",
            "4",
            "4",
            make=make,
            least={"h": 1, "w": 1},
            name=f"group_norm_{make.__name__}",
        )
        for make in MAKES
    ),
    row(lambda a: F.group_norm(a, 4), "b 4 t", least={"t": 2}, name="group_norm_no_weight"),
    row(lambda a: F.group_norm(a, 2), "b 4", name="group_norm_rows"),
    row(
        lambda a: torch.native_group_norm(a, None, None, a.shape[0], 4, 9, 2, 1e-5),
        "b 4 3 3",
        name="native_group_norm",
    ),
    row(
        lambda a, w: torch.native_group_norm(a, w, None, 2 * a.shape[0], 2, 9, 1, 1e-5),
        "b 4 3 3",
        "2",
        name="native_group_norm_of_other_channels",
    ),
    row(
        lambda a, m, v, w, c: F.batch_norm(a, m, v, w, c),
        "b 4 h w",
        "4",
        "4",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive, torch.randn, torch.randn],
        name="batch_norm",
    ),
    row(
        lambda a, m, v: F.batch_norm(a, m, v),
        "b 4",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        name="batch_norm_rows",
    ),
    row(
        lambda a, m, v: F.batch_norm(a, m, v),
        "b 4 t",
        "4",
        "4",
        make=[halves, torch.randn, positive],
        name="batch_norm_mixed",
    ),
    row(
        lambda a: F.batch_norm(a, None, None, training=True),
        "b 4 t",
        least=SOME,
        name="batch_norm_stateless",
    ),
    row(
        lambda a, m, v: aten._native_batch_norm_legit_functional(
            a, None, None, m, v, True, 0.2, 1e-5
        ),
        "b 4 t",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        least=SOME,
        name="batch_norm_functional",
    ),
    row(
        lambda a, m, v: aten._native_batch_norm_legit_no_training(a, None, None, m, v, 0.2, 1e-5),
        "b 4 t",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        name="batch_norm_no_training",
    ),
    *(
        row(
            lambda a, w, c: F.instance_norm(a, weight=w, bias=c),
            "b 4 h w",
            "4",
            "4",
            make=make,
            least=SOME,
            name=f"instance_norm_{make.__name__}",
        )
        for make in MAKES
    ),
    row(
        lambda a, m, v: F.instance_norm(a, m, v, use_input_stats=False),
        "b 4 t",
        "4",
        "4",
        make=[torch.randn, torch.randn, positive],
        least=SOME,
        name="instance_norm_statistics",
    ),
    row(lambda a: F.local_response_norm(a, 2), "b 4 h w", least=SOME, name="local_response_norm"),
    row(lambda a: F.normalize(a, p=1.0, dim=0), "b t", name="normalize"),
    row(lambda a: torch.renorm(a, 2, 0, 1.0), "b t c", name="renorm"),
    *(
        row(lambda v, g, d=d: torch._weight_norm(v, g, d), "4 5", spec, name=f"weight_norm_{d}")
        for d, spec in ((0, "4 1"), (1, "1 5"), (-1, ""))
    ),
]

test_static = static_test(ROWS)
test_dynamic = dynamic_test(ROWS)


TRAINED: dict[str, Any] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "plain_batch": lambda: nn.BatchNorm2d(4, affine=False),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_running_statistics(kind: str) -> None:
    """The state is updated as eager updates its buffers, call after call."""
    model = TRAINED[kind]()
    x = torch.randn(3, 4, 5, 6)
    dims = {0: gp.Dim("batch", min=2), 2: gp.Dim("height", min=2)}
    program = gp.onnx.export(model, (x,), dynamic_shapes=(dims,))
    for inputs in (x, torch.randn(5, 4, 3, 6)):
        torch.testing.assert_close(program(inputs), model(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim: int | None) -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4), dim=dim)
    check_onnx(model, (torch.randn(2, 5),))


def test_rms_norm_of_an_older_opset() -> None:
    model = nn.RMSNorm(6)
    check_onnx(model, (torch.randn(2, 6),), opset=18)
    check_onnx(model.half(), (torch.randn(2, 6).half(),), opset=18)


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        (nn.LayerNorm(6), ["LayerNormalization"]),
        (nn.LayerNorm(6, elementwise_affine=False), ["LayerNormalization"]),
        (nn.RMSNorm(6, elementwise_affine=False), ["RMSNormalization"]),
        (nn.BatchNorm1d(5).eval(), ["BatchNormalization"]),
        (nn.InstanceNorm1d(5), ["InstanceNormalization"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else value[0],
)
def test_one_node(model: nn.Module, ops: list[str]) -> None:
    program = check_onnx(model, (torch.randn(2, 5, 6),))
    assert [n.op_type for n in program.model_proto.graph.node] == ops
