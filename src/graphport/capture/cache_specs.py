"""What `dynamic_shapes` says of a cache, written out for each of its parts.

A cache has many tensors of one shape. One spec may be given for all of them, by dimension, or for
those of one name in every layer:

    {0: batch, 2: past}    {"keys": {0: batch, 2: past}, "values": {0: batch, 2: past}}    Dim.AUTO

A list has an entry per layer. Counts that grow with the sequence are never constants of a program
unless the spec says so: nothing in a file would tell that they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphport.capture.dims import Dim, Hint, adopt
from graphport.errors import SpecError
from graphport.program import caches


_COUNT = Dim.AUTO(min=0)


def written_out(place: str, spec: Any, cache: Any) -> Any:
    """The spec along the parts of a cache: lists and dicts that end in specs of tensors."""
    children, structure = pytree.SUPPORTED_NODES[type(cache)].flatten_fn(cache)
    if not isinstance(structure, caches.Structure):
        return spec  # the user's own container
    parts = dict(zip(structure.keys, children, strict=True))
    return _written_out(place, spec, [*parts.values()] if _is_list(structure) else parts)


def _is_list(structure: caches.Structure) -> bool:
    return all(isinstance(key, int) for key in structure.keys)


def _written_out(place: str, spec: Any, part: Any) -> Any:
    wish = adopt(spec)
    if isinstance(part, torch.Tensor):
        return _of_tensor(wish, part)
    if isinstance(part, int):
        return _of_count(wish)
    if isinstance(wish, Hint) or _is_by_dim(wish):
        spread = {key: _written_out(place, wish, x) for key, x in _pairs(part)}
        return _along(spread, part)
    if isinstance(wish, Mapping) and isinstance(part, list):
        return _by_name(place, wish, part)
    if isinstance(wish, Mapping):
        unknown = [k for k in wish if k not in part]
        known = {k: _written_out(f"{place}[{k!r}]", wish.get(k), x) for k, x in part.items()}
        return {**known, **{k: wish[k] for k in unknown}}
    if isinstance(wish, (list, tuple)) and len(wish) == len(part):
        pairs = zip(wish, _pairs(part), strict=True)
        spread = {k: _written_out(f"{place}[{i}]", w, x) for i, (w, (k, x)) in enumerate(pairs)}
        return _along(spread, part)
    if wish is None:
        spread = {key: _written_out(place, None, x) for key, x in _pairs(part)}
        return _along(spread, part)
    return spec


def _by_name(place: str, spec: Mapping[Any, Any], layers: list[Any]) -> list[Any]:
    """What is said of a name is said of it in every layer that has one."""
    names = {k: None for layer in layers if isinstance(layer, Mapping) for k in layer}
    for name in spec:
        if name not in names:
            raise SpecError(
                f"no layer of the cache has {name!r}; they have {', '.join(map(repr, names))}",
                where=f"{place}[{name!r}]",
            )
    return [
        _written_out(place, {k: v for k, v in spec.items() if k in layer}, layer)
        if isinstance(layer, Mapping) else _written_out(place, None, layer)
        for layer in layers
    ]  # fmt: skip


def _is_by_dim(spec: Any) -> bool:
    """{0: batch, 2: past}, and nothing that has a structure of its own."""
    return isinstance(spec, Mapping) and bool(spec) and all(
        type(d) is int and not isinstance(adopt(s), (Mapping, list, tuple)) for d, s in spec.items()
    )  # fmt: skip


def _of_tensor(spec: Any, t: torch.Tensor) -> Any:
    if isinstance(spec, Hint):
        return {d: spec for d in range(t.dim())}
    if _is_by_dim(spec):
        # A cache may also have tensors of fewer dimensions, which something else is said of.
        return spec if all(-t.dim() <= d < t.dim() for d in spec) else None
    return spec


def _of_count(spec: Any) -> Any:
    return spec if spec is not None and not _is_by_dim(spec) else _COUNT


def _pairs(part: Any) -> list[tuple[Any, Any]]:
    return list(part.items()) if isinstance(part, Mapping) else list(enumerate(part))


def _along(spread: dict[Any, Any], part: Any) -> Any:
    return spread if isinstance(part, Mapping) else list(spread.values())
