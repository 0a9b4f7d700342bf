"""`ep.run_decompositions()`: a program over core ATen, or over what a table gives.

The decompositions are PyTorch's own, run on abstract tensors. An operator that no table takes apart
and that is not composite is copied, metadata and all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from graphport.capture.assertions import hoist
from graphport.capture.layout import Layouts
from graphport.capture.recorder import Recorder
from graphport.capture.rewrite import Functionalisation, Rewriter, makes_symbols
from graphport.capture.sized_decompositions import SIZED
from graphport.capture.state import State
from graphport.capture.subgraphs import Subgraph
from graphport.capture.tracer import (
    COMPOSITE,
    SPECIAL,
    Handler,
    Tracer,
    decompose,
    inside,
    pure,
    view,
)
from graphport.capture.values import Value
from graphport.errors import ExportError, InputError, UnsupportedError
from graphport.ops import Abstract, OpInfo, info_of
from graphport.ops.abstract import permuted
from graphport.ops.shape import Fresh
from graphport.ops.sizes import broadcast, wrap_dim
from graphport.ops.tensor import AbstractTensor
from graphport.program import ExportedProgram, services
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, to_torch

aten = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Table = Mapping[OpOverload, Callable[..., Any]]

# Gradients stop where the program says so, also after its operators have been taken apart.
_KEPT = (aten.detach.default,)


@functools.cache
def core_table() -> Table:
    """What leads to core ATen."""
    from torch._decomp import _core_aten_decompositions_post_autograd

    table = _core_aten_decompositions_post_autograd()
    return {op: fn for op, fn in table.items() if op not in _KEPT}


@functools.cache
def _further() -> Table:
    """What torch can take apart besides, into ATen: its references go on to operators below."""
    from torch._decomp import decomposition_table

    return {
        op: fn for op, fn in decomposition_table.items()
        if isinstance(op, OpOverload) and not fn.__module__.startswith("torch._refs")
    }  # fmt: skip


def run(program: ExportedProgram, table: Table | None, preserve: tuple[Any, ...]) -> Any:
    for op in preserve:
        _check_preserved(op)
    chosen = core_table() if table is None else table

    def tracer(recorder: Recorder, state: State) -> Tracer:
        return Decomposer(recorder, state, chosen, frozenset(preserve))

    if program.dialect == "TRAINING":
        # A pass of its own: operators that are taken apart do not tell what shares memory.
        program = Functionalisation(program, Tracer).run()
    return Decomposition(program, tracer).run()


def take_apart(program: ExportedProgram, known: Callable[[Any], bool]) -> Any:
    """A program over operators that are `known`, as far as torch can take the others apart."""
    table = {op: fn for op, fn in {**_further(), **core_table()}.items() if not known(op)}

    def tracer(recorder: Recorder, state: State) -> Tracer:
        return Decomposer(recorder, state, table, _Known(known))

    return Decomposition(program, tracer).run()


class _Known:
    """The composite operators without effects among those that are known."""

    def __init__(self, known: Callable[[Any], bool]) -> None:
        self.known = known

    def __contains__(self, op: Any) -> bool:
        info = info_of(op)
        return info.composite and not info.mutated and op not in _NUMBERS and self.known(op)


class Decomposition(Rewriter):
    """Takes composite operators and those of a table apart."""

    def visit(self, node: Node) -> Any:
        made = super().visit(node)
        unsure = any(map(self._is_unsure, pytree.tree_leaves(made)))
        if not unsure or _keeps_layout(node, made) or not _is_viewed(node):
            return made
        with self.recorder.inheriting(node):
            return pytree.tree_map(self._in_order, made)

    def _is_unsure(self, new: Any) -> bool:
        is_tensor = isinstance(new, Node) and isinstance(new.meta.get("val"), AbstractTensor)
        return is_tensor and not self.tracer.layouts.is_certain(new)

    def _in_order(self, new: Any) -> Any:
        """A result as the whole operator lays it out, which the program takes for granted.

        Copied here and not where it is viewed: what shares memory with it goes on to do so.
        """
        if not self._is_unsure(new):
            return new
        emit = self.recorder.emit
        return emit(aten.clone.default, new, memory_format=torch.contiguous_format)

    def _finish(self) -> ExportedProgram:
        hoist(self.recorder.graph)
        return super()._finish()

    def _subgraph(self, reference: Node, module: GraphModule) -> Subgraph:
        sub = super()._subgraph(reference, module)
        hoist(sub.frame.graph)
        return sub

    def keeps(self, node: Node) -> bool:
        if not isinstance(node.target, OpOverload):
            return True
        if self.tracer.keeps(node.target):
            return makes_symbols(node, self.recorder) or not any(
                map(self._lies_otherwise, node.all_input_nodes)
            )
        return node.target in _NOT_EMPTY and any(map(_may_be_empty, node.all_input_nodes))

    def _lies_otherwise(self, old: Node) -> bool:
        """Whether a value has another memory layout than in the program.

        What an operator is taken apart into may lay its result out differently: views of it that
        the program takes for granted are then to be found anew.
        """
        new, val = self.new[old], old.meta.get("val")
        if not isinstance(new, Node) or not isinstance(val, AbstractTensor):
            return False
        now = new.meta["val"]
        return now is not val and now._abstract.strides != val._abstract.strides

    def reasons_to_keep(self, node: Node) -> tuple[type[Exception], ...]:
        """Kernels of torch that ask for data, or for plain sizes; a user's table may not fail."""
        own = self.tracer.table.get(node.target) in (
            core_table().get(node.target), _further().get(node.target)
        )  # fmt: skip
        return (*super().reasons_to_keep(node), *(_FAILURES if own else ()))


def _keeps_layout(node: Node, made: Any) -> bool:
    """Whether what stands for a node hands the layout of its operands on as the node does.

    An operator that is taken apart may be one that gives its result one layout, whatever that of
    its operands. It is asked about operands whose dims lie in memory the other way round.
    """
    if not isinstance(node.target, OpOverload):
        return True
    info, whole = info_of(node.target), isinstance(made, Node) and made.target is node.target
    if whole or info.view or info.rule is None or torch.Tag.pointwise in node.target.tags:
        return True
    try:
        out = info.rule(*map_arg(node.args, _turned), **map_arg(node.kwargs, _turned))
    except ExportError:
        return False
    found = [a for a in pytree.tree_leaves(out) if isinstance(a, Abstract) and a.rank > 1]
    return not found or not all(a.is_contiguous for a in found)


def _is_viewed(node: Node) -> bool:
    """Whether the program takes a view of a value for possible, or of what is computed from it."""
    waiting, seen = [node], {node}
    while waiting:
        users = [n for n in waiting.pop().users if n not in seen]
        if any(n.target is aten.view.default for n in users):
            return True
        seen.update(users)
        waiting.extend(users)
    return False


def _turned(node: Node) -> Any:
    """A value as rules take it; a tensor whose dims lie in memory the other way round."""
    val = node.meta.get("val")
    if not isinstance(val, AbstractTensor):
        return from_torch(val) if isinstance(val, _SYMBOLIC) else val
    a = val._abstract
    return Abstract(a.sizes, a.dtype, a.device, permuted(a.sizes, list(range(a.rank))[::-1]))


class Decomposer(Tracer):
    """A tracer that takes apart what it can, as long as it is not to be preserved."""

    def __init__(
        self, recorder: Recorder, state: State, table: Table, preserve: Container[Any]
    ) -> None:
        super().__init__(recorder, state)
        self.table = table
        self.preserve = preserve
        self.layouts = Layouts(state)

    def keeps(self, op: OpOverload) -> bool:
        """Whether an operator stays as it is."""
        return self._part(info_of(op)) is None

    def _part(self, info: OpInfo) -> Handler | None:
        """How an operator is taken apart."""
        op = info.op
        if op in self.preserve or op in _KEPT:
            return None
        if op in SIZED and self._is_by_torch(info):
            return sized
        if op in self.table:
            return by_table
        if op in _OWN:
            return _OWN[op]
        return decompose if info.composite and op not in _NUMBERS else None

    def _is_by_torch(self, info: OpInfo) -> bool:
        """Whether an operator is taken apart, and by a formula of torch's."""
        own = self.table.get(info.op)
        return info.composite if own is None else own is core_table().get(info.op)

    def _choose(self, op: Any) -> tuple[Handler, OpInfo]:
        info = info_of(op)
        if op in self.preserve:
            return (pure if info.rule is not None else SPECIAL[COMPOSITE]), info
        if op in _INNER:
            return _INNER[op], info
        if not info.mutated and op not in _STRUCTURAL:
            part = self._part(info)
            if part is not None:
                return part, info
        return super()._choose(op)


def by_table(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    result = inside(tracer, tracer.table[info.op], args, kwargs)
    return pure(tracer, info, args, kwargs) if result is NotImplemented else result


def sized(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """By our own formula; by torch's for what it is not written for."""
    result = inside(tracer, SIZED[info.op], args, kwargs)
    if result is not NotImplemented:
        return result
    part = by_table if info.op in tracer.table else decompose
    return part(tracer, info, args, kwargs)


def reshape(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """Core ATen has `view`, which fails on a layout that it cannot see; there a copy goes first."""
    base = tracer.value(args[0])
    sizes = tracer.lower(args[1])
    node = tracer.read(base)
    out = info.rule(base.abstract, sizes)
    if type(out) is Fresh or not tracer.layouts.is_certain(node):
        node = tracer.recorder.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
    made = tracer.recorder.emit(aten.view.default, node, sizes)
    return tracer.hold(Value(made.meta["val"]._abstract, made))


def attention(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """As arithmetic: which kernel torch would choose is a question of the machine."""
    names = [a.name for a in info.op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    q, k, v = (given.pop(n) for n in ("query", "key", "value"))
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        kept, left_out = (tracer.call(aten.full.default, [], x, dtype=q.dtype, device=q.device)
                          for x in (0.0, -math.inf))  # fmt: skip
        given["attn_mask"] = tracer.call(aten.where.self, mask, kept, left_out)
    return tracer.call(aten._scaled_dot_product_attention_math.default, q, k, v, **given)[0]


def batch_norm(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """Core ATen tells by the operator whether statistics are read or written."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if training or mean is None:
        return SPECIAL[info.op](tracer, info, args, kwargs)
    op = aten._native_batch_norm_legit_no_training.default
    return tracer.call(op, x, weight, bias, mean, var, momentum, eps)


def expand(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """Kernels expand to what is there already, to be on the safe side."""
    have, wanted = tracer.value(args[0]).abstract.sizes, tracer.lower(args[1])
    if len(have) == len(wanted) and all(map(tracer.scope.same, have, wanted)):
        return args[0]
    return view(tracer, info, args, kwargs)


def inner_view(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """A view that a decomposition makes of what it believes to be in order."""
    return reshape(tracer, info_of(aten.reshape.default), args, kwargs)


def group_norm(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """The kernel wants its input dense, which its caller has seen to at the example sizes only.

    At a batch of 1 even a view of the same kind may be laid out otherwise.
    """
    x, *rest = args
    value = tracer.value(x)
    if not _is_dense_always(tracer, tracer.read(value)):
        last = value.abstract.is_channels_last and not value.abstract.is_contiguous
        order = torch.channels_last if last else torch.contiguous_format
        x = tracer.call(aten.clone.default, x, memory_format=order)
    return pure(tracer, info, (x, *rest), kwargs)


def _is_dense_always(tracer: Any, node: Node) -> bool:
    """Whether a value is in the order of its dims, or made by convolutions, at any size."""
    waiting, seen = [node], {node}
    while waiting:
        top = waiting.pop()
        if top.target is aten.convolution.default or (
            tracer.layouts.is_certain(top) and top.meta["val"]._abstract.is_contiguous
        ):
            continue
        if not isinstance(top.target, OpOverload) or torch.Tag.pointwise not in top.target.tags:
            return False
        read = [n for n in top.all_input_nodes if isinstance(n.meta["val"], AbstractTensor)]
        waiting += [n for n in read if n not in seen]
        seen.update(read)
    return True


def max_pool1d(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """torch's kernel takes plain sizes only; as one row of two dims it is core ATen."""
    x, *windows, ceil_mode = (*args, *_DEFAULT_WINDOWS[len(args) - 2 :])
    size, stride, padding, dilation = windows
    flat = [[least, *pair] for least, pair in
            zip((1, 1, 0, 1), (size, stride or size, padding, dilation), strict=True)]  # fmt: skip
    row = tracer.call(aten.unsqueeze.default, x, -2)
    out = tracer.call(aten.max_pool2d_with_indices.default, row, *flat, ceil_mode)[0]
    return tracer.call(aten.squeeze.dims, out, [-2])


_DEFAULT_WINDOWS: tuple[Any, ...] = ([], [0], [1], False)


def take_along_dim(tracer: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
    """A gather, after both have been broadcast in the other dims."""
    x, index, dim = (*args, *(kwargs.get("dim"),))[:3]
    if dim is None:
        flat = [tracer.call(aten.reshape.default, t, [-1]) for t in (x, index)]
        return tracer.call(aten.gather.default, flat[0], 0, flat[1])
    have, at = (tracer.value(t).abstract.sizes for t in (x, index))
    dim = wrap_dim(dim, len(have))
    rest = [broadcast((p,), (q,))[0] for p, q in zip(have, at, strict=True)]
    wide = []
    for t, own in ((x, have), (index, at)):
        sizes = [*rest[:dim], own[dim], *rest[dim + 1 :]]
        wide.append(tracer.call(aten.expand.default, t, list(map(to_torch, sizes))))
    return tracer.call(aten.gather.default, wide[0], dim, wide[1])


_OWN: dict[OpOverload, Handler] = {
    aten.max_pool1d.default: max_pool1d,
    aten.take_along_dim.default: take_along_dim,
    aten.reshape.default: reshape,
    aten.scaled_dot_product_attention.default: attention,
    aten.native_batch_norm.default: batch_norm,
}
# Of what decompositions call, not of the program.
_INNER: dict[OpOverload, Handler] = {
    aten.view.default: inner_view,
    aten.expand.default: expand,
    aten.native_group_norm.default: group_norm,
}
_FAILURES = (RuntimeError, TypeError, AssertionError, ArithmeticError, UnsupportedError)
# What torch makes of them fails on sizes of 0, where they do not.
_NOT_EMPTY = (aten.roll.default, aten.logsumexp.default)


def _may_be_empty(node: Node) -> bool:
    val = node.meta.get("val")
    numbers = val._abstract.sizes if isinstance(val, AbstractTensor) else [from_torch(val)]
    return any(type(n) is Expr and n.scope.range(n).lower <= 0 for n in numbers)


# Composite in name: they give numbers.
_NUMBERS = (
    aten.item.default, aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default,
    aten.sym_storage_offset.default,
)  # fmt: skip
# Composite, and without a trace in the graph where there is nothing to do.
_STRUCTURAL = (
    aten.to.dtype, aten.to.device, aten.to.other, aten.to.dtype_layout, aten.contiguous.default,
    aten.item.default, aten.broadcast_tensors.default, aten.lift_fresh.default,
    aten._reshape_alias.default, aten.alias.default,
)  # fmt: skip

_QUERIES = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel")
_UNCLEAR = (
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    aten._batch_norm_with_update.default,
)  # fmt: skip


def _check_preserved(op: Any) -> None:
    """Only a composite operator without effects can be kept whole on request."""
    if not isinstance(op, OpOverload):
        raise InputError(
            f"preserve_ops names operators such as torch.ops.aten.linear.default, got {op!r}"
        )
    info = info_of(op)
    if info.name in _QUERIES:
        raise RuntimeError(f"{op} is a metadata query function: it is not part of a program")
    if op in _UNCLEAR:
        raise RuntimeError(
            f"We can't detect {op} as a functional op statically: it may write running statistics"
        )
    if info.mutated or any(a.alias_info is not None for a in op._schema.arguments):
        raise RuntimeError(f"{op} is a mutating/aliasing op: it cannot be preserved")
    if not info.composite:
        raise RuntimeError(
            f"{op} is not CompositeImplicitAutograd op, so we will preserve it as it is anyway; "
            "leave it out of preserve_ops"
        )


services.decompose = run
services.take_apart = take_apart
