"""Encodes and reads plain values and pytree specs as JSON.

What JSON has stands for itself: null, true, numbers, texts, lists. Anything else is an object with
one field, which says what it is: `{"tuple": [1, 2]}`, `{"dtype": "float32"}`. Whoever encodes or
decodes may know more kinds than those of this module, such as nodes of a graph.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphport.compat.torch import OpOverload, TreeSpec, pytree
from graphport.errors import SerializationError
from graphport.huggingface import caches
from graphport.program.files import json_reader
from graphport.program.files.json_reader import Item, format_excerpt, is_utf8
from graphport.program.files.operators import Targets
from graphport.tensors.subclasses import Parts

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in """
        bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
        complex32 complex64 complex128 bcomplex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2
        float8_e5m2fnuz float8_e8m0fnu
    """.split()
    if hasattr(torch, name)
}
LAYOUTS: dict[str, torch.layout] = {
    name: getattr(torch, name)
    for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
}
MEMORY_FORMATS: dict[str, torch.memory_format] = {
    name: getattr(torch, name)
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}
_NAMED: tuple[tuple[str, type, dict[Any, str]], ...] = (
    ("dtype", torch.dtype, {v: k for k, v in DTYPES.items()}),
    ("layout", torch.layout, {v: k for k, v in LAYOUTS.items()}),
    ("memory_format", torch.memory_format, {v: k for k, v in MEMORY_FORMATS.items()}),
)
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Encoder = Callable[[Any], Any]
"""Encodes what this module does not know; returns None for what it does not know either."""


def encode_value(x: Any, where: str, more: Encoder | None = None) -> Any:
    """A value as JSON. `where` is for the error about what cannot be saved."""
    if more is not None:
        known = more(x)
        if known is not None:
            return known
    kind = type(x)
    if x is None or kind is bool:
        return x
    if kind is str:
        if len(x) > json_reader.TEXT or not is_utf8(x):
            raise SerializationError(f"the text {format_excerpt(x)} cannot be saved", where=where)
        return x
    if kind is int:
        if abs(x) >= json_reader.INTEGER:
            raise SerializationError(
                f"the integer {format_excerpt(x)} is too large to save", where=where
            )
        return x
    if kind is float:
        return x if math.isfinite(x) else {"float": repr(x)}
    if kind is complex:
        return {"complex": [encode_value(x.real, where), encode_value(x.imag, where)]}
    if isinstance(x, list):
        return [encode_value(y, where, more) for y in x]
    if isinstance(x, tuple) and (kind is tuple or kind is torch.Size):
        return {"tuple": [encode_value(y, where, more) for y in x]}
    if isinstance(x, dict):
        return {
            "dict": [[encode_value(k, where), encode_value(v, where, more)] for k, v in x.items()]
        }
    if kind is slice:
        return {"slice": [encode_value(y, where, more) for y in (x.start, x.stop, x.step)]}
    if kind is torch.device:
        return {"device": str(x)}
    if isinstance(x, OpOverload):
        return {"operator": x.name()}
    for tag, named, names in _NAMED:
        if kind is named and x in names:
            return {tag: names[x]}
    raise SerializationError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be saved: {format_excerpt(x)}", where=where
    )


def encode_number(x: Any) -> object:
    """An int, float or bound of a range."""
    return encode_value(x, "")


Decoder = Callable[[Item], Any]


class Values:
    """Decodes values; `targets` finds operators."""

    def __init__(self, targets: Targets) -> None:
        self._tags: dict[str, Decoder] = {
            "float": lambda item: item.choice(_NOT_FINITE, "number"),
            "complex": _read_complex,
            "device": read_device,
            "dtype": read_dtype,
            "layout": lambda item: item.choice(LAYOUTS, "layout"),
            "memory_format": lambda item: item.choice(MEMORY_FORMATS, "memory format"),
            "operator": targets.operator,
        }

    def decode(self, item: Item, more: Mapping[str, Decoder] | None = None, depth: int = 0) -> Any:
        value = item.value
        kind = type(value)
        if kind is int:
            return item.integer()
        if kind is str:
            return item.text()
        if kind is list:
            if depth > json_reader.VALUE_DEPTH:
                item.fail("lists are nested too deeply")
            return [self.decode(inner, more, depth + 1) for inner in item.list()]
        if kind is not dict:
            return value
        return self._tagged(item, more, depth)

    def _tagged(self, item: Item, more: Mapping[str, Decoder] | None, depth: int) -> object:
        if (
            not isinstance(item.value, dict)
            or len(item.value) != 1
            or depth > json_reader.VALUE_DEPTH
        ):
            item.fail("a value is an object with one field, nested a few times at most")
        ((tag, inner),) = item.named().items()
        if more is not None and tag in more:
            return more[tag](inner)
        if tag == "tuple":
            return tuple(self.decode(x, more, depth + 1) for x in inner.list())
        if tag == "slice":
            return slice(*(self.decode(x, more, depth + 1) for x in inner.list(3)))
        if tag == "dict":
            return self._dict(inner, more, depth)
        if tag not in self._tags:
            item.fail(f"unknown or misplaced kind of value {format_excerpt(tag)}")
        return self._tags[tag](inner)

    def _dict(
        self, item: Item, more: Mapping[str, Decoder] | None, depth: int
    ) -> dict[object, object]:
        found: dict[Any, Any] = {}
        for pair in item.list():
            key, value = pair.list(2)
            name = self.key(key)
            if name in found:
                key.fail(f"the key {format_excerpt(name)} is given twice")
            found[name] = self.decode(value, more, depth + 1)
        return found

    def key(self, item: Item) -> Any:
        """A value that can be the key of a dict."""
        found = self.decode(item)
        try:
            hash(found)
        except TypeError:
            item.fail("not a key of a dict: it cannot be hashed")
        return found


def _read_complex(item: Item) -> complex:
    real, imaginary = (read_number(part) for part in item.list(2))
    if not (math.isfinite(real) and math.isfinite(imaginary)):
        item.fail("a complex number that is not finite cannot be written as code")
    return complex(real, imaginary)


def read_number(item: Item, *, nan: bool = True) -> float | int:
    """An int or float, infinite ones included."""
    if type(item.value) is int:
        return item.integer()
    if type(item.value) is float:
        found: float = item.value
    else:
        found = item.fields("float")["float"].choice(_NOT_FINITE, "number")
    if found != found and not nan:
        item.fail("not a number (nan) is not allowed here")
    return found


def read_dtype(item: Item) -> torch.dtype:
    found: torch.dtype = item.choice(DTYPES, "dtype")
    return found


def read_device(item: Item) -> torch.device:
    name = item.text()
    try:
        return torch.device(name)
    except (RuntimeError, ValueError):
        item.fail(f"unknown device {format_excerpt(name)}")


# Pytree specs: the structures of arguments and results.
#
# Containers of Python are written as what they are. Any other type goes by the name under which it
# was registered, and is looked up by that name among the types that this process has registered.

_PLAIN: dict[str, Any] = {"tuple": tuple, "list": list}
_KEYED: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}
_FACTORIES: dict[str, Any] = {
    "list": list,
    "dict": dict,
    "set": set,
    "tuple": tuple,
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
_RETURN_TYPES: dict[str, Any] = {
    kind.__name__: kind for kind in torch.return_types.all_return_types
}
"""Results of operators such as torch.sort."""

_CONTAINER_NAMES = {type_: name for name, type_ in (*_PLAIN.items(), *_KEYED.items())}


def encode_tree(spec: TreeSpec, where: str) -> object:
    """A spec as JSON: null for a leaf."""
    if spec.is_leaf():
        return None
    row = _encode_container(spec, where)
    row["items"] = [encode_tree(child, where) for child in spec.children()]
    return row


def _encode_container(spec: TreeSpec, where: str) -> dict[str, object]:
    kind: Any = spec.type
    context: Any = spec.context
    if kind in _PLAIN.values():
        return {"type": _CONTAINER_NAMES[kind]}
    if kind in _KEYED.values():
        return {"type": _CONTAINER_NAMES[kind], "context": encode_value(list(context), where)}
    if kind is deque:
        return {"type": "deque", "context": encode_value(context, where)}
    if kind is defaultdict:
        factory, keys = context
        if factory is not None and factory not in _FACTORY_NAMES:
            raise SerializationError(f"a defaultdict of {factory} cannot be saved", where=where)
        name = None if factory is None else _FACTORY_NAMES[factory]
        return {"type": "defaultdict", "context": [name, encode_value(list(keys), where)]}
    if kind is namedtuple:
        return {
            "type": "namedtuple",
            "context": _encode_registered(context, where).serialized_type_name,
        }
    if kind in _RETURN_TYPES.values():
        return {"type": "return type", "context": kind.__name__}
    node = _encode_registered(kind, where)
    if node.to_dumpable_context is not None:
        context = node.to_dumpable_context(context)
    return {
        "type": f"registered {node.serialized_type_name}",
        "context": encode_value(context, where),
    }


def _encode_registered(kind: type, where: str) -> Any:
    if kind is Parts:
        raise SerializationError(
            "tensor subclasses among inputs or outputs cannot be saved: files have no classes",
            where=where,
            fix="pass and return the tensors that it is made of",
        )
    node = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if node is None or node.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        name = getattr(kind, "__qualname__", str(kind))
        raise SerializationError(
            f"the container {name} has no name to be saved under",
            where=where,
            fix=_suggest_registration(kind),
        )
    return node


def _suggest_registration(kind: Any) -> str:
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
        if depth > json_reader.TREE_DEPTH:
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
        name = type_.text()
        if name in _KEYED:
            return _KEYED[name], self._keys(context, count)
        if name == "deque":
            most = None if context.value is None else context.integer(count, json_reader.SIZE)
            return deque, most
        if name == "defaultdict":
            factory, keys = context.list(2)
            made = None if factory.value is None else factory.choice(_FACTORIES, "type")
            return defaultdict, [made, self._keys(keys, count)]
        if name == "namedtuple":
            kind = self._find(context, context.text())
            if not pytree.is_namedtuple_class(kind) or len(kind._fields) != count:
                context.fail(f"{format_excerpt(context.value)} is not a named tuple of {count}")
            return namedtuple, kind
        if name == "return type":
            return context.choice(_RETURN_TYPES, "return type"), None
        word, _, registered = name.partition(" ")
        if word != "registered":
            type_.fail(f"unknown container {format_excerpt(name)}")
        kind = self._find(type_, registered)
        return kind, self._context(kind, context)

    def _keys(self, item: Item, count: int) -> list[Any]:
        keys = [self._values.key(key) for key in item.list(count)]
        if len(set(keys)) < count:
            item.fail("a key is given twice")
        return keys

    def _find(self, item: Item, name: str) -> Any:
        kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name) or caches.register_cache_by_name(
            name
        )
        # The containers of Python have ways of their own; that of defaultdict imports a module.
        if kind is None or kind in pytree.BUILTIN_TYPES or name.startswith("NO_SERIALIZED"):
            item.fail(
                f"no container is registered under the name {format_excerpt(name)}",
                f"before loading, register it: gp.register_dataclass(..., serialized_type_name="
                f"{format_excerpt(name)}), or register_pytree_node(...) with the same",
            )
        return kind

    def _context(self, kind: Any, item: Item) -> object:
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
