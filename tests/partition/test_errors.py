"""What cannot be partitioned says which node, how many bytes, and what the devices have."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import graphport as gp
from graphport.errors import GraphError, InputError, PartitionError
from graphport.partition import Device, Partitioner, PartitionerConfig, PartitionMode
from tests.partition.graphs import devices, partitioned, random_latencies, traced
from tests.partition.test_modes import Recommender, Steps, Sum, X


def refused(gm: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(PartitionError) as caught:
        partitioned(gm, *args, **options)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def test_devices_are_too_few() -> None:
    gm = traced(Sum(), X, X)
    text = refused(gm, (4, 4), PartitionMode.size_based)
    assert text == (
        "GP196 Devices do not have enough memory for the module: it needs 48 bytes, and 2 devices"
        " have 8 (dev_0 and 1 more 4 bytes each)\n"
        "  fix  more devices, or devices with more memory"
    )


@pytest.mark.parametrize("mode", [m for m in PartitionMode if m is not PartitionMode.aot_based])
def test_a_node_is_too_large(mode: PartitionMode) -> None:
    gm = traced(Steps(), X)
    options = {
        "node_to_latency_mapping": random_latencies(gm, 0),
        "transfer_rate_bytes_per_sec": 1.0,
    }
    text = refused(gm, (40, 100, 40, 40, 40), mode, **options)
    assert "node 'layer' is too large to fit any device: it needs 112 bytes" in text
    assert "(16 for its inputs, 96 for its weights and output)" in text
    assert "dev_0 and 3 more 40 bytes each, dev_1 100 bytes" in text
    assert "call_module[target=layer]" in text and "at least 112 bytes" in text


def test_even_with_ids_that_are_the_same() -> None:
    gm = traced(Steps(), X)
    same = [Device(f"dev_{i}", 50, 0) for i in range(9)]
    with pytest.raises(RuntimeError, match="node 'layer' is too large"):
        Partitioner().partition_graph(gm, None, PartitionerConfig(same))
    same = [Device(f"dev_{i}", 150, 0) for i in range(9)]
    with pytest.raises(RuntimeError, match="'dev_0' and 'dev_1' have the same logical_id 0"):
        Partitioner().partition_graph(gm, None, PartitionerConfig(same))


def test_pieces_do_not_fit_together() -> None:
    gm = traced(Steps(), X)
    text = refused(gm, (112, 48, 48), PartitionMode.size_based)
    assert "Cannot Get a Valid Partition to Logical Device Mapping: partition 1" in text
    assert "begins with node 'layer', needs 112 bytes" in text
    assert "the bytes left are: dev_0 32, dev_1 48, dev_2 48" in text


def test_sparse_nn() -> None:
    args = torch.rand(2, 4), torch.arange(8), torch.tensor([0, 4])
    gm = traced(Recommender(), *args)
    assert "All devices must have same memory size! They have: dev_0 9,000 bytes" in refused(
        gm, (9_000, 9_001), PartitionMode.sparse_nn
    )
    text = refused(gm, [4_700] * 4, PartitionMode.sparse_nn)
    assert "Need" in text or "can not fit into one device (4,700 bytes)" in text


def test_costs_are_needed() -> None:
    gm = traced(Steps(), X)
    for mode in (PartitionMode.cost_aware, PartitionMode.kl_based, PartitionMode.optimal):
        text = refused(gm, (150, 150), mode, node_to_latency_mapping=random_latencies(gm, 0))
        assert f"{mode.name} weighs transfers" in text and "transfer_rate_bytes_per_sec=1e9" in text
        text = refused(gm, (150, 150), mode, transfer_rate_bytes_per_sec=1.0)
        assert "node 'add' has no latency" in text
        assert "gp.partition.latencies(gp.partition.profile(gm, *args))" in text


def test_configurations() -> None:
    gm = traced(Steps(), X)
    assert "No devices" in refused(gm, (), PartitionMode.size_based)
    with pytest.raises(InputError, match="available_mem_bytes is a number of at least 0, got -1"):
        Device("d", -1, 0)
    assert "'fast' is unknown" in refused(gm, (1,), PartitionMode.size_based, objective="fast")
    assert "'optimal' is not a PartitionMode" in refused(gm, (1,), "optimal")


def test_mappings() -> None:
    gm = traced(Steps(), X)
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    ids = dict.fromkeys(ops, 0)
    aot = PartitionMode.aot_based
    assert "has no entry for add, add_1, layer, add_2, add_3" in refused(gm, (1,), aot)
    text = refused(gm, (1,), aot, node_to_partition_mapping=ids)
    assert "places partition 0 on no device, and the devices are [0]" in text
    text = refused(
        gm, (1,), aot, node_to_partition_mapping=ids, partition_to_logical_device_mapping={0: [5]}
    )
    assert "places partition 0 on [5]" in text
    circular = {node: i % 2 for i, node in enumerate(ops)}
    text = refused(
        gm,
        (1,),
        aot,
        node_to_partition_mapping=circular,
        partition_to_logical_device_mapping={0: [0], 1: [0]},
    )
    assert "depend on each other" in text


def test_nothing_to_partition() -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert "no operations in the module" in refused(
        traced(Same(), X), (1,), PartitionMode.size_based
    )
    with pytest.raises(InputError, match="takes a GraphModule or an ExportedProgram, not Same"):
        Partitioner().partition_graph(Same(), None, PartitionerConfig(devices(1)))
    with pytest.raises(InputError, match="not Same"):
        gp.partition.profile(Same(), X)


def test_sizes_are_needed() -> None:
    gm = symbolic_trace(Sum())
    with pytest.raises(GraphError, match="the shape of the node a is not known"):
        partitioned(gm, (100,), PartitionMode.size_based)
    node = next(n for n in gm.graph.nodes if n.target is operator.add)
    with pytest.raises(PartitionError, match="has no size"):
        gp.partition.Partition(0, [node])
