"""`torch.autograd.Function` in training form: captures forward and backward as subgraphs.

Forward and backward become graphs of their own under torch's `autograd_function_apply`. What the
forward leaves on its context for the backward are further results of its graph. In the functional
form a Function is no more than what its forward computes, which needs nothing from here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointFunction

from graphport import process, source
from graphport.capture.trace.kinds import wants_grad
from graphport.capture.trace.subgraph import Subgraph
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.training import TrainingTracer
from graphport.capture.trace.values import Value
from graphport.compat.operators import higher_order
from graphport.compat.torch import OpOverload, pytree
from graphport.errors import ExportError, UnsupportedError
from graphport.tensors.abstract import AbstractTensor, describe, make_abstract_tensor
from graphport.types import Argument

autograd_function_apply = higher_order.autograd_function_apply


class Context:
    """What a Function's own code sees as `ctx`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.without_gradient: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always there while a backward is captured."""

    def mark_dirty(self, *tensors: object) -> None:
        raise UnsupportedError(
            "an autograd.Function that writes to its arguments has no training form",
            where=source.locate_user_line(),
            fix="return a new tensor from forward",
        )


@dataclass
class FunctionCall:
    """A call outside of training form, which a program may differentiate itself."""

    function: Any
    context: Any
    arguments: list[Node | None]
    """As many as the arguments: None for one that is no tensor."""
    outputs: list[Node | None]

    @property
    def inputs(self) -> list[Node]:
        return [n for n in self.arguments if n is not None]


@contextmanager
def record_functions(tracer: Tracer) -> Iterator[None]:
    """While this lasts, calls of Functions in this thread are recorded with their backward."""
    before = getattr(_thread, "tracer", None)
    _thread.tracer = tracer
    try:
        with _APPLY_PATCH:
            yield
    finally:
        _thread.tracer = before


_thread = process.make_thread_local()


def _patch_apply() -> Iterator[process.Replacement]:
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Argument, **kwargs: Argument) -> Any:
        tracer = getattr(_thread, "tracer", None)
        if tracer is None or not wants_grad(args):
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction and isinstance(tracer, TrainingTracer):
            # Its backward computes the forward again: the derivative of what it runs is the same.
            function, _, *operands = args
            return function(*operands)
        if not isinstance(tracer, TrainingTracer):
            call = functools.partial(original.__get__(None, cls), **kwargs)
            return note_function_call(tracer, cls, args, call)
        return record_function_call(tracer, cls, args)

    kind = type(autograd_function_apply)
    call = kind.__call__

    def call_again(op: OpOverload, *args: object, **kwargs: object) -> Argument:
        tracer = getattr(_thread, "tracer", None)
        if not isinstance(tracer, TrainingTracer):
            return call(op, *args, **kwargs)
        return _retrace_call(tracer, *args)

    yield torch.autograd.Function, "apply", classmethod(apply)
    yield kind, "__call__", call_again


_APPLY_PATCH = process.Patch(_patch_apply)


def note_function_call(
    tracer: Tracer, cls: Any, args: tuple[object, ...], apply: Callable[..., Any]
) -> Argument:
    """Call a Function as ever, and remember what it was called with."""
    arguments = [tracer.read(tracer.value(a)) if _is_captured(a) else None for a in args]
    made = apply(*args)
    leaves = pytree.tree_leaves(made)
    outputs = [tracer.read(tracer.value(t)) if _is_captured(t) else None for t in leaves]
    context = next((t.grad_fn for t in leaves if isinstance(t, torch.Tensor) and t.grad_fn), None)
    if context is not None:
        call = FunctionCall(cls, SavedContext(context, tracer), arguments, outputs)
        tracer.function_calls.update((n, call) for n in call.outputs if n is not None)
    return made


def _is_captured(x: object) -> bool:
    """Whether the graph has a tensor already: what is from outside may not be used."""
    return type(x) is AbstractTensor or isinstance(x, torch.nn.Parameter)


class SavedContext:
    """The `ctx` of a Function, as its backward sees it in the program."""

    def __init__(self, context: Any, tracer: Tracer) -> None:
        self._context = context
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(map(self._attach, self._context.saved_tensors))

    def _attach(self, t: Any) -> Any:
        """The tensor that was saved: torch keeps results of Functions detached."""
        calls = self._tracer.function_calls
        for value in self._tracer.value(t).ancestry() if _has_history(t) else ():
            if value.node in calls:
                return self._tracer.hold(value, grad=True)
        return t


def _has_history(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.grad_fn is not None


def record_function_call(tracer: Tracer, cls: Any, args: tuple[object, ...]) -> Argument:
    context = Context(tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args))
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    forward = Subgraph(tracer, "fwd_body")
    forward.take(*tensors)
    kept: list[Any] = []
    returned: list[Any] = []

    def run() -> Any:
        with torch.no_grad():
            out = _run_forward(cls, context, args)
        returned[:] = pytree.tree_leaves(out)
        kept[:] = [
            t for t in pytree.tree_leaves(_list_saved(context)) if isinstance(t, torch.Tensor)
        ]
        return out, kept

    forward.run(run)
    assert forward.spec is not None
    single = forward.spec.children()[0].is_leaf()
    count = len(forward.results) - len(kept)
    outs, saved = forward.results[:count], forward.results[count:]

    backward = Subgraph(tracer, "bwd_body")
    grads = [_add_input(backward, f"grad_{i}", n) for i, n in enumerate(outs)]
    inner = {id(t): _add_input(backward, n.name, n) for t, n in zip(kept, saved, strict=True)}
    _rebind_context(context, inner)

    def run_back() -> Argument:
        with torch.no_grad():
            given = cls.backward(context, *grads)
        return given if isinstance(given, tuple) else (given,)

    try:
        backward.run(run_back)
    except ExportError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"the backward of {cls.__name__} cannot be captured: {error}",
            where=source.locate_function(cls.backward),
            fix="write it with torch functions on its arguments and saved tensors",
        ) from error
    by_argument = dict(zip(map(id, args), backward.results, strict=False))
    for outer in backward.outside:  # what the backward uses from around comes through the forward
        backward.given.append(backward.frame.inputs[outer])
        with tracer.recorder.enter_frame(forward.frame):
            saved.append(tracer.recorder.lift_to_input(outer))
    taken = forward.outside
    nodes = {tracer.read(tracer.value(t)): by_argument.get(id(t)) for t in tensors}
    backward.results = [nodes.get(n) for n in taken]
    about = [describe(n) for n in outs]
    forward.results = [outs[0] if single else tuple(outs), tuple(saved)]
    _drop_grad_modes(tracer, forward, backward)
    graphs = [forward.finish(taken), backward.finish([])]
    unmarked = {id(t) for t in context.without_gradient}
    options = {
        "non_differentiable_idx": [i for i, t in enumerate(returned) if id(t) in unmarked],
        "saved_for_backward_idx": list(range(len(saved))),
    }
    described: Any = about[0] if single else tuple(about)
    node = tracer.recorder.node(
        autograd_function_apply, (*graphs, *taken), options, described, "autograd_function_apply"
    )
    return tracer.fresh(described, node, grad=True)


def _drop_grad_modes(tracer: Tracer, *graphs: Subgraph) -> None:
    """That a Function computes without gradients is torch's business, not the graphs'."""
    inside = {g.frame.graph for g in graphs}
    modes = tracer.recorder.grad_modes
    for node in [n for n in modes if n.graph in inside]:
        del modes[node]


def _run_forward(cls: Any, context: Context, args: tuple[object, ...]) -> Argument:
    """Both ways in which a Function may be written."""
    if cls.setup_context is torch.autograd.Function.setup_context:
        return cls.forward(context, *args)
    out = cls.forward(*args)
    cls.setup_context(context, args, out)
    return out


def _list_saved(context: Context) -> list[object]:
    """What is kept for the backward: saved tensors, and attributes of the user's."""
    own = ("needs_input_grad", "without_gradient")
    return [v for k, v in vars(context).items() if k not in own]


def _rebind_context(context: Context, inner: dict[int, object]) -> None:
    """Let the context hold the backward's own values."""
    for name, value in vars(context).items():
        if name != "without_gradient":
            setattr(context, name, pytree.tree_map(lambda t: inner.get(id(t), t), value))


def _add_input(graph: Subgraph, name: str, like: Node) -> torch.Tensor:
    abstract = describe(like)
    node = graph.frame.open(name, make_abstract_tensor(abstract))
    graph.given.append(node)
    with graph.tracer.recorder.enter_frame(graph.frame):
        graph.tracer.recorder.define_sizes(node)
    return graph.tracer.wrap(Value(abstract, node, origin=node))


def _retrace_call(tracer: Tracer, forward: Any, backward: Any, *operands: object) -> Argument:
    """The same call in a program that is captured once more."""

    class Again:
        setup_context = torch.autograd.Function.setup_context

        @staticmethod
        def forward(ctx: Any, *inputs: object) -> Any:
            out, saved = forward(*inputs)
            ctx.save_for_backward(*saved)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: object) -> Any:
            return backward(*grads, *ctx.saved_tensors)

    return record_function_call(tracer, Again, operands)
