"""Inputs and outputs: the user's structures, symbolic numbers, state, constants, chosen dims."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, SpecError
from tests.onnx.helpers import check_onnx

batch = gp.Dim("batch")


def names(program: gp.onnx.ONNXProgram) -> tuple[list[str], list[str]]:
    graph = program.model_proto.graph
    return [i.name for i in graph.input], [o.name for o in graph.output]


def dims(program: gp.onnx.ONNXProgram) -> dict[str, list[Any]]:
    return {
        i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
        for i in program.model_proto.graph.input
    }


# Structures


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None = None


gp.register_dataclass(Pair, serialized_type_name="tests.onnx.Pair")
Point = namedtuple("Point", ["x", "y"])


def test_nested_inputs() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        y, (z, w) = b
        return a["u"] + y + z + w + c[0][0] * c[1][1]

    t = lambda: torch.randn(3)
    inputs = ({"u": t(), "v": t()}, (t(), (t(), t())), [[t(), t()], [t(), t(), t()]])
    program = check_onnx(f, inputs)
    assert names(program)[0] == [
        "a_u",
        "a_v",
        "b_0",
        "b_1_0",
        "b_1_1",
        "c_0_0",
        "c_0_1",
        "c_1_0",
        "c_1_1",
        "c_1_2",
    ]


def test_nested_outputs() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        x, y = x + y, y + z
        z = x + y
        return (x, (y, z)), [[x, y], [y, z]], {"z": z, "x": x}

    program = check_onnx(f, tuple(torch.randn(3) for _ in range(3)))
    assert names(program)[1] == [
        "output_0",
        "output_1",
        "output_2",
        "output_3",
        "output_4",
        "output_5",
        "output_6",
        "2_z",
        "2_x",
    ]


def test_dataclass_in_and_out() -> None:
    program = check_onnx(
        lambda p: Pair(p.left + 1, p.left * 2),
        (Pair(torch.randn(2, 3)),),
        dynamic_shapes=({"left": {0: batch}},),
        others=[(Pair(torch.randn(5, 3)),)],
    )
    assert names(program) == (["p_left"], ["left", "right"])


def test_named_tuple_and_dict_give_names() -> None:
    program = check_onnx(lambda x: Point(x + 1, {"deep": x * 2}), (torch.randn(2),))
    assert names(program)[1] == ["x_out", "y_deep"]


def test_model_output() -> None:
    from transformers import modeling_outputs as outputs

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    program = gp.onnx.export(Model(), (torch.ones(2, 3),))
    assert names(program)[1] == ["last_hidden_state", "hidden_states_0", "hidden_states_1"]
    out = program(torch.ones(2, 3))
    assert isinstance(out, outputs.BaseModelOutput)
    assert out.hidden_states[1].tolist() == [[2.0] * 3] * 2


def test_none_among_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor | None, z: torch.Tensor) -> torch.Tensor:
        return x + z if y is None else x + y + z

    program = check_onnx(f, (torch.randn(1, 2), None, torch.randn(1, 2)))
    assert names(program)[0] == ["x", "z"]


def test_constant_and_none_outputs() -> None:
    program = check_onnx(lambda x: (x + 1, None, 3, "text", [x.shape[1]]), (torch.randn(2, 5),))
    assert names(program)[1] == ["output_0"]
    assert program.adapt_torch_outputs_to_onnx((torch.ones(1), None, 3, "text", [5]))[0] == 1


def test_a_constant_tensor_as_output() -> None:
    check_onnx(lambda x: (torch.arange(3), x + 1), (torch.randn(2),))


def test_a_parameter_as_output() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> Any:
            return self.w, x + self.w

    program = check_onnx(Model(), (torch.randn(3),))
    assert program.model_proto.graph.initializer[0].name == "w"


def test_pass_through_and_repeated_outputs() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        return x, y, y, x, y

    program = check_onnx(f, (torch.randn(2),))
    inputs, outputs = names(program)
    assert len({*inputs, *outputs}) == 6


def test_identity_model() -> None:
    x = torch.randn(2)
    program = check_onnx(nn.Identity(), (x,))
    out = program(x)
    out.add_(1)
    assert not torch.equal(out, x)


def test_an_input_that_is_not_used() -> None:
    program = check_onnx(lambda x, y: x + 1, (torch.randn(2), torch.randn(3)))
    assert names(program)[0] == ["x", "y"]


def test_no_inputs() -> None:
    program = gp.onnx.export(lambda: torch.ones(3) * 2)
    assert program().tolist() == [2.0, 2.0, 2.0]


# Numbers


def test_symbolic_int_input_and_output() -> None:
    program = gp.onnx.export(
        lambda x, n: (x + n, n * 2, x.shape[0] + n),
        (torch.randn(3), 4),
        dynamic_shapes={"x": {0: batch}, "n": gp.Dim.DYNAMIC},
    )
    for size, n in ((3, 4), (5, 7), (0, 1)):
        x = torch.randn(size)
        out, twice, total = program(x, n)
        torch.testing.assert_close(out, x + n)
        assert (twice, total) == (2 * n, size + n) and type(twice) is int
    assert program.verify().ok


def test_float_input() -> None:
    program = gp.onnx.export(
        lambda x, a: (x * a, a), (torch.randn(3), 0.5), dynamic_shapes=(None, gp.Dim.DYNAMIC)
    )
    out, a = program(torch.ones(3), 0.1)
    torch.testing.assert_close(out, torch.full((3,), 0.1))
    assert a == 0.1 and program.verify().ok


def test_other_constants_are_refused() -> None:
    program = gp.onnx.export(lambda x, k: x + k, (torch.ones(2), 8.0))
    assert names(program)[0] == ["x"]
    assert program(torch.ones(2), 8.0).tolist() == [9.0, 9.0]
    assert program(torch.ones(2), k=8.0).tolist() == [9.0, 9.0]
    with pytest.raises(RuntimeError, match=r"9\.0"):
        program(torch.ones(2), 9.0)
    with pytest.raises(RuntimeError, match=r"9\.0"):
        program.adapt_torch_inputs_to_onnx(torch.ones(2), k=9.0)


def test_sizes_out_of_range_are_refused() -> None:
    program = gp.onnx.export(
        lambda x: x + 1, (torch.ones(3, 2),), dynamic_shapes=({0: gp.Dim("n", min=2, max=4)},)
    )
    with pytest.raises(RuntimeError, match=r"shape\[0\] to be <= 4, but got 5"):
        program(torch.ones(5, 2))
    with pytest.raises(RuntimeError, match="dtype"):
        program(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="Trying to flatten user inputs"):
        program(torch.ones(3, 2), torch.ones(1))


# Dims


def test_dims_by_parameter_and_by_input_name() -> None:
    f = lambda x, y: x @ y
    inputs = (torch.randn(3, 4), torch.randn(4, 5))
    for spec in (
        {"x": {0: batch}, "y": {1: gp.Dim("out")}},
        {"left": {0: batch}, "right": {1: gp.Dim("out")}},
        {"left": {0: batch}, "y": {1: gp.Dim("out")}},
        ({0: batch}, {1: gp.Dim("out")}),
    ):
        program = check_onnx(
            f,
            inputs,
            dynamic_shapes=spec,
            input_names=["left", "right"],
            others=[(torch.randn(7, 4), torch.randn(4, 1))],
        )
        assert dims(program) == {"left": ["batch", 4], "right": [4, "out"]}


def test_dims_by_input_name_within_structures() -> None:
    program = gp.onnx.export(
        lambda xs, y: xs[0] + xs[1] + y,
        ([torch.ones(3), torch.ones(3)], torch.ones(3)),
        input_names=["a", "b", "c"],
        dynamic_shapes={"a": {0: batch}, "b": {0: batch}, "c": {0: batch}},
    )
    assert dims(program) == {"a": ["batch"], "b": ["batch"], "c": ["batch"]}
    assert program([torch.ones(5)] * 2, torch.ones(5)).tolist() == [3.0] * 5


def test_unknown_names_in_dims() -> None:
    with pytest.raises(InputError, match="dynamic_shapes names z, which are no inputs"):
        gp.onnx.export(
            lambda x, y: x + y,
            (torch.ones(2), torch.ones(2)),
            input_names=["a", "b"],
            dynamic_shapes={"a": {0: batch}, "z": {0: batch}},
        )


def test_dynamic_axes() -> None:
    f = lambda x, y: (x + 1, y * 2)
    program = gp.onnx.export(
        f,
        (torch.ones(2, 3), torch.ones(2, 4)),
        input_names=["a", "b"],
        output_names=["p", "q"],
        dynamic_axes={"a": {0: "batch size"}, "b": {0: "batch size", 1: "4th"}, "p": {0: "batch"}},
    )
    assert dims(program) == {"a": ["batch_size", 3], "b": ["batch_size_1", "dim_4th"]}
    assert program(torch.ones(5, 3), torch.ones(6, 1))[1].shape == (6, 1)
    swapped = gp.onnx.export(
        lambda x, y: (x + 1, y + 1),
        (torch.ones(2), torch.ones(3)),
        input_names=["y", "x"],
        dynamic_axes={"x": {0: "n"}},
    )
    assert dims(swapped) == {"y": [2], "x": ["n"]}
    listed = gp.onnx.export(lambda x: x + 1, (torch.ones(2, 3),), dynamic_axes={"x": [0, 1]})
    assert dims(listed) == {"x": ["x_dim_0", "x_dim_1"]}
    assert dims(
        gp.onnx.export(lambda x: x, (torch.ones(2),), dynamic_axes={"x": [0], "output": [0]})
    ) == {"x": ["x_dim_0"]}


def test_labels_of_dims() -> None:
    """Strings in `dynamic_shapes`: axes of one label may be unequal, unless the program says so."""
    labels = {"x": {0: "batch", 1: "seq"}, "y": ("batch", "seq")}
    args = torch.ones(2, 3), torch.ones(2, 3)
    added = gp.onnx.export(lambda x, y: x + y, args, dynamic_shapes=labels)
    assert dims(added) == {"x": ["batch", "seq"], "y": ["batch", "seq"]}
    apart = gp.onnx.export(
        lambda x, y: (x + 1, y + 1), (torch.ones(2, 3), torch.ones(4, 3)), dynamic_shapes=labels
    )
    assert dims(apart) == {"x": ["batch", "seq"], "y": ["batch_1", "seq_1"]}
    assert apart(torch.ones(5, 1), torch.ones(0, 2))[1].shape == (0, 2)
    with pytest.raises(gp.errors.ConstraintViolationError, match="specialized it to be a constant"):
        gp.onnx.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_axes={"input": [1]})


def test_dynamic_axes_refuses() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(InputError, match="dynamic_axes names z, which are no inputs"):
        gp.onnx.export(lambda x: x + 1, (x,), dynamic_axes={"z": [0]})
    with pytest.raises(InputError, match="both were given"):
        gp.onnx.export(lambda x: x + 1, (x,), dynamic_axes={"x": [0]}, dynamic_shapes={"x": None})
    with pytest.raises(SpecError, match=r"dynamic_axes\['x'\] is 3"):
        gp.onnx.export(lambda x: x + 1, (x,), dynamic_axes={"x": 3})


# State


class Counter(nn.Module):
    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("n", torch.ones((), dtype=torch.int64), persistent=persistent)

    def forward(self, x: torch.Tensor) -> Any:
        before = x * self.n
        self.n += 1
        return before, x + self.n


@pytest.mark.parametrize("persistent", [True, False])
def test_mutated_buffers(persistent: bool) -> None:
    model, x = Counter(persistent), torch.randn(3)
    program = gp.onnx.export(model, (x,), dynamic_shapes=({0: batch},))
    assert names(program) == (["x", "n"], ["output_0", "output_1", "n_updated"])
    assert [i.name for i in program.model_proto.graph.initializer if i.name == "n"] == ["n"]
    for size in (3, 5, 1):
        x = torch.randn(size)
        have, want = program(x), model(x)
        torch.testing.assert_close(have, want)
    assert model.n == 4
    program.reset()
    torch.testing.assert_close(program(torch.ones(2)), (torch.ones(2), torch.full((2,), 3.0)))
    assert len(program.adapt_torch_inputs_to_onnx(x)) == 1
    assert len(program.adapt_torch_outputs_to_onnx(model(x))) == 2


def test_any_runtime_can_carry_the_state(tmp_path: Any) -> None:
    import onnxruntime

    program = gp.onnx.export(Counter(), (torch.ones(2),))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    x = torch.ones(2).numpy()
    *_, n = session.run(None, {"x": x})
    assert n == 2
    before, _, n = session.run(None, {"x": x, "n": n})
    assert n == 3 and before.tolist() == [2.0, 2.0]


def test_a_buffer_called_like_an_input() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.zeros(2))
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
            self.x += x
            return {"x_updated": self.x * w, "w": self.w + w}

    model = Model()
    program = gp.onnx.export(model, (torch.ones(2), torch.ones(2)))
    onnx.checker.check_model(program.model_proto, full_check=True)
    inputs, outputs = names(program)
    assert inputs[:2] == ["x", "w"] and len({*inputs, *outputs}) == len(inputs) + len(outputs)
    for _ in range(3):
        given = (torch.randn(2), torch.randn(2))
        torch.testing.assert_close(program(*given), model(*given))


def test_mutated_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.view(-1).add_(y.view(-1))
        return x * 2

    inputs = (torch.randn(2, 3), torch.randn(2, 3))
    program = check_onnx(f, inputs)
    assert names(program)[1] == ["output", "x_updated"]
    renamed = check_onnx(f, inputs, input_names=["a", "b"], output_names=["c"])
    assert names(renamed) == (["a", "b"], ["c", "a_updated"])


def test_a_mutated_input_that_is_returned_is_the_callers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.view(3, 2, -1).add_(2.0)
        return x

    program = check_onnx(f, (torch.randn(12),))
    x = torch.zeros(12)
    assert program(x) is x and x.tolist() == [2.0] * 12
    assert program.adapt_torch_outputs_to_onnx(x) == []


def test_batch_norm_in_training_mode() -> None:
    model = nn.BatchNorm1d(3).train()
    program = gp.onnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: gp.Dim("n", min=2)},))
    assert names(program)[1] == [
        "output",
        "running_mean_updated",
        "running_var_updated",
        "num_batches_tracked_updated",
    ]
    report = program.verify()
    assert report.ok, report


# What a program may be


def test_programs_of_torch_export() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.linear(x).relu() + self.count

    model, x = Model(), torch.randn(2, 4)
    spec = {"x": {0: torch.export.Dim("rows", min=1, max=32)}}
    theirs = torch.export.export(model, (x,), dynamic_shapes=spec)
    for given in (theirs, gp.export(model, (x,), dynamic_shapes={"x": {0: gp.Dim("rows")}})):
        program = gp.onnx.export(given, (x,), output_names=["y"])
        assert names(program)[1] == ["y", "count_updated"]
        assert dims(program)["x"] == ["rows", 4]
        assert program.verify().ok
        assert program(torch.randn(5, 4)).shape == (5, 3)


def test_programs_in_training_form() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.LayerNorm(3))
    x = torch.randn(2, 4)
    program = gp.onnx.export(gp.export(model, (x,), training=True))
    torch.testing.assert_close(program(x), model(x).detach())
    kinds = {n.op_type for n in program.model_proto.graph.node}
    assert {"Gemm", "LayerNormalization"} <= kinds


def test_sizes_of_a_program_are_decided() -> None:
    ep = gp.export(lambda x: x + 1, (torch.ones(2),))
    with pytest.raises(InputError, match="decided when it is captured"):
        gp.onnx.export(ep, dynamic_shapes=({0: batch},))


def test_arguments_that_are_no_tuple() -> None:
    x = torch.ones(2)
    ep = gp.export(torch.nn.ReLU(), (x,))
    with pytest.raises(InputError, match=r"got Tensor\n  fix  \(x,\)"):
        gp.onnx.export(ep, x)
    program = gp.onnx.export(ep)
    with pytest.raises(InputError, match=r"got Tensor\n  fix  \(x,\)"):
        program.verify(x)
    with pytest.raises(InputError, match="the result has 2 leaves, that of the program 1"):
        program.adapt_torch_outputs_to_onnx((x, x))


def test_plain_callables() -> None:
    check_onnx(torch.sigmoid, (torch.randn(2),))
    check_onnx(nn.Linear(2, 3).forward, (torch.randn(1, 2),))
