"""The training form (`training=True`): operators as they were written, mutation included.

Views and writes are those of the user's code and happen in memory when the program runs, so a value
never has to be made again. A write that no operator of the program stands for by itself (a running
statistic, an assigned buffer) is computed and copied into its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport.capture import aliasing
from graphport.capture.recorder import describe
from graphport.capture.tracer import (
    MUTATING,
    SPECIAL,
    Handler,
    Tracer,
    fitted,
    inplace,
    is_contiguous,
    pure,
    view,
    wants_grad,
)
from graphport.capture.values import Value
from graphport.ops import Abstract, OpInfo, info_of, meta_rule

aten = torch.ops.aten
Keywords = dict[str, Any]


class TrainingTracer(Tracer):
    """Records what a training or quantisation tool wants to see."""

    def _choose(self, op: Any) -> tuple[Handler, OpInfo]:
        handler, info = super()._choose(op)
        own = {inplace: written, SPECIAL[MUTATING]: mutating}
        chosen = _AS_WRITTEN.get(op) or own.get(handler, handler)
        return (handler if chosen is handler else _outermost(chosen, handler)), info

    def read(self, v: Value) -> Node:
        """A view sees what is written to its memory by itself."""
        if self.recorder.frame.parent is not None:
            return super().read(v)
        return v.node if v.node.graph is self.recorder.graph else self.recorder.brought(v.node)

    def write(self, v: Value, node: Node, uniform: bool = False) -> None:
        if self.recorder.frame.parent is not None:
            super().write(v, node, uniform)
            return
        self.overwritten(v, self.recorder.emit(aten.copy_.default, self.read(v), node))

    def overwritten(self, v: Value, node: Node) -> None:
        """The node that has just written to a tensor stands for it from now on.

        Whether that is memory of its own must be as in the example, whatever is passed in.
        """
        for value in v.ancestry():
            self.require_layout(value)
        aliasing.settle_written(v.storage)
        v.node = node
        v.storage.version += 1
        v.storage.mutated = True
        v.version = v.storage.version
        v.constant = v.number = None


def _outermost(as_written: Handler, functional: Handler) -> Handler:
    """Branches and loop bodies are functional: what they write is returned, and copied then."""

    def handler(tracer: Tracer, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
        within = tracer.recorder.frame.parent is not None
        return (functional if within else as_written)(tracer, info, args, kwargs)

    return handler


def written(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """An in-place operator, recorded as such once its functional form has agreed to the sizes."""
    target = args[0]
    if info.functional is None or info.mutated != (0,) or not isinstance(target, torch.Tensor):
        return inplace(tracer, info, args, kwargs)
    twin = info_of(info.functional)
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    described = [describe(a) for a in info.arranged(lowered)]
    about = {k: describe(v) for k, v in keywords.items()}
    rule = twin.rule or (lambda *a, **k: meta_rule(twin.op, a, k))
    out = rule(*described, **about)
    value = tracer.value(target)
    if isinstance(out, Abstract):
        fitted(tracer, value.abstract, out, value.node, info.op)
    node = tracer.recorder.node(info.op, lowered, keywords, value.abstract, info.name)
    tracer.overwritten(value, node)
    return target


def mutating(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """An operator that writes to several arguments, or returns something else than those."""
    lowered = [tracer.lower(a) for a in args]
    keywords = {k: tracer.lower(v) for k, v in kwargs.items()}
    about = {k: describe(v) for k, v in keywords.items()}
    out = None
    if info.op._schema.returns:
        out = meta_rule(info.op, [describe(a) for a in lowered], about)
    node = tracer.recorder.node(info.op, lowered, keywords, out, info.name)
    given = dict(enumerate(args)) | kwargs
    for place in info.mutated:
        for t in pytree.tree_leaves(given.get(place)):
            if isinstance(t, torch.Tensor):
                value = tracer.value(t)
                tracer.overwritten(value, value.node)
    return tracer.fresh(out, node, wants_grad(args))


def copy_(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    value = tracer.value(args[0])
    node = tracer.recorder.node(
        info.op, [tracer.lower(a) for a in args], kwargs, value.abstract, info.name
    )
    tracer.overwritten(value, node)
    return args[0]


def literal(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """A literal is new in every run: what is written to it must not last."""
    if hasattr(args[0], "_abstract"):
        return args[0]
    constant = tracer.state.literal(args[0])
    node = tracer.recorder.emit(aten.lift_fresh_copy.default, constant.node)
    value = Value(constant.abstract, node)
    value.constant = args[0]
    return tracer.wrap(value)


def dropout(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """A tensor like its input, whatever is left out."""
    base = tracer.value(args[0])
    out = info_of(aten.clone.default).rule(base.abstract)
    lowered = (tracer.read(base), *args[1:])
    node = tracer.recorder.node(info.op, lowered, kwargs, out, info.name)
    return tracer.wrap(Value(out, node), wants_grad(args))


def batch_norm(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """In training it writes running statistics, which the schema does not say."""
    result = pure(tracer, info, args, kwargs)
    for statistic in args[3:5]:
        if statistic is not None and args[5]:
            tracer.value(statistic).storage.mutated = True
    return result


def contiguous(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """As written: an input may come in another layout, and a copy be none at another size."""
    base = tracer.value(args[0])
    node, wanted = tracer.read(base), kwargs.get("memory_format", torch.contiguous_format)
    if wanted is torch.contiguous_format and is_contiguous(node):
        made = tracer.recorder.node(info.op, (node,), kwargs, base.abstract, info.name)
        return tracer.wrap(Value.view(base, base.abstract, made, info.op, ()), wants_grad(args))
    out = info_of(aten.clone.default).rule(base.abstract, memory_format=wanted)
    made = tracer.recorder.node(info.op, (node,), kwargs, out, info.name)
    return tracer.wrap(Value(out, made), wants_grad(args))


def as_view(tracer: Any, info: OpInfo, args: Any, kwargs: Keywords) -> Any:
    """`view` stays one: whoever writes to it means the memory of what it shows."""
    if tracer.decomposing:
        return view(tracer, info, args, kwargs)
    base = tracer.value(args[0])
    rest = tuple(tracer.lower(a) for a in args[1:])
    out = info.rule(base.abstract, *rest)
    node = tracer.recorder.node(info.op, (tracer.read(base), *rest), {}, out, info.name)
    return tracer.wrap(Value.view(base, out, node, info.op, rest), wants_grad(args))


_AS_WRITTEN: dict[Any, Handler] = {
    aten.dropout.default: dropout,
    aten.alpha_dropout.default: dropout,
    aten.feature_dropout.default: dropout,
    aten.feature_alpha_dropout.default: dropout,
    aten.batch_norm.default: batch_norm,
    aten.instance_norm.default: batch_norm,
    aten.contiguous.default: contiguous,
    aten.view.default: as_view,
    aten.detach.default: view,
    aten.copy_.default: copy_,
    aten.lift_fresh.default: literal,
    aten.lift_fresh_copy.default: pure,
}
