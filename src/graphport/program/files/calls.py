"""Whether a call can be made: its arguments are of the types that an operator takes.

What an operator does with their values shows when the program runs. Before that, arguments are
counted and looked at by those who write Python or ONNX for a call: they are what the operator's
schema says, and what is said of the result is of the type that the operator returns.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from graphport.program.bounds import CHECKS
from graphport.program.files.items import Item, shown

_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)
_TRUTHS = (bool, torch.SymBool)
_UNARY = {operator.neg, operator.pos, operator.abs, operator.invert, operator.not_, operator.index}

Predicate = Callable[[Any], bool]


def _value(x: Any) -> Any:
    """What an argument is: a node is what is said of it."""
    return x.meta.get("val") if isinstance(x, Node) else x


def _of(*types: type) -> Predicate:
    return lambda x: isinstance(_value(x), types)


_KINDS: dict[str, Predicate] = {
    "TensorType": _of(torch.Tensor, *_NUMBERS, complex),
    "IntType": _of(*_NUMBERS),
    "SymIntType": _of(*_NUMBERS),
    "FloatType": _of(*_NUMBERS),
    "BoolType": _of(*_NUMBERS),
    "SymBoolType": _of(*_NUMBERS),
    "NumberType": _of(*_NUMBERS, complex),
    "ComplexType": _of(*_NUMBERS, complex),
    "StringType": lambda x: isinstance(x, str),
    "ScalarTypeType": lambda x: isinstance(x, torch.dtype),
    "DeviceObjType": lambda x: isinstance(x, torch.device),
    "LayoutType": lambda x: isinstance(x, torch.layout),
    "MemoryFormatType": lambda x: isinstance(x, torch.memory_format),
    "GeneratorType": lambda x: x is None,
}


def _predicate(kind: Any, count: int | None = None) -> Predicate:
    """Whether a value can be passed where a schema says so."""
    name = kind.kind()
    if name == "OptionalType":
        inner = _predicate(kind.getElementType(), count)
        return lambda x: x is None or inner(x)
    if name != "ListType":
        return _KINDS.get(name, lambda x: True)
    one = _predicate(kind.getElementType())
    # A single number stands for a list of a fixed length.
    return lambda x: all(map(one, x)) if isinstance(x, (list, tuple)) else bool(count) and one(x)


@functools.cache
def _tensors(op: OpOverload) -> tuple[str, ...]:
    """Parameters that are tensors, by name."""
    return tuple(a.name for a in op._schema.arguments if a.real_type.kind() == "TensorType")


@functools.cache
def _parameters(
    op: OpOverload,
) -> tuple[int, dict[str, Predicate], tuple[str, ...], bool, Predicate]:
    """How many positional ones, what each takes, those that are needed; whether it returns a view,
    and whether a result fits.
    """
    arguments, returns = op._schema.arguments, op._schema.returns
    positional = sum(not a.kwarg_only for a in arguments)
    takes = {a.name: _predicate(a.real_type, a.N) for a in arguments}
    tensors = _tensors(op)
    # One of several is a tensor, others may be numbers: add.Tensor(x, 2), mul.Tensor(2, x).
    if op in CHECKS or len(tensors) == 1:
        takes.update(dict.fromkeys(tensors, _of(torch.Tensor)))
    needed = tuple(a.name for a in arguments if not a.has_default_value())
    is_view = any(r.alias_info is not None for r in returns)
    return positional, takes, needed, is_view, _result([r.real_type for r in returns])


def _result(kinds: list[Any]) -> Predicate:
    if not kinds:
        return lambda x: x is None
    parts = [_of(torch.Tensor) if k.kind() == "TensorType" else _predicate(k) for k in kinds]
    if len(parts) == 1:
        return parts[0]
    return lambda x: isinstance(x, (tuple, list)) and len(x) == len(parts) and all(
        part(y) for part, y in zip(parts, x, strict=True)
    )  # fmt: skip


def check_call(item: Item, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(target, OpOverload):
        _check_operator(item, target, args, kwargs)
    elif getattr(target, "__module__", "") == "_operator":
        if len(args) != (1 if target in _UNARY else 2) or kwargs:
            item.fail(f"the arguments do not fit operator.{target.__name__}")
        if target is operator.getitem:
            _check_item(item, *args)
            return
    if not isinstance(target, torch._ops.OperatorBase):
        numbers = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
        if kwargs or not all(isinstance(_value(x), (*_NUMBERS, type(None))) for x in numbers):
            item.fail(f"{target.__name__} takes numbers")


def _check_operator(
    item: Item, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    positional, takes, needed, is_view, _ = _parameters(op)
    given = {**dict(zip(takes, args, strict=False)), **kwargs}
    wrong = (
        len(args) > positional
        or not kwargs.keys() <= takes.keys()
        or not given.keys() >= set(needed)
        or len(given) < len(args) + len(kwargs)
    )
    if wrong:
        item.fail(f"the arguments do not fit {op._schema}")
    for name, x in given.items():
        if not takes[name](x):
            item.fail(f"the argument {name} of {op} cannot be {shown(x)}: {op._schema}")
    tensors = _tensors(op)
    if tensors and not any(isinstance(_value(given.get(n)), torch.Tensor) for n in tensors):
        item.fail(f"no argument of {op} is a tensor")
    if is_view and not (args and isinstance(args[0], Node)):
        item.fail(f"the first argument of {op} is a node")


def _check_item(item: Item, container: Any, index: Any) -> None:
    if not isinstance(container, Node):
        item.fail("an item is taken of a node")
    parts = _value(container)
    if isinstance(parts, (tuple, list)) and not (
        type(index) is int and -len(parts) <= index < len(parts)
    ):
        item.fail(f"there is no item {shown(index)} among {len(parts)} results")


def check_result(item: Item, target: Any, val: Any) -> None:
    """Whether what is said of a result is of the type that an operator returns."""
    if isinstance(target, OpOverload) and not _parameters(target)[-1](val):
        item.fail(f"{shown(type(val).__name__)} is not what {target} returns")
