"""Walks `dynamic_shapes` along the inputs, and checks that it has their structure.

A *site* is one size of an input tensor, or an input number. The walk checks that the spec has the
structure of the inputs and that each site gets a spec that fits it; what the dims mean together
is the business of `symbols`. Every error names its place in the spec, as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphport.capture.spec.inputs import Inputs, Variadic
from graphport.capture.spec.shapes_spec import find_shapes_spec, is_shapes_spec, read_shapes_spec
from graphport.compat.torch import pytree
from graphport.errors import SpecError
from graphport.huggingface import cache_shapes, caches
from graphport.symbolic.dims import Dim, Hint, convert_torch_dim
from graphport.tensors.concrete import sizes_of
from graphport.tensors.subclasses import Parts
from graphport.types import PyTree

DimSpec = Dim | Hint | int | None


@dataclass(frozen=True)
class SizeSpec:
    """One size of an input tensor, or an input number."""

    place: str
    """Where it is in the spec: "dynamic_shapes['x'][0]"."""
    path: str
    """Where it is, as the user passes it: "*args[0].shape[0]"."""
    example: float
    dim: DimSpec
    is_size: bool = True


@dataclass(frozen=True)
class LeafSpec:
    """The sites of one flat input; a number is its own only site."""

    path: str
    sizes: tuple[SizeSpec, ...]
    is_tensor: bool = True


def walk_spec(inputs: Inputs, dynamic_shapes: PyTree) -> list[LeafSpec]:
    """The inputs that the spec says something about."""
    dynamic_shapes = find_shapes_spec(inputs, dynamic_shapes)
    if is_shapes_spec(dynamic_shapes):
        dynamic_shapes = read_shapes_spec(inputs, dynamic_shapes)
    builder = getattr(dynamic_shapes, "dynamic_shapes", None)
    if callable(builder):  # gp.ShapesCollection, gp.AdditionalInputs
        try:
            dynamic_shapes = builder(inputs.target, inputs.args, inputs.kwargs)
        except SpecError:
            raise
        except ValueError as error:  # torch's collection, of tensors that are not among the inputs
            raise SpecError(str(error), where="dynamic_shapes") from error
    if dynamic_shapes is None:
        named: NamedSpecs = iter(())
    elif isinstance(dynamic_shapes, Mapping):
        named = _match_by_name(inputs, dynamic_shapes)
    elif isinstance(dynamic_shapes, (tuple, list)):
        named = _match_by_position(inputs, dynamic_shapes)
    else:
        raise SpecError(
            "dynamic_shapes is a dict by argument name, a tuple by position, a gp.ShapesCollection "
            f"or gp.AdditionalInputs, got {dynamic_shapes!r}",
            where="dynamic_shapes",
        )
    said = [*named]
    silent = inputs.parameters.keys() - {name for name, _, _ in said}
    said += [(n, f"dynamic_shapes[{n!r}]", None) for n in inputs.parameters if n in silent]
    return [
        entry
        for name, place, spec in said
        for entry in _walk_value(place, spec, *inputs.parameters[name])
    ]


NamedSpecs = Iterator[tuple[str, str, Any]]
"""(parameter, place, spec)"""


def _match_by_name(inputs: Inputs, dynamic_shapes: Mapping[PyTree, PyTree]) -> NamedSpecs:
    group, keys = inputs.keywords
    for name, spec in dynamic_shapes.items():
        place = f"dynamic_shapes[{name!r}]"
        if name in inputs.parameters:
            yield name, place, spec
        elif name == group and isinstance(spec, Mapping):
            # The parameters that **kwargs took may also be written under its own name.
            for key, part in spec.items():
                if key not in keys:
                    raise _unknown_argument_error(inputs, key, f"{place}[{key!r}]")
                yield key, f"{place}[{key!r}]", part
        elif name not in inputs.omitted:
            raise _unknown_argument_error(inputs, name, place)
        elif spec is not None:
            raise SpecError(
                f"the argument {name!r} is left at its default in this call, so it cannot be "
                f"dynamic; expected None, got {spec!r}",
                where=place,
                fix=f"pass an example for {name}, or None in its place",
            )


def _unknown_argument_error(inputs: Inputs, name: object, place: str) -> SpecError:
    names = list(inputs.parameters)
    fix = f"use the names of the arguments: {', '.join(map(repr, names))}"
    if not names:
        fix = "this call has no arguments: leave dynamic_shapes out"
    elif len(names) == 1:
        fix = f"dynamic_shapes={{{names[0]!r}: ...}}: {names[0]!r} is the only argument"
    return SpecError(
        f"dynamic_shapes names {name!r}, which is not an argument of this call",
        where=place,
        fix=fix,
    )


def _match_by_position(inputs: Inputs, dynamic_shapes: PyTree) -> NamedSpecs:
    parameters = inputs.parameters
    if len(dynamic_shapes) != len(parameters):
        raise SpecError(
            f"dynamic_shapes has {_format_count(len(dynamic_shapes), 'entry', 'entries')} for "
            f"{_format_count(len(parameters), 'argument', 'arguments')} ({', '.join(parameters)})",
            where="dynamic_shapes",
            fix="one entry per argument, None where nothing is dynamic; *args is one argument",
        )
    for i, (name, spec) in enumerate(zip(parameters, dynamic_shapes, strict=True)):
        yield name, f"dynamic_shapes[{i}]", spec


def _walk_value(place: str, spec: PyTree, path: str, value: object) -> Iterator[LeafSpec]:
    if isinstance(value, torch.Tensor):
        if spec is not None:
            yield LeafSpec(path, _read_tensor_spec(place, spec, path, value))
        return
    if isinstance(value, Parts):
        spec = value.spread(spec)
    if _is_cache(value):
        spec = cache_shapes.expand_cache_spec(place, spec, value)
    if spec is None:
        yield from _walk_caches(place, path, value)
        return
    if isinstance(value, Variadic):
        items = list(enumerate(value.values))
        parts = _match_in_order(place, spec, path, "a tuple", [k for k, _ in items])
        for (i, child), (at, part) in zip(items, parts, strict=True):
            yield from _walk_value(at, part, f"{path}[{value.first + i}]", child)
        return
    if pytree.tree_is_leaf(value):
        site = _read_number_spec(place, spec, path, value)
        if site is not None:
            yield LeafSpec(path, (site,), is_tensor=False)
        return
    children = pytree.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
    parts = _match_children(place, spec, path, value, [keys[0] for keys, _ in children])
    for (keys, child), (at, part) in zip(children, parts, strict=True):
        yield from _walk_value(at, part, path + pytree.keystr(keys), child)


def _walk_caches(place: str, path: str, value: object) -> Iterator[LeafSpec]:
    """Counts of caches, inside of an input that the spec leaves out."""
    if isinstance(value, Variadic):
        for i, child in enumerate(value.values):
            yield from _walk_caches(f"{place}[{i}]", f"{path}[{value.first + i}]", child)
        return
    found = pytree.tree_flatten_with_path(value, is_leaf=_is_cache)[0]
    for keys, cache in found:
        if _is_cache(cache) and cache is not value:
            at = pytree.keystr(keys)
            yield from _walk_value(place + at, None, path + at, cache)


def _is_cache(value: object) -> bool:
    kind: type = type(value)
    return caches.is_cache(kind)


# Containers

ChildSpecs = list[tuple[str, Any]]
"""(place, spec) of each child of a container"""


def _match_children(
    place: str, spec: object, path: str, value: object, keys: list[object]
) -> ChildSpecs:
    names = [_key_name(key) for key in keys]
    kind = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        if not isinstance(spec, Mapping):
            raise _wrong_kind_error(
                place, spec, path, kind, f"a dict of specs by key: {_format_names(names)}"
            )
        return _match_by_key(place, spec, path, value, names)
    if all(isinstance(key, pytree.SequenceKey) for key in keys):
        return _match_in_order(place, spec, path, kind, names)
    # A dataclass, a named tuple, or another class with attributes.
    if type(spec) is type(value):
        given = pytree.tree_flatten_with_path(spec, is_leaf=lambda x: x is not spec)[0]
        found = {_key_name(k[0]): (place + pytree.keystr(k), part) for k, part in given}
        for name, (at, part) in found.items():
            if name not in names and part is not None:
                raise _no_such_part_error(at, path, name, names)
        return [found.get(n, (f"{place}.{n}", None)) for n in names]
    if isinstance(spec, Mapping):
        return _match_by_key(place, spec, path, value, names)
    if isinstance(spec, (list, tuple)):
        return _match_in_order(place, spec, path, kind, names)
    raise _wrong_kind_error(
        place,
        spec,
        path,
        kind,
        f"a dict of specs by field ({_format_names(names)}), a list, or a "
        f"{type(value).__name__} of specs",
    )


def _match_by_key(
    place: str, spec: Mapping[PyTree, PyTree], path: str, value: object, names: list[object]
) -> ChildSpecs:
    for key, part in spec.items():
        # A field that is None is no part of the input; a spec may still say so.
        is_field = isinstance(key, str) and hasattr(value, key) and part is None
        if key not in names and not is_field:
            raise _no_such_part_error(f"{place}[{key!r}]", path, key, names)
    return [(f"{place}[{n!r}]", spec.get(n)) for n in names]


def _match_in_order(
    place: str, spec: object, path: str, kind: str, names: list[object]
) -> ChildSpecs:
    if not isinstance(spec, (list, tuple)):
        expected = f"a list or tuple of {_format_count(len(names), 'spec', 'specs')}"
        raise _wrong_kind_error(place, spec, path, kind, expected)
    if len(spec) != len(names):
        raise SpecError(
            f"the input at {path} has {_format_count(len(names), 'part', 'parts')}, but the spec "
            f"has {len(spec)}",
            where=place,
            fix="one entry per part, None where nothing is dynamic",
        )
    return [(f"{place}[{i}]", part) for i, part in enumerate(spec)]


def _wrong_kind_error(place: str, spec: object, path: str, kind: str, expected: str) -> SpecError:
    return SpecError(
        f"the input at {path} is {kind}; expected {expected}, got {spec!r}", where=place
    )


def _no_such_part_error(place: str, path: str, name: object, names: list[object]) -> SpecError:
    return SpecError(
        f"the input at {path} has no {name!r}; it has {_format_names(names)}", where=place
    )


def _key_name(key: object) -> object:
    return getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))


def _format_names(names: list[object]) -> str:
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def _format_count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


# Leaves


def _read_tensor_spec(
    place: str, spec: object, path: str, tensor: torch.Tensor
) -> tuple[SizeSpec, ...]:
    rank = tensor.dim()
    wishes: dict[int, tuple[Any, Any]] = {}
    for d, wish in _list_dims(place, spec, path, rank):
        if isinstance(d, bool) or not isinstance(d, int):
            raise SpecError(
                f"{path} is a tensor: expected dims by number, got key {d!r}",
                where=f"{place}[{d!r}]",
                fix="{0: Dim(...)}",
            )
        at = f"{place}[{d}]"
        if not rank:
            raise SpecError(f"Cannot mark 0-dimension tensors to be dynamic: {path}", where=at)
        if not -rank <= d < rank:
            raise SpecError(
                f"{path} has {_format_count(rank, 'dimension', 'dimensions')}; expected one in "
                f"the range [0, {rank - 1}], got {d}",
                where=at,
            )
        if d % rank in wishes:
            raise SpecError(
                f"{path}.shape[{d % rank}] is given twice, as {wishes[d % rank][0]} and as {d}",
                where=at,
                fix="one entry per dimension",
            )
        wishes[d % rank] = d, _read_size_spec(at, f"{path}.shape[{d % rank}]", wish)
    sites = []
    for d, size in enumerate(sizes_of(tensor)):
        written, wish = wishes.get(d, (d, None))
        sites.append(SizeSpec(f"{place}[{written}]", f"{path}.shape[{d}]", size, wish))
    return tuple(sites)


def _list_dims(place: str, spec: PyTree, path: str, rank: int) -> list[tuple[Any, Any]]:
    if isinstance(spec, Mapping):
        return list(spec.items())
    if not isinstance(spec, (list, tuple)):
        spec = convert_torch_dim(spec)
        raise SpecError(
            f"{path} is a tensor: expected a dict {{dim: Dim}}, or a list or tuple with an entry "
            f"per dimension, got {spec!r}",
            where=place,
            fix=f"{{0: {spec!r}}}, if it is the first dimension"
            if isinstance(spec, (Dim, Hint))
            else (),
        )
    if len(spec) != rank and rank:
        raise SpecError(
            f"{path} has {_format_count(rank, 'dimension', 'dimensions')}, but its spec has length "
            f"{len(spec)}",
            where=place,
            fix="one entry per dimension, None where it is fixed, or a dict {dim: Dim}",
        )
    return list(enumerate(spec))


def _read_size_spec(place: str, path: str, given: object) -> DimSpec:
    wish = Hint("DYNAMIC", label=given) if isinstance(given, str) else convert_torch_dim(given)
    if isinstance(wish, bool) or not isinstance(wish, (Dim, Hint, int, type(None))):
        raise SpecError(
            f"{path}: expected a Dim, a name, an int, None, Dim.AUTO, Dim.DYNAMIC or Dim.STATIC, "
            f"got {given!r}",
            where=place,
        )
    if isinstance(wish, Hint):
        _check_limits(place, path, wish, "a size is a whole number, never negative", least=0)
    return wish


_KINDS = {int: "an int", float: "a float"}


def _read_number_spec(place: str, spec: object, path: str, value: Any) -> SizeSpec | None:
    """What is said of an input that is not a tensor; None if it stays a constant."""
    kind, wish = type(value), convert_torch_dim(spec)
    if wish == Dim.STATIC:
        return None
    if kind not in _KINDS:
        what = "None" if value is None else f"{value!r}, a {kind.__name__}"
        raise SpecError(
            f"the input at {path} is {what}: a constant of the program, since only tensors, ints "
            f"and floats can be dynamic; expected None, got {wish!r}",
            where=place,
            fix="None in its place",
        )
    if kind is float and isinstance(wish, Dim):
        raise SpecError(
            f"the input at {path} is {value!r}, a float, and {wish!r} counts in integers",
            where=place,
            fix="Dim.DYNAMIC or Dim.AUTO in its place",
        )
    if isinstance(wish, bool) or not isinstance(wish, (Dim, Hint, kind)):
        raise SpecError(
            f"the input at {path} is {value!r}, {_KINDS[kind]}: expected "
            f"{'a Dim, ' if kind is int else ''}Dim.DYNAMIC, Dim.AUTO or None, got {spec!r}",
            where=place,
        )
    if not isinstance(wish, (Dim, Hint)):
        if wish != value:
            raise SpecError(
                f"Static constraint of {wish} does not match input value of {value}, for {path}",
                where=place,
                fix=f"None or {value} in its place",
            )
        return None
    if isinstance(wish, Hint) and kind is int:
        _check_limits(place, path, wish, "the input is an int, so its limits are ints")
    return SizeSpec(place, path, value, wish, is_size=False)


def _check_limits(place: str, path: str, hint: Hint, why: str, least: float | None = None) -> None:
    for limit in (hint.min, hint.max):
        if limit is not None and (
            not isinstance(limit, int) or (least is not None and limit < least)
        ):
            raise SpecError(f"{path}: {hint!r} has a limit of {limit}; {why}", where=place)
