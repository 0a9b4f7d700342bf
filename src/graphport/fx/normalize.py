"""Normalises calls in a graph: arguments by keyword, binary functions as operators, types of nodes.

Types are written as TorchScript reads them, so that an annotated graph can be scripted. A type that
a node has already is kept.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import types
import typing
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.arguments import FLAG, GRAPH, check_arguments
from graphport.compat.torch import jit_try_infer_type
from graphport.errors import GraphError, InputError
from graphport.fx.graphs import copy_graph_module, locate_node, require_graph_module
from graphport.fx.schemas import (
    ArgsKwargsPair,
    infer_type,
    is_torch_module,
    match_schemas,
    normalize_function,
    normalize_module,
    python_type,
    require_submodule,
    resolve_python_function,
    resolve_type_hint,
    restore_schema_names,
    return_type,
)
from graphport.types import NodeTarget


class AnnotateTypesWithSchema:
    """A graph whose nodes carry the types that their targets promise.

    These are the types that operators return by their schemas and functions of
    `torch.nn.functional` by their annotations, those of torch's own modules, and those of
    attributes. Functions whose result depends on a flag are decided by it.

        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        >>> [(n.name, n.type) for n in AnnotateTypesWithSchema(gm).transform().graph.nodes]
        [('input_1', None), ('_0', <class 'torch.Tensor'>), ('output', None)]
    """

    @check_arguments(annotate_functionals=FLAG, annotate_modules=FLAG, annotate_get_attrs=FLAG)
    def __init__(
        self,
        module: GraphModule,
        annotate_functionals: bool = True,
        annotate_modules: bool = True,
        annotate_get_attrs: bool = True,
    ) -> None:
        require_graph_module(module)
        self.module = module
        self.wanted = {
            "call_function": annotate_functionals,
            "call_module": annotate_modules,
            "get_attr": annotate_get_attrs,
        }

    def transform(self) -> GraphModule:
        new = copy_graph_module(self.module)
        for node in new.graph.nodes:
            self.rewrite(new, node)
        new.recompile()
        return new

    def rewrite(self, gm: GraphModule, node: Node) -> None:
        """What happens to each node of the new graph."""
        node.type = resolve_type_hint(node.type)  # text is nothing that TorchScript reads
        if node.type is None and self.wanted.get(node.op, False):
            node.type = _TYPE_RULES[node.op](gm, node)


def _infer_function_type(gm: GraphModule, node: Node) -> object:
    target: Any = node.target
    returned = {repr(t): t for t in map(return_type, _match_node_schemas(node))}
    if returned:
        return next(iter(returned.values())) if len(returned) == 1 else None
    if getattr(target, "__module__", None) != "torch.nn.functional":
        return None
    function = resolve_python_function(target, node.args, node.kwargs)
    return None if function is None else _read_return_annotation(function)


def _match_node_schemas(node: Node) -> list[object]:
    return match_schemas(node.target, node.args, node.kwargs) if callable(node.target) else []


def _infer_module_type(gm: GraphModule, node: Node) -> object:
    module = require_submodule(gm, str(node.target))
    return _read_return_annotation(module.forward) if is_torch_module(module) else None


def _infer_attribute_type(gm: GraphModule, node: Node) -> object:
    value: Any = gm
    for name in str(node.target).split("."):
        if not hasattr(value, name):
            raise GraphError(
                f"node {node.name} reads {node.target!r}, which the module does not have",
                where=locate_node(node),
                fix=f"gm.register_buffer({node.target!r}, tensor), or erase the node",
            )
        value = getattr(value, name)
    if isinstance(value, nn.Module):
        return None
    found = jit_try_infer_type(value)
    return python_type(found.type()) if found.success() else None


_TYPE_RULES: dict[str, Callable[[GraphModule, Node], Any]] = {
    "call_function": _infer_function_type,
    "call_module": _infer_module_type,
    "get_attr": _infer_attribute_type,
}


def _read_return_annotation(function: Callable[..., object]) -> object:
    """The annotation of what a function returns; None if it has none."""
    try:
        found = inspect.signature(function, eval_str=True).return_annotation
    except (ValueError, TypeError, NameError):
        return None
    return None if found in (inspect.Signature.empty, Any) else found


# Indexing


@check_arguments(graph=GRAPH)
def annotate_getitem_nodes(graph: Graph) -> None:
    """Type what indexing gives, from the types of tuples, lists and named tuples that are indexed.

    Also `pair[1:]`, and `named.field`. An index that a tuple does not have is a `GraphError`.

        >>> def f(pair: tuple[torch.Tensor, list[int]]):
        ...     return pair[1][0]
        >>> gm = torch.fx.symbolic_trace(f)
        >>> annotate_getitem_nodes(gm.graph)
        >>> [n.type for n in gm.graph.nodes if n.op == "call_function"]
        [list[int], <class 'int'>]
    """
    for node in graph.nodes:
        if node.target not in (operator.getitem, builtins.getattr) or node.type is not None:
            continue
        container = node.args[0]
        if isinstance(container, Node) and container.type is not None:
            node.type = _infer_getitem_type(
                _strip_optional(resolve_type_hint(container.type)), node
            )


def _strip_optional(hint: object) -> object:
    """What an Optional holds: None cannot be indexed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [t for t in typing.get_args(hint) if t is not type(None)]
        return others[0] if len(others) == 1 else hint
    return hint


def _infer_getitem_type(container: object, node: Node) -> object:
    """The type of a part of a container; None if it is not known."""
    index = node.args[1]
    fields = _read_field_types(container)
    if node.target is builtins.getattr:
        return fields.get(index) if isinstance(index, str) else None
    if fields:
        return _infer_tuple_item_type(container, list(fields.values()), index, node)
    if container in (typing.Tuple, typing.List, typing.Dict):  # noqa: UP006  (of anything)
        return None
    origin, parts = typing.get_origin(container), list(typing.get_args(container))
    if origin is list and len(parts) == 1:
        return container if isinstance(index, slice) else parts[0]
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return container if isinstance(index, slice) else parts[0]
    if origin is tuple:
        return _infer_tuple_item_type(container, [p for p in parts if p != ()], index, node)
    if origin is dict:
        return parts[1]
    return int if container is torch.Size and isinstance(index, int) else None


def _read_field_types(container: object) -> dict[str, object]:
    """The fields of a named tuple with their types; none, if it does not have them all."""
    if not (isinstance(container, type) and issubclass(container, tuple)):
        return {}
    names = getattr(container, "_fields", ())
    try:
        hints = typing.get_type_hints(container)
    except NameError:  # written as text, with names that only its function knew
        hints = container.__annotations__
    return {n: hints[n] for n in names} if names and hints.keys() >= set(names) else {}


def _infer_tuple_item_type(
    container: object, parts: list[object], index: Any, node: Node
) -> object:
    if isinstance(index, slice):
        if any(isinstance(i, Node) for i in (index.start, index.stop, index.step)):
            return None
        return typing.Tuple[tuple(parts[index])]  # noqa: UP006  (as TorchScript reads it)
    if not isinstance(index, int):
        return parts[0] if parts and all(p == parts[0] for p in parts) else None
    if not -len(parts) <= index < len(parts):
        raise GraphError(
            f"node {node.name} takes element {index} of {node.args[0]}, a {container} of "
            f"{len(parts)} elements",
            where=locate_node(node),
        )
    return parts[index]


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
