"""Random graphs on random devices: partitions fit, compute the same, and run in no circles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphport as gp
from graphport.errors import PartitionError
from graphport.partition import PartitionMode
from graphport.partition.timeline import schedule_tasks
from tests.partition.graphs import (
    MODES,
    assert_sound,
    graph_total,
    partitioned,
    random_latencies,
    random_model,
)


def check(
    seed: int, nodes: int, shares: list[float], mode: PartitionMode, saturate: bool, objective: str
) -> None:
    gm, example = random_model(seed, nodes)
    total = graph_total(gm)
    memory = [int(total * share) for share in shares]
    if mode is PartitionMode.sparse_nn:
        memory = [max(memory)] * len(memory)
    latencies = random_latencies(gm, seed)
    try:
        result = partitioned(
            gm,
            memory,
            mode,
            node_to_latency_mapping=latencies,
            saturate_host=saturate,
            transfer_rate_bytes_per_sec=30.0,
            objective=objective,
        )
    except PartitionError:
        # Nothing fits in no memory; everything fits one device that holds it all.
        assert max(memory) < total
        return
    assert_sound(result)
    expected, found = gm(example), result.module_with_submodules(example)
    torch.testing.assert_close(found, expected)
    tasks = schedule_tasks(result.partitions, latencies, 30.0, 3)
    assert len(tasks) == 3 * len(result.partitions)
    busy: dict[int, float] = {}
    for task in sorted(tasks, key=lambda task: task.start):
        assert task.start >= busy.get(task.device, 0.0) - 1e-9
        assert task.start <= task.ready <= task.end
        busy[task.device] = task.end


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 14),
    st.lists(st.floats(0.1, 1.1), min_size=1, max_size=5),
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from(["bottleneck", "latency"]),
)
def test_random_graphs(
    seed: int, nodes: int, shares: list[float], mode: PartitionMode, saturate: bool, objective: str
) -> None:
    check(seed, nodes, shares, mode, saturate, objective)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 25),
    st.lists(st.floats(0.1, 1.1), min_size=1, max_size=6),
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from(["bottleneck", "latency"]),
)
def test_many_random_graphs(
    seed: int, nodes: int, shares: list[float], mode: PartitionMode, saturate: bool, objective: str
) -> None:
    check(seed, nodes, shares, mode, saturate, objective)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_random_programs(mode: PartitionMode) -> None:
    for seed in range(4):
        gm, example = random_model(seed, 10)
        ep = gp.export(gm, (example,))
        ops = [n for n in ep.module().graph.nodes if n.op.startswith("call_")]
        latencies = {node.name: gp.partition.NodeLatency(1.0, 2.0) for node in ops}
        result = partitioned(
            ep,
            [graph_total(gm)] * 3,
            mode,
            node_to_latency_mapping=latencies,
            transfer_rate_bytes_per_sec=1e3,
        )
        assert_sound(result)
        torch.testing.assert_close(result.module_with_submodules(example), gm(example))
