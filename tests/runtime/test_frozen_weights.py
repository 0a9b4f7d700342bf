"""Whether a session's weights are still what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphport.runtime.region import FrozenWeights

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]
SHAPES = [(), (1,), (2,), (3,), (5, 7), (64, 33)]


def ones(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


def flip(t: torch.Tensor) -> None:
    """Change every number by its lowest bit, unseen by torch's counter."""
    octets = t.data.view(torch.uint8) if t.dim() else t.data.reshape(1).view(torch.uint8)
    octets.bitwise_xor_(torch.ones_like(octets))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unseen_writes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    weights = [ones(dtype, shape) for _ in range(3)]
    frozen = FrozenWeights(dict(enumerate(weights)))
    assert frozen.places == (0, 1, 2) and not frozen.has_changed(weights)
    version = weights[1]._version
    flip(weights[1])
    assert weights[1]._version == version and frozen.has_changed(weights)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_number_at_the_places_that_are_looked_at(at: int) -> None:
    for dtype in (torch.float64, torch.complex128, torch.float16):
        t = ones(dtype, (9,))
        frozen = FrozenWeights({0: t})
        t.data[(0, 4, 8)[at]] *= 2  # of a float64, the exponent alone
        assert frozen.has_changed([t])


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda t: t.add_(1),
    "of one number": lambda t: t[2, 3].zero_(),
    "other memory": lambda t: t.set_(torch.ones(5, 7)),
    "other data": lambda t: setattr(t, "data", t.clone()),
    "data that is gone": lambda t: t.untyped_storage().resize_(0),
    "scaled": lambda t: t.data.mul_(0.99),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes(change: Callable[[torch.Tensor], Any]) -> None:
    t, other = torch.ones(5, 7), torch.ones(3)
    frozen = FrozenWeights({2: other, 0: t})
    args = [t, "not a weight", other]
    assert not frozen.has_changed(args)
    change(t)
    assert frozen.has_changed(args)


def test_another_tensor() -> None:
    t = torch.ones(3)
    assert FrozenWeights({0: t}).has_changed([t.clone()])
    assert FrozenWeights({0: t}).has_changed([t.detach()])


def test_layouts() -> None:
    base = torch.arange(60.0).reshape(5, 12)
    for t in (base.t(), base[1:4, 2:7], base[:, ::3], base[2].expand(4, 12), base[3, 4]):
        frozen = FrozenWeights({0: t})
        assert not frozen.has_changed([t])
        base.data.add_(1)
        assert frozen.has_changed([t])


def test_nothing_to_look_at() -> None:
    empty = torch.empty(0, 3)
    assert not FrozenWeights({}).has_changed([])
    frozen = FrozenWeights({0: empty, 1: torch.ones(2)})
    assert frozen.places == (0, 1) and frozen.has_changed([empty, torch.ones(2)])
    assert not FrozenWeights({0: empty}).has_changed([empty])


def test_what_cannot_be_watched_is_left_out() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    sparse = torch.eye(3).to_sparse()
    assert FrozenWeights({0: inference, 1: sparse, 2: torch.ones(2, device="meta")}).places == ()
