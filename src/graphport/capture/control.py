"""Control flow that stays in the program: `torch.cond`, `torch.while_loop`, `map`, `scan`.

Branches and bodies become graphs of their own. torch's Python functions for them would compile
with Dynamo first; while a program is captured they are told that this has been done, and hand
their operators straight to the function mode, which has them here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture.functions import overrides
from graphport.capture.recorder import describe
from graphport.capture.subgraphs import Subgraph
from graphport.capture.tracer import Tracer, wants_grad
from graphport.errors import UserError
from graphport.ops import Abstract
from graphport.symbolic import Expr
from graphport.symbolic.bridge import from_torch

aten = torch.ops.aten
higher_order = torch.ops.higher_order
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def direct_control_flow() -> Iterator[None]:
    """While this lasts, torch's control flow calls its operators without compiling anything."""
    before = torch.compiler.is_dynamo_compiling

    def is_dynamo_compiling() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith("torch._higher_order_ops") or before()

    torch.compiler.is_dynamo_compiling = is_dynamo_compiling  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compiler.is_dynamo_compiling = before


def _call(
    tracer: Tracer, op: Any, args: Sequence[Any], results: Sequence[Any], read: Sequence[Any]
) -> list[Any]:
    """Record the operator; its results, for the user."""
    recorder = tracer.recorder
    node = recorder.node(op, args, {}, tuple(results), op.name())
    made = list(tracer.fresh(tuple(results), node, wants_grad(read)))
    for x in made:
        if isinstance(x, torch.Tensor):
            recorder.define_sizes(tracer.value(x).node, on_entry=False)
    return made


# Branches


@overrides(higher_order.cond)
def cond(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    pred, true_fn, false_fn, operands = args
    if isinstance(pred, torch.SymBool):
        known = tracer.scope.decide(from_torch(pred))
        pred = pred if known is None else known
    elif isinstance(pred, torch.Tensor):
        literal = tracer.value(pred).literal
        pred = _predicate(tracer, pred) if literal is None else bool(literal)
    if isinstance(pred, (bool, int, float)):
        with tracer.above:
            return (true_fn if pred else false_fn)(*operands)
    branches = []
    for name, fn in (("true_graph", true_fn), ("false_graph", false_fn)):
        branch = Subgraph(tracer, name)
        leaves, spec = pytree.tree_flatten(tuple(operands))
        inner = pytree.tree_unflatten([branch.take(x) for x in leaves], spec)
        branch.run(fn, *inner)
        branches.append(branch)
    results = _joined(tracer, *branches)
    outside = list(dict.fromkeys(n for b in branches for n in b.outside))
    graphs = [b.finish(outside) for b in branches]
    tensors = [x for x in pytree.tree_leaves(operands) if isinstance(x, torch.Tensor)]
    given = [tracer.lower(x) for x in tensors]
    call = (tracer.lower(pred), *graphs, [*given, *outside])
    made = _call(tracer, func, call, results, tensors)
    return pytree.tree_unflatten(made, branches[0].spec)


def _predicate(tracer: Tracer, pred: torch.Tensor) -> torch.Tensor:
    if pred.dtype is not torch.bool or pred.numel() != 1:
        raise UserError(
            f"the predicate of torch.cond is one truth, got {tracer.value(pred).abstract}",
            where=source.here(),
            fix="reduce it: pred.any(), pred.all() or x.sum() > 0",
        )
    return pred


def _joined(tracer: Tracer, a: Subgraph, b: Subgraph) -> list[Any]:
    """What the results are, whichever branch is taken."""
    if a.spec != b.spec:
        _differ(a, b, f"{_structure(a)} against {_structure(b)}")
    joined = []
    for i, (x, y) in enumerate(zip(a.results, b.results, strict=True)):
        u, v = describe(x), describe(y)
        if isinstance(u, Abstract) and isinstance(v, Abstract):
            if (u.dtype, u.device, u.rank) != (v.dtype, v.device, v.rank):
                _differ(a, b, f"result {i} is {u} against {v}")
            if u.sizes != v.sizes or u.strides != v.strides:
                a.contiguous(i)
                b.contiguous(i)
            joined.append(_either(tracer, u, v))
        elif isinstance(u, Abstract) or isinstance(v, Abstract):
            _differ(a, b, f"result {i} is {_said(u)} against {_said(v)}")
        elif isinstance(x, Node) or isinstance(y, Node) or x != y:
            joined.append(_either_number(tracer, from_torch(u), from_torch(v)))
        else:
            joined.append(x)
    return joined


def _either(tracer: Tracer, u: Abstract, v: Abstract) -> Abstract:
    sizes = tuple(
        p if tracer.scope.same(p, q) else _either_number(tracer, p, q, 0)
        for p, q in zip(u.sizes, v.sizes, strict=True)
    )
    kept = u._strides if u.sizes == v.sizes and u.strides == v.strides else None
    return Abstract(sizes, u.dtype, u.device, kept)


def _either_number(tracer: Tracer, p: Any, q: Any, least: float = -float("inf")) -> Expr:
    """A number that depends on the branch."""
    scope = tracer.scope
    one, other = scope.range(p), scope.range(q)
    return scope.fresh(
        float if any(isinstance(x, float) for x in (p, q)) else int,
        lower=max(least, min(one.lower, other.lower)), upper=max(one.upper, other.upper),
        origin=source.spot(),
    )  # fmt: skip


def _structure(branch: Subgraph) -> str:
    assert branch.spec is not None
    return str(pytree.tree_unflatten([_said(describe(r)) for r in branch.results], branch.spec))


def _said(x: Any) -> str:
    return str(x) if isinstance(x, Abstract) else repr(x)


def _differ(a: Subgraph, b: Subgraph, how: str) -> None:
    raise UserError(
        f"the branches of torch.cond return different things: {how}\n"
        f"  true_fn   at {a.where}\n  false_fn  at {b.where}",
        where=source.here(),
        fix="return the same structure of tensors with the same dtype and rank from both",
    )


# Loops


@overrides(higher_order.while_loop)
def while_loop(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    cond_fn, body_fn, carried, additional = args
    leaves, spec = pytree.tree_flatten(tuple(carried))
    leaves = [_start(tracer, x) for x in leaves]
    test, body = Subgraph(tracer, "while_cond_graph"), Subgraph(tracer, "while_body_graph")
    for graph, fn in ((test, cond_fn), (body, body_fn)):
        inner = [_carried(tracer, graph, x) for x in leaves]
        more = [graph.take(x) for x in additional]
        graph.run(fn, *pytree.tree_unflatten(inner, spec), *more)
    (answer,) = test.results if len(test.results) == 1 else (None,)
    if not _is_truth(answer):
        raise UserError(
            "the condition of torch.while_loop returns one truth, got "
            f"{[_said(describe(r)) for r in test.results]}",
            where=test.where,
        )
    _check_carried(tracer, body, leaves, "torch.while_loop")
    outside = list(dict.fromkeys((*test.outside, *body.outside)))
    graphs = [test.finish(outside, single=True), body.finish(outside)]
    given, more = [tracer.lower(x) for x in leaves], [tracer.lower(x) for x in additional]
    results = [_abstract_of(tracer, x) for x in leaves]
    call = (*graphs, given, [*more, *outside])
    return pytree.tree_unflatten(_call(tracer, func, call, results, leaves), spec)


def _is_truth(answer: Any) -> bool:
    about = describe(answer)
    if isinstance(about, Abstract):
        return about.dtype is torch.bool and not about.rank
    return isinstance(about, (bool, torch.SymBool))


def _start(tracer: Tracer, x: Any) -> torch.Tensor:
    """A first value as the tensor that is carried."""
    if not isinstance(x, torch.Tensor):
        raise UserError(
            f"a loop carries tensors, got {x!r}",
            where=source.here(),
            fix="carry a counter as a tensor: torch.tensor(0)",
        )
    if tracer.value(x).abstract.is_contiguous:
        return x
    return tracer.call(aten.clone.default, x, memory_format=torch.contiguous_format)


def _carried(tracer: Tracer, graph: Subgraph, x: torch.Tensor) -> torch.Tensor:
    name = tracer.read(tracer.value(x)).name
    return graph.make(name, _abstract_of(tracer, x), x.requires_grad)


def _abstract_of(tracer: Tracer, x: torch.Tensor) -> Abstract:
    """A carried value, laid out in the order of its dims whatever the first one was."""
    have = tracer.value(x).abstract
    return Abstract(have.sizes, have.dtype, have.device)


def _check_carried(tracer: Tracer, body: Subgraph, leaves: list[Any], what: str) -> None:
    """The body must return what it was given, in kind."""
    if len(body.results) < len(leaves):
        raise UserError(
            f"the body of {what} returns {len(body.results)} values, but carries {len(leaves)}",
            where=body.where,
        )
    for i, x in enumerate(leaves):
        body.contiguous(i)
        have, want = describe(body.results[i]), _abstract_of(tracer, x)
        same = isinstance(have, Abstract) and (
            (have.dtype, have.device, have.rank) == (want.dtype, want.device, want.rank)
            and all(map(tracer.scope.same, have.sizes, want.sizes))
        )
        if not same:
            raise UserError(
                f"the body of {what} turns the carried value {i} from {want} into {_said(have)}",
                where=body.where,
                fix="carry values of one size and dtype; convert the first one before the loop",
            )


@overrides(higher_order.map_impl)
def map_impl(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    fn, xs, more = args
    body = Subgraph(tracer, "body_graph")
    inner = [_element(tracer, body, x) for x in xs]
    rest = [body.take(x) for x in more]
    body.run(fn, *inner, *rest)
    results = _stacked(tracer, body, 0, xs)
    outside = body.outside
    graph = body.finish(outside)
    given, after = [tracer.lower(x) for x in xs], [tracer.lower(x) for x in more]
    made = _call(tracer, func, (graph, given, [*after, *outside]), results, [*xs, *more])
    return pytree.tree_unflatten(made, body.spec)


def _element(tracer: Tracer, body: Subgraph, x: torch.Tensor) -> torch.Tensor:
    have = tracer.value(x).abstract
    name = tracer.read(tracer.value(x)).name
    element = Abstract(have.sizes[1:], have.dtype, have.device, have.strides[1:])
    return body.make(name, element, x.requires_grad)


def _stacked(tracer: Tracer, body: Subgraph, first: int, xs: Sequence[Any]) -> list[Any]:
    """The results of all steps, one after another."""
    count = tracer.value(xs[0]).abstract.sizes[0]
    stacked = []
    for i in range(first, len(body.results)):
        about = describe(body.results[i])
        if not isinstance(about, Abstract):
            raise UserError(
                f"result {i} of a step is {_said(about)}: steps return tensors", where=body.where
            )
        stacked.append(Abstract((count, *about.sizes), about.dtype, about.device))
    return stacked


@overrides(higher_order.scan)
def scan(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    fn, init, xs = args[:3]
    additional = args[3] if len(args) > 3 else kwargs.get("additional_inputs", ())
    init = [_start(tracer, x) for x in init]
    body = Subgraph(tracer, "scan_combine_graph")
    inner = [_carried(tracer, body, x) for x in init]
    inner += [_element(tracer, body, x) for x in xs]
    body.run(fn, *inner, *(body.take(x) for x in additional))
    _check_carried(tracer, body, init, "scan")
    results = [*(_abstract_of(tracer, x) for x in init), *_stacked(tracer, body, len(init), xs)]
    outside = body.outside
    graph = body.finish(outside)
    first, given, more = ([tracer.lower(x) for x in part] for part in (init, xs, additional))
    call = (graph, first, given, [*more, *outside])
    made = _call(tracer, func, call, results, [*init, *xs])
    return pytree.tree_unflatten(made, body.spec)
