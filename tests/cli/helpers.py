"""What tests of the command share: a file of models, and commands run in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphport.cli import main

MODELS = '''
import torch
from torch import nn

import graphport as gp


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Sized(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


class Pair(nn.Module):
    """Takes containers, numbers and an optional mask."""

    def forward(self, pair, scale, mask=None):
        left, right = pair["left"], pair["right"]
        total = left * scale + right
        return total if mask is None else total * mask


instance = Mlp()
wide = nn.Linear(64, 64)


def build():
    torch.manual_seed(0)
    return Mlp(), (torch.randn(2, 8),)


def bare():
    torch.manual_seed(0)
    return Mlp()


def complete():
    torch.manual_seed(0)
    return Mlp(), (), {"x": torch.randn(2, 8)}, {"x": {0: gp.Dim("rows", max=9)}}


def pair():
    inputs = {"left": torch.randn(2, 3), "right": torch.randn(2, 3)}
    return Pair(), (inputs, 2.0)


def add(a, b):
    return a + b


def inputs_for_add():
    return torch.ones(3, 2), torch.ones(2)


def example_inputs():
    return {"x": torch.ones(5, 8)}


def broken():
    raise ValueError("no weights today")


def wrong():
    return 3, 4


def needs_two(x):
    if x.shape[0] > 4:
        return x + 1
    return x - 1


def forward_fails(x):
    raise KeyError("position")


def unsupported(x):
    return torch.linalg.eigvals(x)


value = 3
'''


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class Runner:
    """Runs commands in a folder with `models.py`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def __call__(self, *argv: str) -> Done:
        self.capsys.readouterr()
        code = main(argv)
        seen = self.capsys.readouterr()
        return Done(code, seen.out, seen.err)
