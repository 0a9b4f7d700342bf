"""`torch.cond` and other higher-order operators: captures the functions as subgraphs.

torch's Python functions for control flow would compile with Dynamo first; while a program is
captured a patch says that this has been done, and they call their operators under the function
mode, which has them here and in `loops`.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.trace.function_mode import HIGHER_ORDER, register_override
from graphport.capture.trace.recorder import describe_argument
from graphport.capture.trace.subgraph import Subgraph
from graphport.capture.trace.tracer import Tracer
from graphport.compat.operators import higher_order
from graphport.compat.torch import (
    DisableTorchDispatch,
    DispatchKey,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    cond_module,
    disable_current_modes,
    invoke_subgraph_module,
    is_within,
    pytree,
    scan_module,
    while_loop_module,
)
from graphport.errors import ExportError, UnsupportedError, UserError
from graphport.ops import Abstract
from graphport.process import Replacement
from graphport.symbolic import Expr, Truth, eq, not_
from graphport.symbolic.bridge import SYMBOLIC_NUMBERS, from_torch, to_expression, to_torch
from graphport.tensors.abstract import get_val
from graphport.types import Args, Argument, Function, Kwargs


def patch_control_flow() -> Iterator[Replacement]:
    """torch's control flow calls its operators without compiling anything."""
    before = torch.compiler.is_dynamo_compiling

    def is_dynamo_compiling() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return is_within(caller, "higher_order_ops") or before()

    yield torch.compiler, "is_dynamo_compiling", is_dynamo_compiling
    yield invoke_subgraph_module, "invoke_subgraph_placeholder", _call_region
    # What operands may be is said here and in `loops`, in the words of the program.
    for module in (cond_module, while_loop_module, scan_module):
        if hasattr(module, _VALIDATOR):
            yield module, _VALIDATOR, _skip_validation


_VALIDATOR = "validate_subgraph_args_types"


def _skip_validation(operands: object) -> None:
    pass


def _call_region(fn: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """A call of what torch.compiler.nested_compile_region marks: a graph of its own."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    @functools.wraps(fn)
    def flat(*tensors: torch.Tensor) -> Any:
        given = list(leaves)
        for i, t in zip(places, tensors, strict=True):
            given[i] = t
        inner, keywords = pytree.tree_unflatten(given, spec)
        return fn(*inner, **keywords)

    return higher_order.invoke_subgraph(flat, None, *(leaves[i] for i in places))


def record_call(
    tracer: Tracer,
    op: OpOverload,
    args: Sequence[object],
    results: Sequence[object],
    reads: Sequence[object],
    options: Mapping[str, object] | None = None,
) -> list[Argument]:
    """Record the operator on graphs and operands; its results, for the user."""
    recorder = tracer.recorder
    described = [r.number if isinstance(r, RuntimeNumber) else r for r in results]
    node = recorder.node(op, args, dict(options or {}), tuple(described), op.name())
    grad = torch.is_grad_enabled() and any(map(_has_grad, reads))
    made = list(tracer.fresh(tuple(described), node, grad))
    for x in made:
        if isinstance(x, torch.Tensor):
            recorder.define_sizes(tracer.value(x).node, on_entry=False)
    for i, r in enumerate(results):
        if isinstance(r, RuntimeNumber):
            made[i] = to_torch(r.symbolic_value)
            if r.kind is bool:  # what the call returns is the truth itself
                recorder.bind_expression(r.symbolic_value, recorder.number(r.number))
    return made


@dataclass(frozen=True)
class RuntimeNumber:
    """A number that is known only when the program runs; of a bool, 1 or 0."""

    number: Expr
    kind: type

    @property
    def symbolic_value(self) -> Expr:
        if self.kind is not bool:
            return self.number
        truth = eq(self.number, 1)
        assert isinstance(truth, Expr)  # its symbol may be 0 as well
        return truth

    @classmethod
    def fresh(cls, tracer: Tracer, kind: type, lower: float, upper: float) -> RuntimeNumber:
        number = tracer.scope.fresh(
            float if kind is float else int,
            lower=lower,
            upper=upper,
            origin=source.locate_user_expression(),
        )
        made = cls(number, kind)
        if kind is bool:
            tracer.scope.origins[made.symbolic_value] = number
        return made


def _has_grad(x: object) -> bool:
    val = get_val(x) if isinstance(x, Node) else x
    return isinstance(val, torch.Tensor) and val.requires_grad


@register_override(higher_order.cond)
def cond(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    pred, true_fn, false_fn, operands = args
    pred = _normalise_predicate(tracer, pred)
    if isinstance(pred, (bool, int, float)):
        with tracer.function_mode:
            return (true_fn if pred else false_fn)(*operands)
    holds: Truth = from_torch(pred) if isinstance(pred, torch.SymBool) else True
    opposite = not_(holds) if isinstance(holds, Expr) else True
    branches = []
    for name, fn, where in (("true_graph", true_fn, holds), ("false_graph", false_fn, opposite)):
        branch = Subgraph(tracer, name)
        branch.take(*pytree.tree_leaves(tuple(operands)))
        branch.run(fn, *operands, where=where)
        branches.append(branch)
    return _merge_branches(tracer, func, pred, branches)


def _merge_branches(
    tracer: Tracer, func: object, pred: object, branches: list[Subgraph]
) -> Argument:
    """The call that takes one branch or the other, and what the program knows after it."""
    a, b = branches
    if a.spec != b.spec:
        _refuse_mismatch(a, b, f"{_format_structure(a)} against {_format_structure(b)}")
    count = len(a.results)
    written = list(dict.fromkeys(w.base for branch in branches for w in branch.written))
    for branch in branches:
        branch.add_written(written)
    results = _join_results(tracer, a, b)
    outside = list(dict.fromkeys(n for branch in branches for n in branch.outside))
    graphs = [branch.finish(outside) for branch in branches]
    made = record_call(tracer, func, (tracer.lower(pred), *graphs, outside), results, outside)
    for base, new in zip(written, made[count:], strict=True):
        tracer.write(base, tracer.read(tracer.value(new)))
    for branch in branches:
        branch.note_possible_alias(made)
    return pytree.tree_unflatten(made[:count], a.spec)


def _normalise_predicate(tracer: Tracer, pred: Argument) -> Argument:
    """A tensor or a symbolic bool; a Python number where the answer is known."""
    if isinstance(pred, SYMBOLIC_NUMBERS):
        pred = pred != 0
    if isinstance(pred, torch.SymBool):
        known = tracer.scope.decide(from_torch(pred))
        return pred if known is None else known
    if not isinstance(pred, torch.Tensor):
        if isinstance(pred, (bool, int, float)):
            return pred
        raise UserError(
            f"the predicate of torch.cond is a {type(pred).__name__}, not a bool",
            where=source.locate_user_line(),
            fix="pass a tensor of one bool, or a comparison of sizes: x.shape[0] > 4",
        )
    if pred.dtype is not torch.bool or pred.numel() != 1:
        raise UserError(
            f"the predicate of torch.cond is a single bool, got {tracer.value(pred).abstract}",
            where=source.locate_user_line(),
            fix="reduce it: pred.any(), pred.all() or x.sum() > 0",
        )
    literal = tracer.value(pred).literal
    if literal is None:
        return pred
    with DisableTorchDispatch():  # reading data is no part of the program
        return bool(literal)


def _join_results(tracer: Tracer, a: Subgraph, b: Subgraph) -> list[Argument]:
    """What the results are, whichever branch is taken."""
    joined: list[Any] = []
    for i, (x, y) in enumerate(zip(a.results, b.results, strict=True)):
        u, v = describe_argument(x), describe_argument(y)
        kind = a.kind(i)
        if isinstance(u, Abstract) and isinstance(v, Abstract):
            if (u.dtype, u.rank) != (v.dtype, v.rank):
                _refuse_mismatch(a, b, f"result {i} is {u} against {v}")
            if u.device != v.device:
                _refuse_mismatch(a, b, f"result {i} is {u} on {u.device} against {v} on {v.device}")
            if u.sizes != v.sizes or u.strides != v.strides:
                a.contiguous(i)
                b.contiguous(i)
            joined.append(_join_tensors(tracer, u, v))
        elif kind is not b.kind(i):
            _refuse_mismatch(a, b, f"result {i} is {format_value(u)} against {format_value(v)}")
        elif not isinstance(x, Node) and not isinstance(y, Node) and x == y:
            joined.append(x)
        elif kind in NUMBER_TYPES:
            limits = (0, 1) if kind is bool else _join_ranges(tracer, from_torch(u), from_torch(v))
            joined.append(RuntimeNumber.fresh(tracer, kind, *limits))
        else:
            _refuse_mismatch(a, b, f"result {i} is {format_value(u)} against {format_value(v)}")
    return joined


def _join_tensors(tracer: Tracer, u: Abstract, v: Abstract) -> Abstract:
    sizes = tuple(
        p if tracer.scope.same(p, q) else _join_sizes(tracer, p, q)
        for p, q in zip(u.sizes, v.sizes, strict=True)
    )
    kept = u._strides if u.sizes == v.sizes and u.strides == v.strides else None
    return Abstract(sizes, u.dtype, u.device, kept)


def _join_sizes(tracer: Tracer, p: object, q: object) -> Expr:
    lower, upper = _join_ranges(tracer, p, q)
    return RuntimeNumber.fresh(tracer, int, max(0, lower), upper).number


def _join_ranges(tracer: Tracer, p: Argument, q: Any) -> tuple[float, float]:
    one, other = tracer.scope.range(p), tracer.scope.range(q)
    return min(one.lower, other.lower), max(one.upper, other.upper)


NUMBER_TYPES = (int, float, bool)


def _format_structure(branch: Subgraph) -> str:
    assert branch.spec is not None
    return str(
        pytree.tree_unflatten(
            [format_value(describe_argument(r)) for r in branch.results], branch.spec
        )
    )


def format_value(x: object) -> str:
    return str(x) if isinstance(x, (Abstract, torch.SymInt)) else repr(x)


class BranchMismatchError(UserError):
    """Branches that return different things."""


def _refuse_mismatch(a: Subgraph, b: Subgraph, how: str) -> None:
    raise BranchMismatchError(
        f"the branches of torch.cond return different things: {how}\n"
        f"  true_fn   at {a.where}\n  false_fn  at {b.where}",
        where=source.locate_user_line(),
        fix="return the same structure, of the same dtype, rank and device, from both",
    )


# Any other higher-order operator that calls a function on its operands.
#
# The function becomes a subgraph. How the operator calls it is seen by letting the
# operator's own kernel do it once: what it calls the function with must be its operands, and what
# it returns must be what the function returned. An operator that does more cannot be captured.


@register_override(HIGHER_ORDER)
def record_other_call(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    call = _HigherOrderCall(tracer, func)
    if not any(map(_is_function, args)):
        with tracer.function_mode:  # it is only made of other operators
            return call.run(args, kwargs)
    with disable_current_modes():
        out = call.run([call.stub(a) if _is_function(a) else a for a in args], kwargs)
    return call.finish(args, kwargs, out)


def _is_function(x: object) -> bool:
    return callable(x) and not isinstance(
        x, (torch.Tensor, OpOverload, OpOverloadPacket, HigherOrderOperator, type)
    )


class _HigherOrderCall:
    """One call of an operator."""

    def __init__(self, tracer: Tracer, func: HigherOrderOperator) -> None:
        self.tracer = tracer
        self.func = func
        kernel = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if kernel is None:
            raise self.refusal("it has no implementation for any device")
        self.kernel: Callable[..., Any] = kernel
        self.graph: Subgraph | None = None
        self.running = False
        """Whether the user's function is."""
        self.operands: tuple[Any, ...] = ()
        """What it is called with."""
        self.returned: list[_Result] = []

    def refusal(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"torch.ops.higher_order.{self.func.name()} cannot be captured: {why}",
            where=source.locate_user_line(),
            fix="call the function itself, or wrap the operator in a torch.library.custom_op",
        )

    def run(self, args: Args, kwargs: Argument) -> Argument:
        """Let the kernel do its work, which may be more than can be followed."""
        try:
            return self.kernel(*args, **kwargs)
        except ExportError:
            raise
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as e:
            if self.running:  # the user's own function
                raise
            raise self.refusal(f"its implementation fails with {type(e).__name__}: {e}") from e

    def stub(self, fn: Callable[..., object]) -> Callable[..., Any]:
        """What the kernel calls in place of the function."""

        def call(*args: Argument, **kwargs: Argument) -> Any:
            if self.graph is not None or kwargs:
                raise self.refusal("it calls its functions more than once, or with keywords")
            self.operands = args
            graph = self.graph = Subgraph(self.tracer, f"{self.func.name()}_graph")
            self.running = True
            with self.tracer:
                graph.take(*pytree.tree_leaves(args))
                graph.run(fn, *args)
            self.running = False
            self.returned = [_Result() for _ in graph.results]
            assert graph.spec is not None
            return pytree.tree_unflatten(self.returned, graph.spec)

        return call

    def finish(self, args: Args, kwargs: Argument, out: Argument) -> Argument:
        """Record the call on the graph, with all that the graph uses as operands."""
        tracer, graph = self.tracer, self.graph
        leaves, spec = pytree.tree_flatten(out)
        if graph is None or leaves != self.returned:
            raise self.refusal("it computes with what its function returns")
        if sum(map(_is_function, args)) > 1:
            raise self.refusal("it takes several functions")
        place = self._place(args)
        written = [w.base for w in graph.written]
        graph.add_written(written)
        outside = graph.outside
        reference = graph.finish(outside)
        results = [to_expression(r) for r in map(describe_argument, graph.results)]
        placed = [self._lower(a) for a in place(reference, outside)]
        options = {key: self._lower(a) for key, a in kwargs.items()}
        self._check(placed, options, outside)
        made = record_call(tracer, self.func, placed, results, outside, options)
        count = len(self.returned)
        for base, new in zip(written, made[count:], strict=True):
            tracer.write(base, tracer.read(tracer.value(new)))
        graph.note_possible_alias(made[:count])
        return pytree.tree_unflatten(made[:count], spec)

    def _lower(self, x: object) -> Argument:
        """An argument as it stands in the graph, whatever container it is in."""
        tracer = self.tracer
        return pytree.tree_map(lambda y: tracer.recorder.argument(tracer.lower(y)), x)

    def _check(self, args: Args, kwargs: Argument, outside: Sequence[Node]) -> None:
        """The call as it is recorded must call the graph with its inputs, in their order."""
        called: list[Any] = []
        returned = [_Result() for _ in self.returned]

        def graph(*given: Any) -> Any:
            called.append(given)
            return tuple(returned)

        def described(x: object) -> Argument:
            if isinstance(x, Node):
                return graph if x.op == "get_attr" else get_val(x)
            return x

        with disable_current_modes():
            args, kwargs = pytree.tree_map(described, (args, kwargs))
            out = self.run(args, kwargs)
        given = called[0] if len(called) == 1 else ()
        wanted = list(map(described, outside))
        same = len(given) == len(wanted) and all(map(operator.is_, given, wanted))
        if not same or pytree.tree_leaves(out) != returned:
            raise self.refusal("it does not call its function with the operands after it, as given")

    def _place(self, args: Args) -> Callable[[Any, Any], list[Any]]:
        """Where the graph and its operands go among the arguments."""
        given = {id(x) for x in self.operands}
        whole = [
            i
            for i, a in enumerate(args)
            if isinstance(a, (tuple, list))
            and len(a) == len(self.operands)
            and all(x is y for x, y in zip(a, self.operands, strict=True))
        ]
        single = [i for i, a in enumerate(args) if id(a) in given and not _is_function(a)]
        if not whole and len(single) != len(self.operands):
            raise self.refusal("it does not call its function with its operands")

        def place(reference: Any, outside: Any) -> list[Any]:
            placed: list[Any] = []
            first = min(single, default=len(args))
            for i, a in enumerate(args):
                if _is_function(a):
                    placed.append(reference)
                elif whole and i == whole[0]:
                    placed.append(tuple(outside))
                elif not whole and i == first:
                    placed.extend(outside)
                elif whole or i not in single:
                    placed.append(a)
            return placed if whole or single else [*placed, *outside]

        return place


class _Result:
    """Stands for a result of the function while the kernel handles it."""
