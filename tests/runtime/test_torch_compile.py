"""How torch.compile finds the backend: through entry points, without an import of graphport."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import torch

from graphport.runtime import OrtBackend, torch_compile


def run(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_entry_points_of_the_package():
    found = {e.name: e.value for e in entry_points(group="torch_dynamo_backends")}
    assert found["graphport"] == found["onnxrt"] == "graphport.runtime.torch_compile:backend"


def test_torch_lists_the_backend_and_finds_it():
    assert {"graphport", "onnxrt"} <= set(torch._dynamo.list_backends())
    for name in ("graphport", "onnxrt"):
        assert torch._dynamo.lookup_backend(name) is torch_compile.backend


def test_a_fresh_process_that_never_imports_graphport():
    code = """
import sys
import torch

def ours():
    return sorted(m for m in sys.modules if m.split(".")[0] in ("graphport", "onnx", "onnxruntime"))

assert ours() == [], ours()
assert {"graphport", "onnxrt"} <= set(torch._dynamo.list_backends())
assert ours() == [], ours()
print(torch.compile(lambda x: x * 2 + 1, backend="onnxrt")(torch.ones(3)).tolist())
from graphport.ort import OrtBackend
print([b.execution_count for b in OrtBackend.get_cached_instances()])
"""
    assert run(code).splitlines() == ["[3.0, 3.0, 3.0]", "[1]"]


def test_an_instance_is_a_backend_too():
    backend = OrtBackend()
    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert backend.execution_count == 1


def test_modes_belong_to_other_backends():
    compiled = torch.compile(lambda x: x + 1, backend="graphport", mode="default")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_graph_with_parameters_of_its_own_runs_in_torch():
    """What becomes of the parameters could not be seen."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    x, backend = torch.randn(4, 3), OrtBackend()
    call = backend(torch.fx.symbolic_trace(model), [x])
    torch.testing.assert_close(call(x), model(x))
    assert "parameters of its own" in backend.explain()
