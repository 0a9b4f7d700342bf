"""Random nests of control flow over small tensor programs, captured and compared with eager."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch

import graphport as gp
from tests.capture.control import cond, map, scan, while_loop
from tests.helpers import check

N = gp.Dim("n", min=2, max=9)
UNARY = (torch.sin, torch.cos, torch.tanh, lambda x: x.flip(0), lambda x: x * 0.5 + 1)
BINARY = (torch.add, torch.sub, torch.minimum, lambda a, b: a * b.tanh())


class Step(NamedTuple):
    """One instruction: what it does, the variables that it reads, the blocks within it."""

    kind: str
    reads: tuple[int, ...]
    choice: int = 0
    blocks: tuple[Any, ...] = ()


class Block(NamedTuple):
    steps: list[Step]
    result: tuple[int, int]


class Writer:
    """Writes blocks. Variables are numbered; some may be written to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def block(self, count: int, writable: frozenset[int], depth: int) -> Block:
        """`count` variables are there already."""
        steps = []
        for _ in range(self.random.randint(1, 3)):
            step = self.step(count, writable, depth)
            steps.append(step)
            if step.kind != "write":
                writable |= {count}
                count += 1
        return Block(steps, (self.random.randrange(count), self.random.randrange(count)))

    def step(self, count: int, writable: frozenset[int], depth: int) -> Step:
        pick = self.random
        a, b = pick.randrange(count), pick.randrange(count)
        kinds = ["unary", "binary", "view"] + ["write"] * bool(writable)
        if depth:
            kinds += ["cond", "size cond", "while", "counted", "map", "scan"] * 2
        kind = pick.choice(kinds)
        if kind == "write":
            return Step(kind, (pick.choice(sorted(writable)), b), pick.randrange(3))
        blocks: tuple[Block, ...] = ()
        if kind in ("cond", "size cond"):
            blocks = tuple(self.block(count, writable, depth - 1) for _ in range(2))
        elif kind in ("while", "counted"):
            blocks = (self.block(count + 1, writable, depth - 1),)
        elif kind == "map":
            blocks = (self.block(count + 1, frozenset(), depth - 1),)
        elif kind == "scan":
            blocks = (self.block(count + 2, writable, depth - 1),)
        return Step(kind, (a, b), pick.randrange(5), blocks)


def run(block: Block, values: list[torch.Tensor]) -> torch.Tensor:
    values = list(values)
    for step in block.steps:
        made = STEPS[step.kind](step, values)
        if made is not None:
            values.append(made)
    a, b = block.result
    return (values[a] + values[b]).tanh()


def _write(step: Step, values: list[torch.Tensor]) -> None:
    target, other = (values[i] for i in step.reads)
    if step.choice == 0:
        target.mul_(0.5)
    elif step.choice == 1:
        target.copy_(other.cos())
    else:
        target[:1].add_(other[:1])


def _cond(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    a, b = (values[i] for i in step.reads)
    yes, no = step.blocks
    return cond(
        a.sum() > b.sum() - 0.1, lambda a: run(yes, values), lambda a: run(no, values), (a,)
    )


def _size_cond(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    yes, no = step.blocks
    size = values[0].shape[0]
    return cond(size > step.choice + 2, lambda: run(yes, values), lambda: run(no, values), ())


def _while(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    def body(i: Any, x: torch.Tensor) -> Any:
        return i + 1, run(step.blocks[0], [*values, x])

    def test(i: Any, x: torch.Tensor) -> torch.Tensor:
        return (i < step.choice) & (x.sum() < 2)

    return while_loop(test, body, (torch.tensor(0), values[step.reads[0]] * 1))[1].clone()


def _counted(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    def body(i: Any, x: torch.Tensor) -> Any:
        return i + 1, run(step.blocks[0], [*values, x * i])

    first = values[step.reads[0]] * 1
    return while_loop(lambda i, x: i < step.choice, body, (0, first))[1].clone()


def _map(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.stack([values[i] for i in step.reads])
    return map(lambda row: run(step.blocks[0], [*values, row]), rows).sum(0)


def _scan(step: Step, values: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.stack([values[i] for i in (*step.reads, 0)])

    def body(carry: torch.Tensor, row: torch.Tensor) -> Any:
        new = run(step.blocks[0], [*values, carry, row])
        return new, new * 2

    carry, ys = scan(body, values[step.reads[0]] * 1, rows, reverse=step.choice > 2)
    return carry + ys.sum(0)


STEPS = {
    "unary": lambda step, values: UNARY[step.choice](values[step.reads[0]]),
    "binary": lambda step, values: BINARY[step.choice % 4](*(values[i] for i in step.reads)),
    "view": lambda step, values: values[step.reads[0]].view(1, -1)[0] * 1,
    "write": _write,
    "cond": _cond,
    "size cond": _size_cond,
    "while": _while,
    "counted": _counted,
    "map": _map,
    "scan": _scan,
}


def attempt(seed: int, depth: int) -> None:
    block = Writer(seed).block(2, frozenset({0, 1}), depth)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        y = y * 1
        return run(block, [x, y]), y

    torch.manual_seed(seed)
    inputs = [tuple(scale * torch.randn(n) for _ in "xy") for n in (4, 2, 7) for scale in (1, -2)]
    check(
        program,
        inputs[0],
        dynamic_shapes=({0: N}, {0: N}),
        others=inputs[1:],
        layout=False,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("seed", range(25))
def test_random_nests(seed):
    attempt(seed, depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_more_random_nests(seed):
    attempt(seed, depth=3)
