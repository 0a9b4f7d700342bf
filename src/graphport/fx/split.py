"""Splits a graph into submodules by a callback.

Each piece is a `GraphModule` that takes the values it needs from outside and returns those that are
needed outside. Names, metadata and types of nodes are kept. The pieces run in the order in which
they first appear in the graph, as far as their dependencies allow, and the order in which random
numbers are drawn.
"""

from __future__ import annotations

import heapq
import operator
import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from graphport import errors
from graphport.arguments import DICT, FUNCTION, MODULE, NONE, check_arguments
from graphport.fx.effects import (
    find_effect_dependencies,
    find_mutated_storages,
    get_attribute_storage_key,
    is_random,
)
from graphport.fx.graphs import (
    adopt_calling_convention,
    assign_attribute,
    get_attribute,
    is_program,
    make_empty_module,
)
from graphport.program import ExportedProgram
from graphport.program.codegen import find_free_name
from graphport.types import NodeTarget

_OUTER_OPS = ("placeholder", "get_attr", "output")
_TUPLE_METADATA = ("val", "tensor_meta", "example_value", "type")
"""What metadata says of a tuple as the tuple of what it says of each part."""


@dataclass
class _Subgraph:
    name: str
    module: GraphModule
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[Node, None] = field(default_factory=dict)
    attributes: dict[Node, None] = field(default_factory=dict)
    outputs: dict[Node, None] = field(default_factory=dict)


@check_arguments(root=MODULE | NONE, callback=FUNCTION, qualname_map=DICT | NONE)
def split_module(
    gm: GraphModule | ExportedProgram,
    root: nn.Module | None,
    callback: Callable[[Node], Hashable],
    qualname_map: dict[str, str] | None = None,
) -> GraphModule:
    """A module that computes the same in submodules `submod_<id>`, by the id of each node.

    `callback` is asked once for every call, in order. Placeholders and the output stay outside, and
    so do attributes of a plain graph, which are handed to the pieces; graphs of control flow move
    with their call. Of an exported program, or of its `module()`, each piece holds the parameters,
    buffers and constants that it uses, at their own names, and the result is called as `module()`
    is. State that is written to and used by several pieces stays outside. `root` is where
    attributes are found that `gm` lacks.

    `qualname_map` is filled with the new names of modules that are called, and of an exported
    program's state: `{"submod_1.lin": "lin"}`.

        >>> import torch
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.lin = nn.Linear(4, 4)
        ...
        ...     def forward(self, x):
        ...         return self.lin(x).relu()
        >>> gm = torch.fx.symbolic_trace(Model())
        >>> names = {}
        >>> split = split_module(gm, None, lambda n: 0 if n.target == "lin" else 1, names)
        >>> [name for name, _ in split.named_children()]
        ['submod_0', 'submod_1']
        >>> names
        {'submod_0.lin': 'lin'}

    Partitions that depend on each other are a `gp.errors.GraphError`, which names the nodes.
    """
    if isinstance(gm, ExportedProgram):
        gm = gm.module()
    if not isinstance(gm, GraphModule):
        raise errors.InputError(
            f"split_module takes a GraphModule or an ExportedProgram, not {type(gm).__name__}",
            fix=[
                "split_module(torch.fx.symbolic_trace(model), model, callback)",
                "split_module(gp.export(model, args), None, callback)",
            ],
        )
    return _Splitter(gm, root, callback, {} if qualname_map is None else qualname_map).split()


class _Splitter:
    def __init__(
        self,
        gm: GraphModule,
        root: nn.Module | None,
        callback: Callable[[Node], Hashable],
        qualname_map: dict[str, str],
    ) -> None:
        self.gm = gm
        self.root = root
        self.names = qualname_map
        self.modules = dict(gm.named_modules(remove_duplicate=False))
        self.is_program = is_program(gm)
        self.output = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
        self.pieces: dict[str, _Subgraph] = {}
        self.subgraph_of: dict[Node, _Subgraph] = {}
        self._assign_subgraphs(callback)
        self._connect()

    # Which piece has what

    def _assign_subgraphs(self, callback: Callable[[Node], Hashable]) -> None:
        used = {str(n.target).split(".")[0] for n in self.gm.graph.nodes if n.op == "get_attr"}
        for node in self.gm.graph.nodes:
            if node.op in _OUTER_OPS:
                continue
            chosen = callback(node)
            if chosen is None:
                raise errors.InputError(
                    f"the callback returned None for the node {node.name}",
                    where=node.format_node(),
                    fix="return a number or text for every node: the partition that it belongs to",
                )
            key = str(chosen)
            if key not in self.pieces:
                wanted = "submod_" + re.sub(r"\W", "_", key)
                name = find_free_name(wanted, used.__contains__, numbered=False)
                used.add(name)
                self.pieces[key] = _Subgraph(name, make_empty_module(self.gm, lazy=True))
            self.pieces[key].nodes.append(node)
            self.subgraph_of[node] = self.pieces[key]

    def _connect(self) -> None:
        """Find the inputs, the outputs and the attributes of each partition."""
        owned = self._find_movable_attributes()
        for piece in self.pieces.values():
            for node in piece.nodes:
                for arg in node.all_input_nodes:
                    source = self.subgraph_of.get(arg)
                    if arg in owned:
                        piece.attributes[arg] = None
                    elif source is not piece:
                        piece.inputs[arg] = None
        for node in self.gm.graph.nodes:
            home = self.subgraph_of.get(node)
            if home is not None and any(
                self.subgraph_of.get(user) is not home for user in node.users
            ):
                home.outputs[node] = None
        self.outer = [n for n in self.gm.graph.nodes if n.op == "get_attr" and n not in owned]

    def _find_movable_attributes(self) -> set[Node]:
        """The attributes that go to the pieces that use them."""
        changed = find_mutated_storages(self.gm.graph, self.modules) if self.is_program else set()
        getters = [n for n in self.gm.graph.nodes if n.op == "get_attr"]
        memory = {n: get_attribute_storage_key(str(n.target), self.modules) for n in getters}
        homes: dict[object, set[str]] = {}
        for node in getters:
            used = {self.subgraph_of[u].name for u in node.users if u is not self.output}
            homes.setdefault(memory[node], set()).update(used)
        found = set()
        for node in getters:
            if not node.users or self.output in node.users:
                continue
            if isinstance(get_attribute(str(node.target), self.gm, self.root), nn.Module):
                found.add(node)
            # One tensor in two pieces would be two tensors after `.to(...)`, and a write be lost.
            elif self.is_program and (len(homes[memory[node]]) == 1 or memory[node] not in changed):
                found.add(node)
        return found

    # In which order

    def _sorted(self) -> list[_Subgraph]:
        places = {piece.name: i for i, piece in enumerate(self.pieces.values())}
        pieces = list(self.pieces.values())
        reasons: dict[tuple[int, int], tuple[Node, Node]] = {}
        for piece in pieces:
            for node in piece.nodes:
                for arg in node.all_input_nodes:
                    if arg in self.subgraph_of:
                        edge = places[self.subgraph_of[arg].name], places[piece.name]
                        reasons.setdefault(edge, (arg, node))
        for before, after in find_effect_dependencies(self.gm.graph, self.modules):
            edge = places[self.subgraph_of[before].name], places[self.subgraph_of[after].name]
            reasons.setdefault(edge, (before, after))
        needs, serves = _build_links(len(pieces), reasons)
        # Pieces may be such that random numbers cannot be drawn as before: nothing fails for it.
        drawing = [n for n in self.subgraph_of if is_random(n, self.modules)]
        drawn = (places[self.subgraph_of[n].name] for n in drawing)
        awaits, precedes = _build_links(len(pieces), pairwise(drawn))
        ready = [(bool(awaits[i]), i) for i, needed in enumerate(needs) if not needed]
        heapq.heapify(ready)
        found: dict[int, None] = {}
        while ready:
            _, i = heapq.heappop(ready)
            if i in found:
                continue
            found[i] = None
            for j in serves[i]:
                needs[j].discard(i)
            for j in precedes[i]:
                awaits[j].discard(i)
            for j in {*serves[i], *precedes[i]}:
                if not needs[j]:
                    heapq.heappush(ready, (bool(awaits[j]), j))
        if len(found) < len(pieces):
            raise _cycle_error(pieces, _find_cycle(needs, serves), reasons)
        return [pieces[i] for i in found]

    # What is built

    def split(self) -> GraphModule:
        pieces = self._sorted()
        result = make_empty_module(self.gm)
        outside: dict[Node, Node] = {}
        graph = Graph()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                outside[node] = _copy_node(graph, node, outside, node.target)
        for node in self.outer:
            outside[node] = _copy_node(graph, node, outside, node.target)
            assign_attribute(result, str(node.target), self.gm, self.root)
        for piece in pieces:
            self._build_subgraph(piece)
            result.add_module(piece.name, piece.module)
            args = tuple(outside[n] for n in piece.inputs)
            outside.update(_call_subgraph(graph, piece, args))
        _copy_node(graph, self.output, outside, "output")
        adopt_calling_convention(result, graph, self.gm)
        return result

    def _build_subgraph(self, piece: _Subgraph) -> None:
        graph = Graph()
        inside: dict[Node, Node] = {}
        for node in piece.inputs:
            new = graph.create_node("placeholder", node.name, name=node.name, type_expr=node.type)
            new.meta.update(node.meta)
            inside[node] = new
        for node in piece.attributes:
            inside[node] = _copy_node(graph, node, inside, node.target)
            assign_attribute(piece.module, str(node.target), self.gm, self.root)
            if not isinstance(get_attribute(str(node.target), self.gm, self.root), nn.Module):
                self.names[f"{piece.name}.{node.target}"] = str(node.target)
        for node in piece.nodes:
            inside[node] = _copy_node(graph, node, inside, node.target)
            if node.op == "call_module":
                assign_attribute(piece.module, str(node.target), self.gm, self.root)
                self.names[f"{piece.name}.{node.target}"] = str(node.target)
        results = tuple(inside[n] for n in piece.outputs)
        graph.output(results[0] if len(results) == 1 else results)
        piece.module.graph = graph


def _copy_node(graph: Graph, node: Node, mapping: Mapping[Node, Node], target: NodeTarget) -> Node:
    args = map_arg(node.args, mapping.__getitem__)
    kwargs = map_arg(node.kwargs, mapping.__getitem__)
    new = graph.create_node(node.op, target, args, kwargs, name=node.name, type_expr=node.type)
    new.meta.update(node.meta)
    return new


def _call_subgraph(graph: Graph, piece: _Subgraph, args: tuple[Node, ...]) -> dict[Node, Node]:
    """Call a piece; the nodes outside that stand for what it returns."""
    call = graph.call_module(piece.name, args)
    outputs = list(piece.outputs)
    if len(outputs) == 1:
        call.meta, call.type = dict(outputs[0].meta), outputs[0].type
        return {outputs[0]: call}
    for key in _TUPLE_METADATA:
        if outputs and all(key in n.meta for n in outputs):
            call.meta[key] = tuple(n.meta[key] for n in outputs)
    found = {}
    for i, node in enumerate(outputs):
        part = graph.create_node(
            "call_function", operator.getitem, (call, i), name=node.name, type_expr=node.type
        )
        part.meta.update(node.meta)
        found[node] = part
    return found


def _build_links(
    count: int, edges: Iterable[tuple[int, int]]
) -> tuple[list[set[int]], list[list[int]]]:
    """By partition, those that it depends on, and those that depend on it."""
    before: list[set[int]] = [set() for _ in range(count)]
    behind: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if a != b and a not in before[b]:
            before[b].add(a)
            behind[a].append(b)
    return before, behind


def _cycle_error(
    pieces: list[_Subgraph], cycle: list[int], reasons: Mapping[tuple[int, int], tuple[Node, Node]]
) -> errors.GraphError:
    steps = []
    for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        before, after = reasons[a, b]
        verb = "takes" if before in after.all_input_nodes else "must run after"
        steps.append(f"{after.name} in {pieces[b].name} {verb} {before.name} in {pieces[a].name}")
    names = [pieces[i].name for i in cycle]
    return errors.GraphError(
        f"{', '.join(names[:-1])} and {names[-1]} depend on each other: {'; '.join(steps)}",
        fix="give these nodes one id, or ids whose partitions have no cycle",
    )


def _find_cycle(needs: list[set[int]], serves: list[list[int]]) -> list[int]:
    """A short cycle of partitions; `needs` has what could not be sorted."""
    start = next(i for i, needed in enumerate(needs) if needed)
    seen: set[int] = set()
    while start not in seen:  # what is left needs something that is left: this walks into a cycle
        seen.add(start)
        start = min(needs[start])
    came: dict[int, int] = {}
    queue = deque([start])
    while start not in came:
        i = queue.popleft()
        for j in serves[i]:
            if j not in came:
                came[j] = i
                queue.append(j)
    path = [came[start]]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]
