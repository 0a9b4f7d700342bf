"""Targets: what a file is written for, and that only a file for this runtime depends on it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

import graphport as gp
from graphport.cli.arguments import build_parser
from graphport.onnx.target import kernels, session, targets
from graphport.onnx.target.targets import ONNX, ORT, TARGETS
from graphport.partition.pipelines.stage_server import make_stage_runner

NOT_INSTALLED = """
import sys
from importlib import abc, metadata
class Refusing(abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusing())
def version(name, of=metadata.version):
    if name == "onnxruntime":
        raise metadata.PackageNotFoundError(name)
    return of(name)
metadata.version = version
"""
ANOTHER_RELEASE = """
import onnxruntime
from importlib import metadata
onnxruntime.__version__ = "1.23.0"
def version(name, of=metadata.version):
    return "1.23.0" if name == "onnxruntime" else of(name)
metadata.version = version
"""

# Programs whose lowerings ask for kernels: of dtypes that have none, in newer opsets, of operators
# that are written out without them.
EXPORTS = """
exec({prelude!r})
import hashlib, json, torch, graphport as gp
F = torch.nn.functional
floats = torch.linspace(-2, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
torch.manual_seed(0)
conv = torch.nn.Conv2d(3, 4, 3)
net = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(4), torch.nn.GELU("tanh"))
net_in_double = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ELU()).double()
programs = {{
    "net": (net.eval(), floats),
    "net in double": (net_in_double, floats.double()),
    "pooled integers": (lambda x: F.max_pool2d(x, 2), floats.to(torch.int8)),
    "half": (lambda x: x.exp() + F.softplus(x), floats.bfloat16()),
    "products": (lambda x: x.cumprod(1, dtype=x.dtype) @ x.mT, floats.to(torch.int16)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), floats),
    "norm": (lambda x: F.layer_norm(F.rms_norm(x + x, (8,)) + x, (8,)), floats),
    "drawn": (lambda x: x + torch.rand_like(x) + torch.randn_like(x), floats),
}}
written = {{}}
shapes = ({{0: gp.Dim("n", min=2)}},)
for name, (model, x) in programs.items():
    made = gp.onnx.export(model, (x,), target="{target}", dynamic_shapes=shapes)
    made.save("{folder}/model.onnx")
    octets = open("{folder}/model.onnx", "rb").read()
    written[name] = [made.opset, hashlib.sha256(octets).hexdigest()]
print(json.dumps(written))
"""


def exported(
    python: Callable[[str], str], folder: Path, target: str, prelude: str
) -> dict[str, Any]:
    code = EXPORTS.format(prelude=prelude, target=target, folder=folder)
    return json.loads(python(code))


def test_a_standard_file_depends_on_nothing_that_is_installed(
    fresh_python: Callable[[str], str], tmp_path: Path
) -> None:
    usual = exported(fresh_python, tmp_path, "onnx", "")
    assert {opset for opset, _ in usual.values()} == {21, 24}
    assert exported(fresh_python, tmp_path, "onnx", NOT_INSTALLED) == usual
    assert exported(fresh_python, tmp_path, "onnx", ANOTHER_RELEASE) == usual


def test_a_file_for_onnx_runtime_is_of_an_opset_that_it_has(
    fresh_python: Callable[[str], str], tmp_path: Path
) -> None:
    found = exported(fresh_python, tmp_path, "ort", ANOTHER_RELEASE)
    assert {opset for opset, _ in found.values()} == {21, 23}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], None]]:
    """Have a release of ONNX Runtime be the installed one."""

    def pretend(version: str | None) -> None:
        def find(package: str) -> str:
            if version is None:
                raise metadata.PackageNotFoundError(package)
            return version

        targets._find_installed_version.cache_clear()
        monkeypatch.setattr(metadata, "version", find)

    yield pretend
    targets._find_installed_version.cache_clear()


@pytest.mark.parametrize(
    ("version", "opset"),
    [("1.19.2", 21), ("1.23.0", 23), ("1.24.0", 24), ("1.99.0", 24), (None, 23)],
)
def test_default_opsets(
    version: str | None, opset: int, install: Callable[[str | None], None]
) -> None:
    install(version)
    found = {name: target.default_opset() for name, target in TARGETS.items()}
    assert found == {"onnx": 24, "ort": opset}


def test_what_runs_here_is_of_an_opset_that_runs_here(
    install: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages of pipelines and regions of torch.compile, of standard operators too."""
    opsets = []

    def open_session(model: bytes, *how: Any, opened: Any = session.open_session) -> Any:
        opsets.append(onnx.load_from_string(model).opset_import[0].version)
        return opened(model, *how)

    install("1.23.0")
    monkeypatch.setattr(session, "open_session", open_session)
    make_stage_runner("ort", gp.export(torch.sin, (torch.ones(2),)))
    backend = gp.ort.OrtBackend({"export_options": {"target": "onnx"}})
    torch.compile(lambda x: x.cos(), backend=backend)(torch.ones(2))
    assert [n for n in opsets if n != 18] == [23, 23]  # 18: a model of nothing, to copy options


def test_kernels_say_which_release_they_were_read_from(tmp_path: Path) -> None:
    kernels.write_table(tmp_path / "kernels.json")
    assert kernels.Kernels(tmp_path / "kernels.json").version == onnxruntime.__version__
    written = (tmp_path / "kernels.json").read_text()
    assert written == kernels.KERNELS_FILE.read_text(), "python -m graphport.onnx.target.kernels"


def test_the_newest_opset_with_kernels_of_an_operator() -> None:
    assert ONNX.newest_opset("RandomUniform", 24) == 21
    assert ONNX.newest_opset("RandomUniform", 20) == 20
    assert ONNX.newest_opset("Add", 24) == 24
    assert ONNX.newest_opset("NoSuchOperator", 24) == 11


def test_operators_beyond_the_standard() -> None:
    assert not ONNX.has("FastGelu", 24) and ORT.has("FastGelu", 24, torch.float32)
    assert not ORT.has("FastGelu", 24, torch.float64)
    for name in ORT.operators:
        found = ORT.find_signature(name, 24)
        assert found is not None and ORT.kernels.has_any(found), name
    assert targets.infer_target(["", "com.microsoft"]) == "ort"
    assert targets.infer_target(["", "graphport"]) == "onnx"


def test_another_release_is_noticed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_twice() -> list[str]:
        caplog.clear()
        session._log_other_release.cache_clear()
        for model in (torch.sin, torch.cos):
            gp.onnx.export(model, (torch.ones(2),))(torch.ones(2))
        return [record.getMessage() for record in caplog.records]

    caplog.set_level(logging.DEBUG, "graphport")
    assert run_twice() == []
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.0")
    (said,) = run_twice()
    known = metadata.version("onnxruntime")
    assert f"of ONNX Runtime {known}, and 1.23.0 is installed" in said


def test_session_options(tmp_path: Path) -> None:
    plain = ORT.session_options()
    assert plain.log_severity_level == 4
    told = ORT.session_options(log_errors=True, threads=3, folder=tmp_path)
    assert (told.log_severity_level, told.intra_op_num_threads) == (3, 3)
    key = "session.model_external_initializers_file_folder_path"
    assert told.get_session_config_entry(key) == str(tmp_path)


def test_the_command_has_every_target() -> None:
    for name in TARGETS:
        options = build_parser().parse_args(["export", "m.py:f", "-o", "m.onnx", "--target", name])
        assert options.target == name
