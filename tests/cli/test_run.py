"""`graphport run`: scripts with calls of `torch.onnx.export`, in the spellings of many versions."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch.utils import _pytree as pytree

from graphport.cli import main
from tests.cli.helpers import Runner

SOURCE = Path(__file__).resolve().parents[2] / "src"

NETS = '''
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x).softmax(1)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, image):
        y = nn.functional.max_pool2d(self.norm(self.conv(image)).relu(), 2)
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Masked(nn.Module):
    """Keywords, defaults, a dict of results."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask=None, scale=1.0):
        y = self.out(self.table(input_ids)) * scale
        if attention_mask is not None:
            y = y * attention_mask[..., None]
        return {"hidden": y, "pooled": y.mean(1)}


class Pair(nn.Module):
    def forward(self, pair, n=2):
        return pair["left"] * n + pair["right"]


class Listed(nn.Module):
    def forward(self, xs):
        return xs[0] + xs[1].sum(), xs[1] * 2


class Apart(nn.Module):
    def forward(self, x, y):
        return x + 1, y * 2


class Signed(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Asking(nn.Module):
    def forward(self, x):
        return x + 1 if torch.onnx.is_in_onnx_export() else x + 2


class Plus(nn.Module):
    def forward(self, x):
        return x + 1


torch.manual_seed(0)
net, image, masked = Net().eval(), Image().eval(), Masked().eval()
pair, listed, apart, signed, asking, plus = Pair(), Listed(), Apart(), Signed(), Asking(), Plus()
half = nn.Linear(4, 3).half()
x, picture, ids = torch.randn(2, 4), torch.randn(1, 3, 8, 8), torch.randint(0, 10, (2, 5))
mask = torch.ones(2, 5)
'''

PRELUDE = """
import io
from pathlib import Path

import torch
from nets import *

"""


def rows(n: int) -> torch.Tensor:
    return torch.randn(n, 4)


def ids(n: int, m: int) -> torch.Tensor:
    return torch.randint(0, 10, (n, m))


@dataclass
class Pattern:
    """A script, and what has to be true of its file."""

    script: str
    model: str = "net"
    feeds: list[tuple[Any, ...]] = field(default_factory=lambda: [(rows(2),)])
    """Arguments of the model, at the example's sizes and at others."""
    opset: int = 20
    said: str = "exported by graphport"


N = [(rows(n),) for n in (2, 1, 7)]
PICTURES = [(torch.randn(n, 3, 8, 8),) for n in (1, 3)]
TEXTS = [(ids(n, m), torch.ones(n, m)) for n, m in ((2, 5), (1, 1), (3, 9))]
AXES = 'dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, input_names=["x"], output_names=["y"]'

PATTERNS: dict[str, Pattern] = {
    "a tensor": Pattern('torch.onnx.export(net, x, "m.onnx")'),
    "a tuple": Pattern('torch.onnx.export(net, (x,), "m.onnx", verbose=True)'),
    "torch 1.13 by position": Pattern(
        'torch.onnx.export(net, (x,), "m.onnx", True, False, torch.onnx.TrainingMode.EVAL, ["x"], '
        '["y"], torch.onnx.OperatorExportTypes.ONNX, 13, True, {"x": {0: "n"}, "y": {0: "n"}})',
        feeds=N,
        opset=13,
    ),
    "the tutorial": Pattern(
        'torch.onnx.export(image, picture, "m.onnx", export_params=True, opset_version=11, '
        "do_constant_folding=True, input_names=['input'], output_names=['output'], "
        "dynamic_axes={'input': {0: 'batch_size'}, 'output': {0: 'batch_size'}})",
        "image",
        PICTURES,
        11,
    ),
    **{
        f"opset {n}": Pattern(
            f'torch.onnx.export(net, (x,), "m.onnx", opset_version={n}, {AXES})', feeds=N, opset=n
        )
        for n in (13, 15, 17, 21)
    },
    "lists of axes": Pattern(
        'torch.onnx.export(net, x, "m.onnx", input_names=["a"], output_names=["b"], '
        'dynamic_axes={"a": [0], "b": [0]}, dynamo=False)',
        feeds=N,
    ),
    "axes of a name that no input has": Pattern(
        'torch.onnx.export(net, x, "m.onnx", dynamic_axes={"image": {0: "n"}}, dynamo=False)',
        said="dynamic_axes names image",
    ),
    "axes of unequal sizes": Pattern(
        'torch.onnx.export(apart, (x, torch.ones(3, 4)), "m.onnx", input_names=["x", "y"], '
        'dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False)',
        "apart",
        [(rows(2), rows(3)), (rows(1), rows(0))],
    ),
    "an axis that the model fixes": Pattern(
        'torch.onnx.export(net, x, "m.onnx", input_names=["x"], dynamo=False, '
        'dynamic_axes={"x": {0: "batch", 1: "features"}})',
        feeds=N,
        said="shape[1] = 4, fixed by the program",
    ),
    "an int among the arguments": Pattern(
        'torch.onnx.export(pair, ({"left": x, "right": x}, 3), "m.onnx", dynamo=False)',
        "pair",
        [({"left": rows(2), "right": rows(2)}, 3)],
    ),
    "keywords at the end": Pattern(
        'torch.onnx.export(masked, (ids, {"attention_mask": mask}), "m.onnx", dynamo=False)',
        "masked",
        TEXTS[:1],
    ),
    "keywords alone": Pattern(
        'torch.onnx.export(masked, ({"input_ids": ids, "attention_mask": mask},), f="m.onnx")',
        "masked",
        TEXTS[:1],
    ),
    "a dict that is no keywords": Pattern(
        'torch.onnx.export(pair, ({"left": x, "right": x}, {}), "m.onnx", dynamo=False)',
        "pair",
        [({"left": rows(2), "right": rows(2)},)],
    ),
    "kwargs": Pattern(
        'words = {"input_ids": ids, "attention_mask": mask}\n'
        'torch.onnx.export(masked, (), "m.onnx", kwargs=words)',
        "masked",
        TEXTS[:1],
    ),
    "a list as an argument": Pattern(
        'torch.onnx.export(listed, ([x, x],), "m.onnx", input_names=["a", "b"], opset_version=17)',
        "listed",
        [([rows(2), rows(2)],)],
        17,
    ),
    "names and axes of a text model": Pattern(
        'inputs = {"input_ids": ids, "attention_mask": mask}\n'
        'axes = {k: {0: "batch", 1: "sequence"} for k in [*inputs, "hidden"]}\n'
        'torch.onnx.export(masked, tuple(inputs.values()), f="m.onnx", input_names=list(inputs), '
        'output_names=["hidden", "pooled"], dynamic_axes=axes, do_constant_folding=True, '
        "opset_version=14)",
        "masked",
        TEXTS,
        14,
    ),
    "a Path": Pattern('torch.onnx.export(net, x, Path("m.onnx"), opset_version=17)', opset=17),
    "a BytesIO": Pattern(
        "f = io.BytesIO()\ntorch.onnx.export(net, x, f, dynamo=False)\n"
        'Path("m.onnx").write_bytes(f.getvalue())'
    ),
    "an open file": Pattern(
        'with open("m.onnx", "wb") as f:\n    torch.onnx.export(net, x, f, opset_version=17)',
        opset=17,
    ),
    "from torch.onnx import export": Pattern(
        'from torch.onnx import export\nexport(net, x, "m.onnx", dynamo=False)'
    ),
    "import torch.onnx as o, utils": Pattern(
        'import torch.onnx as o\no.utils.export(net, x, "m.onnx", opset_version=12)', opset=12
    ),
    "functools.partial, in a function": Pattern(
        "import functools\nto_onnx = functools.partial(torch.onnx.export, opset_version=17)\n"
        'def work():\n    with torch.no_grad():\n        to_onnx(net, x, "m.onnx")\nwork()',
        opset=17,
    ),
    "inference mode": Pattern(
        'with torch.inference_mode():\n    torch.onnx.export(net, (x,), "m.onnx", dynamo=False)'
    ),
    "a model in training mode": Pattern(
        'net.train()\ntorch.onnx.export(net, x, "m.onnx", dynamo=False)\n'
        "assert net.training and net.layers[1].training\nnet.eval()"
    ),
    "TrainingMode.PRESERVE": Pattern(
        'torch.onnx.export(net, x, "m.onnx", training=torch.onnx.TrainingMode.PRESERVE, '
        "dynamo=False, verbose=False)"
    ),
    "options that change nothing": Pattern(
        'torch.onnx.export(net, x, "m.onnx", custom_opsets={"mine": 1}, autograd_inlining=False, '
        "operator_export_type=torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK, "
        "do_constant_folding=False, dynamo=False)"
    ),
    "functions of modules": Pattern(
        'torch.onnx.export(net, x, "m.onnx", export_modules_as_functions={torch.nn.Linear}, '
        "opset_version=15, dynamo=False)",
        opset=15,
    ),
    "initialisers as inputs": Pattern(
        'torch.onnx.export(net, x, "m.onnx", keep_initializers_as_inputs=True, dynamo=False)'
    ),
    "dynamo": Pattern(
        "program = torch.onnx.export(net, (x,), dynamo=True)\nprogram.optimize()\n"
        'program.save("m.onnx")\nassert program(x)[0].shape == (2, 3)'
    ),
    "dynamo with a file": Pattern(
        'torch.onnx.export(net, (x,), "m.onnx", dynamo=True, external_data=False, optimize=True)'
    ),
    "dynamo with dims": Pattern(
        'batch = torch.export.Dim("batch", min=1, max=64)\n'
        'torch.onnx.export(net, (x,), "m.onnx", dynamo=True, dynamic_shapes={"x": {0: batch}})',
        feeds=N,
    ),
    "dynamo with hints": Pattern(
        'torch.onnx.export(net, (x,), f="m.onnx", dynamo=True, verify=True, '
        "dynamic_shapes=({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.AUTO},))",
        feeds=N,
    ),
    "dynamo with names of dims": Pattern(
        'torch.onnx.export(masked, (ids,), "m.onnx", kwargs={"attention_mask": mask}, dynamo=True, '
        'opset_version=18, dynamic_shapes={"input_ids": {0: "n", 1: "m"}, '
        '"attention_mask": {0: "n", 1: "m"}})',
        "masked",
        TEXTS,
        18,
    ),
    "dynamo with dynamic_axes": Pattern(
        f'torch.onnx.export(net, (x,), "m.onnx", dynamo=True, fallback=True, {AXES})', feeds=N
    ),
    "dynamo with artifacts": Pattern(
        'torch.onnx.export(net, (x,), "m.onnx", dynamo=True, report=True, profile=True, '
        'dump_exported_program=True, artifacts_dir=".", external_data=True)\n'
        'assert list(Path().glob("onnx_export_*.md")) and list(Path().glob("onnx_export_*.gpx"))'
    ),
    "dynamo_export": Pattern(
        "options = torch.onnx.ExportOptions(dynamic_shapes=True)\n"
        "program = torch.onnx.dynamo_export(net, x, export_options=options)\n"
        'program.save("m.onnx")\nassert program.adapt_torch_inputs_to_onnx(x)[0] is x',
        feeds=N,
    ),
    "a program of torch.export": Pattern(
        'program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))\n'
        'torch.onnx.export(program, (x,), "m.onnx", input_names=["features"])',
        feeds=N[:1] + N[2:],
    ),
    "an ExportableModule": Pattern(
        "class Mine(torch.onnx.ExportableModule):\n"
        "    def forward(self, x):\n        return net(x)\n"
        "    def example_arguments(self):\n        return (x,), None\n"
        '    def dynamic_shapes(self):\n        return ({0: "batch_size"},)\n'
        'Mine().to_onnx().save("m.onnx")',
        feeds=N,
    ),
    "a model edited afterwards": Pattern(
        "program = torch.onnx.export(net, (x,), dynamo=True)\n"
        'program.model.graph.inputs[0].name = "features"\nassert program(x)[0].shape == (2, 3)\n'
        'program.save(destination="m.onnx")'
    ),
    "a model that asks whether it is exported": Pattern(
        'torch.onnx.export(asking, x, "m.onnx", dynamo=False)', "plus"
    ),
    "half precision": Pattern(
        'torch.onnx.export(half, x.half(), "m.onnx", opset_version=17)',
        "half",
        [(rows(2).half(),)],
        17,
    ),
    "a traced model": Pattern(
        'torch.onnx.export(torch.jit.trace(net, x), x, "m.onnx", dynamo=False, opset_version=17)',
        opset=17,
        said="",
    ),
    "a scripted model": Pattern(
        'torch.onnx.export(torch.jit.script(net), x, "m.onnx", dynamo=False, opset_version=17)',
        opset=17,
        said="",
    ),
    # What goes on to torch
    "a branch on data": Pattern(
        'torch.onnx.export(signed, x.abs(), "m.onnx", dynamo=False, opset_version=17)',
        "signed",
        [(rows(2).abs(),)],
        17,
        said="left to torch.onnx: GP120",
    ),
    "opset 9": Pattern(
        'torch.onnx.export(net, x, "m.onnx", opset_version=9, dynamo=False)',
        opset=9,
        said="left to torch.onnx: GP101 opset=9 is not supported",
    ),
    "symbolic functions": Pattern(
        'torch.onnx.register_custom_op_symbolic("aten::relu", lambda g, x: g.op("Relu", x), 9)\n'
        'torch.onnx.export(net, x, "m.onnx", dynamo=False)\n'
        'torch.onnx.unregister_custom_op_symbolic("aten::relu", 9)',
        said="registered with torch.onnx by the script",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str, run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = PATTERNS[name]
    Path("nets.py").write_text(NETS)
    Path("script.py").write_text(PRELUDE + pattern.script)
    code = main(["run", "--verify", "script.py"])
    told = capsys.readouterr().err
    assert code == 0, told
    assert pattern.said in told
    lines = [line for line in told.splitlines() if line.startswith("graphport: script.py:")]
    assert len(lines) == 1, told
    file = onnx.load("m.onnx")
    onnx.checker.check_model(file)
    assert {e.domain: e.version for e in file.opset_import}[""] == pattern.opset
    nets = vars(sys.modules["nets"])
    model = nets[pattern.model]
    for args in pattern.feeds:
        assert_same(Path("m.onnx"), model, args)


def assert_same(file: Path, model: Any, args: tuple[Any, ...]) -> None:
    """The file, in bare ONNX Runtime, and eager give the same."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options)
    tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    names = [i.name for i in session.get_inputs()]
    have = session.run(None, dict(zip(names, (t.numpy() for t in tensors), strict=True)))
    with torch.no_grad():
        want = pytree.tree_leaves(model(*args))
    for a, b in zip(have, want, strict=True):
        torch.testing.assert_close(torch.from_numpy(a), b, rtol=1e-3, atol=1e-4)


# The script


def run_script(text: str, *options: str, arguments: tuple[str, ...] = ()) -> int:
    Path("nets.py").write_text(NETS)
    Path("script.py").write_text(text)
    return main(["run", *options, "script.py", *arguments])


def test_a_script_is_what_python_makes_it(
    run: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import atexit, json, pickle, sys, threading, __main__

class Own:
    pass

pickle.loads(pickle.dumps(Own()))
assert __main__.Own is Own and sys.modules["__main__"].__file__ == "script.py"
print(json.dumps([__name__, sys.argv, sys.path[0], __doc__, __file__]))
threading.Thread(target=lambda: print("later")).start()
"""
    before = sys.argv, list(sys.path), sys.modules["__main__"], torch.onnx.export.__code__
    assert run_script('"""Text."""' + text, arguments=("--verify", "-x", "1")) == 0
    after = sys.argv, list(sys.path), sys.modules["__main__"], torch.onnx.export.__code__
    assert before == after
    out, err = capsys.readouterr()
    assert out == (
        f'["__main__", ["script.py", "--verify", "-x", "1"], "{os.path.realpath(tmp_path)}", '
        '"Text.", "script.py"]\nlater\n'
    )
    assert not err


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("raise SystemExit('no weights')", 1, "no weights\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        (
            "def f():\n    1 / 0\nf()",
            1,
            'Traceback (most recent call last):\n  File "script.py", line 3, in <module>\n    f()\n'
            '  File "script.py", line 2, in f\n',
        ),
        ("def (", 1, "SyntaxError"),
    ],
)
def test_exit_codes(
    run: Runner, text: str, code: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(text) == code
    assert shown in capsys.readouterr().err


def test_what_is_no_script(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert main(["run", "--verify", "nothing.py"]) == 2
    assert "there is no file nothing.py" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_another_opset_than_asked_for(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'torch.onnx.export(torch.nn.Identity(), x, "i.onnx", opset_version=13)\n'
    text += "class Add(torch.nn.Module):\n    def forward(self, x, i):\n"
    text += "        return x.scatter_add(1, i, x)\n"
    text += 'torch.onnx.export(Add(), (x, x.argsort(1)), "s.onnx", opset_version=13)'
    assert run_script(PRELUDE + text) == 0
    told = capsys.readouterr().err
    assert "opset 16 instead of 13: ONNX has no ScatterElements with reduction before" in told
    assert onnx.load("s.onnx").opset_import[0].version == 16
    assert onnx.load("i.onnx").opset_import[0].version == 13


@pytest.mark.filterwarnings("ignore")
def test_weights_are_left_to_whoever_runs_it(run: Runner) -> None:
    text = 'torch.onnx.export(net, x, "bare.onnx", export_params=False, dynamo=False)\n'
    text += 'torch.onnx.export(net, x, "both.onnx", keep_initializers_as_inputs=True, dynamo=False)'
    assert run_script(PRELUDE + text) == 0
    bare, both = onnx.load("bare.onnx").graph, onnx.load("both.onnx").graph
    weights = {"layers.0.weight", "layers.0.bias", "layers.3.weight", "layers.3.bias"}
    assert weights <= {i.name for i in bare.input} == {i.name for i in both.input}
    assert not bare.initializer and len(both.initializer) == len(weights)


@pytest.mark.filterwarnings("ignore")
def test_what_neither_can_raises_what_torch_raises(
    run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "try:\n    torch.onnx.export(net, x, dynamo=False)\nexcept AttributeError as error:\n"
    text += '    assert "flush" in str(error)\nelse:\n    raise AssertionError'
    code = run_script(PRELUDE + text)
    told = capsys.readouterr().err
    assert "left to torch.onnx: GP101 f is missing" in told
    assert code == 0, told


@pytest.mark.filterwarnings("ignore")
def test_what_differs_from_eager_is_left_to_torch(
    run: Runner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "graphport.onnx.verify.verification.VerificationReport.ok", property(lambda self: False)
    )
    assert (
        run_script(PRELUDE + 'torch.onnx.export(net, x, "m.onnx", dynamo=False)', "--verify") == 0
    )
    assert "left to torch.onnx: GP320" in capsys.readouterr().err
    assert onnx.load("m.onnx").producer_name == "pytorch"


def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "export.py").write_text(
        PRELUDE
        + 'import sys\nprint(sys.argv[1:])\ntorch.onnx.export(net, x, "m.onnx")\nsys.exit(4)'
    )
    command = [sys.executable, "-m", "graphport", "run", "-m", "package.export", "--flag"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (4, "['--flag']\n"), done.stderr
    assert "export.py:10: exported by graphport to m.onnx, opset 20\n" in done.stderr
    assert onnx.load(tmp_path / "m.onnx").producer_name == "graphport"
