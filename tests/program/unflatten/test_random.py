"""Random trees of modules: nested, shared, called several times, writing to buffers and inputs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from tests.helpers import assert_same, clone
from tests.program.unflatten.unflattened import agree, lint

STEPS = (
    *("call",) * 8,
    "act",
    "add",
    "scale",
    "size",
    "count",
    "write",
    "keep",
    "read",
    "overwrite",
    "peek",
    "bias",
    "constant",
)


class Random(nn.Module):
    """Carries out a list of steps on values of one size; two calls may take another path."""

    def __init__(self, rng: random.Random, depth: int, pool: list[nn.Module]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([rng.uniform(-1, 1) for _ in range(4)]))
        self.register_buffer("total", torch.zeros(4), persistent=rng.random() < 0.7)
        self.plain = torch.tensor([rng.uniform(-1, 1) for _ in range(4)])
        self.parts = nn.ModuleList()
        for _ in range(rng.randint(1, 3) if depth else 0):
            if pool and rng.random() < 0.35:
                self.parts.append(rng.choice(pool))
            else:
                self.parts.append(Random(rng, depth - 1, pool))
        if rng.random() < 0.3:
            self.parts.append(nn.Linear(4, 4))
        self.hidden = [rng.choice(pool)] if pool and rng.random() < 0.3 else []
        kinds = [s for s in STEPS if self.parts or s not in ("call", "peek")]
        self.steps = [
            (rng.choice(kinds), rng.randrange(1000), rng.randrange(1000))
            for _ in range(rng.randint(2, 6))
        ]
        self.result = rng.choice(("one", "tuple", "dict", "through", "total"))
        pool.append(self)

    def forward(self, v, other=None, flag=False):
        values = [v] if other is None else [v, other]
        for kind, i, j in self.steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(getattr(self, kind)(a, b, i, flag))
            if flag and i % 3 == 0:
                values[-1] = values[-1] * 2
        last = values[-1]
        if self.result == "tuple":
            return last, values[len(values) // 2]
        if self.result == "dict":
            return {"last": last, "first": [values[0], None]}
        if self.result == "through":
            return v, last
        return last + self.total if self.result == "total" else last

    def call(self, a, b, i, flag):
        parts = [*self.parts, *self.hidden]
        part = parts[i % len(parts)]
        if isinstance(part, nn.Linear):
            return torch.tanh(part(a))
        out = part(a, b if i % 2 else None, flag=flag or i % 5 == 0)
        leaves = [t for t in torch.utils._pytree.tree_leaves(out) if t is not None]
        return leaves[i % len(leaves)]

    def act(self, a, b, i, flag):
        return torch.tanh(a) if i % 2 else torch.sin(a)

    def add(self, a, b, i, flag):
        return a - b * 0.5

    def scale(self, a, b, i, flag):
        return torch.tanh(a * self.weight)

    def size(self, a, b, i, flag):
        return torch.tanh(a.reshape(a.shape[0] * 2, 2).reshape(a.shape[0], 4) / a.shape[0])

    def count(self, a, b, i, flag):
        return a + torch.arange(b.shape[0]).unsqueeze(1) % 3

    def write(self, a, b, i, flag):
        self.total.add_(a.detach().mean(0))
        return a + 1

    def keep(self, a, b, i, flag):
        before = self.total
        self.total = torch.tanh(before + a.detach().sum(0))
        return b + before

    def read(self, a, b, i, flag):
        return torch.tanh(a + self.total)

    def overwrite(self, a, b, i, flag):
        fresh = b + 0
        fresh[:, i % 4].mul_(0.5)
        if i % 3 == 0:
            a.detach().mul_(0.5)
        return fresh

    def peek(self, a, b, i, flag):
        part = self.parts[i % len(self.parts)]
        return torch.tanh(a * (part.weight[0] if isinstance(part, nn.Linear) else part.total))

    def bias(self, a, b, i, flag):
        part = self.parts[0] if self.parts else self
        return a + part.weight.sum()

    def constant(self, a, b, i, flag):
        return a * self.plain + torch.tensor([0.5, 1.0, -1.0, 0.25])


def model_of(seed: int) -> Random:
    rng = random.Random(seed)
    return Random(rng, rng.randint(1, 3), [])


def x(n: int) -> torch.Tensor:
    return torch.sin(torch.arange(n * 4.0)).reshape(n, 4)


def check(seed: int) -> None:
    model = model_of(seed)
    spec = {"v": {0: gp.Dim("b", min=1, max=32)}, "other": {0: gp.Dim("b", min=1, max=32)}}
    ep = gp.export(model, (x(3), x(3) * 2), dynamic_shapes=spec)
    inputs = [((x(n), x(n) * 2), {}) for n in (3, 1, 8)]
    with torch.no_grad():
        agree(gp.unflatten(ep), model, inputs, 1e-4, 1e-5)
        agree(gp.unflatten(ep.run_decompositions()), model, inputs, 1e-4, 1e-5)


def check_kept(seed: int) -> None:
    """Modules that keep their signatures; what needs more than its arguments is refused."""
    model = model_of(seed)
    names = [n for n, m in model.named_modules() if n and not isinstance(m, nn.ModuleList)]
    rng = random.Random(seed)
    for name in rng.sample(names, min(2, len(names))):
        ep = gp.export(model, (x(3), x(3) * 2), preserve_module_call_signature=(name,))
        try:
            un = gp.unflatten(ep)
        except gp.errors.UnsupportedError:  # uses or makes more than its arguments and results
            continue
        with torch.no_grad():
            agree(un, model, [((x(3), x(3) * 2), {})], 1e-4, 1e-5)
            if any(call.signature is not None for call in ep.module_call_graph):  # it is called
                _same_as_part(un, model, name)


def _same_as_part(un: nn.Module, model: nn.Module, name: str) -> None:
    """The part by itself, on what the first call of the original gets."""
    seen: list[Any] = []
    part = model.get_submodule(name)
    hook = part.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(clone((args, kwargs))), with_kwargs=True
    )
    states = {n: b.clone() for n, b in model.named_buffers()}
    model(x(3), x(3) * 2)
    hook.remove()
    for n, b in model.named_buffers():
        b.copy_(states[n])
    args, kwargs = seen[0]
    lint(un)
    ours = clone((args, kwargs))
    for n, b in un.named_buffers():
        if n in states:
            b.copy_(states[n])
    assert_same(
        un.get_submodule(name)(*ours[0], **ours[1]), part(*args, **kwargs), name, 1e-4, 1e-5
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_trees(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_with_signatures(seed: int) -> None:
    check_kept(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1400, 40))
def test_more_random_trees(start: int) -> None:
    for seed in range(start, start + 40):
        check(seed)
        check_kept(seed)
