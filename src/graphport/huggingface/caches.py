"""Registers the caches of Hugging Face transformers as pytree containers.

A cache is flattened by what is found in it, not by its class: tensors are leaves, and so are the
counts that grow with the sequence; everything else (classes of layers, window sizes, flags) is its
structure, and compared by equality. Its layers stand for the cache: `cache[0]["keys"]`. Classes are
registered with `torch.utils._pytree` when one of their objects is first met, unless the user has
registered them; transformers is never imported, nor anything that a file names.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from graphport.compat.torch import DisableTorchFunction, disable_current_modes, pytree
from graphport.errors import SerializationError
from graphport.symbolic.bridge import SYMBOLIC
from graphport.types import PyTree

_PACKAGES = ("transformers", "transformers_modules")
"""Where the classes are from; the second has code that came with a checkpoint."""
COUNTS = frozenset(
    {
        "cumulative_length",
        "cumulative_length_int",
        "entry_count",
        "seqlen_offset",
        "_seen_tokens",
        "_previous_number_of_accepted_tokens",
    }
)
"""Attributes with Python ints that change from one call to the next."""
_PLAIN_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, dict, OrderedDict)}


@functools.lru_cache(maxsize=4096)
def is_cache(kind: object) -> bool:
    """Whether a class is a cache of transformers, or derived from one."""
    return isinstance(kind, type) and _has_base_named(kind, "Cache")


@functools.lru_cache(maxsize=4096)
def _is_cache_or_layer(kind: object) -> bool:
    """Caches, and the layers that they are made of."""
    return isinstance(kind, type) and _has_base_named(kind, "Cache", "Layer", "LayerMixin")


def _has_base_named(kind: type, *endings: str) -> bool:
    return any(
        base.__module__.partition(".")[0] in _PACKAGES and base.__name__.endswith(endings)
        for base in kind.__mro__
    )


class TemporaryMethod:
    """A method that an object has only while it is captured: no part of what the object is."""

    def __init__(self, method: Callable[..., object]) -> None:
        self.method = method

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        return self.method(*args, **kwargs)


# Structure


@dataclass(frozen=True)
class Leaf:
    """A tensor or a count, given from outside."""


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every call."""

    value: Any = field(hash=False)


@dataclass(frozen=True)
class BoundMethod:
    """A function that the object has as a method of its own."""

    function: Any


@dataclass(frozen=True)
class DerivedAttribute:
    """What other attributes say, too; made anew with the object."""


@dataclass(frozen=True, eq=False)
class Container:
    """A cache, a layer, or a plain container: what is in it, by attribute, index or key.

    In which order things were put into it says nothing; that of the leaves is compared by whoever
    has them. Of an object whose only leaves are in its layers, those are the leaves: `hoisted`.
    """

    kind: type
    items: tuple[tuple[Any, Any], ...]
    hoisted: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Container):
            return NotImplemented
        return (
            self.kind is other.kind
            and self.hoisted == other.hoisted
            and dict(self.items) == dict(other.items)
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.hoisted, len(self.items)))

    def __str__(self) -> str:
        return self.kind.__name__


@dataclass(frozen=True)
class CacheContext:
    """The context of a cache in a tree."""

    part: Container
    keys: tuple[Any, ...]
    """What its children are called."""

    def __repr__(self) -> str:
        return f"{self.part} of {len(self.keys)}"


_LEAF, _DERIVED, _NO_LEAVES = Leaf(), DerivedAttribute(), object()


def _make_size_getter(name: str, d: int) -> Callable[[Any], Any]:
    def size(layer: Any) -> Any:
        states = getattr(layer, name)
        return states.shape[d] if isinstance(states, torch.Tensor) else None

    return size


def _find_device(layer: object) -> object:
    tensors = (
        x for x in pytree.tree_leaves([*vars(layer).values()]) if isinstance(x, torch.Tensor)
    )
    return next((t.device for t in tensors), None)


def _make_window_tensor(layer: Any) -> torch.Tensor:
    # No part of a program that is being captured.
    with disable_current_modes(), DisableTorchFunction():
        return torch.tensor(layer.sliding_window)


_DERIVATIONS: dict[str, Callable[[Any], Any]] = {
    "batch_size": _make_size_getter("keys", 0),
    "num_heads": _make_size_getter("keys", 1),
    "k_head_dim": _make_size_getter("keys", 3),
    "v_head_dim": _make_size_getter("values", 3),
    "device": _find_device,
    "indexer_device": _find_device,
    "_sliding_window_tensor": _make_window_tensor,
}


# Flattening


def _flatten_value(x: Any, owner: Any, counts: bool) -> tuple[Any, Any]:
    """The leaves in `x` in plain containers, or _NO_LEAVES; and the structure around them."""
    if isinstance(x, (torch.Tensor, *SYMBOLIC)) or (counts and type(x) is int):
        return x, _LEAF
    if isinstance(x, types.MethodType) and x.__self__ is owner:
        return _NO_LEAVES, BoundMethod(x.__func__)
    if type(x) in (list, tuple):
        return _flatten_sequence(x, owner, counts)
    if type(x) in (dict, OrderedDict):
        pairs = {k: _flatten_value(v, owner, counts) for k, v in x.items()}
        part = Container(type(x), tuple((k, inner) for k, (_, inner) in pairs.items()))
        return {k: v for k, (v, _) in pairs.items() if v is not _NO_LEAVES} or _NO_LEAVES, part
    kind: Any = type(x)
    return _flatten_object(x) if _is_cache_or_layer(kind) else (_NO_LEAVES, Constant(x))


def _flatten_sequence(x: Any, owner: Any, counts: bool) -> tuple[Any, Container]:
    pairs = [_flatten_value(v, owner, counts) for v in x]
    part = Container(type(x), tuple((i, inner) for i, (_, inner) in enumerate(pairs)))
    if all(v is _NO_LEAVES for v, _ in pairs):
        return _NO_LEAVES, part
    return [{} if v is _NO_LEAVES else v for v, _ in pairs], part  # every index keeps its place


def _flatten_object(x: object) -> tuple[Any, Container]:
    own = {k: v for k, v in vars(x).items() if not isinstance(v, TemporaryMethod)}
    counts = COUNTS if own.get("is_initialized", True) else ()
    pairs = {k: _flatten_value(v, x, k in counts) for k, v in own.items() if k not in _DERIVATIONS}
    leaves = {_public_name(k): v for k, (v, _) in pairs.items() if v is not _NO_LEAVES}
    for k in own.keys() & _DERIVATIONS.keys():
        known = own[k] is None or (_DERIVATIONS[k] is _find_device and not leaves)
        pairs[k] = _NO_LEAVES, Constant(own[k]) if known else _DERIVED
    hoisted = [*leaves] == ["layers"]
    part = Container(type(x), tuple((k, pairs[k][1]) for k in own), hoisted)
    return (leaves["layers"] if hoisted else leaves) or _NO_LEAVES, part


def _public_name(attribute: str) -> str:
    """What an attribute is called outside."""
    return attribute.lstrip("_")


def _flatten_with_keys(cache: object) -> tuple[list[tuple[Any, Any]], CacheContext]:
    leaves, part = _flatten_value(cache, cache, False)
    if isinstance(leaves, list):
        pairs: list[tuple[Any, Any]] = [(pytree.SequenceKey(i), x) for i, x in enumerate(leaves)]
        return pairs, CacheContext(part, tuple(range(len(leaves))))
    found = {} if leaves is _NO_LEAVES else leaves
    kind = pytree.MappingKey if part.hoisted else pytree.GetAttrKey
    return [(kind(k), x) for k, x in found.items()], CacheContext(part, tuple(found))


def _flatten_cache(cache: object) -> tuple[list[Any], CacheContext]:
    pairs, structure = _flatten_with_keys(cache)
    return [x for _, x in pairs], structure


# Unflattening


def _rebuild_value(structure: Any, leaves: PyTree, owner: Any = None) -> object:
    if isinstance(structure, Leaf):
        return leaves
    if isinstance(structure, BoundMethod):
        return types.MethodType(structure.function, owner)
    if isinstance(structure, Constant):
        value = structure.value  # a program may change what it is given
        return copy.copy(value) if isinstance(value, (set, list, dict)) else value
    kind = structure.kind
    if kind in (list, tuple):
        return kind(_rebuild_value(s, _get_child(leaves, i), owner) for i, s in structure.items)
    if kind in (dict, OrderedDict):
        return kind(
            (k, _rebuild_value(s, _get_child(leaves, k), owner)) for k, s in structure.items
        )
    if structure.hoisted:
        leaves = {"layers": leaves}
    made = kind.__new__(kind)
    for k, s in structure.items:
        if not isinstance(s, DerivedAttribute):
            vars(made)[k] = _rebuild_value(s, _get_child(leaves, _public_name(k)), made)
    for k, s in structure.items:
        if isinstance(s, DerivedAttribute):
            vars(made)[k] = _DERIVATIONS[k](made)
    return made


def _get_child(leaves: object, key: Any) -> object:
    if isinstance(leaves, dict):
        return leaves.get(key)
    return leaves[key] if isinstance(leaves, list) else None


def _unflatten_cache(children: Any, structure: CacheContext) -> object:
    children = list(children)
    numbered = structure.part.hoisted and structure.keys == tuple(range(len(children)))
    leaves = children if numbered else dict(zip(structure.keys, children, strict=True))
    return _rebuild_value(structure.part, leaves)


# Files


def _dump_context(structure: CacheContext) -> object:
    return [_dump_structure(structure.part), list(structure.keys)]


def _dump_structure(s: object) -> object:
    if isinstance(s, Container):
        items = [[k, _dump_structure(inner)] for k, inner in s.items]
        return ["part", _name_of(s.kind), items, s.hoisted]
    if isinstance(s, Constant):
        value = s.value
        return ["class", _name_of(value)] if isinstance(value, type) else ["fixed", value]
    if isinstance(s, BoundMethod):
        raise SerializationError(f"a cache with the method {s.function} cannot be saved")
    return ["leaf" if isinstance(s, Leaf) else "derived"]


def _load_context(dumped: Any) -> CacheContext:
    part, keys = dumped
    return CacheContext(_load_structure(part), tuple(keys))


def _load_structure(row: Any) -> Any:
    tag = row[0]
    if tag == "part":
        _, name, items, hoisted = row
        return Container(
            _find_class(name), tuple((k, _load_structure(s)) for k, s in items), bool(hoisted)
        )
    if tag in ("fixed", "class"):
        return Constant(_find_class(row[1]) if tag == "class" else row[1])
    return {"leaf": _LEAF, "derived": _DERIVED}[tag]


def _name_of(kind: type) -> str:
    return (
        kind.__name__
        if kind in _PLAIN_CONTAINERS.values()
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _find_class(name: str) -> type:
    """A class that this process has loaded already."""
    module, _, last = name.rpartition(".")
    kind: Any = _PLAIN_CONTAINERS.get(name) or vars(sys.modules.get(module, types)).get(last)
    if kind in _PLAIN_CONTAINERS.values() or _is_cache_or_layer(kind):
        return kind
    raise LookupError(f"the class {name} is not loaded: import {module or name} first")


# Registration

_LOCK = threading.Lock()


def register_caches(*trees: object) -> None:
    """Let the caches in some trees be containers."""
    for leaf in pytree.tree_leaves(trees):
        kind: Any = type(leaf)
        if is_cache(kind):
            _register_class(kind)


def register_cache_by_name(name: str) -> object:
    """A cache class by its full name, if this process has it; else None."""
    try:
        kind = _find_class(name)
    except LookupError:
        return None
    if not is_cache(kind):
        return None
    _register_class(kind)
    return kind


def _register_class(kind: type) -> None:
    with _LOCK:
        if kind in pytree.SUPPORTED_NODES:
            return
        pytree.register_pytree_node(
            kind,
            _flatten_cache,
            _unflatten_cache,
            serialized_type_name=_name_of(kind),
            to_dumpable_context=_dump_context,
            from_dumpable_context=_load_context,
            flatten_with_keys_fn=_flatten_with_keys,
        )
