"""Normalises calls in a graph: arguments by keyword, binary functions as operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from graphport.arguments import FLAG, check_arguments
from graphport.errors import GraphError, InputError
from graphport.fx.annotate import AnnotateTypesWithSchema
from graphport.fx.graphs import copy_graph_module, locate_node, require_graph_module
from graphport.fx.schemas import (
    ArgsKwargsPair,
    infer_type,
    normalize_function,
    normalize_module,
    require_submodule,
    restore_schema_names,
)
from graphport.types import NodeTarget

_RESERVED_NAME = "from"  # an argument of random_ and uniform_ that Python cannot name


class NormalizeArgs:
    """A graph whose calls have all their arguments by name, defaults included.

    Calls of functions, of torch's own modules and, where a node is known to be a tensor, of its
    methods are rewritten. Overloads are told apart by types, which `ShapeProp` or export have noted
    on the nodes; calls that stay undecided, and those of functions with any number of arguments,
    are left as they are. Each target gets the names that it accepts: `self` for an overload,
    `input` for a function.

        >>> gm = torch.fx.symbolic_trace(lambda x: torch.sum(x, 0))
        >>> print(NormalizeArgs(gm).transform().code.strip())
        def forward(self, x):
            sum_1 = torch.sum(input = x, dim = 0, keepdim = False, dtype = None);  x = None
            return sum_1
    """

    @check_arguments(normalize_to_only_use_kwargs=FLAG)
    def __init__(self, module: GraphModule, normalize_to_only_use_kwargs: bool = True) -> None:
        require_graph_module(module)
        self.module = module
        self.only_kwargs = normalize_to_only_use_kwargs

    def transform(self) -> GraphModule:
        new = copy_graph_module(self.module)
        for node in new.graph.nodes:
            found = self._normalize_node(new, node)
            if found is not None and _RESERVED_NAME not in found.kwargs:
                node.args, node.kwargs = found
        new.recompile()
        return new

    def _normalize_node(self, gm: GraphModule, node: Node) -> ArgsKwargsPair | None:
        try:
            if node.op == "call_function":
                return self._function(node.target, node)
            if node.op == "call_method":
                return self._method(node)
            if node.op == "call_module":
                return self._module(gm, node)
        except GraphError as error:
            if node.op == "call_module":
                raise
            del error  # Overloads that no type decides between: the call is good as it is.
        except InputError as error:
            error.add_location(locate_node(node))
            raise
        return None

    def _function(self, target: NodeTarget, node: Node) -> ArgsKwargsPair | None:
        found = normalize_function(
            target, node.args, node.kwargs, normalize_to_only_use_kwargs=self.only_kwargs
        )
        return found and ArgsKwargsPair(found.args, restore_schema_names(target, found.kwargs))

    def _method(self, node: Node) -> ArgsKwargsPair | None:
        """Everything but the tensor itself by name."""
        hint = infer_type(node.args[0])
        if not isinstance(hint, type) or not issubclass(hint, torch.Tensor):
            return None
        method = getattr(torch.Tensor, str(node.target), None)
        if not callable(method):
            return None
        found = normalize_function(
            method, node.args, node.kwargs, normalize_to_only_use_kwargs=self.only_kwargs
        )
        if found is None or not self.only_kwargs:
            return found
        (_, tensor), *others = found.kwargs.items()
        return ArgsKwargsPair((tensor,), dict(others))

    def _module(self, gm: GraphModule, node: Node) -> ArgsKwargsPair | None:
        if self.only_kwargs and _has_positional_hooks(require_submodule(gm, str(node.target))):
            return None
        return normalize_module(gm, str(node.target), node.args, node.kwargs, self.only_kwargs)


def _has_positional_hooks(module: nn.Module) -> bool:
    """Whether hooks see the positional arguments only; those that torch adds ignore them."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    seeing = [
        *(h for i, h in before.items() if i not in module._forward_pre_hooks_with_kwargs),
        *(h for i, h in after.items() if i not in module._forward_hooks_with_kwargs),
    ]
    return not all(type(h).__module__.startswith("torch.nn.utils.") for h in seeing)


class NormalizeOperators(AnnotateTypesWithSchema):
    """A graph in which `torch.add(x, y)` and the like are `x + y`, and calls carry their types.

    Calls that say more than the operator can, such as `torch.add(x, y, alpha=2)` or
    `torch.div(x, y, rounding_mode="floor")`, are left as they are, and so are overloads of an
    exported program.
    """

    binary_magic_method_remap: dict[Callable[..., Any], Callable[[Any, Any], Any]] = {
        torch.add: operator.add,
        torch.mul: operator.mul,
        torch.multiply: operator.mul,
        torch.sub: operator.sub,
        torch.subtract: operator.sub,
        torch.div: operator.truediv,
        torch.divide: operator.truediv,
        torch.true_divide: operator.truediv,
        torch.floor_divide: operator.floordiv,
        torch.remainder: operator.mod,
        torch.eq: operator.eq,
        torch.ne: operator.ne,
        torch.not_equal: operator.ne,
        torch.lt: operator.lt,
        torch.less: operator.lt,
        torch.le: operator.le,
        torch.less_equal: operator.le,
        torch.gt: operator.gt,
        torch.greater: operator.gt,
        torch.ge: operator.ge,
        torch.greater_equal: operator.ge,
    }

    def rewrite(self, gm: GraphModule, node: Node) -> None:
        super().rewrite(gm, node)
        if node.op != "call_function" or node.target not in self.binary_magic_method_remap:
            return
        operands = _extract_operands(node)
        if operands is not None:
            node.target = self.binary_magic_method_remap[node.target]
            node.args, node.kwargs = operands, {}


_NEUTRAL_KEYWORDS = {"alpha": 1, "rounding_mode": None, "out": None}
"""Keywords of binary functions at which an operator computes the same."""


def _extract_operands(node: Node) -> tuple[Any, Any] | None:
    """Both sides of a call that an operator can stand for."""
    named = dict(node.kwargs)
    sides = [*node.args]
    for name in ("input", "other")[len(sides) :]:
        if name in named:
            sides.append(named.pop(name))
    for name, value in named.items():
        if name not in _NEUTRAL_KEYWORDS or not _equals(value, _NEUTRAL_KEYWORDS[name]):
            return None
    # Of two numbers, a function of torch makes a tensor.
    if len(sides) != 2 or all(map(_is_number, sides)):
        return None
    return sides[0], sides[1]


def _is_number(side: object) -> bool:
    hint = infer_type(side)
    return isinstance(hint, type) and issubclass(hint, Number)


def _equals(value: object, wanted: object) -> bool:
    return (
        not isinstance(value, Node)
        and type(value) in (int, float, type(None))
        and (value == wanted)
    )
