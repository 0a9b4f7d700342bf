"""Shape rules of recurrent networks, kept whole: unrolling would fix the sequence length."""

from __future__ import annotations

from collections.abc import Sequence

from graphport.errors import ShapeError
from graphport.ops.registry import overloads, shape_rule
from graphport.ops.sizes import establish_equal
from graphport.tensors.abstract import Abstract, permute_strides


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
        if not establish_equal(batch, state.sizes[1]):
            raise ShapeError(
                f"{what}: the input {input} and the hidden state {state} differ in batch size"
            )


@shape_rule(*overloads("lstm.input gru.input rnn_tanh.input rnn_relu.input"))
def rnn(
    input: Abstract,
    hx: Abstract | Sequence[Abstract],
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Abstract, ...]:
    states, what = ([hx], "gru") if isinstance(hx, Abstract) else (hx, "lstm")
    _check_batch(input, states[0], batch_first, what)
    out = _infer_output(input, states[0], bidirectional, batch_first)
    return out, *(state.like() for state in states)


@shape_rule(*overloads("lstm.data gru.data rnn_tanh.data rnn_relu.data"))
def packed_rnn(
    data: Abstract,
    batch_sizes: Abstract,
    hx: Abstract | Sequence[Abstract],
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Abstract, ...]:
    states = [hx] if isinstance(hx, Abstract) else hx
    return _infer_output(data, states[0], bidirectional), *(state.like() for state in states)
