"""Tensor subclasses that are made of other tensors, as inputs and outputs of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import graphport as gp
from graphport.errors import SerializationError, SpecError, UnsupportedError


def two(*shape: int) -> TwoTensor:
    return TwoTensor(torch.randn(*shape), torch.randn(*shape))


class Model(nn.Module):
    def forward(self, x: Any, y: torch.Tensor) -> tuple[Any, ...]:
        scaled = x.a * 2
        return scaled + x.b, x * y, {"both": TwoTensor(scaled, x.b)}, y.sum()


ROWS, COLUMNS = gp.Dim("rows"), gp.Dim("columns")
SPEC = ({0: ROWS, 1: COLUMNS}, {0: ROWS})


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, TwoTensor):
        assert found.shape == wanted.shape
        assert_same(found.a, wanted.a)
        assert_same(found.b, wanted.b)
    elif isinstance(wanted, (tuple, dict)):
        keys = wanted if isinstance(wanted, dict) else range(len(wanted))
        assert len(found) == len(wanted)
        for key in keys:
            assert_same(found[key], wanted[key])
    else:
        torch.testing.assert_close(found, wanted)


def routes(ep: Any) -> list[Callable[..., Any]]:
    again = gp.export(ep.module(), ep.example_inputs[0], dynamic_shapes=SPEC)
    return [
        ep.module(),
        ep.run_decompositions().module(),
        again.module(),
        gp.unflatten(ep),
        gp.onnx.export(ep),
    ]


def test_inputs_and_outputs() -> None:
    model = Model()
    ep = gp.export(model, (two(2, 3), torch.randn(2, 1)), dynamic_shapes=SPEC)
    assert ep.graph_signature.user_inputs == ("x_a", "x_b", "y")
    for call in routes(ep):
        for rows, columns in ((2, 3), (5, 2), (3, 7)):
            x, y = two(rows, columns), torch.randn(rows, 1)
            assert_same(call(x, y), model(x, y))
            assert_same(call(x, y=y), model(x, y))


def test_nested() -> None:
    def add(x: Any) -> Any:
        return x + 1

    def make(n: int) -> Any:
        return TwoTensor(two(n, 3), two(n, 3))

    ep = gp.export(add, (make(2),), dynamic_shapes=({0: ROWS},))
    assert len(ep.graph_signature.user_inputs) == 4
    for n in (2, 7, 1):
        x = make(n)
        assert_same(ep.module()(x), x + 1)


def test_onnx_files_have_the_parts() -> None:
    program = gp.onnx.export(
        Model(), (two(2, 3), torch.randn(2, 1)), dynamic_shapes=SPEC, verify=True
    )
    assert [i.name for i in program.model.graph.inputs] == ["x_a", "x_b", "y"]


def test_sizes_of_a_part() -> None:
    args = (two(2, 3), torch.randn(2, 1))
    spec = {"a": {1: COLUMNS}, "b": {1: COLUMNS}}
    ep = gp.export(Model(), args, dynamic_shapes=(spec, None))
    x = two(2, 5)
    assert_same(ep.module()(x, args[1]), Model()(x, args[1]))
    with pytest.raises(SpecError, match="has no 'c'"):
        gp.export(Model(), args, dynamic_shapes=({"c": {1: COLUMNS}}, None))


def test_other_arguments_are_refused() -> None:
    args = (two(2, 3), torch.randn(2, 1))
    module = gp.export(Model(), args).module()
    with pytest.raises(ValueError, match="was a TwoTensor of 2 when the program was captured"):
        module(torch.randn(2, 3), args[1])
    with pytest.raises(RuntimeError, match=r"args\[0\].a.shape\[0\]"):
        module(two(4, 3), args[1])


def test_files_and_torch_have_no_place_for_them(tmp_path: Any) -> None:
    ep = gp.export(Model(), (two(2, 3), torch.randn(2, 1)))
    with pytest.raises(SerializationError, match="tensor subclasses"):
        gp.save(ep, tmp_path / "program.gpx")
    with pytest.raises(UnsupportedError, match="tensor subclass"):
        ep.to_torch()
