"""Results that share memory with inputs or with one another, and writes to inputs.

`check` compares which results and arguments lie over the same memory, so that what a caller writes
later is seen where it is in eager.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphport.runtime import OrtBackend
from tests.runtime.comparing import check, same

SIZES = (2, 4, 6)


def pairs():
    return [(torch.randn(n, 3), torch.randn(n, 3)) for n in SIZES]


def single():
    return [(torch.randn(n, 3),) for n in SIZES]


# Without writes


def test_outputs_that_are_inputs(dynamic):
    check(lambda x, y: (x, y, x, x + y, [x, {"y": y}]), *pairs(), dynamic=dynamic)


def test_one_result_several_times(dynamic):
    def f(x):
        y = x * 2
        return y, y, [y]

    check(f, *single(), dynamic=dynamic)


def test_views_of_an_input(dynamic):
    def f(x):
        return (
            x.t(),
            x[1:],
            x.reshape(-1),
            x.view(-1, 1),
            x.unsqueeze(0),
            x.chunk(2),
            x.unbind(1),
            x.expand(2, *x.shape),
            x.detach(),
            x[:, ::2],
            x.select(0, 0),
            x.contiguous(),
            x.float(),
            x.narrow(0, 0, 1),
            x.diagonal(),
            x.as_strided((2,), (1,)),
            x.unfold(0, 2, 1),
            x.split([1, x.shape[0] - 1]),
            torch.broadcast_tensors(x, x),
            x.movedim(0, 1),
            x.cpu(),
            x.to(torch.float32),
            x.to(torch.float64),
            torch.atleast_2d(x),
            x.type_as(x),
            x.data,
        )

    backend = check(f, *single(), dynamic=dynamic)
    if dynamic:
        assert backend.execution_count == 3  # for the conversion to float64


def test_views_of_a_result(dynamic):
    def f(x):
        y = x * 2
        return y, y.t(), y[1:], y.reshape(-1), y.view(-1)[2:], y.chunk(2)

    check(f, *single(), dynamic=dynamic)
    check(lambda x: (x.exp().t(), (x * 2)[1:]), *single(), dynamic=dynamic)


def test_views_as_another_dtype(dynamic):
    def f(x, c):
        return (
            x.view(torch.int32),
            x.view(torch.uint8),
            torch.view_as_real(c),
            c.real,
            c.imag,
            torch.view_as_complex(torch.view_as_real(c)),
            c.conj(),
        )

    calls = [(torch.randn(n, 4), torch.randn(n, 4, dtype=torch.complex64)) for n in SIZES]
    check(f, *calls, dynamic=dynamic)


def test_what_gives_its_argument_back(dynamic):
    def f(x):
        return F.dropout(x, 0.5, False), nn.Identity()(x), x.contiguous(), x + 0, x.clone(), x * 1

    check(f, *single(), dynamic=dynamic)


def test_copies_stay_copies(dynamic):
    def f(x):
        return x.t().reshape(-1), x.t().contiguous(), x.t().clone()

    check(f, *single(), dynamic=dynamic)


def test_a_constant_that_the_caller_writes_to_is_as_before_at_the_next_call():
    def f(x):
        return torch.ones(3) + 0, torch.arange(3.0), x * 2

    compiled = torch.compile(f, backend=OrtBackend(), dynamic=True)
    for n in SIZES:
        x = torch.randn(n)
        found = compiled(x)
        same(found, f(x))
        for t in found:
            t.add_(1)


def test_what_a_caller_writes_later_is_seen():
    def f(x):
        y = x * 2
        return x[1:], y, y.t()

    compiled = torch.compile(f, backend=OrtBackend(), dynamic=True)
    x = torch.zeros(3, 2)
    part, y, turned = compiled(x)
    part.fill_(5)
    y[0, 1] = 7
    assert x.tolist() == [[0, 0], [5, 5], [5, 5]]
    assert turned[1, 0] == 7


# Writes


def several(x, y):
    x.add_(1)
    y[0] = x[0]
    x.relu_()
    x.mul_(y)
    return x, x + y, x[0], None


def through_views(x):
    v = x[1:]
    v.mul_(2)
    w = x.t()
    w[0].zero_()
    return v, w, x.view(-1)


def before_and_after(x):
    y = x[0]
    x.add_(1)
    z = y * 2
    y.sub_(3)
    return y, z, x.sum()


def of_a_result(x):
    y = x * 2
    v = y[1:]
    v.add_(1)
    w = y.view(-1)
    w.mul_(2)
    t = y.t()
    t[0].zero_()
    return y, v, w, t


def nothing_returned(x):
    x.copy_(x * 2 + 1)


@pytest.mark.parametrize(
    "fn", [through_views, before_and_after, of_a_result, nothing_returned], ids=lambda f: f.__name__
)
def test_writes(fn, dynamic):
    check(fn, *single(), dynamic=dynamic)


def swap(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return t, x.t(), y[0]


def copy(x, y):
    x.copy_(y)
    return x, y, y * 2


def copy_what_is_returned(x, y):
    z = y * 2
    x.copy_(z)
    return z, x, z.view(-1)


def the_same_twice(x, y):
    x.zero_()
    y.zero_()
    return x, y


def out(x, y):
    return torch.add(x, 1, out=y)


@pytest.mark.parametrize(
    "fn",
    [several, swap, copy, copy_what_is_returned, the_same_twice, out],
    ids=lambda f: f.__name__,
)
def test_writes_to_two(fn, dynamic):
    check(fn, *pairs(), dynamic=dynamic)


def test_a_cache_that_is_written_at_a_place(dynamic):
    def f(cache, x, i):
        cache[:, i : i + x.shape[1]] = x
        return (cache * 2).sum(), cache[:, : i + 1]

    check(f, *[(torch.randn(2, 8, 3), torch.randn(2, 1, 3), i) for i in (2, 3, 5)], dynamic=dynamic)


def test_inputs_over_the_same_memory(dynamic):
    def f(x, y):
        x.add_(1)
        return y * 2

    same_tensor = [(x, x) for (x,) in single()]
    overlapping = [(x, x[1:]) for (x,) in single()]
    apart = [(x[:1], x[1:]) for (x,) in single()]
    check(f, *same_tensor, dynamic=dynamic)
    assert check(f, *overlapping, dynamic=dynamic).execution_count == 0
    torch._dynamo.reset()
    assert check(f, *apart, dynamic=dynamic).execution_count == 3


def test_inputs_over_the_same_memory_beside_constants():
    def f(n, x, y, z):
        x.add_(torch.tensor([1.0, 2.0, 3.0]))
        return y * n, z * 2

    calls = [(n, x, torch.randn(3), x[1:]) for n, (x,) in enumerate(single(), 2)]
    assert check(f, *calls).execution_count == 0
    torch._dynamo.reset()
    apart = [(n, x, torch.randn(3), x.clone()) for n, (x,) in enumerate(single(), 2)]
    assert check(f, *apart).execution_count == 3


def test_batch_norm_in_training(dynamic):
    m = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()).train().requires_grad_(False)
    backend = check(m, *single(), dynamic=dynamic)
    assert backend.execution_count == 3


def test_buffers_that_a_module_updates(dynamic):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x):
            self.count += 1
            self.mean.mul_(0.9).add_(x.mean(0))
            self.last = x[0] + self.last
            return x * self.count + self.mean

    check(Counter(), *single(), dynamic=dynamic)


def test_writes_in_inference_mode():
    def f(x):
        x.add_(1)
        return x * 2, x[0]

    with torch.inference_mode():
        check(f, *single())
