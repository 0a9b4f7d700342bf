"""Operators that fail when they are run: in the process of a stage, not while it is captured."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn

import graphport as gp
from graphport.program import ExportedProgram


@torch.library.custom_op("graphport_test::fail", mutates_args=())
def fail(x: Tensor, how: str, at: float) -> Tensor:
    """Fails on the first tensor whose largest element is at least `at`."""
    if x.numel() and float(x.max()) >= at:
        _WAYS[how]()
    return x.clone()


@fail.register_fake
def _(x: Tensor, how: str, at: float) -> Tensor:
    return torch.empty_like(x)


def _raise() -> None:
    raise ValueError("a number that this stage does not like")


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)


_WAYS: dict[str, Any] = {
    "raise": _raise,
    "kill": lambda: _kill(signal.SIGKILL),
    "stop": lambda: _kill(signal.SIGSTOP),
    "hang": lambda: time.sleep(600),
    "exit": lambda: os._exit(7),
}


class Model(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: Tensor, trigger: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return self.third(y + torch.ops.graphport_test.fail(trigger, self.how, 1.0))


def program(how: str) -> ExportedProgram:
    inputs = (torch.randn(4, 3), torch.zeros(4, 3))
    batch = {0: gp.Dim("batch", max=64)}
    return gp.export(Model(how), inputs, dynamic_shapes=(batch, batch))
