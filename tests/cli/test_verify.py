"""`graphport verify`: files against models, over several sizes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import graphport as gp
from graphport.cli.inputs import draw_file_inputs
from tests.cli.helpers import Runner


@pytest.fixture
def exported(run: Runner) -> Runner:
    done = run("export", "models.py:build", "-o", "m.onnx", "--dynamic", "x:0=batch[1..64]")
    assert done.code == 0, done.err
    return run


def test_sizes_come_from_the_file(exported: Runner) -> None:
    done = exported("verify", "m.onnx", "--against", "models.py:build", "--json")
    assert done.code == 0, done.err
    tried = [sizes["batch"] for sizes in done.data["verification"]["sizes_tried"]]
    assert tried[0] == 2 and len(set(tried)) > 2
    assert all(1 <= n <= 64 for n in tried)


def test_the_table(exported: Runner) -> None:
    done = exported("verify", "m.onnx", "--against", "models.py:build")
    assert done.code == 0, done.err
    assert "m.onnx agrees with models.py:build" in done.out
    assert "batch=2" in done.out


def spoiled(path: str, weight: str = "second.bias") -> None:
    """Change one weight of a model."""
    model = onnx.load(path)
    bias = next(t for t in model.graph.initializer if t.name == weight)
    values = numpy_helper.to_array(bias).copy()
    values[1] += 0.5
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, path)


def test_a_file_that_differs(exported: Runner) -> None:
    spoiled("m.onnx")
    done = exported("verify", "m.onnx", "--against", "models.py:build", "--json")
    assert done.code == 1
    (output,) = done.data["verification"]["outputs"]
    assert not done.data["ok"] and not output["ok"]
    assert output["max_abs_error"] == pytest.approx(0.5, rel=1e-4)
    done = exported("verify", "m.onnx", "--against", "models.py:build", "--atol", "1")
    assert done.code == 0, done.err
    done = exported("verify", "m.onnx", "--against", "models.py:build")
    assert "m.onnx DIFFERS from models.py:build" in done.out


@pytest.mark.parametrize("more", [(), ("--external-data",)])
def test_where_a_file_differs(run: Runner, more: tuple[str, ...]) -> None:
    run("export", "models.py:build", "-o", "m.onnx", "--dynamic", "x:0=batch[1..64]", *more)
    spoiled("m.onnx", "first.bias")
    done = run("verify", "m.onnx", "--against", "models.py:build", "--json")
    assert done.code == 1, done.err
    found = done.data["verification"]["first_divergence"]
    assert (found["node"], found["module"]) == ("linear", "first")
    assert "self.second(torch.relu(self.first(x)))" in found["source"]


def test_where_another_file_differs_is_not_guessed(run: Runner) -> None:
    run("export", "models.py:build", "-o", "m.onnx", "--dynamic", "x:0=batch[1..64]")
    spoiled("m.onnx", "first.bias")
    model = onnx.load("m.onnx")
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "renamed"
    del model.graph.value_info[:]
    onnx.save(model, "m.onnx")
    done = run("verify", "m.onnx", "--against", "models.py:build", "--json")
    assert done.code == 1, done.err
    assert done.data["verification"]["first_divergence"] is None


def test_a_file_of_another_tool(run: Runner) -> None:
    """Other names are taken by position; sizes are as the user says, or else as the file does."""
    x = helper.make_tensor_value_info("left", 1, ["rows?", 3])
    y = helper.make_tensor_value_info("right", 1, ["rows?", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["left"], ["right"])], "g", [x], [y])
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), "relu.onnx")
    argv = ("verify", "relu.onnx", "--against", "torch.nn:ReLU", "--input", "input=f32[2,3]")
    done = run(*argv, "--dynamic", "input:0=n", "--json")
    assert done.code == 0, done.err
    assert len(done.data["verification"]["sizes_tried"]) > 1
    done = run(*argv, "--json")
    assert done.code == 0, done.err
    assert len({sizes["rows_"] for sizes in done.data["verification"]["sizes_tried"]}) > 2


def test_ties_of_a_file_of_another_tool(run: Runner) -> None:
    """Which of equal elements is the largest is left open, whoever wrote the file."""
    Path("best.py").write_text("def best(x):\n    return x.argmax(1)\n")
    for last in (0, 1):
        attributes = {"axis": 1, "keepdims": 0, "select_last_index": last}
        node = helper.make_node("ArgMax", ["left"], ["right"], **attributes)
        x = helper.make_tensor_value_info("left", 7, ["rows", 9])
        y = helper.make_tensor_value_info("right", 7, ["rows"])
        graph = helper.make_graph([node], "g", [x], [y])
        opset = helper.make_opsetid("", 18)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), "best.onnx")
        done = run("verify", "best.onnx", "--against", "best.py:best", "--input", "x=i64[4,9]")
        assert done.code == 0, (done.out, done.err)


def test_sizes_of_a_file_with_names_of_its_own(run: Runner) -> None:
    rows = gp.Dim("rows", min=2, max=9)
    x = torch.ones(3, 4)
    gp.onnx.export(torch.nn.ReLU(), (x,), dynamic_shapes=({0: rows},), input_names=["left"]).save(
        "relu.onnx"
    )
    done = run(
        "verify", "relu.onnx", "--against", "torch.nn:ReLU", "--input", "input=f32[3,4]", "--json"
    )
    assert done.code == 0, done.err
    tried = [sizes["rows"] for sizes in done.data["verification"]["sizes_tried"]]
    assert len(set(tried)) > 2 and all(2 <= n <= 9 for n in tried)


def test_fixes_are_spelled_as_options(run: Runner) -> None:
    assert run("export", "models.py:needs_two", "-o", "m.onnx", "--input", "x=f32[9]").code == 0
    done = run(
        "verify",
        "m.onnx",
        "--against",
        "models.py:needs_two",
        "--input",
        "x=f32[9]",
        "--dynamic",
        "x:0=n",
    )
    assert done.code == 1
    assert "Suggested fixes:\n  --dynamic with n[5..] in place of n" in done.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["gone.onnx", "--against", "models.py:build"], "there is no file gone.onnx"),
        (["m.onnx", "--against", "models.py:pair"], "the inputs of m.onnx are x, those of"),
        (["models.py", "--against", "models.py:build"], "models.py is not an ONNX file"),
    ],
)
def test_bad_usage(exported: Runner, argv: list[str], says: str) -> None:
    done = exported("verify", *argv)
    assert done.code == 2, done.err
    assert says in done.err


def test_against_a_saved_program(run: Runner) -> None:
    rows = gp.Dim("rows", max=9)
    ep = gp.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_shapes=({0: rows},))
    gp.save(ep, "program.gpx")
    assert run("export", "program.gpx", "-o", "p.onnx").code == 0
    done = run("verify", "p.onnx", "--against", "program.gpx", "--json")
    assert done.code == 0, done.err
    assert len(done.data["verification"]["sizes_tried"]) > 2


def test_state_that_the_model_changes(run: Runner) -> None:
    Path("counter.py").write_text(
        "import torch\n"
        "class Counter(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('count', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        self.count.add_(1)\n"
        "        return x + self.count\n"
    )
    given = ("--input", "x=f32[2]", "--dynamic", "x:0=n")
    assert run("export", "counter.py:Counter", "-o", "c.onnx", *given).code == 0
    done = run("verify", "c.onnx", "--against", "counter.py:Counter", *given, "--json")
    assert done.code == 0, done.err
    assert {o["name"] for o in done.data["verification"]["outputs"]} == {"output", "count_updated"}
    assert torch.is_grad_enabled()


UNSEEDED = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def table():
    torch.manual_seed(0)
    return nn.Embedding(5, 3)

class Both(nn.Module):
    def forward(self, x, y, scale=None):
        return (x @ y).relu() if scale is None else x @ y * scale

def pooled(x):
    return torch.nn.functional.avg_pool1d(x, 4)
"""


@pytest.fixture
def unseeded(run: Runner) -> Runner:
    Path("unseeded.py").write_text(UNSEEDED)
    return run


def test_other_weights_are_named_first(unseeded: Runner) -> None:
    given = ("--input", "input=f32[3,4]", "--dynamic", "input:0=batch[1..9]")
    assert unseeded("export", "unseeded.py:build", "-o", "m.onnx", *given).code == 0
    done = unseeded("verify", "m.onnx", "--against", "unseeded.py:build")
    assert done.code == 1, done.err
    assert "weights differ: 0.weight (max abs " in done.out
    assert "build the model with the same seed, or load the checkpoint" in done.out
    assert done.out.index("weights differ") < done.out.index("WRONG")
    done = unseeded("verify", "m.onnx", "--against", "unseeded.py:build", "--json")
    names = [w["name"] for w in done.data["verification"]["weights_differ"]]
    assert set(names) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_external_weights_are_compared(exported: Runner) -> None:
    given = ("--dynamic", "x:0=batch[1..64]", "--external-data")
    assert exported("export", "models.py:build", "-o", "e.onnx", *given).code == 0
    done = exported("verify", "e.onnx", "--against", "models.py:build", "--json")
    assert done.code == 0 and done.data["verification"]["weights_differ"] == []
    Path("other.py").write_text(Path("models.py").read_text().replace("seed(0)", "seed(1)"))
    done = exported("verify", "e.onnx", "--against", "other.py:build", "--json")
    assert done.code == 1 and len(done.data["verification"]["weights_differ"]) == 4


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("table", ["--input", "input=i64[2,6](0..4)", "--dynamic", "input:0=batch,1=length[1..9]"]),
        (
            "Both",
            [
                "--input",
                "x=f32[2,6]",
                "--input",
                "y=f32[6,3]",
                "--dynamic",
                "x:0=rows,1=inner[2..]",
                "--dynamic",
                "y:0=inner",
            ],
        ),
        ("pooled", ["--input", "x=f32[2,3,8]", "--dynamic", "x:2=4*quarter[1..7]"]),
    ],
)
def test_inputs_come_from_the_file(unseeded: Runner, name: str, given: list[str]) -> None:
    assert unseeded("export", f"unseeded.py:{name}", "-o", "m.onnx", *given).code == 0
    done = unseeded("verify", "m.onnx", "--against", f"unseeded.py:{name}", "--json")
    assert done.code == 0, done.err
    assert len(done.data["verification"]["sizes_tried"]) > 3


@pytest.mark.filterwarnings("ignore::graphport.errors.SizeWarning")
def test_inputs_of_a_file_satisfy_its_conditions(tmp_path: Path) -> None:
    def cut(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: y.shape[0]] if y.shape[0] * 2 <= x.shape[0] else x * 2

    shapes = ({0: gp.Dim("a", min=2)}, {0: gp.Dim("c", min=2)})
    program = gp.onnx.export(cut, (torch.randn(8), torch.randn(3)), dynamic_shapes=shapes)
    program.save(tmp_path / "cut.onnx")
    drawn = draw_file_inputs(tmp_path / "cut.onnx", cut)
    assert 2 * len(drawn["y"]) <= len(drawn["x"])


def test_inputs_that_the_file_cannot_tell(run: Runner) -> None:
    assert run("export", "models.py:pair", "-o", "p.onnx").code == 0
    model = Path("models.py").read_text() + "\ndef lone():\n    return Pair()\n"
    Path("lone.py").write_text(model.replace("def example_inputs", "def other_inputs"))
    done = run("verify", "p.onnx", "--against", "lone.py:lone")
    assert done.code == 2 and "there is no example input for pair" in done.err


def test_sizes_to_try(exported: Runner) -> None:
    against = ("verify", "m.onnx", "--against", "models.py:build", "--json")
    tried = lambda *more: exported(*against, *more).data["verification"]["sizes_tried"]
    assert tried("--sizes", "batch=1,7") == [{"batch": n} for n in (2, 1, 7)]
    assert tried("--no-other-sizes") == [{"batch": 2}]
    assert len(tried("--limit", "1")) == 2
    done = exported(*against, "--sizes", "batch=65")
    (refused,) = done.data["verification"]["sizes_refused"]
    assert refused["sizes"] == {"batch": 65} and refused["outcome"] == "refused"


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--sizes", "batch"], 2, "sizes that cannot be read"),
        (["--sizes", "batch=x"], 2, "sizes that cannot be read"),
        (["--sizes", "rows=3"], 1, "the program has no dim 'rows'; it has batch"),
        (["--limit", "-1"], 2, "-1 is no number of sizes"),
        (["--limit", "2", "--no-other-sizes"], 2, "--limit asks for other sizes"),
    ],
)
def test_sizes_that_are_wrong(exported: Runner, more: list[str], code: int, says: str) -> None:
    done = exported("verify", "m.onnx", "--against", "models.py:build", *more)
    assert done.code == code, done.err
    assert says in done.err


def test_sizes_of_an_export(run: Runner) -> None:
    argv = ("export", "models.py:build", "-o", "m.onnx", "--dynamic", "x:0=batch", "--json")
    done = run(*argv, "--verify", "--sizes", "batch=9")
    assert done.data["verification"]["sizes_tried"] == [{"batch": 2}, {"batch": 9}]
    done = run(*argv, "--limit", "3")
    assert done.code == 2 and "not --verify" in done.err
