"""Binds arguments of calls to schemas and signatures, choosing the overload by types.

What a schema says and what Python holds differ in known ways, which are the rules here: a list
takes a tuple and, for `int[]`, a single int; a float takes an int; a number takes an int, a float,
a bool or a complex; dtypes are ints in schemas.
"""

from __future__ import annotations

import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import nn
from torch.fx import Node, Proxy

from graphport import arguments as kinds
from graphport.arguments import check_arguments
from graphport.compat.torch import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    boolean_dispatched,
    dispatch_has_kernel,
    find_builtin,
    jit_get_schemas_for_operator,
)
from graphport.errors import GraphError, InputError
from graphport.symbolic.bridge import NUMBERS, SYMBOLIC_NUMBERS
from graphport.tensors.abstract import get_val, has_val
from graphport.types import Argument, Kwargs

_UNIONS = (Union, types.UnionType)
_SEQUENCES = (list, tuple)
_NONE = type(None)

_IMPLICIT_CONVERSIONS: dict[Any, tuple[type, ...]] = {
    int: (torch.SymInt, torch.dtype),
    float: (int, *SYMBOLIC_NUMBERS),
    complex: (float, int),
    bool: (torch.SymBool,),
    numbers.Number: (complex, *NUMBERS),
    torch.dtype: (int,),
    torch.layout: (int,),
    torch.memory_format: (int,),
    torch.device: (str, int),
}
"""Types that a parameter takes although they are no subclasses of its own type."""


def create_type_hint(x: object) -> object:
    """The type of a list or tuple, given the types of its elements; any other type as it is.

        >>> create_type_hint([int, int]), create_type_hint((torch.nn.Parameter, torch.Tensor))
        (list[int], tuple[torch.Tensor, ...])
        >>> create_type_hint([[int, int], [int]])
        list[list[int]]

    The element type is the one that all others are subclasses of, with `None` beside it where some
    are None, and `Any` where there is none.
    """
    if not isinstance(x, _SEQUENCES):
        return x
    element: Any = _find_common_type([create_type_hint(t) for t in x])
    return list[element] if isinstance(x, list) else tuple[element, ...]


def _find_common_type(hints: list[object]) -> object:
    """The hint that takes all others; Any if none does, or if one is unknown."""
    known = [h for h in hints if h is not _NONE]
    if not known or None in hints:
        return Any if None in hints or not hints else _NONE
    for base in known:
        if all(h == base or _is_subclass(h, base) for h in known):
            # typing's spelling: the new one refuses what is no class.
            return base if len(known) == len(hints) else Union[base, None]  # noqa: UP007
    return Any


def _is_subclass(t: object, base: object) -> bool:
    return isinstance(t, type) and isinstance(base, type) and issubclass(t, base)


_HINT_NAMESPACE = {
    **vars(typing),
    "torch": torch,
    "typing": typing,
    "Tensor": torch.Tensor,
    "nn": torch.nn,
}


def resolve_type_hint(hint: object) -> object:
    """A type that is written as text, as `from __future__ import annotations` leaves it.

    None where it uses names that are not known here.
    """
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, dict(_HINT_NAMESPACE))
    except (NameError, AttributeError, SyntaxError, TypeError):
        return None


@check_arguments(signature_type=kinds.HASHABLE, argument_type=kinds.HASHABLE)
def type_matches(signature_type: object, argument_type: Any) -> bool:
    """Whether a parameter of one type takes an argument of the other.

    >>> type_matches(int | float, int), type_matches(int, float)
    (True, False)
    >>> type_matches(list[torch.Tensor], tuple[torch.nn.Parameter, torch.Tensor])
    True
    """
    if signature_type == argument_type or Any in (signature_type, argument_type):
        return True
    if isinstance(signature_type, typing.TypeVar):
        return True
    if typing.get_origin(argument_type) in _UNIONS:
        return all(type_matches(signature_type, t) for t in typing.get_args(argument_type))
    origin = typing.get_origin(signature_type)
    if origin in _UNIONS:
        return any(type_matches(t, argument_type) for t in typing.get_args(signature_type))
    if origin is list:
        return _list_takes(typing.get_args(signature_type)[0], argument_type)
    if origin is tuple:
        return _tuple_takes(typing.get_args(signature_type), argument_type)
    if origin is dict:
        return _dict_takes(typing.get_args(signature_type), argument_type)
    if not isinstance(argument_type, type):
        argument_type = typing.get_origin(argument_type)
    if not isinstance(argument_type, type):
        return False
    return _is_subclass(argument_type, signature_type) or any(
        issubclass(argument_type, t) for t in _IMPLICIT_CONVERSIONS.get(signature_type, ())
    )


def _list_takes(element: object, argument: object) -> bool:
    if _is_subclass(argument, torch.Size):
        return type_matches(element, int)
    if argument in (int, torch.SymInt):
        return element is int
    if argument is float:
        return element is float
    elements = _get_element_types(argument)
    return elements is not None and all(type_matches(element, e) for e in elements)


def _tuple_takes(elements: tuple[object, ...], argument: object) -> bool:
    given = _get_element_types(argument)
    if given is None or typing.get_origin(argument) is not tuple:
        return argument is tuple
    if Ellipsis in elements:
        return all(type_matches(elements[0], g) for g in given)
    if Ellipsis in typing.get_args(argument):
        return all(type_matches(e, g) for e in elements for g in given)
    return len(given) == len(elements) and all(map(type_matches, elements, given))


def _dict_takes(items: tuple[object, ...], argument: object) -> bool:
    given = typing.get_args(argument)
    return argument is dict or (
        typing.get_origin(argument) is dict and all(map(type_matches, items, given))
    )


def _get_element_types(argument: object) -> Sequence[Any] | None:
    """The types of the elements of a sequence type; None for what is none."""
    if argument in _SEQUENCES:
        return ()
    if typing.get_origin(argument) not in _SEQUENCES:
        return None
    # Tuple[()] has had an empty tuple as its argument.
    return [t for t in typing.get_args(argument) if t not in (Ellipsis, ())]


# Signatures of operators and functions of torch, from their schemas, with Python's types.
#
# A target has one signature (an overload, a function written in Python) or several (everything that
# is overloaded). The first tensor is called `input` everywhere, as in the functions of `torch`.

Target = Callable[..., Any]


# Types of schemas


_TYPES: dict[str, Any] = {
    "TensorType": torch.Tensor,
    "IntType": int,
    "SymIntType": int,
    "FloatType": float,
    "NumberType": numbers.Number,
    "BoolType": bool,
    "SymBoolType": bool,
    "ComplexType": complex,
    "StringType": str,
    "NoneType": type(None),
    "DeviceObjType": torch.device,
    "GeneratorType": torch.Generator,
    "ScalarTypeType": torch.dtype,
    "LayoutType": torch.layout,
    "MemoryFormatType": torch.memory_format,
    "QSchemeType": torch.qscheme,
    "StorageType": torch.UntypedStorage,
    "StreamObjType": torch.Stream,
}
"""Python's type for each kind of a schema; the kinds that are not here take anything."""


def python_type(jit_type: Any) -> object:
    """The type of a schema's argument or result, in Python's words."""
    kind = jit_type.kind()
    if kind == "OptionalType":
        element: Any = python_type(jit_type.getElementType())
        return Optional[element]  # noqa: UP045  (of what is no class)
    if kind == "ListType":
        element = python_type(jit_type.getElementType())
        return typing.List[element]  # noqa: UP006  (TorchScript's)
    if kind == "TupleType":
        return _make_tuple_type(map(python_type, jit_type.elements()))
    if kind == "DictType":
        key: Any = python_type(jit_type.getKeyType())
        value: Any = python_type(jit_type.getValueType())
        return typing.Dict[key, value]  # noqa: UP006
    return _TYPES.get(kind, Any)


def return_type(schema: torch.FunctionSchema) -> object:
    """What an operator returns: None, a type, or the tuple of several."""
    types = tuple(python_type(r.type) for r in schema.returns)
    if len(types) < 2:
        return types[0] if types else None
    return _make_tuple_type(types)


def _make_tuple_type(types: Iterable[object]) -> object:
    tuples: Any = typing.Tuple  # noqa: UP006  (TorchScript's)
    return tuples[tuple(types)]


def _make_signature(schema: torch.FunctionSchema) -> Signature:
    """A schema as a signature of Python, its `self` as `input`."""
    parameters = []
    for argument in schema.arguments:
        parameters.append(
            Parameter(
                public_name(argument),
                Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
                default=_get_default(argument),
                annotation=python_type(argument.real_type),
            )
        )
    return Signature(parameters)


def public_name(argument: torch.Argument) -> str:
    """`input` for the tensor that a schema has as `self`; a number keeps that name in Python."""
    own = argument.name == "self" and argument.type.kind() == "TensorType"
    return "input" if own else safe_name(argument.name)


# Schemas have the defaults of these as numbers.
_ENUM_DEFAULTS: dict[str, dict[int, Any]] = {
    "ScalarType": {4: torch.int64},
    "MemoryFormat": {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last},
    "Layout": {0: torch.strided},
}


def _get_default(argument: torch.Argument) -> object:
    if not argument.has_default_value():
        return Parameter.empty
    value = argument.default_value
    named = _ENUM_DEFAULTS.get(str(argument.real_type).removeprefix("Optional[").rstrip("]"), {})
    return named.get(value, value) if type(value) is int else value


# `from` is an argument of uniform_ and random_, and no name that a parameter may have.
RESERVED_NAME = "from"
RESERVED_NAME_ALIAS = "from_"


def safe_name(name: str) -> str:
    return RESERVED_NAME_ALIAS if name == RESERVED_NAME else name


# Signatures of targets


OPERATOR_TYPES = (OpOverload, OpOverloadPacket, BuiltinFunctionType, MethodDescriptorType)


def get_schemas(target: Target) -> tuple[Any, ...]:
    """The schemas that a target may be called by; none, if it is no operator."""
    if isinstance(target, OpOverload):
        return (target._schema,)
    if isinstance(target, OpOverloadPacket):
        return tuple(getattr(target, name)._schema for name in target.overloads())
    name = _find_operator_name(target)
    if name is None:
        return ()
    schemas = jit_get_schemas_for_operator(name)
    # Functions and methods of torch reach operators, not what TorchScript alone has.
    return tuple(s for s in schemas if dispatch_has_kernel(_full_name(s)))


def _full_name(schema: torch.FunctionSchema) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _find_operator_name(target: Target) -> str | None:
    """The name of the operator behind a function or a method of torch."""
    if isinstance(target, MethodDescriptorType):
        ours = issubclass(getattr(target, "__objclass__", object), TensorBase)
        return f"aten::{target.__name__}" if ours else None
    if not isinstance(target, BuiltinFunctionType):
        return None
    found: str | None = find_builtin(target)
    # TorchScript also knows functions of `math`, which take no keywords.
    return None if getattr(target, "__module__", None) == "math" else found


def _get_manual_signatures(target: Target) -> tuple[Signature, ...]:
    """Of functions whose binding takes more than their schema says."""
    if target not in (torch.nonzero, torch.Tensor.nonzero):
        return ()
    tensor = Parameter("input", Parameter.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor)
    as_tuple = Parameter("as_tuple", Parameter.KEYWORD_ONLY, annotation=bool)
    return Signature([tensor]), Signature([tensor, as_tuple])


def get_signatures(target: Target) -> tuple[Signature, ...]:
    """What an operator may be called with; nothing, if the target is none."""
    return _get_manual_signatures(target) or tuple(
        s for _, s in get_schemas_with_signatures(target)
    )


def get_schemas_with_signatures(target: Target) -> tuple[tuple[Any, Signature], ...]:
    # Functions in Python are not kept: they would live as long as what is known of them.
    return _get_cached_signatures(target) if isinstance(target, OPERATOR_TYPES) else ()


@cache
def _get_cached_signatures(target: Target) -> tuple[tuple[Any, Signature], ...]:
    pairs = tuple((schema, _make_signature(schema)) for schema in get_schemas(target))
    if not isinstance(target, MethodDescriptorType):
        return pairs
    return tuple(
        (schema, _make_method_signature(s)) for schema, s in pairs if "input" in s.parameters
    )


def _make_method_signature(signature: Signature) -> Signature:
    """The tensor itself comes first, where operators may have another: `x.where(condition, y)`."""
    own = signature.parameters["input"]
    return Signature([own, *(p for p in signature.parameters.values() if p is not own)])


def resolve_python_function(
    target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> Target | None:
    """The function in Python that a call reaches: some choose between two by a flag."""
    flag = boolean_dispatched.get(target) if isinstance(target, FunctionType) else None
    if flag is None:
        return inspect.unwrap(target)
    index, name = flag["index"], flag["arg_name"]
    value = args[index] if index < len(args) else kwargs.get(name, flag["default"])
    if isinstance(value, bool):
        return flag["if_true"] if value else flag["if_false"]
    true, false = (inspect.signature(flag[k]) for k in ("if_true", "if_false"))
    return flag["if_true"] if true == false else None


def get_python_signature(
    target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> Signature | None:
    function = resolve_python_function(target, args, kwargs)
    if function is None:
        return None
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None  # written in C, and not one of torch's


# Calls of operators in canonical form, by the schemas of the operators.
#
# Of several signatures, the one is taken that the types of the arguments fit. The first tensor is
# called `input` everywhere; `restore_schema_names` gives the names back that an overload itself
# accepts.


class ArgsKwargsPair(NamedTuple):
    """Arguments of a call: `args` by position, `kwargs` by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# Types of arguments


def infer_type(value: Argument) -> object:
    """The type of an argument; of nodes and proxies what is noted of them, or None."""
    if isinstance(value, Proxy):
        value = value.node
    if isinstance(value, Node):
        return _read_node_type(value)
    if isinstance(value, torch.Size):
        return tuple[int, ...]
    if isinstance(value, (list, tuple)):
        types = [infer_type(v) for v in value]
        return create_type_hint(types if isinstance(value, list) else tuple(types))
    return type(value)


def _read_node_type(node: Node) -> object:
    if "type" in node.meta:
        return node.meta["type"]
    if has_val(node):
        found = infer_type(get_val(node))
        is_tensor = isinstance(found, type) and issubclass(found, torch.Tensor)
        return torch.Tensor if is_tensor else found
    if "tensor_meta" in node.meta and hasattr(node.meta["tensor_meta"], "dtype"):
        return torch.Tensor
    return resolve_type_hint(node.type)


def _matches_types(
    signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    """Whether the types of the arguments are the signature's; what is unknown fits everything."""
    bound = signature.bind(*args, **kwargs)
    return all(
        given is None or type_matches(signature.parameters[name].annotation, given)
        for name, given in bound.arguments.items()
    )


def _can_bind(signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


# The canonical form


@check_arguments(
    target=kinds.FUNCTION,
    args=kinds.ARGS,
    kwargs=kinds.DICT | kinds.NONE,
    arg_types=kinds.ARGS | kinds.NONE,
    kwarg_types=kinds.DICT | kinds.NONE,
    normalize_to_only_use_kwargs=kinds.FLAG,
)
def normalize_function(
    target: Target,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    arg_types: Sequence[object] | None = None,
    kwarg_types: Mapping[str, object] | None = None,
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
    target = _unwrap_target(target)
    kwargs = _rename_keywords(target, kwargs or {})
    if isinstance(target, HigherOrderOperator):
        return None
    candidates = get_signatures(target)
    if not candidates:
        return _normalize_python(target, args, kwargs, normalize_to_only_use_kwargs)
    args = _pack_sizes(target, candidates, args)
    fitting = [s for s in candidates if _can_bind(s, args, kwargs)]
    if len(fitting) > 1:
        types = _infer_types(args, kwargs, arg_types, kwarg_types)
        fitting = _choose_signatures(target, fitting, *types)
    return (
        bind_arguments(fitting[0], args, kwargs, normalize_to_only_use_kwargs) if fitting else None
    )


def match_schemas(
    target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """The schemas that a call may be of, as far as the types of its arguments are known."""
    kwargs = _rename_keywords(target, kwargs)
    types, named = _infer_types(tuple(args), kwargs, None, None)
    return [
        schema
        for schema, signature in get_schemas_with_signatures(target)
        if _can_bind(signature, args, kwargs) and _matches_types(signature, types, named)
    ]


def _rename_keywords(target: Target, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Keywords as signatures have them: an overload may be given its first tensor as `self`."""
    overload = isinstance(target, (OpOverload, OpOverloadPacket))
    return {
        "input" if overload and k == "self" and not isinstance(v, Number) else safe_name(k): v
        for k, v in kwargs.items()
    }


def _unwrap_target(target: Target) -> Target:
    """The overload in a callable of another kind: `torch.library.custom_op`, or another tool's."""
    if not isinstance(target, OPERATOR_TYPES):
        for name in ("_opoverload", "_op"):
            inner = getattr(target, name, None)
            if isinstance(inner, (OpOverload, OpOverloadPacket)):
                return inner
    return target


def _normalize_python(
    target: Target, args: tuple[object, ...], kwargs: dict[str, object], only_kwargs: bool
) -> ArgsKwargsPair | None:
    if isinstance(target, OPERATOR_TYPES):
        return None
    signature = get_python_signature(target, args, kwargs)
    if signature is None:
        return None
    return bind_arguments(signature, args, kwargs, only_kwargs, torch.typename(target))


def _pack_sizes(
    target: Target, candidates: Sequence[Signature], args: tuple[object, ...]
) -> tuple[object, ...]:
    """The sizes of `x.view(2, 3)` as one argument, as the operator takes them."""
    if not isinstance(target, MethodDescriptorType) or len(args) < 2:
        return args
    if not all(type(a) in (int, torch.SymInt) or isinstance(a, (Node, Proxy)) for a in args[1:]):
        return args
    second = [p[1] for p in map(_list_positional, candidates) if len(p) == 2]
    # `x.hsplit(2)` is of one number, and a single node may be the list itself.
    alone = len(args) == 2 and (
        not isinstance(args[1], int) or any(p.annotation is int for p in second)
    )
    return (args[0], args[1:]) if any(map(_takes_ints, second)) and not alone else args


def _list_positional(signature: Signature) -> list[Parameter]:
    return [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]


def _takes_ints(parameter: Parameter) -> bool:
    return parameter.annotation in (typing.List[int], Optional[typing.List[int]])  # noqa: UP006, UP045


def _infer_types(
    args: tuple[object, ...],
    kwargs: dict[str, object],
    arg_types: Sequence[object] | None,
    kwarg_types: Mapping[str, object] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The types of the arguments: those that are given, and those that can be seen."""
    own = tuple(map(infer_type, args))
    own_named = {k: infer_type(v) for k, v in kwargs.items()}
    if arg_types is not None and len(arg_types) == len(args):
        own = tuple(o if g is None else g for o, g in zip(own, arg_types, strict=True))
    given = {safe_name(k): t for k, t in (kwarg_types or {}).items() if t is not None}
    return own, {**own_named, **{k: t for k, t in given.items() if k in own_named}}


def _choose_signatures(
    target: Target, fitting: list[Signature], args: tuple[object, ...], kwargs: dict[str, object]
) -> list[Signature]:
    """Of several signatures, the first that the types fit."""
    by_type = [s for s in fitting if _matches_types(s, args, kwargs)]
    if len(set(map(_canonical_key, by_type))) > 1 and _is_ambiguous(by_type, args, kwargs):
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


def _is_ambiguous(fitting: list[Signature], args: tuple[Argument, ...], kwargs: Kwargs) -> bool:
    """Whether the signatures have different types for an argument whose type is not known."""
    for position, hint in enumerate((*args, *kwargs.items())):
        by_name = position >= len(args)
        name, hint = hint if by_name else (position, hint)
        wanted = {repr(_get_parameter(s, name).annotation) for s in fitting}
        if _is_unknown(hint) and len(wanted) > 1:
            return True
    return False


def _get_parameter(signature: Signature, which: int | str) -> Parameter:
    if isinstance(which, str):
        return signature.parameters[which]
    return list(signature.parameters.values())[which]


def _is_unknown(hint: object) -> bool:
    return hint is None or (typing.get_origin(hint) is not None and Any in typing.get_args(hint))


def _canonical_key(signature: Signature) -> tuple[tuple[str, str], ...]:
    """Names and defaults: signatures that share them give the same canonical form."""
    return tuple((p.name, repr(p.default)) for p in signature.parameters.values())


def bind_arguments(
    signature: Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
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
    values = [
        (RESERVED_NAME if n == RESERVED_NAME_ALIAS else n, v) for n, v in bound.arguments.items()
    ]
    first = 0 if only_kwargs else len(args)
    return ArgsKwargsPair(tuple(v for _, v in values[:first]), dict(values[first:]))


def restore_schema_names(target: Target, kwargs: dict[str, object]) -> dict[str, Any]:
    """Keywords as the target itself accepts them: `self` for the first tensor of an overload."""
    if not isinstance(target, (OpOverload, OpOverloadPacket)):
        return kwargs
    for schema in get_schemas(target):
        named = schema.arguments[len(schema.arguments) - len(kwargs) :]
        if [*map(public_name, named)] == [*map(safe_name, kwargs)]:
            return {a.name: v for a, v in zip(named, kwargs.values(), strict=True)}
    return kwargs


# Calls of torch's own modules in canonical form, by the signature of `forward`.

_TORCH_PACKAGES = ("torch.nn.", "torch.ao.nn.")


def is_torch_module(module: nn.Module) -> bool:
    """Whether a module is one of torch's own, not of a class that a user has written."""
    return type(module).__module__.startswith(_TORCH_PACKAGES)


@check_arguments(
    root=kinds.MODULE,
    target=kinds.TEXT,
    args=kinds.ARGS,
    kwargs=kinds.DICT | kinds.NONE,
    normalize_to_only_use_kwargs=kinds.FLAG,
)
def normalize_module(
    root: nn.Module,
    target: str,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of a call of `root`'s submodule with their names and with defaults.

    What is given by position stays there, unless only keywords are to be used. None for modules
    that are not torch's own, and for those that take any number of arguments.

        >>> normalize_module(nn.Sequential(nn.RNN(2, 3)), "0", ("x",), {}, True)
        ArgsKwargsPair(args=(), kwargs={'input': 'x', 'hx': None})
    """
    module = require_submodule(root, target)
    if not is_torch_module(module):
        return None
    signature = inspect.signature(inspect.unwrap(module.forward))
    name = f"{target} ({type(module).__name__})"
    return bind_arguments(signature, args, kwargs or {}, normalize_to_only_use_kwargs, name)


def require_submodule(root: nn.Module, target: str) -> nn.Module:
    try:
        return root.get_submodule(target)
    except AttributeError as error:
        raise GraphError(
            f"the graph calls {target!r}, which {type(root).__name__} does not have: {error}",
            fix=f"add it: gm.add_submodule({target!r}, module)",
        ) from error
