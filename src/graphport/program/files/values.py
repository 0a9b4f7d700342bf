"""Plain values as JSON, both ways.

What JSON has stands for itself: null, true, numbers, texts, lists. Anything else is an object with
one field, which says what it is: `{"tuple": [1, 2]}`, `{"dtype": "float32"}`. Whoever encodes or
decodes may know more kinds than those of this module, such as nodes of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from graphport.errors import SerializationError
from graphport.program.files import limits
from graphport.program.files.items import Item, is_utf8, shown
from graphport.program.files.targets import Targets

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
        "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
        "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}  # fmt: skip
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

More = Callable[[Any], Any]
"""Encodes what this module does not know; returns None for what it does not know either."""


def encode(x: Any, where: str, more: More | None = None) -> Any:
    """A value as JSON. `where` is for the error about what cannot be saved."""
    if more is not None:
        known = more(x)
        if known is not None:
            return known
    kind = type(x)
    if x is None or kind is bool:
        return x
    if kind is str:
        if len(x) > limits.TEXT or not is_utf8(x):
            raise SerializationError(f"the text {shown(x)} cannot be saved", where=where)
        return x
    if kind is int:
        if abs(x) >= limits.INTEGER:
            raise SerializationError(f"the integer {shown(x)} is too large to save", where=where)
        return x
    if kind is float:
        return x if math.isfinite(x) else {"float": repr(x)}
    if kind is complex:
        return {"complex": [encode(x.real, where), encode(x.imag, where)]}
    if isinstance(x, list):
        return [encode(y, where, more) for y in x]
    if isinstance(x, tuple) and (kind is tuple or kind is torch.Size):
        return {"tuple": [encode(y, where, more) for y in x]}
    if isinstance(x, dict):
        return {"dict": [[encode(k, where), encode(v, where, more)] for k, v in x.items()]}
    if kind is slice:
        return {"slice": [encode(y, where, more) for y in (x.start, x.stop, x.step)]}
    if kind is torch.device:
        return {"device": str(x)}
    if isinstance(x, OpOverload):
        return {"operator": x.name()}
    for tag, named, names in _NAMED:
        if kind is named and x in names:
            return {tag: names[x]}
    raise SerializationError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be saved: {shown(x)}", where=where
    )


def number(x: Any) -> Any:
    """An int, float or bound of a range."""
    return encode(x, "")


Decoder = Callable[[Item], Any]


class Values:
    """Decodes values; `targets` finds operators."""

    def __init__(self, targets: Targets) -> None:
        self._tags: dict[str, Decoder] = {
            "float": lambda item: item.choice(_NOT_FINITE, "number"),
            "complex": _complex,
            "device": device,
            "dtype": dtype,
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
            if depth > limits.VALUE_DEPTH:
                item.fail("lists are nested too deeply")
            return [self.decode(inner, more, depth + 1) for inner in item.list()]
        if kind is not dict:
            return value
        return self._tagged(item, more, depth)

    def _tagged(self, item: Item, more: Mapping[str, Decoder] | None, depth: int) -> Any:
        if len(item.value) != 1 or depth > limits.VALUE_DEPTH:
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
            item.fail(f"unknown or misplaced kind of value {shown(tag)}")
        return self._tags[tag](inner)

    def _dict(self, item: Item, more: Mapping[str, Decoder] | None, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for pair in item.list():
            key, value = pair.list(2)
            name = self.key(key)
            if name in found:
                key.fail(f"the key {shown(name)} is given twice")
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


def _complex(item: Item) -> complex:
    real, imaginary = (real_number(part) for part in item.list(2))
    if not (math.isfinite(real) and math.isfinite(imaginary)):
        item.fail("a complex number that is not finite cannot be written as code")
    return complex(real, imaginary)


def real_number(item: Item, *, nan: bool = True) -> float | int:
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


def dtype(item: Item) -> torch.dtype:
    found: torch.dtype = item.choice(DTYPES, "dtype")
    return found


def device(item: Item) -> torch.device:
    name = item.text()
    try:
        return torch.device(name)
    except (RuntimeError, ValueError):
        item.fail(f"unknown device {shown(name)}")
