"""The calls of modules that a program is made of, read from the `nn_module_stack` of its nodes.

A call is a contiguous piece of the graph: taken in order, pieces never wait for one another, and
what one of them writes is there for the next. Numbers made from sizes have no place of their own,
they are computed where they are used.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from graphport.program.signature import ModuleCallSignature

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

aten = torch.ops.aten

_SIZES = {
    aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default,
}  # fmt: skip
NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(eq=False)
class Call:
    """One call of a module: what happens in it, in order."""

    key: str
    """`encoder.layers.0`, and `encoder.layers.0@1` for the next call of the same module."""
    path: str
    kind: str
    """The class of the module."""
    parent: Call | None = None
    items: list[Node | Call] = field(default_factory=list)
    signature: ModuleCallSignature | None = None
    silent: list[Call] = field(default_factory=list)
    """Calls that leave no trace in the graph, of modules that keep their signature."""
    last: int = -1
    """Where in the program's graph it ends."""

    @property
    def chain(self) -> list[Call]:
        """This call and those around it, from the inside out."""
        found, call = [self], self.parent
        while call is not None:
            found.append(call)
            call = call.parent
        return found

    def owns(self, name: str) -> bool:
        """Whether the module has a parameter, buffer or constant of this name."""
        return not self.path or name.startswith(f"{self.path}.")

    def calls(self) -> Iterator[Call]:
        """All calls within it, each before the calls that it makes, and this one first."""
        yield self
        for item in self.items:
            if isinstance(item, Call):
                yield from item.calls()

    def nodes(self) -> Iterator[tuple[tuple[int, ...], Node]]:
        """All nodes within it, with their places."""
        for i, item in enumerate(self.items):
            if isinstance(item, Node):
                yield (i,), item
            else:
                yield from (((i, *place), node) for place, node in item.nodes())


def is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def is_size(node: Node) -> bool:
    """A number that is made from sizes by a pure function, and can be made again anywhere."""
    target = node.target
    if node.op != "call_function" or not is_number(node):
        return False
    if isinstance(target, OpOverload):
        return target in _SIZES
    return target is not operator.getitem and not isinstance(target, HigherOrderOperator)


def calls_of(program: ExportedProgram) -> tuple[Call, dict[Node, Call]]:
    """The call of the whole program, and the call that each node belongs to."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and not is_size(n)]
    stacks = _stacks(nodes)
    root = Call("", "", _title(nodes))
    home: dict[Node, Call] = {}
    keys = _Keys(stacks)
    running: list[tuple[tuple[str, str, str], Call]] = []
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    signatures = {c.fqn: c.signature for c in program.module_call_graph if c.signature}
    for node, stack in zip(nodes, stacks, strict=True):
        common = 0
        for (entry, _), other in zip(running, stack, strict=False):
            if entry != other:
                break
            common += 1
        del running[common:]
        for entry in stack[common:]:
            key, path, kind = entry
            parent = running[-1][1] if running else root
            call = Call(keys.new(key, path), path, kind, parent, signature=signatures.get(key))
            parent.items.append(call)
            running.append((entry, call))
        home[node] = call = running[-1][1] if running else root
        call.items.append(node)
        for around in call.chain:
            around.last = order[node]
    for key in signatures.keys() - {key for stack in stacks for key, _, _ in stack}:
        path = re.sub(r"@\d+$", "", key)
        root.silent.append(Call(keys.new(key, path), path, "Module", root, [], signatures[key]))
    return root, home


Stack = list[tuple[str, str, str]]


def _stacks(nodes: list[Node]) -> list[Stack]:
    """(key, path, class) of the modules around each node, without the outermost.

    A node that says nothing and stands between nodes of one call is part of that call: a check of
    a value is made when all is known of it, and put where the value is.
    """
    stacks = [_stack(n) for n in nodes]
    known = [(i, stack) for i, stack in enumerate(stacks) if stack is not None]
    for (before, one), (after, other) in itertools.pairwise(known):
        pairs = zip(one, other, strict=False)
        around = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        for i in range(before + 1, after):
            stacks[i] = around
    return [stack or [] for stack in stacks]


def _title(nodes: list[Node]) -> str:
    """The class of the program's own module."""
    for node in nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if not path:
                return str(kind)
            break
    return "Program"


def _stack(node: Node) -> Stack | None:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    entries = [(key, path, kind) for key, (path, kind) in stack.items()]
    return entries[1:] if not entries[0][1] else entries


class _Keys:
    """Keys of calls: one each, the first of a module that has any nodes under its plain path."""

    def __init__(self, stacks: list[Stack]) -> None:
        self._plain = {key for stack in stacks for key, path, _ in stack if key == path}
        self._all = {key for stack in stacks for key, _, _ in stack}
        self._used: set[str] = set()

    def new(self, key: str, path: str) -> str:
        if path and path not in self._plain:
            self._plain.add(path)
            key = path
        if key in self._used:  # a call that is in several pieces
            taken = self._used | self._all
            key = next(k for i in itertools.count(1) if (k := f"{path}@{i}") not in taken)
        self._used.add(key)
        return key


def operands(node: Node) -> list[Node]:
    """The nodes that a node reads, each once, in the order of its arguments."""
    return list(dict.fromkeys(node.all_input_nodes))


def graph_key(module: Any) -> tuple[Any, ...]:
    """What a graph within the graph computes; equal for graphs that are the same."""
    order = {n: i for i, n in enumerate(module.graph.nodes)}

    def token(x: Any) -> Any:
        if isinstance(x, Node):
            return ("node", order[x])
        if isinstance(x, (list, tuple)):
            return (type(x).__name__, *map(token, x))
        if isinstance(x, dict):
            return ("dict", *((k, token(v)) for k, v in x.items()))
        return (type(x).__name__, repr(x))

    return tuple(
        (n.op, graph_key(getattr(module, n.target)) if n.op == "get_attr"
         else str(n.target) if n.op == "call_function" else "", token(n.args), token(n.kwargs))
        for n in module.graph.nodes
    )  # fmt: skip
