"""Names, metadata, options and errors of an export; the same bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, MissingLoweringError, UnsupportedError
from graphport.onnx.lower.registry import Lowering
from graphport.onnx.target.targets import ONNX
from tests.onnx.helpers import check_onnx

ROOT = Path(__file__).resolve().parents[2]
x = torch.randn(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(hidden)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden


# Names


def test_names_follow_the_program() -> None:
    graph = gp.onnx.export(Model(), (x,)).model_proto.graph
    assert [i.name for i in graph.input] == ["hidden"]
    assert {i.name for i in graph.initializer} == {
        f"blocks.{i}.{part}.{kind}"
        for i in (0, 1)
        for part in ("up", "down")
        for kind in ("weight", "bias")
    }
    tanh = [n for n in graph.node if n.op_type == "Tanh"]
    assert [n.name for n in tanh] == ["blocks.0/tanh", "blocks.1/tanh_1"]


def test_metadata_of_nodes() -> None:
    graph = gp.onnx.export(Model(), (x,)).model_proto.graph
    tanh = next(n for n in graph.node if n.op_type == "Tanh")
    said = {p.key: p.value for p in tanh.metadata_props}
    assert said["torch"] == "aten.tanh.default" and said["module"] == "blocks.0"
    assert said["class"].endswith("Block")
    assert "in forward: return self.down(torch.tanh(self.up(hidden)))" in said["source"]
    assert said["source"].startswith("test_names.py:")


def test_chosen_names() -> None:
    program = check_onnx(
        lambda a, b: (a + b, a * b), (x, x), input_names=["left"], output_names=["sum"]
    )
    graph = program.model_proto.graph
    assert [i.name for i in graph.input] == ["left", "b"]
    assert [o.name for o in graph.output] == ["sum", "output_1"]


def test_a_chosen_name_wins_over_weights_and_values() -> None:
    program = check_onnx(Model(), (x,), input_names=["blocks.0.up.weight"], output_names=["tanh"])
    graph = program.model_proto.graph
    every = [i.name for i in (*graph.input, *graph.initializer)]
    every += [o for n in graph.node for o in n.output]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"input_names": ["a", "b", "c"]}, "input_names has 3 names, the program 2 inputs: x, y"),
        ({"input_names": ["a", "a"]}, "input_names has a more than once"),
        ({"input_names": ["a", ""]}, "input_names has '', which is no name"),
        ({"output_names": ["a", "b"]}, "output_names has 2 names, the program 1 outputs"),
        ({"output_names": ["x"]}, "x in output_names is the name of an input"),
        (
            {"input_names": ["a"], "output_names": ["a"]},
            "a in output_names is the name of an input",
        ),
    ],
)
def test_names_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        gp.onnx.export(lambda x, y: x + y, (x, x), **options)


def test_outputs_called_like_inputs_by_the_program() -> None:
    program = check_onnx(lambda x, y: {"x": x + y, "y": x, "x_out": y * 2}, (x, x + 1))
    outputs = [o.name for o in program.model_proto.graph.output]
    assert outputs[:2] == ["x_out", "y_out"] and len(set(outputs)) == 3


# The same bytes

_EXPORT = """
import sys, torch, graphport as gp
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
spec = ({0: gp.Dim("batch"), 1: gp.Dim("length")},)
program = gp.onnx.export(model, (torch.ones(2, 3, 4),), dynamic_shapes=spec)
program.save(sys.argv[1])
"""


def test_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.onnx"
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run([sys.executable, "-c", _EXPORT, str(path)], check=True, env=env)
        found.append(path.read_bytes())
    assert found[0] == found[1]


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    model = Model()
    for name in ("a", "b"):
        gp.onnx.export(model, (x,), dynamic_shapes=({0: gp.Dim("n")},)).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Options


@pytest.mark.parametrize("opset", range(11, 27))
def test_opsets(opset: int) -> None:
    program = check_onnx(Model(), (x,), opset=opset)
    assert program.model_proto.opset_import[0].version == opset


def test_the_default_opset() -> None:
    assert gp.onnx.export(Model(), (x,)).opset == ONNX.default_opset() == 24


@pytest.mark.parametrize("opset", [10, 27, 0, "23", True])
def test_opsets_that_are_refused(opset: Any) -> None:
    with pytest.raises(InputError, match=r"opset=.* is not supported\n  fix  one from 11 to 26"):
        gp.onnx.export(Model(), (x,), opset=opset)


def test_options_as_dataclass_and_mapping() -> None:
    options = gp.onnx.ExportOptions(opset=20, target="ort")
    assert gp.onnx.ExportOptions.of({"opset": 20, "target": "ort"}) == options
    assert gp.onnx.ExportOptions.of(options) is options
    assert gp.onnx.ExportOptions.of(None) == gp.onnx.ExportOptions()
    with pytest.raises(InputError, match="ExportOptions has no opsett"):
        gp.onnx.ExportOptions.of({"opsett": 20})
    with pytest.raises(InputError, match="target='trt' is not known\n  fix  one of onnx, ort"):
        gp.onnx.export(Model(), (x,), target="trt")
    with pytest.raises(TypeError, match="opsett"):
        gp.onnx.export(Model(), (x,), opsett=20)


# Lowerings


@torch.library.custom_op("onnx_names::scale", mutates_args=())
def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


@scale.register_fake
def _(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_lowerings_of_one_call() -> None:
    def lowering(b: Any, x: Any, by: float) -> Any:
        return b.Mul(x, by)

    f = lambda x: scale(x, 3.0) + 1
    for key in (
        "onnx_names::scale",
        torch.ops.onnx_names.scale,
        torch.ops.onnx_names.scale.default,
    ):
        check_onnx(f, (x,), custom_lowerings={key: lowering})
    with pytest.raises(MissingLoweringError):
        gp.onnx.export(f, (x,))


def test_a_custom_lowering_replaces_ours() -> None:
    program = gp.onnx.export(
        lambda x: torch.tanh(x), (x,), custom_lowerings={"aten::tanh": lambda b, self: b.Sin(self)}
    )
    torch.testing.assert_close(program(x), x.sin())
    assert not program.verify().ok


def test_lowering_for_good() -> None:
    @torch.library.custom_op("onnx_names::negate", mutates_args=())
    def negate(x: torch.Tensor) -> torch.Tensor:
        return -x

    negate.register_fake(torch.empty_like)

    @gp.onnx.lowering("onnx_names::negate")
    def lowering(b: Any, x: Any) -> Any:
        return b.Neg(x)

    check_onnx(lambda x: negate(x) + 1, (x,), dynamic_shapes=({0: gp.Dim("n")},))
    assert gp.onnx.supported_ops()["onnx_names::negate.default"] is lowering
    with pytest.raises(ValueError, match="has a lowering already"):
        gp.onnx.lowering("onnx_names::negate")(lowering)
    with pytest.raises(TypeError, match=r"takes y, .*\n.*\n  fix  def lower\(b, x, by\)"):
        gp.onnx.lowering("onnx_names::scale")(lambda b, y: y)


def test_lowering_of_an_operator_itself() -> None:
    op = torch.ops.aten.relu
    for key in (op, op.default, "aten::relu", "aten.relu.default"):
        check_onnx(torch.relu, (x,), custom_lowerings={key: lambda b, self: b.Max(self, 0.0)})


@pytest.mark.parametrize(
    ("lowering", "text"),
    [
        (lambda b, self: None, "returned NoneType\n  at .*\n  fix  return what a method"),
        (lambda b, self: 3.0, "returned float"),
        (lambda b, self: [b.Relu(self)], "returned 1 values"),
        (3, "custom_lowerings is a dict from anything to a function"),
    ],
)
def test_lowerings_that_give_nothing(lowering: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        gp.onnx.export(lambda x: x.relu(), (x,), custom_lowerings={"aten::relu": lowering})
    with pytest.raises(InputError, match=r"returned 2 values\n  at .*\n  fix  return a tuple of 3"):
        gp.onnx.export(
            lambda x: x.unbind(0)[0],
            (torch.ones(3, 2),),
            custom_lowerings={"aten::unbind.int": lambda b, self, dim: (self, self)},
        )


def test_lowering_of_what_is_no_operator() -> None:
    with pytest.raises(InputError, match="there is no operator onnx_names::nothing"):
        gp.onnx.lowering("onnx_names::nothing")
    with pytest.raises(InputError, match=r"there is no operator aten::add\.Nothing"):
        gp.onnx.lowering("aten::add.Nothing")


def test_arguments_that_a_lowering_does_not_take() -> None:
    with pytest.raises(
        UnsupportedError, match=r"with by=3\.0 has no ONNX lowering\n  at   test_names"
    ):
        gp.onnx.export(
            lambda x: scale(x, 3.0), (x,), custom_lowerings={"onnx_names::scale": lambda b, x: x}
        )


def test_arguments_that_a_lowering_ignores() -> None:
    lowering = Lowering(torch.ops.onnx_names.scale.default, lambda b, x: x, ignores="by")
    assert lowering.bind((1, 3.0), {}) == lowering.bind((1,), {"by": 2.0}) == {"x": 1}
    with pytest.raises(InputError, match="takes amount, which is no argument of it"):
        Lowering(torch.ops.onnx_names.scale.default, lambda b, x: x, ignores="by amount")


def test_supported_ops() -> None:
    supported = gp.onnx.supported_ops()
    assert "aten::add.Tensor" in supported and "aten::linear.default" in supported
    assert all(map(callable, supported.values()))


def test_missing_lowerings_all_at_once() -> None:
    @torch.library.custom_op("onnx_names::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    unknown.register_fake(torch.empty_like)

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = scale(x)
            x = unknown(x) + 1
            return scale(x)

    with pytest.raises(MissingLoweringError) as caught:
        gp.onnx.export(Net(), (x,), opset=23)
    line = Net.forward.__code__.co_firstlineno
    assert str(caught.value).splitlines() == [
        "GP201 no ONNX lowering for onnx_names.scale.default, onnx_names.unknown.default "
        "at opset 23",
        f"  at   onnx_names.scale.default at test_names.py:{line + 1} in forward: x = scale(x) "
        "and 1 more",
        f"  at   onnx_names.unknown.default at test_names.py:{line + 2} in forward: "
        "x = unknown(x) + 1",
        '  fix  register one: @gp.onnx.lowering("onnx_names::scale.default")',
    ]
    assert caught.value.operators == ["onnx_names.scale.default", "onnx_names.unknown.default"]


def test_the_model_is_valid_and_loads() -> None:
    program = gp.onnx.export(Model(), (x,))
    onnx.checker.check_model(program.model_proto, full_check=True)
    ir = program.model
    assert ir.graph.inputs[0].name == "hidden" and len(ir.graph.initializers) == 8
