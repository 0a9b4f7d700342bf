"""`torch.while_loop`, `map`, `scan`, `associative_scan`: captures the body as a subgraph.

A body is captured once, on values of which only the kind is known: a carried value is any of the
values that it takes, an element any of the elements. Tensors from outside that a body writes to are
carried too, so the body is captured again when it turns out that there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.control_flow.cond import (
    NUMBER_TYPES,
    RuntimeNumber,
    format_value,
    record_call,
)
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.layout import has_same_layout
from graphport.capture.trace.recorder import describe_argument
from graphport.capture.trace.subgraph import Subgraph
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import pytree
from graphport.errors import MutationError, UserError
from graphport.ops import Abstract
from graphport.symbolic import Range
from graphport.symbolic.bridge import python_type, to_torch
from graphport.tensors.abstract import describe, is_dense
from graphport.types import Args, Argument, Function, Kwargs

_INT64 = torch.iinfo(torch.int64)
_RANGES = {
    int: Range(_INT64.min, _INT64.max),
    float: Range(-float("inf"), float("inf")),
    bool: Range(0, 1),
}


class CarriedValues:
    """What goes from step to step: the given values, then memory that the body writes to."""

    def __init__(
        self, tracer: Tracer, given: Sequence[object], what: str, xs: Sequence[object] = ()
    ) -> None:
        self.tracer = tracer
        self.what = what
        self.given = [self._checked(x) for x in given]
        self.layouts = {
            i: _drop_offset(tracer.value(x).abstract)
            for i, x in enumerate(self.given)
            if isinstance(x, torch.Tensor)
        }
        """Memory layouts of the tensors, in every step and after it."""
        self.unsteady = {i for i, a in self.layouts.items() if not self._is_steady(i, a)}
        """Those whose layout changes between steps: in the graph they are contiguous."""
        for i in self.unsteady:
            self.layouts[i] = make_contiguous(self.layouts[i])
        self.bases: list[Value] = []
        tensors = [x for x in (*self.given, *xs) if isinstance(x, torch.Tensor)]
        self._memory = {tracer.value(x).storage for x in tensors}

    def _checked(self, x: object) -> Argument:
        """A first value: a tensor, or a number."""
        if isinstance(x, torch.Tensor) or python_type(x) in NUMBER_TYPES:
            return x
        raise UserError(
            f"{self.what} carries tensors and numbers, got {x!r}", where=source.locate_user_line()
        )

    def _is_steady(self, i: int, a: Abstract) -> bool:
        """Whether a copy has the strides of the first value, in eager and in the graph."""
        lies = describe(self.tracer.read(self.tracer.value(self.given[i])))
        return is_dense(a) and (a.is_contiguous or has_same_layout(lies, a))

    def add(self, base: Value, where: source.Location | None) -> None:
        """Carry a storage, unless two carried values would alias in a step."""
        if base.storage in self._memory:
            raise MutationError(
                f"the body of {self.what} writes to a tensor that it is also given",
                where=where,
                fix="give it a copy: x.clone()",
            )
        self.bases.append(base)

    def first(self) -> list[Argument]:
        """The first values as arguments of the operator."""
        tracer = self.tracer
        given = [self._first(i, tracer.lower(x)) for i, x in enumerate(self.given)]
        return given + [tracer.read(b) for b in self.bases]

    def _first(self, i: int, x: Argument) -> Argument:
        if i in self.layouts and not has_same_layout(describe(x), self.layouts[i]):
            emit = self.tracer.recorder.emit
            return emit(aten.clone.default, x, memory_format=torch.contiguous_format)
        return x

    def settle(self, body: Subgraph) -> bool:
        """Whether the body returns tensors with the strides of those that it was given."""
        moved = set()
        for i, want in self.layouts.items():
            have = body.lies.get(i, want)
            here = describe_argument(body.results[i]) if i < len(body.results) else want
            if i in self.unsteady or not isinstance(here, Abstract) or here.rank != want.rank:
                continue
            if not has_same_layout(have, want) or not (
                want.is_contiguous or has_same_layout(here, want)
            ):
                moved.add(i)
        for i in moved:
            self.layouts[i] = make_contiguous(self.layouts[i])
        self.unsteady |= moved
        return not moved

    def enter(self, graph: Subgraph) -> list[Argument]:
        """The given values in a step."""
        entered = [self._enter(graph, x, i) for i, x in enumerate(self.given)]
        for base in self.bases:
            graph.carry(base, make_contiguous(base.abstract))
        return entered

    def _enter(self, graph: Subgraph, x: object, i: int) -> Argument:
        what = f"what {self.what} carries (value {i})"
        if isinstance(x, torch.Tensor):
            made = graph.make(x, self.layouts[i], what)
            if i in self.unsteady:
                self.tracer.unsteady.add(graph.given[-1])
            return made
        number = self._any(x)
        first = self.tracer.recorder.argument(self.tracer.lower(x))
        name = first.name if isinstance(first, Node) else "number"
        graph.make_number(name, number.number, what)
        return to_torch(number.symbolic_value)

    def _any(self, x: object) -> RuntimeNumber:
        limits = _RANGES[python_type(x)]
        return RuntimeNumber.fresh(self.tracer, python_type(x), limits.lower, limits.upper)

    def after(self) -> list[Argument]:
        """What is known of the values after the last step."""
        tensors = [b.abstract for b in self.bases]
        return [
            self.layouts[i] if i in self.layouts else self._any(x) for i, x in enumerate(self.given)
        ] + [make_contiguous(a) for a in tensors]

    def check(self, body: Subgraph) -> None:
        """The body must return what it was given, in kind."""
        if len(body.results) < len(self.given):
            raise UserError(
                f"the body of {self.what} returns {len(body.results)} values, but carries "
                f"{len(self.given)}",
                where=body.where,
            )
        for i, x in enumerate(self.given):
            want = self.layouts.get(i, x)
            if i in self.layouts and want.is_contiguous:
                body.contiguous(i)
            have = describe_argument(body.results[i])
            if not self._same(have, want, body.kind(i)):
                raise UserError(
                    f"the body of {self.what} turns the carried value {i} from "
                    f"{format_value(want)} into {format_value(have)}",
                    where=body.where,
                    fix="carry values of one size and dtype; convert the first one before the loop",
                )

    def _same(self, have: Argument, want: Any, kind: type) -> bool:
        if not isinstance(want, Abstract):
            return kind is python_type(want)
        return isinstance(have, Abstract) and (
            (have.dtype, have.device, have.rank) == (want.dtype, want.device, want.rank)
            and all(map(self.tracer.scope.same, have.sizes, want.sizes))
        )

    def finish(self, made: Sequence[Any]) -> None:
        """After the loop the memory holds what the last step wrote."""
        self.tracer.unsteady.update(self.tracer.value(made[i]).node for i in self.unsteady)
        for base, new in zip(self.bases, made[len(self.given) :], strict=True):
            self.tracer.write(base, self.tracer.read(self.tracer.value(new)))


def make_contiguous(a: Abstract) -> Abstract:
    """Make a carried value contiguous, whatever the first one was."""
    return Abstract(a.sizes, a.dtype, a.device)


def _drop_offset(a: Abstract) -> Abstract:
    return Abstract(a.sizes, a.dtype, a.device, a._strides)


def _capture_to_fixpoint(
    carried: CarriedValues, capture: Callable[[], list[Subgraph]]
) -> list[Subgraph]:
    """The graphs of a loop, captured until all that they write to is carried."""
    while True:
        graphs = capture()
        if not carried.settle(graphs[-1]):
            continue
        known = set(carried.bases)
        found = {w.base: w.where for g in graphs for w in g.written if w.base not in known}
        if not found:
            return graphs
        for base, where in found.items():
            carried.add(base, where)


@register_override(higher_order.while_loop)
def while_loop(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    cond_fn, body_fn, given, additional = args
    carried = CarriedValues(tracer, given, "torch.while_loop")

    def capture() -> list[Subgraph]:
        graphs = []
        for name, fn in (("while_loop_cond_graph", cond_fn), ("while_loop_body_graph", body_fn)):
            graph = Subgraph(tracer, name)
            inner = carried.enter(graph)
            graph.take(*additional)
            graph.run(fn, *inner, *additional)
            graphs.append(graph)
        _refuse_writes(graphs[0], "the condition of torch.while_loop")
        return graphs

    test, body = _capture_to_fixpoint(carried, capture)
    _check_condition(test)
    count = len(carried.given)
    if len(body.results) != count:
        raise UserError(
            f"the body of torch.while_loop returns {len(body.results)} values, but carries {count}",
            where=body.where,
            fix="return a tuple of as many values as are carried",
        )
    carried.check(body)
    body.add_written(carried.bases)
    outside = list(dict.fromkeys((*test.outside, *body.outside)))
    graphs = [test.finish(outside, single=True), body.finish(outside)]
    first = carried.first()
    made = record_call(tracer, func, (*graphs, first, outside), carried.after(), [*first, *outside])
    carried.finish(made)
    body.note_possible_alias(made[:count])
    return pytree.tree_unflatten(made[:count], body.spec)


def _check_condition(test: Subgraph) -> None:
    about = describe_argument(test.results[0]) if len(test.results) == 1 else None
    if isinstance(about, Abstract):
        is_truth = about.dtype is torch.bool and not about.rank
    else:
        is_truth = len(test.results) == 1 and test.kind(0) is bool
    if not is_truth:
        raise UserError(
            "the condition of torch.while_loop returns a single bool, got "
            f"{', '.join(format_value(describe_argument(r)) for r in test.results) or 'nothing'}",
            where=test.where,
            fix="return a tensor of one bool without dims, or a comparison: i < 3, x.any()",
        )


@register_override(higher_order.map_impl)
def map_impl(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    fn, xs, more = args
    body = Subgraph(tracer, "body_graph")
    inner = _make_elements(tracer, body, xs, "map")
    body.take(*more)
    body.run(fn, *inner, *more)
    _refuse_writes(body, "a step of map")
    results = _stack_results(tracer, body, 0, xs)
    outside = body.outside
    graph = body.finish(outside)
    given = [tracer.lower(x) for x in xs]
    made = record_call(tracer, func, (graph, given, outside), results, [*given, *outside])
    return pytree.tree_unflatten(made, body.spec)


@register_override(higher_order.scan)
def scan(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    fn, init, xs = args[:3]
    additional = args[3] if len(args) > 3 else kwargs.get("additional_inputs", ())
    carried = CarriedValues(tracer, init, "scan", xs)

    def capture() -> list[Subgraph]:
        body = Subgraph(tracer, "scan_combine_graph")
        inner = [*carried.enter(body), *_make_elements(tracer, body, xs, "scan")]
        body.take(*additional)
        body.run(fn, *inner, *additional)
        return [body]

    (body,) = _capture_to_fixpoint(carried, capture)
    carried.check(body)
    count, spec = len(init), body.spec
    body.add_written(carried.bases, at=count)
    first = carried.first()
    results = [*carried.after(), *_stack_results(tracer, body, len(first), xs)]
    outside = body.outside
    graph = body.finish(outside)
    given = [tracer.lower(x) for x in xs]
    reads = [*first, *given, *outside]
    made = record_call(tracer, func, (graph, first, given, outside), results, reads)
    carried.finish(made[: len(first)])
    body.note_possible_alias(made[:count])
    return pytree.tree_unflatten([*made[:count], *made[len(first) :]], spec)


@register_override(higher_order.associative_scan)
def associative_scan(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """Its function combines two runs of elements, of any length, each with a leading dim."""
    fn, xs = args[:2]
    additional = args[2] if len(args) > 2 else kwargs.get("additional_inputs", ())
    body = Subgraph(tracer, "associative_scan_combine_graph")
    length = tracer.scope.fresh(lower=1, origin=source.locate_user_expression())
    inner = []
    for x in (*xs, *xs):
        have = tracer.value(x).abstract
        # Every other element, or each: how far apart they are is not known.
        apart = tracer.scope.fresh(lower=1, origin=source.locate_user_expression())
        some = Abstract(
            (length, *have.sizes[1:]), have.dtype, have.device, (apart, *have.strides[1:])
        )
        inner.append(body.make(x, some, "what associative_scan combines"))
    body.take(*additional)
    body.run(fn, *inner, *additional)
    _refuse_writes(body, "the function of associative_scan")
    for i in range(len(xs)):
        have, want = describe_argument(body.results[i]), describe_argument(body.given[i])
        body.contiguous(i)
        if not isinstance(have, Abstract) or not _is_alike(tracer, have, want):
            raise UserError(
                f"the function of associative_scan turns {want} into {format_value(have)}",
                where=body.where,
                fix="return what was given, in size and dtype",
            )
    outside = body.outside
    graph = body.finish(outside)
    given = [tracer.lower(x) for x in xs]
    results = [make_contiguous(tracer.value(x).abstract) for x in xs]
    return record_call(tracer, func, (graph, given, outside), results, [*given, *outside])


def _is_alike(tracer: Tracer, a: Abstract, b: Abstract) -> bool:
    kinds = (a.dtype, a.device, a.rank) == (b.dtype, b.device, b.rank)
    return kinds and all(map(tracer.scope.same, a.sizes, b.sizes))


def _make_elements(
    tracer: Tracer, body: Subgraph, xs: Sequence[object], what: str
) -> list[Argument]:
    return [
        _make_element(tracer, body, x, f"an element of {what} (input {i})")
        for i, x in enumerate(xs)
    ]


def _make_element(tracer: Tracer, body: Subgraph, x: object, what: str) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or not x.dim():
        raise UserError(
            f"{what} is taken from a tensor with at least one dim, got "
            f"{tracer.value(x).abstract if isinstance(x, torch.Tensor) else repr(x)}",
            where=source.locate_user_line(),
            fix="pass numbers and single values after the mapped tensors",
        )
    have = tracer.value(x).abstract
    return body.make(x, Abstract(have.sizes[1:], have.dtype, have.device, have.strides[1:]), what)


def _refuse_writes(graph: Subgraph, what: str) -> None:
    for written in graph.written:
        if written.node not in graph.given:  # else it is only carried
            raise MutationError(
                f"{what} writes to a tensor from outside of it",
                where=written.where,
                fix="carry the tensor with gp.scan or torch.while_loop, or return what to write",
            )


def _stack_results(
    tracer: Tracer, body: Subgraph, first: int, xs: Sequence[object]
) -> list[Argument]:
    """The results of all steps, one after another."""
    count = tracer.value(xs[0]).abstract.sizes[0]
    stacked: list[Abstract | None] = []
    for i in range(first, len(body.results)):
        about = describe_argument(body.results[i])
        if about is None:
            stacked.append(None)
            continue
        if not isinstance(about, Abstract):
            raise UserError(
                f"result {i} of a step is {format_value(about)}: steps return tensors",
                where=body.where,
                fix="return torch.tensor(...) of the number, or compute it outside",
            )
        stacked.append(Abstract((count, *about.sizes), about.dtype, about.device))
    return stacked
