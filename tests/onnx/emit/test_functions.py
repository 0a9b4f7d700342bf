"""Repeated submodules as ONNX functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import graphport as gp


class Block(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.factor = factor

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)) * self.factor) * table.cos()


class Stack(nn.Module):
    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(f) for f in factors)

    def forward(self, x: Tensor) -> Tensor:
        table = torch.arange(x.shape[1])[:, None].float()
        for block in self.blocks:
            x = block(x, table)
        return x * 2


def written(model: nn.Module, wanted: Any, folder: Path) -> onnx.ModelProto:
    """The file, after its results have been compared with eager at two sizes."""
    x = torch.randn(2, 3, 8)
    spec = ({0: gp.Dim("batch"), 1: gp.Dim("length")},)
    program = gp.onnx.export(model, (x,), dynamic_shapes=spec, module_functions=wanted)
    program.save(folder / "model.onnx")
    proto = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for given in (x, torch.randn(1, 5, 8)):
        (have,) = session.run(None, {"x": given.numpy()})
        np.testing.assert_allclose(have, model(given).detach().numpy(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(program(given), model(given).detach(), rtol=1e-4, atol=1e-5)
    return proto


@pytest.mark.parametrize("wanted", [Block, "Block"], ids=["class", "name"])
def test_calls_of_a_class_share_a_function(wanted: Any, tmp_path: Path) -> None:
    proto = written(Stack(1.5, 1.5, 1.5), [wanted], tmp_path)
    (function,) = proto.functions
    assert function.name == "Block"
    assert [n.op_type for n in proto.graph.node].count("Block") == 3
    assert {"first.weight.T", "first.bias", "second.weight.T", "second.bias"} <= set(function.input)
    # The table is computed from positions alone, once for all.
    assert "Cos" in [n.op_type for n in proto.graph.node]
    assert "Cos" not in [n.op_type for n in function.node]


def test_calls_that_differ_are_several_functions(tmp_path: Path) -> None:
    proto = written(Stack(1.5, 2.5, 1.5), [Block], tmp_path)
    assert [f.name for f in proto.functions] == ["Block", "Block_1"]
    kinds = [n.op_type for n in proto.graph.node if n.domain]
    assert kinds == ["Block", "Block_1", "Block"]


def test_one_module_by_its_path(tmp_path: Path) -> None:
    proto = written(Stack(1.5, 1.5), ["blocks.1"], tmp_path)
    assert [n.op_type for n in proto.graph.node if n.domain] == ["Block"]


def test_constants_of_functions_are_not_in_the_file_twice(tmp_path: Path) -> None:
    proto = written(Stack(1.5, 1.5), [Block], tmp_path)
    used = {name for n in proto.graph.node for name in n.input}
    assert {i.name for i in proto.graph.initializer} <= used


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_calls_of_one_module_share_a_function(tmp_path: Path) -> None:
    """Also where two modules are called in turns, each with what the other gave."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Inner(), Inner()

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.first(x), self.second(torch.tanh(x))
            return self.first(two) - self.second(one)

    proto = written(Outer(), [Inner], tmp_path)
    assert [f.name for f in proto.functions] == ["Inner"]
    assert [n.op_type for n in proto.graph.node].count("Inner") == 4


def test_names_of_weights_that_are_names_of_inputs_too(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("x", "mul", "block"):
                setattr(self, name, nn.Parameter(torch.rand(8)))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.mul - self.x / self.block

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Named()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x)

    (function,) = written(Outer(), [Named], tmp_path).functions
    assert set(function.input) == {"x", "block.x", "block.mul", "block"}


def test_a_module_with_a_branch_between_its_nodes_stays_as_it_is(tmp_path: Path) -> None:
    """What the branch gives comes back to the module, which it sees from within."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, positive: Tensor) -> Tensor:
            y = self.linear(x)
            return torch.cond(positive, lambda y: y * 2, lambda y: y - 1, (y,)) + y

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branching = Branching()

        def forward(self, x: Tensor) -> Tensor:
            return self.branching(x, x.sum() > 0)

    assert not written(Outer().requires_grad_(False), [Branching], tmp_path).functions


def test_what_is_not_there_is_an_error() -> None:
    program = gp.onnx.export(Stack(1.0), (torch.randn(2, 3, 8),), module_functions=["Attention"])
    with pytest.raises(gp.errors.InputError, match="has no such modules"):
        program.model_proto
    with pytest.raises(gp.errors.InputError, match="each of its items a class or a str, got \\[3]"):
        gp.onnx.export(Stack(1.0), (torch.randn(2, 3, 8),), module_functions=[3])
