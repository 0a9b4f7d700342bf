"""Results are memory of their own where eager's are: writing to one changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp


def literal(x: torch.Tensor, y: torch.Tensor) -> Any:
    numbers = torch.tensor([1.0, 2.0])
    return x + numbers, numbers


def literal_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.tensor([1.0, 2.0]).view(2, 1) * 1, torch.tensor([1.0, 2.0]).view(2, 1)


def copied(x: torch.Tensor, y: torch.Tensor) -> Any:
    new = torch.zeros_like(x)
    new.copy_(x)
    return new, x + 1


def copied_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    new = torch.empty(2)
    new[...] = x
    return new.view(2, 1), new.sum()


def copied_value(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x * 2
    return made, torch.empty_like(made).copy_(made)


def input_itself(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x, x.view(2, 1), y


def written_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.copy_(y)
    return x, y


def written_with_a_result(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x * 2
    x.copy_(made)
    return made


def written_with_another(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.copy_(y)
    return y


PROGRAMS = [
    literal,
    literal_view,
    copied,
    copied_view,
    copied_value,
    input_itself,
    written_input,
    written_with_a_result,
    written_with_another,
]


def memory(call: Callable[..., Any]) -> list[Any]:
    """Which of results and inputs show a write to which, over two calls."""
    x, y = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])
    found: list[Any] = []
    for _ in range(2):
        leaves = [*pytree.tree_leaves(call(x, y)), x, y]
        found.append([t.tolist() for t in leaves])
        for t in leaves[:-2]:
            t.add_(10)
            found.append([t.tolist() for t in leaves])
    return found


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_writing_to_results(f: Callable[..., Any]) -> None:
    ep = gp.export(f, (torch.ones(2), torch.ones(2)))
    assert memory(ep.module()) == memory(f)
    assert memory(ep.run_decompositions().module()) == memory(f)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_compiled(f: Callable[..., Any]) -> None:
    torch.compiler.reset()
    assert memory(torch.compile(f, backend="graphport")) == memory(f)


def test_a_buffer_that_is_given_an_input() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> Any:
            self.last.copy_(x)
            return self.last * 1, self.last

    x = torch.ones(2)
    module = gp.export(Model(), (x,)).module()
    _, last = module(x)
    last.add_(1)
    assert x.tolist() == [1, 1]


def test_gradients_go_through_the_copy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        new = torch.zeros_like(x)
        new.copy_(x)
        return new

    x = torch.ones(2, requires_grad=True)
    gp.export(f, (torch.ones(2),)).module()(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1]
