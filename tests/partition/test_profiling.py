"""What nodes take, measured."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import graphport as gp
from graphport.errors import InputError
from graphport.partition import NodeLatency, NodeProfile, latencies, profile
from tests.partition.test_programs import exported


def slow(x: Tensor) -> Tensor:
    time.sleep(0.005)
    return x + 1


torch.fx.wrap("slow")


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
        y = slow(x)
        z = self.layer(y)
        return z * scale, y


def test_times_and_bytes() -> None:
    gm = symbolic_trace(Steps())
    found = {node.name: p for node, p in profile(gm, torch.ones(2, 4), runs=3).items()}
    assert list(found) == ["slow", "layer", "mul"]
    assert 0.005 <= found["slow"].latency_s < 0.1
    assert found["layer"].latency_s < 0.005
    assert [p.output_bytes for p in found.values()] == [32, 64, 64]
    # x and y; y, z and the layer (x is dead); y, z and the result.
    assert [p.peak_bytes for p in found.values()] == [64, 32 + 64 + 160, 32 + 64 + 64]


def test_arguments_as_the_module_takes_them() -> None:
    gm = symbolic_trace(Steps())
    x = torch.ones(2, 4)
    for found in (profile(gm, x, 3.0, runs=1), profile(gm, x=x, scale=1.0, runs=1)):
        assert len(found) == 3
    with pytest.raises(TypeError):
        profile(gm, runs=1)
    with pytest.raises(InputError, match="runs is an int of at least 1"):
        profile(gm, x, runs=0)


def test_programs() -> None:
    model, ep, args, kwargs = exported()
    by_name = {node.name: p for node, p in profile(ep, *args, runs=2, **kwargs).items()}
    by_example = profile(ep, runs=1)
    assert by_name.keys() == {node.name for node in by_example}
    assert by_name["split"].output_bytes == 6 * 8 * 4
    assert by_name["sym_size_int"].output_bytes == 0
    # What the runs counted is forgotten.
    assert ep.state_dict["calls"] == 0 and model.calls == 0
    module = ep.module()
    profile(module, *args, runs=2, **kwargs)
    assert module.calls == 0


def test_inputs_are_left_as_they_were() -> None:
    gm = symbolic_trace(lambda x: x.add_(1))
    x = torch.zeros(2)
    profile(gm, x)
    assert not x.any()


def test_latencies() -> None:
    gm = symbolic_trace(Steps())
    (node, *_) = gm.graph.nodes
    assert latencies({node: NodeProfile(0.5, 1, 2)}) == {node: NodeLatency(0.5, 0.5)}
    assert gp.partition.profile is profile


class Cache(nn.Module):
    """Has room for two runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(2, 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, self.at[None], x[None])
        self.at.add_(1)
        return self.rows.sum(0)


def test_every_run_begins_with_the_same_state() -> None:
    module = gp.export(Cache(), (torch.ones(3),)).module()
    profile(module, torch.ones(3), runs=4)
    assert module.at == 0 and not module.rows.any()


def test_parts_of_one_memory_are_held_together() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            parts = (x + 1).chunk(2)
            return parts[0].sin(), parts[1].sin()

    gm = symbolic_trace(Halves())
    found = {node.name: p.peak_bytes for node, p in profile(gm, torch.ones(8)).items()}
    # Both halves and a sine of 16 bytes; then what is left of them.
    assert (found["chunk"], found["sin"], found["sin_1"]) == (32, 48, 48)
