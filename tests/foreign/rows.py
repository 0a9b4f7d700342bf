"""What a row of the survey is: a model or a pattern of a library, and sizes to run it at.

Each `rows_<library>.py` has a table of them. Dims that differ between the sizes are open, every
other one is fixed. Models are small and have random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Sizes = tuple[int, ...]


@dataclass
class Row:
    """Inputs by position or, in a dict, by keyword, as a function of the sizes."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...] | dict[str, Any]]
    sizes: tuple[Sizes, ...]
    """Of the example, then of the other runs."""
    refused: str = ""
    """The code of the error, where there is no sound program."""
    scale: float = 10.0
    """Of the tolerance for one operator: models have dozens in a row."""
    only_sizes: bool = False
    """Results that cannot be compared number by number: random ones, choices among equals."""


@dataclass
class Table:
    """The rows of a library."""

    rows: list[Row] = field(default_factory=list)

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.rows.append(Row(*args, **kwargs))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


class Call(nn.Module):
    """A function as a model: with the modules that it uses, as a user would write it."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Any, y: Any = None, z: Any = None) -> Any:
        return self.function(*self.parts, *(given for given in (x, y, z) if given is not None))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator())


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator())


def integers(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=generator())


def image(batch: int, height: int, width: int | None = None) -> tuple[Tensor]:
    return (noise(batch, 3, height, width or height),)


def batches(*others: int) -> Callable[[int], tuple[Sizes, ...]]:
    """Sizes in which the batch is open, of images or the like of one size."""
    return lambda size: tuple((n, size) for n in (2, *others))
