"""Emits `Loop` and `Scan` nodes, for lowerings that are loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Graph, Shape, Value


def emit_loop(
    b: Builder,
    states: Sequence[Value],
    step: Callable[..., tuple[Value, Sequence[Value]]],
    trips: int | None = None,
) -> tuple[Value, ...]:
    """The last states: `step` gives whether to go on, and new ones of the same sizes.

    It is run at least once.
    """
    outer = b.graph
    body = Graph("body", outer)
    count = Value("iteration", torch.int64, (), body)
    going = Value("going", torch.bool, (), body)
    inner = [Value("state", s.dtype, s.shape, body) for s in states]
    body.inputs = [count, going, *inner]
    b.graph = body
    try:
        more, new = step(*inner)
        body.outputs = [_ensure_local(b, v) for v in (more, *new)]
    finally:
        b.graph = outer
    limit = None if trips is None else b.scalar(trips, torch.int64)
    made = b.Loop(
        limit,
        b.scalar(True, torch.bool),
        *states,
        body=body,
        outputs=len(states),
        dtype=states[0].dtype,
    )
    return _copy_types((made,) if len(states) == 1 else made, states)


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
    outer = b.graph
    body = Graph("body", outer)
    inner = [Value("state", s.dtype, s.shape, body) for s in states]
    elements = [
        Value("element", s.dtype, None if s.shape is None else s.shape[1:], body) for s in sequences
    ]
    body.inputs = [*inner, *elements]
    b.graph = body
    try:
        new = [_ensure_local(b, v) for v in step(*inner, *elements)]
        body.outputs = [*new, *(b.Identity(v) for v in new)]
    finally:
        b.graph = outer
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


def _ensure_local(b: Builder, v: Value) -> Value:
    """A result of a body is computed in it."""
    own = v.producer is not None and v.graph is b.graph
    return v if own else b.Identity(v)


def _copy_types(
    values: Sequence[Value], states: Sequence[Value], length: Shape = ()
) -> tuple[Value, ...]:
    """With dtypes and sizes of the states, which stay as they are from step to step."""
    for v, state in zip(values, states, strict=True):
        v.dtype = state.dtype
        v.shape = None if state.shape is None else (*length, *state.shape)
    return tuple(values)
