"""Tensor subclasses that are made of other tensors: quantised weights, DTensor, `TwoTensor`.

Such a class has a `__torch_dispatch__` of its own, which says what operators do to the tensors that
it holds. It is asked while a program is captured, and what it does to them is recorded. A parameter
or buffer is as many of the program's; an input or output is a container of them in the tree of
arguments or results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from graphport.compat.torch import (
    FakeTensor,
    disabled_torch_dispatch_impl,
    is_traceable_wrapper_subclass,
    pytree,
)
from graphport.tensors.abstract import AbstractTensor
from graphport.tensors.lazy import WeightlessTensor
from graphport.types import PyTree

KNOWN_SUBCLASSES = (AbstractTensor, WeightlessTensor, FakeTensor)
_DEFAULT_DISPATCH = (torch.Tensor.__torch_dispatch__, disabled_torch_dispatch_impl)


@functools.lru_cache(maxsize=1024)
def has_own_dispatch(kind: type) -> bool:
    """Whether a class of tensors decides what operators do to it."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own not in _DEFAULT_DISPATCH and not issubclass(kind, KNOWN_SUBCLASSES)


def is_of_subclass(x: object) -> bool:
    """Whether something is a tensor that decides itself what operators do to it."""
    kind: type = type(x)
    return issubclass(kind, torch.Tensor) and has_own_dispatch(kind)


def is_wrapper(t: Any) -> bool:
    """Whether a tensor is made of others that are all here: a DTensor has a share of each process.

    The sizes of jagged tensors are no numbers.
    """
    if not is_of_subclass(t):
        return False
    mesh = getattr(t, "device_mesh", None)
    is_whole = mesh is None or mesh.size() == 1
    return is_whole and t.layout is torch.strided and is_traceable_wrapper_subclass(t)


def find_parts(name: str, t: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors that a tensor is made of, by name: itself, unless it is of a subclass."""
    if is_wrapper(t):
        for part, inner in _flatten_tensor(t)[0].items():
            yield from find_parts(f"{name}.{part}", inner)
    else:
        yield name, t


def _flatten_tensor(t: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any], Any]:
    """What a tensor is made of: tensors, other objects (the mesh of a DTensor), and a context."""
    names, context = t.__tensor_flatten__()
    found = {name: getattr(t, name) for name in names}
    tensors = {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}
    return tensors, {name: x for name, x in found.items() if name not in tensors}, context


class Layout(NamedTuple):
    """How a tensor is made of others: the context of `Parts` in a tree."""

    kind: type
    names: tuple[str, ...]
    others: dict[str, Any]
    """Parts that are no tensors."""
    context: Any
    """What `__tensor_flatten__` gives beside the names."""
    sizes: tuple[tuple[int, int] | int, ...]
    """Of the tensor itself, each by the part and the dim that has the same size, or a number."""

    def __str__(self) -> str:
        return self.kind.__name__


class Parts:
    """A tensor as the container of the tensors that it is made of, among arguments or results.

    A tree is flattened to the parts; to put it together again makes a tensor of the subclass.
    """

    def __init__(self, layout: Layout, parts: Sequence[Any]) -> None:
        self.layout, self.parts = layout, tuple(parts)
        vars(self).update(zip(layout.names, parts, strict=True))

    def spread(self, spec: Any) -> Any:
        """Which sizes of the parts are dynamic, where that is said of the tensor itself."""
        by_dim: Mapping[Any, Any]
        if isinstance(spec, Mapping):
            by_dim = spec
        elif isinstance(spec, Sequence) and not isinstance(spec, str):
            by_dim = dict(enumerate(spec))
        else:
            return spec
        if any(type(d) is not int for d in by_dim):  # said of the parts, by their names
            return spec
        specs: dict[str, dict[int, Any]] = {name: {} for name in self.layout.names}
        for d, dim in by_dim.items():
            for name, part in zip(self.layout.names, self.parts, strict=True):
                sizes = _read_sizes(part)
                if len(sizes) == len(self.layout.sizes) and sizes[d] == _read_sizes(self)[d]:
                    specs[name][d] = dim
        return specs


def split_subclasses(tree: PyTree) -> PyTree:
    """The same tree with `Parts` for tensors of subclasses."""
    if not any(map(is_wrapper, pytree.tree_leaves(tree))):
        return tree
    return pytree.tree_map(lambda x: split(x) if is_wrapper(x) else x, tree)


def split(t: Any) -> Parts:
    tensors, others, context = _flatten_tensor(t)
    parts = tuple(tensors.values())
    sizes = tuple(_find_size(d, t, parts) for d in range(t.dim()))
    layout = Layout(type(t), tuple(tensors), others, context, sizes)
    return Parts(layout, [split(part) if is_wrapper(part) else part for part in parts])


def _find_size(d: int, t: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[int, int] | int:
    for i, part in enumerate(parts):
        if part.dim() == t.dim() and bool(part.shape[d] == t.shape[d]):
            return i, d
    return int(t.shape[d])


def _read_sizes(t: Any) -> tuple[Any, ...]:
    return _resolve(t.layout.sizes, t.parts) if isinstance(t, Parts) else t.shape


def _resolve(sizes: Sequence[tuple[int, int] | int], parts: Sequence[Any]) -> tuple[Any, ...]:
    shapes = [_read_sizes(part) for part in parts]
    return tuple(s if isinstance(s, int) else shapes[s[0]][s[1]] for s in sizes)


def has_parts(spec: pytree.TreeSpec) -> bool:
    """Whether a structure has a tensor that is made of others."""
    return spec.type is Parts or any(map(has_parts, spec.children()))


def _flatten(made: Parts) -> tuple[list[Any], Layout]:
    return list(made.parts), made.layout


def _flatten_with_keys(made: Parts) -> tuple[list[Any], Layout]:
    keys = map(pytree.GetAttrKey, made.layout.names)
    return list(zip(keys, made.parts, strict=True)), made.layout


def _unflatten(parts: Any, layout: Layout) -> Any:
    parts = list(parts)
    if not all(isinstance(part, torch.Tensor) for part in parts):  # a tree of something else
        return Parts(layout, parts)
    shape = _resolve(layout.sizes, parts)
    alike = (p for p in parts if p.dim() == len(shape) and p.shape == shape)
    like = next(alike, None)
    strides = _contiguous(shape) if like is None else like.stride()
    named = {**dict(zip(layout.names, parts, strict=True)), **layout.others}
    kind: Any = layout.kind
    return kind.__tensor_unflatten__(named, layout.context, shape, strides)


def _contiguous(shape: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


pytree.register_pytree_node(Parts, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys)
