"""Weights that sessions have taken in, and whether they are still what they were.

Torch counts writes to a tensor, but not those through `.data`. So a few numbers of each weight are
compared as well: cheap enough for each call, and hardly any write leaves them alone.

A call finds the caches full of weights, and everything that is looked at here costs a miss. So
nothing is looked at twice, and the loops are those of C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


class Frozen:
    """Tensors by their place among the inputs of a graph."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        kept = {i: t for i, t in tensors.items() if _can_be_watched(t)}
        self.places = tuple(kept)
        self._tensors = list(kept.values())
        self._storages = [t.untyped_storage() for t in self._tensors]
        """Kept, so that what is compared stays where it is, whatever becomes of the tensors."""
        self._versions = [*map(_version, self._tensors)]
        self._addresses = [*map(_address, self._tensors)]
        self._memory, self._spots = _memory([a for t in self._tensors for a in _samples(t)])
        self._numbers = self._memory.take(self._spots).tobytes()

    def differ(self, args: Sequence[Any]) -> bool:
        """Whether one is another tensor, lies elsewhere, or has other contents."""
        tensors = self._tensors
        return bool(tensors) and not (
            all(map(is_, map(args.__getitem__, self.places), tensors))
            and [*map(_version, tensors)] == self._versions
            # Before their memory is read: it may be gone.
            and [*map(_address, tensors)] == self._addresses
            and self._memory.take(self._spots).tobytes() == self._numbers
        )


def _can_be_watched(t: torch.Tensor) -> bool:
    return t.device.type == "cpu" and not t.is_inference() and t.layout is torch.strided


def _samples(t: torch.Tensor) -> list[int]:
    """Where three of its numbers are: the first, one in the middle, and the last."""
    if t.numel() == 0:
        return []
    steps = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    size = t.element_size()
    starts = (t.data_ptr() + size * place for place in (0, steps // 2, steps))
    return [word for a in starts for word in range(a // _WORD, (a + size - 1) // _WORD + 1)]


_WORD = 4
"""Octets that are read at once, at multiples of it: never beyond a page that a number is on."""


def _memory(words: Sequence[int]) -> tuple[Any, Any]:
    """The memory of the process from the first of some words to the last, and where they are.

    As one array, so that they are gathered by one call. The rest of it is never read.
    """
    first, last = (min(words), max(words)) if words else (0, -1)
    span = (ctypes.c_int32 * (last - first + 1)).from_address(first * _WORD)
    return np.ctypeslib.as_array(span), np.array([word - first for word in words], dtype=np.int64)
