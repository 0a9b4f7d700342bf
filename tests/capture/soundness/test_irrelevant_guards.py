"""Questions about sizes that make no difference are no constraints; those that do still are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphport as gp
from tests.helpers import check

N = gp.Dim("n")
DYNAMIC = ({0: N},)


def others(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.arange(float(n)),) for n in sizes]


def masked(x: torch.Tensor, mask: Any = 3) -> torch.Tensor:
    causal = x.shape[0] > 1 and mask is None
    return x.cumsum(0) if causal else x * 2


def equality(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] == 5 and x.dtype == torch.int64 else x - 1


def refused(x: torch.Tensor) -> torch.Tensor:
    """That n is not 1 would be checked when the program runs."""
    fast = x.shape[0] == 1
    return x.sin() if fast or x.dtype == torch.float32 else x.cos()


def two_questions(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3 or x.shape[0] < 2:
        return x * 3
    return x * 3


def in_order(x: torch.Tensor) -> torch.Tensor:
    """Of one row the transpose is contiguous: what is copied then is copied for nothing."""
    y = torch.stack([x, x, x]).T
    if not y.is_contiguous():
        y = y.contiguous()
    return y.reshape(-1) * 2


@pytest.mark.parametrize("program", [masked, equality, refused, two_questions, in_order])
@pytest.mark.parametrize("example", [0, 1, 5])
def test_no_difference(program: Any, example: int) -> None:
    ep = check(
        program,
        (torch.arange(float(example)),),
        dynamic_shapes=DYNAMIC,
        others=others(0, 1, 2, 3, 5, 9),
    )
    assert not ep.checks.facts
    assert str(ep.range_constraints[next(iter(ep.range_constraints))]) == "[0, oo]"


def operators(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] > 3 else x.cos()


def layouts(x: torch.Tensor) -> torch.Tensor:
    y = torch.stack([x, x, x]).T
    return y.sin() if y.is_contiguous() else y.cos()


def constants(x: torch.Tensor) -> torch.Tensor:
    return x + (torch.tensor([1.0]) if x.shape[0] > 3 else torch.tensor([2.0]))


def numbers(x: torch.Tensor) -> torch.Tensor:
    return x + (1 if x.shape[0] > 3 else 2)


def results(x: torch.Tensor) -> Any:
    return (x + 1, 4) if x.shape[0] > 3 else (x + 1, 5)


def structures(x: torch.Tensor) -> Any:
    return (x + 1,) if x.shape[0] > 3 else [x + 1]


def assertions(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        torch._check(x.shape[0] < 50)
    return x + 1


def errors(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 3
    return x + 1


def branches(x: torch.Tensor) -> torch.Tensor:
    def body(y: torch.Tensor) -> torch.Tensor:
        return y + 1 if x.shape[0] > 3 else y + 2

    return torch.cond(x.sum() > 0, body, torch.neg, (x,))


def mutation(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        x.add_(1)
    return torch.zeros(2)


def flag(x: torch.Tensor) -> torch.Tensor:
    y = x.reshape(1, 1, -1, 1)
    return F.scaled_dot_product_attention(y, y, y, is_causal=x.shape[0] > 3)


@pytest.mark.parametrize(
    "program",
    [
        operators,
        constants,
        numbers,
        results,
        structures,
        assertions,
        errors,
        branches,
        mutation,
        flag,
    ],
)
def test_a_difference(program: Any) -> None:
    with pytest.raises(gp.errors.ConstraintViolationError, match="n >= 4") as caught:
        gp.export(program, (torch.ones(5),), dynamic_shapes=DYNAMIC)
    assert "n = Dim('n', min=4" in caught.value.fix[0]


def test_how_often_a_program_is_run() -> None:
    runs = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(x.dim())
        return masked(x)

    gp.export(counted, (torch.ones(5),))
    assert len(runs) == 1
    gp.export(counted, (torch.ones(5),), dynamic_shapes=DYNAMIC)
    assert len(runs) == 1 + 3


def test_a_condition_on_a_size_as_a_flag() -> None:
    """`length > 1 and ...` is a condition that torch's own function would not take."""

    def attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        causal = q.shape[2] > 1 and mask is None
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=causal)

    length = gp.Dim("length", min=1)
    inputs = [(torch.randn(1, 2, n, 4), torch.ones(n, n, dtype=torch.bool)) for n in (1, 3)]
    shapes = ({2: length}, {0: length, 1: length})
    check(attention, inputs[0], dynamic_shapes=shapes, others=inputs[1:])
    check(attention, inputs[1], dynamic_shapes=shapes, others=inputs[:1])


def test_a_layout_that_makes_a_difference() -> None:
    ep = gp.export(layouts, (torch.arange(5.0),), dynamic_shapes=DYNAMIC)
    for n in (0, 1):
        with pytest.raises(RuntimeError, match=f"n != {n} does not hold"):
            ep.module()(torch.arange(float(n)))
