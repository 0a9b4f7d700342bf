"""Shapes, dtypes and layouts by running a graph, against the reference and against real runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Tracer, symbolic_trace
from torch.fx.passes.shape_prop import ShapeProp as Reference

import graphport as gp
from examples import resnet
from graphport.errors import DataDependentError, InputError, ShapeError
from graphport.fx import ShapeProp, TensorMetadata


def noted(gm: GraphModule) -> dict[str, Any]:
    return {n.name: (n.meta.pop("tensor_meta", None), n.meta.pop("type")) for n in gm.graph.nodes}


class Several(nn.Module):
    """Several results of one node, sizes, views, integers and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("table", torch.arange(4))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Any:
        x = self.norm(x) * self.weight
        values, indices = torch.max(x, 1)
        left, right = torch.chunk(x.t(), 2, dim=1)
        size = x.size()
        y = left.reshape(size[1], -1) + right
        return {"y": y, "rest": [values, indices.to(torch.int32), self.table[:2]], "n": size[0]}


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.contiguous(memory_format=torch.channels_last)).mean(1, keepdim=True)


MODELS = [
    (Several(), torch.randn(4, 3)),
    (Pictures(), torch.randn(2, 3, 8, 8)),
    (nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 5)), torch.randint(9, (3, 2))),
    (
        nn.Sequential(nn.Conv3d(1, 2, 1).to(memory_format=torch.channels_last_3d)),
        torch.randn(1, 1, 2, 2, 2).to(memory_format=torch.channels_last_3d),
    ),
    (
        nn.Sequential(nn.Dropout(), nn.Linear(2, 2, dtype=torch.bfloat16)),
        torch.randn(3, 2, dtype=torch.bfloat16),
    ),
    (nn.Sequential(nn.ReLU()), torch.randn(0, 2)),
    (nn.Sequential(nn.ReLU()), torch.randn(2, 3).to_sparse()),
]


@pytest.mark.parametrize(("model", "x"), MODELS)
def test_as_the_reference(model: nn.Module, x: Tensor) -> None:
    compare(model, x)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_tensors_as_the_reference() -> None:
    compare(nn.ReLU(), torch.quantize_per_tensor(torch.randn(2), 0.1, 3, torch.quint8))
    scales, points = torch.tensor([0.1, 0.2]), torch.tensor([1, 2])
    compare(
        nn.Identity(), torch.quantize_per_channel(torch.randn(2, 3), scales, points, 0, torch.qint8)
    )


def compare(model: nn.Module, x: Tensor) -> None:
    model = model if isinstance(model, (Several, Pictures)) else nn.Sequential(model)
    gm = symbolic_trace(model)
    out = ShapeProp(gm).propagate(x)
    found = noted(gm)
    Reference(gm).propagate(x)
    assert found == noted(gm)
    assert isinstance(out, type(gm(x)))


@pytest.mark.parametrize(("model", "x"), MODELS[:6])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_without_data(model: nn.Module, x: Tensor, kind: str) -> None:
    gm = symbolic_trace(model)
    ShapeProp(gm).propagate(x)
    real = noted(gm)
    ShapeProp(gm).propagate(x.to("meta") if kind == "meta" else FakeTensorMode().from_tensor(x))
    assert noted(gm) == real


def test_symbolic_sizes_of_a_resnet() -> None:
    """A graph of any kind runs on the sizes of an exported program."""
    model = resnet.ResNet((1, 1), 10).eval()
    ep = gp.export(model, (resnet.example(),), dynamic_shapes=resnet.spec(gp.Dim))
    image = next(n.meta["val"] for n in ep.graph.nodes if n.name == "image")
    for gm in (symbolic_trace(model), ep.module()):
        out = ShapeProp(gm).propagate(image)
        assert list(map(str, out.shape)) == ["batch", "10"]
        shown = {n.name: n.meta.get("tensor_meta") for n in gm.graph.nodes if n.op != "output"}
        assert all(m.memory_format is torch.contiguous_format for m in shown.values() if m)
        assert str(shown["image"].stride[0]) == "3072*height*width"
        assert {n.meta["type"] for n in gm.graph.nodes} <= {Tensor, nn.Parameter, int, tuple}


def test_symbolic_values_of_an_exported_program() -> None:
    """Where export has noted sizes, running the graph on its inputs finds the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            z = torch.cat([self.layer(x), y], 0).view(-1, 2, 2).transpose(0, 2)
            z = torch.relu_(z * 2)
            return z.sum((0, 1)) + x.shape[0], torch.topk(z, 1, 0), z.argmax(), y[1:]

    spec = {"x": {0: gp.Dim("a", min=2)}, "y": {0: gp.Dim("b", min=2)}}
    ep = gp.export(Model(), (torch.randn(3, 4), torch.randn(5, 4)), dynamic_shapes=spec)
    gm = ep.graph_module
    inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    ShapeProp(gm).propagate(*inputs)
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            noted = node.meta["tensor_meta"]
            assert list(map(str, noted.shape)) == list(map(str, value.shape)), node
            assert list(map(str, noted.stride)) == list(map(str, value.stride())), node
            assert noted.dtype == value.dtype


def test_training_leaves_the_statistics_as_they_are() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gm = symbolic_trace(model)
    for x in (torch.randn(4, 3), torch.empty(4, 3, device="meta")):
        ShapeProp(gm).propagate(x)
        torch.testing.assert_close(dict(model.state_dict()), before)


def test_the_record() -> None:
    gm = symbolic_trace(lambda x: x.t())
    out = ShapeProp(gm).propagate(torch.ones(2, 3, requires_grad=True))
    assert out.shape == (3, 2)
    noted = [n.meta["tensor_meta"] for n in gm.graph.nodes]
    size = torch.Size([3, 2])
    assert noted[1] == TensorMetadata(size, torch.float32, True, (1, 3), None, False, {})


class Recording(Tracer):
    record_stack_traces = True


class Wrong(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x) @ y


def test_errors_name_the_node_and_the_line() -> None:
    model = Wrong()
    gm = GraphModule(model, Recording().trace(model))
    with pytest.raises(RuntimeError) as found:
        ShapeProp(gm).propagate(torch.ones(2, 3), torch.ones(4, 5))
    assert isinstance(found.value, ShapeError)
    text = str(found.value)
    assert "node matmul fails: _operator.matmul(relu: float32[2, 3], y: float32[4, 5])" in text
    assert "test_shape_prop.py" in text and "return torch.relu(x) @ y" in text
    with pytest.raises(ShapeError, match=r"node matmul fails: .*\n.*inner sizes") as found:
        ShapeProp(gm).propagate(torch.ones(2, 3, device="meta"), torch.ones(4, 5))
    assert "return torch.relu(x) @ y" in str(found.value)


def test_what_needs_numbers() -> None:
    gm = symbolic_trace(lambda x: torch.nonzero(x))
    assert ShapeProp(gm).propagate(torch.ones(3)).shape == (3, 1)
    with pytest.raises(DataDependentError, match=r"node nonzero fails: .*\n.*depends on numbers"):
        ShapeProp(gm).propagate(torch.empty(3, device="meta"))


def test_what_is_no_graph() -> None:
    with pytest.raises(InputError, match="symbolic_trace"):
        ShapeProp(nn.ReLU())  # type: ignore[arg-type]


def test_shapes_that_change_in_place() -> None:
    def program(x: Tensor) -> Any:
        y = x.clone()
        y.t_()
        pair = torch.max(y, 1, out=(x.new_empty(3), x.new_empty(3, dtype=torch.long)))
        return y.unsqueeze_(0) + 1, y * 2, pair[0] + pair[1]

    gm = symbolic_trace(program)
    x = torch.randn(2, 3)
    ShapeProp(gm).propagate(x)
    real = noted(gm)
    ShapeProp(gm).propagate(x.to("meta"))
    shapes = noted(gm)
    assert shapes["output"] == real["output"] and shapes["t_"] == real["t_"]


def test_layers_that_are_made_by_their_first_input() -> None:
    gm = symbolic_trace(nn.Sequential(nn.LazyConv2d(4, 1), nn.LazyBatchNorm2d()))
    assert ShapeProp(gm).propagate(torch.randn(2, 3, 4, 4)).shape == (2, 4, 4, 4)
