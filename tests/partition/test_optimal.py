"""`optimal` against brute force: exact for chains, within its bound otherwise, never worse."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from graphport.fx import get_size_of_all_nodes
from graphport.partition import (
    NodeLatency,
    Partition,
    PartitionMode,
    PartitionResult,
    get_bottleneck_of_partitioned_graph,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
    reorganize_partitions,
    simulate,
)
from graphport.partition.orders import IntervalWeights
from graphport.partition.place import sort_topologically
from tests.partition.graphs import (
    MODES,
    assert_sound,
    graph_total,
    partitioned,
    random_latencies,
    random_model,
    weighted_chain,
)


def value_of(parts: list[Partition], latencies: dict, rate: float, objective: str) -> float:
    reorganize_partitions(parts)
    if sort_topologically(parts) is None:
        return math.inf
    if objective == "bottleneck":
        return get_bottleneck_of_partitioned_graph(parts, latencies, rate)
    found = get_partition_to_latency_mapping(parts, latencies)
    return get_latency_of_partitioned_graph(parts, found, rate)


def pipelines(gm: GraphModule, memory: list[int]) -> Iterator[list[Partition]]:
    """All ways to cut the graph's own order into stages, each on a device of its own."""
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    for count in range(1, min(len(ops), len(memory)) + 1):
        for cuts in itertools.combinations(range(1, len(ops)), count - 1):
            ends = [0, *cuts, len(ops)]
            parts = [Partition(i, ops[ends[i] : ends[i + 1]]) for i in range(count)]
            for chosen in itertools.permutations(range(len(memory)), count):
                if all(p.used_mem_bytes <= memory[d] for p, d in zip(parts, chosen, strict=True)):
                    for part, device in zip(parts, chosen, strict=True):
                        part.logical_device_ids = [device]
                    yield parts


def assignments(gm: GraphModule, memory: list[int]) -> Iterator[list[Partition]]:
    """All ways to give every node a device, with one partition per device."""
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    for devices in itertools.product(range(len(memory)), repeat=len(ops)):
        parts = []
        for device in sorted(set(devices)):
            part = Partition(0, [n for n, d in zip(ops, devices, strict=True) if d == device])
            part.logical_device_ids = [device]
            parts.append(part)
        if all(p.used_mem_bytes <= memory[p.logical_device_ids[0]] for p in parts):
            yield parts


numbers = st.integers(0, 30)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=7),
    st.lists(st.integers(20, 120), min_size=1, max_size=3),
    st.sampled_from(["bottleneck", "latency"]),
    st.sampled_from([0.5, 3.0, float("inf")]),
)
def test_exact_for_chains(
    nodes: list[tuple[int, int]], memory: list[int], objective: str, rate: float
) -> None:
    gm, latencies = weighted_chain([float(c) for c, _ in nodes], [s for _, s in nodes])
    get_size_of_all_nodes(gm)
    best = min(
        (value_of(parts, latencies, rate, objective) for parts in pipelines(gm, memory)),
        default=math.inf,
    )
    options = {
        "node_to_latency_mapping": latencies,
        "transfer_rate_bytes_per_sec": rate,
        "objective": objective,
    }
    try:
        result = partitioned(gm, memory, PartitionMode.optimal, **options)
    except RuntimeError:
        assert best == math.inf
        return
    assert result.value is not None and result.bound is not None
    assert result.value <= best * (1 + 1e-12)
    assert result.bound <= result.value
    if result.exact and result.chosen.endswith("stages"):
        assert result.value == pytest.approx(best, rel=1e-12)
        assert result.bound == result.value
    else:
        # Something that is no pipeline is better, and there may be no pipeline at all.
        assert result.value < best or result.bound == result.value
    assert_sound(result)


def test_a_chain_is_exact() -> None:
    gm, latencies = weighted_chain([5, 1, 1, 1, 5, 1, 1, 1], [9, 9, 1, 9, 9, 1, 9, 9])
    options = {"node_to_latency_mapping": latencies, "transfer_rate_bytes_per_sec": 1.0}
    result = partitioned(gm, [100, 100], PartitionMode.optimal, **options)
    assert (result.value, result.bound, result.exact) == (10.0, 10.0, True)
    assert [len(p.ops()) for p in result.partitions] == [3, 5]
    path = partitioned(gm, [50, 50], PartitionMode.optimal, objective="latency", **options)
    # Somewhere it has to be cut: where one byte crosses.
    assert (path.value, path.exact) == (16 + 1, True)


def test_devices_are_taken_in_any_order() -> None:
    """The large stage is last, the large device first."""
    gm, latencies = weighted_chain([1, 1, 1, 1], [1, 1, 1, 50])
    options = {"node_to_latency_mapping": latencies, "transfer_rate_bytes_per_sec": 1e9}
    result = partitioned(gm, [60, 5, 5], PartitionMode.optimal, **options)
    assert result.exact
    assert result.partitions[-1].logical_device_ids == [0]
    assert_sound(result)


@pytest.mark.parametrize("objective", ["bottleneck", "latency"])
@pytest.mark.parametrize("seed", range(8))
def test_within_the_bound(seed: int, objective: str) -> None:
    gm, example = random_model(seed, 6)
    latencies = random_latencies(gm, seed)
    ops = [n for n in gm.graph.nodes if n.op.startswith("call_")]
    tight, roomy = graph_total(gm) * 3 // 4, graph_total(gm) * 2
    for size, rate in ((tight, 50.0), (roomy, 50.0), (roomy, 4.0)):
        memory = [size] * 3
        options = {
            "node_to_latency_mapping": latencies,
            "transfer_rate_bytes_per_sec": rate,
            "objective": objective,
        }
        found = (value_of(p, latencies, rate, objective) for p in assignments(gm, memory))
        best = min(found, default=math.inf)
        result = partitioned(gm, memory, PartitionMode.optimal, **options)
        assert result.value is not None and result.bound is not None
        assert result.bound <= min(best, result.value)
        if objective == "bottleneck" and size == roomy:
            crossing = max(
                sum(n.size_bytes.output_size for n in ops[:i] if any(u in ops[i:] for u in n.users))
                for i in range(len(ops))
            )
            assert result.value <= 2 * result.bound + crossing / rate
        assert result.value <= best * 1.5
        torch.testing.assert_close(result.module_with_submodules(example), gm(example))


@pytest.mark.parametrize("objective", ["bottleneck", "latency"])
@pytest.mark.parametrize("seed", range(6))
def test_never_worse(seed: int, objective: str) -> None:
    gm, _ = random_model(seed, 12)
    total = graph_total(gm)
    options = {
        "node_to_latency_mapping": random_latencies(gm, seed),
        "transfer_rate_bytes_per_sec": 20.0,
        "objective": objective,
    }
    for memory in ([total * 2 // 3] * 3, [total] * 2, [total, total // 2, total // 3, total // 3]):
        found: dict[PartitionMode, PartitionResult] = {}
        for mode in MODES:
            try:
                found[mode] = partitioned(gm, memory, mode, **options)
            except RuntimeError:
                continue
        best = found.pop(PartitionMode.optimal)
        assert best.value is not None
        for mode, result in found.items():
            assert result.value is not None and best.value <= result.value, mode


def test_a_mapping_that_is_given_is_a_start() -> None:
    gm, latencies = weighted_chain([1.0, 2.0, 1.0], [1, 1, 1])
    ops = list(latencies)
    options = {
        "node_to_latency_mapping": latencies,
        "transfer_rate_bytes_per_sec": float("inf"),
        "node_to_partition_mapping": dict(zip(ops, (0, 1, 2), strict=True)),
        "partition_to_logical_device_mapping": {0: [0], 1: [1], 2: [0]},
    }
    # The first device runs the first node and the last: no pipeline of two stages is as good.
    result = partitioned(gm, [10, 10], PartitionMode.optimal, **options)
    assert (result.value, result.chosen) == (2.0, "node_to_partition_mapping")
    assert result.exact


def test_a_mapping_that_does_not_fit_is_none() -> None:
    gm, latencies = weighted_chain([1.0, 1.0, 1.0], [5, 5, 5])
    options = {
        "node_to_latency_mapping": latencies,
        "transfer_rate_bytes_per_sec": 1.0,
        "node_to_partition_mapping": dict.fromkeys(latencies, 0),
        "partition_to_logical_device_mapping": {0: [0]},
        "objective": "latency",
    }
    result = partitioned(gm, [10, 10], PartitionMode.optimal, **options)
    assert (result.value, len(result.partitions)) == (8.0, 2)
    assert_sound(result)


def star(uses: int, size: int) -> tuple[GraphModule, dict]:
    """One value that many nodes take."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.neg, (x,))
    rest = [graph.call_function(torch.neg, (first,)) for _ in range(uses)]
    graph.output(rest)
    for node, octets in ((x, 0), (first, size), *((n, 1) for n in rest)):
        node.meta["val"] = torch.empty(octets, dtype=torch.uint8, device="meta")
    return GraphModule(torch.nn.Module(), graph), {n: NodeLatency(0.0, 1.0) for n in (first, *rest)}


def test_a_stage_may_need_more_than_the_whole() -> None:
    """Each of its nodes takes a copy of a large value from the stage before."""
    gm, latencies = star(3, 100)
    options = {"node_to_latency_mapping": latencies, "transfer_rate_bytes_per_sec": 1e9}
    result = partitioned(gm, [400, 400], PartitionMode.optimal, **options)
    assert len(result.partitions) == 2
    assert result.value == pytest.approx(2.0)
    (row,) = simulate(gm, latencies, 1e9, devices=(2,))
    assert row.bottleneck_s == pytest.approx(2.0)


def test_receiving_may_take_longer_than_everything_else() -> None:
    """What crosses would not delay the end; still it is received."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    slow = graph.call_function(torch.neg, (x,))
    firsts = [graph.call_function(torch.neg, (x,)) for _ in range(4)]
    pairs = [graph.call_function(torch.add, two) for two in itertools.combinations(firsts, 2)]
    graph.output([slow, *pairs])
    for node in graph.nodes:
        octets = 10 * (node in (*firsts, *pairs))
        node.meta["val"] = torch.empty(octets, dtype=torch.uint8, device="meta")
    gm = GraphModule(torch.nn.Module(), graph)
    latencies = {n: NodeLatency(0.0, 1e-6) for n in (*firsts, *pairs)}
    latencies[slow] = NodeLatency(0.0, 1.0)
    (row,) = simulate(gm, latencies, 10.0, devices=(2,), memory_bytes=90)
    assert (row.stages, row.bottleneck_s) == (2, pytest.approx(2.0, rel=1e-4))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_spans(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    weights = data.draw(st.lists(numbers, min_size=n, max_size=n))
    ends = st.integers(-1, n - 2).flatmap(
        lambda a: st.tuples(st.just(a), st.integers(a + 1, n - 1))
    )
    edges = [(a, b, data.draw(numbers)) for a, b in data.draw(st.lists(ends, max_size=12))]
    spans = IntervalWeights(weights, edges)

    def weight(i: int, j: int) -> int:
        return sum(weights[i:j]) + sum(w for a, b, w in edges if a < i <= b < j)

    for i in range(n):
        for j in range(i, n + 1):
            assert spans.weight(i, j) == weight(i, j)
    assert spans.most == max(weight(i, n) for i in range(n))
    budget = data.draw(st.integers(0, 120))
    expected = [max(j for j in range(i, n + 1) if weight(i, j) <= budget) for i in range(n)]
    assert np.array_equal(spans.reach(budget), expected)


def large(nodes: int) -> tuple[GraphModule, dict]:
    choose = random.Random(0)
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    values[0].meta["val"] = torch.empty(4, device="meta")
    for _ in range(nodes):
        back = [min(int(choose.expovariate(0.25)), len(values) - 1) for _ in range(2)]
        value = graph.call_function(torch.add, tuple(values[-1 - b] for b in back))
        value.meta["val"] = torch.empty(choose.randint(1, 1000), device="meta")
        values.append(value)
    graph.output([v for v in values if not v.users])
    latencies = {v: NodeLatency(0.0, choose.random()) for v in values[1:]}
    return GraphModule(torch.nn.Module(), graph), latencies


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["bottleneck", "latency"])
@pytest.mark.parametrize("devices", [8, 64])
def test_ten_thousand_nodes_in_ten_seconds(devices: int, objective: str) -> None:
    gm, latencies = large(10_000)
    start = time.process_time()
    result = partitioned(
        gm,
        [120_000_000 // devices] * devices,
        PartitionMode.optimal,
        objective=objective,
        node_to_latency_mapping=latencies,
        transfer_rate_bytes_per_sec=1e5,
    )
    assert time.process_time() - start < 10
    assert result.value is not None and result.bound is not None
    assert result.value <= 1.05 * result.bound
    assert_sound(result)


def test_a_thousand_nodes() -> None:
    gm, latencies = large(1000)
    memory = [1_200_000 + 40_000 * i for i in range(9)]
    result = partitioned(
        gm,
        memory,
        PartitionMode.optimal,
        node_to_latency_mapping=latencies,
        transfer_rate_bytes_per_sec=1e5,
    )
    assert result.value is not None and result.bound is not None
    assert result.value <= 1.1 * result.bound
    assert_sound(result)


def test_what_is_repeated_is_bound_by_all_devices() -> None:
    gm, latencies = weighted_chain([1.0, 3.0], [1, 1])
    options = {"node_to_latency_mapping": latencies, "transfer_rate_bytes_per_sec": float("inf")}
    alone = partitioned(gm, [9] * 2, PartitionMode.optimal, **options)
    assert (alone.value, alone.bound, alone.exact) == (3.0, 3.0, True)
    repeated = partitioned(gm, [9] * 4, PartitionMode.optimal, saturate_host=True, **options)
    assert (repeated.value, repeated.bound, repeated.exact) == (1.5, 1.0, False)
