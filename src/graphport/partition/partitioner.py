"""`Partitioner`: partitions a graph by the configured mode and splits it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch import nn
from torch.fx import GraphModule, Node

from graphport.arguments import MODULE, NONE, check_arguments, instance_of
from graphport.errors import InputError
from graphport.fx.manipulation import get_size_of_all_nodes
from graphport.fx.split import split_module
from graphport.partition import modes
from graphport.partition.config import (
    LATENCY_MODES,
    Device,
    PartitionerConfig,
    PartitionMode,
    check_config,
    check_device_ids,
)
from graphport.partition.costs import (
    Problem,
    check_memory,
    get_node_latency,
    graph_bytes,
    make_problem,
    make_whole_partition,
)
from graphport.partition.optimal import Plan, bound_plan, optimal
from graphport.partition.partition import DAG, DAGNode, Partition, PartitionResult
from graphport.partition.place import (
    map_nodes_to_partitions,
    mark_effect_dependencies,
    set_parents_and_children,
)
from graphport.program import ExportedProgram

MODES: dict[PartitionMode, Callable[[Problem], list[Partition]]] = {
    PartitionMode.size_based: modes.size_based,
    PartitionMode.sparse_nn: modes.sparse_nn,
    PartitionMode.cost_aware: modes.cost_aware,
    PartitionMode.kl_based: modes.kl_based,
}
"""What cuts a graph that no single device holds."""


_CONFIG = instance_of("a PartitionerConfig", "graphport.partition.config:PartitionerConfig")


class Partitioner:
    """Splits a graph over devices.

    After `partition_graph`, `partitions` has the partitions, `node_to_partition` the id of the
    partition of every operator, and `devices` the devices of the configuration.
    """

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.node_to_partition: dict[Node, int] = {}
        self.devices: Sequence[Device] = []

    @check_arguments(torch_module=MODULE | NONE, partitioner_config=_CONFIG)
    def partition_graph(
        self,
        fx_module: GraphModule | ExportedProgram,
        torch_module: nn.Module | None,
        partitioner_config: PartitionerConfig,
    ) -> PartitionResult:
        """Partition a graph, or an exported program, and split it accordingly.

        Sizes come from `node.meta`: what `gp.fx.get_size_of_all_nodes(gm, args)` found, or what
        export recorded, where a dynamic size counts as in the example inputs. Unless the mode is
        `aot_based` or `optimal`, a graph that fits one device is one partition on the largest.
        Of an exported program, `module_with_submodules` is called as `ep.module()` is.

            >>> import torch, graphport as gp
            >>> from graphport.partition import Device, Partitioner, PartitionerConfig
            >>> model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
            >>> ep = gp.export(model, (torch.randn(2, 8),))
            >>> devices = [Device("a", 900, 0), Device("b", 900, 1)]
            >>> result = Partitioner().partition_graph(ep, model, PartitionerConfig(devices))
            >>> [(node.size_bytes, node.logical_device_ids) for node in result.dag.nodes]
            [(768, [0]), (768, [1])]

        Raises `gp.errors.PartitionError`, a `RuntimeError`, if devices are too few or a node is too
        large for every one of them.
        """
        if isinstance(fx_module, ExportedProgram):
            fx_module = fx_module.module()
        if not isinstance(fx_module, GraphModule):
            raise InputError(
                f"partition_graph takes a GraphModule or an ExportedProgram, not"
                f" {type(fx_module).__name__}",
                fix=["torch.fx.symbolic_trace(model)", "gp.export(model, args)"],
            )
        config = partitioner_config
        check_config(config)
        get_size_of_all_nodes(fx_module)
        mark_effect_dependencies(fx_module)
        job = make_problem(fx_module, config)
        plan = _make_plan(job)
        self.devices = config.devices
        self.partitions = plan.partitions
        set_parents_and_children(self.partitions)
        if config.saturate_host:
            modes.saturate_host(self.partitions, self.devices)
            if plan.bound is not None and any(
                len(p.logical_device_ids) > 1 for p in plan.partitions
            ):
                plan.exact = False  # of one stage per device
                bound_plan(job, plan)
        of = map_nodes_to_partitions(self.partitions)
        self.node_to_partition = {node: of[node].partition_id for node in job.ops}
        split = split_module(fx_module, torch_module, self.node_to_partition.__getitem__)
        known = all(node in job.latencies for node in job.ops)
        return PartitionResult(
            dag=_make_dag(split, {str(p.partition_id): p for p in self.partitions}),
            module_with_submodules=split,
            graph_module=fx_module,
            partitions=self.partitions,
            devices=self.devices,
            node_to_latency_mapping=job.latencies,
            transfer_rate_bytes_per_sec=job.rate,
            objective=config.objective,
            value=job.value(self.partitions) if known and job.rate > 0 else None,
            bound=plan.bound,
            exact=plan.exact,
            chosen=plan.chosen,
        )


def _make_plan(job: Problem) -> Plan:
    mode = job.config.mode
    if mode is PartitionMode.aot_based:
        return Plan(modes.aot_based(job), mode.name)
    if mode in LATENCY_MODES:
        for node in job.ops:
            get_node_latency(node, job.latencies)
    if mode is not PartitionMode.optimal and graph_bytes(job) <= job.largest.available_mem_bytes:
        return Plan(make_whole_partition(job), "one device")
    check_memory(job)
    check_device_ids(job.devices)
    if mode is PartitionMode.optimal:
        return optimal(job, MODES)
    return Plan(MODES[mode](job), mode.name)


def _make_dag(split: GraphModule, partitions: dict[str, Partition]) -> DAG:
    """The calls of submodules, in the order in which they run."""
    dag = DAG()
    for node in split.graph.nodes:
        if node.op != "call_module":
            continue
        partition = partitions[str(node.target).removeprefix("submod_").rstrip("_")]
        parts = [user for user in node.users if user.target is operator.getitem]
        dag.nodes.append(
            DAGNode(
                node,
                list(node.all_input_nodes),
                parts or [node],
                partition.logical_device_ids,
                partition.used_mem_bytes,
            )
        )
    return dag
