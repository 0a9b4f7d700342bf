"""Control flow on the other roads that a program takes: retraced, decomposed, trained, drafted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import DataDependentError
from tests.capture.control import cond, while_loop

N = gp.Dim("n", min=2, max=20)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        n = x.shape[0]

        def true_fn(x):
            self.seen.add_(1)
            return gp.map(lambda row: row * self.w + n, x)

        y = cond(x.sum() > 0, true_fn, lambda x: x * 2, (x,))
        y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + self.seen), (0, y))[1]
        return gp.scan(lambda c, row: (c + row, c * row), torch.zeros(4), y)


def inputs():
    return [s * torch.rand(k, 4) for s in (1, -1) for k in (2, 5)]


def agrees(module, model):
    for x in inputs():
        model = copy.deepcopy(model)
        module = copy.deepcopy(module)
        torch.testing.assert_close(module(x), model(x))


@pytest.mark.parametrize("training", [False, True])
def test_decomposed(training):
    model = Model()
    ep = gp.export(model, (torch.rand(3, 4),), dynamic_shapes=({0: N},), training=training)
    ep.validate()
    agrees(ep.module(), model)
    core = ep.run_decompositions()
    core.validate()
    agrees(core.module(), model)
    assert torch.equal(model.seen, torch.zeros(4))  # neither touches the user's own


def test_retraced():
    model = Model()
    ep = gp.export(model, (torch.rand(3, 4),), dynamic_shapes=({0: N},))
    again = gp.export(ep.module(), (torch.rand(3, 4),), dynamic_shapes=({0: N},))
    again.validate()
    agrees(again.module(), model)
    graphs = [[n.target for n in p.graph.nodes if n.op == "get_attr"] for p in (ep, again)]
    assert graphs[0] == graphs[1]


def test_regions_without_gradients_in_a_branch():
    class Regions(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x):
            def true_fn(x):
                with torch.no_grad():
                    y = x * self.w
                return y * self.w + x

            return cond(x.sum() > 0, true_fn, lambda x: x * self.w.detach(), (x,))

    model, x = Regions(), torch.ones(4)
    module = gp.export(model, (x,)).module()
    grads = []
    for run in (module, model):
        model.zero_grad()
        run(x).square().sum().backward()
        grads.append(model.w.grad.clone())
    torch.testing.assert_close(*grads)


def test_drafts_look_at_data_after_control_flow_but_not_inside():
    def after(x):
        y = cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))
        return y if y[0] > 1 else y + 1

    draft = gp.draft_export(after, (torch.ones(4),))
    torch.testing.assert_close(draft.module()(torch.ones(4)), torch.full((4,), 2.0))

    def inside(x):
        return cond(x.sum() > 0, lambda x: x * 2 if x[0] > 0 else x, lambda x: x + 1, (x,))

    with pytest.raises(DataDependentError, match="no example of what it is given"):
        gp.draft_export(inside, (torch.ones(4),))


def test_autocast_around_a_branch():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return cond(x.sum() > 0, self.linear, lambda x: self.linear(x) * 2, (x,))

    model = Cast()
    agrees(gp.export(model, (torch.rand(2, 4),), dynamic_shapes=({0: N},)).module(), model)


def test_lazy_modules_in_a_branch():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.LazyLinear(4)

        def forward(self, x):
            return cond(x.sum() > 0, self.linear, lambda x: x * 2, (x,))

    model = Lazy()
    module = gp.export(model, (torch.rand(2, 4),), dynamic_shapes=({0: N},)).module()
    agrees(module, model)
