"""Records operators by their kind: pure, view, in-place, out=, composite.

Those that need more have a handler of their own (`capture/handlers`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.trace import values
from graphport.capture.trace.recorder import describe_argument
from graphport.capture.trace.scalars import infer_scalar
from graphport.capture.trace.tracer import (
    DECOMPOSED,
    HANDLERS,
    INPLACE,
    INPLACE_VIEW,
    MUTATING,
    OUT,
    PURE,
    VIEW,
    Tracer,
    has_same_strides,
    register_handler,
    trace_decomposition,
)
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import DisableTorchDispatch, DisableTorchFunction, OpOverload, pytree
from graphport.errors import MutationError, UnsupportedError
from graphport.ops import Abstract, get_op_info, infer_by_meta, promote
from graphport.ops.meta import (
    SymbolicSizesError,
    check_out_by_kernel,
    find_decompositions,
    specialise_to_example,
)
from graphport.ops.registry import OpInfo
from graphport.ops.shape import CopiedResult
from graphport.symbolic import Expr
from graphport.symbolic.bridge import SYMBOLIC, from_torch
from graphport.tensors.abstract import AbstractTensor, is_dense, make_abstract_tensor, set_val
from graphport.types import Args, Argument, Kwargs


def wants_grad(args: Any) -> bool:
    """Whether autograd would track the result."""
    if not torch.is_grad_enabled():
        return False
    for a in args:
        if isinstance(a, torch.Tensor):
            if a.requires_grad:
                return True
        elif type(a) in (list, tuple) and wants_grad(a):
            return True
    return False


@register_handler(PURE)
def record_pure(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An operator that reads tensors and makes new ones."""
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()} if kwargs else kwargs
    try:
        out, node = tracer.recorder.record(info, lowered, keywords)
    except SymbolicSizesError:
        return _record_specialised(tracer, info, args, kwargs)
    if tracer.has_written:
        out = tracer.describe_as_in_eager(info, args, kwargs, out)
    result = tracer.fresh(out, node, wants_grad(args))
    _fold_constant(tracer, info, args, kwargs, result)
    if type(out) is Abstract and not out.sizes and out.dtype is torch.int64:
        tracer.value(result).number = infer_scalar(
            info.op, [_scalar_operand(tracer, a) for a in args], kwargs
        )
    return result


def _record_specialised(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An operator that torch cannot describe at symbolic sizes: decompose it, or specialise."""
    for parts in find_decompositions(info.op):
        try:
            with tracer:
                return parts(*args, **kwargs)
        except (RuntimeError, TypeError, AssertionError):
            continue
    for t in pytree.tree_leaves((args, kwargs)):
        if isinstance(t, torch.Tensor):
            for size in tracer.value(t).abstract.sizes:
                tracer.scope.specialize(size)
    lowered, keywords = [tracer.lower(a) for a in args], pytree.tree_map(tracer.lower, kwargs)
    out = infer_by_meta(
        info.op,
        specialise_to_example([describe_argument(a) for a in lowered]),
        specialise_to_example({k: describe_argument(v) for k, v in keywords.items()}),
    )
    return tracer.fresh(out, tracer.recorder.node(info.op, lowered, keywords, out, info.name))


def _scalar_operand(tracer: Tracer, x: object) -> Argument:
    """An operand of arithmetic on integers: a Python number, an expression, None if unknown."""
    if not isinstance(x, torch.Tensor):
        return from_torch(x) if isinstance(x, torch.SymInt) else x
    value = tracer.value(x)
    if value.number is not None and value.version == value.storage.version:
        return value.number
    data = value.literal
    return data.item() if data is not None and not data.ndim and data.dtype is torch.int64 else None


_FOLD_LIMIT = 1024  # elements; literals of programs are small, and folding runs real kernels


def _fold_constant(
    tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs, result: object
) -> None:
    """Keep the data of what is computed from literals, so that Python may look at it."""
    if type(result) is not AbstractTensor or torch.Tag.nondeterministic_seeded in info.op.tags:
        return
    found = [a for a in args if isinstance(a, torch.Tensor)]
    if not found:
        return
    data = [tracer.value(a).literal for a in found]
    if any(d is None or d.numel() > _FOLD_LIMIT for d in data) or any(
        isinstance(a, (list, tuple, *SYMBOLIC)) for a in (*args, *kwargs.values())
    ):
        return
    supply = iter(data)
    literal = [next(supply) if isinstance(a, torch.Tensor) else a for a in args]
    tracer.value(result).constant = info.op(*literal, **kwargs)


@register_handler(VIEW)
def record_view(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An operator whose result shares memory with its first argument."""
    base = tracer.value(args[0])
    rest = tuple(tracer.lower(a) for a in args[1:])
    node = tracer.read(base)
    op = info.op
    if op is aten.view_as_real.default:
        node = tracer.resolve_conj(node)
    if op is aten.view.default and (tracer.decomposing or tracer.must_reshape(node)):
        info = get_op_info(aten.reshape.default)
    out = info.rule(base.abstract, *rest, **kwargs) if info.rule is not None else None
    viewed = node
    if type(out) is CopiedResult and not is_dense(base.abstract):
        # Of a non-dense tensor, other sizes may give a view; torch's kernel decides by the strides
        # that are known here whether its data is contiguous.
        node = tracer.recorder.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
    if out is None:
        out, made = tracer.recorder.record(info, (node, *rest), kwargs)
    elif has_same_strides(node, base.abstract):
        made = tracer.recorder.node(info.op, (node, *rest), kwargs, out, info.name)
    else:  # a written value has the strides that the operators choose that compute it
        made = tracer.recorder.record(info, (node, *rest), kwargs)[1]
    grad = op is not aten.detach.default and wants_grad(args[:1])
    if isinstance(out, Abstract):
        if type(out) is CopiedResult:
            copy = Value(out, made)
            seen, sizes = base.abstract, out.sizes
            tracer.note_possible_alias(base, copy, viewed, lambda: values.can_view_as(seen, sizes))
            return tracer.wrap(copy, grad)
        value = Value.view(base, out, made, info.op, rest)
        if op is aten.reshape.default or (op is aten.view.default and tracer.decomposing):
            value.viewed = node
        if base.literal is not None and not any(type(r) is Expr for r in pytree.tree_leaves(rest)):
            value.constant = op(base.literal, *args[1:], **kwargs)
        return tracer.wrap(value, grad)
    return [
        tracer.wrap(Value.view(base, piece, tracer.recorder.item(made, i), *recipe), grad)
        for i, (piece, recipe) in enumerate(
            zip(out, _split_recipes(op, base, out, rest), strict=True)
        )
    ]


def _split_recipes(op: OpOverload, base: Value, out: list[Abstract], rest: Any) -> list[Argument]:
    """How each result of a view with several results is made again on its own."""
    if op is aten.unbind.int:
        dim = rest[0] if rest else 0
        return [(aten.select.int, (dim, i)) for i in range(len(out))]
    dim = rest[1] if len(rest) > 1 else 0
    recipes, first = [], 0
    for piece in out:
        last = first + piece.sizes[dim]
        recipes.append((aten.slice.Tensor, (dim, first, last)))
        first = last
    return recipes


@register_handler(INPLACE)
def record_inplace(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An operator that writes to its first argument: the new value, then the write."""
    if info.mutated != (0,):
        return HANDLERS[MUTATING](tracer, info, args, kwargs)
    target = args[0]
    results = tracer.call(info.functional, *info.arranged(args), **kwargs)
    many, uniform = isinstance(target, (list, tuple)), info.op in _FILL_OPS
    for t, result in zip(target, results, strict=True) if many else ((target, results),):
        value, new = tracer.value(t), tracer.value(result)
        node = cast_to_target(tracer, value.abstract, new.abstract, tracer.read(new), info.op)
        tracer.write(value, node, uniform)
    return target if info.op._schema.returns else None


_FILL_OPS = {aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}


def cast_to_target(
    tracer: Tracer, want: Abstract, have: Abstract, node: Node, op: OpOverload
) -> Node:
    """A result as the dtype and size of the tensor that it is written to."""
    if have.sizes != want.sizes and not all(map(tracer.scope.same, have.sizes, want.sizes)):
        raise MutationError(
            f"{op}: output with shape {list(want.sizes)} doesn't match the broadcast shape "
            f"{list(have.sizes)}",
            where=source.locate_user_line(),
        )
    if have.dtype is want.dtype:
        return node
    if promote.dtype_category(have.dtype) > promote.dtype_category(want.dtype):
        raise MutationError(
            f"{op}: result type {have.dtype} can't be cast to the desired output type {want.dtype}",
            where=source.locate_user_line(),
        )
    return tracer.recorder.emit(aten._to_copy.default, node, dtype=want.dtype)


@register_handler(OUT)
def record_out_variant(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """`out=`: the result is computed, then written to the tensors given for it."""
    if info.functional is None:
        raise UnsupportedError(
            f"{info.op} has no form without out=", where=source.locate_user_line()
        )
    names = [a.name for a in info.op._schema.arguments if a.is_out]
    given = [kwargs[n] for n in names]
    rest = {k: v for k, v in kwargs.items() if k not in names}
    targets = given[0] if isinstance(given[0], (list, tuple)) else given
    if len(names) == 1 and info.functional_dtype and len(targets) == 1:
        rest.setdefault("dtype", targets[0].dtype)
    results = tracer.call(info.functional, *info.arranged(args), **rest)
    single = not isinstance(results, (list, tuple))
    made = [results] if single else results
    if any(t.dtype is not r.dtype for t, r in zip(targets, made, strict=True)):
        check_out(tracer, info, args, rest, dict(zip(names, given, strict=True)), made)
    for target, result in zip(targets, made, strict=True):
        rebind_or_write(tracer, target, result, info.op)
    if not info.op._schema.returns:
        return None
    return targets[0] if single else tuple(targets)


def check_out(
    tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs, given: dict[str, Any], made: Any
) -> None:
    """That the operator writes to tensors of these dtypes, which are not those of its results."""
    own = {a.name for a in info.op._schema.arguments}
    lists = isinstance(next(iter(given.values())), (list, tuple))
    fit = dict.fromkeys(given, made) if lists else dict(zip(given, made, strict=True))
    call = args, {k: v for k, v in kwargs.items() if k in own}, given, fit

    check_out_by_kernel(info.op, *(pytree.tree_map(tracer.describe, part) for part in call))


def rebind_or_write(tracer: Tracer, target: object, result: object, op: OpOverload) -> None:
    """Write a result to a tensor given as `out=`; an empty one takes the result's size."""
    value, new = tracer.value(target), tracer.value(result)
    have, want = new.abstract, value.abstract
    if have.rank == want.rank and all(map(tracer.scope.same, have.sizes, want.sizes)):
        tracer.write(value, cast_to_target(tracer, want, have, tracer.read(new), op))
    elif type(target) is AbstractTensor and _can_resize(tracer, value, have):
        rebind(target, new)
    else:
        raise MutationError(
            f"{op}: out= has size {list(want.sizes)}, but the result has {list(have.sizes)}",
            where=source.locate_user_line(),
            fix="pass out= a tensor of the result's size, or assign the result",
        )


def _can_resize(tracer: Tracer, value: Value, have: Abstract) -> bool:
    """Whether torch would resize the tensor for the result, and nobody but the program sees it."""
    whole = value
    while whole.parent is not None and whole.op in (aten.alias.default, aten.detach.default):
        whole = whole.parent
    if whole.parent is not None or whole.storage.origin is not None:
        return False
    want = value.abstract
    return 0 in want.sizes or not all(map(tracer.scope.is_backed, (*want.sizes, *have.sizes)))


def rebind(t: AbstractTensor, value: Value) -> None:
    """Make a tensor that the user holds mean another value, sizes included."""
    held = t._value
    if isinstance(held, Value) and held.node.graph is not value.node.graph:
        raise MutationError(
            "a branch or loop body gives another size or shape to a tensor from outside of it",
            where=source.locate_user_line(),
            fix="compute a new tensor and return it",
        )
    if t._node is not None:
        set_val(t._node, make_abstract_tensor(t._abstract))
        t._node = None
    # The assignment asks the dispatcher about the tensors; that is no part of the program.
    with DisableTorchDispatch(), DisableTorchFunction():
        t.data = make_abstract_tensor(value.abstract)
    t._abstract = value.abstract
    t._value = value


@register_handler(INPLACE_VIEW)
def record_inplace_view(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """`t_`, `squeeze_`, ...: the tensor itself becomes a view of what it was."""
    target = args[0]
    if type(target) is not AbstractTensor or info.functional is None:
        raise MutationError(
            f"{info.op} would change the shape of a parameter, buffer or input of the program",
            where=source.locate_user_line(),
            fix=f"use the form that returns a new tensor: {info.name.rstrip('_')}(...)",
        )
    if tracer.value(target).storage.origin is not None and tracer.value(target).parent is None:
        raise MutationError(
            f"{info.op} would change the shape of an input of the program",
            where=source.locate_user_line(),
            fix=f"use the form that returns a new tensor: {info.name.rstrip('_')}(...)",
        )
    seen = tracer.call(info.functional, *args, **kwargs)
    rebind(target, tracer.value(seen))
    return target


@register_handler(DECOMPOSED)
def decompose(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A composite operator without a rule: torch's own kernel decomposes it."""
    result = trace_decomposition(tracer, info.op.decompose, args, kwargs)
    return record_pure(tracer, info, args, kwargs) if result is NotImplemented else result
