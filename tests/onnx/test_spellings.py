"""What users of `torch.onnx` type: arguments of the export, and methods of the program."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, WeightsError
from graphport.onnx.spellings import NEW_WORDS, split_keywords

x = torch.randn(2, 3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, mask: Any = None) -> dict[str, torch.Tensor]:
        y = self.layer(x).relu()
        return {"y": y if mask is None else y * mask}


def load(file: Any) -> onnx.GraphProto:
    model = onnx.load(file)
    onnx.checker.check_model(model)
    return model.graph


# Arguments


def test_the_file(tmp_path: Path) -> None:
    program = gp.onnx.export(Model(), (x,), str(tmp_path / "a.onnx"), opset_version=17)
    assert program.opset == 17 and onnx.load(tmp_path / "a.onnx") == program.model_proto
    gp.onnx.export(Model(), (x,), f=tmp_path / "b.onnx", external_data=True)
    assert not load(tmp_path / "a.onnx").initializer[0].external_data
    with pytest.raises(InputError, match="given twice"):
        gp.onnx.export(Model(), (x,), "a.onnx", f="b.onnx")
    with pytest.raises(InputError, match="there is no folder"):
        gp.onnx.export(Model(), (x,), f=tmp_path / "nowhere" / "a.onnx")
    with pytest.raises(InputError, match="f is a path or a file"):
        gp.onnx.export(Model(), (x,), f=3)
    with pytest.raises(InputError, match="are one"):
        gp.onnx.export(Model(), (x,), opset=18, opset_version=17)
    for given in ({"external_data": True}, {"export_params": False}):
        with pytest.raises(InputError, match=f"{next(iter(given))} is about the file"):
            gp.onnx.export(Model(), (x,), **given)


def test_initialisers(tmp_path: Path) -> None:
    file = io.BytesIO()
    gp.onnx.export(Model(), (x,), file, keep_initializers_as_inputs=True)
    graph = onnx.load_from_string(file.getvalue()).graph
    names = ["layer.weight", "layer.bias"]
    assert [i.name for i in graph.input] == ["x", *names]
    assert [i.name for i in graph.initializer] == names
    gp.onnx.export(
        Model(), (x,), tmp_path / "a", export_params=False, keep_initializers_as_inputs=True
    )
    graph = load(tmp_path / "a")
    assert [i.name for i in graph.input] == ["x", *names] and not graph.initializer
    program = gp.onnx.export(Model(), (x,))
    program.save(tmp_path / "b", include_initializers=False)
    assert not onnx.load(tmp_path / "b").graph.initializer


def test_keywords_at_the_end() -> None:
    mask = torch.ones(2, 4)
    program = gp.onnx.export(Model(), (x, {"mask": mask}), verify=True)
    assert [i.name for i in program.interface.inputs] == ["x", "mask"]

    def two(pair: dict[str, torch.Tensor], scale: float = 2.0) -> torch.Tensor:
        return pair["a"] * scale

    pair = {"a": x}
    assert split_keywords(two, (pair,), None) == ((pair,), None)
    assert split_keywords(two, (pair, {}), None) == ((pair,), {})
    assert split_keywords(two, (pair, {"scale": 3.0}), None) == ((pair,), {"scale": 3.0})
    assert split_keywords(two, (pair, {"scale": 3.0}), {"a": 1}) == (
        (pair, {"scale": 3.0}),
        {"a": 1},
    )
    assert split_keywords(two, ({"scale": 3.0},), None) == (({"scale": 3.0},), None)
    assert split_keywords(torch.add, (x, {}), None) == ((x, {}), None)


def test_modules_that_know_their_example() -> None:
    class Own(torch.onnx.ExportableModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)["y"]

        def example_arguments(self) -> Any:
            return (x,), None

        def dynamic_shapes(self) -> Any:
            return ({0: "batch_size"},)

        def output_names(self) -> Any:
            return ("scores",)

    program = gp.onnx.export(Own(), verify=True)
    graph = program.model_proto.graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch_size"
    assert graph.output[0].name == "scores"
    assert gp.onnx.export(Own(), (x,), output_names=["other"]).interface.outputs == ["other"]


def test_an_input_observer() -> None:
    model, observer = Model(), torch.onnx.InputObserver()
    with observer(model):
        model(x)
        model(torch.randn(5, 3))
    program = gp.onnx.export(
        model,
        observer.infer_arguments(),
        dynamic_shapes=observer.infer_dynamic_shapes(),
        verify=True,
    )
    assert len(program.exported_program.range_constraints) == 1


def test_guards_and_strict() -> None:
    fn = lambda x, y: x.flatten() + y
    n, m, k = gp.dims("n", "m", "k")
    args, spec = (torch.ones(2, 3), torch.ones(6)), ({0: n, 1: m}, {0: k})
    with pytest.raises(gp.errors.ConstraintViolationError, match="guards="):
        gp.onnx.export(fn, args, dynamic_shapes=spec)
    program = gp.onnx.export(fn, args, dynamic_shapes=spec, guards="runtime_assert", strict=True)
    assert program(torch.ones(4, 5), torch.ones(20)).shape == (20,)


@pytest.mark.parametrize("word", NEW_WORDS)
def test_other_words(word: str) -> None:
    with pytest.raises(InputError, match=f"gp.onnx.export has no {word}\n  fix  ."):
        gp.onnx.export(Model(), (x,), **{word: True})


# Programs


@pytest.fixture
def program() -> gp.onnx.ONNXProgram:
    return gp.onnx.export(Model(), (x,), dynamic_shapes={"x": {0: gp.Dim.DYNAMIC}})


def test_other_weights(program: gp.onnx.ONNXProgram, tmp_path: Path) -> None:
    model = Model()
    zero = {"layer.weight": torch.zeros(4, 3), "layer.bias": torch.ones(4)}
    program.apply_weights(zero)
    assert torch.equal(program(x)["y"], torch.ones(2, 4))
    program.save(tmp_path / "a.onnx")
    (y,) = onnxruntime.InferenceSession(tmp_path / "a.onnx").run(None, {"x": x.numpy()})
    assert (y == 1).all()
    program.apply_weights({"layer.bias": torch.zeros(4)})  # the others stay
    assert torch.equal(program(x)["y"], torch.zeros(2, 4))
    with pytest.raises(WeightsError, match="of another shape"):
        program.apply_weights({"layer.weight": torch.zeros(4)})
    program.apply_weights(model.state_dict())
    torch.testing.assert_close(program(x), model(x))


def test_the_reference_evaluator(program: gp.onnx.ONNXProgram) -> None:
    torch.testing.assert_close(program.call_reference(x), Model()(x))


def test_values_within(program: gp.onnx.ONNXProgram) -> None:
    linear, given, bias = program.compute_values(["linear", "x", "layer.bias"], (x,))
    torch.testing.assert_close(linear, Model().layer(x))
    assert torch.equal(given, x) and torch.equal(bias, Model().layer.bias)
    with pytest.raises(InputError, match="no values called nothing"):
        program.compute_values(["nothing"], (x,))


def test_sessions(program: gp.onnx.ONNXProgram) -> None:
    made: list[Any] = []
    program.initialize_inference_session()
    assert "_session" in vars(program)
    program.release()
    assert "_session" not in vars(program)
    program.initialize_inference_session(
        lambda model: made.append(onnxruntime.InferenceSession(model)) or made[0]
    )
    torch.testing.assert_close(program(x), Model()(x))
    assert program.session.session is made[0]


def test_names_of_dims(program: gp.onnx.ONNXProgram) -> None:
    program.rename_axes({"s0": "batch"})
    model = program.model_proto
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.metadata_props[0].value == '{"batch": [0, null]}'
    assert program.verify(limit=1).ok
    with pytest.raises(InputError, match="no dims called s7\n  fix  one of s0"):
        program.rename_axes({"s7": "batch"})
