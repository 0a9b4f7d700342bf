"""Handlers of aliases, conversions, copies, writes, norms, sizes and assertions."""

from __future__ import annotations

import itertools
import math

import torch

from graphport import source
from graphport.capture.trace import values
from graphport.capture.trace.kinds import (
    cast_to_target,
    decompose,
    record_inplace,
    record_pure,
    record_view,
    wants_grad,
)
from graphport.capture.trace.recorder import describe_argument
from graphport.capture.trace.tracer import Tracer, register_handler, trace_decomposition
from graphport.capture.trace.training import can_have_gradient
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import torch_check
from graphport.errors import DataDependentError, MutationError, ShapeError, UnsupportedError
from graphport.ops import Abstract, OpInfo, get_op_info
from graphport.ops.factory import number_dtype
from graphport.ops.norm import check_statistics, require_elements
from graphport.ops.registry import overloads
from graphport.ops.shape import infer_size, slice_at
from graphport.ops.sizes import (
    broadcast,
    establish_sizes,
    expect_condition,
    is_false_at_example,
    is_provably_equal,
    is_proven,
    wrap_dim,
)
from graphport.symbolic import Expr, ge, gt, le, min_
from graphport.symbolic.bridge import from_torch, to_torch
from graphport.tensors.abstract import (
    AbstractTensor,
    Size,
    channels_last_strides,
    contiguous_strides,
    describe,
    get_example_size,
    is_dense,
)
from graphport.types import Args, Argument, Kwargs


@register_handler(aten.lift_fresh_copy.default)
def lift_fresh_copy(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A literal that is new in every run."""
    return tracer.call(aten.clone.default, args[0])


@register_handler(aten.lift_fresh.default)
def lift_fresh(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """torch.tensor(...) in the program: the data becomes a constant of the program."""
    if type(args[0]) is AbstractTensor:
        return args[0]
    return tracer.wrap(tracer.state.literal(args[0]))


@register_handler(aten.detach_.default)
def detach_(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    if _has_gradient(tracer, args, value):
        tracer.recorder.frame.keep(value)
        value.node = tracer.recorder.emit(aten.detach.default, tracer.read(value))
    if type(args[0]) is AbstractTensor:
        args[0].requires_grad_(False)
    return args[0]


def _has_gradient(tracer: Tracer, args: object, value: Value) -> bool:
    """Whether a run may have one, whatever the example does."""
    if tracer.decomposing or wants_grad(args):
        return wants_grad(args)
    state = {entry.node for entry in tracer.state.entries}
    return can_have_gradient(tracer.read(value), state, tracer.gradient_cache)


@register_handler(aten.detach.default, aten.alias.default)
def alias(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Another name for a tensor. Only where it cuts off a gradient does the graph say so."""
    base = tracer.value(args[0])
    if info.op is aten.detach.default and _has_gradient(tracer, args, base):
        return record_view(tracer, info, args, kwargs)
    value = Value.view(base, base.abstract, tracer.read(base), aten.alias.default, ())
    value.constant, value.number = base.constant, base.number
    return tracer.wrap(value)


@register_handler(aten.as_strided.default)
def as_strided(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Strides are those of the storage, so they apply to the base and not to a view of it."""
    value = tracer.value(args[0])
    rest = [*(tracer.lower(a) for a in args[1:]), *map(tracer.lower, kwargs.values())]
    size, stride = rest[:2]
    given = len(rest) > 2 and rest[2] is not None
    offset = rest[2] if given else value.abstract.offset
    if given and value.storage.has_offset:
        raise UnsupportedError(
            "as_strided with a storage offset before the input's own",
            where=source.locate_user_line(),
            fix="leave out storage_offset, or pass a tensor of its own: x.clone()",
        )
    if given and value.storage.origin in tracer.inputs:
        tracer.from_start.add(value.storage.origin)
    owner, signs = value, list[object]()
    while owner.parent is not None and owner.parent.abstract.dtype is value.abstract.dtype:
        if owner.op in _SIGN_VIEWS:
            signs.append(owner.op)
            if not given:  # it is described as if it began its storage
                offset = offset + owner.parent.abstract.offset - owner.abstract.offset
        owner = owner.parent
    if signs:  # the storage is read with another sign
        moved = given or offset != owner.abstract.offset
        recipe = (size, stride, offset) if moved else (size, stride)
        out = as_strided(tracer, info, (tracer.hold(owner, wants_grad(args[:1])), *recipe), {})
        for op in reversed(signs):
            out = tracer.call(op, out)
        return out
    offset = offset - owner.abstract.offset
    whole = owner
    if not owner.abstract.is_contiguous and is_dense(owner.abstract):
        owner = _permute_to_memory_order(tracer, owner)
    out = info.apply_rule(owner.abstract, size, stride, offset)
    _require_storage(whole, out)
    # Without an offset the view starts where the tensor does, whatever its storage offset.
    recipe = (size, stride) if type(offset) is int and offset == 0 else (size, stride, offset)
    if len(recipe) > 2 and not owner.abstract.is_contiguous:
        raise UnsupportedError(
            "as_strided with a storage offset, of a tensor that is not dense",
            where=source.locate_user_line(),
            fix="make the tensor contiguous first: x = x.contiguous()",
        )
    tracer.require_filled(owner, recipe, source.locate_user_line())
    values.resolve_for_as_strided(owner.storage)
    tracer.demand_layout(tracer.read(owner))
    node = tracer.view_node(info.op, tracer.read(owner), recipe)
    return tracer.wrap(Value.view(owner, out, node, info.op, recipe), wants_grad(args[:1]))


_SIGN_VIEWS = (aten._conj.default, aten._neg_view.default)


@register_handler(aten.resolve_conj.default, aten.resolve_neg.default)
def resolve_sign(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A copy of what is read with another sign than it is stored with, else the tensor itself."""
    path = list(tracer.value(args[0]).ancestry())
    conjugations = sum(v.op is aten._conj.default for v in path)
    negations = sum(v.op is aten._neg_view.default for v in path)
    if any(map(_is_imaginary_part, path)):
        negations += conjugations
    signs = conjugations if info.op is aten.resolve_conj.default else negations
    return tracer.call(aten.clone.default, args[0]) if signs % 2 else args[0]


def _is_imaginary_part(value: Value) -> bool:
    pair = value.parent
    is_pair = pair is not None and pair.op is aten.view_as_real.default
    return is_pair and value.op is aten.select.int and value.args[1] == 1


def _require_storage(owner: Value, view: Abstract) -> None:
    """Refuse a view that reaches beyond the storage in the example."""
    if owner.parent is not None or 0 in view.sizes or owner.storage.possible_aliases:
        return  # of what may be a view, the storage is that of its base
    outside = owner.storage.origin is not None
    room = owner.storage.elements if outside else _storage_extent(owner.abstract)
    if room is not None:
        if is_false_at_example(le(view.offset + _storage_extent(view), room)):
            raise ShapeError(
                f"setStorage: sizes {list(view.sizes)}, strides {list(view.strides)}, storage "
                f"offset {view.offset} are out of bounds for storage of {room} elements"
            )


def _storage_extent(a: Abstract) -> Size:
    """How many elements of the storage lie from the first of a tensor to its last."""
    return sum(((n - 1) * s for n, s in zip(a.sizes, a.strides, strict=True)), start=1)


def _permute_to_memory_order(tracer: Tracer, owner: Value) -> Value:
    """A view of a dense tensor whose dims are ordered by stride, which makes it contiguous."""
    strides = [get_example_size(s) for s in owner.abstract.strides]
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    permute = get_op_info(aten.permute.default)
    node = tracer.recorder.emit(permute.op, tracer.read(owner), order)
    return Value.view(owner, permute.apply_rule(owner.abstract, order), node, permute.op, (order,))


@register_handler(aten._reshape_alias.default, aten._unsafe_view.default)
def reshape_alias(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """What torch's kernels call where they know that a view is possible, in the layout at hand."""
    return tracer.call(aten.reshape.default, args[0], args[1])


@register_handler(aten.flatten.using_ints)
def flatten(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A reshape, so that it is one also in what it shares: torch's kernel asks for the layout."""
    given = {**dict(zip(("self", "start_dim", "end_dim"), args, strict=False)), **kwargs}
    sizes = given["self"].shape
    if not sizes:
        return tracer.call(aten.reshape.default, given["self"], [1])
    first = wrap_dim(given.get("start_dim", 0), len(sizes))
    last = wrap_dim(given.get("end_dim", -1), len(sizes))
    if first > last:
        raise ShapeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if first == last:
        return given["self"]
    merged = math.prod(sizes[first : last + 1])
    shape = [*sizes[:first], merged, *sizes[last + 1 :]]
    return tracer.call(aten.reshape.default, given["self"], shape)


# Conversions


@register_handler(aten.to.dtype)
def to_dtype(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return _convert(tracer, args[0], args[1], None, args[2:], kwargs)


@register_handler(aten.to.device)
def to_device(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return _convert(tracer, args[0], args[2], args[1], args[3:], kwargs)


@register_handler(aten.to.other)
def to_other(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    like = tracer.value(args[1]).abstract
    return _convert(tracer, args[0], like.dtype, like.device, args[2:], kwargs)


@register_handler(aten.to.dtype_layout)
def to_dtype_layout(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return _convert(tracer, args[0], kwargs.get("dtype"), kwargs.get("device"), (), kwargs)


def _convert(
    tracer: Tracer,
    t: Argument,
    dtype: torch.dtype | None,
    device: torch.device | None,
    flags: Argument,
    kwargs: Kwargs,
) -> Argument:
    """`flags` are the positional non_blocking, copy, memory_format."""
    copy = flags[1] if len(flags) > 1 else kwargs.get("copy", False)
    memory_format = flags[2] if len(flags) > 2 else kwargs.get("memory_format")
    if not isinstance(t, torch.Tensor):  # a number that one of torch's kernels took for a tensor
        t = tracer.call(aten.scalar_tensor.default, t, dtype=number_dtype(t))
    have = tracer.value(t).abstract
    wanted: Kwargs = {}
    if dtype is not None and dtype is not have.dtype:
        wanted["dtype"] = dtype
    if device is not None and not _is_same_device(torch.device(device), have.device):
        wanted["device"] = torch.device(device)
    # Only channels last are converted to what is contiguous: anything else counts as that.
    by_default = memory_format is torch.contiguous_format and not have.is_channels_last
    if memory_format is not None and not by_default and not _has_memory_format(have, memory_format):
        wanted["memory_format"] = memory_format
    if by_default and (wanted or copy):
        wanted["memory_format"] = memory_format
    if not wanted and not copy:
        asks_layout = memory_format not in (None, torch.preserve_format)
        return _alias_in_layout(tracer, t) if asks_layout else t
    copied = record_pure(tracer, get_op_info(aten._to_copy.default), (t,), wanted)
    if not copy and list(wanted) == ["memory_format"]:
        _note_possible_alias(tracer, tracer.value(t), copied, memory_format)
    return copied


def _is_same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index or 0) == (b.index or 0)


def _has_memory_format(a: Abstract, memory_format: torch.memory_format) -> bool:
    if memory_format is torch.preserve_format:
        return True
    if memory_format is torch.contiguous_format:
        return a.is_contiguous
    return a.rank in (4, 5) and a.strides == channels_last_strides(a.sizes)


@register_handler(aten.contiguous.default)
def contiguous(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Nothing, where the layout is right; a view of the result still has to bear other layouts."""
    memory_format = kwargs.get("memory_format", torch.contiguous_format)
    base = tracer.value(args[0])
    if _has_memory_format(base.abstract, memory_format):
        return _alias_in_layout(tracer, args[0])
    copy = record_pure(
        tracer, get_op_info(aten.clone.default), args[:1], {"memory_format": memory_format}
    )
    _note_possible_alias(tracer, base, copy, memory_format)
    return copy


def _alias_in_layout(tracer: Tracer, t: object) -> Argument:
    """A tensor that has the layout asked for; in another one of the inputs it is a copy."""
    base = tracer.value(t)
    node = tracer.read(base)
    tracer.uncopied[node] = True
    value = Value.view(base, base.abstract, node, aten.contiguous.default, ())
    value.viewed = node
    return tracer.wrap(value, wants_grad((t,)))


def _note_possible_alias(tracer: Tracer, base: Value, copy: object, memory_format: object) -> None:
    """A copy that changes nothing but the layout is none where the layout was right."""
    have, node = base.abstract, tracer.read(base)
    lines = {
        torch.contiguous_format: contiguous_strides,
        torch.channels_last: channels_last_strides,
        torch.channels_last_3d: channels_last_strides,
    }.get(memory_format)
    if lines is not None:
        tracer.note_possible_alias(
            base, tracer.value(copy), node, lambda: values.has_strides(have, lines(have.sizes))
        )


# Writes


@register_handler(aten.copy_.default)
def copy_(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """The written tensor takes the other's value; only what differs is converted."""
    target, source_ = args[0], args[1]
    if not isinstance(source_, torch.Tensor):
        return trace_decomposition(tracer, torch.Tensor.fill_, (target, source_), {})
    value, new = tracer.value(target), tracer.value(source_)
    want, have = value.abstract, new.abstract
    node = tracer.read(new)
    if have.sizes != want.sizes:
        node = tracer.recorder.emit(aten.expand.default, node, list(want.sizes))
    layout = describe(node)
    if layout.is_contiguous and want.is_contiguous:
        if have.dtype is not want.dtype:
            node = tracer.recorder.emit(aten._to_copy.default, node, dtype=want.dtype)
    else:
        node = tracer.recorder.emit(aten.copy.default, tracer.read(value), node)
    tracer.write(value, node)
    return target


@register_handler(
    *overloads("""
        resize_ resize_as_ set_.default,source_Storage,source_Storage_storage_offset
        set_.source_Tensor,source_Tensor_storage_offset
    """)
)
def refuse_resize(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    raise MutationError(
        f"{info.name}() replaces the storage of a tensor, which a functional graph cannot express",
        where=source.locate_user_line(),
        fix="make a new tensor instead, e.g. x = x.new_empty(size), or write to it with x.copy_(y)",
    )


# Layers that depend on the mode


@register_handler(*overloads("dropout alpha_dropout feature_dropout feature_alpha_dropout"))
def dropout(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Outside of training dropout is nothing at all."""
    if not args[2] or args[1] == 0:
        return args[0]
    return (
        record_pure(tracer, info, args, kwargs)
        if info.rule
        else decompose(tracer, info, args, kwargs)
    )


@register_handler(*overloads("dropout_ alpha_dropout_ feature_dropout_ feature_alpha_dropout_"))
def dropout_(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    if not args[2] or args[1] == 0:
        return args[0]
    return record_inplace(tracer, info, args, kwargs)


@register_handler(aten.batch_norm.default)
def batch_norm(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """In training the running statistics are written, which the schema does not say."""
    x, weight, bias, mean, var, training, momentum, eps, _ = args
    about = tracer.value(x).abstract
    if about.rank < 2:  # no channels, which only this operator takes, if there are no elements
        info.apply_rule(about, None, None, None, None, True)
        return tracer.call(aten.clone.default, x)
    if not training:
        return record_pure(tracer, info, args, kwargs)
    check_statistics(about, mean, var, training)
    if mean is None:
        op = aten._native_batch_norm_legit.no_stats
        return tracer.call(op, x, weight, bias, True, momentum, eps)[0]
    op = aten._native_batch_norm_legit_functional.default
    out = tracer.call(op, x, weight, bias, mean, var, True, momentum, eps)
    for old, new in ((mean, out[3]), (var, out[4])):
        value = tracer.value(old)
        node = tracer.read(tracer.value(new))
        tracer.write(
            value, cast_to_target(tracer, value.abstract, tracer.value(new).abstract, node, op)
        )
    return out[0]


_FUNCTIONAL_BATCH_NORMS = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update.default: aten._batch_norm_with_update_functional.default,
}


@register_handler(*_FUNCTIONAL_BATCH_NORMS)
def batch_norm_with_update(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Batch norms that write running statistics: the functional form returns the new ones last."""
    old_mean, old_var = args[3:5]
    training = info.op is aten._batch_norm_with_update.default or args[5]
    about = tracer.value(args[0]).abstract
    check_statistics(about, old_mean, old_var, training)
    if training:
        require_elements(about)
    if old_mean is None or not (training or info.mutated):
        return record_pure(tracer, info, args, kwargs)
    op = _FUNCTIONAL_BATCH_NORMS[info.op]
    *out, mean, var = tracer.call(op, *args)
    if training:
        for old, new in ((old_mean, mean), (old_var, var)):
            value, have = tracer.value(old), tracer.value(new)
            node = cast_to_target(tracer, value.abstract, have.abstract, tracer.read(have), op)
            tracer.write(value, node)
    return tuple(out)


@register_handler(aten.instance_norm.default)
def instance_norm(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    writes = args[3] is not None and args[5]
    return (decompose if writes else record_pure)(tracer, info, args, kwargs)


# Views under another name


@register_handler(aten.broadcast_tensors.default)
def broadcast_tensors(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    sizes = broadcast(*(tracer.value(t).abstract.sizes for t in args[0]))
    return [tracer.call(aten.expand.default, t, list(map(to_torch, sizes))) for t in args[0]]


@register_handler(aten.einsum.default)
def einsum(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Of one operand it may be no more than a view, and of two dtypes a product promotes where one
    that is summed refuses: torch's own kernel tells."""
    dtypes = {tracer.value(t).abstract.dtype for t in args[1]}
    is_plain = len(args[1]) > 1 and len(dtypes) == 1
    return (record_pure if is_plain else decompose)(tracer, info, args, kwargs)


@register_handler(aten.unflatten.int)
def unflatten(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """The -1 is worked out here, and what it needs of the size written down."""
    x, dim, parts = args
    have = tracer.value(x).abstract
    if not parts:
        return decompose(tracer, info, args, kwargs)
    dim = wrap_dim(dim, have.rank)
    line = Abstract(have.sizes[dim : dim + 1], have.dtype, have.device)
    split = infer_size(line, [tracer.lower(s) for s in parts])
    sizes = (*have.sizes[:dim], *split, *have.sizes[dim + 1 :])
    return tracer.call(aten.view.default, x, list(map(to_torch, sizes)))


@register_handler(aten.chunk.default)
def chunk(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A size of 0 has as many chunks as are asked for, but only one piece of any length."""
    x, chunks, *rest = args
    dim, have = rest[0] if rest else kwargs.get("dim", 0), tracer.value(x).abstract
    size = have.sizes[wrap_dim(dim, have.rank)] if have.rank else 0
    if (
        not isinstance(size, Expr)
        or is_proven(gt(size, 0))
        or not is_provably_equal(size % chunks, 0)
    ):
        return decompose(tracer, info, args, kwargs)
    return tracer.call(aten.split_with_sizes.default, x, [to_torch(size // chunks)] * chunks, dim)


@register_handler(aten.tensor_split.sections)
def tensor_split(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """The first few pieces are longer by one; how many is computed, and no branch depends on it."""
    base, sections = tracer.value(args[0]), tracer.lower(args[1])
    have = base.abstract
    if type(sections) is not int or sections < 1 or not have.rank:
        return decompose(tracer, info, args, kwargs)
    dim = wrap_dim(args[2] if len(args) > 2 else kwargs.get("dim", 0), have.rank)
    size, node, grad = have.sizes[dim], tracer.read(base), wants_grad(args[:1])
    starts = [i * (size // sections) + min_(i, size % sections) for i in range(sections)]
    pieces = []
    for first, last in itertools.pairwise((*starts, size)):
        recipe = (dim, first, last)
        piece = slice_at(have, dim, first, last - first)
        made = tracer.recorder.node(aten.slice.Tensor, (node, *recipe), {}, piece, "slice")
        value = Value.view(base, piece, made, aten.slice.Tensor, recipe)
        pieces.append(tracer.wrap(value, grad))
    return pieces


_SCATTERED_VIEWS = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}


@register_handler(*_SCATTERED_VIEWS)
def scatter_view(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """What is put in the place of a view has the sizes of the view."""
    values.refuse_overlapping_windows(tracer.value(args[0]))
    base, new, *rest = (tracer.lower(a) for a in args)
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    viewing = get_op_info(_SCATTERED_VIEWS[info.op])
    view = viewing.apply_rule(describe_argument(base), *rest, **keywords)
    if info.op is aten.as_strided_scatter.default:
        _require_storage(tracer.value(args[0]), view)
    if not establish_sizes(describe_argument(new).sizes, view.sizes):
        raise ShapeError(
            f"expected src to have the size of the view, {view}, but got {describe_argument(new)}"
        )
    return record_pure(tracer, info, args, kwargs)


def view_copy(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """`expand_copy`, `unbind_copy`, ...: the views, each copied."""
    if info.op is aten.view_copy.default:  # of any memory, unlike `view`
        views = tracer.call(aten.reshape.default, *args, **kwargs)
    else:
        packet = getattr(aten, info.name.removesuffix("_copy"))
        views = tracer.call(getattr(packet, info.op._overloadname), *args, **kwargs)

    def copied(t: torch.Tensor) -> Argument:
        return tracer.call(aten.clone.default, t, memory_format=torch.contiguous_format)

    return [copied(t) for t in views] if isinstance(views, (list, tuple)) else copied(views)


register_handler(
    *overloads("""
        alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy
        select_copy.int slice_copy.Tensor split_copy.Tensor split_with_sizes_copy
        squeeze_copy.default,dim,dims t_copy transpose_copy.int unbind_copy.int unfold_copy
        unsqueeze_copy view_as_complex_copy view_as_real_copy view_copy.default,dtype
    """)
)(view_copy)


# Marks for the profiler


@register_handler(torch.ops.profiler._record_function_exit._RecordFunction)
def record_function_exit(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> None:
    """`torch.profiler.record_function` says nothing about what is computed."""
    info.op(*args, **kwargs)


# Questions about sizes


@register_handler(aten.sym_size.int)
def sym_size(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return to_torch(tracer.value(args[0]).abstract.sizes[args[1]])


@register_handler(aten.sym_stride.int)
def sym_stride(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    return to_torch(tracer.value(args[0]).abstract.strides[args[1]])


@register_handler(aten.size.default, aten.stride.default)
def specialise_sizes(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> list[int]:
    """A kernel of torch's that can only take plain numbers: they are fixed to the example's."""
    t = args[0]  # it may be one that torch.func.grad and the like have wrapped
    numbers = t.shape if info.op is aten.size.default else t.stride()
    return [tracer.scope.specialize(from_torch(n)) for n in numbers]


@register_handler(aten._assert_scalar.default)
def assert_scalar(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> None:
    condition = args[0]
    if isinstance(condition, (bool, int)):
        torch_check(bool(condition), lambda: args[1])
    else:
        _assert_condition(from_torch(condition))


@register_handler(aten._assert_tensor_metadata.default)
def assert_tensor_metadata(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> None:
    """Sizes and dtypes are known: an abstract run has nothing to assert."""


@register_handler(aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default)
def sym_constrain_range(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> None:
    value, low, high = from_torch(args[0]), kwargs.get("min"), kwargs.get("max")
    if info.op is aten.sym_constrain_range_for_size.default:
        low = max(low or 0, 0)
    if low is not None:
        _assert_condition(ge(value, low))
    if high is not None:
        _assert_condition(le(value, high))


def _assert_condition(condition: Argument) -> None:
    """What the program asserts is meant as it says, sizes of 0 and 1 included."""
    if not expect_condition(condition):
        raise DataDependentError(f"{condition} is asserted, but cannot hold")
