"""Lowers control flow: `cond` to If, `while_loop` to Loop, `map` and `scan` to Scan.

A subgraph uses outer values by name, so that only what changes from step to step is an
input of it. Numbers are carried as tensors without dims. What a subgraph says about sizes is
forgotten after it: nothing outside can be computed from its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Graph, Shape, Value
from graphport.onnx.emit.sizes import dtype_of_number
from graphport.onnx.lower.registry import LOWERINGS, higher_order
from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract, describe


@contextmanager
def open_subgraph(b: Builder, name: str) -> Iterator[Graph]:
    """What is written meanwhile goes to a graph of its own."""
    outer = b.graph
    graph = b.graph = Graph(name, outer)
    try:
        with b.sizes.inner():
            yield graph
    finally:
        b.graph = outer


def close_subgraph(b: Builder, graph: Graph, results: Sequence[Value]) -> None:
    """Make values the outputs of a graph: each made in it, and none twice."""
    for value in map(b.assertions.add_control_dependency, results):
        shape = value.shape
        while value.graph is not graph or value.producer is None or value in graph.outputs:
            value = b.Identity(value)
            value.shape = shape
        graph.outputs.append(value)


def emit_loop(
    b: Builder,
    states: Sequence[Value],
    step: Callable[..., tuple[Value, Sequence[Value]]],
    trips: int | None = None,
) -> tuple[Value, ...]:
    """The last states: `step` gives whether to go on, and new ones of the same sizes.

    It is run at least once.
    """
    with open_subgraph(b, "body") as body:
        inner = _add_loop_inputs(body, ("iteration", "going"), states, ["state"] * len(states))[2:]
        more, new = step(*inner)
        close_subgraph(b, body, [more, *new])
    limit = None if trips is None else b.scalar(trips, torch.int64)
    return _emit_loop(b, limit, b.scalar(True, torch.bool), states, body)


def emit_counted_loop(
    b: Builder, count: Any, first: Sequence[Value], step: Callable[..., Sequence[Value]]
) -> tuple[Value, ...]:
    """What values have become after `step(number, *values)` for each number below count."""
    if count == 0:
        return tuple(first)
    with open_subgraph(b, "body") as body:
        names = [f"carried_{i}" for i in range(len(first))]
        number, goes, *carried = _add_loop_inputs(body, ("number", "goes"), first, names)
        close_subgraph(b, body, [goes, *step(number, *carried)])
    trips = count if isinstance(count, Value) else b.sizes.number(count)
    return _emit_loop(b, trips, None, first, body)


def _add_loop_inputs(
    body: Graph, names: tuple[str, str], states: Sequence[Value], own: Sequence[str]
) -> list[Value]:
    """The number of the step, whether it goes on, and states."""
    body.inputs = [Value(names[0], torch.int64, (), body), Value(names[1], torch.bool, (), body)]
    body.inputs += [Value(n, s.dtype, s.shape, body) for n, s in zip(own, states, strict=True)]
    return body.inputs


def _emit_loop(
    b: Builder, trips: Value | None, begins: Value | None, states: Sequence[Value], body: Graph
) -> tuple[Value, ...]:
    count = len(states)
    made = b.Loop(trips, begins, *states, body=body, outputs=count, dtype=states[0].dtype)
    return _copy_types((made,) if count == 1 else made, states)


def emit_scan(
    b: Builder,
    sequences: Sequence[Value],
    states: Sequence[Value],
    step: Callable[..., Sequence[Value]],
) -> tuple[Value, ...]:
    """All states along the first dim of sequences, which is not empty.

    `step(*states, *elements)` gives the new states. ONNX Runtime wants the first dim for this: it
    fails on empty sequences, and on others that are empty along another dim.
    """
    with open_subgraph(b, "body") as body:
        body.inputs = [Value("state", s.dtype, s.shape, body) for s in states]
        body.inputs += [Value("element", s.dtype, s.shape and s.shape[1:], body) for s in sequences]
        new = step(*body.inputs)
        close_subgraph(b, body, [*new, *new])
    made = b.Scan(
        *states,
        *sequences,
        body=body,
        num_scan_inputs=len(sequences),
        outputs=2 * len(states),
        dtype=states[0].dtype,
    )
    lengths = [s.shape[:1] for s in sequences if s.shape]
    return _copy_types(made[len(states) :], states, lengths[0] if lengths else (None,))


def prepend_number(b: Builder, x: Value, axis: int, number: float) -> Value:
    """A number put before all others along a dim, so that it is not empty."""
    pads = [int(d == axis) for d in range(x.rank)] + [0] * x.rank
    sizes = [None if s is None else s + int(d == axis) for d, s in enumerate(x.shape or ())]
    return b.shaped(b.Pad(x, pads, b.scalar(number, like=x)), sizes)


def _copy_types(
    values: Sequence[Value], states: Sequence[Value], length: Shape = ()
) -> tuple[Value, ...]:
    """With dtypes and sizes of the states, which stay as they are from step to step."""
    for v, state in zip(values, states, strict=True):
        v.dtype = state.dtype
        v.shape = None if state.shape is None else (*length, *state.shape)
    return tuple(values)


if TYPE_CHECKING:
    from graphport.onnx.lower.lowerer import Lowerer

ops = torch.ops.higher_order


# Subgraphs


def _lower_subgraph(lowerer: Lowerer, module: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Lower a graph whose inputs are these values and numbers; its results, in a list."""
    holders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for holder, given in zip(holders, inputs, strict=True):
        about = describe(holder)
        if isinstance(about, Expr) and about is not given:
            lowerer.b.sizes.learn_number(about, _to_tensor(lowerer.b, given, about))
            given = about
        elif isinstance(given, Value) and isinstance(about, Abstract):
            _learn_sizes(lowerer.b, given, about)
        lowerer.env[holder] = given
    origin, result = lowerer.b.origin, lowerer.b.result
    try:
        out = lowerer.run(module)
    finally:
        lowerer.b.origin, lowerer.b.result = origin, result
    return list(out) if isinstance(out, (list, tuple)) else [out]


def _learn_sizes(b: Builder, value: Value, about: Abstract) -> None:
    """Sizes that the graph has symbols of its own for."""
    for mine, theirs in zip(value.shape or (), about.sizes, strict=False):
        if mine is not None and mine != theirs:
            b.sizes.learn_number(theirs, b.sizes.number(mine))


def _to_tensor(b: Builder, x: object, about: Any) -> Value:
    """A result as a tensor of the dtype that it has outside."""
    if about is None:
        about = x
    dtype = about.dtype if isinstance(about, (Abstract, Value)) else dtype_of_number(about)
    return b.cast(x if isinstance(x, Value) else b.sizes.number(x), dtype)


def _add_input(graph: Graph, name: str, about: object) -> Value:
    """A value that a graph is given at each step."""
    if isinstance(about, Abstract):
        value = Value(name, about.dtype, about.sizes, graph)
    else:
        value = Value(name, dtype_of_number(about), (), graph)
    graph.inputs.append(value)
    return value


def _emit_node(b: Builder, op: Callable[..., Any], *inputs: Any, **attributes: Any) -> list[Any]:
    """A node with subgraphs; the results of the program that it gives."""
    wanted = [r for r in b.result if r is not None]
    dtypes = [r.dtype if isinstance(r, Abstract) else dtype_of_number(r) for r in wanted]
    made = op(*inputs, outputs=len(wanted), dtype=dtypes[0], **attributes)
    values = iter([made] if len(wanted) == 1 else made)
    return [None if r is None else _bind_result(b, next(values), r) for r in b.result]


def _bind_result(b: Builder, value: Value, about: object) -> Any:
    """A result of the node; a number becomes one of the program again."""
    if isinstance(about, Abstract):
        value.dtype, value.shape = about.dtype, about.sizes
        return value
    value.dtype, value.shape = dtype_of_number(about), ()
    b.sizes.learn_number(about, value)
    return about


def _placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


# Branches


@higher_order(ops.cond)
def cond(lowerer: Lowerer, node: Node) -> Any:
    b = lowerer.b
    pred, true_graph, false_graph, operands = lowerer.values(node.args)
    if isinstance(pred, Value) and pred.tensor is not None:
        return _lower_subgraph(lowerer, true_graph if bool(pred.tensor) else false_graph, operands)
    truth = pred if isinstance(pred, Value) else b.sizes.number(pred)
    branches = []
    for name, module in (("then_branch", true_graph), ("else_branch", false_graph)):
        with open_subgraph(b, name) as graph:
            results = _lower_subgraph(lowerer, module, operands)
            pairs = zip(results, b.result, strict=True)
            close_subgraph(b, graph, [_to_tensor(b, x, r) for x, r in pairs if r is not None])
        branches.append(graph)
    return _emit_node(b, b.If, truth, then_branch=branches[0], else_branch=branches[1])


# Loops


@higher_order(ops.while_loop)
def while_loop(lowerer: Lowerer, node: Node) -> Any:
    """The condition is asked before the first step, and at the end of each for the next one."""
    b = lowerer.b
    test, body, carried, additional = lowerer.values(node.args)
    first = [_to_tensor(b, x, r) for x, r in zip(carried, b.result, strict=True)]
    with b.sizes.inner():
        (begins,) = _lower_subgraph(lowerer, test, [*carried, *additional])
        goes = _to_tensor(b, begins, True)
    with open_subgraph(b, "body") as graph:
        graph.inputs.append(Value("step", torch.int64, (), graph))
        graph.inputs.append(Value("goes", torch.bool, (), graph))
        holders = _placeholders(body)
        inputs = [
            _add_input(graph, f"{h.name}_in", r) for h, r in zip(holders, b.result, strict=False)
        ]
        results = _lower_subgraph(lowerer, body, [*inputs, *additional])
        news = [_to_tensor(b, x, r) for x, r in zip(results, b.result, strict=True)]
        with b.sizes.inner():
            (more,) = _lower_subgraph(lowerer, test, [*news, *additional])
            again = _to_tensor(b, more, True)
        close_subgraph(b, graph, [again, *news])
    return _emit_node(b, b.Loop, None, goes, *first, body=graph)


@higher_order(ops.map_impl)
def map_impl(lowerer: Lowerer, node: Node) -> Any:
    body, xs, additional = lowerer.values(node.args)
    return _emit_scan(lowerer, body, [], xs, additional)


@higher_order(ops.scan)
def scan(lowerer: Lowerer, node: Node) -> Any:
    body, init, xs, additional = lowerer.values(node.args)
    return _emit_scan(lowerer, body, init, xs, additional)


def _emit_scan(
    lowerer: Lowerer,
    body: GraphModule,
    init: list[object],
    xs: list[Value],
    additional: list[object],
) -> Any:
    """Elements along the first dim of each x, one after another."""
    b = lowerer.b
    first = [_to_tensor(b, x, r) for x, r in zip(init, b.result, strict=False)]
    with open_subgraph(b, "body") as graph:
        inputs = [
            _add_input(graph, f"{h.name}_in", describe(h))
            for h in _placeholders(body)[: len(init) + len(xs)]
        ]
        results = _lower_subgraph(lowerer, body, [*inputs, *additional])
        pairs = zip(results, b.result, strict=True)
        close_subgraph(b, graph, [_to_tensor(b, x, r) for x, r in pairs if r is not None])
    return _emit_node(b, b.Scan, *first, *xs, body=graph, num_scan_inputs=len(xs))


@higher_order(ops.associative_scan)
def associative_scan(lowerer: Lowerer, node: Node) -> Any:
    """From the left: what has been combined so far with the next element, each a run of one."""
    b = lowerer.b
    body, xs, additional = lowerer.values(node.args)
    with open_subgraph(b, "body") as graph:
        kinds = [Abstract((1, *r.sizes[1:]), r.dtype, r.device) for r in b.result]
        begun = Value("begun", torch.bool, (), graph)
        graph.inputs.append(begun)
        states = [_add_input(graph, f"state_{i}", kind) for i, kind in enumerate(kinds)]
        elements = [
            _add_input(graph, f"element_{i}", Abstract(kind.sizes[1:], kind.dtype, kind.device))
            for i, kind in enumerate(kinds)
        ]
        runs = [b.shaped(b.unsqueeze(e, 0), k.sizes) for e, k in zip(elements, kinds, strict=True)]
        combined = _lower_subgraph(lowerer, body, [*states, *runs, *additional])
        news = [
            b.shaped(b.Where(begun, _to_tensor(b, c, k), e), k.sizes)
            for c, e, k in zip(combined, runs, kinds, strict=True)
        ]
        true = b.constant(torch.tensor(True))
        close_subgraph(b, graph, [true, *news, *(b.squeeze(n, 0) for n in news)])
    false = b.constant(torch.tensor(False))
    starts = [b.shaped(b.Slice(x, [0], [1], [0]), k.sizes) for x, k in zip(xs, kinds, strict=True)]
    count = len(xs)
    made = b.Scan(
        false,
        *starts,
        *xs,
        outputs=1 + 2 * count,
        dtype=torch.bool,
        body=graph,
        num_scan_inputs=count,
    )
    for value, about in zip(made[1 + count :], b.result, strict=True):
        value.dtype = about.dtype
    return made[1 + count :]


# Graphs that are called as they are


@higher_order(ops.wrap_with_set_grad_enabled)
def wrap_with_set_grad_enabled(lowerer: Lowerer, node: Node) -> Any:
    _mode, body, *operands = lowerer.values(node.args)
    return _lower_subgraph(lowerer, body, operands)


@higher_order(ops.invoke_subgraph)
def invoke_subgraph(lowerer: Lowerer, node: Node) -> Any:
    body, _name, *operands = lowerer.values(node.args)
    return _lower_subgraph(lowerer, body, operands)


@higher_order(ops.auto_functionalized)
def auto_functionalized(lowerer: Lowerer, node: Node) -> Any:
    """A lowering of an operator that writes returns the new values of what it writes as well."""
    op, *_ = node.args
    lowering = lowerer.custom.get(op) or LOWERINGS[op]
    made = lowering.fn(lowerer.b, **lowering.bind((), lowerer.values(node.kwargs)))
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    return results if op._schema.returns else [None, *results]
