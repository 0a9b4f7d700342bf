"""Modules as folders of source and weights."""

from __future__ import annotations

import enum
import importlib
import pickletools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Tracer, symbolic_trace

import graphport as gp
from examples import resnet
from graphport.errors import InputError, SerializationError
from graphport.fx import split_module, to_folder

Load = Callable[..., nn.Module]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Write a module to a folder, move the folder, and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    count = 0

    def written(gm: GraphModule, name: str = "Net") -> nn.Module:
        nonlocal count
        count += 1
        to_folder(gm, tmp_path / "written" / "here", name)
        package = f"moved_{tmp_path.name}_{count}".replace("-", "_")
        shutil.move(tmp_path / "written" / "here", tmp_path / package)
        importlib.invalidate_caches()
        return getattr(importlib.import_module(package), name)()

    return written


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(2))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.seq = nn.Sequential(nn.BatchNorm1d(2, 2))
        self.linear = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.linear.weight
        self.attr = torch.randn(2)
        self.register_buffer("attr2", torch.randn(2))
        self.register_buffer("attr3", torch.ones(2, dtype=torch.int32))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("none", None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.W + self.attr + self.attr2 + self.attr3 + x + self.passing + self.frozen
        return self.tied(self.linear(self.seq(x)))


def test_parameters_buffers_and_attributes(load: Load) -> None:
    gm = symbolic_trace(Everything())
    net = load(gm, "Foo")
    x = torch.randn(2, 2)
    torch.testing.assert_close(net(x), gm(x))
    torch.testing.assert_close(dict(net.state_dict()), dict(gm.state_dict()))
    assert type(net).__name__ == "Foo" and net.training
    assert net.tied.weight is net.linear.weight
    assert not net.frozen.requires_grad and net.W.requires_grad
    assert net.attr3.dtype is torch.int32
    assert net.get_submodule("seq.0").eps == 2
    with torch.no_grad():
        net.W.add_(1)
    assert not torch.equal(type(net)().W, net.W), "every instance has weights of its own"


MODELS = [
    (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"),
            nn.GELU("tanh"),
            nn.GroupNorm(2, 4),
            nn.Upsample(scale_factor=2.0, mode="nearest"),
            nn.AdaptiveAvgPool2d((2, None)),
            nn.Flatten(),
            nn.LogSoftmax(dim=1),
        ),
        (torch.randn(1, 3, 4, 4),),
    ),
    (
        nn.Sequential(nn.Embedding(5, 4, padding_idx=1, max_norm=2.0), nn.LSTM(4, 4, 2)),
        (torch.randint(5, (3, 2)),),
    ),
    (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, activation=torch.relu, batch_first=True)),
        (torch.randn(1, 3, 4),),
    ),
    (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)),
        (torch.randn(1, 3, 4),),
    ),
    (
        nn.Sequential(nn.Dropout(0.5), nn.PReLU(), nn.LayerNorm((2, 3)), nn.Softshrink(0.25)),
        (torch.randn(2, 3),),
    ),
    (
        nn.Sequential(nn.Linear(2, 2, dtype=torch.bfloat16), nn.Hardtanh(-float("inf"), 1.0)),
        (torch.randn(2, 2, dtype=torch.bfloat16),),
    ),
]


@pytest.mark.parametrize(("model", "args"), MODELS)
def test_standard_modules(model: nn.Module, args: tuple[Any, ...], load: Load) -> None:
    gm = symbolic_trace(model.eval())
    net = load(gm)
    assert not net.training
    torch.testing.assert_close(net(*args), gm(*args))
    for ours, theirs in zip(net.modules(), gm.modules(), strict=True):
        if not isinstance(theirs, GraphModule):
            assert type(ours) is type(theirs)
            assert ours.extra_repr() == theirs.extra_repr()


def test_a_resnet(load: Load) -> None:
    model = resnet.ResNet((1, 1), 10).eval()
    net = load(symbolic_trace(model))
    x = resnet.example(size=32)
    torch.testing.assert_close(net(x), model(x))


def test_exported_programs(load: Load) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, batch: dict[str, Any], scale: float = 2.0) -> Any:
            y = self.layer(batch["x"]) * scale + torch.tensor([1.0, float("inf")])
            return {"y": y, "pair": (batch["z"][0], y.to(torch.float64))}

    args = ({"x": torch.randn(3, 2), "z": [torch.ones(1)]},)
    ep = gp.export(Model(), args)
    net = load(ep.module())
    torch.testing.assert_close(net(*args), ep.module()(*args))
    inputs = [
        *ep.state_dict.values(),
        *ep.constants.values(),
        *torch.utils._pytree.tree_leaves(args),
    ]
    lifted = load(ep.graph_module)
    torch.testing.assert_close(lifted(*inputs), ep.graph_module(*inputs))


def test_graphs_within_graphs(load: Load) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    ep = gp.export(Model(), (torch.ones(3),))
    net = load(ep.module())
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(net(x), ep.module()(x))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    count = iter(range(3))
    split = split_module(symbolic_trace(model), model, lambda node: next(count))
    x = torch.randn(1, 2)
    torch.testing.assert_close(load(split)(x), model(x))


class Colour(enum.Enum):
    RED = 1


class Mine(nn.Module):
    """A leaf with attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = (1, 2.5, complex(1, 2), float("nan"), None, ...)
        self.names = {"a": [1, {"b"}], 3: b"x"}
        self.size = torch.Size([1, 2])
        self.dtype, self.device = torch.float16, torch.device("cpu")
        self.colour = Colour.RED
        self.act = torch.nn.functional.silu
        self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x) * self.table + self.numbers[1]


class Keeping(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Mine) or super().is_leaf_module(m, module_qualified_name)


def leaf(module: nn.Module) -> GraphModule:
    model = nn.Sequential(module)
    return GraphModule(model, Keeping().trace(model))


def test_modules_of_users(load: Load) -> None:
    gm = leaf(Mine())
    net = load(gm)
    mine = net.get_submodule("0")
    x = torch.randn(3)
    torch.testing.assert_close(net(x), gm(x))
    assert mine.names == {"a": [1, {"b"}], 3: b"x"} and mine.colour is Colour.RED
    assert repr(mine.numbers) == repr(gm.get_submodule("0").numbers)
    assert mine.size == torch.Size([1, 2]) and type(mine.size) is torch.Size
    assert mine.act is torch.nn.functional.silu


def test_files_are_data(tmp_path: Path) -> None:
    """The weights hold tensors only, and the source says nothing of where it was written."""
    to_folder(symbolic_trace(Everything()), tmp_path, "Net")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["__init__.py", "module.py", "weights.pt"]
    assert str(tmp_path) not in (tmp_path / "module.py").read_text()
    with zipfile.ZipFile(tmp_path / "weights.pt") as file:
        (name,) = (n for n in file.namelist() if n.endswith("data.pkl"))
        loaded = {a for op, a, _ in pickletools.genops(file.read(name)) if op.name == "GLOBAL"}
    assert all(str(g).startswith(("torch", "collections")) for g in loaded)
    first = [p.read_bytes() for p in sorted(tmp_path.iterdir())]
    to_folder(symbolic_trace(nn.Sequential(nn.ReLU())), tmp_path, "Other")
    assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] != first


def test_what_cannot_be_written(tmp_path: Path) -> None:
    def refused(gm: GraphModule, match: str) -> None:
        with pytest.raises(SerializationError, match=match):
            to_folder(gm, tmp_path / "none")
        assert not (tmp_path / "none").exists()

    mine = Mine()
    mine.act = lambda x: x
    refused(leaf(mine), r"0\.act is <function.*cannot be imported by name")
    mine = Mine()
    mine.register_forward_hook(lambda *args: None)
    refused(leaf(mine), "0 has a hook")
    refused(symbolic_trace(nn.Sequential(nn.Linear(2, 2, device="meta"))), "0.weight has no data")
    gm = symbolic_trace(nn.Sequential(nn.ReLU()))
    gm.graph.create_node("call_function", lambda: 1)
    refused(gm, "cannot be imported by name")
    gm = symbolic_trace(nn.Sequential(nn.ReLU()))
    for name in ("not a name", "class", ""):
        with pytest.raises(InputError, match="cannot be the name of a class"):
            to_folder(gm, tmp_path / "none", name)
