"""Sequences of numbers whose length is symbolic: ranges, and lists of what tensors hold.

As a whole they stay symbolic: their length, their largest element, the tensor that they make. To
iterate over one fixes its length.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graphport.types import Argument


class SymbolicSequence(abc.ABC):
    """See the module."""

    kind: type
    """What it is in eager."""
    length: Argument

    @abc.abstractmethod
    def as_tensor(self, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        """Its elements."""

    @abc.abstractmethod
    def _fix(self) -> Sequence[Argument]:
        """As one of Python's own: its length is fixed."""

    def __len__(self) -> int:
        return len(self._fix())

    def __iter__(self) -> Iterator[Argument]:
        return iter(self._fix())

    def __reversed__(self) -> Iterator[Argument]:
        return reversed(self._fix())

    def __getitem__(self, i: Argument) -> Argument:
        return self._fix()[i]

    def __contains__(self, x: object) -> bool:
        return x in self._fix()

    def __eq__(self, other: object) -> bool:
        return self is other or self._fix() == other

    __hash__ = None  # type: ignore[assignment]  # as lists


class SymbolicRange(SymbolicSequence):
    """A range whose ends are symbolic."""

    kind = range

    def __init__(self, *bounds: Argument) -> None:
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        self.start, self.stop, self.step = start, stop, step

    @property
    def length(self) -> Argument:
        return torch.sym_max(-((self.start - self.stop) // self.step), 0)

    def as_tensor(self, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        return torch.arange(self.start, self.stop, self.step, dtype=dtype, device=device)

    def _fix(self) -> range:
        return range(self.start, self.stop, self.step)

    def __repr__(self) -> str:
        return f"range({self.start}, {self.stop}, {self.step})"


class SymbolicList(SymbolicSequence):
    """A list of the elements of a tensor, along its first dim."""

    kind = list

    def __init__(self, elements: torch.Tensor) -> None:
        self._elements = elements

    @property
    def length(self) -> Argument:
        return self._elements.shape[0]

    def as_tensor(self, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        return self._elements.to(dtype=dtype, device=device)

    def _fix(self) -> list[Argument]:
        return [element.tolist() for element in self._elements.unbind()]

    def __getitem__(self, i: Argument) -> Argument:
        found = self._elements[i]
        return SymbolicList(found) if isinstance(i, slice) else found.tolist()
