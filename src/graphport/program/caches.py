"""The caches of Hugging Face transformers as containers of tensors.

A cache is taken apart by what is found in it, not by its class: tensors are leaves, and so are the
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
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from graphport.errors import SerializationError

_PACKAGES = ("transformers", "transformers_modules")
"""Where the classes are from; the second has code that came with a checkpoint."""
COUNTS = frozenset({
    "cumulative_length", "cumulative_length_int", "entry_count", "_seen_tokens",
    "_previous_number_of_accepted_tokens",
})  # fmt: skip
"""Attributes with Python ints that change from one call to the next."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = {kind.__name__: kind for kind in (list, tuple, dict, OrderedDict)}


@functools.lru_cache(maxsize=4096)
def is_cache(kind: Any) -> bool:
    """Whether a class is a cache of transformers, or derived from one."""
    return isinstance(kind, type) and _is_a(kind, "Cache")


@functools.lru_cache(maxsize=4096)
def _is_part(kind: Any) -> bool:
    """Caches, and the layers that they are made of."""
    return isinstance(kind, type) and _is_a(kind, "Cache", "Layer", "LayerMixin")


def _is_a(kind: type, *endings: str) -> bool:
    return any(
        base.__module__.partition(".")[0] in _PACKAGES and base.__name__.endswith(endings)
        for base in kind.__mro__
    )


class Aide:
    """A method that an object has only while it is captured: no part of what the object is."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


# Structure


@dataclass(frozen=True)
class Leaf:
    """A tensor or a count, given from outside."""


@dataclass(frozen=True)
class Fixed:
    """A value that is the same in every call."""

    value: Any = field(hash=False)


@dataclass(frozen=True)
class Bound:
    """A function that the object has as a method of its own."""

    function: Any


@dataclass(frozen=True)
class Derived:
    """What other attributes say, too; made anew with the object."""


@dataclass(frozen=True, eq=False)
class Part:
    """A cache, a layer, or a plain container: what is in it, by attribute, index or key.

    In which order things were put into it says nothing; that of the leaves is compared by whoever
    has them. Of an object whose only leaves are in its layers, those are the leaves: `hoisted`.
    """

    kind: type
    items: tuple[tuple[Any, Any], ...]
    hoisted: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
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
class Structure:
    """The context of a cache in a tree."""

    part: Part
    keys: tuple[Any, ...]
    """What its children are called."""

    def __repr__(self) -> str:
        return f"{self.part} of {len(self.keys)}"


_LEAF, _DERIVED, _NOTHING = Leaf(), Derived(), object()


def _size(name: str, d: int) -> Callable[[Any], Any]:
    def size(layer: Any) -> Any:
        states = getattr(layer, name)
        return states.shape[d] if isinstance(states, torch.Tensor) else None

    return size


def _device(layer: Any) -> Any:
    tensors = (x for x in pytree.tree_leaves([*vars(layer).values()])
               if isinstance(x, torch.Tensor))  # fmt: skip
    return next((t.device for t in tensors), None)


def _window(layer: Any) -> torch.Tensor:
    # No part of a program that is being captured.
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return torch.tensor(layer.sliding_window)


_DERIVATIONS: dict[str, Callable[[Any], Any]] = {
    "batch_size": _size("keys", 0), "num_heads": _size("keys", 1), "k_head_dim": _size("keys", 3),
    "v_head_dim": _size("values", 3), "device": _device, "indexer_device": _device,
    "_sliding_window_tensor": _window,
}  # fmt: skip


# Taking apart


def _apart(x: Any, owner: Any, counts: bool) -> tuple[Any, Any]:
    """The leaves in `x` in plain containers, or _NOTHING; and the structure around them."""
    if isinstance(x, (torch.Tensor, *_SYMBOLIC)) or (counts and type(x) is int):
        return x, _LEAF
    if isinstance(x, types.MethodType) and x.__self__ is owner:
        return _NOTHING, Bound(x.__func__)
    if type(x) in (list, tuple):
        return _apart_sequence(x, owner, counts)
    if type(x) in (dict, OrderedDict):
        pairs = {k: _apart(v, owner, counts) for k, v in x.items()}
        part = Part(type(x), tuple((k, inner) for k, (_, inner) in pairs.items()))
        return {k: v for k, (v, _) in pairs.items() if v is not _NOTHING} or _NOTHING, part
    kind: Any = type(x)
    return _apart_object(x) if _is_part(kind) else (_NOTHING, Fixed(x))


def _apart_sequence(x: Any, owner: Any, counts: bool) -> tuple[Any, Part]:
    pairs = [_apart(v, owner, counts) for v in x]
    part = Part(type(x), tuple((i, inner) for i, (_, inner) in enumerate(pairs)))
    if all(v is _NOTHING for v, _ in pairs):
        return _NOTHING, part
    return [{} if v is _NOTHING else v for v, _ in pairs], part  # every index keeps its place


def _apart_object(x: Any) -> tuple[Any, Part]:
    own = {k: v for k, v in vars(x).items() if not isinstance(v, Aide)}
    counts = COUNTS if own.get("is_initialized", True) else ()
    pairs = {k: _apart(v, x, k in counts) for k, v in own.items() if k not in _DERIVATIONS}
    leaves = {_told(k): v for k, (v, _) in pairs.items() if v is not _NOTHING}
    for k in own.keys() & _DERIVATIONS.keys():
        known = own[k] is None or (_DERIVATIONS[k] is _device and not leaves)
        pairs[k] = _NOTHING, Fixed(own[k]) if known else _DERIVED
    hoisted = [*leaves] == ["layers"]
    part = Part(type(x), tuple((k, pairs[k][1]) for k in own), hoisted)
    return (leaves["layers"] if hoisted else leaves) or _NOTHING, part


def _told(attribute: str) -> str:
    """What an attribute is called outside."""
    return attribute.lstrip("_")


def _with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    leaves, part = _apart(cache, cache, False)
    if isinstance(leaves, list):
        pairs: list[tuple[Any, Any]] = [(pytree.SequenceKey(i), x) for i, x in enumerate(leaves)]
        return pairs, Structure(part, tuple(range(len(leaves))))
    found = {} if leaves is _NOTHING else leaves
    kind = pytree.MappingKey if part.hoisted else pytree.GetAttrKey
    return [(kind(k), x) for k, x in found.items()], Structure(part, tuple(found))


def _flatten(cache: Any) -> tuple[list[Any], Structure]:
    pairs, structure = _with_keys(cache)
    return [x for _, x in pairs], structure


# Putting together


def _together(structure: Any, leaves: Any, owner: Any = None) -> Any:
    if isinstance(structure, Leaf):
        return leaves
    if isinstance(structure, Bound):
        return types.MethodType(structure.function, owner)
    if isinstance(structure, Fixed):
        value = structure.value  # a program may change what it is given
        return copy.copy(value) if isinstance(value, (set, list, dict)) else value
    kind = structure.kind
    if kind in (list, tuple):
        return kind(_together(s, _within(leaves, i), owner) for i, s in structure.items)
    if kind in (dict, OrderedDict):
        return kind((k, _together(s, _within(leaves, k), owner)) for k, s in structure.items)
    if structure.hoisted:
        leaves = {"layers": leaves}
    made = kind.__new__(kind)
    for k, s in structure.items:
        if not isinstance(s, Derived):
            vars(made)[k] = _together(s, _within(leaves, _told(k)), made)
    for k, s in structure.items:
        if isinstance(s, Derived):
            vars(made)[k] = _DERIVATIONS[k](made)
    return made


def _within(leaves: Any, key: Any) -> Any:
    if isinstance(leaves, dict):
        return leaves.get(key)
    return leaves[key] if isinstance(leaves, list) else None


def _unflatten(children: Any, structure: Structure) -> Any:
    children = list(children)
    numbered = structure.part.hoisted and structure.keys == tuple(range(len(children)))
    leaves = children if numbered else dict(zip(structure.keys, children, strict=True))
    return _together(structure.part, leaves)


# Files


def _dumped(structure: Structure) -> Any:
    return [_dump(structure.part), list(structure.keys)]


def _dump(s: Any) -> Any:
    if isinstance(s, Part):
        items = [[k, _dump(inner)] for k, inner in s.items]
        return ["part", _name_of(s.kind), items, s.hoisted]
    if isinstance(s, Fixed):
        value = s.value
        return ["class", _name_of(value)] if isinstance(value, type) else ["fixed", value]
    if isinstance(s, Bound):
        raise SerializationError(f"a cache with the method {s.function} cannot be saved")
    return ["leaf" if isinstance(s, Leaf) else "derived"]


def _read(dumped: Any) -> Structure:
    part, keys = dumped
    return Structure(_undump(part), tuple(keys))


def _undump(row: Any) -> Any:
    tag = row[0]
    if tag == "part":
        _, name, items, hoisted = row
        return Part(_named(name), tuple((k, _undump(s)) for k, s in items), bool(hoisted))
    if tag in ("fixed", "class"):
        return Fixed(_named(row[1]) if tag == "class" else row[1])
    return {"leaf": _LEAF, "derived": _DERIVED}[tag]


def _name_of(kind: type) -> str:
    return kind.__name__ if kind in _PLAIN.values() else f"{kind.__module__}.{kind.__qualname__}"


def _named(name: str) -> type:
    """A class that this process has loaded already."""
    module, _, last = name.rpartition(".")
    kind: Any = _PLAIN.get(name) or vars(sys.modules.get(module, types)).get(last)
    if kind in _PLAIN.values() or _is_part(kind):
        return kind
    raise LookupError(f"the class {name} is not loaded: import {module or name} first")


# Registration

_TURN = threading.Lock()


def admit(*trees: Any) -> None:
    """Let the caches in some trees be containers."""
    for leaf in pytree.tree_leaves(trees):
        kind: Any = type(leaf)
        if is_cache(kind):
            _register(kind)


def admit_named(name: str) -> Any:
    """A cache class by its full name, if this process has it; else None."""
    try:
        kind = _named(name)
    except LookupError:
        return None
    if not is_cache(kind):
        return None
    _register(kind)
    return kind


def _register(kind: type) -> None:
    with _TURN:
        if kind in pytree.SUPPORTED_NODES:
            return
        pytree.register_pytree_node(
            kind,
            _flatten,
            _unflatten,
            serialized_type_name=_name_of(kind),
            to_dumpable_context=_dumped,
            from_dumpable_context=_read,
            flatten_with_keys_fn=_with_keys,
        )
