"""Strides of elementwise results whose operands are expanded, overlapping, sliced or cast."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.tensors.abstract import describe

SIZES = (2, 3, 2)
DTYPES = (torch.int32, torch.int64, torch.float32, torch.float16, torch.float64, torch.bool)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "le": torch.le,
    "div": torch.div,
    "atan2": torch.atan2,
    "logical_and": torch.logical_and,
    "remainder": torch.remainder,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "clamp": torch.clamp,
    "pow": torch.pow,
}


def draw(rng: random.Random) -> torch.Tensor:
    t = torch.ones(60).to(rng.choice(DTYPES))
    order = rng.sample(range(3), 3)
    choices = [
        t.as_strided(SIZES, rng.choice([(1, 1, 1), (2, 1, 1), (1, 2, 1), (0, 1, 1), (3, 1, 3)])),
        t[:12].reshape([SIZES[i] for i in order]).permute(*(order.index(i) for i in range(3))),
        rng.choice([t[:3].reshape(1, 3, 1), t[:4].reshape(2, 1, 2).transpose(0, 2)]).expand(SIZES),
        t.reshape(3, 4, 5).permute(2, 0, 1)[:2, :, :2],
    ]
    return rng.choice(choices)


@pytest.mark.parametrize("name", OPERATORS)
def test_strides_as_in_eager(name: str) -> None:
    rng, compared = random.Random(name), 0
    for _ in range(60):
        operands = draw(rng), draw(rng)
        try:
            wanted = OPERATORS[name](*operands)
        except RuntimeError:
            continue  # an operator without this pair of dtypes
        program = gp.export(lambda a, b: OPERATORS[name](a, b), operands)
        result = program.graph.output_node().args[0][0]
        given = [(t.dtype, t.stride()) for t in operands]
        assert tuple(describe(result).strides) == wanted.stride(), given
        compared += 1
    assert compared > 20
