"""What operators and functions of torch take and return: their schemas in Python's words.

A target has one signature (an overload, a function written in Python) or several (everything that
is overloaded). The first tensor is called `input` everywhere, as in the functions of `torch`.
"""

from __future__ import annotations

import inspect
import numbers
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, Optional

import torch
from torch._jit_internal import boolean_dispatched
from torch._ops import OpOverload, OpOverloadPacket

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


def python_type(jit_type: Any) -> Any:
    """The type of a schema's argument or result, in Python's words."""
    kind = jit_type.kind()
    if kind == "OptionalType":
        element: Any = python_type(jit_type.getElementType())
        return Optional[element]  # noqa: UP045  (of what is no class)
    if kind == "ListType":
        element = python_type(jit_type.getElementType())
        return typing.List[element]  # noqa: UP006  (TorchScript's)
    if kind == "TupleType":
        return _tuple_of(map(python_type, jit_type.elements()))
    if kind == "DictType":
        key: Any = python_type(jit_type.getKeyType())
        value: Any = python_type(jit_type.getValueType())
        return typing.Dict[key, value]  # noqa: UP006
    return _TYPES.get(kind, Any)


def return_type(schema: Any) -> Any:
    """What an operator returns: None, a type, or the tuple of several."""
    types = tuple(python_type(r.type) for r in schema.returns)
    if len(types) < 2:
        return types[0] if types else None
    return _tuple_of(types)


def _tuple_of(types: Iterable[Any]) -> Any:
    tuples: Any = typing.Tuple  # noqa: UP006  (TorchScript's)
    return tuples[tuple(types)]


def _signature(schema: Any) -> Signature:
    """A schema as a signature of Python, its `self` as `input`."""
    parameters = []
    for argument in schema.arguments:
        parameters.append(
            Parameter(
                public_name(argument),
                Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
                default=_default(argument),
                annotation=python_type(argument.real_type),
            )
        )
    return Signature(parameters)


def public_name(argument: Any) -> str:
    """`input` for the tensor that a schema has as `self`; a number keeps that name in Python."""
    own = argument.name == "self" and argument.type.kind() == "TensorType"
    return "input" if own else safe_name(argument.name)


# Schemas have the defaults of these as numbers.
_NUMBERED: dict[str, dict[int, Any]] = {
    "ScalarType": {4: torch.int64},
    "MemoryFormat": {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last},
    "Layout": {0: torch.strided},
}


def _default(argument: Any) -> Any:
    if not argument.has_default_value():
        return Parameter.empty
    value = argument.default_value
    named = _NUMBERED.get(str(argument.real_type).removeprefix("Optional[").rstrip("]"), {})
    return named.get(value, value) if type(value) is int else value


# `from` is an argument of uniform_ and random_, and no name that a parameter may have.
KEYWORD = "from"
STAND_IN = "from_"


def safe_name(name: str) -> str:
    return STAND_IN if name == KEYWORD else name


# Signatures of targets


OPERATORS = (OpOverload, OpOverloadPacket, BuiltinFunctionType, MethodDescriptorType)


def schemas_of(target: Target) -> tuple[Any, ...]:
    """The schemas that a target may be called by; none, if it is no operator."""
    if isinstance(target, OpOverload):
        return (target._schema,)
    if isinstance(target, OpOverloadPacket):
        return tuple(getattr(target, name)._schema for name in target.overloads())
    name = _operator(target)
    if name is None:
        return ()
    schemas = torch._C._jit_get_schemas_for_operator(name)
    # Functions and methods of torch reach operators, not what TorchScript alone has.
    return tuple(s for s in schemas if torch._C._dispatch_has_kernel(_full_name(s)))


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _operator(target: Target) -> str | None:
    """The name of the operator behind a function or a method of torch."""
    if isinstance(target, MethodDescriptorType):
        ours = issubclass(getattr(target, "__objclass__", object), torch._C.TensorBase)
        return f"aten::{target.__name__}" if ours else None
    if not isinstance(target, BuiltinFunctionType):
        return None
    found: str | None = torch.jit._builtins._find_builtin(target)
    # TorchScript also knows functions of `math`, which take no keywords.
    return None if getattr(target, "__module__", None) == "math" else found


def _signatures_by_hand(target: Target) -> tuple[Signature, ...]:
    """Of functions whose binding takes more than their schema says."""
    if target not in (torch.nonzero, torch.Tensor.nonzero):
        return ()
    tensor = Parameter("input", Parameter.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor)
    as_tuple = Parameter("as_tuple", Parameter.KEYWORD_ONLY, annotation=bool)
    return Signature([tensor]), Signature([tensor, as_tuple])


def signatures_of(target: Target) -> tuple[Signature, ...]:
    """What an operator may be called with; nothing, if the target is none."""
    return _signatures_by_hand(target) or tuple(s for _, s in schemas_with_signatures(target))


def schemas_with_signatures(target: Target) -> tuple[tuple[Any, Signature], ...]:
    # Functions in Python are not kept: they would live as long as what is known of them.
    return _known(target) if isinstance(target, OPERATORS) else ()


@cache
def _known(target: Target) -> tuple[tuple[Any, Signature], ...]:
    pairs = tuple((schema, _signature(schema)) for schema in schemas_of(target))
    if not isinstance(target, MethodDescriptorType):
        return pairs
    return tuple((schema, _of_method(s)) for schema, s in pairs if "input" in s.parameters)


def _of_method(signature: Signature) -> Signature:
    """The tensor itself comes first, where operators may have another: `x.where(condition, y)`."""
    own = signature.parameters["input"]
    return Signature([own, *(p for p in signature.parameters.values() if p is not own)])


def python_function(
    target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
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


def python_signature(
    target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Signature | None:
    function = python_function(target, args, kwargs)
    if function is None:
        return None
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None  # written in C, and not one of torch's
