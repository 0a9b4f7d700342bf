"""Whether a call can be written down: enough arguments, and nodes where nodes are needed.

What an operator does with its arguments shows when the program runs. Before that, arguments are
counted by those who write Python for a call, and views are followed to what they show.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from graphport.program.bounds import CHECKS, arguments
from graphport.program.files.items import Item

_UNARY = {operator.neg, operator.pos, operator.abs, operator.invert, operator.not_, operator.index}


@functools.cache
def _parameters(op: OpOverload) -> tuple[int, frozenset[str], tuple[str, ...], bool]:
    """How many positional ones, all names, those that are needed, and whether it returns a view."""
    arguments = op._schema.arguments
    positional = sum(not a.kwarg_only for a in arguments)
    needed = tuple(a.name for a in arguments if not a.has_default_value())
    is_view = any(r.alias_info is not None for r in op._schema.returns)
    return positional, frozenset(a.name for a in arguments), needed, is_view


def check_call(item: Item, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(target, OpOverload):
        positional, known, needed, is_view = _parameters(target)
        given = {a.name for a in target._schema.arguments[: len(args)]} | kwargs.keys()
        wrong = (
            len(args) > positional
            or not kwargs.keys() <= known
            or not given.issuperset(needed)
            or len(given) < len(args) + len(kwargs)
        )
        if wrong:
            item.fail(f"the arguments do not fit {target._schema}")
        if target in CHECKS:
            _check_tensors(item, target, arguments(target, args, kwargs))
        if is_view and not (args and isinstance(args[0], Node)):
            item.fail(f"the first argument of {target} is a node")
    elif getattr(target, "__module__", "") == "_operator":
        if len(args) != (1 if target in _UNARY else 2) or kwargs:
            item.fail(f"the arguments do not fit operator.{target.__name__}")
        if target is operator.getitem and not isinstance(args[0], Node):
            item.fail("an item is taken of a node")


def _check_tensors(item: Item, op: OpOverload, args: tuple[Any, ...]) -> None:
    """Nodes where an operator takes tensors, numbers where it takes numbers."""
    for argument, x in zip(op._schema.arguments, args, strict=True):
        kind = str(argument.type)
        is_list = kind.startswith("List[")
        parts = x if is_list and isinstance(x, (list, tuple)) else [x]
        wanted = Node if "Tensor" in kind else (Node, int, float, type(None))
        optional = kind.startswith("Optional[") and x is None
        if (is_list and parts is not x) or not (
            optional or all(isinstance(part, wanted) for part in parts)
        ):
            item.fail(f"the argument {argument.name} of {op} is not of the type {kind}")
