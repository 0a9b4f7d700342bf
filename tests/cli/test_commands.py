"""What all commands share, `doctor`, `inspect`, and the command as it is started."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import onnx
import pytest
import torch

import graphport as gp
from graphport.cli import doctor, main
from tests.cli.helpers import Runner

SOURCE = Path(__file__).resolve().parents[2] / "src"

HELP = """
import sys
from graphport.cli import main
code = main(["export", "--help"])
slow = {"torch", "numpy", "onnx", "onnxruntime", "rich"} & set(sys.modules)
assert code == 0 and not slow, slow
"""


def test_help_is_quick(fresh_python: Callable[[str], str]) -> None:
    text = fresh_python(HELP)
    for word in ("PKG.MODULE:NAME", "--dynamic", "example_inputs()", "exit codes"):
        assert word in text


def test_started_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import torch\nmodel = torch.nn.Linear(3, 2)\n")
    command = [sys.executable, "-m", "graphport", "export", "own:model", "-o", "m.onnx"]
    given = ["--input", "input=f32[4,3]", "--dynamic", "input:0=n", "--verify"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [*command, *given], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # no progress where there is no terminal
    assert "f32[n, 3]" in done.stdout
    onnx.checker.check_model(tmp_path / "m.onnx")


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "graphport", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as done:
        os.close(theirs)
        shown = b""
        # Linux says EIO where a terminal has no other end any more.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
        assert done.stdout is not None and json.load(done.stdout)["ok"]
    os.close(ours)
    assert b"loading" in shown


@pytest.mark.parametrize("argv", [[], ["fly"], ["export", "x:y"], ["export", "x:y", "-o"]])
def test_bad_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "usage: graphport" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("graphport ")


def test_faults_of_ours_are_told_as_such(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(doctor, "run", fail)
    done = run("doctor")
    assert done.code == 1
    assert done.err.startswith("GP900 ZeroDivisionError: oops") and "report it" in done.err


def test_warnings_of_capture_are_one_line(run: Runner) -> None:
    Path("global_state.py").write_text(
        "import torch\n"
        "class Counts(torch.nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        return x + self.calls\n"
    )
    done = run("export", "global_state.py:Counts", "-o", "m.onnx", "--input", "x=f32[2]")
    assert done.code == 0, done.err
    assert done.err.startswith("warning: ") and "CaptureWarning" not in done.err


# doctor


def test_doctor(run: Runner) -> None:
    done = run("doctor", "--json")
    assert done.code == 0, done.out
    data = done.data
    assert data["ok"] and not data["problems"]
    assert data["versions"]["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert "CPUExecutionProvider" in data["providers"]
    assert 18 <= data["default_opset"] <= 25
    assert data["other_release"] is None
    assert "default opset" in run("doctor").out


def test_doctor_says_of_which_release_kernels_are_known(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "1.99.0" if name == "onnxruntime" else known(name)
    )
    done = run("doctor")
    assert done.code == 0, done.out
    said = f"kernels are known of ONNX Runtime {known('onnxruntime')}, and 1.99.0 is installed"
    assert said in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.9,<2.14", True),
        ("2.14.0", ">=2.9,<2.14", False),
        ("2.8.1", ">=2.9", False),
        ("2.10", ">=2.9", True),
        ("1.0.0rc1", "==1.0", True),
        ("1.0", "!=1.0.0", False),
        (None, "", False),
        ("1", "", True),
    ],
)
def test_ranges_of_versions(version: str | None, wanted: str, fits: bool) -> None:
    assert doctor.is_satisfied(version, wanted) is fits


def test_doctor_names_what_is_missing(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("torch", "no-such-package"))
    done = run("doctor")
    assert done.code == 1
    assert "no-such-package is not installed: graphport needs it" in done.out


def test_doctor_names_what_is_broken(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    done = run("doctor")
    assert done.code == 1
    assert "rich is installed and cannot be loaded: ModuleNotFoundError" in done.out


# inspect


def test_inspect_a_model(run: Runner) -> None:
    run("export", "models.py:build", "-o", "m.onnx", "--dynamic", "x:0=batch[1..64]")
    done = run("inspect", "m.onnx", "--graph")
    assert done.code == 0, done.err
    for text in ("x     f32[batch, 8]", "batch  1..64", "Gemm          2", "first   Linear"):
        assert text in done.out
    assert "linear: f32[batch, 16] = Gemm(x, first.weight, first.bias" in done.out
    data = run("inspect", "m.onnx", "--json").data
    assert data["sizes"] == [{"name": "batch", "least": 1, "most": 64}]
    assert data["weight_bytes"] == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    shares = {part["module"]: part["bytes"] for part in data["modules"]}
    assert shares == {"": data["weight_bytes"], "first": 576, "second": 272}
    assert "graph" not in data


def test_inspect_shows_no_control_characters(run: Runner) -> None:
    name = "\x1b[2Jinner"
    model = torch.nn.Module()
    model.add_module(name, torch.nn.ReLU())
    model.forward = lambda x: model._modules[name](x)  # type: ignore[method-assign]
    ep = gp.export(model, (torch.ones(3, 4),))
    gp.save(ep, "p.gpx")
    done = run("inspect", "p.gpx", "--graph", "--depth", "9")
    assert done.code == 0, done.err
    assert "inner" in done.out
    assert "\x1b" not in done.out + done.err + str(ep)


def test_inspect_does_not_need_the_weights(run: Runner) -> None:
    argv = ("export", "models.py:wide", "-o", "m.onnx", "--external-data")
    run(*argv, "--input", "input=f32[2,64]")
    next(Path().glob("m.onnx.*.data")).unlink()
    assert run("inspect", "m.onnx", "--json").data["weight_bytes"] == 4 * (64 * 64 + 64)


def test_inspect_a_program(run: Runner) -> None:
    def head(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: y.shape[0]] + 1

    sizes = {"x": {0: gp.Dim("long", max=9)}, "y": {0: gp.Dim("short", max=5)}}
    gp.save(gp.export(head, (torch.ones(4), torch.ones(2)), dynamic_shapes=sizes), "p.gpx")
    done = run("inspect", "p.gpx", "--graph")
    assert done.code == 0, done.err
    assert "x     f32[long]" in done.out and "short  0..5" in done.out
    assert "ExportedProgram:" in done.out
    data = run("inspect", "p.gpx", "--json").data
    assert data["kind"] == "program" and data["nodes"] >= 2


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("gone.onnx", "there is no file gone.onnx"),
        ("models.py", "models.py is neither an ONNX file nor a program"),
        ("bad.onnx", "bad.onnx is not an ONNX file"),
    ],
)
def test_inspect_refuses_other_files(run: Runner, file: str, says: str) -> None:
    Path("bad.onnx").write_bytes(b"\xff\xff not a model")
    done = run("inspect", file)
    assert done.code == 2
    assert says in done.err


def test_a_broken_program(run: Runner) -> None:
    Path("bad.gpx").write_bytes(b"PK not a program")
    done = run("inspect", "bad.gpx")
    assert done.code == 1
    assert done.err.startswith("GP400")


def test_what_the_output_cannot_encode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "mödel.py").write_text("import torch\nmodel = torch.nn.ReLU()\n")
    command = [sys.executable, "-m", "graphport", "export", "mödel.py:model", "-o", "ö.onnx"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*command, "--input", "input=f32[2]"], capture_output=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(rb"m\xf6del.py:model -> \xf6.onnx")


def test_a_full_disk_is_not_our_fault(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("graphport.program.atomic_write.os.fsync", full)
    done = run("export", "models.py:build", "-o", "m.onnx")
    assert done.code == 1
    assert done.err == "GP400 a file cannot be written or read: No space left on device\n"


def test_a_file_that_cannot_be_written(run: Runner) -> None:
    long = "a" * 300
    done = run("export", "models.py:build", "-o", f"{long}.onnx")
    assert done.code == 2
    assert done.err == f"GP190 {long}.onnx: File name too long\n"
