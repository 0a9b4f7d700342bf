"""Small sizes at which an operator or a slice does something else: agreed with, or refused."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.helpers import assert_same

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
