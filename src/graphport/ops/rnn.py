"""Shape rules of recurrent networks, kept whole: unrolling would fix the sequence length."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.ops.registry import shape_rule
from graphport.ops.sizes import require_equal
from graphport.tensors.abstract import Abstract, permute_strides

aten = torch.ops.aten


def _infer_output(
    input: Abstract, state: Abstract, bidirectional: bool, batch_first: bool = False
) -> Abstract:
    hidden = state.sizes[-1] * (2 if bidirectional else 1)
    sizes = (*input.sizes[:-1], hidden)
    # Time runs slowest in memory, whichever dim is first.
    layout = permute_strides(sizes, (1, 0, 2)) if batch_first and input.rank == 3 else None
    return Abstract(sizes, input.dtype, input.device, layout)


def _check_batch(input: Abstract, state: Abstract, batch_first: bool, what: str) -> None:
    if input.rank == 3:
        batch = input.sizes[0 if batch_first else 1]
        require_equal(
            batch,
            state.sizes[1],
            "{0}: the input {1} and the hidden state {2} differ in batch size",
            what,
            input,
            state,
        )


@shape_rule(aten.lstm.input)
def lstm(
    input: Abstract,
    hx: Sequence[Abstract],
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Abstract, Abstract, Abstract]:
    _check_batch(input, hx[0], batch_first, "lstm")
    return _infer_output(input, hx[0], bidirectional, batch_first), hx[0].like(), hx[1].like()


@shape_rule(aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def gru(
    input: Abstract,
    hx: Abstract,
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Abstract, Abstract]:
    _check_batch(input, hx, batch_first, "gru")
    return _infer_output(input, hx, bidirectional, batch_first), hx.like()


@shape_rule(aten.lstm.data)
def lstm_packed(
    data: Abstract,
    batch_sizes: Abstract,
    hx: Sequence[Abstract],
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Abstract, Abstract, Abstract]:
    return _infer_output(data, hx[0], bidirectional), hx[0].like(), hx[1].like()


@shape_rule(aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
def gru_packed(
    data: Abstract,
    batch_sizes: Abstract,
    hx: Abstract,
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Abstract, Abstract]:
    return _infer_output(data, hx, bidirectional), hx.like()
