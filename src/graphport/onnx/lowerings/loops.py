"""Emits `Loop` and `Scan` nodes, for lowerings that are loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Graph, Shape, Value


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
