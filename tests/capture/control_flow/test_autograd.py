"""Gradients: regions without them, detach, custom functions, checkpoints, autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphport as gp
from tests.helpers import assert_same, check

aten = torch.ops.aten


class Layer(nn.Module):
    """A linear layer and a body to run with it."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)
        self.body = body

    def forward(self, x):
        return self.body(self.lin, x)


def check_gradients(model, *args):
    """Results and gradients of the captured program are those of eager."""
    ep = check(model, args)
    eager = copy.deepcopy(model)
    module = ep.module()
    model.zero_grad()
    grads = []
    for run, owner in ((eager, eager), (module, module)):
        inputs = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        out = run(*inputs)
        sum(o.sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
        named = {k: p.grad for k, p in owner.named_parameters()}
        grads.append([*(i.grad for i in inputs), *(named[k] for k in sorted(named))])
    model.zero_grad()
    assert_same(grads[1], grads[0], "gradients differ")
    return ep


def x(grad=False):
    return torch.arange(12.0).reshape(3, 4).requires_grad_(grad)


def test_plain():
    check_gradients(Layer(lambda lin, x: lin(x).relu() * x), x(True))


def test_detach():
    ep = check_gradients(Layer(lambda lin, x: lin(x).detach() * lin(x)), x(True))
    assert aten.detach.default in [n.target for n in ep.graph.nodes]


def test_detach_of_what_can_have_no_gradient_is_nothing():
    def body(v):
        return v + torch.ones(4).detach() + torch.arange(4).detach()

    ep = check(body, (x(),))
    assert aten.detach.default not in [n.target for n in ep.graph.nodes]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_detach_holds_for_inputs_without_gradient_in_the_example(mode):
    """Whether the gradient of an input is asked for is not known before the program runs."""

    def body(v):
        total = torch.zeros(4)
        total += v[0]
        kept = v * 2
        return v.detach() * v + total.detach() * v + kept.detach_() * v + v.data * v

    with mode():
        ep = check(body, (x(),))
    ours, theirs = x(True), x(True)
    ep.module()(ours).sum().backward()
    body(theirs).sum().backward()
    assert_same(ours.grad, theirs.grad, "gradients differ")


def test_detach_in_a_branch():
    def body(v):
        return torch.cond(v.sum() > 0, lambda v: v.detach() * v, lambda v: v * 2, (v,))

    ep = check(body, (x(),))
    ours, theirs = x(True), x(True)
    ep.module()(ours).sum().backward()
    (theirs.detach() * theirs).sum().backward()
    assert_same(ours.grad, theirs.grad, "gradients differ")


def test_no_grad_region():
    def body(lin, x):
        with torch.no_grad():
            scale = lin(x).abs().amax() + lin.weight.sum()
        return lin(x) * scale

    ep = check_gradients(Layer(body), x(True))
    # One for the value that leaves the region, none inside of it.
    assert [n.target for n in ep.graph.nodes].count(aten.detach.default) == 1


def test_no_grad_decorator_and_enable_grad_inside():
    @torch.no_grad()
    def scale(lin, x):
        with torch.enable_grad():
            inner = lin(x) * 2
        return inner.detach() + lin(x)

    check_gradients(Layer(lambda lin, x: lin(x) * scale(lin, x)), x(True))


def test_no_grad_result_returned():
    def body(lin, x):
        with torch.no_grad():
            aside = lin(x).split(2, -1)
        return lin(x), aside[0]

    ep = check_gradients(Layer(body), x())
    out = ep.module()(x())
    assert out[0].requires_grad and not out[1].requires_grad


def test_state_written_without_gradients_stays_without():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            y = self.lin(x)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0) * 0.1)
            return y - self.mean

    ep = check_gradients(Average(), x())
    module = ep.module()
    for _ in range(2):
        module(x()).sum().backward()
    assert not module.mean.requires_grad


def test_questions_about_gradients_are_answered_as_in_eager():
    def body(lin, x):
        with torch.no_grad():
            a = lin(x)
            inside = torch.is_grad_enabled()
        with torch.inference_mode():
            b = x + 1
        flags = (a.requires_grad, lin(x).requires_grad, x.requires_grad, b.requires_grad, inside)
        return lin(x) + a + b, flags, torch.is_grad_enabled()

    check(Layer(body), (x(),))
    check(Layer(body), (x(True),))


def test_requires_grad_set_in_the_program():
    check(lambda v: (v * 2).requires_grad_().sin(), (x(),))


def test_captured_without_gradients():
    model = Layer(lambda lin, x: lin(x).relu())
    with torch.no_grad():
        ep = gp.export(model, (x(),))
    assert [n.name for n in ep.graph.nodes if n.op == "call_function"] == ["linear", "relu"]
    assert ep.module()(x()).requires_grad


def test_set_grad_enabled_is_undone():
    def f(v):
        torch.set_grad_enabled(False)
        return v + 1

    gp.export(f, (x(),))
    assert torch.is_grad_enabled()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, k):
        ctx.save_for_backward(v)
        ctx.k = k
        return v * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class Both(torch.autograd.Function):
    @staticmethod
    def forward(v):
        return v.sin(), v.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, h):
        (v,) = ctx.saved_tensors
        return g * v.cos() - h * v.sin()


class Fill(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.mark_dirty(v)
        return v.add_(1)

    @staticmethod
    def backward(ctx, g):
        return g


def test_autograd_function():
    check_gradients(Layer(lambda lin, x: Scale.apply(lin(x), 3.0)), x(True))
    check_gradients(Layer(lambda lin, x: Both.apply(lin(x))), x(True))
    check(lambda v: Scale.apply(v, 2), (x(),))
    check(lambda v: (Fill.apply(v) * 2, v), (x(),))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    check_gradients(Layer(lambda lin, x: checkpoint(lin, x, use_reentrant=reentrant) * 2), x(True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_region(dtype):
    def body(lin, x):
        with torch.autocast("cpu", dtype=dtype):
            inner = lin(x) @ x.t()
            with torch.autocast("cpu", enabled=False):
                full = lin(x.float())
            total = inner.softmax(-1).sum()
        return inner, full, total, x @ x.t()

    ep = check(Layer(body), (x(),), rtol=1e-2, atol=1e-2)
    outs = ep.graph_module.graph.output_node().args[0]
    dtypes = [n.meta["val"].dtype for n in outs]
    assert dtypes == [dtype, torch.float32, dtype, torch.float32]


def test_autocast_around_the_export():
    model = Layer(lambda lin, x: lin(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ep = gp.export(model, (x(),))
        want = model(x())
    have = ep.module()(x())
    assert have.dtype is torch.bfloat16
    torch.testing.assert_close(have, want, rtol=1e-2, atol=1e-2)


def test_a_gradient_inside_of_the_program_is_refused():
    def f(v):
        y = (v * 1).requires_grad_()
        y.sum().backward()
        return y.grad

    with pytest.raises(gp.errors.UnsupportedError, match=r"backward\(\) adds to the .grad"):
        gp.export(f, (x(),))


def test_complex_numbers_without_gradients():
    def f(v):
        z = torch.complex(v, v)
        with torch.no_grad():
            w = z * 2
        return (z * w).abs().sum()

    ep = check(f, (x(True),))
    ours, theirs = x(True), x(True)
    ep.module()(ours).backward()
    f(theirs).backward()
    assert_same(ours.grad, theirs.grad, "gradients differ")


def test_integers_made_from_what_has_gradients():
    check(lambda v: (v.argmax(), v.sort().indices, v > 0), (x(True),))


def test_a_detach_is_in_the_graph_only_where_it_cuts_something_off():
    ep = check(lambda v: (v.argmax().detach() + 1, v.detach().detach() + v), (x(True),))
    assert [n.target for n in ep.graph.nodes].count(aten.detach.default) == 1


def test_what_is_detached_says_so():
    def body(v):
        return v * 2 if v.detach().requires_grad or v.data.requires_grad else v * 3

    check(body, (x(True),))
