"""Weights that change after compilation: the next call sees them, as in eager."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from graphport.runtime import OrtBackend
from tests.runtime.comparing import counts, same


def optimizer_step(m):
    torch.optim.SGD(m.parameters(), lr=0.5).step()


def load(m):
    m.load_state_dict({k: t + 1 if t.is_floating_point() else t for k, t in m.state_dict().items()})


def load_and_assign(m):
    m.load_state_dict({k: t.clone() * 2 for k, t in m.state_dict().items()}, assign=True)


def write_data(m):
    m[0].weight.data.copy_(torch.arange(12.0).view(4, 3))


def write_one_number(m):
    with torch.no_grad():
        m[0].weight[2, 1] = 7.0


def other_data(m):
    m[0].weight.data = torch.ones(4, 3)


def other_parameter(m):
    m[0].weight = nn.Parameter(torch.ones(4, 3), requires_grad=False)


def other_dtype(m):
    m.to(torch.float64)


def other_statistics(m):
    m[1].running_mean.add_(1)


def add(m):
    with torch.no_grad():
        for p in m.parameters():
            p.add_(1)


CHANGES = [
    load,
    load_and_assign,
    write_data,
    write_one_number,
    other_data,
    other_parameter,
    other_dtype,
    other_statistics,
    add,
]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval().requires_grad_(False)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    m = model()
    backend = OrtBackend()
    compiled = torch.compile(m, backend=backend, dynamic=True)
    x = torch.randn(5, 3)
    same(compiled(x), m(x))
    change(m)
    x = x.to(next(m.parameters()).dtype)
    for given in (x, x[:2] * 2):
        same(compiled(given), m(given))
    assert not backend.refused
    assert backend.execution_count == 3


def test_changes_again_and_again_cost_one_session_more():
    m = model()
    backend = OrtBackend()
    compiled = torch.compile(m, backend=backend, dynamic=True)
    x = torch.randn(5, 3)
    sessions = set()
    for _ in range(4):
        same(compiled(x), m(x))
        sessions.update(id(r) for records in backend.sessions.values() for r in records)
        add(m)
    assert len(sessions) == 2
    assert counts(backend) == [1]


def test_an_optimizer_between_evaluations():
    m = nn.Linear(3, 2)
    compiled = torch.compile(m, backend=OrtBackend(), dynamic=True)
    optimizer = torch.optim.Adam(m.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    for _ in range(3):
        with torch.no_grad():
            same(compiled(x), m(x))
        m(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_module_that_is_copied_or_saved_keeps_its_own_weights():
    m = model()
    compiled = torch.compile(m, backend=OrtBackend(), dynamic=True)
    x = torch.randn(5, 3)
    same(compiled(x), m(x))
    other = copy.deepcopy(m)
    add(other)
    same(torch.compile(other, backend=OrtBackend(), dynamic=True)(x), other(x))
    same(compiled(x), m(x))
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    whole = copy.deepcopy(compiled)
    add(whole)
    same(whole(x), other(x))
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    same(torch.load(file, weights_only=False)(x), m(x))
    same(compiled(x), m(x))


def test_statistics_that_the_graph_updates_are_no_reason_to_build_again():
    m = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).train().requires_grad_(False)
    own = copy.deepcopy(m)
    backend = OrtBackend()
    compiled = torch.compile(own, backend=backend, dynamic=True)
    sessions = set()
    for n in (4, 5, 6):
        x = torch.randn(n, 3)
        same(compiled(x), m(x), rtol=1e-4, atol=1e-5)
        same(dict(own.state_dict()), dict(m.state_dict()))
        sessions.update(id(r) for records in backend.sessions.values() for r in records)
    assert len(sessions) == 1


def test_a_closure_whose_tensor_is_written_to():
    w = torch.ones(3)
    compiled = torch.compile(lambda x: x * w, backend=OrtBackend(), dynamic=True)
    x = torch.randn(2, 3)
    same(compiled(x), x * w)
    w.mul_(3)
    same(compiled(x), x * w)
    w.data = torch.zeros(3)
    same(compiled(x), x * w)


def test_weights_that_share_memory():
    flat = torch.randn(24)

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", flat[:12].view(3, 4))
            self.register_buffer("b", flat[12:].view(4, 3))
            self.register_buffer("c", flat[6:18].view(3, 4))

        def forward(self, x):
            return x @ self.a @ self.b + (x @ self.c).sum()

    m = Shared()
    compiled = torch.compile(m, backend=OrtBackend(), dynamic=True)
    x = torch.randn(2, 3)
    same(compiled(x), m(x), rtol=1e-4, atol=1e-5)
    flat.mul_(2)
    same(compiled(x), m(x), rtol=1e-4, atol=1e-5)
    flat.data[7] = 5.0
    same(compiled(x), m(x), rtol=1e-4, atol=1e-5)
