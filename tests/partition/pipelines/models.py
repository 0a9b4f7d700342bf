"""Programs with what makes cutting hard, and a pipeline of them in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

import graphport as gp
from graphport.partition.pipelines.cut import Stages, assign_stages
from graphport.partition.pipelines.driver import Batch
from graphport.partition.pipelines.stage_server import make_stage_runner
from graphport.partition.pipelines.stages import FRONT, StagedProgram, split_into_stages
from graphport.program import ExportedProgram
from graphport.program.module import CallGuard

BATCH = {0: gp.Dim("batch", max=64)}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(torch.cat([a.sigmoid() * b, a], -1))


class Tied(nn.Module):
    """Token ids, an embedding that is used again in the end, and a mask that is not batched."""

    def __init__(self, width: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, ids: Tensor, *, mask: Tensor) -> dict[str, Any]:
        x = self.tokens(ids) * mask[:, None]
        for layer in self.layers:
            x = layer(x)
        scores = x @ self.tokens.weight.T
        return {"scores": scores, "both": (scores.argmax(-1), mask), "length": ids.shape[1]}


class Counting(nn.Module):
    """One buffer that a single place uses, and one that is read first and written last."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x - self.mean).relu()
        self.calls.add_(1)
        z = self.b(y) * self.calls
        self.mean.copy_(0.5 * self.mean + 0.5 * z.mean(0))
        return z, self.calls.clone()


@functools.cache
def tied() -> tuple[nn.Module, ExportedProgram, Callable[[int], tuple[Any, dict[str, Any]]]]:
    model = Tied().eval()
    length = gp.Dim("length", max=32)

    def inputs(batch: int) -> tuple[Any, dict[str, Any]]:
        return (torch.randint(0, 20, (batch, 5)),), {"mask": torch.tensor([1.0, 1, 1, 0, 1])}

    args, kwargs = inputs(4)
    shapes = {"ids": {**BATCH, 1: length}, "mask": {0: length}}
    return model, gp.export(model, args, kwargs, dynamic_shapes=shapes), inputs


def calls(program: ExportedProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "call_function"]


class InOneProcess:
    """A pipeline without processes: what each stage gives is put where it says it sends it."""

    def __init__(self, program: ExportedProgram, stages: Stages, name: str = "torch") -> None:
        places, count = assign_stages(program, stages)
        self.parts: StagedProgram = split_into_stages(program, places, count)
        for stage in self.parts.stages:
            if stage.program is not None:
                stage.program.validate()
        self.runtimes = [make_stage_runner(name, stage.program) for stage in self.parts.stages]
        self.entrance = CallGuard(program, check_guards=True)
        self.out_spec = program.call_spec.out_spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        front = self.parts.front
        leaves = self.entrance.flat(args, kwargs)
        values = dict(zip(front.inputs, leaves, strict=True)) | front.state
        inbox: dict[int, dict[str, Any]] = {
            stage: {n: values[n] for n in names} for stage, names in front.sends.items()
        }
        for stage, run in zip(self.parts.stages, self.runtimes, strict=True):
            route = stage.route
            taken = inbox.pop(route.index, {})
            assert set(taken) == set(route.inputs)
            found = dict(zip(route.outputs, run([taken[n] for n in route.inputs]), strict=True))
            for to, names in route.sends.items():
                assert to == FRONT or to > route.index
                inbox.setdefault(to, {}).update({n: found[n] for n in names})
        found = inbox.pop(FRONT, {})
        assert not inbox
        driver: Any = SimpleNamespace(front=front, out_spec=self.out_spec, stages=())
        return Batch(driver, leaves, [leaves])._build_result(found)
