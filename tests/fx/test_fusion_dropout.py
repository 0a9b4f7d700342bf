from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import symbolic_trace

import graphport as gp
from graphport import errors
from graphport.fx import remove_dropout

_KINDS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_modules_of_every_kind(kind: type[nn.Module], training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), kind(0.5), nn.Sequential(kind(0.9), nn.ReLU()))
    model.train(training)
    x = torch.randn(2, 3, 4)
    for given in (model, symbolic_trace(model)):
        result = remove_dropout(given)
        assert not any(isinstance(m, kind) for m in result.modules())
        torch.testing.assert_close(result(x), model[0](x).relu())
        assert result.get_submodule("0") is model[0]
    assert any(isinstance(m, kind) for m in model.modules())


def test_functions() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            x = F.dropout(x, 0.5, training=True) + torch.dropout(x, 0.5, True)
            return F.feature_alpha_dropout(input=x, p=0.3, training=True) * F.dropout2d(x)

    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(remove_dropout(Model())(x), (2 * x) ** 2)


@pytest.mark.filterwarnings("ignore:dropout1d")
@pytest.mark.parametrize("kind", [k for k in _KINDS if k is not nn.Dropout1d])
def test_programs_captured_for_training(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), kind(0.5), nn.ReLU(), kind(0.3)).train()
    x = torch.randn(3, 2, 4, 4)
    ep = gp.export(model, (x,), dynamic_shapes=({0: gp.Dim("b")},))
    result = remove_dropout(ep)
    y = torch.randn(5, 2, 4, 4)
    torch.testing.assert_close(result(y), model[0](y).relu())
    with pytest.raises(Exception, match="to be equal to"):
        result(torch.randn(5, 3, 4, 4))
    assert list(result.state_dict()) == ["0.weight", "0.bias"]


def test_metadata_are_kept_and_masks_that_are_used() -> None:
    gm = symbolic_trace(nn.Sequential(nn.Dropout(), nn.ReLU()))
    for node in gm.graph.nodes:
        node.meta["mark"] = node.op
    assert all(n.meta["mark"] == n.op for n in remove_dropout(gm).graph.nodes)

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.native_dropout(x, 0.5, True)

    kept = remove_dropout(gp.export(Model(), (torch.ones(8),)))
    out, mask = kept(torch.ones(8))
    torch.testing.assert_close(out, mask * 2.0)


def test_wrong_inputs() -> None:
    with pytest.raises(errors.InputError, match="not int"):
        remove_dropout(3)

    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(errors.GraphError, match=r"cannot be traced by torch\.fx") as caught:
        remove_dropout(Branch())
    assert "remove_dropout(gp.export(model, args))" in str(caught.value)
