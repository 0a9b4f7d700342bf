"""Capturing a program that has been captured: names, metadata and constraints stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport import Dim
from graphport.errors import ConstraintViolationError
from tests.helpers import compare


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.count.add_(1)
        k = pair["k"].item()
        torch._check(k >= 0)
        torch._check(k <= 5)
        y = torch.cond(x.sum() > 0, lambda x: self.inner(x), lambda x: x - pair["bias"], (x,))
        return {"y": self.inner(y) + self.count, "z": torch.zeros(k)}


ARGS = ((torch.randn(3, 4),), {"pair": {"k": torch.tensor(2), "bias": torch.randn(4)}})
SPEC = {"x": {0: Dim("n", min=2, max=8)}, "pair": {"k": None, "bias": None}}


def lines(ep: gp.ExportedProgram) -> list[str]:
    return str(ep).splitlines()


def graphs(ep: gp.ExportedProgram) -> list[Any]:
    return [m.graph for m in ep.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]


def test_the_same_program() -> None:
    ep = gp.export(Outer(), *ARGS, dynamic_shapes=SPEC)
    again = gp.export(ep.module(), *ARGS, dynamic_shapes=SPEC)
    again.validate()
    assert lines(again) == lines(ep)
    third = gp.export(again.module(), *ARGS, dynamic_shapes=SPEC)
    assert lines(third) == lines(ep)


def test_metadata() -> None:
    ep = gp.export(Outer(), *ARGS, dynamic_shapes=SPEC)
    again = gp.export(ep.module(), *ARGS, dynamic_shapes=SPEC)
    for one, other in zip(graphs(ep), graphs(again), strict=True):
        for old, new in zip(one.nodes, other.nodes, strict=True):
            if old.op == "call_function":
                for key in ("nn_module_stack", "stack_trace", "torch_fn"):
                    assert new.meta.get(key) == old.meta.get(key), (new.name, key)
    node = next(n for n in again.graph.nodes if n.name == "item")
    assert node.meta["from_node"] == (("item", "aten.item.default"),)


def test_constraints_hold() -> None:
    ep = gp.export(Outer(), *ARGS, dynamic_shapes=SPEC)
    wider = {**SPEC, "x": {0: Dim("n", max=20)}}
    with pytest.raises(ConstraintViolationError) as caught:
        gp.export(ep.module(), *ARGS, dynamic_shapes=wider)
    assert caught.value.fix == ["n = Dim('n', min=2, max=8)"]
    static = gp.export(ep.module(), *ARGS)
    with pytest.raises(RuntimeError, match="to be equal to 3, but got 4"):
        static.module()(torch.randn(4, 4), **ARGS[1])


def test_without_checks_other_sizes_are_free() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    ep = gp.export(f, (torch.randn(3),), dynamic_shapes={"x": {0: Dim("n", max=4)}})
    module = ep.module(check_guards=False)
    again = gp.export(module, (torch.randn(3),), dynamic_shapes={"x": {0: Dim("m", max=100)}})
    compare(again, f, ((torch.randn(50),), {}))


def test_as_a_part_of_another_module() -> None:
    class Around(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part
            self.last = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.part(x))

    shapes = {"x": {0: Dim("n")}}
    part = gp.export(Inner(), (torch.randn(3, 4),), dynamic_shapes=shapes).module()
    model = Around(part)
    ep = gp.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    linear = next(n for n in ep.graph.nodes if n.name == "linear")
    paths = [path for path, _ in linear.meta["nn_module_stack"].values()]
    assert paths[-1] == "part.layer"
    assert "p_part_layer_weight" in [n.name for n in ep.graph.nodes]
    compare(ep, model, ((torch.randn(5, 4),), {}))


@pytest.mark.parametrize("form", [lambda ep: ep, lambda ep: ep.run_decompositions()])
def test_after_decompositions(form: Callable[[Any], Any]) -> None:
    model = Outer()
    ep = form(gp.export(model, *ARGS, dynamic_shapes=SPEC))
    again = gp.export(ep.module(), *ARGS, dynamic_shapes=SPEC)
    assert lines(again) == lines(ep)
    compare(again, model, ((torch.randn(7, 4),), ARGS[1]))


def test_a_plain_traced_module_is_captured_through_its_code() -> None:
    traced = torch.fx.symbolic_trace(Inner())
    ep = gp.export(traced, (torch.randn(3, 4),), dynamic_shapes={"x": {0: Dim("n")}})
    compare(ep, traced, ((torch.randn(6, 4),), {}))
