"""Types on nodes: what calls return, by their schemas and signatures, and what indexing gives.

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
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.arguments import FLAG, GRAPH, takes
from graphport.errors import GraphError
from graphport.fx.copying import copied, require_graph_module
from graphport.fx.module_arguments import is_standard, submodule
from graphport.fx.nodes import place_of
from graphport.fx.schemas import possible_schemas
from graphport.fx.signatures import python_function, python_type, return_type
from graphport.fx.type_hints import resolved


class AnnotateTypesWithSchema:
    """A graph whose nodes carry the types that their targets promise.

    These are the types that operators return by their schemas and functions of
    `torch.nn.functional` by their annotations, those of torch's own modules, and those of
    attributes. Functions whose result depends on a flag are decided by it.

        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        >>> [(n.name, n.type) for n in AnnotateTypesWithSchema(gm).transform().graph.nodes]
        [('input_1', None), ('_0', <class 'torch.Tensor'>), ('output', None)]
    """

    @takes(annotate_functionals=FLAG, annotate_modules=FLAG, annotate_get_attrs=FLAG)
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
        new = copied(self.module)
        for node in new.graph.nodes:
            self.rewrite(new, node)
        new.recompile()
        return new

    def rewrite(self, gm: GraphModule, node: Node) -> None:
        """What happens to each node of the new graph."""
        node.type = resolved(node.type)  # text is nothing that TorchScript reads
        if node.type is None and self.wanted.get(node.op, False):
            node.type = _PROMISES[node.op](gm, node)


def _of_function(gm: GraphModule, node: Node) -> Any:
    target: Any = node.target
    returned = {repr(t): t for t in map(return_type, _schemas(node))}
    if returned:
        return next(iter(returned.values())) if len(returned) == 1 else None
    if getattr(target, "__module__", None) != "torch.nn.functional":
        return None
    function = python_function(target, node.args, node.kwargs)
    return None if function is None else _annotated_return(function)


def _schemas(node: Node) -> list[Any]:
    return possible_schemas(node.target, node.args, node.kwargs) if callable(node.target) else []


def _of_module(gm: GraphModule, node: Node) -> Any:
    module = submodule(gm, str(node.target))
    return _annotated_return(module.forward) if is_standard(module) else None


def _of_attribute(gm: GraphModule, node: Node) -> Any:
    value: Any = gm
    for name in str(node.target).split("."):
        if not hasattr(value, name):
            raise GraphError(
                f"node {node.name} reads {node.target!r}, which the module does not have",
                where=place_of(node),
                fix=f"gm.register_buffer({node.target!r}, tensor), or erase the node",
            )
        value = getattr(value, name)
    if isinstance(value, nn.Module):
        return None
    found = torch._C._jit_try_infer_type(value)
    return python_type(found.type()) if found.success() else None


_PROMISES: dict[str, Callable[[GraphModule, Node], Any]] = {
    "call_function": _of_function,
    "call_module": _of_module,
    "get_attr": _of_attribute,
}


def _annotated_return(function: Callable[..., Any]) -> Any:
    """The annotation of what a function returns; None if it has none."""
    try:
        found = inspect.signature(function, eval_str=True).return_annotation
    except (ValueError, TypeError, NameError):
        return None
    return None if found in (inspect.Signature.empty, Any) else found


# Indexing


@takes(graph=GRAPH)
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
            node.type = _part(_not_none(resolved(container.type)), node)


def _not_none(hint: Any) -> Any:
    """What an Optional holds: None cannot be indexed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [t for t in typing.get_args(hint) if t is not type(None)]
        return others[0] if len(others) == 1 else hint
    return hint


def _part(container: Any, node: Node) -> Any:
    """The type of a part of a container; None if it is not known."""
    index = node.args[1]
    fields = _fields(container)
    if node.target is builtins.getattr:
        return fields.get(index) if isinstance(index, str) else None
    if fields:
        return _of_several(container, list(fields.values()), index, node)
    if container in (typing.Tuple, typing.List, typing.Dict):  # noqa: UP006  (of anything)
        return None
    origin, parts = typing.get_origin(container), list(typing.get_args(container))
    if origin is list and len(parts) == 1:
        return container if isinstance(index, slice) else parts[0]
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return container if isinstance(index, slice) else parts[0]
    if origin is tuple:
        return _of_several(container, [p for p in parts if p != ()], index, node)
    if origin is dict:
        return parts[1]
    return int if container is torch.Size and isinstance(index, int) else None


def _fields(container: Any) -> dict[str, Any]:
    """The fields of a named tuple with their types; none, if it does not have them all."""
    if not (isinstance(container, type) and issubclass(container, tuple)):
        return {}
    names = getattr(container, "_fields", ())
    try:
        hints = typing.get_type_hints(container)
    except NameError:  # written as text, with names that only its function knew
        hints = container.__annotations__
    return {n: hints[n] for n in names} if names and hints.keys() >= set(names) else {}


def _of_several(container: Any, parts: list[Any], index: Any, node: Node) -> Any:
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
            where=place_of(node),
        )
    return parts[index]
