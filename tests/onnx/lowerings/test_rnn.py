"""Recurrent networks: a layer is one node, at any batch and length, packed sequences included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphport as gp
from tests.onnx.helpers import check_onnx

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "bidirectional": {"bidirectional": True, "batch_first": True},
    "deep": {"num_layers": 3, "dropout": 0.2},
    "deep_bidirectional": {"num_layers": 2, "bidirectional": True},
    "no_bias": {"bias": False},
}


def sequence(options: dict[str, Any], batch: int, length: int) -> torch.Tensor:
    sizes = (batch, length) if options.get("batch_first") else (length, batch)
    return torch.randn(*sizes, 6)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic(kind: str, option: str) -> None:
    options = OPTIONS[option]
    model = KINDS[kind](6, 4, **options).eval()
    batch, length = gp.Dim("batch"), gp.Dim("length", min=1)
    spec = (batch, length, None) if options.get("batch_first") else (length, batch, None)
    others = [(sequence(options, *sizes),) for sizes in ((1, 1), (7, 2), (0, 3))]
    check_onnx(model, (sequence(options, 3, 5),), dynamic_shapes=(spec,), others=others)


@pytest.mark.parametrize("option", ["plain", "deep_bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_given_state(kind: str, option: str) -> None:
    model = KINDS[kind](6, 4, **OPTIONS[option])
    rows = model.num_layers * (2 if model.bidirectional else 1)
    state = torch.randn(rows, 3, 4)
    hx = (state, torch.randn(rows, 3, 4)) if kind == "lstm" else state
    check_onnx(model, (torch.randn(5, 3, 6), hx))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_halves(kind: str, dtype: torch.dtype) -> None:
    check_onnx(KINDS[kind](6, 4).to(dtype), (torch.randn(5, 3, 6).to(dtype),))


@pytest.mark.parametrize("kind", KINDS)
def test_unbatched(kind: str) -> None:
    spec = ({0: gp.Dim("length", min=1)},)
    check_onnx(
        KINDS[kind](6, 4), (torch.randn(5, 6),), dynamic_shapes=spec, others=[(torch.randn(8, 6),)]
    )


def test_relu() -> None:
    check_onnx(nn.RNN(6, 4, nonlinearity="relu", bidirectional=True), (torch.randn(5, 3, 6),))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_layer_is_one_node_on_the_parameters(kind: str) -> None:
    """Zero states are left out, and the file has the weights under their own names."""
    program = check_onnx(KINDS[kind](6, 4), (torch.randn(5, 3, 6),))
    graph = program.model_proto.graph
    ops = [n.op_type for n in graph.node]
    assert ops == ["Gather", "Gather", "Concat", "Gather", kind.upper(), "Squeeze"]
    names = {i.name for i in graph.initializer}
    assert {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"} <= names


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_cells(kind: str) -> None:
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](6, 4)
    spec = ({0: gp.Dim("batch", min=1)},)
    check_onnx(cell, (torch.randn(3, 6),), dynamic_shapes=spec, others=[(torch.randn(1, 6),)])


def test_cell_operators() -> None:
    x, h, c = torch.randn(3, 6), torch.randn(3, 4), torch.randn(3, 4)
    for gates in (4, 3):
        weights = torch.randn(4 * gates, 6), torch.randn(4 * gates, 4)
        biases = torch.randn(4 * gates), torch.randn(4 * gates)
        if gates == 4:
            fn = lambda x, h, c, *p: torch.ops.aten.lstm_cell(x, [h, c], *p)
            check_onnx(fn, (x, h, c, *weights, *biases))
        else:
            check_onnx(
                lambda x, h, *p: torch.ops.aten.gru_cell(x, h, *p), (x, h, *weights, *biases)
            )


class Packed(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.rnn = KINDS[kind](6, 4, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        out, state = self.rnn(packed)
        return out.data, pad_packed_sequence(out, total_length=7, padding_value=-1.0), state


@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str) -> None:
    check_onnx(Packed(kind), (torch.randn(3, 5, 6),))
    check_onnx(Packed(kind, bidirectional=True, num_layers=2), (torch.randn(3, 5, 6),))


class PackedByInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 4, bidirectional=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        out, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(out, total_length=x.shape[0])


def test_packed_by_input() -> None:
    """Lengths that only the data can tell."""
    inputs = [(torch.randn(5, 3, 6), torch.tensor(each)) for each in ([2, 5, 3], [4, 4, 1])]
    check_onnx(PackedByInput(), inputs[0], others=inputs[1:])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.LSTM(6, 8, proj_size=3), "no projections"),
        (nn.GRU(6, 4).double(), "float64"),
        (nn.GRU(6, 4, num_layers=2, dropout=0.5), "dropout"),
    ],
    ids=["projections", "float64", "dropout"],
)
def test_refused(model: nn.Module, text: str) -> None:
    x = torch.randn(5, 3, 6, dtype=next(model.parameters()).dtype)
    with pytest.raises(gp.errors.UnsupportedError, match=text):
        gp.onnx.export(model.train(), (x,))
