"""Lengths of caches as formulas that need no guard, and `dynamic_shapes` of caches expanded.

Layers of transformers' caches ask whether they are empty or whether their window is full, and take
the example's way through the model. What they compute is one formula of sizes either way: while a
program is captured, the layers of its own copy of a cache compute that. So one program serves an
empty cache and a full one.

A window of size w that has seen n tokens holds the last min(n, w - 1) of them. Its layers rely on
that, and so does the formula: it becomes a check of the program's inputs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from graphport.compat.torch import pytree
from graphport.errors import InputError, SpecError
from graphport.huggingface import caches
from graphport.process import Replacement
from graphport.symbolic import Expr, Scope, eq, min_
from graphport.symbolic.bridge import from_torch
from graphport.symbolic.dims import Dim, Hint, convert_torch_dim
from graphport.types import PyTree

_WINDOW = "DynamicSlidingWindowLayer"


def _seq_length(layer: Any) -> Any:
    """0 if there is nothing, else the length of what there is: the length."""
    if not layer.is_initialized or layer.keys.dim() < 2:
        return 0
    return layer.keys.shape[-2]


def _window_sizes(layer: Any, query: Any) -> Any:
    """min(n, w - 1) tokens are held, and the first is token max(n - w + 1, 0) of the sequence.

    Asked with the length of the query, or before transformers 5 with its positions.
    """
    held = _seq_length(layer)
    new = query.shape[0] if isinstance(query, torch.Tensor) else query
    return held + new, layer.cumulative_length - held


def patch_sliding_windows() -> Iterator[Replacement]:
    """A window keeps its last w - 1 tokens, or all if there are fewer.

    This is for all of a process: layers may also be made by the program.
    """
    module = sys.modules.get("transformers.cache_utils")
    root = getattr(module, _WINDOW, None)
    for kind in [] if root is None else _iterate_subclasses(root):
        if "update" in vars(kind):
            yield kind, "update", _wrap_update(kind.update)


def _iterate_subclasses(kind: type[Any]) -> Iterator[Any]:
    yield kind
    for further in kind.__subclasses__():
        yield from _iterate_subclasses(further)


def _wrap_update(update: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(update)
    def call(layer: Any, key_states: Any, *args: PyTree, **kwargs: PyTree) -> PyTree:
        sizes = [
            t.shape[-2]
            for t in (key_states, layer.keys)
            if isinstance(t, torch.Tensor) and t.dim() > 1
        ]
        size = next((from_torch(s) for s in sizes if isinstance(s, torch.SymInt)), None)
        with nullcontext() if not isinstance(size, Expr) else size.scope.clamp_slice_bounds():
            return update(layer, key_states, *args, **kwargs)

    return call


def replace_length_methods(arguments: PyTree, scope: Scope) -> None:
    """Let the layers of caches among the arguments of a captured program compute formulas."""
    for cache in pytree.tree_leaves(arguments, is_leaf=_is_cache):
        for layer in _iterate_layers(cache) if _is_cache(cache) else ():
            if _find_defining_class(layer, "get_seq_length") == "DynamicLayer":
                _set_method(layer, "get_seq_length", functools.partial(_seq_length, layer))
            if _find_defining_class(layer, "get_mask_sizes") == _WINDOW and _is_window(
                layer, scope
            ):
                _set_method(layer, "get_mask_sizes", functools.partial(_window_sizes, layer))


def _is_cache(x: object) -> bool:
    kind: Any = type(x)
    return caches.is_cache(kind)


def _iterate_layers(cache: object) -> Iterator[Any]:
    for value in vars(cache).values():
        if _is_cache(value):
            yield from _iterate_layers(value)
    layers = vars(cache).get("layers")
    if isinstance(layers, list):
        yield from layers


def _set_method(layer: object, name: str, method: Callable[..., object]) -> None:
    vars(layer)[name] = caches.TemporaryMethod(method)


def _find_defining_class(layer: object, name: str) -> str | None:
    """The class that has the code of a method."""
    return next((base.__name__ for base in type(layer).__mro__ if name in vars(base)), None)


def _is_window(layer: Any, scope: Scope) -> bool:
    """Whether a layer holds min(n, w - 1) tokens, from here on."""
    if getattr(layer, "record_past", False) or not layer.is_initialized or layer.keys.dim() < 2:
        return False
    held, seen = from_torch(layer.keys.shape[-2]), from_torch(layer.cumulative_length)
    if scope.expect(eq(held, min_(seen, layer.sliding_window - 1))):
        return True
    count, most = scope.hint(seen), layer.sliding_window - 1
    raise InputError(
        f"a cache with a window of {most + 1} has seen {count} tokens and holds "
        f"{scope.hint(held)}: it would hold min({count}, {most})",
        fix="fill the cache with layer.update(keys, values), or by a call of the model",
    )


# Expands the `dynamic_shapes` of a cache to each of its tensors.
#
# A cache has many tensors of one shape. One spec may be given for all of them, by dimension, or for
# those of one name in every layer:
#
#     {0: batch, 2: past}
#     {"keys": {0: batch, 2: past}, "values": {0: batch, 2: past}}
#     Dim.AUTO
#
# A list has an entry per layer. Counts that grow with the sequence are never constants of a program
# unless the spec says so: nothing in a file would tell that they were.

_COUNT_SPEC = Dim.AUTO(min=0)


def expand_cache_spec(place: str, spec: object, cache: object) -> Any:
    """The spec along the parts of a cache: lists and dicts that end in specs of tensors.

    What fits no part is left as it is: whoever reads it finds it wrong, and where.
    """
    children, structure = pytree.SUPPORTED_NODES[type(cache)].flatten_fn(cache)
    if not isinstance(structure, caches.CacheContext):  # the user's own container
        wish = convert_torch_dim(spec)
        if not isinstance(wish, Hint) and not _is_by_dim(wish):
            return spec
        return [pytree.tree_map(lambda t: _expand_to_tensor(wish, t), child) for child in children]
    if all(type(key) is int for key in structure.keys):
        return _expand_part(place, spec, children)
    return _expand_part(place, spec, dict(zip(structure.keys, children, strict=True)))


def _expand_part(place: str, spec: object, part: Any) -> Any:
    wish = convert_torch_dim(spec)
    if isinstance(part, torch.Tensor):
        return _expand_to_tensor(wish, part)
    if isinstance(part, int):
        return _COUNT_SPEC if wish is None or _is_by_dim(wish) else spec
    if wish is None or isinstance(wish, Hint) or _is_by_dim(wish):
        return _expand_children(place, dict.fromkeys(_list_keys(part), wish), part)
    if isinstance(wish, Mapping):
        return (
            _expand_by_name(place, wish, part)
            if isinstance(part, list)
            else {**wish, **_expand_children(place, wish, part)}
        )
    if isinstance(wish, (list, tuple)) and len(wish) == len(part):
        return _expand_children(place, dict(zip(_list_keys(part), wish, strict=True)), part)
    return spec


def _expand_children(place: str, specs: Mapping[Any, Any], part: Any) -> Any:
    """What is said of each part of a list or dict, written out."""
    found = {k: _expand_part(f"{place}[{k!r}]", specs.get(k), part[k]) for k in _list_keys(part)}
    return found if isinstance(part, dict) else list(found.values())


def _list_keys(part: Any) -> list[Any]:
    return list(part) if isinstance(part, dict) else list(range(len(part)))


def _expand_by_name(place: str, spec: Mapping[PyTree, PyTree], layers: list[object]) -> list[Any]:
    """What is said of a name is said of it in every layer that has one."""
    own = [layer if isinstance(layer, dict) else {} for layer in layers]
    names = {name: None for layer in own for name in layer}
    for name in spec:
        if name not in names:
            raise SpecError(
                f"no layer of the cache has {name!r}; they have {', '.join(map(repr, names))}",
                where=f"{place}[{name!r}]",
            )
    said = [{k: v for k, v in spec.items() if k in layer} or None for layer in own]
    return _expand_children(place, dict(enumerate(said)), layers)


def _is_by_dim(spec: object) -> bool:
    """{0: batch, 2: past}, and nothing that has a structure of its own."""
    return (
        isinstance(spec, Mapping)
        and bool(spec)
        and all(
            type(d) is int and not isinstance(convert_torch_dim(s), (Mapping, list, tuple))
            for d, s in spec.items()
        )
    )


def _expand_to_tensor(spec: PyTree, t: Any) -> Any:
    if not isinstance(t, torch.Tensor):
        return None
    if isinstance(spec, Hint):
        return dict.fromkeys(range(t.dim()), spec)
    if _is_by_dim(spec) and any(not -t.dim() <= d < t.dim() for d in spec):
        return None  # a cache may also have tensors of fewer dimensions
    return spec
