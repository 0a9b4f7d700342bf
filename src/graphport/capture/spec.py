"""`dynamic_shapes` read against the inputs: which size of which input is which symbol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphport.capture.dims import Dim, _Hint
from graphport.capture.inputs import Inputs, Variadic
from graphport.errors import ConstraintViolationError, SpecError
from graphport.symbolic import Expr, Range, Scope

Size = int | Expr
_STATIC = (type(None), int)


@dataclass(frozen=True)
class Declared:
    """A symbol of the scope and the user's definition of it."""

    symbol: Expr
    dim: Dim | None
    """None for Dim.AUTO and Dim.DYNAMIC."""
    automatic: bool = False


class Spec:
    """The sizes of each input leaf, and the dims that the user declared."""

    def __init__(self, inputs: Inputs, dynamic_shapes: Any, scope: Scope) -> None:
        self.scope = scope
        self.declared: dict[str, Declared] = {}
        self.ranges: dict[Expr, Range] = {}
        self.sizes: dict[str, tuple[Size, ...]] = {}
        """Sizes by the path of the leaf; leaves that are not here are static."""
        entries = list(_entries(inputs, dynamic_shapes))
        self._declare_roots(entries)
        for path, tensor, dims in entries:
            self.sizes[path] = tuple(
                self._size(path, d, size, dims.get(d)) for d, size in enumerate(tensor.shape)
            )

    def _declare_roots(self, entries: list[tuple[str, torch.Tensor, dict[int, Any]]]) -> None:
        """Symbols in the order of appearance; a root's example value comes from its first use."""
        for path, tensor, dims in entries:
            for d, dim in sorted(dims.items()):
                if isinstance(dim, Dim):
                    self._declare(path, d, tensor.shape[d], dim)

    def _declare(self, path: str, d: int, size: int, dim: Dim) -> None:
        root = dim.root
        seen = self.declared.get(root.__name__)
        if seen is not None:
            assert seen.dim is not None
            if seen.dim._given != root._given:
                raise SpecError(
                    f"Found different definitions {seen.dim} and {root} for the same symbolic "
                    f"dimension",
                    where=f"dynamic_shapes of {path}.shape[{d}]",
                )
            return
        factor, offset = dim.linear
        if (size - offset) % factor:
            raise SpecError(
                f"Expected shape[{d}] = {size} of input Tensor to be of the form {dim}, where "
                f"{root.__name__} is an integer",
                where=f"{path}.shape[{d}]",
            )
        value = (size - offset) // factor
        upper = math.inf if root.max is None else root.max
        if not root.min <= size <= upper and dim is root:
            raise ConstraintViolationError(
                f"{size} not in range [{root.min}, {'inf' if root.max is None else root.max}]: "
                f"the example size of {path}.shape[{d}] is outside of {root}",
                fix=_widened(root, size),
            )
        if not root.min <= value <= upper:
            raise ConstraintViolationError(
                f"{value} not in range [{root.min}, {'inf' if root.max is None else root.max}]: "
                f"{path}.shape[{d}] = {size} makes {root.__name__} = {value}",
                fix=_widened(root, value),
            )
        symbol = self.scope.symbol(
            root.__name__, hint=value, lower=root.min, upper=upper,
            origin=f"{path}.shape[{d}]",
        )  # fmt: skip
        self.declared[root.__name__] = Declared(symbol, root)
        self.ranges[symbol] = Range(root.min, upper)

    def _size(self, path: str, d: int, size: int, dim: Any) -> Size:
        if dim is None or dim is Dim.STATIC:
            return size
        if isinstance(dim, int) and not isinstance(dim, bool):
            if dim != size:
                raise ConstraintViolationError(
                    f"Static shape constraint of {dim} does not match input size of {size}, for "
                    f"{path}.shape[{d}]",
                    fix=f"None or {size} in its place",
                )
            return size
        if isinstance(dim, _Hint):
            name = f"s{len(self.declared)}"
            symbol = self.scope.symbol(name, hint=size, lower=0, origin=f"{path}.shape[{d}]")
            self.declared[name] = Declared(symbol, None, automatic=dim is Dim.AUTO)
            self.ranges[symbol] = Range(0, math.inf)
            return symbol
        return self._declared_size(path, d, size, dim)

    def _declared_size(self, path: str, d: int, size: int, dim: Dim) -> Size:
        root = self.declared[dim.root.__name__].symbol
        value = self.scope.hint(root)
        assert isinstance(value, int)
        if dim.at(value) != size:
            raise ConstraintViolationError(
                f"Expected input at {path}.shape[{d}] (size {size}) to be equal to "
                f"{dim.__name__}, where {dim.root.__name__} = {value}, but got {size}",
                fix=f"an input with shape[{d}] = {dim.at(value)}, or another Dim for it",
            )
        factor, offset = dim.linear
        expr = root * factor + offset
        if dim is not dim.root:
            high = math.inf if dim.max is None else dim.max
            self.ranges[expr] = Range(dim.min, high)
        return expr


def _widened(root: Dim, value: int) -> str:
    low = min(root.min, value)
    high = None if root.max is None else max(root.max, value)
    parts = ([f"min={low}"] if low else []) + ([f"max={high}"] if high is not None else [])
    return f"{root.__name__} = Dim({', '.join([repr(root.__name__), *parts])})"


def _entries(
    inputs: Inputs, dynamic_shapes: Any
) -> Iterator[tuple[str, torch.Tensor, dict[int, Any]]]:
    """(path, tensor, dims by number) of every tensor that the spec says something about."""
    if dynamic_shapes is None:
        return
    parameters = inputs.parameters
    if isinstance(dynamic_shapes, Mapping):
        unknown = [k for k in dynamic_shapes if k not in parameters]
        if unknown:
            raise SpecError(
                f"dynamic_shapes names {unknown[0]!r}, which is not an argument of this call",
                where=f"dynamic_shapes[{unknown[0]!r}]",
                fix=f"use the names of the arguments: {', '.join(map(repr, parameters))}",
            )
        pairs = [(f"dynamic_shapes[{k!r}]", spec, *parameters[k])
                 for k, spec in dynamic_shapes.items()]  # fmt: skip
    elif isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(parameters):
            raise SpecError(
                f"dynamic_shapes has {len(dynamic_shapes)} entries for {len(parameters)} "
                f"arguments ({', '.join(parameters)})",
                fix="one entry per argument, None where nothing is dynamic",
            )
        pairs = [
            (f"dynamic_shapes[{i}]", spec, *value)
            for i, (value, spec) in enumerate(zip(parameters.values(), dynamic_shapes, strict=True))
        ]
    else:
        raise SpecError(
            f"dynamic_shapes must be a dict by argument name or a tuple by position, got "
            f"{type(dynamic_shapes).__name__}"
        )
    for place, spec, path, value in pairs:
        yield from _walk(place, spec, path, value)


def _walk(
    place: str, spec: Any, path: str, value: Any
) -> Iterator[tuple[str, torch.Tensor, dict[int, Any]]]:
    if isinstance(value, torch.Tensor):
        yield path, value, _tensor_dims(place, spec, path, value)
        return
    if spec is None:
        return
    if isinstance(value, Variadic):
        keys = [(pytree.SequenceKey(i),) for i in range(len(value.values))]
        parts = _matching(place, spec, path, value, keys)
        for i, (part, child) in enumerate(zip(parts, value.values, strict=True)):
            yield from _walk(f"{place}[{i}]", part, f"{path}[{value.first + i}]", child)
        return
    if pytree.tree_is_leaf(value):
        if isinstance(spec, (_Hint, Dim)):
            raise SpecError(
                f"the input at {path} is {value!r}, not a tensor: it has no dimensions",
                where=place,
                fix="None in its place",
            )
        raise SpecError(f"the input at {path} is a constant; expected None, got {spec!r}",
                        where=place)  # fmt: skip
    children = pytree.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
    parts = _matching(place, spec, path, value, [k for k, _ in children])
    for (key, child), part in zip(children, parts, strict=True):
        text = pytree.keystr(key)
        yield from _walk(place + text, part, path + text, child)


def _matching(place: str, spec: Any, path: str, value: Any, keys: list[Any]) -> Sequence[Any]:
    """The parts of a spec for the children of a container."""
    if type(spec) is type(value) and not isinstance(spec, (dict, list, tuple)):
        return pytree.tree_leaves(spec, is_leaf=lambda x: x is not spec)
    if isinstance(spec, Mapping):
        names = [getattr(k[0], "key", getattr(k[0], "name", getattr(k[0], "idx", None)))
                 for k in keys]  # fmt: skip
        unknown = [k for k in spec if k not in names]
        if unknown:
            raise SpecError(
                f"the input at {path} has no {unknown[0]!r}; it has {', '.join(map(repr, names))}",
                where=place,
            )
        return [spec.get(n) for n in names]
    if isinstance(spec, (list, tuple)):
        if len(spec) != len(keys):
            raise SpecError(
                f"the input at {path} has {len(keys)} parts, but the spec has {len(spec)}",
                where=place,
                fix="one entry per part, None where nothing is dynamic",
            )
        return spec
    raise SpecError(
        f"the input at {path} is a {type(value).__name__}; expected a dict, list or tuple of "
        f"specs, got {spec!r}",
        where=place,
    )


def _tensor_dims(place: str, spec: Any, path: str, tensor: torch.Tensor) -> dict[int, Any]:
    rank = tensor.dim()
    if spec is None:
        return {}
    if isinstance(spec, Mapping):
        dims = dict(spec)
        for d in dims:
            if not isinstance(d, int):
                raise SpecError(f"{path} is a tensor: expected dims by number, got key {d!r}",
                                where=place)  # fmt: skip
    elif isinstance(spec, (list, tuple)):
        if len(spec) != rank:
            raise SpecError(
                f"{path} has {rank} dimensions, but its spec has {len(spec)} entries",
                where=place,
                fix="one entry per dimension, None where it is fixed, or a dict {dim: Dim}",
            )
        dims = dict(enumerate(spec))
    else:
        raise SpecError(
            f"{path} is a tensor: expected a dict {{dim: Dim}}, or a list or tuple with an entry "
            f"per dimension, got {spec!r}",
            where=place,
        )
    if not rank and dims:
        raise SpecError(f"Cannot mark 0-dimension tensors to be dynamic: {path}", where=place)
    out = {}
    for d, dim in dims.items():
        if not -rank <= d < rank:
            raise SpecError(
                f"{path} has {rank} dimensions; expected a dimension in the range "
                f"[0, {rank - 1}], got {d}",
                where=place,
            )
        if isinstance(dim, bool) or not isinstance(dim, (*_STATIC, Dim, _Hint)):
            raise SpecError(
                f"{path}.shape[{d}]: expected a Dim, an int, None or Dim.AUTO, got {dim!r}",
                where=place,
            )
        out[d % rank] = dim
    return out
