"""Calls that kernels of PyTorch would not check: a file that makes them is told so."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.program.mutations import packed, unpacked
from tests.program.saved import saved


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(3, 5))
        self.g = nn.Parameter(torch.randn(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, torch._weight_norm(self.v, self.g, 0))


x = torch.randn(2, 4, 5)
MODELS: dict[str, Callable[..., Any]] = {
    "fft": lambda x: torch.fft.rfft(x).real,
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "batch norm": Norm(),
    "resize": lambda x: F.interpolate(
        x[None], scale_factor=(0.5, 0.5), mode="bilinear", antialias=True
    ),
    "attention": lambda x: F.scaled_dot_product_attention(x, x[:, 1:], x[:, 1:]),
    "lstm": Lstm().eval(),
    "weight norm": Normed(),
}


def replaced(document: Any, op: str, change: Callable[[list[Any]], None]) -> None:
    (node,) = [n for n in document["graph"]["nodes"] if n.get("target", "").startswith(op)]
    node["target"] = node["target"].removesuffix(".vec")
    change(node["args"])


def tensor(document: Any, name: str, sizes: list[int]) -> None:
    """A tensor of other sizes, said so everywhere."""
    number = {k: v["data"] for k, v in document["state_dict"]}[name]
    row = document["tensors"][number]
    strides = [1] * len(sizes)
    row.update(sizes=sizes, strides=strides)
    (node,) = [
        s["arg"]["tensor"] for s in document["signature"]["inputs"] if s.get("target") == name
    ]
    for n in document["graph"]["nodes"]:
        if n["name"] == node:
            n["val"]["tensor"].update(sizes=sizes, strides=strides)


LIES: dict[str, Callable[[Any], None]] = {
    "fft": lambda d: replaced(d, "aten::_fft_r2c", lambda a: a.__setitem__(1, [1 << 40])),
    "irfft": lambda d: replaced(d, "aten::_fft_c2r", lambda a: a.__setitem__(3, 1 << 20)),
    "batch norm": lambda d: tensor(d, "norm.running_mean", [1]),
    "resize": lambda d: replaced(
        d,
        "aten::_upsample_bilinear2d_aa",
        lambda a: a.__setitem__(slice(1, None), [[2, 1000000], False, 0.5, 0.9]),
    ),
    "attention": lambda d: replaced(
        d, "aten::scaled_dot_product_attention", lambda a: a.__setitem__(2, a[0])
    ),
    "lstm": lambda d: tensor(d, "lstm.weight_hh_l0", [1, 4]),
    "weight norm": lambda d: tensor(d, "g", [1, 1]),
}


@pytest.mark.parametrize("name", MODELS)
def test_good_programs_run_as_before(name: str) -> None:
    model = MODELS[name]
    with torch.no_grad():
        want = model(x)
        ep = gp.export(model, (x,))
        back = gp.load(io.BytesIO(saved(ep)))
        for run in (
            back.module(),
            gp.unflatten(back),
            back.to_torch().module(),
            gp.export(back.module(), (x,)).module(),
            ep.module(),
        ):
            torch.testing.assert_close(run(x), want)
    checked = name != "resize"  # of `.vec`, which computes the scales itself
    assert len(ep.module().graph.nodes) + checked <= len(back.module().graph.nodes)
    assert str(gp.export(back.module(), (x,)).graph) == str(ep.graph)


@pytest.mark.parametrize("name", LIES)
def test_bad_programs_are_stopped(name: str) -> None:
    document, tensors = unpacked(saved(gp.export(MODELS[name], (x,))))
    LIES[name](document)
    program = gp.load(io.BytesIO(packed(json.loads(json.dumps(document)), tensors)))
    with torch.no_grad():
        for make in (lambda: program.module(), lambda: gp.unflatten(program)):
            with pytest.raises(IndexError):
                make()(x)
        with pytest.raises((gp.errors.ExportError, RuntimeError, IndexError)):
            program.to_torch().module()(x)
