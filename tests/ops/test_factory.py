"""Tensors made from sizes and numbers; random ones are the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from graphport.errors import ExportError
from tests.ops.rows import Row, check_dynamic, check_static, ints, positive, row

WINDOWS = (
    torch.hann_window,
    torch.hamming_window,
    torch.bartlett_window,
    torch.blackman_window,
    torch.kaiser_window,
)
ROWS = [
    *(
        row(lambda a, fn=fn: fn(a.shape[0], 3) + a[:, :1], "b t", least={"t": 1}, name=fn.__name__)
        for fn in (torch.zeros, torch.ones, torch.rand, torch.randn)
    ),
    *(
        row(lambda a, fn=fn: fn(a), "b t", name=fn.__name__)
        for fn in (torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like)
    ),
    row(lambda a: torch.full((2, a.shape[1]), 7), "b t", name="full_int"),
    row(lambda a: torch.full(a.shape, 0.5), "b t", name="full"),
    row(lambda a: torch.full_like(a, 3), "b t", name="full_like"),
    row(lambda a: a.new_zeros(a.shape[1], 2), "b t", name="new_zeros"),
    row(lambda a: a.new_ones((3,), dtype=torch.int32), "b t", name="new_ones"),
    row(lambda a: a.new_full((a.shape[0],), 2.0), "b t", name="new_full"),
    row(lambda a: torch.arange(a.shape[0]), "b t", name="arange"),
    row(lambda a: torch.arange(1, a.shape[0] + 1, 2), "b t", name="arange_step"),
    row(
        lambda a: torch.arange(0.0, 1.0, 0.25) + a[0, 0],
        "b t",
        least={"b": 1, "t": 1},
        name="arange_float",
    ),
    row(lambda a: torch.linspace(0, 1, a.shape[1]), "b t", name="linspace"),
    row(lambda a: torch.linspace(a.sum() * 0, 1, a.shape[1]), "b t", name="linspace_tensor"),
    row(lambda a: torch.logspace(0, 1, a.shape[1]), "b t", name="logspace"),
    row(
        lambda a: torch.logspace(0, 3, a.shape[1], base=2.0, dtype=torch.int64),
        "b t",
        name="logspace_integers",
    ),
    row(lambda a: torch.logspace(a.sum() * 0, 1, steps=a.shape[1]), "b t", name="logspace_tensor"),
    row(lambda a: torch.eye(a.shape[0]), "b t", name="eye"),
    row(lambda a: torch.eye(a.shape[0], a.shape[1]), "b t", name="eye_rectangle"),
    row(lambda a: torch.randint(9, (a.shape[0], 2)), "b t", name="randint"),
    row(lambda a: torch.randint(2, 9, (a.shape[0],), dtype=torch.int32), "b t", name="randint_low"),
    row(lambda a: torch.randint_like(a, 9), "b t", name="randint_like"),
    row(lambda a: torch.randperm(a.shape[0]), "b t", name="randperm"),
    row(lambda a: torch.bernoulli(a.sigmoid()), "b t", name="bernoulli"),
    row(
        lambda a: torch.multinomial(a, 2), "b 5", make=positive, least={"b": 1}, name="multinomial"
    ),
    row(lambda a: torch.normal(a, 1.0), "b t", name="normal"),
    row(lambda a: torch.poisson(a), "b t", make=positive, name="poisson"),
    row(lambda a: a.clone().uniform_(0, 2), "b t", name="uniform_"),
    row(lambda a: a.clone().normal_(), "b t", name="normal_"),
    row(lambda a: a.clone().bernoulli_(), "b t", name="bernoulli_"),
    row(lambda a: a.clone().exponential_(), "b t", name="exponential_"),
    row(lambda a: a.clone().random_(9), "b t", make=ints(3), name="random_"),
    row(lambda a: F.dropout(a, 0.5, training=True), "b t", name="dropout"),
    row(lambda a: F.dropout2d(a, 0.5, training=True), "b 3 h w", least={"b": 1}, name="dropout2d"),
    row(lambda a: F.alpha_dropout(a, 0.5, training=True), "b t", name="alpha_dropout"),
    row(lambda a: F.rrelu(a, training=True), "b t", name="rrelu"),
    row(lambda a: torch.tensor([1.0, 2.0]) + a[:, :2], "b 3", name="literal"),
    row(lambda a: torch.tensor(a.shape[0]) + 1, "b t", name="size_as_tensor"),
    *(row(lambda a, fn=fn: fn(a.shape[0]), "b t", name=fn.__name__) for fn in WINDOWS),
    *(
        row(
            lambda a, fn=fn: fn(a.shape[0], periodic=False, dtype=torch.float64),
            "b t",
            name=f"{fn.__name__}_symmetric",
        )
        for fn in WINDOWS
    ),
    row(lambda a: torch.hamming_window(a.shape[0], True, 0.6, 0.3), "b", name="hamming_of_numbers"),
    row(lambda a: torch.kaiser_window(a.shape[0], True, beta=5.0), "b", name="kaiser_of_a_number"),
    row(lambda a: torch.fft.fftfreq(a.shape[0], 0.5), "b", name="fftfreq"),
    row(lambda a: torch.fft.rfftfreq(a.shape[0], d=2.0), "b", name="rfftfreq"),
    row(lambda a: torch.vander(a), "b", name="vander"),
    row(lambda a: torch.vander(a, increasing=True), "b", make=ints(4), name="vander_increasing"),
    row(lambda a, c: torch.vander(a, c.shape[0]), "b", "c", name="vander_of_columns"),
    row(lambda a: torch.linalg.vander(a), "b c", least={"c": 2}, name="linalg_vander"),
    *(
        row(lambda a, fn=fn, k=k: fn(*a.shape, k), "b t", name=f"{fn.__name__}_{k}")
        for fn in (torch.tril_indices, torch.triu_indices)
        for k in (-2, 0, 1, 3)
    ),
    row(
        lambda a: torch.triu_indices(a.shape[0], col=4, dtype=torch.int32),
        "b",
        name="triu_of_int32",
    ),
    row(lambda a: torch.combinations(a), "b", name="combinations"),
    row(lambda a: torch.combinations(a, with_replacement=True), "b", name="combinations_of_all"),
    row(
        lambda a, c: F.one_hot(a, c.shape[0] + 3),
        "b t",
        "c",
        make=[ints(3), torch.randn],
        name="one_hot",
    ),
]


@pytest.mark.parametrize("case", ROWS)
def test_static(case: Row) -> None:
    check_static(case)


@pytest.mark.parametrize("case", ROWS)
def test_dynamic(case: Row) -> None:
    check_dynamic(case)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.histc(torch.arange(4.0), x.shape[0]),
        lambda x: torch.arange(8.0).unfold(0, x.shape[0], 1),
        lambda x: torch.hann_window(x.shape[0], dtype=torch.float32, layout=torch.sparse_coo),
    ],
)
def test_a_count_that_stays_what_it_is(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """An error says where."""
    with pytest.raises(ExportError, match=r"test_factory\.py"):
        gp.export(fn, (torch.randn(4),), dynamic_shapes=({0: gp.Dim("n")},))


def test_combinations_of_three() -> None:
    """Their count is that of torch's own Python in newer versions, and refused in older ones."""
    fn = lambda x: torch.combinations(x, 3)
    try:
        program = gp.export(fn, (torch.randn(4),), dynamic_shapes=({0: gp.Dim("n")},))
    except ExportError:
        return
    for n in (0, 1, 3, 4, 7):
        x = torch.randn(n)
        torch.testing.assert_close(program.module()(x), fn(x))


def affine_grid(x: torch.Tensor) -> torch.Tensor:
    return F.affine_grid(torch.eye(2, 3)[None], [1, 1, x.shape[0], 3], align_corners=False)


@pytest.mark.parametrize(
    ("fn", "size"),
    [
        (affine_grid, 0),
        (lambda x: torch.randint(x.shape[0], (3,)) * 0, 0),
        (lambda x: torch.randint(2, x.shape[0] + 1, (3,)) * 0, 1),
        (lambda x: torch.linalg.vander(torch.arange(3.0), N=x.shape[0]), 1),
        (lambda x: F.one_hot(torch.zeros(3).long(), x.shape[0]), 0),
    ],
)
def test_a_count_that_is_refused(fn: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
    module = gp.export(fn, (torch.randn(4),), dynamic_shapes=({0: gp.Dim("n", min=0)},)).module()
    for n in (2, 5):
        assert torch.equal(module(torch.randn(n)), fn(torch.randn(n)))
    for run in (fn, module):
        with pytest.raises((RuntimeError, ValueError)):
            run(torch.randn(size))
