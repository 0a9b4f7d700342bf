"""Weights that sessions have taken in, and whether they are still what they were.

Torch counts writes to a tensor, but not those through `.data`. So a few numbers of each weight are
compared as well: cheap enough for each call, and hardly any write leaves them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Frozen:
    """Tensors by their place among the inputs of a graph."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        kept = {i: t for i, t in tensors.items() if _can_be_watched(t)}
        self.places = tuple(kept)
        self._rows = [(i, t, t.data_ptr(), t._version, *_samples(t)) for i, t in kept.items()]

    def differ(self, args: Sequence[Any]) -> bool:
        """Whether one is another tensor, lies elsewhere, or has other contents."""
        for place, t, address, version, memory, where, known in self._rows:
            if args[place] is not t or t._version != version or t.data_ptr() != address:
                return True
            if [memory[k] for k in where] != known:
                return True
        return False


def _can_be_watched(t: torch.Tensor) -> bool:
    return t.device.type == "cpu" and not t.is_inference() and t.layout is torch.strided


def _samples(t: torch.Tensor) -> tuple[Any, tuple[int, ...], list[int]]:
    """The octets of a tensor, some places among them, and what is there."""
    flat = t.detach().untyped_storage()
    count = flat.nbytes()
    if not count:
        return b"", (), []
    octets = torch.empty(0, dtype=torch.uint8).set_(flat)
    memory = memoryview(octets.numpy())
    if t.numel() == 0:
        return memory, (), []
    size = t.element_size()
    first = t.storage_offset() * size
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) * size
    # The octets of a number that change most: in a float, those of the mantissa.
    spots = (first, first + (last - first) // (2 * size) * size, last)
    where = tuple(min(spot + k, count - 1) for spot in spots for k in range(min(size, 4)))
    return memory, where, [memory[k] for k in where]
