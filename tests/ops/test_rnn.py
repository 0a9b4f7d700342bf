"""Recurrent networks: every kind, dynamic in batch and length, packed sequences included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphport as gp
from tests.helpers import check

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "bidirectional": {"bidirectional": True, "batch_first": True},
    "deep": {"num_layers": 3, "dropout": 0.2},
    "no_bias": {"bias": False},
}
CLOSE = 1e-5


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic(kind: str, option: str) -> None:
    model = KINDS[kind](6, 4, **OPTIONS[option]).eval()
    batch, length = gp.Dim("batch", min=1), gp.Dim("length", min=1)
    spec = ((batch, length, None) if OPTIONS[option].get("batch_first") else (length, batch, None),)
    first, second = (3, 5) if OPTIONS[option].get("batch_first") else (5, 3)
    others = [(torch.randn(s, t, 6),) for s, t in ((1, 1), (first + 4, second), (first, 1))]
    check(
        model,
        (torch.randn(first, second, 6),),
        dynamic_shapes=spec,
        others=others,
        rtol=CLOSE,
        atol=CLOSE,
    )


def test_relu() -> None:
    check(nn.RNN(6, 4, nonlinearity="relu"), (torch.randn(5, 3, 6),), rtol=CLOSE, atol=CLOSE)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
def test_projection() -> None:
    model = nn.LSTM(6, 8, proj_size=3, batch_first=True)
    spec = ((gp.Dim("batch", min=1), gp.Dim("length", min=1), None),)
    others = [(torch.randn(1, 7, 6),)]
    check(
        model, (torch.randn(2, 5, 6),), dynamic_shapes=spec, others=others, rtol=CLOSE, atol=CLOSE
    )


@pytest.mark.parametrize("kind", KINDS)
def test_given_state(kind: str) -> None:
    model = KINDS[kind](6, 4)
    state = torch.randn(1, 3, 4)
    hx = (state, torch.randn(1, 3, 4)) if kind == "lstm" else state
    check(model, (torch.randn(5, 3, 6), hx), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_unbatched(kind: str) -> None:
    model = KINDS[kind](6, 4)
    spec = ({0: gp.Dim("length", min=1)},)
    check(
        model,
        (torch.randn(5, 6),),
        dynamic_shapes=spec,
        others=[(torch.randn(8, 6),)],
        rtol=CLOSE,
        atol=CLOSE,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind: str) -> None:
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}[kind](6, 4)
    spec = ({0: gp.Dim("batch", min=1)},)
    check(
        cell,
        (torch.randn(3, 6),),
        dynamic_shapes=spec,
        others=[(torch.randn(1, 6),)],
        rtol=CLOSE,
        atol=CLOSE,
    )


class Packed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = KINDS[kind](6, 4, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        out, _ = self.rnn(packed)
        return pad_packed_sequence(out, batch_first=True)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str) -> None:
    check(Packed(kind), (torch.randn(3, 5, 6),), rtol=CLOSE, atol=CLOSE)


class PackedByInput(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = KINDS[kind](6, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(out, total_length=x.shape[0])[0]


UNKNOWN_BATCH = pytest.mark.xfail(
    raises=gp.errors.DataDependentError, reason="torch's own module asks for int(batch_sizes[0])"
)


@pytest.mark.parametrize(
    "kind",
    ["lstm", pytest.param("gru", marks=UNKNOWN_BATCH), pytest.param("rnn", marks=UNKNOWN_BATCH)],
)
def test_packed_by_input(kind: str) -> None:
    """Lengths that only the data can tell."""
    lengths = [(torch.tensor([2, 5, 3]),), (torch.tensor([4, 4, 1]),)]
    inputs = [(torch.randn(5, 3, 6), *each) for each in lengths]
    check(PackedByInput(kind), inputs[0], others=inputs[1:], rtol=CLOSE, atol=CLOSE)
