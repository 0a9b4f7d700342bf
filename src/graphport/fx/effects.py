"""What the calls of a graph write to, and which of them must keep their order for it.

A graph says which values a call needs, not what it overwrites. In `y = x + 1; x.mul_(2)` nothing
leads from one call to the other, and yet they cannot change places. Memory is followed through what
is known to give views. A function or module of the user's own is taken to write to nothing and to
give new tensors, as FX takes it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Graph, Node

aten = torch.ops.aten

# Write running statistics (arguments 3 and 4) when argument 5 says so; their schemas do not tell.
_STATISTICS = frozenset({aten.batch_norm.default, aten.instance_norm.default})
_MODES = frozenset(
    {torch._C._set_grad_enabled, torch.amp._enter_autocast, torch.amp._exit_autocast}
)
_ASSIGNMENTS = frozenset(
    getattr(operator, name)
    for name in (
        "iadd", "iand", "ifloordiv", "ilshift", "imod", "imul", "imatmul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor", "setitem",
    )
)  # fmt: skip
# By the name of a function or method: results may lie in the memory of the first argument.
_VIEWS = frozenset(
    {
        "adjoint", "broadcast_to", "chunk", "contiguous", "cpu", "data", "detach", "diagonal",
        "dropout", "dsplit", "expand", "expand_as", "flatten", "float", "double", "getitem",
        "getattr", "hsplit", "imag", "mH", "mT", "H", "T", "moveaxis", "movedim", "narrow",
        "permute", "ravel", "real", "requires_grad_", "reshape", "reshape_as", "select", "split",
        "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to",
        "transpose", "type", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view",
        "view_as", "view_as_complex", "view_as_real", "vsplit",
    }
)  # fmt: skip
_VIEW_MODULES = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle,
    nn.modules.dropout._DropoutNd,
)  # fmt: skip


def written(node: Node, modules: Mapping[str, nn.Module]) -> list[Node]:
    """The values whose memory a call writes to."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    first = node.args[0] if node.args else node.kwargs.get("input")
    out = _nodes(node.kwargs.get("out"))
    if isinstance(node.target, OpOverload):
        if node.target in _STATISTICS:
            return _nodes(node.args[3:5]) if node.args[5] else []
        return [n for arg, n in _given(node, node.target) if arg.alias_info.is_write]
    if node.op == "call_module":
        in_place = getattr(modules.get(str(node.target)), "inplace", False) is True
    else:
        name = _name(node)
        in_place = (
            node.target in _ASSIGNMENTS
            or node.kwargs.get("inplace") is True
            or (name.endswith("_") and not name.startswith("_") and name != "requires_grad_")
        )
    return _nodes(first) + out if in_place else out


def viewed(node: Node, modules: Mapping[str, nn.Module]) -> list[Node]:
    """The values whose memory the result of a call may lie in."""
    target = node.target
    if node.op == "call_module":
        views = isinstance(modules.get(str(target)), _VIEW_MODULES)
    elif isinstance(target, OpOverload):
        if any(r.alias_info is not None for r in target._schema.returns):
            return [n for _, n in _given(node, target)]
        # A composite operator may hand on what it was given, and its schema does not say so.
        views = target._overloadpacket.__name__ in _VIEWS
    else:
        views = node.op in ("call_function", "call_method") and _name(node) in _VIEWS
    return _nodes(node.args[:1]) if views else written(node, modules)


def changing(graph: Graph, modules: Mapping[str, nn.Module]) -> set[str]:
    """The attributes whose memory the graph writes to, views included."""
    found, seen = set(), set()
    left = [value for node in graph.nodes for value in written(node, modules)]
    while left:
        node = left.pop()
        if node.op == "get_attr":
            found.add(str(node.target))
        elif node.op.startswith("call_") and node not in seen:
            seen.add(node)
            left.extend(viewed(node, modules))
    return found


def order(graph: Graph, modules: Mapping[str, nn.Module]) -> Iterator[tuple[Node, Node]]:
    """Pairs of calls of which the second must stay behind the first, for what one of them writes.

    Those that follow from the graph's own edges are among them. Their number is linear in the
    number of arguments.
    """
    yield from _around_modes(graph)
    calls = [n for n in graph.nodes if n.op.startswith("call_")]
    writes = {n: found for n in calls if (found := written(n, modules))}
    if not writes:
        return
    owners: dict[Node, frozenset[Any]] = {}
    last: dict[Any, Node] = {}
    readers: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        shown = viewed(node, modules) if node.op.startswith("call_") else []
        own = node.target if node.op == "get_attr" else node  # an attribute may be read twice
        owners[node] = frozenset().union(*(owners[n] for n in shown)) or frozenset({own})
        changed = {memory for n in writes.get(node, ()) for memory in owners[n]}
        # What may give a view may also give a copy: it counts as a reader.
        for memory in {memory for n in node.all_input_nodes for memory in owners[n]} - changed:
            if memory in last:
                yield last[memory], node
            readers.setdefault(memory, []).append(node)
        for memory in changed:
            for before in (*readers.pop(memory, ()), *_some(last.get(memory))):
                yield before, node
            last[memory] = node


def _around_modes(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """What turns gradients or autocasting on and off stays between the calls that it is between."""
    mode: Node | None = None
    since: list[Node] = []
    modes = {n for n in graph.nodes if n.op == "call_function" and n.target in _MODES}
    for node in graph.nodes if modes else ():
        if not node.op.startswith("call_"):
            continue
        if mode is not None:
            yield mode, node
        if node in modes:
            for before in since:
                yield before, node
            mode, since = node, []
        else:
            since.append(node)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _given(node: Node, op: OpOverload) -> Iterator[tuple[Any, Node]]:
    """The arguments that the schema says something of, and what was passed for them."""
    for place, arg in enumerate(op._schema.arguments):
        if arg.alias_info is not None:
            passed = node.args[place] if place < len(node.args) else node.kwargs.get(arg.name)
            for n in _nodes(passed):
                yield arg, n


def _nodes(x: Any) -> list[Node]:
    if isinstance(x, (list, tuple)):
        return [n for part in x for n in _nodes(part)]
    return [x] if isinstance(x, Node) else []


def _some(node: Node | None) -> list[Node]:
    return [] if node is None else [node]
