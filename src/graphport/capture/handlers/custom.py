"""Handlers of custom operators: fake implementations and auto-functionalisation.

A fake implementation may ask for sizes that only running can tell, and an operator may write to its
arguments. `torch.library.get_ctx().new_dynamic_size()` inside of a fake implementation gives a
fresh symbol. The graph obtains it from the operator's result: as a size of a tensor, or as a
returned number.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import torch

from graphport import process, source
from graphport.capture.handlers.data_dependent import locate_size, make_size_reader
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.kinds import decompose, record_pure, wants_grad
from graphport.capture.trace.recorder import Frame, describe_argument
from graphport.capture.trace.tracer import COMPOSITE, CUSTOM, MUTATING, Tracer, register_handler
from graphport.compat.operators import higher_order
from graphport.compat.torch import can_auto_functionalize, fake_impl, pytree
from graphport.errors import MutationError, UnsupportedError
from graphport.ops import OpInfo, get_op_info, infer_by_meta
from graphport.symbolic import Expr, Scope
from graphport.symbolic.bridge import from_torch, to_torch
from graphport.tensors.abstract import Abstract
from graphport.types import Args, Argument, Function, Kwargs


class FakeImplContext:
    """What `torch.library.get_ctx()` returns while a program is captured."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.made: list[Expr] = []

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        if not isinstance(min, int) or not isinstance(max, (int, type(None))) or min < 0:
            raise ValueError(
                f"new_dynamic_size(min={min}, max={max}): limits are plain ints, and a size is "
                "never negative"
            )
        symbol = self._scope.fresh(
            lower=min,
            upper=math.inf if max is None else max,
            origin=source.locate_user_expression(),
        )
        self.made.append(symbol)
        return to_torch(symbol)

    create_unbacked_symint = new_dynamic_size


class _Thread(threading.local):
    sizes: FakeImplContext | None = None
    """Of the fake implementation that is running."""


_thread = process.make_thread_local(_Thread)


def patch_fake_impl_context() -> Iterator[process.Replacement]:
    """A fake implementation asks torch for new sizes; each thread has its own."""
    before = fake_impl.global_ctx_getter
    yield fake_impl, "global_ctx_getter", lambda: _thread.sizes or before()


@register_handler(CUSTOM)
def record_custom(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A custom operator: its fake implementation describes it, or in a draft the example."""
    sizes = FakeImplContext(tracer.scope)
    # The line to name is where the operator is called, not where its sizes are made up.
    where = source.locate_user_expression()
    outer, _thread.sizes = _thread.sizes, sizes
    try:
        result = record_pure(tracer, info, args, kwargs)
    except UnsupportedError as error:
        if tracer.example is None:
            raise
        result = _record_by_example(tracer, info, args, kwargs, sizes)
        tracer.scope.passed_over.append(error)
    finally:
        _thread.sizes = outer
    for symbol in sizes.made:
        tracer.scope.origins[symbol] = where
        for part in result if isinstance(result, (list, tuple)) else [result]:
            found = isinstance(part, torch.Tensor) and tracer.value(part)
            if found and symbol in found.abstract.sizes:
                dim = found.abstract.sizes.index(symbol)
                tracer.scope.origins[symbol] = locate_size(where, dim)
                tracer.recorder.define(symbol, make_size_reader(tracer, found.node, dim, symbol))
    return result


def _record_by_example(
    tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs, sizes: FakeImplContext
) -> Argument:
    """In a draft: results have the dtype and rank that they have in the example, of any size."""
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}

    def describe(x: Any) -> Argument:
        if not isinstance(x, torch.Tensor):
            raise UnsupportedError(
                f"{info.op} returns a {type(x).__name__}, and has no fake implementation",
                where=source.locate_user_line(),
            )
        shape = tuple(from_torch(sizes.new_dynamic_size()) for _ in x.shape)
        return Abstract(shape, x.dtype, x.device)

    assert tracer.example is not None
    out = pytree.tree_map(describe, tracer.example.call(info.op, lowered, keywords))
    node = tracer.recorder.node(info.op, lowered, keywords, out, info.name)
    return tracer.fresh(out, node, wants_grad(args))


@register_handler(COMPOSITE)
def record_composite(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Kept whole; what it returns is inferred from its decomposition, outside of the graph."""
    recorder = tracer.recorder
    with recorder.enter_frame(Frame(recorder.frame)):
        inner = decompose(tracer, info, args, kwargs)
        out = pytree.tree_map_only(torch.Tensor, lambda t: tracer.value(t).abstract, inner)
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    node = recorder.node(info.op, lowered, keywords, out, info.name)
    result = tracer.fresh(out, node, wants_grad(args))
    for t in pytree.tree_leaves(result):
        if isinstance(t, torch.Tensor):
            recorder.define_sizes(tracer.value(t).node, on_entry=False)
    return result


auto_functionalized = higher_order.auto_functionalized


@register_handler(MUTATING)
def functionalise_mutating(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """Torch's higher-order call that returns what the operator writes after what it returns."""
    if not can_auto_functionalize(info.op):
        raise UnsupportedError(
            f"{info.op} writes to its arguments and has no form that returns new values",
            where=source.locate_user_line(),
        )
    schema = info.op._schema
    given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    _refuse_aliased_arguments(tracer, info, given)
    result, news = _record_auto_functionalized(tracer, info, given)
    for name, new in news.items():
        _write(tracer, given[name], new)
    return result


def _refuse_aliased_arguments(tracer: Tracer, info: OpInfo, given: dict[str, object]) -> None:
    """Refuse arguments that alias where one is written: values cannot express that."""
    holders: dict[Any, str] = {}
    written = {a.name for a in info.op._schema.arguments if a.alias_info and a.alias_info.is_write}
    for name, x in given.items():
        for t in pytree.tree_leaves(x):
            if not isinstance(t, torch.Tensor):
                continue
            other = holders.setdefault(tracer.value(t).storage, name)
            if other is not name and not written.isdisjoint((name, other)):
                raise MutationError(
                    f"{info.op} writes to tensors that alias, {other!r} and {name!r}",
                    where=source.locate_user_line(),
                    fix=f"pass a copy: {name}=x.clone()",
                )


def _record_auto_functionalized(
    tracer: Tracer, info: OpInfo, given: dict[str, object]
) -> tuple[Any, dict[str, Any]]:
    """The result of the operator and the new values of the arguments that it writes."""
    schema = info.op._schema
    lowered = {name: tracer.lower(x) for name, x in given.items()}
    about = {name: describe_argument(x) for name, x in lowered.items()}
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    names = [n for n in names if given[n] is not None]
    results: list[Any] = [None]
    if schema.returns:
        out = infer_by_meta(info.op, (), about)
        results = [out] if len(schema.returns) == 1 else list(out)
    news = [about[n] for n in names]
    node = tracer.recorder.node(
        auto_functionalized, (info.op,), lowered, (*results, *news), "auto_functionalized"
    )
    made = tracer.fresh((*results, *news), node)
    first = made[: len(results)]
    found = dict(zip(names, made[len(results) :], strict=True))
    return (first[0] if len(schema.returns) < 2 else tuple(first)), found


def _write(tracer: Tracer, target: Any, new: Argument) -> None:
    pairs = zip(target, new, strict=True) if isinstance(target, (list, tuple)) else [(target, new)]
    for t, x in pairs:
        tracer.write(tracer.value(t), tracer.read(tracer.value(x)))


@register_override(auto_functionalized)
def retrace_auto_functionalized(
    tracer: Tracer, func: Function, args: Args, kwargs: Kwargs
) -> Argument:
    """The same call in a program that is captured once more."""
    result, news = _record_auto_functionalized(tracer, get_op_info(args[0]), kwargs)
    first = result if isinstance(result, tuple) else (result,)
    return (*first, *news.values())
