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
    """The spec along the parts of a cache: lists and dicts that end in specs of tensors.

    What fits no part is left as it is: whoever reads it finds it wrong, and where.
    """
    children, structure = pytree.SUPPORTED_NODES[type(cache)].flatten_fn(cache)
    if not isinstance(structure, caches.Structure):  # the user's own container
        wish = adopt(spec)
        if not isinstance(wish, Hint) and not _is_by_dim(wish):
            return spec
        return [pytree.tree_map(lambda t: _of_tensor(wish, t), child) for child in children]
    if all(type(key) is int for key in structure.keys):
        return _along(place, spec, children)
    return _along(place, spec, dict(zip(structure.keys, children, strict=True)))


def _along(place: str, spec: Any, part: Any) -> Any:
    wish = adopt(spec)
    if isinstance(part, torch.Tensor):
        return _of_tensor(wish, part)
    if isinstance(part, int):
        return _COUNT if wish is None or _is_by_dim(wish) else spec
    if wish is None or isinstance(wish, Hint) or _is_by_dim(wish):
        return _spread(place, dict.fromkeys(_keys(part), wish), part)
    if isinstance(wish, Mapping):
        return _by_name(place, wish, part) if isinstance(part, list) else {
            **wish, **_spread(place, wish, part),
        }  # fmt: skip
    if isinstance(wish, (list, tuple)) and len(wish) == len(part):
        return _spread(place, dict(zip(_keys(part), wish, strict=True)), part)
    return spec


def _spread(place: str, specs: Mapping[Any, Any], part: Any) -> Any:
    """What is said of each part of a list or dict, written out."""
    found = {k: _along(f"{place}[{k!r}]", specs.get(k), part[k]) for k in _keys(part)}
    return found if isinstance(part, dict) else list(found.values())


def _keys(part: Any) -> list[Any]:
    return list(part) if isinstance(part, dict) else list(range(len(part)))


def _by_name(place: str, spec: Mapping[Any, Any], layers: list[Any]) -> list[Any]:
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
    return _spread(place, dict(enumerate(said)), layers)


def _is_by_dim(spec: Any) -> bool:
    """{0: batch, 2: past}, and nothing that has a structure of its own."""
    return isinstance(spec, Mapping) and bool(spec) and all(
        type(d) is int and not isinstance(adopt(s), (Mapping, list, tuple)) for d, s in spec.items()
    )  # fmt: skip


def _of_tensor(spec: Any, t: Any) -> Any:
    if not isinstance(t, torch.Tensor):
        return None
    if isinstance(spec, Hint):
        return dict.fromkeys(range(t.dim()), spec)
    if _is_by_dim(spec) and any(not -t.dim() <= d < t.dim() for d in spec):
        return None  # a cache may also have tensors of fewer dimensions
    return spec
