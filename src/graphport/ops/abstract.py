"""`Abstract`: what capture knows of a tensor without its data.

Sizes and strides are plain ints or symbolic expressions. A contiguous tensor keeps no strides: they
are computed when asked for, because almost nobody asks and the products are what costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphport.symbolic import Expr

Size = int | Expr
Sizes = tuple[Size, ...]


def row_major(sizes: Sequence[Size]) -> Sizes:
    """Strides of a contiguous tensor; like torch, a size of 0 counts as 1."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * (size or 1) if type(size) is int else step * size
    strides.reverse()
    return tuple(strides)


def channels_last(sizes: Sequence[Size]) -> Sizes:
    """Strides of an N,C,spatial... tensor whose channels vary fastest."""
    order = [0, *range(2, len(sizes)), 1]
    return permuted(sizes, order)


def permuted(sizes: Sequence[Size], order: Sequence[int]) -> Sizes:
    """Dense strides in which `order` lists the dims from the slowest to the fastest."""
    packed = row_major([sizes[i] for i in order])
    strides: list[Size] = [0] * len(sizes)
    for stride, dim in zip(packed, order, strict=True):
        strides[dim] = stride
    return tuple(strides)


class Abstract:
    """Sizes, strides, dtype and device of a tensor. Immutable by convention."""

    __slots__ = ("_strides", "device", "dtype", "offset", "sizes")

    sizes: Sizes
    _strides: Sizes | None
    dtype: torch.dtype
    device: torch.device
    offset: Size

    def __init__(
        self,
        sizes: Sizes,
        dtype: torch.dtype,
        device: torch.device,
        strides: Sizes | None = None,
        offset: Size = 0,
    ) -> None:
        self.sizes = sizes
        self.dtype = dtype
        self.device = device
        self._strides = strides
        self.offset = offset

    @property
    def strides(self) -> Sizes:
        if self._strides is None:
            return row_major(self.sizes)
        return self._strides

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def size(self, dim: int) -> Size:
        return self.sizes[dim]

    def like(self, sizes: Sizes | None = None, dtype: torch.dtype | None = None) -> Abstract:
        """A fresh contiguous tensor; sizes and dtype as here unless given."""
        return Abstract(self.sizes if sizes is None else sizes, dtype or self.dtype, self.device)

    def view(self, sizes: Sizes, strides: Sizes | None, offset: Size | None = None) -> Abstract:
        """The same memory seen with other sizes and strides."""
        return Abstract(
            sizes, self.dtype, self.device, strides, self.offset if offset is None else offset
        )

    @property
    def is_contiguous(self) -> bool:
        """Provably contiguous: sizes of 1 do not matter."""
        return self._strides is None or matches(self.sizes, self._strides, row_major(self.sizes))

    @property
    def is_channels_last(self) -> bool:
        """Channels-last as torch's kernels find by strides; of symbolic sizes, provably so."""
        if self._strides is None or self.rank not in (4, 5):
            return False
        # Of volumes, kernels differ where both formats fit.
        if self.rank == 4 and all(type(n) is int for n in (*self.sizes, *self._strides)):
            return _channels_vary_fastest(self.sizes, self._strides)  # type: ignore[arg-type]
        return matches(self.sizes, self._strides, channels_last(self.sizes)) and not (
            self.is_contiguous
        )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, self.sizes))}]"


def matches(sizes: Sizes, strides: Sizes, expected: Sizes) -> bool:
    """Whether strides are those expected, wherever a size is not 1."""
    return all(
        stride is want or stride == want or size == 1
        for size, stride, want in zip(sizes, strides, expected, strict=True)
    )


def _channels_vary_fastest(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """torch's `suggest_memory_format`, which has an answer also where sizes of 1 allow several."""
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * sizes[d]
    return True
