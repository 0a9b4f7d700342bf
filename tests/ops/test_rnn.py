"""Recurrent networks: every kind, dynamic in batch and length, packed sequences included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphport as gp
from tests.helpers import check
from tests.onnx.helpers import check_onnx

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
    """Lengths that only the data can tell."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        is_sorted, first, whole = (options.pop(k, False) for k in ("is_sorted", "first", "whole"))
        self.rnn = KINDS[kind](6, 4, batch_first=first, **options)
        self.is_sorted, self.first, self.whole = is_sorted, first, whole

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, self.first, self.is_sorted)
        out, last = self.rnn(packed)
        total = x.shape[1 if self.first else 0] if self.whole else None
        out, counts = pad_packed_sequence(out, self.first, total_length=total)
        return out, counts, last


LENGTHS = [[2, 5, 3], [7, 1, 7, 6], [4]]
PACKED = {
    "lstm": {"kind": "lstm"},
    "gru": {"kind": "gru", "whole": True},
    "rnn": {"kind": "rnn", "first": True, "nonlinearity": "relu"},
    "sorted": {"kind": "gru", "is_sorted": True},
    "sorted, whole": {"kind": "lstm", "is_sorted": True, "first": True, "whole": True},
    "both directions": {"kind": "lstm", "first": True, "bidirectional": True, "num_layers": 2},
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_by_input(name: str) -> None:
    model = PackedByInput(**PACKED[name]).eval()
    inputs = []
    for lengths in LENGTHS:
        longest, count = max(lengths) + (not model.is_sorted), len(lengths)
        sizes = (count, longest) if model.first else (longest, count)
        given = sorted(lengths, reverse=True) if model.is_sorted else lengths
        inputs.append((torch.randn(*sizes, 6), torch.tensor(given)))
    dims = (gp.Dim("count"), gp.Dim("longest"))
    of_x = dict(enumerate(dims if model.first else dims[::-1]))
    shapes = {"x": of_x, "lengths": {0: dims[0]}}
    options: dict[str, Any] = {"dynamic_shapes": shapes, "others": inputs[1:]}
    check(model, inputs[0], rtol=CLOSE, atol=CLOSE, **options)
    check_onnx(model, inputs[0], **options)


class FromAState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return self.rnn(packed, (h, h + 1))[1][0]


def test_packed_with_a_state() -> None:
    count = gp.Dim("count")
    x, lengths = torch.randn(5, 3, 6), torch.tensor([2, 5, 3])
    check(
        FromAState(),
        (x, lengths, torch.randn(1, 3, 4)),
        dynamic_shapes=({1: count}, {0: count}, {1: count}),
        others=[(x[:, :2], lengths[:2], torch.randn(1, 2, 4))],
    )
