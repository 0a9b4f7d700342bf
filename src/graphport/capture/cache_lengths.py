"""How long a cache is, without a question that the example would answer.

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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphport.errors import InputError
from graphport.process import Replacement
from graphport.program import caches
from graphport.symbolic import Expr, Scope, eq, min_
from graphport.symbolic.bridge import from_torch

_WINDOW = "DynamicSlidingWindowLayer"


def _seq_length(layer: Any) -> Any:
    """0 if there is nothing, else the length of what there is: the length."""
    if not layer.is_initialized or layer.keys.dim() < 2:
        return 0
    return layer.keys.shape[-2]


def _window_sizes(layer: Any, query_length: int) -> Any:
    """min(n, w - 1) tokens are held, and the first is token max(n - w + 1, 0) of the sequence."""
    held = _seq_length(layer)
    return held + query_length, layer.cumulative_length - held


def open_windows() -> Iterator[Replacement]:
    """A window keeps its last w - 1 tokens, or all if there are fewer.

    This is for all of a process: layers may also be made by the program.
    """
    module = sys.modules.get("transformers.cache_utils")
    root = getattr(module, _WINDOW, None)
    for kind in [] if root is None else _derived(root):
        if "update" in vars(kind):
            yield kind, "update", _unassuming(kind.update)


def _derived(kind: type) -> Iterator[Any]:
    yield kind
    for further in kind.__subclasses__():
        yield from _derived(further)


def _unassuming(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def call(layer: Any, key_states: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = [t.shape[-2] for t in (key_states, layer.keys)
                 if isinstance(t, torch.Tensor) and t.dim() > 1]  # fmt: skip
        size = next((from_torch(s) for s in sizes if isinstance(s, torch.SymInt)), None)
        with nullcontext() if not isinstance(size, Expr) else size.scope.unassuming():
            return update(layer, key_states, *args, **kwargs)

    return call


def ease(arguments: Any, scope: Scope) -> None:
    """Let the layers of caches among the arguments of a captured program compute formulas."""
    for cache in pytree.tree_leaves(arguments, is_leaf=_is_cache):
        for layer in _layers(cache) if _is_cache(cache) else ():
            if _defined_by(layer, "get_seq_length") == "DynamicLayer":
                _give(layer, "get_seq_length", functools.partial(_seq_length, layer))
            if _defined_by(layer, "get_mask_sizes") == _WINDOW and _is_window(layer, scope):
                _give(layer, "get_mask_sizes", functools.partial(_window_sizes, layer))


def _is_cache(x: Any) -> bool:
    return caches.is_cache(type(x))


def _layers(cache: Any) -> Iterator[Any]:
    for value in vars(cache).values():
        if _is_cache(value):
            yield from _layers(value)
    layers = vars(cache).get("layers")
    if isinstance(layers, list):
        yield from layers


def _give(layer: Any, name: str, method: Callable[..., Any]) -> None:
    vars(layer)[name] = caches.Aide(method)


def _defined_by(layer: Any, name: str) -> str | None:
    """The class that has the code of a method."""
    return next((base.__name__ for base in type(layer).__mro__ if name in vars(base)), None)


def _is_window(layer: Any, scope: Scope) -> bool:
    """Whether a layer holds min(n, w - 1) tokens, from here on."""
    if layer.record_past or not layer.is_initialized or layer.keys.dim() < 2:
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
