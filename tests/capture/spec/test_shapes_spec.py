"""torch's own ShapesSpec, where this torch has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphport as gp

NAME = "torch.fx.experimental.dynamic_spec"
T = pytest.importorskip(NAME, reason="torch has ShapesSpec from 2.13 on")


def ranges(program: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in program.range_constraints.items()}


def test_names_ranges_and_derived_dims() -> None:
    batch = T.ShapeVar("batch", min=2, max=128)
    spec = T.ParamsSpec({"x": T.TensorSpec([batch, 3]), "y": T.TensorSpec([batch * 2 + 1, None])})

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.sum(0)

    args = (torch.randn(8, 3), torch.randn(17, 3))
    for given in (spec, T.ShapesSpec(spec), T.ShapesSpec(spec._named_args)):
        program = gp.export(f, args, dynamic_shapes=given)
        assert ranges(program) == {"batch": "[2, 128]", "2*batch + 1": "[5, 257]"}
        others = (torch.randn(3, 3), torch.randn(7, 3))
        torch.testing.assert_close(program.module()(*others), f(*others))
        with pytest.raises(RuntimeError):
            program.module()(torch.randn(3, 3), torch.randn(8, 3))


def test_variables_of_one_name_are_several() -> None:
    def f(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.sum() + args[0]["a"].sum() + args[1] + kwargs["k"][1].sum()

    spec = T.ParamsSpec(
        {
            "x": T.TensorSpec([T.ShapeVar("a")]),
            "*args": [T.DictSpec({"a": T.TensorSpec([T.ShapeVar("a")])}), T.IntVar("n", min=1)],
            "**kwargs": {"k": T.SeqSpec([None, T.TensorSpec([T.ShapeVar()])])},
        }
    )
    inputs = (torch.randn(2), {"a": torch.randn(3)}, 4), {"k": [torch.randn(1), torch.randn(5)]}
    program = gp.export(f, *inputs, dynamic_shapes=spec)
    assert len(program.range_constraints) == 4
    others = (torch.randn(7), {"a": torch.randn(1)}, 9), {"k": [torch.randn(1), torch.randn(2)]}
    torch.testing.assert_close(
        program.module()(*others[0], **others[1]), f(*others[0], **others[1])
    )


@pytest.mark.skipif(not hasattr(T, "dynamic_spec"), reason="torch has @dynamic_spec from 2.14 on")
def test_a_spec_that_is_attached() -> None:
    spec = T.ParamsSpec({"x": T.TensorSpec([T.ShapeVar("rows"), None])})

    class Model(torch.nn.Module):
        @T.dynamic_spec(spec)
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    for model in (Model(), T.dynamic_spec(spec)(lambda x: x * 2)):
        assert ranges(gp.export(model, (torch.randn(3, 2),))) == {"rows": "[0, oo]"}
        with pytest.raises(gp.errors.SpecError, match="@dynamic_spec, and dynamic_shapes"):
            gp.export(model, (torch.randn(3, 2),), dynamic_shapes=({0: gp.Dim("n")},))


@pytest.mark.parametrize("name", ["square", "assumption", "unknown"])
def test_what_cannot_be_read(name: str) -> None:
    n = T.ShapeVar("n")
    spec = {
        "square": T.ShapesSpec({"x": T.TensorSpec([n * n, None])}),
        "assumption": T.ShapesSpec({"x": T.TensorSpec([n, None])}, assumptions=[n % 2 == 0]),
        "unknown": T.ParamsSpec({"z": T.TensorSpec([n])}),
    }[name]
    with pytest.raises(gp.errors.SpecError, match="dynamic_shapes"):
        gp.export(lambda x: x * 2, (torch.randn(4, 2),), dynamic_shapes=spec)
