"""The checks of `program/bounds.py` as nodes of torch's programs, which call operators alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from graphport.errors import UnsupportedError
from graphport.program import bounds

aten = torch.ops.aten
Make = Callable[..., Any]
"""Makes a node that calls a function."""


def assert_bounds(graph: Graph, node: Node) -> None:
    """Have a call that has just been written checked before it is made."""
    check = bounds.CHECKS[node.target]
    args = bounds.arguments(node.target, node.args, node.kwargs)

    def make(function: Any, *args: Any) -> Any:
        made = graph.call_function(function, args)
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        made.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
        made.meta["val"] = function(*values)
        return made

    with graph.inserting_before(node):
        try:
            for condition in _CONDITIONS[check](make, *args):
                made = graph.call_function(aten._assert_scalar.default, (condition, _MESSAGE))
                made.meta = {**condition.meta, "val": None}
        except (IndexError, TypeError) as error:
            raise UnsupportedError(f"{node.name} has arguments that {node.target} cannot take: "
                                   f"{error}") from error  # fmt: skip


_MESSAGE = "an operator of the program has arguments that it cannot take"


def _size(make: Make, x: Any, dim: int) -> Any:
    return make(aten.sym_size.int, x, dim)


def _fft(make: Make, x: Any, dims: Any, *_: Any) -> Iterator[Any]:
    if len(set(dims)) < len(dims):
        raise IndexError("a dim is given twice")
    for dim in dims:
        yield make(operator.ge, _size(make, x, dim), 0)


def _fft_to_real(make: Make, x: Any, dims: Any, _: Any, count: Any) -> Iterator[Any]:
    yield from _fft(make, x, dims)
    needed = make(operator.add, make(operator.floordiv, count, 2), 1)
    yield make(operator.ge, _size(make, x, dims[-1]), needed)
    yield make(operator.ge, count, 1)


def _batch_norm(make: Make, x: Any, *numbers: Any) -> Iterator[Any]:
    channels = _size(make, x, 1)
    for t in numbers[:4]:
        if isinstance(t, Node):
            yield make(operator.eq, _size(make, t, 0), channels)


def _norm(make: Make, x: Any, weight: Any, bias: Any, *_: Any) -> Iterator[Any]:
    return _batch_norm(make, x, weight, bias)


def _resize(make: Make, x: Any, sizes: Any, _: Any, *scales: Any) -> Iterator[Any]:
    for i, (out, scale) in enumerate(zip(sizes, scales, strict=False)):
        if scale is not None:
            most = make(operator.add, make(operator.mul, _size(make, x, 2 + i), scale), 1)
            yield make(operator.le, out, most)


def _weight_norm(make: Make, v: Any, g: Any, dim: Any) -> Iterator[Any]:
    yield make(operator.eq, make(aten.sym_numel.default, g), _size(make, v, dim))


def _attention(make: Make, query: Any, key: Any, value: Any, *_: Any) -> Iterator[Any]:
    yield make(operator.eq, _size(make, key, -2), _size(make, value, -2))


def _lstm(
    make: Make, x: Any, hx: Any, params: Any, biases: Any, layers: Any, dropout: Any, train: Any,
    both: Any, batch_first: Any,
) -> Iterator[Any]:  # fmt: skip
    """The sizes of weights are those of tensors of the program, and the others are compared."""
    directions = 2 if both else 1
    hidden, cells = (_size(make, t, -1) for t in hx)
    is_projected = hx[0].meta["val"].shape[-1] != hx[1].meta["val"].shape[-1]
    kinds = 2 + 2 * bool(biases) + is_projected
    if len(params) != kinds * layers * directions:
        raise IndexError(f"{layers} layers with {len(params)} weights")
    gates = make(operator.mul, cells, 4)
    yield make(operator.ne if is_projected else operator.eq, hidden, cells)
    for t in hx:
        yield make(operator.eq, _size(make, t, 0), layers * directions)
    for i in range(layers * directions):
        inner = make(operator.mul, hidden, directions)
        width = _size(make, x, -1) if i < directions else inner
        wanted = [(gates, width), (gates, hidden), *([(gates,), (gates,)] if biases else [])]
        wanted += [(hidden, cells)] if is_projected else []
        for t, sizes in zip(params[i * kinds : (i + 1) * kinds], wanted, strict=True):
            for dim, size in enumerate(sizes):
                yield make(operator.eq, _size(make, t, dim), size)


_CONDITIONS: dict[bounds.Check, Callable[..., Iterator[Any]]] = {
    bounds.check_fft: _fft,
    bounds.check_fft_to_real: _fft_to_real,
    bounds.check_batch_norm: _batch_norm,
    bounds.check_norm: _norm,
    bounds.check_resize: _resize,
    bounds.check_weight_norm: _weight_norm,
    bounds.check_attention: _attention,
    bounds.check_lstm: _lstm,
}
