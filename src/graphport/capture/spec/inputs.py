"""Binds arguments to the signature, flattens and names them; dataclasses as containers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from graphport import source
from graphport.arguments import NONE, TEXT, check_arguments, format_value
from graphport.compat.torch import ScriptMethod, pytree
from graphport.errors import InputError
from graphport.huggingface import caches
from graphport.symbolic.bridge import SYMBOLIC
from graphport.tensors.concrete import concrete_number, require_plain
from graphport.tensors.subclasses import split_subclasses
from graphport.types import PyTree

Context = list[list[str]]


@check_arguments(serialized_type_name=TEXT | NONE)
def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Let a dataclass hold inputs or outputs. Fields that are None are part of the structure.

    >>> import dataclasses, torch, graphport as gp
    >>> @dataclasses.dataclass
    ... class Pair:
    ...     a: torch.Tensor
    ...     b: torch.Tensor | None = None
    >>> gp.register_dataclass(Pair)
    >>> ep = gp.export(lambda p: p.a + 1, (Pair(torch.zeros(2)),))
    >>> ep.module()(Pair(torch.ones(2)))
    tensor([2., 2.])
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise InputError(f"cls is a dataclass, got {format_value(cls)}")
    if cls in pytree.SUPPORTED_NODES:
        raise InputError(f"the class {cls.__qualname__} is registered already")

    def split(value: object) -> tuple[list[str], list[str]]:
        """Names of the fields that are leaves, and of those that are None."""
        names = [f.name for f in dataclasses.fields(cls)]
        present = [n for n in names if getattr(value, n) is not None]
        return present, [n for n in names if n not in present]

    def flatten(value: object) -> tuple[list[Any], Context]:
        present, absent = split(value)
        return [getattr(value, n) for n in present], [present, absent]

    def flatten_with_keys(value: object) -> tuple[list[Any], Context]:
        children, context = flatten(value)
        keys = [pytree.GetAttrKey(n) for n in context[0]]
        return list(zip(keys, children, strict=True)), context

    def unflatten(children: Any, context: Context) -> PyTree:
        present, absent = context
        return cls(**dict(zip(present, children, strict=True)), **dict.fromkeys(absent))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_type_name or f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )


# Binds arguments to the signature, flattens and names them.

CONSTANT_TYPES = (
    int,
    float,
    bool,
    str,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
)
_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
}


def to_plain_constant(x: object) -> PyTree:
    """A constant as code can write it: of a subclass (an IntEnum, np.str_) the number or text."""
    if type(x) is bool:
        return x
    return next((bare(x) for kind, bare in _CONVERSIONS.items() if isinstance(x, kind)), x)


@dataclass
class Leaf:
    """One flat input: its value, its name in the graph, and its path as the user passes it."""

    value: Any
    name: str
    path: str


class Variadic(NamedTuple):
    """What `*args` took, and the position of its first argument."""

    values: tuple[Any, ...]
    first: int


@dataclass
class Inputs:
    """Flat inputs and the structure to put them back into."""

    leaves: list[Leaf]
    spec: pytree.TreeSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argument_names: list[str] = field(default_factory=list)
    """Names of the positional arguments, then of the keyword arguments, in the order of `spec`."""
    positional: int = 0
    """How many of them, from the first, can be given by position."""
    parameters: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """By parameter name: where its value is ("args[0]", "kwargs['x']"), and the value."""
    target: Any = None
    """The program that the arguments are for."""
    omitted: tuple[str, ...] = ()
    """Parameters that were left at their defaults."""
    keywords: tuple[str, tuple[str, ...]] = ("", ())
    """The name of the `**kwargs` parameter, and the keys that it took."""


def bind_inputs(
    target: nn.Module | Callable[..., Any], args: PyTree, kwargs: PyTree, *, within: bool = False
) -> Inputs:
    """Check the arguments against the signature of the program and flatten them.

    Symbolic numbers are those of other tools, of which the value is taken; `within` a capture they
    are its own, and stay what they are.
    """
    if not isinstance(args, tuple):
        hint = "args=(x,)" if isinstance(args, torch.Tensor) else "args=tuple(...)"
        raise InputError(
            f"args must be a tuple of the positional arguments, got {type(args).__name__}",
            fix=f"gp.export(model, {hint})",
        )
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, dict):
        raise InputError(f"kwargs must be a dict by parameter name, got {type(kwargs).__name__}")
    args = tuple(args)  # and no named one: the program takes them one by one
    try:
        given = pytree.tree_leaves((args, kwargs))
    except RecursionError:
        raise InputError(
            "the arguments are nested too deeply, or a container of them holds itself",
            fix="pass the tensors in a flat container",
        ) from None
    if _has_torch_size(pytree.tree_structure((args, kwargs))):
        # Which makes tuples of torch.Size.
        args, kwargs = pytree.tree_map(lambda x: x, (args, kwargs))
    if not within and any(issubclass(type(leaf), SYMBOLIC) for leaf in given):
        args, kwargs = pytree.tree_map_only(
            SYMBOLIC, lambda s: concrete_number(s, "the value"), (args, kwargs)
        )
    args, kwargs = split_subclasses((args, kwargs))
    caches.register_caches(args, kwargs)
    signature = signature_of(target)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(target, "__name__", type(target).__name__)
        raise InputError(
            f"the arguments do not fit {name}{signature}: {error}",
            where=source.locate_function(
                target.forward if isinstance(target, nn.Module) else target
            ),
            fix="pass positional arguments as args=(...,) and keyword arguments as kwargs={...}",
        ) from None
    # Keywords in the order of the signature: the order in which they are passed does not matter.
    order = {name: i for i, name in enumerate(signature.parameters)}
    kwargs = dict(sorted(kwargs.items(), key=lambda kv: order.get(kv[0], len(order))))
    named = _name_arguments(signature, bound, args, kwargs)
    leaves = []
    for name, path, value in named:
        for key_path, leaf in pytree.tree_flatten_with_path(value)[0]:
            _check_leaf(leaf, path + pytree.keystr(key_path))
            suffix = "".join(f"_{_format_key(k)}" for k in key_path)
            leaves.append(Leaf(leaf, name + suffix, path + pytree.keystr(key_path)))
    spec = pytree.tree_structure((args, kwargs))
    return Inputs(
        leaves,
        spec,
        args,
        kwargs,
        [name for name, _, _ in named],
        _count_positional(signature, args, kwargs),
        _map_parameters(signature, bound, args),
        target,
        tuple(name for name in signature.parameters if name not in bound.arguments),
        _find_keywords(signature, bound),
    )


def _has_torch_size(spec: pytree.TreeSpec) -> bool:
    return spec.type is torch.Size or any(map(_has_torch_size, spec.children()))


def unwrap_compiled(target: Any) -> PyTree:
    """The module that `torch.compile` has wrapped, found without importing Dynamo."""
    while type(target).__name__ == "OptimizedModule" and hasattr(target, "_orig_mod"):
        target = target._orig_mod
    return target


def signature_of(target: Any) -> inspect.Signature:
    target = unwrap_compiled(target)
    if isinstance(target, nn.Module):
        # Not getattr, which asks the user's own `__getattr__`.
        if hasattr(type(target), "_graphport_signature") or "_graphport_signature" in vars(target):
            return target._graphport_signature
        if isinstance(target, torch.fx.GraphModule) and hasattr(target, "real_recompile"):
            target.real_recompile()  # Dynamo's graphs get their code when they are first called
        if isinstance(target, torch.jit.ScriptModule) and not hasattr(target, "forward"):
            raise InputError(f"{type(target).__name__} was scripted without a method forward")
        if not callable(target.forward):
            raise InputError(
                f"{type(target).__name__}.forward is a {type(target.forward).__name__}, and cannot "
                "be called",
                fix="def forward(self, ...)",
            )
        target = target.forward
    if isinstance(target, (ScriptMethod, torch.jit.ScriptFunction)):
        from graphport.capture.torchscript.interpreter import read_signature

        return read_signature(target.schema, is_method=isinstance(target, ScriptMethod))
    try:
        return inspect.signature(target)
    except ValueError:  # a function written in C, e.g. torch.sin
        return inspect.signature(lambda *args, **kwargs: None)


def _name_arguments(
    signature: inspect.Signature, bound: inspect.BoundArguments, args: PyTree, kwargs: PyTree
) -> list[tuple[str, str, Any]]:
    """(name, path, value) of each argument as passed: positional ones, then keywords."""
    names: list[str] = []
    for p in signature.parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names.extend(f"{p.name}_{i}" for i in range(len(bound.arguments.get(p.name, ()))))
    pairs = enumerate(zip(names, args, strict=False))
    positional = [(name, f"*args[{i}]", a) for i, (name, a) in pairs]
    return [*positional, *((k, f"kwargs[{k!r}]", v) for k, v in kwargs.items())]


def _count_positional(signature: inspect.Signature, args: PyTree, kwargs: dict[str, object]) -> int:
    """Up to the first keyword that stands behind a parameter which was left out."""
    names = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    count = len(args)
    for key in kwargs:
        if key not in names[count : count + 1]:
            break
        count += 1
    return count


def _map_parameters(
    signature: inspect.Signature, bound: inspect.BoundArguments, args: PyTree
) -> dict[str, tuple[str, Any]]:
    """What `dynamic_shapes` is written against: one entry per parameter that was passed."""
    found: dict[str, tuple[str, Any]] = {}
    position = 0
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update((k, (f"kwargs[{k!r}]", v)) for k, v in value.items())
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found[name] = ("*args", Variadic(value, position))
            position += len(value)
        elif position < len(args) and kind is not inspect.Parameter.KEYWORD_ONLY:
            found[name] = (f"*args[{position}]", value)
            position += 1
        else:
            found[name] = (f"kwargs[{name!r}]", value)
    return found


def _find_keywords(
    signature: inspect.Signature, bound: inspect.BoundArguments
) -> tuple[str, tuple[str, ...]]:
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return name, tuple(bound.arguments.get(name, ()))
    return "", ()


def _format_key(key: object) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _check_leaf(leaf: object, path: str) -> None:
    kind = type(leaf)
    if issubclass(kind, torch.Tensor):
        require_plain(leaf, f"the input at {path}", path.lstrip("*"), InputError)
        return
    if issubclass(kind, (*CONSTANT_TYPES, *SYMBOLIC)):
        return
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "numpy":
        fix = f"torch.from_numpy(...) or torch.tensor(...) for the input at {path}"
    elif dataclasses.is_dataclass(kind):
        fix = f"gp.register_dataclass({kind.__name__})"
    else:
        fix = f"torch.utils._pytree.register_pytree_node({kind.__name__}, flatten, unflatten)"
    raise InputError(
        f"Unsupported input type {name} at {path}: inputs are tensors, numbers, strings, None, and "
        "containers of them",
        fix=fix,
    )
