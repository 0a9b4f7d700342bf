"""Sizes of nodes in bytes, replacement of targets, module attributes for backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import GraphModule, Node

from graphport import errors
from graphport.arguments import ARGS, GRAPH_MODULE, NONE, check_arguments
from graphport.symbolic import bridge
from graphport.tensors.abstract import get_val, has_val


class size_bytes(NamedTuple):
    """What a node takes: its result, and its result with the parameters of the module it calls."""

    output_size: int
    total_size: int


@check_arguments(fx_module=GRAPH_MODULE, args=ARGS | NONE)
def get_size_of_all_nodes(fx_module: GraphModule, args: Sequence[object] | None = None) -> None:
    """Set `node.size_bytes` of every node but the output.

    With `args`, shapes are found by running the module on them. Without, they are those that
    `ShapeProp` found before, or that an exported program knows, with dynamic sizes as in its
    example. Of several results the sizes are added up; what is no tensor takes nothing.

        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 5)))
        >>> get_size_of_all_nodes(gm, [torch.rand(2, 4)])
        >>> [n.size_bytes for n in gm.graph.nodes if n.op == "call_module"]
        [size_bytes(output_size=40, total_size=140)]
    """
    if args is not None:
        from graphport.fx import ShapeProp

        ShapeProp(fx_module).propagate(*args)
    modules = dict(fx_module.named_modules(remove_duplicate=False))
    for node in fx_module.graph.nodes:
        if node.op == "output":
            continue
        output = sum(
            _count_bytes(node, part) for part in _iter_tensors(_get_metadata(node, modules))
        )
        own = modules[node.target].parameters() if node.op == "call_module" else ()
        node.size_bytes = size_bytes(output, output + sum(p.numel() * p.itemsize for p in own))


def _get_metadata(node: Node, modules: dict[str, nn.Module]) -> object:
    if "tensor_meta" in node.meta:
        return node.meta["tensor_meta"]
    if has_val(node):
        return get_val(node)
    if "example_value" in node.meta:
        return node.meta["example_value"]
    # Shape propagation notes the type of what is no tensor. Graphs of control flow are no value.
    if "type" in node.meta or (node.op == "get_attr" and node.target in modules):
        return None
    raise errors.GraphError(
        f"the shape of the node {node.name} is not known",
        where=node.format_node(),
        fix="get_size_of_all_nodes(graph_module, example_args)",
    )


def _iter_tensors(value: object) -> Iterator[object]:
    """The tensors in a value, or what metadata says of them."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # a tensor, or a tuple about one
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _iter_tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _iter_tensors(part)


def _count_bytes(node: Node, tensor: Any) -> int:
    itemsize: int = tensor.dtype.itemsize
    return itemsize * math.prod(_get_size_hint(node, size) for size in tensor.shape)


def _get_size_hint(node: Node, size: Any) -> int:
    if not bridge.is_symbolic(size):
        return int(size)
    expression = bridge.from_torch(size)
    example = expression.scope.hint(expression)
    if example is None:
        raise errors.GraphError(
            f"the node {node.name} has a size {size} that depends on data",
            where=node.format_node(),
            fix="get_size_of_all_nodes(graph_module, example_args)",
        )
    return int(example)


_CALLS = ("call_function", "call_method", "call_module")


@check_arguments(fx_module=GRAPH_MODULE)
def replace_target_nodes_with(
    fx_module: GraphModule, old_op: str, old_target: object, new_op: str, new_target: object
) -> None:
    """Make all calls of one target calls of another, with the arguments that they have.

    >>> gm = torch.fx.symbolic_trace(lambda a, b: torch.add(a, b))
    >>> replace_target_nodes_with(gm, "call_function", torch.add, "call_function", torch.mul)
    >>> gm(torch.tensor(3), torch.tensor(4))
    tensor(12)
    """
    for op in (old_op, new_op):
        if not isinstance(op, str) or op not in (*_CALLS, "get_attr"):
            raise errors.InputError(
                f"{op!r} is no kind of node that has a target to replace",
                fix=f"one of {', '.join((*_CALLS, 'get_attr'))}",
            )
    # FX writes calls by name, which a module or a partial does not have.
    if new_op == "call_function" and not (callable(new_target) and hasattr(new_target, "__name__")):
        raise errors.InputError(f"a call_function needs a function, not {new_target!r}")
    if new_op != "call_function" and not isinstance(new_target, str):
        raise errors.InputError(f"a {new_op} needs a name, not {new_target!r}")
    if new_op == "call_module":
        try:
            fx_module.get_submodule(new_target)
        except AttributeError:
            raise errors.GraphError(
                f"the module has no submodule {new_target!r} to call",
                fix=f"graph_module.add_submodule({new_target!r}, module)",
            ) from None
    for node in fx_module.graph.nodes:
        if node.op == old_op and node.target == old_target:
            node.op, node.target = new_op, new_target
    fx_module.recompile()


# What a backend asks of modules whose constructors take more, or that keep more, than it needs.
_ATTRIBUTES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight", "bias"),
    nn.AdaptiveAvgPool2d: (),
    nn.ReLU: ("inplace",),
    nn.MaxPool2d: tuple("kernel_size stride padding dilation return_indices ceil_mode".split()),
    **dict.fromkeys(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        tuple("weight bias kernel_size stride padding dilation groups padding_mode".split()),
    ),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        ("weight", "bias", "running_mean", "running_var", "eps"),
    ),
}


@check_arguments(fx_module=GRAPH_MODULE)
def lift_lowering_attrs_to_nodes(fx_module: GraphModule) -> None:
    """Set `node.attrs_for_lowering` where a module of `torch.nn` is called, inner graphs included.

    It has the module's type as `name`, and its parameters, buffers and settings by their names.

        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
        >>> lift_lowering_attrs_to_nodes(gm)
        >>> [n.attrs_for_lowering for n in gm.graph.nodes if n.op == "call_module"]
        [{'name': 'torch.nn.modules.activation.ReLU', 'inplace': False}]
    """
    for node in fx_module.graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        found: Any = fx_module
        for part in node.target.split("."):
            found = getattr(found, part)
        if isinstance(found, GraphModule):
            lift_lowering_attrs_to_nodes(found)
        elif node.op == "call_module":
            node.attrs_for_lowering = _collect_attributes(node, found)


def _collect_attributes(node: Node, module: nn.Module) -> dict[str, object]:
    names = _ATTRIBUTES.get(type(module))
    if names is None:
        if not type(module).__module__.startswith("torch.nn."):
            raise errors.GraphError(
                f"the node {node.name} calls {node.target}, a {torch.typename(module)}: its "
                "attributes for lowering are only known if it is a module of torch.nn",
                where=node.format_node(),
                fix="trace with a torch.fx.Tracer whose is_leaf_module returns False for it",
            )
        constants = getattr(type(module), "__constants__", ())
        names = tuple(dict.fromkeys((*module._parameters, *module._buffers, *constants)))
    return {"name": torch.typename(module), **{name: getattr(module, name) for name in names}}
