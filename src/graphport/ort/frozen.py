"""Weights that sessions have taken in, and whether they are still what they were.

Torch counts writes to a tensor, but not those through `.data`. So a few numbers of each weight are
compared as well: cheap enough for each call, and hardly any write leaves them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch


class Frozen:
    """Tensors by their place among the inputs of a graph."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        kept = {i: t for i, t in tensors.items() if _can_be_watched(t)}
        self.places = tuple(kept)
        self._rows = [(i, t, t.data_ptr(), t._version, *_samples(t)) for i, t in kept.items()]

    def differ(self, args: Sequence[Any]) -> bool:
        """Whether one is another tensor, lies elsewhere, or has other contents."""
        for place, t, address, version, memory, (i, j, k), (a, b, c) in self._rows:
            if args[place] is not t or t._version != version or t.data_ptr() != address:
                return True
            if memory[i] != a or memory[j] != b or memory[k] != c:
                return True
        return False


def _can_be_watched(t: torch.Tensor) -> bool:
    return t.device.type == "cpu" and not t.is_inference() and t.layout is torch.strided


Three = tuple[int, int, int]
_FORMATS: dict[int, Literal["b", "h", "i"]] = {1: "b", 2: "h", 4: "i"}
"""Integers that numbers of so many octets are read as; of larger ones, the first 8 are."""


def _samples(t: torch.Tensor) -> tuple[Sequence[int], Three, Three]:
    """The numbers of a tensor as integers, three places among them, and what is there."""
    flat = t.detach().untyped_storage()
    size = t.element_size()
    if t.numel() == 0 or flat.nbytes() % size:
        return (0,), (0, 0, 0), (0, 0, 0)
    octets = torch.empty(0, dtype=torch.uint8).set_(flat)
    memory = memoryview(octets.numpy()).cast(_FORMATS.get(size, "q"))
    first = t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    wide = max(size // 8, 1)
    i, j, k = (spot * wide for spot in (first, (first + last) // 2, last))
    return memory, (i, j, k), (memory[i], memory[j], memory[k])
