"""Lowerings of random numbers: dtype, sizes, bounds, and distribution by its quantiles."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import graphport as gp

Draw = Callable[[torch.Tensor], torch.Tensor]

COUNT = 40_000
WEIGHTS = torch.tensor([0.1, 0.2, 0.0, 0.7])

DRAWS: dict[str, Draw] = {
    "rand": lambda x: torch.rand(x.shape[0]),
    "rand_half": lambda x: torch.rand(x.shape[0], dtype=torch.float16),
    "rand_like": torch.rand_like,
    "rand_like_double": lambda x: torch.rand_like(x, dtype=torch.float64),
    "rand_like_bfloat16": lambda x: torch.rand_like(x, dtype=torch.bfloat16),
    "randn": lambda x: torch.randn(x.shape[0]),
    "randn_like": torch.randn_like,
    "randn_half": lambda x: torch.randn_like(x, dtype=torch.float16),
    "uniform": lambda x: x.clone().uniform_(-2, 3),
    "normal_": lambda x: x.clone().normal_(1, 2),
    "normal": lambda x: torch.normal(x, x + 2),
    "normal_mean": lambda x: torch.normal(x, 2.0),
    "normal_std": lambda x: torch.normal(3.0, x + 1),
    "normal_size": lambda x: torch.normal(3.0, 1.0, (x.shape[0],)),
    "log_normal": lambda x: x.clone().log_normal_(0, 0.5),
    "exponential": lambda x: x.clone().exponential_(2),
    "cauchy": lambda x: x.clone().cauchy_(1, 2).clamp(-9, 9),
    "geometric": lambda x: x.clone().geometric_(0.3),
    "randint": lambda x: torch.randint(-3, 90, (x.shape[0],)),
    "randint_int32": lambda x: torch.randint(50, (x.shape[0],), dtype=torch.int32),
    "randint_symbolic": lambda x: torch.randint(0, x.shape[0] + 1, (x.shape[0],)),
    "randint_like": lambda x: torch.randint_like(x, 70),
    "randint_like_low": lambda x: torch.randint_like(x, 20, 50),
    "random": lambda x: x.clone().random_(),
    "random_integers": lambda x: x.long().random_(),
    "random_to": lambda x: x.clone().random_(30),
    "random_from": lambda x: x.clone().random_(20, 70),
    "bernoulli": lambda x: torch.bernoulli(x + 0.2),
    "bernoulli_p": lambda x: x.clone().bernoulli_(0.3),
    "multinomial": lambda x: torch.multinomial(WEIGHTS.expand(x.shape[0], 4), 2)[:, 0],
    "multinomial_replaced": lambda x: torch.multinomial(
        WEIGHTS.expand(x.shape[0], 4), 2, replacement=True
    )[:, 1],
    "dropout": lambda x: F.dropout(x + 1, 0.3),
    "dropout2d": lambda x: F.dropout2d((x + 1).reshape(1, -1, 1, 1), 0.3).flatten(),
    "alpha_dropout": lambda x: F.alpha_dropout(x + 1, 0.3, True),
    "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(torch.stack([x, x + 1, x], -1))[:, 1],
}


def exported(draw: Draw, x: torch.Tensor) -> gp.onnx.ONNXProgram:
    onnxruntime.set_seed(1234)  # of the sessions that are made from here on
    return gp.onnx.export(lambda x: draw(x), (x,), dynamic_shapes=({0: gp.Dim("n")},))


@pytest.mark.parametrize("name", DRAWS)
def test_distribution(name: str) -> None:
    torch.manual_seed(0)
    draw, x = DRAWS[name], torch.zeros(COUNT)
    program = exported(draw, x)
    have, want = program(x), draw(x)
    assert have.shape == want.shape and have.dtype is want.dtype
    assert not torch.equal(have, program(x))
    # Numbers of a few values may come out an ulp apart.
    have, want = have.double().round(decimals=5), want.double().round(decimals=5)
    assert have.min() >= want.min() - want.std() and have.max() <= want.max() + want.std() * 3
    # The largest distance between the two distributions; 1.95 is passed once in a thousand times.
    points = torch.cat([have, want]).unique()
    shares = [
        (torch.searchsorted(v.sort().values, points, right=True) / COUNT) for v in (have, want)
    ]
    assert (shares[0] - shares[1]).abs().max() < 1.95 * (2 / COUNT) ** 0.5


@pytest.mark.parametrize("name", [n for n in DRAWS if "multinomial" not in n and n != "dropout2d"])
def test_nothing_to_draw(name: str) -> None:
    draw = DRAWS[name]
    program = exported(draw, torch.zeros(5))
    for size in (0, 1):
        x = torch.zeros(size)
        assert program(x).shape == draw(x).shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers_are_below_one(dtype: torch.dtype) -> None:
    x = torch.zeros(COUNT, dtype=dtype)
    assert exported(torch.rand_like, x)(x).max() < 1


def test_a_permutation_has_every_number_once() -> None:
    program = exported(lambda x: torch.randperm(x.shape[0], dtype=torch.int32), torch.zeros(50))
    for size in (50, 7, 1, 0):
        have = program(torch.zeros(size))
        assert have.dtype is torch.int32
        assert have.sort().values.tolist() == list(range(size))
    assert not torch.equal(program(torch.zeros(50)), program(torch.zeros(50)))


def test_without_replacement_nothing_is_chosen_twice_or_with_weight_0() -> None:
    def fn(w: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(w, 3)

    w = WEIGHTS.repeat(500, 1)
    chosen = gp.onnx.export(fn, (w,), dynamic_shapes=({0: gp.Dim("n")},))(w)
    assert chosen.sort(1).values.tolist() == [[0, 1, 3]] * 500
    assert gp.onnx.export(fn, (WEIGHTS,))(WEIGHTS).shape == (3,)


def test_two_draws_are_two_draws() -> None:
    a, b = gp.onnx.export(lambda x: (torch.rand_like(x), torch.rand_like(x)), (torch.zeros(9),))(
        torch.zeros(9)
    )
    assert not torch.equal(a, b)


def test_a_program_that_draws_is_written_at_an_opset_that_can() -> None:
    x = torch.zeros(3)
    program = gp.onnx.export(torch.rand_like, (x,))
    assert [(o.domain, o.version) for o in program.model_proto.opset_import] == [("", 21)]
    with pytest.raises(gp.errors.UnsupportedError, match="opset=21"):
        gp.onnx.export(torch.rand_like, (x,), opset=23)
