"""Memory layout: what is claimed of symbolic strides holds for the tensors of every size."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphport.symbolic import Scope, bridge, eq, evaluate, ge, max_
from graphport.tensors.abstract import contiguous_strides
from tests.symbolic.test_soundness import MANY

NAMES = "abcde"
# What torch answers, and our question; torch spells non_overlapping_and_dense in C++ only.
QUESTIONS = {
    bridge.is_contiguous: lambda t: t.is_contiguous(),
    bridge.is_channels_last: lambda t: t.is_contiguous(
        memory_format=torch.channels_last if t.ndim == 4 else torch.channels_last_3d
    ),
    bridge.is_non_overlapping_and_dense: torch.ops.aten.is_non_overlapping_and_dense.default,
}


@st.composite
def layouts(draw):
    """Symbols and small ints laid out densely in some order, sometimes with one stride off."""
    ndim = draw(st.integers(4, 5))
    scope = Scope()
    sizes = [
        scope.symbol(NAMES[d], hint=3) if draw(st.booleans()) else draw(st.integers(1, 3))
        for d in range(ndim)
    ]
    strides = [0] * ndim
    step = 1
    for d in draw(st.permutations(range(ndim))):
        strides[d] = step
        step = step * (max_(sizes[d], 1) if draw(st.booleans()) else sizes[d])
    if draw(st.booleans()):
        d = draw(st.integers(0, ndim - 1))
        strides[d] = strides[d] + draw(st.sampled_from([1, sizes[0]]))
    return scope, sizes, strides


@MANY
@given(layouts())
def test_what_is_claimed_holds_at_every_size(case):
    scope, sizes, strides = case
    claimed = [torch_says for ours, torch_says in QUESTIONS.items() if ours(scope, sizes, strides)]
    for values in itertools.product((0, 1, 2, 5), repeat=len(scope.symbols)):
        env = dict(zip(scope.symbols, values, strict=True))
        concrete = [[evaluate(x, env) for x in part] for part in (sizes, strides)]
        tensor = torch.empty_strided(*concrete, device="meta")
        # Without elements dense and channels last are a matter of taste; torch has its own.
        for torch_says in claimed:
            assert torch_says(tensor) or tensor.numel() == 0, (sizes, strides, values)


@pytest.fixture
def scope():
    return Scope()


def test_contiguous(scope):
    n, m = scope.symbol("n"), scope.symbol("m")
    sizes = (n, m, 4)
    assert contiguous_strides(sizes) == (4 * m, 4, 1)
    assert bridge.is_contiguous(scope, sizes, (4 * m, 4, 1))
    assert bridge.is_contiguous(scope, sizes, (4 * max_(m, 1), 4, 1))
    assert not bridge.is_contiguous(scope, sizes, (4, 4 * n, 1))
    assert bridge.is_contiguous(scope, (n, 1, 4), (4, 77, 1))
    assert bridge.is_contiguous(scope, (n, 0, 4), (9, 9, 9))
    assert bridge.is_contiguous(scope, (), ())
    assert scope.facts == []


def test_equal_sizes_count_as_equal(scope):
    n, m = scope.symbol("n", hint=2), scope.symbol("m", hint=2)
    assert not bridge.is_contiguous(scope, (4, n), (m, 1))
    scope.guard(eq(n, m))
    assert bridge.is_contiguous(scope, (4, n), (m, 1))


def test_channels_last(scope):
    n, h, w = (scope.symbol(name) for name in "nhw")
    sizes, strides = (n, 3, h, w), (3 * h * w, 1, 3 * w, 3)
    assert bridge.is_channels_last(scope, sizes, strides)
    assert bridge.is_channels_last_strides(scope, sizes, strides)
    plain = contiguous_strides(sizes)
    assert not bridge.is_channels_last(scope, sizes, plain)
    assert not bridge.is_channels_last_strides(scope, sizes, plain)
    assert not bridge.is_channels_last(scope, (n, 3, h), (3 * h, 1, 3))
    assert not bridge.is_channels_last_strides(scope, sizes, (3 * h * w, 0, 3 * w, 3))
    # A slice of the width leaves gaps but keeps the order.
    scope.assume(ge(w, 1))
    assert bridge.is_channels_last_strides(scope, (n, 3, h, w), (6 * h * w, 1, 6 * w, 3))


def test_dense_in_another_order(scope):
    n, m = scope.symbol("n"), scope.symbol("m")
    assert bridge.is_non_overlapping_and_dense(scope, (n, m, 4), (4, 4 * n, 1))
    assert bridge.is_non_overlapping_and_dense(scope, (n, m), (1, n))
    assert not bridge.is_non_overlapping_and_dense(scope, (n, m), (0, 1))
    assert not bridge.is_non_overlapping_and_dense(scope, (n, m), (2 * m, 1))
