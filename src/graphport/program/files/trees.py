"""Structures of arguments and results: the tree specs of `torch.utils._pytree`.

Containers of Python are written as what they are. Any other type goes by the name under which it
was registered, and is looked up by that name among the types that this process has registered.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from graphport.errors import SerializationError
from graphport.program import caches
from graphport.program.files import limits
from graphport.program.files.items import Item, shown
from graphport.program.files.values import Values, encode

_PLAIN: dict[str, Any] = {"tuple": tuple, "list": list}
_KEYED: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}
_FACTORIES: dict[str, Any] = {
    "list": list, "dict": dict, "set": set, "tuple": tuple, "int": int, "float": float,
    "str": str, "bool": bool,
}  # fmt: skip
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
_RETURN_TYPES: dict[str, Any] = {
    kind.__name__: kind for kind in torch.return_types.all_return_types
}
"""Results of operators such as torch.sort."""

_NAMES = {type_: name for name, type_ in (*_PLAIN.items(), *_KEYED.items())}


def encode_tree(spec: TreeSpec, where: str) -> Any:
    """A spec as JSON: null for a leaf."""
    if spec.is_leaf():
        return None
    row = _container(spec, where)
    row["items"] = [encode_tree(child, where) for child in spec.children()]
    return row


def _container(spec: TreeSpec, where: str) -> dict[str, Any]:
    kind: Any = spec.type
    context: Any = spec.context
    if kind in _PLAIN.values():
        return {"type": _NAMES[kind]}
    if kind in _KEYED.values():
        return {"type": _NAMES[kind], "context": encode(list(context), where)}
    if kind is deque:
        return {"type": "deque", "context": encode(context, where)}
    if kind is defaultdict:
        factory, keys = context
        if factory is not None and factory not in _FACTORY_NAMES:
            raise SerializationError(f"a defaultdict of {factory} cannot be saved", where=where)
        name = None if factory is None else _FACTORY_NAMES[factory]
        return {"type": "defaultdict", "context": [name, encode(list(keys), where)]}
    if kind is namedtuple:
        return {"type": "namedtuple", "context": _registered(context, where).serialized_type_name}
    if kind in _RETURN_TYPES.values():
        return {"type": "return type", "context": kind.__name__}
    node = _registered(kind, where)
    if node.to_dumpable_context is not None:
        context = node.to_dumpable_context(context)
    return {"type": f"registered {node.serialized_type_name}", "context": encode(context, where)}


def _registered(kind: type, where: str) -> Any:
    node = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if node is None or node.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        name = getattr(kind, "__qualname__", str(kind))
        raise SerializationError(
            f"the container {name} has no name to be saved under", where=where, fix=_fix(kind)
        )
    return node


def _fix(kind: Any) -> str:
    name = f"serialized_type_name='{kind.__module__}.{kind.__qualname__}'"
    if pytree.is_namedtuple_class(kind):
        return f"torch.utils._pytree._register_namedtuple({kind.__name__}, {name})"
    if hasattr(kind, "__dataclass_fields__"):
        return f"gp.register_dataclass({kind.__name__}, {name})"
    return f"register_pytree_node({kind.__name__}, flatten, unflatten, {name})"


class Trees:
    """Reads tree specs."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def read(self, item: Item, depth: int = 0) -> TreeSpec:
        if item.value is None:
            return pytree.treespec_leaf()
        if depth > limits.TREE_DEPTH:
            item.fail("containers are nested too deeply")
        fields = item.fields("type", "items", optional=("context",))
        children = [self.read(child, depth + 1) for child in fields["items"].list()]
        name = fields["type"].text()
        if name in _PLAIN:
            return TreeSpec(_PLAIN[name], None, children)
        if "context" not in fields:
            item.fail("the field 'context' is missing")
        kind, context = self._kind(fields["type"], fields["context"], len(children))
        return TreeSpec(kind, context, children)

    def _kind(self, type_: Item, context: Item, count: int) -> tuple[Any, Any]:
        """The type and the context of a container that has one."""
        name = type_.value
        if name in _KEYED:
            return _KEYED[name], self._keys(context, count)
        if name == "deque":
            most = None if context.value is None else context.integer(count, limits.SIZE)
            return deque, most
        if name == "defaultdict":
            factory, keys = context.list(2)
            made = None if factory.value is None else factory.choice(_FACTORIES, "type")
            return defaultdict, [made, self._keys(keys, count)]
        if name == "namedtuple":
            kind = self._find(context, context.text())
            if not pytree.is_namedtuple_class(kind) or len(kind._fields) != count:
                context.fail(f"{shown(context.value)} is not a named tuple of {count}")
            return namedtuple, kind
        if name == "return type":
            return context.choice(_RETURN_TYPES, "return type"), None
        word, _, registered = name.partition(" ")
        if word != "registered":
            type_.fail(f"unknown container {shown(name)}")
        kind = self._find(type_, registered)
        return kind, self._context(kind, context)

    def _keys(self, item: Item, count: int) -> list[Any]:
        keys = [self._values.key(key) for key in item.list(count)]
        if len(set(keys)) < count:
            item.fail("a key is given twice")
        return keys

    def _find(self, item: Item, name: str) -> Any:
        kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name) or caches.admit_named(name)
        # The containers of Python have ways of their own; that of defaultdict imports a module.
        if kind is None or kind in pytree.BUILTIN_TYPES or name.startswith("NO_SERIALIZED"):
            item.fail(
                f"no container is registered under the name {shown(name)}",
                f"before loading, register it: gp.register_dataclass(..., serialized_type_name="
                f"{shown(name)}), or register_pytree_node(...) with the same",
            )
        return kind

    def _context(self, kind: Any, item: Item) -> Any:
        context = self._values.decode(item)
        from_dumpable = pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context
        if from_dumpable is None:
            return context
        try:
            return from_dumpable(context)
        except Exception as error:
            raise SerializationError(
                f"{kind.__qualname__} does not accept its saved context: {error}", where=item.place
            ) from error
