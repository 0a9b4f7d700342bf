"""Mutation, aliasing and randomness of the calls of a graph, and the order they impose.

A graph says which values a call needs, not what it overwrites. In `y = x + 1; x.mul_(2)` nothing
leads from one call to the other, and yet they cannot change places. Memory is followed through what
is known to give views. A function or module of the user's own is taken to write to nothing and to
give new tensors, as FX takes it.

Nor does a graph say what is drawn from the generator of random numbers, which gives others to
whatever draws after it. There, what is not known may draw.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
from graphport.compat.torch import (
    DropoutNd,
    HigherOrderOperator,
    OpOverload,
    enter_autocast,
    exit_autocast,
    set_grad_enabled,
)
from graphport.fx.graphs import get_first_argument
from graphport.ops.effects import (
    collect_nodes,
    find_aliased_arguments,
    find_mutated_arguments,
    may_alias,
    may_alias_all,
)
from graphport.tensors.concrete import storage_key
from graphport.types import Argument

_MODE_SWITCHES = frozenset({set_grad_enabled, enter_autocast, exit_autocast})
_INPLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in """
        iadd iand ifloordiv ilshift imod imul imatmul ior ipow irshift isub itruediv ixor setitem
    """.split()
)
# Functions and methods of Python beside those that have the name of an operator: results may alias
# the first argument.
_PYTHON_VIEWS = frozenset(
    """
        H T bfloat16 bool byte char double dropout1d dropout2d dropout3d float getattr getitem half
        int long requires_grad_ short type
    """.split()
)
_VIEW_MODULES = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    DropoutNd,
)

# Arguments of operators that say whether anything is drawn.
_RANDOM_FLAGS = ("dropout_p", "dropout", "train", "training")
# Functions that draw through operators of other names.
_RANDOM_FUNCTIONS = frozenset(
    """
        dropout1d dropout2d dropout3d fractional_max_pool2d fractional_max_pool3d gumbel_softmax
        multi_head_attention_forward
    """.split()
)
_RANDOM_MODULES = (DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
# Where functions are from that draw only if they are known to.
_KNOWN_PACKAGES = frozenset({"torch", "_operator", "operator", "builtins", "math", "graphport"})

_EMPTY_MODULE = nn.Module()


def find_mutated_inputs(node: Node, modules: Mapping[str, nn.Module]) -> list[Node]:
    """The values that a call mutates."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    if isinstance(node.target, OpOverload):
        return find_mutated_arguments(node)
    out = collect_nodes(node.kwargs.get("out"))
    if node.op == "call_module":
        in_place = getattr(modules.get(str(node.target)), "inplace", False) is True
    else:
        name = _target_name(node)
        in_place = (
            node.target in _INPLACE_OPERATORS
            or node.kwargs.get("inplace") is True
            or (name.endswith("_") and not name.startswith("__") and name != "requires_grad_")
        )
    return collect_nodes(get_first_argument(node)) + out if in_place else out


def find_aliased_inputs(node: Node, modules: Mapping[str, nn.Module]) -> list[Node]:
    """The values that the result of a call may alias."""
    if isinstance(node.target, OpOverload):
        return find_aliased_arguments(node) or find_mutated_inputs(node, modules)
    name = _target_name(node)
    if node.op == "call_module":
        views = isinstance(modules.get(str(node.target)), _VIEW_MODULES)
    elif node.op not in ("call_function", "call_method"):
        return []
    elif may_alias_all(name):
        return node.all_input_nodes
    else:
        views = name in _PYTHON_VIEWS or may_alias(name)
    return collect_nodes(get_first_argument(node)) if views else find_mutated_inputs(node, modules)


def find_mutated_values(graph: Graph, modules: Mapping[str, nn.Module]) -> set[Node]:
    """The values that the graph mutates, also through views of them."""
    found: set[Node] = set()
    left = [value for node in graph.nodes for value in find_mutated_inputs(node, modules)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(find_aliased_inputs(node, modules) if node.op.startswith("call_") else ())
    return found


def get_attribute_storage_key(target: str, modules: Mapping[str, nn.Module]) -> Any:
    """The storage key of an attribute, or its name; `modules` has the graph's own at no path."""
    found: Any = modules.get("")
    for part in target.split("."):
        found = getattr(found, part, None)
    memory = storage_key(found)
    return target if memory is None else memory


def find_mutated_storages(graph: Graph, modules: Mapping[str, nn.Module]) -> set[object]:
    """The storages of attributes that the graph mutates."""
    memory = infer_storages(graph, modules)
    values = [value for node in graph.nodes for value in find_mutated_inputs(node, modules)]
    return {m for value in values for m in memory[value] if not isinstance(m, Node)}


def infer_storages(graph: Graph, modules: Mapping[str, nn.Module]) -> dict[Node, frozenset[Any]]:
    """The storages that each value may have: that of an attribute, or of another call's result."""
    found: dict[Node, frozenset[Any]] = {}
    for node in graph.nodes:
        if node.op != "output":
            shown = find_aliased_inputs(node, modules) if node.op.startswith("call_") else []
            own = (
                get_attribute_storage_key(str(node.target), modules)
                if node.op == "get_attr"
                else node
            )
            found[node] = frozenset().union(*(found[n] for n in shown)) or frozenset({own})
    return found


def find_effect_dependencies(
    graph: Graph, modules: Mapping[str, nn.Module]
) -> Iterator[tuple[Node, Node]]:
    """Pairs of calls of which the second must stay behind the first, for what one of them writes.

    Those that follow from the graph's own edges are among them. Their number is linear in the
    number of arguments.
    """
    yield from _find_mode_dependencies(graph)
    calls = [n for n in graph.nodes if n.op.startswith("call_")]
    writes = {n: found for n in calls if (found := find_mutated_inputs(n, modules))}
    if not writes:
        return
    memory = infer_storages(graph, modules)
    last: dict[Any, Node] = {}
    readers: dict[Any, list[Node]] = {}
    for node in calls:
        changed = {m for n in writes.get(node, ()) for m in memory[n]}
        # What may give a view may also give a copy: it counts as a reader.
        read = {m for n in node.all_input_nodes for m in memory[n]}
        if node.op == "call_module":
            module = modules.get(str(node.target), _EMPTY_MODULE)
            read.update(map(storage_key, (*module.parameters(), *module.buffers())))
        for m in read - changed:
            if m in last:
                yield last[m], node
            readers.setdefault(m, []).append(node)
        for m in changed:
            for before in (*readers.pop(m, ()), *_as_list(last.get(m))):
                yield before, node
            last[m] = node


def is_random(node: Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a call may draw random numbers. A function or module of the user's own may."""
    target = node.target
    if node.op == "call_module":
        return _is_random_module(modules.get(str(target), _EMPTY_MODULE))
    if isinstance(target, OpOverload):
        return _is_random_overload(node, target)
    if isinstance(target, HigherOrderOperator):
        taken = (modules.get(str(n.target)) for n in node.all_input_nodes if n.op == "get_attr")
        return any(_is_random_module(m) for m in taken if m is not None)
    if not node.op.startswith("call_"):
        return False
    name = _target_name(node)
    origin = str(getattr(target, "__module__", None) or "torch").split(".")[0]
    known = node.op == "call_method" or origin in _KNOWN_PACKAGES
    return not known or name in _RANDOM_FUNCTIONS or _is_random_name(name)


def _is_random_module(module: nn.Module) -> bool:
    for m in module.modules():
        if isinstance(m, GraphModule):
            inner = dict(m.named_modules(remove_duplicate=False))
            if any(is_random(n, inner) for n in m.graph.nodes if n.op != "call_module"):
                return True
        elif not type(m).__module__.startswith("torch."):
            return True
        # Beside layers for it, recurrent ones and attention have dropout of their own.
        elif m.training and (
            isinstance(m, _RANDOM_MODULES) or isinstance(_get_dropout_rate(m), float)
        ):
            return True
    return False


def _get_dropout_rate(module: nn.Module) -> Argument:
    return getattr(module, "dropout", None) or None


def _is_random_overload(node: Node, op: OpOverload) -> bool:
    """Dropout in evaluation, or of nothing, does not."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    arguments = op._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    return all(given.get(name, True) for name in _RANDOM_FLAGS)


@cache
def _is_random_name(name: str) -> bool:
    """Whether an operator of a function's or method's name may draw."""
    packet = getattr(aten, name, None)
    return packet is not None and any(
        torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags
        for overload in packet.overloads()
    )


def _find_mode_dependencies(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """What turns gradients or autocasting on and off stays between the calls that it is between."""
    mode: Node | None = None
    since: list[Node] = []
    modes = {n for n in graph.nodes if n.op == "call_function" and n.target in _MODE_SWITCHES}
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


def _target_name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _as_list(node: Node | None) -> list[Node]:
    return [] if node is None else [node]
