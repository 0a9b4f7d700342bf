"""The table of lowerings: an operator of the program, and how ONNX says it.

A lowering is a function of the builder and of the operator's arguments under their schema names. An
argument that it does not name must hold its default, or be one that says nothing about the result;
anything else is refused, so that nothing is ignored in silence. Keys are overload objects: a typo
fails at import, and so do registering twice and a name that the schema does not have.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverload

from graphport import source
from graphport.errors import InputError, UnsupportedError

Fn = Callable[..., Any]
F = TypeVar("F", bound=Fn)

# Where and how memory is kept, not what is computed.
_IRRELEVANT = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy",
               "generator", "implicit", "enable_gqa_check"}  # fmt: skip


class Lowering:
    """A function with what is needed to call it with the arguments of a node."""

    __slots__ = ("arguments", "defaults", "fn", "named", "op", "unnamed")

    def __init__(self, op: OpOverload, fn: Fn, first: OpOverload | None = None) -> None:
        if not callable(fn):
            raise InputError(f"the lowering for {op} is {fn!r}", fix="a function (b, ...)")
        self.op = op
        self.fn = fn
        self.named = {p.name for p in list(inspect.signature(fn).parameters.values())[1:]}
        schema = op._schema.arguments
        theirs = (first or op)._schema.arguments
        # Under the names of the first operator: `mat2` of mm is the `other` of matmul.
        self.arguments = {
            a.name: _name(a if a.name in self.named or i >= len(theirs) else theirs[i])
            for i, a in enumerate(schema)
        }
        unknown = sorted(self.named - set(self.arguments.values()))
        if unknown:
            raise InputError(
                f"the lowering for {op} takes {', '.join(unknown)}, which is no argument of it",
                where=source.of_function(fn),
                fix=f"def lower(b, {', '.join(self.arguments.values())})",
            )
        defaults = {
            name: a.default_value if a.has_default_value() else inspect.Parameter.empty
            for a, name in zip(schema, self.arguments.values(), strict=True)
        }
        self.defaults = {
            k: v for k, v in defaults.items()
            if k in self.named and v is not inspect.Parameter.empty
        }  # fmt: skip
        self.unnamed = {
            k: v for k, v in defaults.items() if k not in self.named and k not in _IRRELEVANT
        }

    def bind(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, those that the function takes."""
        given = dict(self.defaults)
        for name, value in zip(self.arguments.values(), args, strict=False):
            self._put(given, name, value)
        for name, value in kwargs.items():
            self._put(given, self.arguments[name], value)
        return given

    def _put(self, given: dict[str, Any], name: str, value: Any) -> None:
        if name in self.named:
            given[name] = value
        elif name in self.unnamed and not _same(value, self.unnamed[name]):
            raise UnsupportedError(f"{self.op} with {name}={value!r} has no ONNX lowering")


def _name(argument: Any) -> str:
    """The name of an argument; that of a keyword of Python (`from`) has a `_` behind it."""
    return f"{argument.name}_" if keyword.iskeyword(argument.name) else argument.name


def _same(value: Any, default: Any) -> bool:
    return (type(value) is type(default) and value == default) or value is default


LOWERINGS: dict[OpOverload, Lowering] = {}
NEWEST: dict[OpOverload, int] = {}
"""Opsets that the lowerings of some operators end at."""
_NAMED: dict[str, Fn] = {}
"""Operators of packages that may not be there, by their names."""
COMPLEX: dict[OpOverload, Lowering] = {}
"""For operators with complex operands or results."""
BY_PARTS: set[OpOverload] = set()
"""Those that do the same with real and imaginary parts, each as the lowering of real numbers."""
HIGHER_ORDER: dict[HigherOrderOperator, Fn] = {}
FUSIONS: dict[OpOverload, list[Fn]] = {}


def lower(*ops: OpOverload, newest: int | None = None) -> Callable[[F], F]:
    """Register a lowering for operators that take the same arguments; the first gives the names.

    `newest` is the last opset at which ONNX Runtime can run what it writes, if that is not any.
    """

    def register(fn: F) -> F:
        for op in ops:
            _add(op, fn, ops[0])
            if newest is not None:
                NEWEST[op] = newest
        return fn

    return register


def lower_complex(*ops: OpOverload) -> Callable[[F], F]:
    """Register a lowering for complex operands or results: `Complex` values instead of plain."""

    def register(fn: F) -> F:
        for op in ops:
            if op in COMPLEX:
                raise ValueError(f"{op} of complex numbers has a lowering already")
            COMPLEX[op] = Lowering(op, fn, ops[0])
        return fn

    return register


def lower_named(*names: str) -> Callable[[F], F]:
    """Register a lowering for operators of other packages: `transformers::grouped_mm_fallback`."""

    def register(fn: F) -> F:
        for name in names:
            if name in _NAMED:
                raise ValueError(f"{name} has a lowering already")
            _NAMED[name] = fn
        return fn

    return register


def is_known(op: Any) -> bool:
    """Whether an operator has a lowering."""
    if op not in LOWERINGS and isinstance(op, OpOverload) and op.name() in _NAMED:
        _add(op, _NAMED[op.name()])
    return op in LOWERINGS


def table(rows: Mapping[OpOverload, Any], make: Callable[[Any], Fn]) -> None:
    """Register many operators that differ in one thing: `make` gives the lowering of a row."""
    for op, row in rows.items():
        _add(op, make(row))


def _add(op: OpOverload, fn: Fn, first: OpOverload | None = None) -> None:
    if op in LOWERINGS:
        raise ValueError(f"{op} has a lowering already")
    LOWERINGS[op] = Lowering(op, fn, first)


def higher_order(op: HigherOrderOperator) -> Callable[[F], F]:
    """Register `fn(lowerer, node)` for an operator that takes graphs."""

    def register(fn: F) -> F:
        if op in HIGHER_ORDER:
            raise ValueError(f"{op} has a lowering already")
        HIGHER_ORDER[op] = fn
        return fn

    return register


def fusion(*roots: OpOverload) -> Callable[[F], F]:
    """Register a pattern, by the operator that it ends in: `fn(lowerer, node)`, None if no match.

    It is tried before the lowering of its root. The nodes before the root have been lowered by
    then; what only the root used of them is removed in the end.
    """

    def register(fn: F) -> F:
        for root in roots:
            FUSIONS.setdefault(root, []).append(fn)
        return fn

    return register


def operator_named(name: Any) -> OpOverload:
    """The overload of a name like `aten::add.Tensor`; of the only one, or `default`, without.

    An operator itself, such as `torch.ops.aten.relu`, names itself.
    """
    if isinstance(name, OpOverload):
        return name
    name = str(name)
    namespace, _, rest = name.replace("::", ".").partition(".")
    packet_name, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), packet_name)
        only = packet.overloads()
        return getattr(packet, overload or (only[0] if len(only) == 1 else "default"))
    except AttributeError:
        raise InputError(
            f"there is no operator {name}", fix='its name as in "aten::add.Tensor"'
        ) from None
