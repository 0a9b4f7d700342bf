"""Reads the tree of module calls from the `nn_module_stack` of the nodes.

A call is a contiguous piece of the graph: taken in order, pieces never wait for one another, and
what one of them writes is there for the next. Numbers made from sizes have no place of their own,
they are computed where they are used.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from graphport.compat.torch import HigherOrderOperator, OpOverload
from graphport.ops.registry import overloads
from graphport.program.signature import InputKind, ModuleCallSignature
from graphport.tensors.abstract import holds_number

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


_SIZE_OPERATORS = set(overloads("sym_size.int sym_stride.int sym_numel sym_storage_offset"))


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
    number: int = 0
    """How many calls begin before it."""
    end: int = 0
    """The number of the last call within it."""
    stack: dict[str, tuple[str, str]] = field(init=False)
    """nn_module_stack of what happens in it."""

    def __post_init__(self) -> None:
        around = self.parent.stack if self.parent is not None else {}
        self.stack = {**around, self.key: (self.path, self.kind)}

    @property
    def chain(self) -> list[Call]:
        """This call and those around it, from the inside out."""
        found, call = [self], self.parent
        while call is not None:
            found.append(call)
            call = call.parent
        return found

    def encloses(self, other: Call) -> bool:
        """Whether the other call happens within this one, or is this one."""
        return self.number <= other.number <= self.end

    @functools.cached_property
    def places(self) -> dict[Node | Call, int]:
        """Where each item is."""
        return {item: i for i, item in enumerate(self.items)}

    def owns(self, name: str) -> bool:
        """Whether the module has a parameter, buffer or constant of this name."""
        return not self.path or name.startswith(f"{self.path}.")

    def calls(self) -> Iterator[Call]:
        """All calls within it, each before the calls that it makes, and this one first."""
        waiting = [self]
        while waiting:
            call = waiting.pop()
            yield call
            waiting += [item for item in reversed(call.items) if isinstance(item, Call)]

    def calls_inside_out(self) -> list[Call]:
        """All calls within it, each after the calls that it makes, and this one last."""
        found, waiting = [], [self]
        while waiting:
            call = waiting.pop()
            found.append(call)
            waiting += [item for item in call.items if isinstance(item, Call)]
        return found[::-1]


def is_size(node: Node) -> bool:
    """A number that is made from sizes by a pure function, and can be made again anywhere."""
    target = node.target
    if node.op != "call_function" or not holds_number(node):
        return False
    if isinstance(target, OpOverload):
        return target in _SIZE_OPERATORS
    return target is not operator.getitem and not isinstance(target, HigherOrderOperator)


def build_call_tree(program: ExportedProgram) -> tuple[Call, dict[Node, Call]]:
    """The call of the whole program, and the call that each node belongs to."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and not is_size(n)]
    stacks = _read_stacks(nodes)
    root = Call("", "", _find_root_class(nodes))
    home: dict[Node, Call] = {}
    keys = _CallKeys(stacks)
    calls, running = [root], [root]
    inside: Stack = []
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    signatures = {c.fqn: c.signature for c in program.module_call_graph if c.signature}
    for node, stack in zip(nodes, stacks, strict=True):
        common = _count_common(inside, stack)
        del running[common + 1 :]
        for key, (path, kind) in stack[common:]:
            parent = running[-1]
            call = Call(keys.new(key, path), path, kind, parent, signature=signatures.get(key))
            call.number = call.end = len(calls)
            parent.items.append(call)
            calls.append(call)
            running.append(call)
        inside = stack
        home[node] = call = running[-1]
        call.items.append(node)
        call.last = order[node]
    for call in reversed(calls):
        if call.parent is not None:
            call.parent.last = max(call.parent.last, call.last)
            call.parent.end = max(call.parent.end, call.end)
    for i, key in enumerate(sorted(signatures.keys() - keys.all.keys())):
        path = re.sub(r"@\d+$", "", key)
        silent = Call(keys.new(key, path), path, "Module", root, [], signatures[key])
        silent.number = silent.end = len(calls) + i
        root.silent.append(silent)
    return root, home


Stack = list[tuple[str, tuple[str, str]]]
"""(key, (path, class)) of modules."""


def _count_common(one: Stack, other: Stack) -> int:
    """How many modules two stacks have in common, from the outside in."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # one call, or two within one another
        return shorter
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _read_stacks(nodes: list[Node]) -> list[Stack]:
    """The modules around each node, without the outermost.

    A node that says nothing and stands between nodes of one call is part of that call: a check of
    a value is made when all is known of it, and put where the value is.
    """
    stacks = [_read_stack(n) for n in nodes]
    known = [(i, stack) for i, stack in enumerate(stacks) if stack is not None]
    for (before, one), (after, other) in itertools.pairwise(known):
        if after > before + 1:
            stacks[before + 1 : after] = [one[: _count_common(one, other)]] * (after - before - 1)
    return [stack or [] for stack in stacks]


def _find_root_class(nodes: list[Node]) -> str:
    """The class of the program's own module."""
    for node in nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if not path:
                return str(kind)
            break
    return "Program"


def _read_stack(node: Node) -> Stack | None:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    entries = list(stack.items())
    return entries[1:] if not entries[0][1][0] else entries


class _CallKeys:
    """Keys of calls: one each, the first of a module that has any nodes under its plain path."""

    def __init__(self, stacks: list[Stack]) -> None:
        self.all: dict[str, tuple[str, str]] = {}
        for stack in stacks:
            self.all.update(stack)
        self._plain = {key for key, (path, _) in self.all.items() if key == path}
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}

    def new(self, key: str, path: str) -> str:
        if path and path not in self._plain:
            self._plain.add(path)
            key = path
        if key in self._used:  # a call that is in several pieces
            numbers = itertools.count(self._counts.get(path, 1))
            key, self._counts[path] = next(
                (k, i + 1)
                for i in numbers
                if (k := f"{path}@{i}") not in self._used and k not in self.all
            )
        self._used.add(key)
        return key


def operands(node: Node) -> list[Node]:
    """The nodes that a node reads, each once, in the order of its arguments."""
    return list(dict.fromkeys(node.all_input_nodes))


def make_graph_key(module: Any) -> tuple[object, ...]:
    """What a subgraph computes; equal for subgraphs that are the same."""
    order = {n: i for i, n in enumerate(module.graph.nodes)}

    def token(x: object) -> Any:
        if isinstance(x, Node):
            return ("node", order[x])
        if isinstance(x, (list, tuple)):
            return (type(x).__name__, *map(token, x))
        if isinstance(x, dict):
            return ("dict", *((k, token(v)) for k, v in x.items()))
        return (type(x).__name__, repr(x))

    return tuple(
        (
            n.op,
            make_graph_key(getattr(module, n.target))
            if n.op == "get_attr"
            else str(n.target)
            if n.op == "call_function"
            else "",
            token(n.args),
            token(n.kwargs),
        )
        for n in module.graph.nodes
    )


# State of a program by name: which tensors there are, which module owns them, which are shared.


class State:
    """Parameters, buffers and constants."""

    def __init__(self, program: ExportedProgram) -> None:
        self.tensors: dict[str, Any] = {**program.constants, **program.state_dict}
        self.inputs: dict[str, Node] = {}
        """The graph input for each name."""
        self.names: dict[Node, list[str]] = {}
        """All names of the tensor that a graph input stands for, that of the signature first."""
        by_id: dict[int, list[str]] = {}
        for name, t in self.tensors.items():
            by_id.setdefault(id(t), []).append(name)
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT or spec.target is None:
                continue
            node = nodes[spec.arg.name]
            names = by_id.get(id(self.tensors.get(spec.target)), [])
            self.names[node] = [spec.target, *(n for n in names if n != spec.target)]
            self.inputs.update(dict.fromkeys(self.names[node], node))

    def within(self, path: str) -> dict[str, int]:
        """What a module has, itself and its children: identities by name."""
        prefix = f"{path}."
        return {n[len(prefix) :]: id(t) for n, t in self.tensors.items() if n.startswith(prefix)}

    def alias(self, path: str, caller: str) -> str | None:
        """Another path of the module at `path`, below the caller, if both have the same tensors."""
        have = self.within(path)
        if not have:
            return None
        first = next(iter(have))
        prefix = f"{caller}." if caller else ""
        for name in self.tensors:
            other = name[: -len(first) - 1]
            if name == f"{other}.{first}" and other != path and other.startswith(prefix):
                if self.within(other) == have:
                    return other
        return None
