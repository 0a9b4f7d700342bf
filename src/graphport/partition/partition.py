"""`Partition` and `PartitionResult`, and the bytes that nodes and partitions take.

The bytes of a partition are those of its nodes and of the values that its nodes take from other
partitions; a value from elsewhere is counted for every node that takes it, since each use may need
a copy in the layout that it wants. A parameter or constant is counted once, however many nodes of
the graph read it, and so are those of a module that is called several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.fx import GraphModule, Node

from graphport import arguments as kinds
from graphport.arguments import check_arguments, require_kind
from graphport.errors import PartitionError
from graphport.partition.config import Device, NodeLatency

SOURCE_OPS = ("placeholder", "get_attr")
"""Nodes that do nothing: every partition that reads one has it itself."""


def is_op(node: Node) -> bool:
    return node.op not in (*SOURCE_OPS, "output")


def output_bytes(node: Node) -> int:
    return _get_sizes(node).output_size


def total_bytes(node: Node) -> int:
    return _get_sizes(node).total_size


def _get_sizes(node: Node) -> Any:
    sizes = getattr(node, "size_bytes", None)
    if sizes is None:
        raise PartitionError(
            f"node {node.name!r} has no size",
            fix="gp.fx.get_size_of_all_nodes(graph_module, example_args)",
        )
    return sizes


@check_arguments(node=kinds.NODE, nodes=kinds.Kind("a set", lambda x: isinstance(x, AbstractSet)))
def get_extra_size_of(node: Node, nodes: set[Node]) -> int:
    """The bytes that a partition of `nodes` needs more to have `node` too."""
    taken = sum(output_bytes(n) for n in node.all_input_nodes if n not in nodes)
    return taken + total_bytes(node)


def get_effect_dependencies(node: Node) -> list[Node]:
    """What a node has to run after although it takes nothing from it.

    `place.mark_effect_dependencies` notes them.
    """
    return getattr(node, "runs_after", [])


def count_bytes(nodes: Iterable[Node]) -> int:
    """The bytes that a partition of these nodes uses."""
    return _count_memory(set(nodes))[0]


def _count_memory(nodes: set[Node]) -> tuple[int, dict[Node, int]]:
    """The bytes that nodes use together, and those of them for each value from elsewhere."""
    read: set[object] = set()
    own = 0
    taken: dict[Node, int] = {}
    for node in nodes:
        again = (node.op, node.target) in read
        if node.op in ("get_attr", "call_module"):
            read.add((node.op, node.target))
        if node.op == "get_attr" and again:
            continue
        own += output_bytes(node) if again else total_bytes(node)
        for value in node.all_input_nodes:
            if value not in nodes:
                taken[value] = taken.get(value, 0) + output_bytes(value)
    return own + sum(taken.values()), taken


PARTITION = kinds.instance_of("a Partition", f"{__name__}:Partition")
PARTITIONS = kinds.several(PARTITION)


class Partition:
    """Nodes that run together, on the devices `logical_device_ids`."""

    @check_arguments(partition_id=kinds.integer(), nodes=kinds.ITERABLE)
    def __init__(self, partition_id: int, nodes: Iterable[Node] = ()) -> None:
        self.partition_id = partition_id
        self.nodes: set[Node] = set()
        self.parents: set[Partition] = set()
        self.children: set[Partition] = set()
        self.bfs_level = -1
        self.used_mem_bytes = 0
        self.taken: dict[Node, int] = {}
        """The values that come from other partitions, and the bytes that they use here."""
        self.logical_device_ids: list[int] = []
        for node in nodes:
            require_kind("each of nodes", node, kinds.NODE)
            self.nodes.update(n for n in node.all_input_nodes if n.op in SOURCE_OPS)
            self.nodes.add(node)
        if self.nodes:
            self.recalculate_mem_size()

    def __repr__(self) -> str:
        return (
            f"Partition({self.partition_id}, {len(self.ops())} operators,"
            f" {self.used_mem_bytes:,} bytes, on {self.logical_device_ids})"
        )

    def ops(self) -> list[Node]:
        """The nodes that do something, in the order of the graph."""
        return sorted(node for node in self.nodes if is_op(node))

    def recalculate_mem_size(self) -> None:
        self.used_mem_bytes, self.taken = _count_memory(self.nodes)

    @check_arguments(node=kinds.NODE)
    def add_node(self, node: Node) -> None:
        """Add a node, and the inputs and constants that it reads."""
        self.nodes.update(n for n in node.all_input_nodes if n.op in SOURCE_OPS)
        self.nodes.add(node)
        self.recalculate_mem_size()

    @check_arguments(node=kinds.NODE)
    def remove_node(self, node: Node) -> None:
        """Remove a node, and the inputs and constants that no other node here reads."""
        if node not in self.nodes:
            return
        self.nodes.remove(node)
        for source in node.all_input_nodes:
            if source.op in SOURCE_OPS and self.nodes.isdisjoint(source.users):
                self.nodes.discard(source)
        self.recalculate_mem_size()


@dataclass(eq=False)
class DAGNode:
    """A partition as a node of the split module: what it takes, what it gives, and where it is."""

    submodule_node: Node
    input_nodes: list[Node]
    output_nodes: list[Node]
    logical_device_ids: list[int]
    size_bytes: int

    def __str__(self) -> str:
        return str(self.submodule_node)


@dataclass(eq=False)
class DAG:
    """The partitions in the order in which the split module runs them."""

    nodes: list[DAGNode] = field(default_factory=list)


@dataclass(eq=False)
class PartitionResult:
    """What `Partitioner.partition_graph` gives back.

    `value` is what the configuration's objective comes to, in seconds, where latencies were given.
    `bound`: nothing that the mode could have chosen has a smaller one; `exact`: `value` is the
    smallest. Both are found by `PartitionMode.optimal` alone.
    """

    dag: DAG
    module_with_submodules: GraphModule
    graph_module: GraphModule
    """The graph whose nodes the partitions have."""
    partitions: list[Partition]
    devices: Sequence[Device]
    node_to_latency_mapping: Mapping[Node, NodeLatency]
    transfer_rate_bytes_per_sec: float
    objective: str
    value: float | None = None
    bound: float | None = None
    exact: bool = False
    chosen: str = ""
    """How `PartitionMode.optimal` found it."""

    @check_arguments(path=kinds.PATH | kinds.NONE, micro_batches=kinds.integer(1))
    def svg(self, path: str | Path | None = None, micro_batches: int = 6) -> str:
        """A picture of the partitions and of the pipeline's timeline, also written to `path`."""
        from graphport.partition.timeline import picture

        return picture(self, path, micro_batches=micro_batches)
