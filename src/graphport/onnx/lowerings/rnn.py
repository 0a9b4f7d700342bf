"""Lowers recurrent networks: each layer to one LSTM, GRU or RNN.

Weights stay those of the program: their gates are put into the order of ONNX in the model, which a
runtime does once, when it loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Size, Value
from graphport.onnx.lower.registry import lower, lower_table
from graphport.onnx.lowerings.conv import pad_dims, sizes_of
from graphport.symbolic import ge, max_


class _CellKind(NamedTuple):
    op: str
    gates: tuple[int, ...]
    """Which of torch's gates stands where in ONNX."""
    attributes: dict[str, Any]


# torch: input, forget, cell, output; ONNX: input, output, forget, cell.
_LSTM = _CellKind("LSTM", (0, 3, 1, 2), {})
# torch: reset, update, new; ONNX: update, reset, hidden. torch resets after the product.
_GRU = _CellKind("GRU", (1, 0, 2), {"linear_before_reset": 1})
_TANH = _CellKind("RNN", (0,), {})
_RELU = _CellKind("RNN", (0,), {"activations": "Relu"})


class _Network:
    """The layers of a network over a sequence [time, batch, features]."""

    def __init__(
        self,
        b: Builder,
        kind: _CellKind,
        hx: Value | list[Value],
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> None:
        if train and dropout > 0 and num_layers > 1:
            raise UnsupportedError(f"{kind.op}: dropout between layers while training")
        if params[0].dtype is torch.float64:
            raise UnsupportedError(f"ONNX Runtime has no kernel of {kind.op} for float64")
        self.b, self.kind, self.num_layers = b, kind, num_layers
        self.directions = 2 if bidirectional else 1
        self.biases = has_biases
        self.each = len(params) // (num_layers * self.directions)
        if self.each > (4 if has_biases else 2):
            raise UnsupportedError("LSTM: ONNX has no projections (proj_size)")
        self.params = params
        self.hidden = sizes_of(params[1])[1]
        states = hx if isinstance(hx, list) else [hx]
        self.batch = sizes_of(states[0])[1]
        self.states = [self._split_layers(h) for h in states]

    def _split_layers(self, state: Value) -> list[Value | None]:
        """A state of each layer; none where it starts with zeros."""
        if _is_zero(state):
            return [None] * self.num_layers
        if self.num_layers == 1:
            return [state]
        sizes = [self.directions] * self.num_layers
        parts = self.b.Split(state, sizes, axis=0, outputs=self.num_layers)
        return [self.b.shaped(p, (self.directions, *sizes_of(state)[1:])) for p in parts]

    def run(self, x: Value, lengths: Value | None = None) -> tuple[Value, list[Value]]:
        """The sequence [time, direction, batch, hidden] of the last layer, and the last states."""
        batch: Any = sizes_of(x)[1]
        if self.kind.op == "RNN" or self.b.scope.decide(ge(batch, 1)) is True:
            return self._run(x, self.states, lengths)
        # LSTM and GRU of ONNX Runtime end the process on an empty batch: give it one of one.
        more = [max_(1 - batch, 0), 0]
        states = [
            [None if s is None else pad_dims(self.b, s, [0, 0], more, 0) for s in by_layer]
            for by_layer in self.states
        ]
        out, last = self._run(pad_dims(self.b, x, [0, 0], more, 0), states, lengths)
        return self._first(out, batch, 2), [self._first(s, batch, 1) for s in last]

    def _first(self, x: Value, count: Size, axis: int) -> Value:
        sizes = list(sizes_of(x))
        out = self.b.Slice(x, [0], [count], [axis])
        return self.b.shaped(out, [*sizes[:axis], count, *sizes[axis + 1 :]])

    def _run(
        self, x: Value, by_state: Sequence[Sequence[Value | None]], lengths: Value | None
    ) -> tuple[Value, list[Value]]:
        b, last = self.b, []
        out = x
        for layer in range(self.num_layers):
            w, r, c = self._weights(layer)
            states = [s[layer] for s in by_state]
            made = getattr(b, self.kind.op)(
                x,
                w,
                r,
                c,
                lengths,
                *states,
                outputs=1 + len(states),
                hidden_size=self.hidden,
                direction="bidirectional" if self.directions == 2 else None,
                **self._attributes(),
            )
            out = b.shaped(
                made[0], (*sizes_of(x)[:1], self.directions, *sizes_of(x)[1:2], self.hidden)
            )
            shape = (self.directions, *sizes_of(x)[1:2], self.hidden)
            last.append([b.shaped(s, shape) for s in made[1:]])
            if layer < self.num_layers - 1:
                x = self.merge_directions(out, (0, 2, 1, 3))
        joined = [s[0] if len(s) == 1 else b.Concat(*s, axis=0) for s in zip(*last, strict=True)]
        return out, joined

    def merge_directions(self, out: Value, order: Sequence[int]) -> Value:
        """Dims in an order, that of the directions last but one, which goes into the features."""
        b = self.b
        if self.directions == 1:
            flat = b.squeeze(out, 1)
            return b.transpose(flat, [o - (o > 1) for o in order if o != 1])
        turned = b.transpose(out, order)
        sizes = sizes_of(turned)
        return b.reshape(turned, (*sizes[:2], 2 * self.hidden))

    def _attributes(self) -> dict[str, Any]:
        found = dict(self.kind.attributes)
        if "activations" in found:
            found["activations"] = [found["activations"]] * self.directions
        return found

    def _weights(self, layer: int) -> tuple[Value, Value, Value | None]:
        parts = [
            self.params[i * self.each : (i + 1) * self.each]
            for i in range(layer * self.directions, (layer + 1) * self.directions)
        ]
        w, r = (self._reorder_gates([p[i] for p in parts], 1) for i in (0, 1))
        if not self.biases:
            return w, r, None
        return w, r, self._reorder_gates([v for p in parts for v in p[2:4]], 2)

    def _reorder_gates(self, weights: Sequence[Value], times: int) -> Value:
        """Weights of all directions together, with a dim for these and gates in ONNX's order."""
        b, gates = self.b, self.kind.gates
        rows = len(gates) * self.hidden * times
        whole = weights[0] if len(weights) == 1 else b.Concat(*weights, axis=0)
        if len(gates) == 1:
            rest = sizes_of(weights[0])[1:]
            return b.reshape(whole, (self.directions, rows, *rest))
        order = torch.arange(self.directions * rows).reshape(-1, len(gates), self.hidden)
        return b.Gather(whole, order[:, list(gates)].reshape(self.directions, rows), axis=0)


def _is_zero(v: Value) -> bool:
    """Whether a state is zeros, by what made it."""
    if v.tensor is not None:
        return v.producer is None and not bool(v.tensor.any())
    made = v.producer
    if made is None:
        return False
    if made.op == "Expand" and made.inputs[0] is not None:
        return _is_zero(made.inputs[0])
    value = made.attributes.get("value")
    return made.op == "ConstantOfShape" and (value is None or not bool(value.any()))


def _lower_rnn(kind: _CellKind) -> Any:
    def lowering(
        b: Builder,
        input: Value,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        network = _Network(
            b, kind, hx, params, has_biases, num_layers, dropout, train, bidirectional
        )
        x = b.transpose(input, (1, 0, 2)) if batch_first else input
        out, last = network.run(x)
        return network.merge_directions(out, (2, 0, 1, 3) if batch_first else (0, 2, 1, 3)), *last

    return lowering


def _lower_packed_rnn(kind: _CellKind) -> Any:
    """A packed sequence is spread out, with the lengths, and packed again."""

    def lowering(
        b: Builder,
        data: Value,
        batch_sizes: Value,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        network = _Network(
            b, kind, hx, params, has_biases, num_layers, dropout, train, bidirectional
        )
        time, batch = sizes_of(batch_sizes)[0], network.batch
        taken, rows = _packed_positions(b, batch_sizes, b.sizes.number(batch))
        x = b.shaped(b.Gather(data, rows, axis=0), (time, batch, *sizes_of(data)[1:]))
        lengths = b.ReduceSum(b.cast(taken, torch.int32), [0], keepdims=0)
        out, last = network.run(x, lengths)
        features = network.hidden * network.directions
        flat = b.Reshape(network.merge_directions(out, (0, 2, 1, 3)), [-1, features])
        return b.Compress(flat, b.Reshape(taken, [-1]), axis=0), *last

    return lowering


lower_table(
    {"lstm.input": _LSTM, "gru.input": _GRU, "rnn_tanh.input": _TANH, "rnn_relu.input": _RELU},
    _lower_rnn,
)
lower_table(
    {"lstm.data": _LSTM, "gru.data": _GRU, "rnn_tanh.data": _TANH, "rnn_relu.data": _RELU},
    _lower_packed_rnn,
)


def _packed_positions(b: Builder, batch_sizes: Value, batch: Value) -> tuple[Value, Value]:
    """By time and batch: whether a packed sequence has it, and in which row."""
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)
    line = b.Range(zero, batch, one)
    taken = b.Less(line, b.unsqueeze(batch_sizes, 1))
    starts = b.CumSum(batch_sizes, zero, exclusive=1)
    return taken, b.Where(taken, b.Add(line, b.unsqueeze(starts, 1)), zero)


@lower(aten._pack_padded_sequence.default)
def _pack_padded_sequence(
    b: Builder, input: Value, lengths: Value, batch_first: bool
) -> tuple[Value, Value]:
    """Time by time, the sequences that are so long; lengths do not increase."""
    x = b.transpose(input, (1, 0, *range(2, input.rank))) if batch_first else input
    sizes: tuple[Any, ...] = sizes_of(x)
    zero, one = b.scalar(0, torch.int64), b.scalar(1, torch.int64)
    times = b.Range(zero, b.ReduceMax(lengths, [0], keepdims=0), one)
    longer = b.Less(b.unsqueeze(times, 1), lengths)
    batch_sizes = b.ReduceSum(b.cast(longer, torch.int64), [1], keepdims=0)
    steps = b.Range(zero, b.sizes.number(sizes[0]), one)
    taken = b.Reshape(b.Less(b.unsqueeze(steps, 1), lengths), [-1])
    flat = b.reshape(x, (sizes[0] * sizes[1], *sizes[2:]))
    return b.Compress(flat, taken, axis=0), batch_sizes


@lower(aten._pad_packed_sequence.default)
def _pad_packed_sequence(
    b: Builder,
    data: Value,
    batch_sizes: Value,
    batch_first: bool,
    padding_value: Any,
    total_length: Any,
) -> tuple[Value, Value]:
    taken, rows = _packed_positions(b, batch_sizes, b.ReduceMax(batch_sizes, [0], keepdims=0))
    inside = b.unsqueeze(taken, *range(2, data.rank + 1))
    out = b.Where(inside, b.Gather(data, rows, axis=0), padding_value)
    if type(total_length) is not int or total_length > 0:
        missing = total_length - sizes_of(batch_sizes)[0]
        none = [0] * data.rank
        out = b.Pad(out, [0, *none, missing, *none], padding_value)
    out = b.transpose(out, (1, 0, *range(2, data.rank + 1))) if batch_first else out
    return out, b.ReduceSum(b.cast(taken, torch.int64), [0], keepdims=0)


@lower(aten.lstm_cell.default)
def lstm_cell(
    b: Builder,
    input: Value,
    hx: Sequence[Value],
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None,
    b_hh: Value | None,
) -> tuple[Value, Value]:
    params = [p for p in (w_ih, w_hh, b_ih, b_hh) if p is not None]
    h, c = _run_cell(b, _LSTM, input, hx, params)
    return h, c


@lower(aten.gru_cell.default)
def gru_cell(
    b: Builder,
    input: Value,
    hx: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None,
    b_hh: Value | None,
) -> Value:
    params = [p for p in (w_ih, w_hh, b_ih, b_hh) if p is not None]
    return _run_cell(b, _GRU, input, [hx], params)[0]


def _run_cell(
    b: Builder, kind: _CellKind, x: Value, hx: Sequence[Value], params: Sequence[Value]
) -> list[Value]:
    """A sequence of one step."""
    states = [b.unsqueeze(h, 0) for h in hx]
    network = _Network(b, kind, states, params, len(params) == 4, 1, 0.0, False, False)
    _, last = network.run(b.unsqueeze(x, 0))
    return [b.squeeze(b.shaped(s, h.shape or ()), 0) for s, h in zip(last, states, strict=True)]
