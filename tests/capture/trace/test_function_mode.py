"""Python that asks for the data of a tensor, by itself or inside of torch: right, or refused.

A program that is captured agrees with eager on other data and at other sizes than in the example.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import graphport as gp
from graphport.errors import ConstraintViolationError, DataDependentError
from tests.helpers import compare

Program = Callable[..., Any]


def lowest_removed(x: torch.Tensor) -> torch.Tensor:
    left = [torch.tensor(0.0), torch.tensor(1.0)]
    left.remove(x[0])
    return x + left[0]


REFUSED: dict[str, Program] = {
    "number in tensor": lambda x: x + (1 in x),
    "tensor in tensor": lambda x: x + (x[0] * 1 in x),
    "size in tensor": lambda x: x + (x.shape[0] in x),
    "branch on in": lambda x: x + 1 if 1 in x else x,
    "not in": lambda x: x + (1 not in x.to(torch.uint8)),
    "tensor in list": lambda x: x + (x[0] in [torch.tensor(2.0), torch.tensor(1.0)]),
    "list.index": lambda x: x + [torch.tensor(0.0), torch.tensor(1.0)].index(x[0]),
    "list.count": lambda x: x + [torch.tensor(0.0), torch.tensor(1.0)].count(x[0]),
    "list.remove": lowest_removed,
    "lists ==": lambda x: x + ([x[0]] == [torch.tensor(1.0)]),
    "dicts ==": lambda x: x + ({"a": x[0]} == {"a": torch.tensor(1.0)}),
    "torch.equal": lambda x: x + torch.equal(x, torch.ones(3)),
    "torch.allclose": lambda x: x + torch.allclose(x, torch.ones(3)),
    "torch.is_nonzero": lambda x: x + torch.is_nonzero(x[0]),
    "bool": lambda x: x + bool(x[0]),
    "complex": lambda x: x + complex(x[0]).real,
    "index of a list": lambda x: x + [1, 2][x[0].long()],
    "range": lambda x: x + sum(range(x[0].long())),
    "and": lambda x: x + (x[0] and x[1]),
    "max by key": lambda x: x + max([x[0], x[1] * 2 - 1], key=lambda t: -t),
    "sorted": lambda x: x + sorted([x[0] * 2 - 1, x[1]])[0],
    "any": lambda x: x + any(x),
    "filter": lambda x: x + len(list(filter(None, x))),
    "in list of items": lambda x: x + (1.0 in x.tolist()),
    "tensordot by tensor": lambda x: torch.tensordot(x[None], x[:, None], dims=x[0].long()),
    "flag of a function": lambda x: F.dropout(x, 1.0, training=(x[0] > 0).item()),
    "flag inplace": lambda x: F.relu(x - 1, inplace=(x[0] > 0).item()) + x,
    "number for a flag": lambda x: F.dropout(x, 1.0, training=x[0].to(torch.uint8).item()),
}
CAPTURED: dict[str, Program] = {
    "min": lambda x: x + min(x[0], x[1] * 2),
    "max of a list": lambda x: x + max([x[0], x[1] * 2 - 1, x[2]]),
    "set by identity": lambda x: x + len({x[0], x[1]}),
    "dict by identity": lambda x: x + {x: 1}.get(x, 0),
    "reversed": lambda x: torch.stack(list(reversed(x))),
    "item": lambda x: x + x[0].item(),
    "int": lambda x: x + int(x[0]),
    "float": lambda x: x + float(x[0]),
    "operator.index": lambda x: x + operator.index(x[0].long()),
    "math.atan": lambda x: x + math.atan(x[0]),
    "truth as a number": lambda x: x + (x[0] > 0).item(),
    "truth as a factor": lambda x: x * (x[0] > 0).item(),
    "truth as an exponent": lambda x: (x + 2) ** (x[0] > 0).item(),
    "truth as a bound": lambda x: torch.clamp(x, min=(x[0] > 0).item()),
    "truth as a fill": lambda x: torch.full((2,), (x[0] > 0).item()),
    "unique": torch.unique,
    "in a literal": lambda x: x + (1 in torch.tensor([1, 2])),
    "literal in a literal": lambda x: x + (torch.tensor(3) in torch.tensor([1, 2])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(DataDependentError) as found:
        gp.export(REFUSED[name], (torch.ones(3),))
    assert "test_function_mode.py" in str(found.value.where)


@pytest.mark.parametrize("name", CAPTURED)
def test_right_on_other_data(name: str) -> None:
    ep = gp.export(CAPTURED[name], (torch.ones(3),))
    for data in (torch.ones(3), torch.zeros(3), torch.tensor([2.0, -1.0, 1.0])):
        compare(ep, CAPTURED[name], ((data,), {}))


def test_in_says_what_to_write() -> None:
    with pytest.raises(DataDependentError, match=r"\(tensor == element\).any\(\)"):
        gp.export(REFUSED["number in tensor"], (torch.ones(3),))


def test_a_draft_asserts_what_in_gave() -> None:
    program, report = gp.draft_export(REFUSED["number in tensor"], (torch.ones(3),))
    assert len(report) == 1
    compare(program, REFUSED["number in tensor"], ((torch.ones(3),), {}))
    with pytest.raises(RuntimeError, match="assertion failed"):
        program.module()(torch.zeros(3))


def swapping(x: torch.Tensor) -> torch.Tensor:
    """`swap=` is read within torch, where whether a size is 1 makes no difference."""
    near, far = x[None] * 2, x[None] * 2.5
    return F.triplet_margin_with_distance_loss(x[None], near, far, swap=x.shape[0] == 1)


def test_a_flag_from_a_size_is_the_users_branch() -> None:
    ep = gp.export(swapping, (torch.ones(3),), dynamic_shapes=({0: gp.Dim("b")},))
    compare(ep, swapping, ((torch.ones(5),), {}))
    with pytest.raises(RuntimeError, match="b != 1"):
        ep.module()(torch.ones(1))


def test_a_flag_from_a_size_that_is_one_in_the_example() -> None:
    with pytest.raises(ConstraintViolationError, match="specialized it to be a constant"):
        gp.export(swapping, (torch.ones(1),), dynamic_shapes=({0: gp.Dim("b")},))


def test_a_flag_from_data_in_a_branch_of_cond() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + (1 in t), lambda t: t - 1, (x,))

    with pytest.raises(DataDependentError):
        gp.export(program, (torch.ones(3),))
