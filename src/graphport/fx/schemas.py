"""Calls of operators in a canonical form, by the schemas of the operators.

Of several signatures, the one is taken that the types of the arguments fit. The first tensor is
called `input` everywhere; `own_names` gives the names back that an overload itself accepts.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from numbers import Number
from types import MethodDescriptorType
from typing import Any, NamedTuple, Optional

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node, Proxy

from graphport.arguments import ARGS, DICT, FLAG, FUNCTION, NONE, takes
from graphport.errors import GraphError, InputError
from graphport.fx.signatures import (
    KEYWORD,
    OPERATORS,
    STAND_IN,
    Target,
    public_name,
    python_signature,
    safe_name,
    schemas_of,
    schemas_with_signatures,
    signatures_of,
)
from graphport.fx.type_hints import create_type_hint, resolved, type_matches


class ArgsKwargsPair(NamedTuple):
    """Arguments of a call: `args` by position, `kwargs` by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# Types of arguments


def type_of(value: Any) -> Any:
    """The type of an argument; of nodes and proxies what is noted of them, or None."""
    if isinstance(value, Proxy):
        value = value.node
    if isinstance(value, Node):
        return _noted_type(value)
    if isinstance(value, torch.Size):
        return tuple[int, ...]
    if isinstance(value, (list, tuple)):
        types = [type_of(v) for v in value]
        return create_type_hint(types if isinstance(value, list) else tuple(types))
    return type(value)


def _noted_type(node: Node) -> Any:
    if "type" in node.meta:
        return node.meta["type"]
    if "val" in node.meta:
        found = type_of(node.meta["val"])
        is_tensor = isinstance(found, type) and issubclass(found, torch.Tensor)
        return torch.Tensor if is_tensor else found
    if "tensor_meta" in node.meta and hasattr(node.meta["tensor_meta"], "dtype"):
        return torch.Tensor
    return resolved(node.type)


def _fits(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the types of the arguments are the signature's; what is unknown fits everything."""
    bound = signature.bind(*args, **kwargs)
    return all(
        given is None or type_matches(signature.parameters[name].annotation, given)
        for name, given in bound.arguments.items()
    )


def _binds(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


# The canonical form


@takes(
    target=FUNCTION, args=ARGS, kwargs=DICT | NONE, arg_types=ARGS | NONE,
    kwarg_types=DICT | NONE, normalize_to_only_use_kwargs=FLAG,
)  # fmt: skip
def normalize_function(
    target: Target,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    arg_types: Sequence[Any] | None = None,
    kwarg_types: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of a call with their names and with defaults; None where there are no names.

    What is given by position stays there, unless only keywords are to be used. `target` is a
    function or method of torch, an overload or a packet of overloads, or a function in Python.
    Where overloads differ, the types of the arguments decide: `arg_types` and `kwarg_types` if they
    are given, or the arguments' own. Types that are not known and that would decide are a
    `GraphError`; arguments that a function in Python does not take are an `InputError`.

        >>> x = torch.ones(2)
        >>> normalize_function(torch.sum, (x, 0), normalize_to_only_use_kwargs=True).kwargs.keys()
        dict_keys(['input', 'dim', 'keepdim', 'dtype'])

    Functions that take any number of arguments have no names for them: None.
    """
    args = tuple(args)
    target = _unwrapped(target)
    kwargs = _bound_names(target, kwargs or {})
    if isinstance(target, HigherOrderOperator):
        return None
    candidates = signatures_of(target)
    if not candidates:
        return _normalize_python(target, args, kwargs, normalize_to_only_use_kwargs)
    args = _packed(target, candidates, args)
    fitting = [s for s in candidates if _binds(s, args, kwargs)]
    if len(fitting) > 1:
        types = _types(args, kwargs, arg_types, kwarg_types)
        fitting = _choose(target, fitting, *types)
    return arranged(fitting[0], args, kwargs, normalize_to_only_use_kwargs) if fitting else None


def possible_schemas(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The schemas that a call may be of, as far as the types of its arguments are known."""
    kwargs = _bound_names(target, kwargs)
    types, named = _types(tuple(args), kwargs, None, None)
    return [
        schema
        for schema, signature in schemas_with_signatures(target)
        if _binds(signature, args, kwargs) and _fits(signature, types, named)
    ]


def _bound_names(target: Target, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as signatures have them: an overload may be given its first tensor as `self`."""
    overload = isinstance(target, (OpOverload, OpOverloadPacket))
    return {
        "input" if overload and k == "self" and not isinstance(v, Number) else safe_name(k): v
        for k, v in kwargs.items()
    }


def _unwrapped(target: Target) -> Target:
    """The overload in a callable of another kind: `torch.library.custom_op`, or another tool's."""
    if not isinstance(target, OPERATORS):
        for name in ("_opoverload", "_op"):
            inner = getattr(target, name, None)
            if isinstance(inner, (OpOverload, OpOverloadPacket)):
                return inner
    return target


def _normalize_python(
    target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], only_kwargs: bool
) -> ArgsKwargsPair | None:
    if isinstance(target, OPERATORS):
        return None
    signature = python_signature(target, args, kwargs)
    if signature is None:
        return None
    return arranged(signature, args, kwargs, only_kwargs, torch.typename(target))


def _packed(
    target: Target, candidates: Sequence[Signature], args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The sizes of `x.view(2, 3)` as one argument, as the operator takes them."""
    if not isinstance(target, MethodDescriptorType) or len(args) < 2:
        return args
    if not all(type(a) in (int, torch.SymInt) or isinstance(a, (Node, Proxy)) for a in args[1:]):
        return args
    second = [p[1] for p in map(_positional, candidates) if len(p) == 2]
    # `x.hsplit(2)` is of one number, and a single node may be the list itself.
    alone = len(args) == 2 and (
        not isinstance(args[1], int) or any(p.annotation is int for p in second)
    )
    return (args[0], args[1:]) if any(map(_takes_ints, second)) and not alone else args


def _positional(signature: Signature) -> list[Parameter]:
    return [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]


def _takes_ints(parameter: Parameter) -> bool:
    return parameter.annotation in (typing.List[int], Optional[typing.List[int]])  # noqa: UP006, UP045


def _types(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arg_types: Sequence[Any] | None,
    kwarg_types: Mapping[str, Any] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The types of the arguments: those that are given, and those that can be seen."""
    own = tuple(map(type_of, args))
    own_named = {k: type_of(v) for k, v in kwargs.items()}
    if arg_types is not None and len(arg_types) == len(args):
        own = tuple(o if g is None else g for o, g in zip(own, arg_types, strict=True))
    given = {safe_name(k): t for k, t in (kwarg_types or {}).items() if t is not None}
    return own, {**own_named, **{k: t for k, t in given.items() if k in own_named}}


def _choose(
    target: Target, fitting: list[Signature], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Signature]:
    """Of several signatures, the first that the types fit."""
    by_type = [s for s in fitting if _fits(s, args, kwargs)]
    if len(set(map(_canonical, by_type))) > 1 and _undecided(by_type, args, kwargs):
        shown = "\n".join(f"    {s}" for s in by_type)
        raise GraphError(
            f"{torch.typename(target)} has several signatures that take these arguments, whose "
            f"types are not known:\n{shown}",
            fix=[
                "pass the types: normalize_function(..., arg_types=(torch.Tensor, int))",
                "or note them in the graph first: gp.fx.ShapeProp(gm).propagate(*args)",
            ],
        )
    return by_type[:1]


def _undecided(fitting: list[Signature], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the signatures have different types for an argument whose type is not known."""
    for position, hint in enumerate((*args, *kwargs.items())):
        by_name = position >= len(args)
        name, hint = hint if by_name else (position, hint)
        wanted = {repr(_parameter(s, name).annotation) for s in fitting}
        if _is_unknown(hint) and len(wanted) > 1:
            return True
    return False


def _parameter(signature: Signature, which: int | str) -> Parameter:
    if isinstance(which, str):
        return signature.parameters[which]
    return list(signature.parameters.values())[which]


def _is_unknown(hint: Any) -> bool:
    return hint is None or (typing.get_origin(hint) is not None and Any in typing.get_args(hint))


def _canonical(signature: Signature) -> tuple[tuple[str, str], ...]:
    """Names and defaults: signatures that share them give the same canonical form."""
    return tuple((p.name, repr(p.default)) for p in signature.parameters.values())


def arranged(
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    only_kwargs: bool,
    name: str = "the function",
) -> ArgsKwargsPair | None:
    """Arguments by the names of a signature, with its defaults; None where some have no name."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    if any(p.kind not in named for p in signature.parameters.values()):
        return None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{name} does not take these arguments: {error}", fix=f"its arguments are {signature}"
        ) from error
    bound.apply_defaults()
    values = [(KEYWORD if n == STAND_IN else n, v) for n, v in bound.arguments.items()]
    first = 0 if only_kwargs else len(args)
    return ArgsKwargsPair(tuple(v for _, v in values[:first]), dict(values[first:]))


def own_names(target: Target, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords as the target itself accepts them: `self` for the first tensor of an overload."""
    if not isinstance(target, (OpOverload, OpOverloadPacket)):
        return kwargs
    for schema in schemas_of(target):
        named = schema.arguments[len(schema.arguments) - len(kwargs) :]
        if [*map(public_name, named)] == [*map(safe_name, kwargs)]:
            return {a.name: v for a, v in zip(named, kwargs.values(), strict=True)}
    return kwargs
