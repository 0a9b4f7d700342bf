"""Small sizes at which an operator or a slice does something else: agreed with, or refused."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphport as gp
from tests.helpers import assert_same, compare

PROGRAMS = {
    "slice from the end by a size": lambda x: x[: -x.shape[1]].shape[0],
    "slice that is empty at the example": lambda x: (x[4:3].shape[0], x[x.shape[0] :].numel()),
    "two bounds": lambda x: (x[-1:3] * 2, x[-1:3].shape[0]),
    "pieces of equal length": lambda x: [p.shape[0] for p in x.tensor_split(3)],
    "reshape around a size": lambda x: x.reshape(x.shape[0], -1),
    "unflatten around a size": lambda x: x.unflatten(1, (x.shape[1], -1)),
    "index from a size": lambda x: x[x.shape[0] - 1],
    "division": lambda x: x.shape[1] // x.shape[0] + x.shape[1] % x.shape[0],
    "divmod": lambda x: divmod(x.shape[0], 2),
    "circular padding": lambda x: F.pad(x[None], (1, 1), mode="circular"),
    "padding that cuts": lambda x: F.pad(x, (-1, 2)),
    "pooling with ceil": lambda x: F.avg_pool1d(x, 2, 2, ceil_mode=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("example", [(4, 2), (5, 3)])
def test_small_sizes(name, example):
    fn = PROGRAMS[name]
    shapes = {"x": {0: gp.Dim.AUTO, 1: gp.Dim.AUTO}}
    module = gp.export(fn, (torch.ones(example),), dynamic_shapes=shapes).module()
    for a, b in itertools.product(range(6), repeat=2):
        x = torch.arange(float(a * b)).reshape(a, b)
        try:
            have = module(x)
        except (RuntimeError, IndexError):
            assert a < 4 or b < 2 or b > a, f"{a}, {b} is refused"
            continue
        assert_same(have, fn(x), f"at {a}, {b}")


def test_a_view_through_einsum_is_written_through():
    def f(x):
        torch.einsum("ij->ji", x).mul_(2)
        return x + 1

    module = gp.export(f, (torch.ones(2, 3),)).module()
    ours, theirs = torch.ones(2, 3), torch.ones(2, 3)
    assert_same(module(ours), f(theirs), "results differ")
    assert_same(ours, theirs, "inputs are left differently")


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.chunk(2, -1)[-1] + 1,
        lambda x: x.chunk(2)[0].mul_(2),
        lambda x: x.split(x.shape[0] // 2)[-1] + 1,
    ],
)
def test_pieces(split):
    module = gp.export(split, (torch.ones(6),), dynamic_shapes=({0: 2 * gp.Dim("b")},)).module()
    for size in (2, 4):
        ours, theirs = torch.ones(size), torch.ones(size)
        assert_same(module(ours), split(theirs), f"at {size}")
        assert_same(ours, theirs, f"inputs at {size}")


def test_pieces_of_nothing():
    """A size of 0 has two chunks, but is one piece of any length."""
    spec = ({0: 2 * gp.Dim("b")},)
    chunks = gp.export(lambda x: x.chunk(2)[1], (torch.ones(6),), dynamic_shapes=spec).module()
    assert chunks(torch.ones(0)).shape == (0,)
    halves = lambda x: x.split(x.shape[0] // 2)[-1]
    pieces = gp.export(halves, (torch.ones(6),), dynamic_shapes=spec).module()
    with pytest.raises(RuntimeError, match="b != 0"):
        pieces(torch.ones(0))


class Normed(nn.Module):
    """Batch norm without running statistics, and with weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.bias = nn.Parameter(torch.rand(3))

    def forward(self, x):
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


NORMS = {
    "rows": (nn.BatchNorm1d(3), (4, 3)),
    "lines": (nn.BatchNorm1d(3), (4, 3, 2)),
    "images": (nn.BatchNorm2d(3), (4, 3, 2, 2)),
    "images without statistics": (nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 2, 2)),
    "function": (Normed(), (4, 3, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_of_no_rows_in_training(name):
    """Eager returns nothing and leaves the statistics; of one value per channel it has none."""
    model, shape = NORMS[name]
    x = torch.randn(shape)
    spec = ({0: gp.Dim("b", min=0)},)
    ep = gp.export(model, (x,), dynamic_shapes=spec)
    again = gp.export(ep.module(), (x,), dynamic_shapes=spec)
    trained = gp.export(model, (x,), dynamic_shapes=spec, training=True)
    for program in (ep, ep.run_decompositions(), again, trained, trained.run_decompositions()):
        for n in (0, 2, 4):
            compare(program, model, ((torch.randn(n, *shape[1:]),), {}))
        if len(shape) == 2:
            with pytest.raises(RuntimeError, match="!= 1"):
                program.module()(x[:1])
    assert gp.unflatten(ep)(x[:0]).shape == x[:0].shape
    fixed = gp.export(model, (x[:0],))
    compare(fixed, model, ((x[:0],), {}))


def test_gradients_of_batch_norm_of_no_rows():
    model = nn.BatchNorm1d(3)
    spec = ({0: gp.Dim("b", min=0)},)
    module = gp.export(model, (torch.randn(4, 3, 2),), dynamic_shapes=spec).module()
    for m in (module, model):
        m(torch.randn(0, 3, 2)).sum().backward()
    grads = dict(module.named_parameters())
    for name, p in model.named_parameters():
        assert_same(grads[name].grad, p.grad, name)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "graphport"])
@pytest.mark.parametrize("sizes", [(0, 4), (4, 5, 0)])
def test_compiled_batch_norm_in_training(backend, sizes):
    """Dynamo compiles a size of 0 for itself, and what is known not to be 0 or 1 once."""
    for name, (model, shape) in NORMS.items():
        torch._dynamo.reset()
        model = copy.deepcopy(model)
        example = (torch.randn(shape),)
        module = gp.export(model, example, dynamic_shapes=({0: gp.Dim("b")},)).module()
        compiled = torch.compile(module, backend=backend)
        for n in sizes:
            x = torch.randn(n, *shape[1:])
            grads = []
            for m, run in ((module, compiled), (model, model)):
                m.zero_grad()
                out = run(x)
                (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
                grads.append([out, {k: p.grad for k, p in m.named_parameters()}, m.state_dict()])
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4, msg=f"{name} of {n}")


def test_batch_norm_of_no_rows_in_torch_programs():
    """The operator of a functional program refuses it, of torch's own programs too."""
    model, shape = NORMS["lines"]
    x, spec = torch.randn(shape), ({0: gp.Dim("b")},)
    trained = gp.export(model, (x,), dynamic_shapes=spec, training=True)
    assert trained.to_torch().module()(x[:0]).shape == x[:0].shape
    functional = gp.export(model, (x,), dynamic_shapes=spec).to_torch().module()
    own = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("b")},))
    for module in (functional, own.run_decompositions({}).module()):
        with pytest.raises(RuntimeError, match="at least one element"):
            module(x[:0])


def test_kernels_of_batch_norm_refuse_no_rows():
    def f(x):
        return torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)

    with pytest.raises(RuntimeError, match="at least one element"):
        f(torch.randn(0, 3))
    module = gp.export(f, (torch.randn(4, 3),), dynamic_shapes=({0: gp.Dim.AUTO},)).module()
    with pytest.raises(RuntimeError, match=">= 1"):
        module(torch.randn(0, 3))


def test_nothing_is_divided_by_zero():
    """Integers of an empty tensor, as eager does; with elements it is refused, as in eager."""
    ids = torch.arange(0)
    for fn in (lambda x: x // x.shape[0], lambda x: x % 0, lambda x: torch.fmod(x, 0)):
        assert_same(gp.export(fn, (ids,)).module()(ids), fn(ids), "of nothing")
    with pytest.raises(gp.errors.ForwardError, match="ZeroDivisionError"):
        gp.export(lambda x: x // 0, (torch.arange(3),))
