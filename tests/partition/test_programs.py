"""Exported programs: sizes from what export knows, state once per partition, called as before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.partition import NodeLatency, PartitionMode
from tests.partition.graphs import MODES, assert_sound, partitioned
from tests.partition.test_modes import Recommender


class Model(nn.Module):
    """A tied weight, a buffer that counts, parts of a tuple, keywords, a size among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, shift: dict[str, Tensor]) -> dict[str, Any]:
        self.calls += 1
        y = self.second(self.norm(self.first(x)).relu())
        left, right = y.split(4, 1)
        return {"sum": left + right + shift["by"], "rows": x.shape[0], "calls": self.calls * 1}


def exported() -> tuple[Model, gp.ExportedProgram, tuple[Tensor], dict[str, Any]]:
    model = Model().eval()
    args, kwargs = (torch.randn(6, 8),), {"shift": {"by": torch.ones(4)}}
    spec = {"x": {0: gp.Dim("rows", min=2)}, "shift": {"by": None}}
    return model, gp.export(model, args, kwargs, dynamic_shapes=spec), args, kwargs


def costs(ep: gp.ExportedProgram) -> dict[str, NodeLatency]:
    ops = [n for n in ep.module().graph.nodes if n.op.startswith("call_")]
    return {node.name: NodeLatency(1.0, 1.0 + i % 3) for i, node in enumerate(ops)}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_called_as_the_module_is(mode: PartitionMode) -> None:
    model, ep, _, _ = exported()
    result = partitioned(
        ep, [900] * 4, mode, node_to_latency_mapping=costs(ep), transfer_rate_bytes_per_sec=100.0
    )
    assert len(result.partitions) > 1
    assert_sound(result)
    run, eager = result.module_with_submodules, copy.deepcopy(model)
    for rows in (6, 3, 9):
        x, shift = torch.randn(rows, 8), {"by": torch.randn(4)}
        expected, found = eager(x, shift=shift), run(x, shift=shift)
        assert found.keys() == expected.keys() and found["rows"] == rows
        torch.testing.assert_close(found, expected)
    with pytest.raises(Exception, match="to be >= 2, but got 1"):
        run(torch.randn(1, 8), shift=shift)
    assert ep.state_dict["calls"] == 0


def test_sizes_are_those_of_the_example() -> None:
    _, ep, _, _ = exported()
    result = partitioned(ep, [10_000], PartitionMode.size_based)
    nodes = {n.name: n for n in result.graph_module.graph.nodes}
    assert nodes["linear"].size_bytes == (6 * 8 * 4, 6 * 8 * 4)
    assert nodes["p_first_weight"].size_bytes.total_size == 8 * 8 * 4
    assert nodes["split"].size_bytes.output_size == 6 * 8 * 4


def test_a_tied_weight_is_counted_once_per_partition() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).relu() @ self.weight

    ep = gp.export(Twice(), (torch.ones(2, 8),))
    ops = [n.name for n in ep.module().graph.nodes if n.op.startswith("call_")]

    def sizes(*ids: int) -> list[int]:
        result = partitioned(
            ep,
            (10_000,),
            PartitionMode.aot_based,
            node_to_partition_mapping=dict(zip(ops, ids, strict=True)),
            partition_to_logical_device_mapping={number: [0] for number in ids},
        )
        return [p.used_mem_bytes for p in result.partitions]

    weight, value = 8 * 8 * 4, 2 * 8 * 4
    assert sizes(0, 0, 0) == [weight + 4 * value]
    assert sizes(0, 0, 1) == [weight + 3 * value, weight + 2 * value]


def test_a_recommender() -> None:
    model = Recommender()
    args = torch.rand(2, 4), torch.arange(8), torch.tensor([0, 4])
    ep = gp.export(model, args)
    result = partitioned(ep, [30_000] * 3, PartitionMode.sparse_nn)
    torch.testing.assert_close(result.module_with_submodules(*args), model(*args))
    small = partitioned(ep, [14_000] * 4, PartitionMode.sparse_nn)
    assert_sound(small)
    assert len(small.partitions) > 1
    torch.testing.assert_close(small.module_with_submodules(*args), model(*args))


def test_from_profile_to_pipeline() -> None:
    _, ep, args, kwargs = exported()
    latencies = gp.partition.latencies(gp.partition.profile(ep, *args, runs=2, **kwargs))
    result = partitioned(
        ep,
        [5000] * 3,
        PartitionMode.optimal,
        node_to_latency_mapping=latencies,
        transfer_rate_bytes_per_sec=1e9,
    )
    assert result.value is not None and result.bound is not None
    assert 0 < result.bound <= result.value <= sum(found[0] for found in latencies.values()) + 1e-9
