"""What an operator needs its operands' sizes to be to one another is asked of the inputs.

Every size is automatic. Sizes that eager refuses, the program refuses before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp

aten = torch.ops.aten
f = torch.ones
i = lambda *sizes: torch.zeros(sizes, dtype=torch.int64)
mask = lambda *sizes: torch.zeros(sizes, dtype=torch.bool)

Inputs = tuple[torch.Tensor, ...]

# Name: the call, its operands, and which size of which operand is changed to what.
RELATED: dict[str, tuple[Callable[..., Any], Inputs, tuple[int, int, int]]] = {
    "linear": (F.linear, (f(2, 3), f(5, 3), f(5)), (1, 0, 6)),
    "bilinear: bias": (F.bilinear, (f(2, 3), f(2, 4), f(5, 3, 4), f(5)), (3, 0, 6)),
    "bilinear: batch": (F.bilinear, (f(2, 3), f(2, 4), f(5, 3, 4)), (0, 0, 3)),
    "addmm": (torch.addmm, (f(2, 4), f(2, 3), f(3, 4)), (0, 0, 3)),
    "addr": (torch.addr, (f(2, 4), f(2), f(4)), (0, 1, 5)),
    "cdist": (torch.cdist, (f(2, 3), f(4, 3)), (1, 1, 4)),
    "cross": (torch.cross, (f(2, 3), f(2, 3)), (1, 0, 4)),
    "conv1d": (F.conv1d, (f(1, 2, 8), f(5, 2, 3), f(5)), (1, 0, 6)),
    "conv2d, groups": (
        lambda x, w: F.conv2d(x, w, groups=2),
        (f(1, 4, 8, 8), f(6, 2, 3, 3)),
        (1, 0, 7),
    ),
    "conv_transpose1d": (F.conv_transpose1d, (f(1, 2, 8), f(2, 5, 3), f(5)), (2, 0, 6)),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (f(2, 3, 4, 5, 6), f(2, 4, 4, 4, 3)),
        (1, 0, 3),
    ),
    "fold": (lambda x: F.fold(x, (4, 5), 2), (f(2, 12, 12),), (0, 2, 13)),
    "glu": (F.glu, (f(2, 6),), (0, 1, 7)),
    "topk": (lambda x: x.topk(3), (f(2, 6),), (0, 1, 2)),
    "kthvalue": (lambda x: x.kthvalue(3), (f(2, 6),), (0, 1, 2)),
    "multinomial": (lambda x: x.multinomial(3), (f(2, 6),), (0, 1, 2)),
    "reflection": (lambda x: F.pad(x, (2, 2), mode="reflect"), (f(1, 2, 6),), (0, 2, 2)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), (f(2, 4), f(4)), (1, 0, 5)),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w), (f(2, 4), f(4)), (0, 1, 5)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (f(2, 4, 3), f(4)), (1, 0, 6)),
    "batch_norm": (F.batch_norm, (f(2, 4, 3), f(4), f(4)), (1, 0, 5)),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w), (f(2, 4, 3), f(4)), (1, 0, 5)),
    "cross_entropy: places": (F.cross_entropy, (f(2, 4, 3), i(2, 3)), (1, 1, 5)),
    "cross_entropy: weight": (F.cross_entropy, (f(2, 4), i(2), f(4)), (2, 0, 5)),
    "cross_entropy: probable": (F.cross_entropy, (f(2, 4), f(2, 4)), (1, 1, 5)),
    "nll_loss": (F.nll_loss, (f(2, 4, 3, 3), i(2, 3, 3)), (1, 2, 4)),
    "multi_margin_loss": (F.multi_margin_loss, (f(2, 4), i(2)), (1, 0, 3)),
    "multilabel_margin_loss": (F.multilabel_margin_loss, (f(2, 4), i(2, 4)), (1, 0, 3)),
    "index_add": (lambda x, j, y: x.index_add(0, j, y), (f(5, 3), i(2), f(2, 3)), (1, 0, 3)),
    "index_copy": (lambda x, j, y: x.index_copy(0, j, y), (f(5, 3), i(2), f(2, 3)), (2, 1, 4)),
    "index_reduce": (
        lambda x, j, y: x.index_reduce(0, j, y, "amax"),
        (f(5, 3), i(2), f(2, 3)),
        (2, 0, 3),
    ),
    "index_put": (lambda x, j, y: x.index_put((j,), y), (f(5, 3), i(2), f(2, 3)), (2, 0, 3)),
    "a write by a mask": (
        lambda x, m, y: x.index_put((m,), y),
        (f(5, 3), mask(5), f(3)),
        (2, 0, 4),
    ),
    "a mask": (lambda x, m: x[m], (f(5, 3), mask(5)), (1, 0, 6)),
    "masked_select": (torch.masked_select, (f(5, 3), mask(5, 3)), (1, 1, 4)),
    "put": (lambda x, j, y: x.put(j, y), (f(5, 3), i(2), f(2)), (2, 0, 3)),
    "gather": (lambda x, j: x.gather(0, j), (f(5, 3), i(2, 3)), (0, 1, 2)),
    "scatter": (lambda x, j, y: x.scatter(0, j, y), (f(5, 3), i(2, 3), f(4, 3)), (2, 0, 1)),
    "scatter_add": (lambda x, j, y: x.scatter_add(0, j, y), (f(5, 3), i(2, 3), f(4, 3)), (1, 1, 4)),
    "select_scatter": (lambda x, y: x.select_scatter(y, 0, 1), (f(5, 3), f(3)), (1, 0, 4)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 0, 1, 3), (f(5, 3), f(2, 3)), (1, 0, 3)),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y), (f(3, 3), f(3)), (1, 0, 4)),
    "searchsorted": (torch.searchsorted, (f(2, 5), f(2, 3)), (1, 0, 3)),
    "embedding_bag": (
        lambda w, j, o, s: F.embedding_bag(j, w, o, mode="sum", per_sample_weights=s),
        (f(4, 3), i(5), i(2), f(5)),
        (3, 0, 6),
    ),
    "bincount": (torch.bincount, (i(5), f(5)), (1, 0, 6)),
    "cov": (lambda x, w: torch.cov(x, aweights=w), (f(2, 5), f(5)), (1, 0, 6)),
    "histogram": (lambda x, w: torch.histogram(x, 4, weight=w), (f(5), f(5)), (1, 0, 6)),
}


@pytest.mark.parametrize("name", RELATED)
def test_sizes_that_must_agree(name: str) -> None:
    fn, inputs, (which, dim, other) = RELATED[name]
    program = lambda *args: fn(*args)
    shapes = tuple({d: gp.Dim.AUTO for d, s in enumerate(t.shape) if s > 1} for t in inputs)
    ep = gp.export(program, inputs, dynamic_shapes=(shapes,))
    ep.checks(list(inputs))
    changed = list(inputs)
    sizes = list(inputs[which].shape)
    sizes[dim] = other
    changed[which] = torch.zeros(sizes, dtype=inputs[which].dtype)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        program(*changed)
    with pytest.raises(RuntimeError, match=r"Expected input|Runtime assertion failed"):
        ep.checks(changed)


def test_a_named_dim_that_must_be_fixed() -> None:
    shapes = ({}, {0: gp.Dim("n")}, {})
    with pytest.raises(gp.errors.ConstraintViolationError) as raised:
        gp.export(lambda *x: F.linear(*x), (f(2, 3), f(5, 3), f(5)), dynamic_shapes=(shapes,))
    assert "n = 5" in str(raised.value)


def test_a_mask_is_broadcast_and_may_select_more_than_there_is() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        chosen = torch.masked_select(x, m)
        return chosen if chosen.shape[0] > 4 else chosen * 2

    with pytest.raises(gp.errors.DataDependentError):
        gp.export(fn, (f(1, 4), mask(3, 4)))


def test_products_of_many_at_other_sizes() -> None:
    def fn(row: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        parts = [a, b, a, b]
        return torch.linalg.multi_dot(parts), torch.linalg.multi_dot([row, *parts, row])

    n, m = gp.dims("n", "m")
    sizes = {"row": {0: n}, "a": {0: n, 1: m}, "b": {0: m, 1: n}}
    made = lambda n, m: (torch.randn(n), torch.randn(n, m), torch.randn(m, n))
    ep = gp.export(fn, made(3, 20), dynamic_shapes=sizes)
    for n_, m_ in ((3, 20), (20, 2), (1, 5)):
        inputs = made(n_, m_)
        torch.testing.assert_close(ep.module()(*inputs), fn(*inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("indices", [False, True])
def test_adaptive_max_pool_that_keeps_sizes(indices: bool) -> None:
    flat = torch.nn.AdaptiveMaxPool2d((None, 3), return_indices=indices)
    deep = torch.nn.AdaptiveMaxPool3d((None, 3, None), return_indices=indices)
    fn = lambda x: (flat(x[0]), deep(x))
    h, w = gp.dims("h", "w", min=1)
    ep = gp.export(fn, (torch.randn(2, 3, 6, 7, 5),), dynamic_shapes={"x": {2: h, 4: w}})
    x = torch.randn(2, 3, 4, 7, 9)
    torch.testing.assert_close(ep.module()(x), fn(x))


def test_masked_index_at_other_sizes() -> None:
    fn = lambda x, m, j: aten._unsafe_masked_index(x, m, [j], 0.0)
    n, k = gp.dims("n", "k")
    sizes = {"x": {0: n}, "m": {0: k}, "j": {0: k}}
    made = lambda n, k: (torch.randn(n), torch.arange(k) < n, torch.arange(k))
    ep = gp.export(fn, made(4, 6), dynamic_shapes=sizes)
    for sizes_ in ((4, 6), (7, 3)):
        inputs = made(*sizes_)
        torch.testing.assert_close(ep.module()(*inputs), fn(*inputs))


POOLS: dict[str, Callable[..., Any]] = {
    "max_pool1d": lambda x: F.max_pool1d(x[..., 0], x.shape[2]),
    "max_pool2d": lambda x: F.max_pool2d(x, x.shape[2:]),
    "max_pool2d with indices": lambda x: F.max_pool2d(
        x, kernel_size=x.size()[2:], return_indices=True
    ),
    "max_pool2d without a batch": lambda x: F.max_pool2d(x[0], x.shape[2:]),
    "avg_pool1d": lambda x: F.avg_pool1d(x[..., 0], x.shape[2]),
    "avg_pool2d": lambda x: F.avg_pool2d(x, x.shape[2:], stride=2, ceil_mode=True),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], x.shape[2]),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[:, :, 0], x.shape[2]),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_as_large_as_the_input(name: str) -> None:
    fn = POOLS[name]
    h, w = gp.dims("h", "w", min=1)
    ep = gp.export(lambda x: fn(x), (torch.randn(2, 3, 4, 6),), dynamic_shapes=({2: h, 3: w},))
    for sizes in ((4, 6), (7, 3), (1, 1)):
        x = torch.randn(2, 3, *sizes)
        torch.testing.assert_close(ep.module()(x), fn(x))


def test_a_window_that_is_padded_stays_one() -> None:
    fn = lambda x: F.max_pool1d(x, x.shape[-1], padding=1)
    with pytest.raises(gp.errors.ConstraintViolationError):
        gp.export(fn, (torch.randn(1, 2, 8),), dynamic_shapes={"x": {2: gp.Dim("n")}})
