"""Tracing with known sizes: what is decided, what stays in the graph, what is refused."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, arange, nn
from torch.fx import symbolic_trace

from graphport.errors import DataDependentError, InputError, ShapeError, UnsupportedError
from graphport.fx import NormalizeArgs, meta_trace


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(42, 16)
        self.layernorm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        emb = self.emb(x)
        emb = emb + torch.arange(emb.shape[-1], dtype=torch.float, device=emb.device)
        out = self.layernorm(emb)
        return torch.relu(out) if out.shape[0] < 30 else torch.sigmoid(out)


@pytest.mark.parametrize("size", [15, 35])
@pytest.mark.parametrize("kind", ["meta", "real"])
def test_branches_on_shapes_and_pickling(size: int, kind: str) -> None:
    model = Branching()
    x = torch.randint(42, (size,))
    gm = meta_trace(model, meta_args={"x": x.to("meta") if kind == "meta" else x})
    torch.testing.assert_close(gm(x), model(x))
    called = {n.target for n in gm.graph.nodes}
    assert (torch.relu in called, torch.sigmoid in called) == (size < 30, size >= 30)
    for again in (pickle.loads(pickle.dumps(gm)), copy.deepcopy(gm)):
        torch.testing.assert_close(again(x), model(x))


def test_sizes_stay_in_the_graph() -> None:
    """A branch is decided once; sizes that operators take are asked for at each call."""
    model = Branching()
    gm = meta_trace(model, {"x": torch.empty(15, dtype=torch.long, device="meta")})
    x = torch.randint(42, (29,))
    torch.testing.assert_close(gm(x), model(x))


class Layers(nn.Module):
    """Layers of several kinds, one of them made on the way, with statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.ReLU()(self.norm(self.conv(x)))
        batch, channels, height, width = x.shape
        x = x.flatten(2).transpose(1, 2)
        if x.size(1) != height * width or x.shape != (batch, height * width, channels):
            raise ValueError("cannot be")
        y, _ = self.rnn(x)
        y, _ = self.attention(y, y, y)
        return (y * self.scale).mean(1) + torch.zeros(batch, channels)


def test_layers() -> None:
    model = Layers().train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3, 4, 5)
    gm = meta_trace(model, {"x": x})
    assert dict(model.named_children()).keys() == {"conv", "norm", "rnn", "attention"}
    torch.testing.assert_close(dict(model.state_dict()), state)
    gm.eval(), model.eval()
    for shape in ((2, 3, 4, 5), (3, 3, 6, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(gm(x), model(x))


def loop(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[1:])
    for row in x:
        out = out + row
    for i in range(len(x)):
        out = out * (i + 1)
    return out


def questions(x: Tensor) -> Tensor:
    assert isinstance(x, Tensor) and torch.is_tensor(x)
    assert x.dim() == x.ndim == 2 and x.dtype is not None and not x.is_cuda
    assert x.dtype == torch.float32 and x.device.type == "cpu" and x.is_floating_point()
    assert isinstance(x.shape, tuple) and isinstance(x.shape[0], int) and 3 in x.shape
    assert max(x.shape) == 3 and x.numel() == 6 and int(x.size(1)) == 3
    assert x.size(0) == 2 and x.size()[1] == 3 and x.stride() == (3, 1)
    n = math.ceil(x.shape[1] / 2) + [10, 20, 30][x.shape[0]]
    return x * n


def several(x: Tensor) -> Any:
    values, indices = x.max(1)
    parts = x.chunk(2, dim=0)
    total = sum(p.sum() for p in parts)
    if len(parts) == 2 and values.shape == indices.shape:
        total = total + values.sum()
    return {"total": total, "rest": [*x.unbind(0)]}


def factories(x: Tensor) -> Tensor:
    a, b = x.shape
    y = arange(a) + torch.full((a,), 2.0) + torch.linspace(0, 1, a) + torch.eye(a).sum(0)
    y = y + torch.ones(a, dtype=x.dtype) + torch.tensor([b] * a)
    mask = torch.ones(a, b).triu() if a < b else torch.ones(a, b)
    return y[:, None] + x * mask + torch.empty_like(x).fill_(1)


def padded(x: Tensor) -> Tensor:
    extra = -x.shape[1] % 4
    if extra:
        x = F.pad(x, (0, extra))
    return x.reshape(x.shape[0], -1, 4).sum(-1)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    y[0] = 5
    y.unsqueeze_(0)
    return y


def reshaped_in_place(x: Tensor) -> Any:
    y, z = x.clone(), x.clone()
    z.t_()
    w = y.unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    y = y + 1 if y.shape == (3, 2) else y - 1
    return y, w + len(w), z * 2 if z.shape[0] == 3 else z


@pytest.mark.parametrize(
    "program",
    [loop, questions, several, factories, padded, in_place, reshaped_in_place],
    ids=lambda f: f.__name__,
)
def test_what_python_asks(program: Callable[..., Any]) -> None:
    x = torch.randn(2, 3)
    gm = meta_trace(program, {"x": x.to("meta")})
    torch.testing.assert_close(gm(x), program(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(gm))(x), program(x))


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 9))
def test_any_size(rows: int, columns: int) -> None:
    def program(x: Tensor) -> Tensor:
        if x.shape[0] % 2:
            x = torch.cat([x, x.new_zeros(1, x.shape[1])])
        return padded(x) if x.shape[1] > 2 else x.sum(1, keepdim=True)

    x = torch.randn(rows, columns)
    gm = meta_trace(program, {"x": x.to("meta")})
    torch.testing.assert_close(gm(x), program(x))


def test_structured_inputs() -> None:
    def program(batch, flag=True, *rest):
        x, y = batch["x"], batch["pair"][1]
        for extra in rest:
            x = x + extra
        return x + y if x.shape[0] == y.shape[0] else x

    x = torch.randn(3)
    sizes = {"batch": {"x": x, "pair": (x, x)}, "rest": (x, x)}
    gm = meta_trace(program, sizes)
    torch.testing.assert_close(gm({"x": x, "pair": (x, x)}, True, x, x), 4 * x)


def test_dictionaries() -> None:
    def program(batch):
        total = sum(v.sum() for v in batch.values())
        for key, value in batch.items():
            total = total + (value.mean() if key == "x" and value.shape[0] > 2 else 0)
        return total * len(batch.items())

    batch = {"x": torch.randn(3), "y": torch.randn(2)}
    gm = meta_trace(program, {"batch": batch})
    torch.testing.assert_close(gm(batch), program(batch))
    assert not {n.target for n in gm.graph.nodes} & {"items", "values"}


class Tables(nn.Module):
    """Tensors that are no part of a trace, taken apart by sizes that are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(16, 16).tril())
        self.plain = torch.arange(16.0)

    def forward(self, x: Tensor) -> Any:
        n = x.shape[0]
        parts = self.plain.narrow(0, 0, n), torch.narrow(self.plain, 0, 1, n), self.plain[n]
        return self.mask[:n, :n] * x, self.mask[None, -n:, 0], self.plain.repeat(n, 1), *parts


def test_sizes_in_calls_on_other_tensors() -> None:
    model = Tables()
    gm = meta_trace(model, {"x": torch.empty(1, 1, device="meta")})
    for size in (1, 3):
        x = torch.randn(size, size)
        torch.testing.assert_close(gm(x), model(x))
    assert [name for name, _ in gm.named_buffers() if "mask" in name] == ["mask"]


def test_concrete_arguments() -> None:
    def program(x, mask=None):
        return x if mask is None and x.shape[0] > 2 else x * mask

    gm = meta_trace(program, {"x": torch.ones(3)}, concrete_args={"mask": None})
    torch.testing.assert_close(gm(torch.ones(4), None), torch.ones(4))


def test_only_decisions_are_dropped() -> None:
    gm = meta_trace(questions, {"x": torch.empty(2, 3, device="meta")})
    assert all(n.users for n in gm.graph.nodes if n.op != "output")
    gm = meta_trace(in_place, {"x": torch.empty(2, 3, device="meta")})
    assert "add_" in {n.target for n in gm.graph.nodes}


def test_values_are_noted() -> None:
    gm = meta_trace(lambda x: x.view(-1).relu(), {"x": torch.empty(2, 3, device="meta")})
    shapes = [tuple(n.meta["val"].shape) for n in gm.graph.nodes if n.op != "output"]
    assert shapes == [(2, 3), (6,), (6,)]
    view = next(n for n in NormalizeArgs(gm).transform().graph.nodes if n.target == "view")
    assert "size" in view.kwargs


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(1, 4))
        self.plain = torch.rand(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        more = self.table.new_ones(n, 4) + self.plain.new_zeros((n, 4))
        return x + self.table.expand(n, -1) + self.plain.expand(x.size(0), x.size(1)) + more


def test_sizes_one_by_one_given_to_tensors_that_are_not_traced() -> None:
    model, x = Table(), torch.rand(2, 4)
    gm = meta_trace(model, {"x": torch.empty(3, 4, device="meta")})
    torch.testing.assert_close(gm(x), model(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(gm))(x), model(x))
    assert "expand" not in vars(Tensor)


def test_without_sizes_it_is_a_plain_trace() -> None:
    def program(x):
        return x + 1

    assert meta_trace(program).code == symbolic_trace(program).code


def on_data(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


@pytest.mark.parametrize(
    ("program", "use"),
    [
        (on_data, "a branch depends on the numbers in gt"),
        (lambda x: x * int(x.max()), "a number depends on the numbers in max_1"),
        (lambda x: x if x.max().item() > 2 else -x, "a branch depends on gt, of which nothing"),
        (lambda x: [*x.nonzero()], r"len\(\) depends on nonzero, of which nothing"),
    ],
)
def test_branches_on_numbers(program: Callable[..., Any], use: str) -> None:
    with pytest.raises(DataDependentError, match=use) as found:
        meta_trace(program, {"x": torch.empty(3, device="meta")})
    assert "test_meta_tracer.py" in str(found.value)


def test_branches_on_inputs_without_sizes() -> None:
    with pytest.raises(RuntimeError, match="of which nothing is known") as found:
        meta_trace(lambda x, y: x if y.shape[0] > 1 else y, {"x": torch.ones(1)})
    assert "meta_args={'y': torch.empty(..., device='meta')}" in str(found.value)


def test_mistakes() -> None:
    x = torch.empty(2, 3, device="meta")
    with pytest.raises(InputError, match="meta_args has z, which is no input"):
        meta_trace(lambda x: x, {"z": x})
    with pytest.raises(ShapeError, match="inner sizes") as found:
        meta_trace(lambda x: x @ x, {"x": x})
    assert "test_meta_tracer.py" in str(found.value)
    with pytest.raises(UnsupportedError, match="Linear has weights and is made while"):
        meta_trace(Making(), {"x": x})


class Making(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear(3, 3)(nn.ReLU()(x))


def test_a_trace_that_fails_leaves_the_model_as_it_was() -> None:
    model = Making()
    with pytest.raises(UnsupportedError):
        meta_trace(model, {"x": torch.empty(2, 3, device="meta")})
    assert list(model.children()) == []
