"""Encodes and reads graphs as lists of nodes, subgraphs included."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.errors import SerializationError
from graphport.ops import Abstract
from graphport.program.files import json_reader
from graphport.program.files.expressions import Expressions, ExpressionTable
from graphport.program.files.json_reader import Item, format_excerpt
from graphport.program.files.operators import (
    Targets,
    check_call_types,
    check_result_type,
    require_target_name,
)
from graphport.program.files.values import (
    DTYPES,
    Decoder,
    Values,
    encode_value,
    read_device,
    read_dtype,
)
from graphport.program.module import make_graph_module
from graphport.tensors.abstract import (
    AbstractTensor,
    get_other_metadata,
    get_val,
    has_val,
    make_abstract_tensor,
)

_DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
_OPS = ("placeholder", "get_attr", "call_function", "output")
_OPTIONAL = ("target", "args", "kwargs", "val", "module_stack", "stack_trace", "meta")


# Writing


class GraphWriter:
    """Graphs as JSON; texts and module stacks, which repeat, go into tables."""

    def __init__(self, expressions: ExpressionTable) -> None:
        self._expressions = expressions
        self._texts: dict[str, int] = {}
        self._stacks: dict[tuple[Any, ...], int] = {}
        self._entry = functools.cache(_encode_entry)
        self._checked: set[tuple[str, str, str]] = set()

    @property
    def texts(self) -> list[str]:
        return list(self._texts)

    @property
    def stacks(self) -> list[object]:
        return [list(map(list, stack)) for stack in self._stacks]

    def graph(self, module: GraphModule, where: str) -> dict[str, Any]:
        nodes = [self._node(node, where) for node in module.graph.nodes]
        row: dict[str, Any] = {"nodes": nodes}
        inner = {
            str(n.target): self._child(module, n, where)
            for n in module.graph.nodes
            if n.op == "get_attr"
        }
        if inner:
            row["graphs"] = [[name, graph] for name, graph in inner.items()]
        if module.meta:
            row["meta"] = encode_value(dict(module.meta), where)
        return row

    def _child(self, module: GraphModule, node: Node, where: str) -> dict[str, object]:
        child = getattr(module, str(node.target), None)
        if not isinstance(child, GraphModule):
            kind = type(child)
            raise SerializationError(
                f"{node.target} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved",
                where=f"{where}, node {node.name}",
            )
        return self.graph(child, f"{where}, {node.target}")

    def _node(self, node: Node, where: str) -> dict[str, Any]:
        where = f"{where}, node {node.name}"
        if len(node.name) > json_reader.PATH:
            raise SerializationError("the name of a node is too long to be saved", where=where)
        row: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.op == "call_function":
            row["target"] = require_target_name(node.target, where)
        elif node.op == "get_attr" or (node.op == "placeholder" and node.target != node.name):
            row["target"] = str(node.target)
        elif node.op not in _OPS:
            raise SerializationError(f"a node of the kind {node.op} cannot be saved", where=where)
        if node.args:
            row["args"] = [encode_value(a, where, _encode_reference) for a in node.args]
        if node.kwargs:
            row["kwargs"] = [
                [k, encode_value(v, where, _encode_reference)] for k, v in node.kwargs.items()
            ]
        self._metadata(node, row, where)
        return row

    def _metadata(self, node: Node, row: dict[str, Any], where: str) -> None:
        meta = get_other_metadata(node)
        if has_val(node):
            row["val"] = encode_value(get_val(node), where, self.val)
        if meta.get("stack_trace") is not None:
            row["stack_trace"] = self._texts.setdefault(meta.pop("stack_trace"), len(self._texts))
        if "nn_module_stack" in meta:
            row["module_stack"] = self._stack(meta.pop("nn_module_stack"), where)
        if meta:
            row["meta"] = {k: encode_value(v, f"{where}, meta[{k!r}]") for k, v in meta.items()}

    def _stack(self, stack: dict[str, tuple[str, Any]], where: str) -> int:
        """The number of a stack. Modules that are in many are looked at once."""
        key = tuple(map(self._entry, stack.items()))
        for call, path, _ in [entry for entry in key if entry not in self._checked]:
            if not json_reader.is_call_key(call) or not json_reader.is_call_of(call, path):
                raise _unsavable_error(call, where)
        self._checked.update(key)
        return self._stacks.setdefault(key, len(self._stacks))

    def val(self, x: Any) -> Any:
        """What metadata says of a tensor or symbolic number; None for anything else."""
        if isinstance(x, AbstractTensor):
            return {"tensor": self._tensor(x)}
        return self._expressions.symbolic(x)

    def _tensor(self, t: AbstractTensor) -> dict[str, object]:
        about, size = t._abstract, self._expressions.operand
        if about.dtype not in _DTYPE_NAMES:
            raise SerializationError(f"a result of dtype {about.dtype} cannot be saved")
        row: dict[str, Any] = {
            "dtype": _DTYPE_NAMES[about.dtype],
            "device": str(about.device),
            "sizes": [size(s) for s in about.sizes],
        }
        if about._strides is not None:
            row["strides"] = [size(s) for s in about._strides]
        if type(about.offset) is not int or about.offset:
            row["offset"] = size(about.offset)
        if t.requires_grad:
            row["requires_grad"] = True
        return row


def _encode_entry(called: tuple[str, tuple[str, Any]]) -> tuple[str, str, str]:
    key, (path, kind) = called
    return key, str(path), _class_name(kind)


def _class_name(kind: Any) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
    return name[: json_reader.PATH]


def _unsavable_error(call: str, where: str) -> SerializationError:
    depth = call.count(".") + 1
    if depth > json_reader.PATH_PARTS:
        return SerializationError(
            f"modules are nested {depth} deep, and a file takes at most {json_reader.PATH_PARTS}",
            where=where,
        )
    return SerializationError(f"the module {call!r} cannot be saved", where=where)


def _encode_reference(x: Any) -> object:
    return {"node": x.name} if isinstance(x, Node) else None


# Reading


class GraphReader:
    """Builds graphs. Nodes refer to nodes before them, by name."""

    def __init__(
        self, expressions: Expressions, values: Values, targets: Targets, texts: Item, stacks: Item
    ) -> None:
        self._expressions = expressions
        self._values = values
        self._targets = targets
        self._texts = [item.words() for item in texts.list()]
        self._stacks = _read_stacks(stacks)
        self._entries = json_reader.MORE_STACK_ENTRIES
        """How many more modules nodes may be within."""
        self._described: dict[str, Decoder] = {
            "symbolic": expressions.symbolic,
            "tensor": self._tensor,
        }

    def module(self, item: Item, depth: int = 0) -> GraphModule:
        if depth > json_reader.GRAPH_DEPTH:
            item.fail("graphs are nested too deeply")
        fields = item.fields("nodes", optional=("graphs", "meta"))
        root = nn.Module()
        children: set[str] = set()
        for pair in fields["graphs"].list() if "graphs" in fields else ():
            key, inner = pair.list(2)
            name = json_reader.read_subgraph_name(key)
            if name in children:
                key.fail(f"there are two graphs named {name!r}")
            children.add(name)
            root.add_module(name, self.module(inner, depth + 1))
        graph = self._graph(fields["nodes"], children)
        made = make_graph_module(root, graph)
        if "meta" in fields:
            made.meta.update(self._values.decode(fields["meta"]))
        return made

    def _graph(self, item: Item, children: set[str]) -> Graph:
        graph = Graph()
        known: dict[str, Node] = {}
        rows = item.list()
        if not rows:
            item.fail("a graph has at least an output")
        for row in rows:
            node = self._node(graph, row, known, children)
            known[node.name] = node
        self._check_order(item, rows, graph)
        unused = children - {n.target for n in known.values() if n.op == "get_attr"}
        if unused:
            item.fail(f"no node refers to the graph {format_excerpt(min(unused))}")
        return graph

    def _check_order(self, item: Item, rows: list[Item], graph: Graph) -> None:
        """Inputs first, one output at the end."""
        ops = [n.op for n in graph.nodes]
        if ops.count("output") != 1 or ops[-1] != "output":
            item.fail("a graph has one output, which is its last node")
        inputs = ops.count("placeholder")
        for row, op in zip(rows[:inputs], ops, strict=False):
            if op != "placeholder":
                row.fail("the inputs of a graph come before all other nodes")

    def _node(self, graph: Graph, item: Item, known: dict[str, Node], children: set[str]) -> Node:
        fields = item.fields("op", "name", optional=_OPTIONAL)
        op = fields["op"].text()
        if op not in _OPS:
            fields["op"].fail(f"unknown kind of node {format_excerpt(op)}")
        name = json_reader.read_node_name(fields["name"])
        if name in known:
            fields["name"].fail(f"there are two nodes named {name!r}")
        more: dict[str, Decoder] = {"node": lambda x: _read_reference(x, known)}
        args, kwargs = self._arguments(fields, more)
        target = self._target(item, fields, op, name, children)
        if (op in ("placeholder", "get_attr") and args) or (op != "call_function" and kwargs):
            item.fail(f"a node of the kind {op} has no such arguments")
        if op == "output" and len(args) != 1:
            item.fail("an output has one argument")
        if op == "call_function":
            check_call_types(item, target, args, kwargs)
        node = graph.create_node(op, target, args, kwargs, name)
        if node.name != name:  # that of a builtin, which torch.fx would avoid
            node.name = name
            graph._graph_namespace._used_names.add(name)
        node.meta = self._metadata(fields)
        if op == "call_function" and "val" in fields:
            check_result_type(fields["val"], target, get_val(node))
        return node

    def _arguments(
        self, fields: dict[str, Item], more: dict[str, Decoder]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        decode: Callable[..., Any] = self._values.decode
        args = tuple(decode(x, more) for x in fields["args"].list()) if "args" in fields else ()
        kwargs: dict[str, Any] = {}
        for pair in fields["kwargs"].list() if "kwargs" in fields else ():
            key, x = pair.list(2)
            name = json_reader.read_identifier(key, "an argument")
            if name in kwargs:
                key.fail(f"the argument {name!r} is given twice")
            kwargs[name] = decode(x, more)
        return args, kwargs

    def _target(
        self, item: Item, fields: dict[str, Item], op: str, name: str, children: set[str]
    ) -> object:
        if op == "output":
            return "output"
        if op == "placeholder":
            return json_reader.read_node_name(fields["target"]) if "target" in fields else name
        if "target" not in fields:
            item.fail("the field 'target' is missing")
        if op == "call_function":
            return self._targets(fields["target"])
        if fields["target"].text() not in children:
            fields["target"].fail(
                f"there is no graph {format_excerpt(fields['target'].value)} here"
            )
        return fields["target"].text()

    def _metadata(self, fields: dict[str, Item]) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        if "val" in fields:
            meta["val"] = self._values.decode(fields["val"], self._described)
        if "module_stack" in fields:
            number = fields["module_stack"].index(len(self._stacks), "module stack")
            meta["nn_module_stack"] = stack = self._stacks[number]
            self._entries += json_reader.STACK_ENTRIES - len(stack)
            if self._entries < 0:
                fields["module_stack"].fail("the modules are nested too deeply")
        if "stack_trace" in fields:
            meta["stack_trace"] = self._texts[fields["stack_trace"].index(len(self._texts), "text")]
        for key, item in fields["meta"].named().items() if "meta" in fields else ():
            meta[key] = self._values.decode(item)
        return meta

    def _tensor(self, item: Item) -> AbstractTensor:
        fields = item.fields(
            "dtype", "device", "sizes", optional=("strides", "offset", "requires_grad")
        )
        number = self._expressions.integer
        sizes = tuple(number(x, 0) for x in fields["sizes"].list(most=json_reader.RANK))
        strides = None
        if "strides" in fields:
            strides = tuple(number(x) for x in fields["strides"].list(len(sizes)))
        kind = read_dtype(fields["dtype"])
        grad = "requires_grad" in fields and fields["requires_grad"].truth()
        if grad and not (kind.is_floating_point or kind.is_complex):
            item.fail(f"a tensor of dtype {fields['dtype'].value} cannot require gradients")
        offset = number(fields["offset"], 0) if "offset" in fields else 0
        about = Abstract(sizes, kind, read_device(fields["device"]), strides, offset)
        try:
            return make_abstract_tensor(about, grad)
        except (RuntimeError, OverflowError, TypeError, torch.AcceleratorError) as error:
            item.fail(f"no tensor can be described so: {str(error).splitlines()[0]}")


def _read_reference(item: Item, known: dict[str, Node]) -> Node:
    name = item.text()
    if name not in known:
        item.fail(f"there is no node {format_excerpt(name)} before this one")
    return known[name]


Stack = dict[str, tuple[str, str]]
"""The modules that a node is within, the outermost first: by call, the path and the class."""


def _read_stacks(table: Item) -> list[Stack]:
    """A stack begins like the one before it: what both have has been looked at."""
    tree = json_reader.ModulePaths()
    rows: list[Any] = []
    found: list[Stack] = []
    for item in table.list():
        same = _count_common(rows, item.value) if found and type(item.value) is list else 0
        known = itertools.islice(found[-1].items(), same) if found else ()
        found.append(_read_stack(item, same, dict(known), tree))
        rows = item.value if isinstance(item.value, list) else []
    return found


def _count_common(one: list[Any], other: list[Any]) -> int:
    """How many items two lists have in common, from the first on."""
    differ = map(operator.ne, one, other)
    return next(itertools.compress(itertools.count(), differ), min(len(one), len(other)))


def _read_stack(item: Item, start: int, found: Stack, tree: json_reader.ModulePaths) -> Stack:
    """`found`, and the modules from the one of this number on."""
    for row in item.list(start=start):
        key, path, kind = row.list(3)
        place, name = json_reader.read_call_key(path), json_reader.read_call_key(key)
        if not json_reader.is_call_of(name, place) or name in found:
            key.fail(
                f"{format_excerpt(key.value)} is not a call of the module {format_excerpt(place)}"
            )
        tree.add(path, place)
        found[name] = (place, kind.words()[: json_reader.PATH])
    return found
