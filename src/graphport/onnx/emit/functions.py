"""Outlines repeated submodules as ONNX functions (`module_functions=[...]`).

The nodes of a call of a module become the body of a function, and one node that calls it. Calls
with the same body share the function: weights are its inputs, small constants are in it. What a
module computes from its inputs alone and others use too (tables of positions) stays outside.

The graph is left as it is: this is a way to write it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from graphport.errors import InputError
from graphport.onnx.emit.builder import make_hashable
from graphport.onnx.emit.ir import Graph, Node, Value
from graphport.program.codegen import find_free_name

DOMAIN = "graphport.modules"


@dataclass
class Function:
    """A body, as the nodes of the first call with it."""

    name: str
    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    constants: list[Value]
    path: str
    """The module of that call."""

    def names(self) -> dict[str, str]:
        """Formal names of the inputs: weights without the path of the module, if that is free."""
        made = (v for n in self.nodes for v in n.outputs if v is not None)
        taken = {v.name for v in (*self.inputs, *self.constants, *made)}
        short = {v.name: v.name.removeprefix(f"{self.path}.") for v in self.inputs}
        return {name: name if own in taken else own for name, own in short.items()}


@dataclass
class OutlinedGraph:
    """The nodes of a graph with calls of functions among them."""

    nodes: list[Node]
    functions: list[Function]

    def initializers(self, graph: Graph) -> dict[str, Value]:
        """Those of the graph that are not only constants of functions."""
        used = {v for node in self.nodes for v in _list_used_values(node)}
        return {name: v for name, v in graph.initializers.items() if v in used or v in graph.inputs}


def outline_modules(graph: Graph, wanted: Sequence[Any]) -> OutlinedGraph:
    """Calls of the modules that are wanted: by class, by name of the class, or by path."""
    chosen = _make_filter(wanted)
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        found = _call_of(node, chosen)
        if found is not None:
            groups.setdefault(found, []).append(node)
    if not groups:
        raise InputError(f"module_functions={list(wanted)!r}: the program has no such modules")
    home = {n: call for call, nodes in groups.items() for n in nodes}
    _hoist(graph, groups, home)
    functions: dict[Any, Function] = {}
    items: list[list[Node]] = []
    calls: dict[int, Node] = {}
    used = _users(graph)
    for nodes in _split_nonconvex(graph, groups, home):
        if nodes[0] not in home:
            items.append(nodes)
            continue
        key, made = _make_function(nodes, used, *_module_of(nodes[0], chosen))
        function = functions.get(key)
        if function is None:
            taken = {f.name for f in functions.values()}
            made.name = find_free_name(made.name, taken.__contains__)  # its calls differ
            function = functions[key] = made
        call = Node(function.name, list(made.inputs), {}, DOMAIN, nodes[0].origin)
        call.outputs = list(made.outputs)
        calls[len(items)] = call
        items.append(nodes)
    ordered = [calls[i] if i in calls else items[i][0] for i in _sort_topologically(items)]
    return OutlinedGraph(ordered, list(functions.values()))


# Which nodes belong together

ModuleFilter = Callable[[str, str], bool]


def _make_filter(wanted: Sequence[Any]) -> ModuleFilter:
    names: set[str] = set()
    for w in wanted:
        names.add(w if isinstance(w, str) else f"{w.__module__}.{w.__qualname__}")
    return lambda path, kind: path in names or kind in names or kind.rpartition(".")[2] in names


def _module_stack(node: Node) -> list[tuple[str, tuple[str, str]]]:
    origin = node.origin
    stack = origin.meta.get("nn_module_stack") if origin is not None else None
    return list((stack or {}).items())


def _find_module(node: Node, chosen: ModuleFilter) -> tuple[str, tuple[str, str]] | None:
    """The outermost module around a node that is wanted."""
    return next(((key, entry) for key, entry in _module_stack(node) if chosen(*entry)), None)


def _call_of(node: Node, chosen: ModuleFilter) -> str | None:
    """Which call of a module that is wanted a node is of: a module may be called again."""
    found = _find_module(node, chosen)
    return None if found is None or next(node.graphs(), None) is not None else found[0]


def _module_of(node: Node, chosen: ModuleFilter) -> tuple[str, str]:
    """The path of the module that is wanted around a node, and its class."""
    found = _find_module(node, chosen)
    assert found is not None
    path, kind = found[1]
    return path, str(kind).rpartition(".")[2]


def _hoist(graph: Graph, groups: dict[str, list[Node]], home: dict[Node, str]) -> None:
    """Take out of a group what others use as well and what depends on nothing within it."""
    users = _users(graph)
    for call, nodes in groups.items():
        for node in nodes:
            if all(home.get(u) in (call, None) for u in users.get(node, ())):  # type: ignore[arg-type]
                continue
            needed = _list_dependencies(node, home, call)
            # A result of the module itself depends on its weights; a table does not.
            if not any(v is not None and v.weight is not None for n in needed for v in n.inputs):
                for n in needed:
                    home.pop(n, None)
    for call in groups:
        groups[call] = [n for n in groups[call] if home.get(n) == call]


def _list_dependencies(node: Node, home: dict[Node, str], call: str) -> list[Node]:
    """A node and those of its group that it depends on."""
    found, waiting = {node: None}, [node]
    while waiting:
        for v in waiting.pop().inputs:
            made = v.producer if v is not None else None
            if made is not None and made not in found and home.get(made) == call:
                found[made] = None
                waiting.append(made)
    return list(found)


def _users(graph: Graph) -> dict[Node, list[Node | None]]:
    """The nodes that use a node's outputs; None for the graph itself."""
    users: dict[Node, list[Node | None]] = {}
    for node in graph.walk():
        for v in node.inputs:
            if v is not None and v.producer is not None:
                users.setdefault(v.producer, []).append(node)
    for inner in (graph, *(g for n in graph.walk() for g in n.graphs())):
        for v in inner.outputs:
            if v.producer is not None:
                users.setdefault(v.producer, []).append(None)
    return users


def _split_nonconvex(
    graph: Graph, groups: dict[str, list[Node]], home: dict[Node, str]
) -> Iterable[list[Node]]:
    """Groups whose results do not come back to them from outside; other nodes one by one."""
    for nodes in groups.values():
        inside = set(nodes)
        after: set[Node] = set()
        for node in graph.nodes:
            made = set(_producers(node))
            if node not in inside and (made & inside or made & after):
                after.add(node)
            elif node in inside and made & after:
                for n in nodes:
                    home.pop(n, None)
                break
    seen: set[str] = set()
    for node in graph.nodes:
        call = home.get(node)
        if call is None:
            yield [node]
        elif call not in seen:
            seen.add(call)
            yield [n for n in groups[call] if n in home]


def _sort_topologically(items: list[list[Node]]) -> list[int]:
    """An order in which everything comes after what it uses, near the one there was."""
    of = {n: i for i, nodes in enumerate(items) for n in nodes}
    needs: list[set[int]] = []
    for i, nodes in enumerate(items):
        made = {of.get(m) for n in nodes for m in _producers(n)}
        needs.append({m for m in made if m is not None and m != i})
    waiting = [len(n) for n in needs]
    users: dict[int, list[int]] = {}
    for i, some in enumerate(needs):
        for m in some:
            users.setdefault(m, []).append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users.get(i, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    assert len(order) == len(items), "groups depend on each other"
    return order


def _producers(node: Node) -> Iterable[Node]:
    return (v.producer for v in _list_used_values(node) if v.producer is not None)


def _list_used_values(node: Node) -> Iterable[Value]:
    """What a node uses, in its subgraphs too."""
    yield from (v for v in node.inputs if v is not None)
    for inner in node.graphs():
        yield from inner.outputs
        for n in inner.nodes:
            yield from _list_used_values(n)


# What a body is


def _make_function(
    nodes: list[Node], users: dict[Node, list[Node | None]], path: str, name: str
) -> tuple[Any, Function]:
    """What makes two bodies the same, and the function that this one would be."""
    inside = set(nodes)
    places: dict[Value, Any] = {}
    inputs: list[Value] = []
    constants: list[Value] = []
    rows: list[Any] = []

    def place(v: Value | None) -> Any:
        if v is None:
            return None
        if v not in places:
            if v.tensor is not None and v.weight is None:
                constants.append(v)
                places[v] = ("constant", id(v))
            else:
                places[v] = ("input", len(inputs))
                inputs.append(v)
        return places[v]

    for i, node in enumerate(nodes):
        operands = tuple(place(v) for v in node.inputs)
        attributes = tuple(make_hashable(a) for a in node.attributes.items())
        rows.append((node.op, node.domain, operands, attributes, len(node.outputs)))
        for j, v in enumerate(node.outputs):
            if v is not None:
                places[v] = ("step", i, j)
    outputs = [
        v
        for n in nodes
        for v in n.outputs
        if v is not None and _is_used_outside(v, inside, users.get(n, ()))
    ]
    key = (name, tuple(rows), tuple(places[v] for v in outputs))
    return key, Function(name, nodes, inputs, outputs, constants, path)


def _is_used_outside(v: Value, inside: set[Node], users: Iterable[Node | None]) -> bool:
    """Whether a value is used outside of the nodes."""
    return any(u is None or (u not in inside and v in u.inputs) for u in users)
