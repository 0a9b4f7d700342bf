"""`ep.run_decompositions()`: a program over core ATen, or over what a table gives.

The decompositions are PyTorch's own, run on abstract tensors. An operator that no table decomposes
and that is not composite is copied, metadata and all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphport.capture.rewrite.rewrite import Functionalisation, Rewriter, makes_symbols
from graphport.capture.trace.kinds import decompose, record_pure, record_view
from graphport.capture.trace.layout import Layouts
from graphport.capture.trace.recorder import Recorder
from graphport.capture.trace.scalars import hoist_assertions
from graphport.capture.trace.state import State
from graphport.capture.trace.subgraph import Subgraph
from graphport.capture.trace.tracer import COMPOSITE, HANDLERS, Handler, Tracer, trace_decomposition
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import OpOverload, is_within, pytree, suggest_memory_format
from graphport.errors import ExportError, InputError, UnsupportedError
from graphport.ops import Abstract, OpInfo, get_op_info
from graphport.ops.registry import overload_table, overloads
from graphport.ops.shape import CopiedResult
from graphport.ops.sizes import broadcast, wrap_dim
from graphport.program import ExportedProgram
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch, sym_ite, to_expression, to_torch
from graphport.tensors.abstract import AbstractTensor, describe, get_val, permute_strides
from graphport.types import Args, Argument, Kwargs

Table = Mapping[OpOverload, Callable[..., Any]]

# Gradients stop where the program says so, also after its operators have been decomposed.
_NEVER_DECOMPOSED = (aten.detach.default,)


@functools.cache
def core_aten_table() -> Table:
    """What leads to core ATen."""
    from graphport.compat.torch import core_aten_decompositions_post_autograd

    table = core_aten_decompositions_post_autograd()
    return {op: fn for op, fn in table.items() if op not in _NEVER_DECOMPOSED}


@functools.cache
def _other_decompositions() -> Table:
    """Further decompositions of torch's, into ATen: its references go on to operators below."""
    from graphport.compat.torch import decomposition_table
    from graphport.compat.torch import prims as module

    prims = [op for op in vars(module).values() if isinstance(op, OpOverload)]
    return {
        **{op: op.impl_aten for op in prims},
        **{
            op: fn
            for op, fn in decomposition_table.items()
            if isinstance(op, OpOverload) and not is_within(fn.__module__, "refs")
        },
    }


def default_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The table of `run_decompositions`, to take operators out of or to put others in.

    >>> import torch, graphport as gp
    >>> ep = gp.export(torch.nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> str(ep.run_decompositions(gp.default_decompositions())) == str(ep.run_decompositions())
    True
    """
    return dict(core_aten_table())


def run_decompositions(
    program: ExportedProgram, table: Table | None, preserve: tuple[object, ...]
) -> Any:
    for op in preserve:
        _check_preserved(op)
    chosen = core_aten_table() if table is None else table

    def tracer(recorder: Recorder, state: State) -> Tracer:
        return DecompositionTracer(recorder, state, chosen, frozenset(preserve))

    if program.dialect == "TRAINING":
        # A pass of its own: decompositions do not show what aliases.
        program = Functionalisation(program, Tracer).run()
    return Decomposition(program, tracer).run()


def decompose_unknown(
    program: ExportedProgram, known: Callable[[object], bool], further: Table | None = None
) -> Any:
    """Decompose what is not `known`, as far as torch can, or by a further table."""
    table = {
        op: fn
        for op, fn in {**_other_decompositions(), **core_aten_table(), **(further or {})}.items()
        if not known(op)
    }

    def tracer(recorder: Recorder, state: State) -> Tracer:
        return DecompositionTracer(recorder, state, table, _KnownComposites(known))

    return Decomposition(program, tracer).run()


class _KnownComposites:
    """The composite operators without effects among those that are known."""

    def __init__(self, known: Callable[[object], bool]) -> None:
        self.known = known

    def __contains__(self, op: OpOverload) -> bool:
        info = get_op_info(op)
        return info.composite and not info.mutated and op not in _NUMBER_OPS and self.known(op)


class Decomposition(Rewriter):
    """Decomposes composite operators and those of a table."""

    def visit(self, node: Node) -> Argument:
        made = super().visit(node)
        unsure = any(map(self._is_unsure, pytree.tree_leaves(made)))
        if not unsure or _keeps_layout(node, made) or not _has_view_user(node):
            return made
        with self.recorder.inherit_metadata(node):
            return pytree.tree_map(self._in_order, made)

    def _is_unsure(self, new: object) -> bool:
        is_tensor = isinstance(new, Node) and isinstance(get_val(new), AbstractTensor)
        return is_tensor and not self.tracer.layouts.is_certain(new)

    def _in_order(self, new: object) -> Argument:
        """A result with the strides of the whole operator, which the program relies on.

        Copied here and not where it is viewed: what shares memory with it goes on to do so.
        """
        if not self._is_unsure(new):
            return new
        emit = self.recorder.emit
        return emit(aten.clone.default, new, memory_format=torch.contiguous_format)

    def _finish(self) -> ExportedProgram:
        hoist_assertions(self.recorder.graph)
        return super()._finish()

    def _subgraph(self, reference: Node, module: GraphModule) -> Subgraph:
        sub = super()._subgraph(reference, module)
        hoist_assertions(sub.frame.graph)
        return sub

    def keeps(self, node: Node) -> bool:
        if not isinstance(node.target, OpOverload):
            return True
        if self.tracer.keeps(node.target):
            return makes_symbols(node, self.recorder) or not any(
                map(self._has_other_strides, node.all_input_nodes)
            )
        return node.target in _FAILS_IF_EMPTY and any(map(_may_be_empty, node.all_input_nodes))

    def _has_other_strides(self, old: Node) -> bool:
        """Whether a value has another memory layout than in the program.

        The result of a decomposition may have other strides: views of it that
        the program takes for granted are then to be found anew.
        """
        new, val = self.new[old], get_val(old)
        if not isinstance(new, Node) or not isinstance(val, AbstractTensor):
            return False
        now = get_val(new)
        return now is not val and now._abstract.strides != val._abstract.strides

    def reasons_to_keep(self, node: Node) -> tuple[type[Exception], ...]:
        """Kernels of torch that need data, or plain sizes; a user's table may not fail."""
        own = self.tracer.table.get(node.target) in (
            core_aten_table().get(node.target),
            _other_decompositions().get(node.target),
        )
        return (*super().reasons_to_keep(node), *(_FAILURES if own else ()))


def _keeps_layout(node: Node, made: object) -> bool:
    """Whether what stands for a node hands the layout of its operands on as the node does.

    A decomposed operator may be one that gives its result one layout, whatever that of
    its operands. It is tried on operands whose strides are in reverse order.
    """
    if not isinstance(node.target, OpOverload):
        return True
    info, whole = get_op_info(node.target), isinstance(made, Node) and made.target is node.target
    if whole or info.view or info.rule is None or hasattr(info.rule, "elementwise"):
        return True
    try:
        out = info.rule(
            *map_arg(node.args, _reverse_strides), **map_arg(node.kwargs, _reverse_strides)
        )
    except ExportError:
        return False
    found = [a for a in pytree.tree_leaves(out) if isinstance(a, Abstract) and a.rank > 1]
    return not found or not all(a.is_contiguous for a in found)


def _has_view_user(node: Node) -> bool:
    """Whether the program takes a view of a value for possible, or of what is computed from it."""
    waiting, seen = [node], {node}
    while waiting:
        users = [n for n in waiting.pop().users if n not in seen]
        if any(n.target is aten.view.default for n in users):
            return True
        seen.update(users)
        waiting.extend(users)
    return False


def _reverse_strides(node: Node) -> Argument:
    """A value as rules take it; a tensor with the strides of its dims in reverse order."""
    val = get_val(node)
    if not isinstance(val, AbstractTensor):
        return to_expression(val)
    a = val._abstract
    return Abstract(a.sizes, a.dtype, a.device, permute_strides(a.sizes, list(range(a.rank))[::-1]))


class DecompositionTracer(Tracer):
    """A tracer that decomposes what it can, unless it is to be preserved."""

    def __init__(
        self, recorder: Recorder, state: State, table: Table, preserve: Container[Any]
    ) -> None:
        super().__init__(recorder, state)
        self.table = table
        self.preserve = preserve
        self.layouts = Layouts(state)

    def keeps(self, op: OpOverload) -> bool:
        """Whether an operator stays as it is."""
        return self._part(get_op_info(op)) is None

    def _part(self, info: OpInfo) -> Handler | None:
        """The decomposition of an operator."""
        op = info.op
        if op in self.preserve or op in _NEVER_DECOMPOSED:
            return None
        if op in SIZE_DEPENDENT and self._is_by_torch(info):
            return decompose_by_formula
        if op in self.table:
            return decompose_by_table
        if op in _OWN_DECOMPOSITIONS:
            return _OWN_DECOMPOSITIONS[op]
        return decompose if info.composite and op not in _NUMBER_OPS else None

    def _is_by_torch(self, info: OpInfo) -> bool:
        """Whether an operator is decomposed, and by a formula of torch's."""
        own = self.table.get(info.op)
        return info.composite if own is None else own is core_aten_table().get(info.op)

    def _choose(self, op: OpOverload) -> tuple[Handler, OpInfo]:
        info = get_op_info(op)
        if op in self.preserve:
            return (record_pure if info.rule is not None else HANDLERS[COMPOSITE]), info
        if op in _INNER_HANDLERS:
            return _INNER_HANDLERS[op], info
        if not info.mutated and op not in _STRUCTURAL:
            part = self._part(info)
            if part is not None:
                return part, info
        return super()._choose(op)


def decompose_by_table(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    result = trace_decomposition(tracer, tracer.table[info.op], args, kwargs)
    return record_pure(tracer, info, args, kwargs) if result is NotImplemented else result


def decompose_by_formula(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """By our own formula; by torch's for what it is not written for."""
    result = trace_decomposition(tracer, SIZE_DEPENDENT[info.op], args, kwargs)
    if result is not NotImplemented:
        return result
    part = decompose_by_table if info.op in tracer.table else decompose
    return part(tracer, info, args, kwargs)


def reshape(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Core ATen has `view`, which fails on a layout that it cannot see; there a copy goes first."""
    base = tracer.value(args[0])
    sizes = tracer.lower(args[1])
    node = tracer.read(base)
    out = info.apply_rule(base.abstract, sizes)
    if type(out) is CopiedResult or not tracer.layouts.is_certain(node):
        node = tracer.recorder.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
    made = tracer.recorder.emit(aten.view.default, node, sizes)
    if type(out) is CopiedResult:
        return tracer.hold(Value(describe(made), made))
    return tracer.hold(Value.view(base, describe(made), made, aten.view.default, (sizes,)))


def attention(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """As arithmetic: which kernel torch would choose depends on the machine."""
    names = [a.name for a in info.op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    q, k, v = (given.pop(n) for n in ("query", "key", "value"))
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        kept, left_out = (
            tracer.call(aten.full.default, [], x, dtype=q.dtype, device=q.device)
            for x in (0.0, -math.inf)
        )
        given["attn_mask"] = tracer.call(aten.where.self, mask, kept, left_out)
    return tracer.call(aten._scaled_dot_product_attention_math.default, q, k, v, **given)[0]


def batch_norm(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Core ATen has an operator for read and one for written statistics."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if training or mean is None:
        return HANDLERS[info.op](tracer, info, args, kwargs)
    op = aten._native_batch_norm_legit_no_training.default
    return tracer.call(op, x, weight, bias, mean, var, momentum, eps)


def expand(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Kernels expand to what is there already, to be on the safe side."""
    have, wanted = tracer.value(args[0]).abstract.sizes, tracer.lower(args[1])
    if len(have) == len(wanted) and all(map(tracer.scope.same, have, wanted)):
        return args[0]
    return record_view(tracer, info, args, kwargs)


def inner_view(tracer: object, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A view that a decomposition makes of what it believes to be contiguous."""
    return reshape(tracer, get_op_info(aten.reshape.default), args, kwargs)


def group_norm(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """The kernel wants its input dense, which its caller has seen to at the example sizes only.

    At a batch of 1 even a view of the same kind may be laid out otherwise.
    """
    x, *rest = args
    value = tracer.value(x)
    if not _is_always_dense(tracer, tracer.read(value)):
        last = value.abstract.is_channels_last and not value.abstract.is_contiguous
        order = torch.channels_last if last else torch.contiguous_format
        x = tracer.call(aten.clone.default, x, memory_format=order)
    return record_pure(tracer, info, (x, *rest), kwargs)


def _is_always_dense(tracer: Any, node: Node) -> bool:
    """Whether a value is in the order of its dims, or made by convolutions, at any size."""
    waiting, seen = [node], {node}
    while waiting:
        top = waiting.pop()
        if top.target is aten.convolution.default or (
            tracer.layouts.is_certain(top) and describe(top).is_contiguous
        ):
            continue
        if not isinstance(top.target, OpOverload) or torch.Tag.pointwise not in top.target.tags:
            return False
        read = [n for n in top.all_input_nodes if isinstance(get_val(n), AbstractTensor)]
        waiting += [n for n in read if n not in seen]
        seen.update(read)
    return True


def max_pool1d(tracer: Any, info: OpInfo, args: Sequence[Argument], kwargs: Kwargs) -> Argument:
    """torch's kernel takes plain sizes only; as one row of two dims it is core ATen."""
    x, *windows, ceil_mode = (*args, *_DEFAULT_WINDOWS[len(args) - 2 :])
    size, stride, padding, dilation = windows
    flat = [
        [least, *pair]
        for least, pair in zip((1, 1, 0, 1), (size, stride or size, padding, dilation), strict=True)
    ]
    row = tracer.call(aten.unsqueeze.default, x, -2)
    out = tracer.call(aten.max_pool2d_with_indices.default, row, *flat, ceil_mode)[0]
    return tracer.call(aten.squeeze.dims, out, [-2])


_DEFAULT_WINDOWS: tuple[Any, ...] = ([], [0], [1], False)


def take_along_dim(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
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
    # Positions before the first and behind the last begin anew, as in eager.
    places = tracer.call(aten.remainder.Scalar, wide[1], to_torch(have[dim]))
    return tracer.call(aten.gather.default, wide[0], dim, places)


_OWN_DECOMPOSITIONS: dict[OpOverload, Handler] = {
    aten.max_pool1d.default: max_pool1d,
    aten.take_along_dim.default: take_along_dim,
    aten.reshape.default: reshape,
    aten.scaled_dot_product_attention.default: attention,
    aten.native_batch_norm.default: batch_norm,
}
# Of what decompositions call, not of the program.
_INNER_HANDLERS: dict[OpOverload, Handler] = {
    aten.view.default: inner_view,
    aten.expand.default: expand,
    aten.native_group_norm.default: group_norm,
}
_FAILURES = (RuntimeError, TypeError, AssertionError, ArithmeticError, UnsupportedError)
# What torch makes of them fails on sizes of 0, where they do not.
_FAILS_IF_EMPTY = (aten.roll.default, aten.logsumexp.default)


def _may_be_empty(node: Node) -> bool:
    val = get_val(node)
    numbers = val._abstract.sizes if isinstance(val, AbstractTensor) else [from_torch(val)]
    return any(type(n) is Expr and n.scope.range(n).lower <= 0 for n in numbers)


# Composite in name: they give numbers.
_NUMBER_OPS = overloads("item sym_size.int sym_stride.int sym_numel sym_storage_offset")
# Composite, and without a trace in the graph where there is nothing to do.
_STRUCTURAL = overloads("""
    to.dtype,device,other,dtype_layout contiguous item broadcast_tensors lift_fresh _reshape_alias
    alias
""")

_QUERIES = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel")
_MAYBE_MUTATING = overloads("native_batch_norm _native_batch_norm_legit _batch_norm_with_update")


def _check_preserved(op: OpOverload) -> None:
    """Only a composite operator without effects can be kept whole on request."""
    if not isinstance(op, OpOverload):
        raise InputError(
            f"preserve_ops names operators such as torch.ops.aten.linear.default, got {op!r}"
        )
    info = get_op_info(op)
    if info.name in _QUERIES:
        raise RuntimeError(f"{op} is a metadata query function: it is not part of a program")
    if op in _MAYBE_MUTATING:
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


# Decompositions of operators whose result depends on whether a size is 1, or equals another.
#
# Torch's own ask Python for it. Here it is part of the formula, so that the result is right at
# every size: `interpolate` copies a dim that keeps its size whatever the scale factor, `linspace`
# of one step has no distance between its ends.

HALF_DTYPES = (torch.float16, torch.bfloat16)


def linspace(
    start: Argument,
    end: Argument,
    steps: Argument,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Argument:
    """From both ends towards the middle, as torch's kernel goes; the ends may be tensors."""
    if dtype is None:
        dtype = torch.get_default_dtype()
        dtype = dtype.to_complex() if any(map(_is_complex, (start, end))) else dtype
    if dtype.is_complex:
        if dtype is torch.complex32:
            return NotImplemented
        ends = [(x.real, x.imag) if _is_complex(x) else (x, 0) for x in (start, end)]
        kind = dtype.to_real()
        return torch.complex(
            *(linspace(a, b, steps, dtype=kind, **options) for a, b in zip(*ends, strict=True))
        )
    if not dtype.is_floating_point:
        return _integer_linspace(start, end, steps, dtype, options).to(dtype)
    start, end = (x.to(dtype) if isinstance(x, Tensor) else x for x in (start, end))
    step = (end - start) / torch.sym_max(steps - 1, 1)
    places = aten.arange.start_step(0, steps, 1, **options)
    first = places.to(dtype) * step + start
    last = end - (steps - 1 - places).to(dtype) * step
    return torch.where(places < steps / 2, first, last)


def _is_complex(x: object) -> bool:
    return x.is_complex() if isinstance(x, Tensor) else isinstance(x, complex)


def _integer_linspace(
    start: object, end: object, steps: Argument, dtype: torch.dtype, options: Any
) -> Argument:
    """In doubles, to be cut off. Where a number is whole, the last bit of its product decides.

    The kernel rounds after the sum only. Here a step is two numbers, the first short enough for
    its products to be exact, so that the last addition is the one that rounds.
    """
    low, high = (
        x.to(dtype).double()
        if isinstance(x, Tensor)
        else aten.scalar_tensor.default(x, dtype=dtype, **options).double()
        for x in (start, end)
    )
    step = (high - low) / torch.sym_max(steps - 1, 1)
    short = step.float().double()
    rest = step - short
    places = aten.arange.start_step(0, steps, 1, **options)
    along, left = places.double(), (steps - 1 - places).double()
    first = low + along * short + along * rest
    last = high - left * short - left * rest
    return torch.where(places < torch.sym_max(steps // 2, 1), first, last)


def logspace(
    start: object,
    end: object,
    steps: object,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **options: object,
) -> Argument:
    """Powers of equally spaced numbers; of whole ones only the ends are whole."""
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or any(map(_is_complex, (start, end))):
        return NotImplemented
    if dtype.is_floating_point:
        return base ** linspace(start, end, steps, dtype=dtype, **options)
    return (base ** _integer_linspace(start, end, steps, dtype, options)).to(dtype)


def upsample_linear(
    input: Tensor, output_size: object, align_corners: bool, scale_factors: object = None
) -> Argument:
    """One dim after the other, between the two nearest positions."""
    if not input.is_floating_point():
        from graphport.compat.torch import resize_linear

        sizes, scales = _pixel_scales(input, output_size, scale_factors)
        return resize_linear(input, sizes, align_corners, scales)
    x = input.float() if input.dtype in HALF_DTYPES else input
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    for d, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        have = input.shape[d]
        places = torch.arange(size, device=x.device).to(x.dtype)
        if align_corners:
            source = places * ((have - 1) / torch.sym_max(size - 1, 1))
        else:
            source = ((places + 0.5) * _ratio(have, size, scale) - 0.5).clamp(min=0.0)
        low = source.to(torch.int64)
        high = (low + 1).clamp(max=have - 1)
        weight = (source - low).clamp(0.0, 1.0).reshape(size, *[1] * (x.dim() - d - 1))
        near, far = (aten.index.Tensor(x, [*[None] * d, i]) for i in (low, high))
        x = near + (far - near) * weight
    order = suggest_memory_format(input)
    return x.to(input.dtype).contiguous(memory_format=order)


def upsample_bicubic2d(
    input: Tensor, output_size: object, align_corners: bool, scale_factors: object = None
) -> Argument:
    """Only of pixels torch's kernel goes by the sizes where they stay."""
    if input.is_floating_point():
        return NotImplemented
    from graphport.compat.torch import upsample_bicubic2d_default

    sizes, scales = _pixel_scales(input, output_size, scale_factors)
    return upsample_bicubic2d_default(input, sizes, align_corners, *scales)


def upsample_nearest2d(input: Tensor, output_size: object, scale_factors: object = None) -> Tensor:
    """Only in images torch's kernel goes by the sizes where they stay, or double."""
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    rows, columns = (
        (
            torch.arange(size, device=input.device).to(torch.float32)
            * _ratio(have, size, scale, doubled=True)
        ).to(torch.int64)
        for have, size, scale in zip(input.shape[2:], sizes, scales, strict=True)
    )
    out = aten.index.Tensor(input, [None, None, rows.unsqueeze(-1), columns])
    return out.contiguous(memory_format=suggest_memory_format(input))


def split(self: Tensor, split_size: Any, dim: int = 0) -> Argument:
    """Into one piece at least: torch's own has no piece for a size that turns out to be 0."""
    size = self.shape[dim]
    if isinstance(split_size, int) and split_size == 0:
        return aten.split_with_sizes.default(self, [size], dim)
    before = max(int((size + split_size - 1) // split_size) - 1, 0)
    lengths = [*[split_size] * before, size - before * split_size]
    return aten.split_with_sizes.default(self, lengths, dim)


def isin(
    elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Where an element would be in order, it is, or it is nowhere; nothing is past the last."""
    if elements.dtype is torch.bool or test_elements.dtype is not elements.dtype:
        return NotImplemented
    ordered = test_elements.flatten().sort().values
    place = torch.searchsorted(ordered, elements)
    past = torch.cat([ordered, ordered.new_zeros(1)])
    found = (aten.index.Tensor(past, [place]) == elements) & (place < ordered.shape[0])
    return ~found if invert else found


def _sizes_and_scales(
    input: Tensor, output_size: object, scale_factors: Argument
) -> tuple[Sequence[Any], Sequence[Any]]:
    from graphport.compat.torch import upsample_compute_output_size

    sizes = upsample_compute_output_size(input.size(), output_size, scale_factors)
    return sizes, scale_factors or [None] * len(sizes)


def _pixel_scales(
    input: Tensor, output_size: object, scale_factors: object
) -> tuple[Sequence[Any], Sequence[Any]]:
    """With a factor of 1 where a dim keeps its size."""
    sizes, scales = _sizes_and_scales(input, output_size, scale_factors)
    pairs = zip(input.shape[2:], sizes, scales, strict=True)
    return sizes, [
        scale if scale is None else sym_ite(size == have, 1.0, scale) for have, size, scale in pairs
    ]


def _ratio(have: Argument, size: Argument, scale: float | None, doubled: bool = False) -> Argument:
    """How far apart in the input the positions of two neighbours of the result are.

    A dim that keeps its size is copied, and with `doubled` one of twice the size is repeated; the
    scale factor does not count then.
    """
    if scale is None or scale <= 0:
        return have / torch.sym_max(size, 1)
    ratio = sym_ite(size == have, 1.0, 1.0 / scale)
    return sym_ite(size == 2 * have, 0.5, ratio) if doubled else ratio


SIZE_DEPENDENT: Table = overload_table(
    {
        "isin.Tensor_Tensor": isin,
        "linspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor": linspace,
        "logspace.default,Tensor_Tensor,Tensor_Scalar,Scalar_Tensor": logspace,
        "split.Tensor": split,
        "upsample_linear1d.vec upsample_bilinear2d.vec upsample_trilinear3d.vec": upsample_linear,
        "upsample_bicubic2d.vec": upsample_bicubic2d,
        "upsample_nearest2d.vec": upsample_nearest2d,
    }
)
