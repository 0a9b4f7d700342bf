"""Effects of operators: what they write to and alias, and inverses of views.

What a write through a view does to the tensor that is viewed, for each view operator: given the
base and a new value for the view, the new base. `emit` records an operator and returns its value;
sizes may be symbolic. A view that has no inverse of its own is inverted by numbering the elements
of the base and scattering, which holds for any view.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import OpOverload, OpOverloadPacket
from graphport.ops.registry import overloads
from graphport.ops.sizes import numel, wrap_dim
from graphport.tensors.abstract import Abstract, Size
from graphport.types import Args, Argument

Emit = Callable[..., Any]
Inverse = Callable[..., Any]

INVERSES: dict[OpOverload, Inverse] = {}


def inverse(*ops: OpOverload) -> Callable[[Inverse], Inverse]:
    def register(fn: Inverse) -> Inverse:
        for op in ops:
            INVERSES[op] = fn
        return fn

    return register


@inverse(aten.alias.default, aten.detach.default, aten.contiguous.default)
def same_value(emit: Emit, base: object, shape: Abstract, new: object) -> Argument:
    return new


@inverse(*overloads("view reshape _unsafe_view squeeze.default,dims,dim unsqueeze"))
def reshape(emit: Emit, base: object, shape: Abstract, new: Argument, *_: object) -> Argument:
    return emit(aten.reshape.default, new, list(shape.sizes))


@inverse(aten.permute.default)
def permute(emit: Emit, base: object, shape: Abstract, new: object, dims: list[int]) -> Argument:
    back = [0] * len(dims)
    for position, d in enumerate(dims):
        back[wrap_dim(d, shape.rank)] = position
    return emit(aten.permute.default, new, back)


@inverse(aten.transpose.int)
def transpose(
    emit: Emit, base: object, shape: Abstract, new: Argument, dim0: int, dim1: int
) -> Argument:
    return emit(aten.transpose.int, new, dim0, dim1)


@inverse(aten.t.default)
def t(emit: Emit, base: object, shape: Abstract, new: Argument) -> Argument:
    return emit(aten.t.default, new)


@inverse(aten.select.int)
def select(
    emit: Emit, base: Argument, shape: Abstract, new: Argument, dim: int, index: Size
) -> Argument:
    return emit(aten.select_scatter.default, base, new, dim, index)


@inverse(aten.slice.Tensor)
def slice_(emit: Emit, base: object, shape: Abstract, new: object, *bounds: object) -> Argument:
    return emit(aten.slice_scatter.default, base, new, *bounds)


@inverse(aten.diagonal.default)
def diagonal(emit: Emit, base: object, shape: Abstract, new: object, *where: object) -> Argument:
    return emit(aten.diagonal_scatter.default, base, new, *where)


@inverse(aten.view_as_real.default)
def view_as_real(emit: Emit, base: object, shape: Abstract, new: object) -> Argument:
    return emit(aten.view_as_complex.default, new)


@inverse(aten.view_as_complex.default)
def view_as_complex(emit: Emit, base: object, shape: Abstract, new: Argument) -> Argument:
    return emit(aten.view_as_real.default, new)


@inverse(aten.view.dtype)
def view_dtype(
    emit: Emit, base: object, shape: Abstract, new: object, dtype: torch.dtype
) -> Argument:
    return emit(aten.view.dtype, new, shape.dtype)


def scatter_view(
    emit: Emit, base: object, shape: Abstract, new: object, view: Callable[[Any], Any]
) -> Argument:
    """Number the elements of the base, view the numbers, and scatter by them."""
    total = numel(shape.sizes)
    numbers = emit(aten.arange.default, total, device=shape.device)
    places = view(emit(aten.reshape.default, numbers, list(shape.sizes)))
    flat = emit(aten.reshape.default, base, [-1])
    where = emit(aten.reshape.default, places, [-1])
    values = emit(aten.reshape.default, new, [-1])
    written = emit(aten.scatter.src, flat, 0, where, values)
    return emit(aten.reshape.default, written, list(shape.sizes))


def invert_view(
    emit: Emit, op: OpOverload, base: Argument, shape: Abstract, new: Argument, args: Args
) -> Argument:
    """The new base after the view `op(base, *args)` was given the value `new`."""
    own = INVERSES.get(op)
    if own is None:
        return scatter_view(emit, base, shape, new, lambda numbers: emit(op, numbers, *args))
    return own(emit, base, shape, new, *args)


# What calls of operators write to, and what their results may alias. Where schemas are silent,
# eager decides (`tests/ops/test_effects.py`).

STATISTICS: dict[str, str | None] = {
    "batch_norm": "training",
    "_batch_norm_impl_index": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "miopen_batch_norm": "training",
    "instance_norm": "use_input_stats",
    "batch_norm_update_stats": None,
    "batch_norm_gather_stats": None,
    "batch_norm_gather_stats_with_counts": None,
}
"""Write `running_mean` and `running_var`, undeclared, if an argument is set, or always."""

_UNDECLARED_VIEWS = frozenset(
    """
        _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short
        _unsafe_view alpha_dropout conj_physical data dropout feature_alpha_dropout feature_dropout
        lift pixel_shuffle pixel_unshuffle sum_to_size to_dense type_as unsafe_chunk unsafe_split
        unsafe_split_with_sizes
    """.split()
)
_UNDECLARED_VIEWS_OF_ALL = frozenset(
    """
        atleast_1d atleast_2d atleast_3d broadcast_tensors cartesian_prod einsum histogramdd
        meshgrid
    """.split()
)

CONTIGUOUS_RESULTS = frozenset(
    overloads("mm addmm bmm baddbmm linear matmul embedding index_select")
)
"""Their results are contiguous, whatever the strides of their operands."""


def may_alias_all(name: str) -> bool:
    """Whether results of an operator of this name may alias any argument."""
    return name in _UNDECLARED_VIEWS_OF_ALL


@cache
def may_alias(name: str) -> bool:
    """Whether results of an operator of this name may alias its first argument."""
    packet = getattr(aten, name, None)
    known = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
    return name in _UNDECLARED_VIEWS or any(
        r.alias_info is not None and not r.alias_info.is_write
        for overload in known
        for r in getattr(packet, overload)._schema.returns
    )


def find_mutated_arguments(node: Node) -> list[Node]:
    """What the call of an operator writes to."""
    op: Any = node.target
    given, packet = _bind_arguments(node), op.overloadpacket.__name__
    names = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    if packet in STATISTICS and (STATISTICS[packet] is None or given.get(STATISTICS[packet])):
        names += ["running_mean", "running_var"]
    return [n for name in names for n in collect_nodes(given.get(name))]


def find_aliased_arguments(node: Node) -> list[Node]:
    """What the result of an operator may alias."""
    op: Any = node.target
    packet, arguments = op.overloadpacket.__name__, op._schema.arguments
    if may_alias_all(packet):
        return node.all_input_nodes
    names = [a.name for a in arguments if a.alias_info is not None]
    if not any(r.alias_info is not None for r in op._schema.returns):
        names = [a.name for a in arguments[:1] if packet in _UNDECLARED_VIEWS]
    given = _bind_arguments(node)
    return [n for name in names for n in collect_nodes(given.get(name))]


def _bind_arguments(node: Node) -> dict[Any, Any]:
    op: Any = node.target
    names = (a.name for a in op._schema.arguments)
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def collect_nodes(x: object) -> list[Node]:
    if isinstance(x, (list, tuple)):
        return [n for part in x for n in collect_nodes(part)]
    return [x] if isinstance(x, Node) else []


# Finds the inputs that a graph in training form mutates, and clones what backward needs of them.


def find_mutated_inputs(module: GraphModule) -> set[str]:
    """Names of the mutated inputs, found through views and subgraphs."""
    found: set[Node] = set()
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    left = [target for node in calls for target in _find_written_nodes(module, node)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            if node.target is operator.getitem:
                left += collect_nodes(node.args[0])
            elif isinstance(node.target, OpOverload):
                left += find_aliased_arguments(node)
    return {n.name for n in found if n.op == "placeholder"}


def _find_written_nodes(module: GraphModule, node: Node) -> list[Node]:
    """What a call writes to, also within a subgraph."""
    if isinstance(node.target, OpOverload):
        return find_mutated_arguments(node)
    inner = [n for n in node.all_input_nodes if n.op == "get_attr"]
    if node.target is not higher_order.wrap_with_set_grad_enabled or not inner:
        return []
    graph: Any = getattr(module, str(inner[0].target))
    inside = find_mutated_inputs(graph)
    inputs = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    return [
        n
        for n, name in zip(node.args[2:], inputs, strict=True)
        if name in inside and isinstance(n, Node)
    ]


# Returns running statistics instead of writing them, and keeps what it was given for backward.
_FUNCTIONAL_BATCH_NORM = aten._native_batch_norm_legit_functional.default


def clone_running_statistics(graph: Graph) -> None:
    """Let batch norm have copies of statistics that are written to before its backward pass."""
    for node in graph.find_nodes(op="call_function", target=_FUNCTIONAL_BATCH_NORM):
        for i in (3, 4):
            old = node.args[i]
            if old.op in ("get_attr", "placeholder"):
                with graph.inserting_before(node):
                    new = graph.call_function(clone_for_backward, (old,))
                new.meta = dict(old.meta)
                node.update_arg(i, new)


def clone_for_backward(t: torch.Tensor) -> torch.Tensor:
    """A copy, where there may be a backward pass: also of what torch.compile makes."""
    return t.clone() if torch.is_grad_enabled() and not torch.compiler.is_exporting() else t


def find_base(node: Node) -> Node:
    """The base of a view, or of the result of a write."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shares = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not shares and node.target is not operator.getitem:
            break
        node = node.args[0]
    return node
