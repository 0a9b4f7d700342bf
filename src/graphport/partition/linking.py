"""How partitions depend on one another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch.fx import GraphModule, Node

from graphport.arguments import takes
from graphport.fx.effects import draws, order
from graphport.partition.pieces import PARTITIONS, Partition, is_op, runs_after


def mark_order(gm: GraphModule) -> None:
    """Note on each node which ones it has to run after although it takes nothing from them.

    Those are what writes to memory, and what has effects of its own, such as drawing a number.
    """
    modules = dict(gm.named_modules(remove_duplicate=False))
    behind: dict[Node, list[Node]] = {}
    for before, after in order(gm.graph, modules):
        behind.setdefault(after, []).append(before)
    ops = [node for node in gm.graph.nodes if is_op(node)]
    impure = [node for node in ops if node.is_impure() or draws(node, modules)]
    for before, after in pairwise(impure):
        behind.setdefault(after, []).append(before)
    for node in gm.graph.nodes:
        node.runs_after = behind.get(node, [])


def owners(partitions: Sequence[Partition]) -> dict[Node, Partition]:
    """The partition of every operator; inputs and constants may be in several."""
    return {node: p for p in partitions for node in p.nodes if is_op(node)}


@takes(partitions=PARTITIONS)
def set_parents_and_children(partitions: Sequence[Partition]) -> None:
    """A partition is the parent of those that take a value from it, or have to run after it."""
    for partition in partitions:
        partition.parents, partition.children = set(), set()
    of = owners(partitions)
    for child in partitions:
        waits = [before for node in child.nodes for before in runs_after(node)]
        for before in (*child.taken, *waits):
            parent = of.get(before)
            if parent is not None and parent is not child:
                parent.children.add(child)
                child.parents.add(parent)


@takes(partitions=PARTITIONS)
def reorganize_partitions(partitions: Sequence[Partition]) -> None:
    """Number the partitions as they stand, and set their parents and children."""
    for number, partition in enumerate(partitions):
        partition.partition_id = number
    set_parents_and_children(partitions)


def in_order(partitions: Sequence[Partition]) -> list[Partition] | None:
    """Parents before children; None if some partitions wait for each other."""
    waiting = {p: len(p.parents) for p in partitions}
    ready = [p for p in reversed(partitions) if not waiting[p]]
    found = []
    while ready:
        partition = ready.pop()
        found.append(partition)
        for child in sorted(partition.children, key=lambda p: -p.partition_id):
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return found if len(found) == len(partitions) else None


def set_levels(partitions: Sequence[Partition]) -> None:
    """The level of a partition is the longest way to it from one without parents."""
    for partition in in_order(partitions) or ():
        partition.bfs_level = 1 + max((p.bfs_level for p in partition.parents), default=-1)


def reaches_itself(partition: Partition) -> bool:
    """Whether a partition waits for its own results."""
    seen: set[Partition] = set()
    ahead = list(partition.children)
    while ahead:
        found = ahead.pop()
        if found is partition:
            return True
        if found not in seen:
            seen.add(found)
            ahead.extend(found.children)
    return False


def combined(a: Partition, b: Partition, partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions with two of them as one, which stands last."""
    both = Partition(len(partitions))
    both.nodes = a.nodes | b.nodes
    both.recalculate_mem_size()
    found = [*(p for p in partitions if p is not a and p is not b), both]
    reorganize_partitions(found)
    return found
