"""What a node may call, by name: registered operators, and functions from fixed tables.

A name is looked up, never followed: no attribute of anything is taken because a file says so, and
no library is imported for it.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from graphport.errors import SerializationError
from graphport.program.files.items import Item, shown
from graphport.program.files.operators import Permits

_ON_NUMBERS: dict[Any, tuple[str, ...]] = {
    operator: (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "lshift",
        "rshift", "and_", "or_", "xor", "invert", "not_", "eq", "ne", "lt", "le", "gt", "ge",
        "getitem", "index",
    ),
    math: (
        "floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "pow",
    ),
    builtins: ("round", "abs", "min", "max", "int", "float", "bool", "pow"),
    torch: (
        "sym_float", "sym_int", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum", "sym_and",
        "sym_or", "sym_sqrt", "_sym_sqrt", "_sym_cos", "_sym_cosh", "_sym_sin", "_sym_sinh",
        "_sym_tan", "_sym_tanh", "_sym_asin", "_sym_acos", "_sym_atan", "_sym_log2", "_sym_log10",
        "_sym_exp", "_sym_log", "_check",
    ),
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in _ON_NUMBERS.items()
    for name in names
    if hasattr(module, name)
}
# The first name of a function that has two: torch.sym_sqrt is torch._sym_sqrt.
_FUNCTION_NAMES: dict[Any, str] = {}
for _name, _function in FUNCTIONS.items():
    _FUNCTION_NAMES.setdefault(_function, _name)

# Those that call graphs of the program or operators, and nothing else of Python's.
HIGHER_ORDER = (
    "cond", "while_loop", "map_impl", "scan", "associative_scan", "auto_functionalized",
    "auto_functionalized_v2", "autograd_function_apply", "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "tag_activation_checkpoint", "wrap_activation_checkpoint", "invoke_subgraph", "strict_mode",
    "out_dtype", "hints_wrapper",
)  # fmt: skip


def name_of(target: Any) -> str | None:
    """The name of what a node calls; None if a file cannot say it."""
    if isinstance(target, OpOverload):
        return target.name()
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}" if target.name() in HIGHER_ORDER else None
    try:
        return _FUNCTION_NAMES.get(target)
    except TypeError:  # not hashable
        return None


class Targets:
    """Looks up names, each once."""

    def __init__(self, producer: str, permits: Permits) -> None:
        self._producer = producer
        self._permits = permits
        self._known: dict[str, Any] = dict(FUNCTIONS)

    def __call__(self, item: Item) -> Any:
        name = item.text()
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._find(item, name)
        return known

    def operator(self, item: Item) -> OpOverload:
        found = self(item)
        if not isinstance(found, OpOverload):
            item.fail(f"{shown(item.value)} is not an operator")
        return found

    def _find(self, item: Item, name: str) -> Any:
        family, dot, rest = name.partition(".")
        if family == "higher_order" and dot:
            if rest not in HIGHER_ORDER:
                item.fail(f"unknown higher-order operator {shown(rest)}")
            found = torch._ops._higher_order_ops.get(rest)
            if found is None:
                item.fail(f"this torch, {torch.__version__}, has no higher-order operator {rest}")
            return found
        if "::" not in name:
            item.fail(f"{shown(name)} is neither an operator nor a function on sizes")
        packet, _, overload = name.partition(".")
        try:
            schemas = torch._C._jit_get_schemas_for_operator(packet)
        except (RuntimeError, TypeError, ValueError):  # no name of an operator, or no UTF-8
            schemas = []
        if overload not in [schema.overload_name for schema in schemas]:
            self._unknown(item, name)
        namespace, _, packet = packet.partition("::")
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default", None)
        if not isinstance(found, OpOverload) or found.name() != name:
            item.fail(f"the operator {shown(name)} cannot be called from Python")
        if not self._permits(found):
            item.fail(*self._permits.refusal(found))
        return found

    def _unknown(self, item: Item, name: str) -> None:
        namespace = name.partition("::")[0]
        registered = torch._C._dispatch_get_all_op_names()
        if any(other.startswith(f"{namespace}::") for other in registered):
            fix = f"run with the version that the file was written with: {self._producer}"
            if namespace not in ("aten", "prims", "prim"):
                fix = f"import the version of the library that registers {name} before loading"
        else:
            fix = f"import the library that registers {shown(namespace)} before loading"
        item.fail(f"the operator {shown(name)} is not registered in this process", fix)


def require_name(target: Any, where: str) -> str:
    name = name_of(target)
    if name is None:
        raise SerializationError(
            f"a call of {target} cannot be saved: it is neither an operator nor one of the "
            "functions on sizes that files know",
            where=where,
        )
    return name
