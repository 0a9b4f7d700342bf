"""`torch.cond`: both branches stay in the program, each as a graph of its own.

torch's Python functions for control flow would compile with Dynamo first; while a program is
captured they are told that this has been done, and hand their operators straight to the function
mode, which has them here and in `loops`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from graphport import source
from graphport.capture.functions import overrides
from graphport.capture.recorder import describe
from graphport.capture.subgraphs import Subgraph
from graphport.capture.tracer import Tracer
from graphport.errors import UserError
from graphport.ops import Abstract
from graphport.process import Replacement
from graphport.symbolic import Expr, Truth, eq, not_
from graphport.symbolic.bridge import from_torch, to_torch

higher_order = torch.ops.higher_order


def direct_control_flow() -> Iterator[Replacement]:
    """torch's control flow calls its operators without compiling anything."""
    before = torch.compiler.is_dynamo_compiling

    def is_dynamo_compiling() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith("torch._higher_order_ops") or before()

    yield torch.compiler, "is_dynamo_compiling", is_dynamo_compiling
    regions = sys.modules["torch._higher_order_ops.invoke_subgraph"]
    yield regions, "invoke_subgraph_placeholder", _region
    # What operands may be is said here and in `loops`, in the words of the program.
    for name in ("cond", "while_loop", "scan"):
        module = sys.modules[f"torch._higher_order_ops.{name}"]
        if hasattr(module, _CHECK):
            yield module, _CHECK, _accept


_CHECK = "validate_subgraph_args_types"


def _accept(operands: Any) -> None:
    pass


def _region(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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


def record(
    tracer: Tracer,
    op: Any,
    args: Sequence[Any],
    results: Sequence[Any],
    reads: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Record the operator on graphs and operands; its results, for the user."""
    recorder = tracer.recorder
    described = [r.number if isinstance(r, Either) else r for r in results]
    node = recorder.node(op, args, dict(options or {}), tuple(described), op.name())
    grad = torch.is_grad_enabled() and any(map(_has_grad, reads))
    made = list(tracer.fresh(tuple(described), node, grad))
    for x in made:
        if isinstance(x, torch.Tensor):
            recorder.define_sizes(tracer.value(x).node, on_entry=False)
    for i, r in enumerate(results):
        if isinstance(r, Either):
            made[i] = to_torch(r.told)
            if r.kind is bool:  # what the call returns is the truth itself
                recorder.remember(r.told, recorder.number(r.number))
    return made


@dataclass(frozen=True)
class Either:
    """A number that is known only when the program runs; of a truth, 1 or 0."""

    number: Expr
    kind: type

    @property
    def told(self) -> Truth | Expr:
        return eq(self.number, 1) if self.kind is bool else self.number

    @classmethod
    def fresh(cls, tracer: Tracer, kind: type, lower: float, upper: float) -> Either:
        number = tracer.scope.fresh(
            float if kind is float else int, lower=lower, upper=upper, origin=source.spot()
        )
        made = cls(number, kind)
        if kind is bool:
            tracer.scope.origins[made.told] = number  # type: ignore[index]
        return made


def _has_grad(x: Any) -> bool:
    val = x.meta["val"] if isinstance(x, Node) else x
    return isinstance(val, torch.Tensor) and val.requires_grad


@overrides(higher_order.cond)
def cond(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    pred, true_fn, false_fn, operands = args
    pred = _predicate(tracer, pred)
    if isinstance(pred, (bool, int, float)):
        with tracer.above:
            return (true_fn if pred else false_fn)(*operands)
    holds: Truth = from_torch(pred) if isinstance(pred, torch.SymBool) else True
    opposite = not_(holds) if isinstance(holds, Expr) else True
    branches = []
    for name, fn, where in (("true_graph", true_fn, holds), ("false_graph", false_fn, opposite)):
        branch = Subgraph(tracer, name)
        branch.take(*pytree.tree_leaves(tuple(operands)))
        branch.run(fn, *operands, where=where)
        branches.append(branch)
    return _both(tracer, func, pred, branches)


def _both(tracer: Tracer, func: Any, pred: Any, branches: list[Subgraph]) -> Any:
    """The call that takes one branch or the other, and what the program knows after it."""
    a, b = branches
    if a.spec != b.spec:
        _differ(a, b, f"{_structure(a)} against {_structure(b)}")
    count = len(a.results)
    written = list(dict.fromkeys(w.base for branch in branches for w in branch.written))
    for branch in branches:
        branch.add_written(written)
    results = _joined(tracer, a, b)
    outside = list(dict.fromkeys(n for branch in branches for n in branch.outside))
    graphs = [branch.finish(outside) for branch in branches]
    made = record(tracer, func, (tracer.lower(pred), *graphs, outside), results, outside)
    for base, new in zip(written, made[count:], strict=True):
        tracer.write(base, tracer.read(tracer.value(new)))
    for branch in branches:
        branch.doubt(made)
    return pytree.tree_unflatten(made[:count], a.spec)


def _predicate(tracer: Tracer, pred: Any) -> Any:
    """A tensor or a symbolic truth; a Python number where the answer is known."""
    if isinstance(pred, (torch.SymInt, torch.SymFloat)):
        pred = pred != 0
    if isinstance(pred, torch.SymBool):
        known = tracer.scope.decide(from_torch(pred))
        return pred if known is None else known
    if not isinstance(pred, torch.Tensor):
        if isinstance(pred, (bool, int, float)):
            return pred
        raise UserError(
            f"the predicate of torch.cond is a {type(pred).__name__}, not a truth",
            where=source.here(),
            fix="pass a tensor of one bool, or a comparison of sizes: x.shape[0] > 4",
        )
    if pred.dtype is not torch.bool or pred.numel() != 1:
        raise UserError(
            f"the predicate of torch.cond is one truth, got {tracer.value(pred).abstract}",
            where=source.here(),
            fix="reduce it: pred.any(), pred.all() or x.sum() > 0",
        )
    literal = tracer.value(pred).literal
    if literal is None:
        return pred
    with torch._C._DisableTorchDispatch():  # a look at data is no part of the program
        return bool(literal)


def _joined(tracer: Tracer, a: Subgraph, b: Subgraph) -> list[Any]:
    """What the results are, whichever branch is taken."""
    joined = []
    for i, (x, y) in enumerate(zip(a.results, b.results, strict=True)):
        u, v = describe(x), describe(y)
        kind = a.kind(i)
        if isinstance(u, Abstract) and isinstance(v, Abstract):
            if (u.dtype, u.rank) != (v.dtype, v.rank):
                _differ(a, b, f"result {i} is {u} against {v}")
            if u.device != v.device:
                _differ(a, b, f"result {i} is {u} on {u.device} against {v} on {v.device}")
            if u.sizes != v.sizes or u.strides != v.strides:
                a.contiguous(i)
                b.contiguous(i)
            joined.append(_either(tracer, u, v))
        elif kind is not b.kind(i):
            _differ(a, b, f"result {i} is {said(u)} against {said(v)}")
        elif not isinstance(x, Node) and not isinstance(y, Node) and x == y:
            joined.append(x)
        elif kind in NUMBERS:
            limits = (0, 1) if kind is bool else _limits(tracer, from_torch(u), from_torch(v))
            joined.append(Either.fresh(tracer, kind, *limits))
        else:
            _differ(a, b, f"result {i} is {said(u)} against {said(v)}")
    return joined


def _either(tracer: Tracer, u: Abstract, v: Abstract) -> Abstract:
    sizes = tuple(
        p if tracer.scope.same(p, q) else _either_size(tracer, p, q)
        for p, q in zip(u.sizes, v.sizes, strict=True)
    )
    kept = u._strides if u.sizes == v.sizes and u.strides == v.strides else None
    return Abstract(sizes, u.dtype, u.device, kept)


def _either_size(tracer: Tracer, p: Any, q: Any) -> Expr:
    lower, upper = _limits(tracer, p, q)
    return Either.fresh(tracer, int, max(0, lower), upper).number


def _limits(tracer: Tracer, p: Any, q: Any) -> tuple[float, float]:
    one, other = tracer.scope.range(p), tracer.scope.range(q)
    return min(one.lower, other.lower), max(one.upper, other.upper)


NUMBERS = (int, float, bool)


def _structure(branch: Subgraph) -> str:
    assert branch.spec is not None
    return str(pytree.tree_unflatten([said(describe(r)) for r in branch.results], branch.spec))


def said(x: Any) -> str:
    return str(x) if isinstance(x, (Abstract, torch.SymInt)) else repr(x)


def _differ(a: Subgraph, b: Subgraph, how: str) -> None:
    raise UserError(
        f"the branches of torch.cond return different things: {how}\n"
        f"  true_fn   at {a.where}\n  false_fn  at {b.where}",
        where=source.here(),
        fix="return the same structure, of the same dtype, rank and device, from both",
    )
