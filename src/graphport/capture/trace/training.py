"""The tracer of `training=True`: keeps views, mutation, dropout and batch norm as written.

Views and writes are those of the user's code and happen in memory when the program runs, so a value
never has to be made again. A write that no operator of the program stands for by itself (a running
statistic, an assigned buffer) is computed and copied into its place.

`with torch.no_grad():` becomes `wrap_with_set_grad_enabled(False, submod_1, ...)`. The rest of the
program runs in the mode that it was captured in.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any

import torch
from torch.fx import Node

from graphport.capture.trace import values
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.kinds import (
    cast_to_target,
    record_inplace,
    record_pure,
    record_view,
    wants_grad,
)
from graphport.capture.trace.recorder import Recorder, copy_val, describe_argument
from graphport.capture.trace.tracer import HANDLERS, MUTATING, Handler, Tracer, is_contiguous
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import OpOverload, pytree
from graphport.ops import Abstract, OpInfo, get_op_info, infer_by_meta
from graphport.ops.registry import overload_table
from graphport.program.extract import RegionGraph, list_inputs
from graphport.symbolic.bridge import NUMBERS
from graphport.tensors.abstract import get_val, set_val
from graphport.types import Args, Argument, Function, Kwargs


class TrainingTracer(Tracer):
    """Records what a training or quantisation tool wants to see."""

    def _choose(self, op: OpOverload) -> tuple[Handler, OpInfo]:
        handler, info = super()._choose(op)
        own: dict[Handler, Handler] = {
            record_inplace: keep_inplace,
            HANDLERS[MUTATING]: keep_mutating,
        }
        chosen = _TRAINING_HANDLERS.get(op) or own.get(handler, handler)
        return (handler if chosen is handler else _only_outermost(chosen, handler)), info

    def read(self, v: Value) -> Node:
        """Views stay views: nothing has to be recomputed after a write."""
        if self.recorder.frame.parent is not None:
            return super().read(v)
        return (
            v.node if v.node.graph is self.recorder.graph else self.recorder.lift_to_input(v.node)
        )

    def write(self, v: Value, node: Node, uniform: bool = False) -> None:
        if self.recorder.frame.parent is not None:
            super().write(v, node, uniform)
            return
        self.note_overwrite(v, self.recorder.emit(aten.copy_.default, self.read(v), node))

    def note_overwrite(self, v: Value, node: Node) -> None:
        """The node that has just written to a tensor stands for it from now on.

        Whether that is memory of its own must be as in the example, whatever is passed in.
        """
        for value in v.ancestry():
            self.require_layout(value)
        values.resolve_aliases(v.storage)
        v.node = node
        v.storage.version += 1
        v.storage.mutated = True
        v.version = v.storage.version
        v.constant = v.number = None


def _only_outermost(as_written: Handler, functional: Handler) -> Handler:
    """Branches and loop bodies are functional: what they write is returned, and copied then."""

    def handler(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
        within = tracer.recorder.frame.parent is not None
        return (functional if within else as_written)(tracer, info, args, kwargs)

    return handler


def keep_inplace(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An in-place operator, recorded as such once its functional form has agreed to the sizes."""
    target = args[0]
    if info.functional is None or info.mutated != (0,) or not isinstance(target, torch.Tensor):
        return record_inplace(tracer, info, args, kwargs)
    twin = get_op_info(info.functional)
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    described = [describe_argument(a) for a in info.arranged(lowered)]
    about = {k: describe_argument(v) for k, v in keywords.items()}
    rule = twin.rule or (lambda *a, **k: infer_by_meta(twin.op, a, k))
    out = rule(*described, **about)
    value = tracer.value(target)
    if isinstance(out, Abstract):
        cast_to_target(tracer, value.abstract, out, value.node, info.op)
    node = tracer.recorder.node(info.op, lowered, keywords, value.abstract, info.name)
    tracer.note_overwrite(value, node)
    return target


def keep_mutating(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """An operator that writes to several arguments, or returns something else than those."""
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    about = {k: describe_argument(v) for k, v in keywords.items()}
    out = None
    if info.op._schema.returns:
        out = infer_by_meta(info.op, [describe_argument(a) for a in lowered], about)
    node = tracer.recorder.node(info.op, lowered, keywords, out, info.name)
    given = dict(enumerate(args)) | kwargs
    for place in info.mutated:
        for t in pytree.tree_leaves(given.get(place)):
            if isinstance(t, torch.Tensor):
                value = tracer.value(t)
                tracer.note_overwrite(value, value.node)
    return tracer.fresh(out, node, wants_grad(args))


def copy_(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    value = tracer.value(args[0])
    node = tracer.recorder.node(
        info.op, [tracer.lower(a) for a in args], kwargs, value.abstract, info.name
    )
    tracer.note_overwrite(value, node)
    return args[0]


def keep_literal(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """A literal is new in every run: what is written to it must not last."""
    if hasattr(args[0], "_abstract"):
        return args[0]
    constant = tracer.state.literal(args[0])
    node = tracer.recorder.emit(aten.lift_fresh_copy.default, constant.node)
    value = Value(constant.abstract, node)
    value.constant = args[0]
    return tracer.wrap(value)


def dropout(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """The result has the sizes of the input."""
    base = tracer.value(args[0])
    out = get_op_info(aten.clone.default).apply_rule(base.abstract)
    lowered = (tracer.read(base), *args[1:])
    node = tracer.recorder.node(info.op, lowered, kwargs, out, info.name)
    return tracer.wrap(Value(out, node), wants_grad(args))


def batch_norm(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """In training it writes running statistics, which the schema does not say."""
    result = record_pure(tracer, info, args, kwargs)
    for statistic in args[3:5]:
        if statistic is not None and args[5]:
            tracer.value(statistic).storage.mutated = True
    return result


def contiguous(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """As written: an input may come in another layout, and a copy be none at another size."""
    base = tracer.value(args[0])
    node, wanted = tracer.read(base), kwargs.get("memory_format", torch.contiguous_format)
    if wanted is torch.contiguous_format and is_contiguous(node):
        made = tracer.recorder.node(info.op, (node,), kwargs, base.abstract, info.name)
        return tracer.wrap(Value.view(base, base.abstract, made, info.op, ()), wants_grad(args))
    out = get_op_info(aten.clone.default).apply_rule(base.abstract, memory_format=wanted)
    made = tracer.recorder.node(info.op, (node,), kwargs, out, info.name)
    return tracer.wrap(Value(out, made), wants_grad(args))


def keep_view(tracer: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
    """`view` stays a view: a write to it is one to its base."""
    if tracer.decomposing:
        return record_view(tracer, info, args, kwargs)
    base = tracer.value(args[0])
    rest = tuple(tracer.lower(a) for a in args[1:])
    out = info.apply_rule(base.abstract, *rest)
    node = tracer.recorder.node(info.op, (tracer.read(base), *rest), {}, out, info.name)
    return tracer.wrap(Value.view(base, out, node, info.op, rest), wants_grad(args))


_TRAINING_HANDLERS: dict[Any, Handler] = overload_table(
    {
        "dropout alpha_dropout feature_dropout feature_alpha_dropout": dropout,
        "batch_norm instance_norm": batch_norm,
        "contiguous": contiguous,
        "view": keep_view,
        "detach": record_view,
        "copy_": copy_,
        "lift_fresh": keep_literal,
        "lift_fresh_copy": record_pure,
    }
)


# Detaches what `torch.no_grad()` and `detach()` inside of a program exclude from differentiation.
#
# The graph has no regions. A value that was computed without gradients from something that has them
# is detached where the rest of the program reads it, so that differentiating the captured program
# gives the gradients of the original. What the program itself detaches stays detached wherever a
# run may have a gradient, whether or not the example asks for one.


def can_have_gradient(node: Node, state: Collection[Node], known: dict[Node, bool]) -> bool:
    """Whether a run can have a gradient at a node, of an input or of `state` that has one.

    `known` is what was found out about nodes before.
    """
    waiting = [node]
    while waiting:
        top = waiting[-1]
        val = get_val(top)
        reads = [] if top.target is aten.detach.default else top.all_input_nodes
        if top in known:
            waiting.pop()
        elif not _is_differentiable(val) or top.op == "placeholder":
            known[top] = _is_differentiable(val) and (val.requires_grad or top not in state)
        elif any(known.get(n) for n in reads) or all(n in known for n in reads):
            known[top] = any(known.get(n) for n in reads)
        else:
            waiting.extend(n for n in reads if n not in known)
    return known[node]


def detach_no_grad_results(recorder: Recorder, results: Iterable[object]) -> dict[Node, Node]:
    """Detach what leaves a region without gradients. Returns replacements for results."""
    inside = {n: None for n in recorder.grad_modes if n.graph is recorder.graph}
    if not inside or not recorder.grad_mode:
        return {}
    tracked = _find_tracked(recorder, inside)
    returned = {r for r in results if isinstance(r, Node)}
    apart: dict[Node, Node] = {}
    for node in list(inside):
        val = get_val(node)
        # An autograd.Function runs without gradients too, but its results have them.
        if node not in tracked or not isinstance(val, torch.Tensor) or val.requires_grad:
            continue
        outside = [u for u in node.users if u not in inside and u.target is not aten.detach.default]
        if not outside and node not in returned:
            continue
        with recorder.graph.inserting_after(node):
            detached = recorder.graph.call_function(aten.detach.default, (node,))
        detached.meta = dict(node.meta)
        for user in outside:
            user.replace_input_with(node, detached)
        apart[node] = detached
    return apart


def _find_tracked(recorder: Recorder, inside: dict[Node, None]) -> set[Node]:
    """Nodes that a run of the graph would differentiate through."""
    tracked: set[Node] = set()
    for node in recorder.graph.nodes:
        val = get_val(node)
        if node.op == "placeholder":
            if isinstance(val, torch.Tensor) and val.requires_grad:
                tracked.add(node)
        elif any(n in tracked for n in node.all_input_nodes):
            if node.target is not aten.detach.default and _is_differentiable(val):
                tracked.add(node)
                if node.target is operator.getitem and node.args[0] in inside:
                    inside[node] = None
    return tracked


def _is_differentiable(val: object) -> bool:
    if isinstance(val, (list, tuple)):
        return any(map(_is_differentiable, val))
    return isinstance(val, torch.Tensor) and (val.is_floating_point() or val.is_complex())


wrap_with_set_grad_enabled = higher_order.wrap_with_set_grad_enabled
_NUMBERS = (str, type(None), *NUMBERS)


@register_override(wrap_with_set_grad_enabled)
def retrace_region(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """The same region in a program that is captured once more."""
    mode, fn, *operands = args
    with torch.set_grad_enabled(mode), tracer.function_mode:
        return fn(*operands)


def wrap_grad_regions(recorder: Recorder) -> None:
    """Of a finished graph: each run of nodes in another mode than the program's moves out."""
    calls = [n for n in recorder.graph.nodes if n.op == "call_function"]
    for mode, group in groupby(calls, key=lambda n: _find_grad_mode(recorder, n)):
        if mode is not recorder.grad_mode:
            _wrap_grad_region(recorder, mode, list(group))


def _find_grad_mode(recorder: Recorder, node: Node) -> bool:
    """What a node was computed in; numbers have no gradients, and stay where they are read."""
    if node.target is operator.getitem:
        return _find_grad_mode(recorder, node.args[0])
    if isinstance(get_val(node), _NUMBERS):
        return recorder.grad_mode
    return recorder.grad_modes.get(node, recorder.grad_mode)


def _wrap_grad_region(recorder: Recorder, mode: bool, nodes: list[Node]) -> None:
    inside = set(nodes)
    reads = list_inputs(nodes)
    taken = [n for n in reads if n not in inside and n.op != "get_attr"]
    given = [n for n in nodes if any(u not in inside for u in n.users)]
    region = RegionGraph()
    for n in taken:
        set_val(region.take(n), copy_val(get_val(n)))
    for n in reads:
        if n.op == "get_attr":
            region.attach(n, recorder.frame.submodules.pop(str(n.target)))
    region.copy(*nodes)
    module = region.close([region.mapping[n] for n in given])
    outer = recorder.graph
    with outer.inserting_before(nodes[0]):
        reference = recorder.attach("submod", module, first=1)
        args: tuple[Argument, ...] = (mode, reference, *taken)
        call = outer.create_node(
            "call_function", wrap_with_set_grad_enabled, args, {}, "wrap_with_set_grad_enabled"
        )
        set_val(call, tuple(get_val(n) for n in given), nodes[0].meta)
        for i, n in enumerate(given):
            item = outer.create_node("call_function", operator.getitem, (call, i), {}, "getitem")
            item.meta = dict(n.meta)
            n.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for n in (*reversed(nodes), *(n for n in reads if n.op == "get_attr")):
        outer.erase_node(n)
