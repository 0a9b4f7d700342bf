"""`graphport export`: models, inputs and sizes as the command line names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import save_file

import graphport as gp
from tests.cli.helpers import Runner


def shapes(path: str) -> dict[str, list[str | int]]:
    """The sizes of the inputs of a model."""
    model = onnx.load(path)
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
    }


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("models.py:build", 2),
        ("models:build", 2),
        ("models.py:Mlp", 5),
        ("models.py:bare", 5),
        ("models.py:instance", 5),
        ("models:complete", "rows"),
    ],
)
def test_models_by_name(run: Runner, name: str, rows: int | str) -> None:
    done = run("export", name, "-o", "m.onnx")
    assert done.code == 0, done.err
    assert shapes("m.onnx") == {"x": [rows, 8]}
    assert "first.weight" in {t.name for t in onnx.load("m.onnx").graph.initializer}
    assert "f32" in done.out and "timings" in done.out


def test_a_function_of_tensors_is_exported_itself(run: Runner) -> None:
    done = run(
        "export",
        "models.py:add",
        "-o",
        "m.onnx",
        "--inputs",
        "inputs_for_add",
        "--dynamic",
        "a:0=n",
    )
    assert done.code == 0, done.err
    assert shapes("m.onnx") == {"a": ["n", 2], "b": [2]}


def test_a_saved_program(run: Runner) -> None:
    torch.manual_seed(0)
    rows = gp.Dim("rows", max=9)
    ep = gp.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_shapes=({0: rows},))
    gp.save(ep, "program.gpx")
    done = run("export", "program.gpx", "-o", "m.onnx", "--json")
    assert done.code == 0, done.err
    assert done.data["inputs"] == [{"name": "input", "type": "f32[rows, 3]"}]
    assert run("export", "program.gpx", "-o", "m.onnx", "--dynamic", "input:0=n").code == 2
    assert run("export", "program.gpx", "-o", "m.onnx", "--input", "input=f32[2,3]").code == 2


def test_written_inputs_and_sizes(run: Runner) -> None:
    done = run(
        "export",
        "models.py:Mlp",
        "-o",
        "m.onnx",
        "--input",
        "x=f32[3, 5, 8]",
        "--dynamic",
        "x:0=batch[1..64],-2=2*half+1",
        "--json",
    )
    assert done.code == 0, done.err
    assert shapes("m.onnx") == {"x": ["batch", "2*half + 1", 8]}
    sizes = {s["name"]: (s["least"], s["most"]) for s in done.data["sizes"]}
    assert sizes["batch"] == (1, 64)
    assert sizes["half"] == (0, None)


def test_inputs_within_containers(run: Runner) -> None:
    done = run(
        "export",
        "models.py:pair",
        "-o",
        "m.onnx",
        "--dynamic",
        "pair.left:0=n",
        "--dynamic",
        "pair.right:0=n",
        "--dynamic",
        "scale=dynamic",
    )
    assert done.code == 0, done.err
    assert shapes("m.onnx") == {"pair_left": ["n", 3], "pair_right": ["n", 3], "scale": []}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_inputs_from_a_file(run: Runner, suffix: str) -> None:
    if suffix == ".npz":
        np.savez("given.npz", x=np.ones((7, 8), dtype=np.float32))
    else:
        save_file({"x": torch.ones(7, 8)}, "given.safetensors")
    done = run("export", "models.py:Mlp", "-o", "m.onnx", "--inputs", f"given{suffix}")
    assert done.code == 0, done.err
    assert shapes("m.onnx") == {"x": [7, 8]}


def test_the_model_is_in_evaluation_mode(run: Runner) -> None:
    Path("noise.py").write_text("import torch\nmodel = torch.nn.Dropout(0.5)\n")
    done = run("export", "noise.py:model", "-o", "m.onnx", "--input", "input=f32[64]", "--json")
    assert done.code == 0, done.err
    x = np.ones(64, dtype=np.float32)
    np.testing.assert_array_equal(ort.InferenceSession("m.onnx").run(None, {"input": x})[0], x)


def test_external_data_and_opset_and_target(run: Runner) -> None:
    done = run(
        "export",
        "models.py:wide",
        "-o",
        "m.onnx",
        "--external-data",
        "--opset",
        "20",
        "--target",
        "ort",
        "--json",
        "--input",
        "input=f32[2,64]",
    )
    assert done.code == 0, done.err
    (data,) = Path().glob("m.onnx.*.data")
    assert data.stat().st_size >= 64 * 64 * 4
    assert done.data["opset"] == 20 and done.data["target"] == "ort"
    assert done.data["bytes"] > 64 * 64 * 4


def test_json_and_report(run: Runner) -> None:
    done = run(
        "export",
        "models.py:build",
        "-o",
        "m.onnx",
        "--dynamic",
        "x:0=batch[1..64]",
        "--verify",
        "--report",
        "report.html",
        "--json",
    )
    assert done.code == 0, done.err
    assert not done.err
    data = done.data
    assert data["ok"] and data["output"] == "m.onnx" and data["nodes"] == 3
    assert data["operators"] == {"Gemm": 2, "Relu": 1}
    assert set(data["timings"]) == {"load", "build", "capture", "lower", "verify", "save"}
    checked = data["verification"]
    assert checked["ok"] and checked["first_divergence"] is None
    assert len({sizes["batch"] for sizes in checked["sizes_tried"]}) > 1
    assert "batch" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["models.py"], "fix  models.py:Mlp"),
        (["models.py:"], "fix  models.py:Mlp"),
        ([":build"], "fix  PKG.MODULE:NAME, FILE.py:NAME or PROGRAM.gpx"),
        (["model.onnx"], "fix  PKG.MODULE:NAME, FILE.py:NAME or PROGRAM.gpx"),
        (["nowhere.py:build"], "there is no file nowhere.py"),
        (["no.where:build"], "there is no module no.where"),
        (["models.py:Nothing"], "models has no Nothing"),
        (["models.py:value"], "models.py:value is a int"),
        (["models.py:Sized"], "models.py:Sized needs arguments to be made: width"),
        (["models.py:wrong"], "models.py:wrong returned a tuple of 2"),
        (["missing.gpx"], "there is no file missing.gpx"),
        (["models.py:add", "--input", "a=f32[2]"], "there is no example input for b"),
        (["models.py:build", "--input", "y=f32[2]"], "the model has no input y"),
        (["models.py:build", "--input", "x=f33[2]"], 'at   --input "x=f33[2]"'),
        (["models.py:build", "--input", "x"], 'at   --input "x"'),
        (["models.py:build", "--input", "x=?"], 'at   --input "x=?"'),
        (["models.py:build", "--input", "x=f32[2 8]"], 'at   --input "x=f32[2 8]"'),
        (["models.py:build", "--input", "x=f32[2,,8]"], 'at   --input "x=f32[2,,8]"'),
        (["models.py:build", "--input", "x={[1]: 2}"], 'at   --input "x={[1]: 2}"'),
        (["models.py:build", "--input", "x=u8[2](0..300)"], "fix  within 0..255"),
        (["models.py:build", "--input", "x=i64[2](3..1)"], "the range 3..1 is empty"),
        (["models.py:build", "--input", f"x=f32[{10**12},{10**12}]"], 'at   --input "x=f32[1000'),
        (["models.py:build", "--inputs", "gone.npz"], "there is no file gone.npz"),
        (["models.py:build", "--inputs", "gone"], "models has no gone"),
        (["models.py:build", "--inputs", "wrong", "--input", "x=f32[2,8]"], "both --input and"),
        (["models.py:build", "--dynamic", "x=n"], "fix  x:0=n"),
        (["models.py:build", "--dynamic", "y:0=n"], "the model has no input y"),
        (["models.py:build", "--dynamic", "x:4=n"], "x has 2 axes, and no axis 4"),
        (["models.py:build", "--dynamic", "x:0=n,0=m"], "axis 0 is given twice"),
        (["models.py:build", "--dynamic", "x:0=n", "--dynamic", "x:0=m"], "axis 0 is given twice"),
        (["models.py:build", "--dynamic", "x:0=n,-2=m"], "axis -2 of x is given twice"),
        (["models.py:build", "--dynamic", "x:0=2*auto"], "auto cannot be part of an expression"),
        (["models.py:pair", "--dynamic", "scale:0=n"], "fix  scale=n"),
        (["models.py:build", "--dynamic", "x:0=n["], 'at   --dynamic "x:0=n["'),
        (["models.py:build", "--dynamic", "x:0=n[1..4],1=n[2..]"], "n has two ranges"),
        (["models.py:build", "--dynamic", "x:0=n[4..1]"], "max=1 is smaller than min=4"),
        (["models.py:build", "--opset", "99"], "opset=99 is not supported\n  at   --opset"),
        (["models.py:build", "--report", "no/report.md"], "there is no folder no"),
        (["models.py:build", "--report", "report.pdf"], "the form of the report"),
    ],
)
def test_bad_usage(run: Runner, argv: list[str], says: str) -> None:
    done = run("export", *argv, "-o", "m.onnx")
    assert done.code == 2, done.err
    assert says in done.err
    assert "Traceback" not in done.err and not done.out
    assert not Path("m.onnx").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["models.py:broken"],
            "GP150 models.py:broken raised ValueError: no weights today\n"
            "  at   models.py:73 in broken",
        ),
        (["models.py:forward_fails", "--input", "x=f32[2]"], "GP150"),
        (
            ["models.py:needs_two", "--input", "x=f32[9]", "--dynamic", "x:0=n"],
            "Suggested fixes:\n  --dynamic with n[5..] in place of n",
        ),
        (["models.py:unsupported", "--input", "x=f32[2,2]"], "GP201 no ONNX lowering for"),
    ],
)
def test_failures_are_told_without_a_traceback(run: Runner, argv: list[str], says: str) -> None:
    done = run("export", *argv, "-o", "m.onnx")
    assert done.code == 1, done.err
    assert says in done.err
    assert "Traceback" not in done.err and not done.out
    assert not Path("m.onnx").exists()


def test_files_of_inputs_that_are_broken(run: Runner) -> None:
    for name, content in (("a", b""), ("b", b"PK\x03\x04 cut off"), ("c", b"text")):
        Path(f"{name}.npz").write_bytes(content)
        done = run("export", "models.py:build", "-o", "m.onnx", "--inputs", f"{name}.npz")
        assert done.code == 2 and f"{name}.npz cannot be read" in done.err, done.err


def test_parameters_that_have_no_keyword(run: Runner) -> None:
    Path("only.py").write_text("def add(a, b, /, c): return a + b + c\n")
    given = [y for x in "bca" for y in ("--input", f"{x}=f32[2]")]
    done = run("export", "only.py:add", "-o", "m.onnx", *given)
    assert done.code == 0, done.err
    assert list(shapes("m.onnx")) == ["a", "b", "c"]


@pytest.mark.parametrize("where", ["import", "build", "forward"])
def test_code_that_ends_the_process(run: Runner, where: str) -> None:
    """A script that is not guarded must not end in silence, with nothing done and 0."""
    leave = "import sys; sys.exit(0)\n"
    parts = {name: leave if name == where else "" for name in ("import", "build", "forward")}
    Path("script.py").write_text(
        f"import torch\n{parts['import']}"
        f"def model(x):\n    {parts['forward']}\n    return x\n"
        f"def build():\n    {parts['build']}\n    return model, (torch.ones(2),)\n"
    )
    done = run("export", "script.py:build", "-o", "m.onnx")
    assert done.code == 1 and not Path("m.onnx").exists()
    assert "GP150 the model's code ends the process: sys.exit(0)\n  at   script.py:" in done.err
    assert 'if __name__ == "__main__":' in done.err


def test_files_beside_the_model_are_found_when_it_is_built(run: Runner) -> None:
    Path("deep").mkdir()
    Path("deep/parts.py").write_text("import torch\nlayer = torch.nn.ReLU()\n")
    Path("deep/net.py").write_text(
        "def build():\n    import torch\n    from parts import layer\n"
        "    return layer, (torch.ones(2),)\n"
    )
    done = run("export", "deep/net.py:build", "-o", "m.onnx")
    assert done.code == 0, done.err


def test_a_file_of_a_package(run: Runner) -> None:
    Path("pack/sub").mkdir(parents=True)
    for folder in ("pack", "pack/sub"):
        Path(folder, "__init__.py").write_text("")
    Path("pack/base.py").write_text("import torch\nlayer = torch.nn.ReLU()\n")
    Path("pack/sub/net.py").write_text(
        "import torch\nfrom ..base import layer\ndef build(): return layer, (torch.ones(2),)\n"
    )
    done = run("export", "pack/sub/net.py:build", "-o", "m.onnx")
    assert done.code == 1
    assert f"fix  pack.sub.net:NAME, in the folder {run.folder}" in done.err
    done = run("export", "pack.sub.net:build", "-o", "m.onnx")
    assert done.code == 0, done.err


def test_inputs_that_the_model_itself_refuses(run: Runner) -> None:
    Path("table.py").write_text("import torch\nmodel = torch.nn.Embedding(10, 4)\n")
    argv = ("export", "table.py:model", "-o", "m.onnx", "--input", "input=i64[2](50..99)")
    assert run(*argv).code == 0
    done = run(*argv, "--verify")
    assert done.code == 1
    assert done.err.startswith("GP150 IndexError in the program: index out of range")


def test_missing_lowerings_as_json(run: Runner) -> None:
    argv = ("models.py:unsupported", "-o", "m.onnx", "--input", "x=f32[2,2]", "--json")
    error = run("export", *argv).data["error"]
    assert "models.py" in error["where"] and "torch.linalg.eigvals(x)" in error["where"]


def test_the_size_of_what_was_written(run: Runner) -> None:
    argv = ("export", "models.py:wide", "-o", "m.onnx", "--input", "input=f32[2,64]", "--json")
    apart = run(*argv, "--external-data").data["bytes"]
    assert apart == sum(path.stat().st_size for path in Path().glob("m.onnx*"))
    assert run(*argv).data["bytes"] == Path("m.onnx").stat().st_size  # the second file is old


def test_a_model_that_differs_is_not_written(run: Runner) -> None:
    Path("odd.py").write_text(
        "import torch, graphport as gp\n"
        "@torch.library.custom_op('odd::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor: return 2 * x\n"
        "@twice.register_fake\n"
        "def _(x): return torch.empty_like(x)\n"
        "@gp.onnx.lowering('odd::twice')\n"
        "def lower(b, x): return b.Add(x, 2.0)\n"
        "def model(x): return twice(x)\n"
    )
    argv = ("export", "odd.py:model", "-o", "m.onnx", "--input", "x=f32[3]", "--verify")
    done = run(*argv, "--report", "odd.md")
    assert done.code == 1
    assert "not written" in done.out and "WRONG at the example: 3 of 3 differ" in done.out
    assert "first differs at twice" in done.out and "odd.py:8 in model" in done.out
    assert not Path("m.onnx").exists() and "WRONG" in Path("odd.md").read_text()


def test_errors_as_json_and_with_a_traceback(run: Runner) -> None:
    done = run("export", "models.py:broken", "-o", "m.onnx", "--json", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err and 'raise ValueError("no weights today")' in done.err
    error = done.data["error"]
    assert not done.data["ok"]
    assert error["code"] == "GP150" and error["what"].endswith("no weights today")
    assert error["where"].startswith("models.py:73 in broken")


def test_a_file_may_share_its_name_with_a_module(run: Runner) -> None:
    own = "import torch\nclass Own(torch.nn.Module):\n    def forward(self, x): return x + 1\n"
    Path("json.py").write_text(own)
    done = run("export", "json.py:Own", "-o", "m.onnx", "--input", "x=f32[2]")
    assert done.code == 0, done.err
    assert b"json_.Own" in Path("m.onnx").read_bytes()


def test_weights_of_a_model_without_any(run: Runner) -> None:
    Path("large.py").write_text(
        "import torch, graphport as gp\n"
        "def build():\n"
        "    with gp.fake_mode():\n"
        "        return torch.nn.Linear(3, 2), (torch.ones(4, 3),)\n"
    )
    done = run("export", "large.py:build", "-o", "m.onnx")
    assert done.code == 1 and "GP170" in done.err
    assert not Path("m.onnx").exists()
    layer = torch.nn.Linear(3, 2)
    save_file(layer.state_dict(), "w.safetensors")
    done = run("export", "large.py:build", "-o", "m.onnx", "--weights", "w.safetensors")
    assert done.code == 0, done.err
    x = torch.randn(4, 3)
    (y,) = ort.InferenceSession("m.onnx").run(None, {"input": x.numpy()})
    np.testing.assert_allclose(y, layer(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_the_model_prints_is_no_result(run: Runner) -> None:
    Path("loud.py").write_text(
        "import torch\nprint('importing')\n"
        "def build():\n    print('building')\n    return torch.nn.ReLU(), (torch.ones(2),)\n"
    )
    done = run("export", "loud.py:build", "-o", "m.onnx", "--json")
    assert done.code == 0 and done.data["ok"]
    assert done.err == "importing\nbuilding\n"
