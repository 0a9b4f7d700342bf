"""Large models: memory stays far below the weights, which go from one file to another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import safetensors.torch as safetensors
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError

ROOT = Path(__file__).resolve().parents[3]

# A stack of layers under fake_mode, from shards to a file; prints how much memory that took at
# most, beyond that of a process which has exported something small.
_CHILD = """
import json, resource, sys
import torch
import graphport as gp

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

class Stack(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

folder, target, width, layers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
small = gp.onnx.export(Stack(8, 2), (torch.ones(2, 3, 8),), dynamic_shapes=({0: gp.Dim("n")},))
small.save(target)
before = peak()
with gp.fake_mode():
    model = Stack(width, layers)
program = gp.onnx.export(model, (torch.ones(2, 3, width),), dynamic_shapes=({0: gp.Dim("n")},))
program.save(target, state_dict=folder, external_data=True)
print(json.dumps([before, peak()]))
"""


def write_shards(folder: Path, width: int, layers: int, per_shard: int) -> int:
    """A checkpoint of a stack of layers; its size in bytes."""
    places, total = {}, 0
    for start in range(0, layers, per_shard):
        file = f"model-{start}.safetensors"
        part = {}
        for i in range(start, min(start + per_shard, layers)):
            part[f"layers.{i}.weight"] = torch.full((width, width), 0.5 / width)
            part[f"layers.{i}.bias"] = torch.full((width,), float(i))
        safetensors.save_file(part, folder / file)
        places.update(dict.fromkeys(part, file))
        total += sum(t.nbytes for t in part.values())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    return total


def export_in_a_process(folder: Path, target: Path, width: int, layers: int) -> tuple[int, int]:
    """Memory before and at most, in bytes."""
    command = [sys.executable, "-c", _CHILD, str(folder), str(target), str(width), str(layers)]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    before, most = json.loads(done.stdout)
    return before, most


@pytest.mark.slow
def test_memory_stays_far_below_the_weights(tmp_path: Path) -> None:
    width, layers = 2048, 64
    total = write_shards(tmp_path, width, layers, per_shard=16)
    target = tmp_path / "model.onnx"
    before, most = export_in_a_process(tmp_path, target, width, layers)
    assert most - before < total / 8  # 1 GB of weights; the largest has 16 MB
    session = onnxruntime.InferenceSession(target)
    (out,) = session.run(None, {"x": torch.ones(1, 3, width).numpy()})
    want = torch.ones(())
    for i in range(layers):
        want = 0.5 * want + i
    torch.testing.assert_close(
        torch.from_numpy(out), want.expand(1, 3, width), rtol=1e-4, atol=1e-4
    )


class Wide(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


@pytest.mark.slow
def test_large_weights_go_beside_by_themselves(tmp_path: Path) -> None:
    size = 400_000_000
    with gp.fake_mode():
        program = gp.onnx.export(Wide(size), (torch.empty(1),))
    ones = torch.ones(1).expand(size)  # takes no memory
    program.save(tmp_path / "m.onnx", state_dict={"w": ones})
    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    (data,) = tmp_path.glob("m.onnx.*.data")
    assert data.stat().st_size == size * 4
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert proto.graph.initializer[0].external_data


def test_what_no_single_file_can_hold(tmp_path: Path) -> None:
    with gp.fake_mode():
        program = gp.onnx.export(Wide(600_000_000), (torch.empty(1),))
    ones = torch.ones(1).expand(600_000_000)
    with pytest.raises(InputError, match=r"ends at 2 GB, and the weights take 2\.4 GB"):
        program.save(tmp_path / "m.onnx", external_data=False, state_dict={"w": ones})
    assert list(tmp_path.iterdir()) == []
