"""Models and random graphs for the partitioner, and what its results have to be."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, symbolic_trace

from graphport.fx import get_size_of_all_nodes
from graphport.fx.manipulation import size_bytes
from graphport.partition import (
    Device,
    NodeLatency,
    Partition,
    Partitioner,
    PartitionerConfig,
    PartitionMode,
    PartitionResult,
)

MODES = (
    PartitionMode.size_based,
    PartitionMode.sparse_nn,
    PartitionMode.cost_aware,
    PartitionMode.kl_based,
    PartitionMode.optimal,
)


def traced(model: nn.Module, *args: Tensor) -> GraphModule:
    gm = symbolic_trace(model)
    get_size_of_all_nodes(gm, args)
    return gm


def devices(*memory: int) -> list[Device]:
    return [Device(f"dev_{i}", size, i) for i, size in enumerate(memory)]


def random_model(seed: int, nodes: int, shared: bool = True) -> tuple[GraphModule, Tensor]:
    """Layers, sums and products of values of several widths; without `shared`, one input use."""
    choose = random.Random(seed)
    root = nn.Module()
    graph = Graph()
    x = graph.placeholder("x")
    values = [(x, 4)]
    for i in range(nodes):
        pool = values[-6:] if shared or i == 0 else values[1:][-6:]
        value, width = choose.choice(pool)
        kind = choose.choice(("layer", "layer", "relu", "sum", "constant"))
        if kind == "layer":
            out = choose.choice((2, 4, 8, 16))
            with torch.random.fork_rng():
                torch.manual_seed(seed * 1000 + i)
                root.add_module(f"layer{i}", nn.Linear(width, out))
            values.append((graph.call_module(f"layer{i}", (value,)), out))
        elif kind == "relu":
            values.append((graph.call_function(torch.relu, (value,)), width))
        elif kind == "sum":
            other = choose.choice([v for v, w in pool if w == width])
            values.append((graph.call_function(operator.add, (value, other)), width))
        else:
            root.register_buffer(f"c{i}", torch.full((width,), float(i)))
            constant = graph.get_attr(f"c{i}")
            values.append((graph.call_function(operator.mul, (value, constant)), width))
    graph.output(tuple(v for v, _ in values[1:] if not v.users))
    gm = GraphModule(root, graph)
    example = torch.linspace(-1, 1, 8).reshape(2, 4)
    get_size_of_all_nodes(gm, [example])
    return gm, example


def weighted_chain(costs: Sequence[float], sizes: Sequence[int]) -> tuple[GraphModule, Any]:
    """A chain of nodes that take `costs` seconds and give `sizes` bytes."""
    graph = Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.empty(0, dtype=torch.uint8, device="meta")
    latencies = {}
    for cost, size in zip(costs, sizes, strict=True):
        value = graph.call_function(torch.neg, (value,))
        value.meta["val"] = torch.empty(size, dtype=torch.uint8, device="meta")
        latencies[value] = NodeLatency(0.0, cost)
    graph.output(value)
    return GraphModule(nn.Module(), graph), latencies


def random_latencies(gm: GraphModule, seed: int) -> dict[Any, NodeLatency]:
    choose = random.Random(seed)
    return {
        node: NodeLatency(float(choose.randint(1, 20)), float(choose.randint(1, 20)))
        for node in gm.graph.nodes
        if node.op.startswith("call_")
    }


def partitioned(
    gm: Any, memory: Sequence[int], mode: PartitionMode, **options: Any
) -> PartitionResult:
    config = PartitionerConfig(devices(*memory), mode, **options)
    return Partitioner().partition_graph(gm, None, config)


def graph_total(gm: GraphModule) -> int:
    sizes: list[size_bytes] = [n.size_bytes for n in gm.graph.nodes if n.op != "output"]
    return sum(size.total_size for size in sizes)


def assert_sound(result: PartitionResult) -> None:
    """Every operator is in one partition, what a device has fits it, nothing runs in circles."""
    ops = [n for n in result.graph_module.graph.nodes if n.op.startswith("call_")]
    assert sorted(n for p in result.partitions for n in p.ops()) == sorted(ops)
    room = {device.logical_id: device.available_mem_bytes for device in result.devices}
    held: dict[int, set[Any]] = {}
    for partition in result.partitions:
        assert partition.logical_device_ids
        for number in partition.logical_device_ids:
            held.setdefault(number, set()).update(partition.nodes)
    for number, nodes in held.items():
        together = Partition(0)
        together.nodes = nodes
        together.recalculate_mem_size()
        assert together.used_mem_bytes <= room[number]
    done: set[Any] = set()
    position = {node.submodule_node: i for i, node in enumerate(result.dag.nodes)}
    for node in result.dag.nodes:
        for value in node.input_nodes:
            producer = value.args[0] if value.target is operator.getitem else value
            assert producer.op in ("placeholder", "get_attr") or producer in done
        done.add(node.submodule_node)
    assert len(position) == len(result.partitions)
