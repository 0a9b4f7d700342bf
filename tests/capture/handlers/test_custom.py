"""Custom operators: those that write to their arguments, and those that are made of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import MutationError, SerializationError, UnsupportedError
from tests.helpers import check, compare

NAMESPACE = "graphport_custom_test"
library = torch.library.Library(NAMESPACE, "DEF")
ops = getattr(torch.ops, NAMESPACE)


@torch.library.custom_op(f"{NAMESPACE}::inc", mutates_args={"x"})
def inc(x: torch.Tensor, k: int = 1) -> None:
    x.add_(k)


@torch.library.custom_op(f"{NAMESPACE}::several", mutates_args={"x", "zs"})
def several(
    x: torch.Tensor, y: torch.Tensor, zs: list[torch.Tensor], w: torch.Tensor | None = None
) -> torch.Tensor:
    x.add_(y)
    for z in zs:
        z.mul_(2)
    return x * y if w is None else x * w


@several.register_fake
def _(
    x: torch.Tensor, y: torch.Tensor, zs: list[torch.Tensor], w: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.empty_like(x)


library.define("pair(Tensor(a!) x, Tensor(b!)? y=None) -> (Tensor, Tensor)")
library.impl("pair", lambda x, y=None: (x.add_(1) * 2, x.sum()), "CPU")
torch.library.register_fake(f"{NAMESPACE}::pair", lambda x, y=None: (torch.empty_like(x), x.sum()))
library.define("scaled_relu(Tensor x, int k) -> Tensor")
library.impl("scaled_relu", lambda x, k: (x * k).relu() + 1, "CompositeImplicitAutograd")
PACKED = "__torch__.torch.classes.quantized.LinearPackedParamsBase"
library.define(f"packed_linear(Tensor x, {PACKED} w) -> Tensor")
library.impl("packed_linear", lambda x, w: torch.ops.quantized.linear_dynamic(x, w), "CPU")
torch.library.register_fake(
    f"{NAMESPACE}::packed_linear", lambda x, w: x.new_empty(*x.shape[:-1], 3)
)
library.define("halves(Tensor x) -> Tensor[]")
library.impl(
    "halves",
    lambda x: [x[: x.shape[0] // 2] * 1, x[x.shape[0] // 2 :] * 1],
    "CompositeImplicitAutograd",
)


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ops.inc(self.b)
        rows = x[1:]
        ops.inc(rows, k=3)
        r = ops.several(x, y, [self.b])
        first, total = ops.pair(y.clone())
        return r + self.b + first + total + ops.several(r, y, [], w=y), rows


ARGS = (torch.randn(3, 4), torch.randn(4))
SPEC = {"x": {0: Dim("n", min=1)}, "y": None}


@pytest.mark.parametrize("training", [False, True])
def test_writes_become_values(training: bool) -> None:
    model = Uses()
    ep = gp.export(model, ARGS, dynamic_shapes=SPEC, training=training)
    ep.validate()
    core = ep.run_decompositions()
    core.validate()
    again = gp.export(ep.module(), ARGS, dynamic_shapes=SPEC)
    for program in (ep, core, again):
        for n in (3, 1, 6):
            compare(program, model, ((torch.randn(n, 4), torch.randn(4)), {}))
    calls = [str(n.target) for n in core.graph.nodes if n.op == "call_function"]
    assert calls.count("auto_functionalized") == 5
    assert ("auto_functionalized" in [str(n.target) for n in ep.graph.nodes]) is not training


def test_one_memory_for_two_arguments() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ops.several(x, x[0], [])

    with pytest.raises(MutationError, match="writes to tensors that alias, 'x' and 'y'") as caught:
        gp.export(f, (torch.randn(3, 4),))
    assert caught.value.fix == ["pass a copy: y=x.clone()"]


def test_composite_operators_are_kept_and_taken_apart_on_request() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ops.scaled_relu(x, 3) + ops.halves(x)[1].sum()

    ep = check(f, (torch.randn(4),), dynamic_shapes={"x": {0: Dim("n")}}, others=[(torch.ones(7),)])
    targets = {n.target for n in ep.graph.nodes}
    assert {ops.scaled_relu.default, ops.halves.default} <= targets
    core = ep.run_decompositions(preserve_ops=(ops.halves.default,))
    targets = {n.target for n in core.graph.nodes}
    assert ops.scaled_relu.default not in targets
    assert ops.halves.default in targets
    compare(core, f, ((torch.randn(6),), {}))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_custom_objects_are_constants(tmp_path: Path) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(weight, torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.packed_linear(x, self.packed) + ops.packed_linear(x * 2, self.packed)

    model = Holds()
    ep = gp.export(model, (torch.randn(2, 4),), dynamic_shapes={"x": {0: Dim("n")}})
    ep.validate()
    assert ep.graph_signature.lifted_custom_objs == ("packed",)
    assert [n.name for n in ep.graph.nodes][:2] == ["obj_packed", "x"]
    assert ep.constants["packed"] is model.packed
    again = gp.export(ep.module(), (torch.randn(2, 4),), dynamic_shapes={"x": {0: Dim("n")}})
    for program in (ep, ep.run_decompositions(), again):
        x = torch.randn(5, 4)
        torch.testing.assert_close(program.module()(x), model(x))
    with pytest.raises(SerializationError, match=r"a torch\.ScriptObject cannot be saved"):
        gp.save(ep, tmp_path / "program.gpx")


def test_an_operator_without_a_fake_implementation_is_refused() -> None:
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", lambda x: x * 2, "CPU")
    with pytest.raises(UnsupportedError, match="no shape rule and no meta kernel") as caught:
        gp.export(lambda x: ops.unknown(x), (torch.randn(3),))
    assert "torch.library.register_fake" in caught.value.fix[0]
