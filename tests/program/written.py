"""Programs as files of each version of torch: `python -m tests.program.written` writes this one's.

Every version reads the files of all others, in tests/program/written/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

import graphport as gp
from graphport.compat.schemas import INSTALLED, print_version

FOLDER = Path(__file__).with_name("written")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + nn.functional.gelu(y) + self.calls


def branches(x: Tensor) -> Tensor:
    return torch.cond(
        x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * x[: x.shape[0] // 2].sum(), (x,)
    )


def loops(x: Tensor) -> Any:
    carry, steps = gp.scan(lambda c, x: (c + x, c * 2), torch.zeros(3), x)
    return carry, steps, gp.map(lambda row: row.cumsum(0), x)


def counts(x: Tensor) -> Tensor:
    found = x[x > 0]
    torch._check(found.shape[0] < 100)
    return found.reshape(-1, 1).expand(-1, 2) + x.flip(0)[:1, :1]


def decomposed(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")[
        0, 0
    ].softmax(-1)


def roots(x: Tensor) -> Tensor:
    """By an operator that not every version has."""
    return torch.cholesky(x @ x.mT + torch.eye(x.shape[0]))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "block": Block,
    "branches": lambda: branches,
    "loops": lambda: loops,
    "counts": lambda: counts,
    "decomposed": lambda: decomposed,
    "roots": lambda: roots,
}


def make_input(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, generator=generator)


def make(name: str) -> tuple[Any, Callable[[int], Tensor]]:
    """A model, and its input by a number of rows."""
    torch.manual_seed(0)
    made = PROGRAMS[name]()
    if name == "block":
        return made.eval(), lambda rows: make_input(rows).repeat(1, 3)[None, :, :8]
    return made, make_input


def write() -> None:
    for name in PROGRAMS:
        if name == "roots" and INSTALLED >= (2, 14):
            continue
        model, make_rows = make(name)
        x = make_rows(6)
        dim = 1 if name == "block" else 0
        program = gp.export(model, (x,), dynamic_shapes=({dim: gp.Dim("rows", min=2, max=64)},))
        if name == "decomposed":
            program = program.run_decompositions()
        for module in program.graph_module.modules():
            for node in getattr(module, "graph", Graph()).nodes:
                node.meta.pop("stack_trace", None)  # it is a path of this machine
        folder = FOLDER / print_version(INSTALLED)
        folder.mkdir(parents=True, exist_ok=True)
        gp.save(program, folder / f"{name}.gpx")
        print(folder / name, file=sys.stderr)


if __name__ == "__main__":
    write()
