"""What partitions cost, against numbers found by hand and against the reference."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental import partitioner_utils

from graphport.errors import PartitionError
from graphport.partition import (
    NodeLatency,
    Partition,
    Partitioner,
    PartitionerConfig,
    PartitionMode,
    get_bottleneck_of_partitioned_graph,
    get_comm_latency_between,
    get_device_loads,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
    reorganize_partitions,
)
from tests.partition.graphs import devices, graph_total, random_latencies, random_model, traced
from tests.partition.test_modes import Steps, X


def by_size(gm: GraphModule, alone: float | None = None) -> dict[torch.fx.Node, NodeLatency]:
    """Memory time is the bytes, computing time the result's; without weights, `alone` or twice."""
    found = {}
    for node in gm.graph.nodes:
        if node.op.startswith("call_"):
            output, total = node.size_bytes
            plain = 2.0 * total if alone is None else alone
            found[node] = NodeLatency(float(total), plain if output == total else float(output))
    return found


def test_partitions_and_the_critical_path() -> None:
    gm = traced(Steps(), X)
    latencies = by_size(gm)
    partitioner = Partitioner()
    partitioner.partition_graph(gm, None, PartitionerConfig(devices(200, 200)))
    first, second = partitioner.partitions
    found = get_partition_to_latency_mapping([first, second], latencies)
    assert found[first] == (128.0, 80.0, 160.0)
    assert found[second] == (16.0, 32.0, 32.0)
    # Two values of 16 bytes at 2 bytes per second are between them.
    assert get_comm_latency_between(first, second, 2) == 16.0
    assert get_latency_of_partitioned_graph([first, second], found, 2) == 160 + 16 + 32
    assert get_latency_of_partitioned_graph([first, second], found, float("inf")) == 192
    second.logical_device_ids = list(first.logical_device_ids)
    assert get_latency_of_partitioned_graph([first, second], found, 2) == 192


def test_cost_aware_finds_the_shortest() -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            for name in "abc":
                self.register_buffer(name, torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = x + self.a
            second = first + self.b
            third = self.layer(first)
            return (second + self.c) + (second + third)

    gm = traced(Wide(), X)
    latencies = by_size(gm, alone=1.0)
    partitioner = Partitioner()
    config = PartitionerConfig(
        devices(125, 125, 125, 125), PartitionMode.cost_aware, 2, latencies, objective="latency"
    )
    result = partitioner.partition_graph(gm, None, config)
    found = get_partition_to_latency_mapping(partitioner.partitions, latencies)
    assert get_latency_of_partitioned_graph(partitioner.partitions, found, 2) == 160.0
    assert result.value == 160.0


@pytest.mark.parametrize("seed", range(10))
def test_as_the_reference(seed: int) -> None:
    gm, _ = random_model(seed, 14, shared=False)
    latencies = random_latencies(gm, seed)
    partitioner = Partitioner()
    total = graph_total(gm)
    config = PartitionerConfig(devices(total // 2, total // 2, total // 2, total // 2, total))
    partitioner.partition_graph(gm, None, config._replace(devices=config.devices[:4]))
    parts = partitioner.partitions
    ours = get_partition_to_latency_mapping(parts, latencies)
    theirs = partitioner_utils.get_partition_to_latency_mapping(parts, latencies)
    assert {p: found[2] for p, found in ours.items()} == {
        p: found[2] for p, found in theirs.items()
    }
    for rate in (1.0, 7.0):
        assert get_latency_of_partitioned_graph(parts, ours, rate) == (
            partitioner_utils.get_latency_of_partitioned_graph(parts, theirs, rate)
        )


def test_many_paths_take_no_longer() -> None:
    """2**60 of them: the reference walks each."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.empty(1)
    latencies = {}
    for _ in range(60):
        left, right = (graph.call_function(torch.neg, (value,)) for _ in range(2))
        value = graph.call_function(torch.add, (left, right))
        for node in (left, right, value):
            node.meta["val"] = torch.empty(1)
            latencies[node] = NodeLatency(1.0, 0.5)
    graph.output(value)
    gm = GraphModule(torch.nn.Module(), graph)
    partitioner = Partitioner()
    partitioner.partition_graph(gm, None, PartitionerConfig(devices(400, 400, 400)))
    found = get_partition_to_latency_mapping(partitioner.partitions, latencies)
    assert get_latency_of_partitioned_graph(partitioner.partitions, found, 1e30) == (
        pytest.approx(120.0)
    )


def test_a_device_receives_a_value_once() -> None:
    gm = traced(Steps(), X)
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    latencies = dict.fromkeys(ops, NodeLatency(3.0, 1.0))
    parts = [Partition(0, ops[:2]), Partition(1, ops[2:3]), Partition(2, ops[3:])]
    for number, part in enumerate(parts):
        part.logical_device_ids = [number]
    reorganize_partitions(parts)
    loads = get_device_loads(parts, latencies, 16.0)
    # `second` goes to the last device, where two nodes use it, and `third` does.
    assert loads == {0: (6.0, 0.0), 1: (3.0, 1.0), 2: (6.0, 2.0)}
    assert get_bottleneck_of_partitioned_graph(parts, latencies, 16.0) == 8.0
    parts[1].logical_device_ids = [2]
    assert get_device_loads(parts, latencies, 16.0) == {0: (6.0, 0.0), 2: (9.0, 2.0)}


def test_what_cannot_be_said() -> None:
    gm = traced(Steps(), X)
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    parts = [Partition(0, [ops[0], ops[3]]), Partition(1, [ops[1], ops[2], ops[4]])]
    reorganize_partitions(parts)
    with pytest.raises(PartitionError, match="node 'add' has no latency"):
        get_partition_to_latency_mapping(parts, {})
    found = get_partition_to_latency_mapping(parts, dict.fromkeys(ops, NodeLatency(1, 1)))
    with pytest.raises(PartitionError, match="depend on each other"):
        get_latency_of_partitioned_graph(parts, found, 1.0)
    with pytest.raises(PartitionError, match="cannot be transferred at 0 bytes per second"):
        get_comm_latency_between(parts[0], parts[1], 0)
