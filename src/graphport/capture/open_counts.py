"""Functions of torch's that take a count as a plain integer, for a count that is a size.

Their schemas have no place for a symbolic number, and torch would ask for the one of the example.
So the tensor is put together by operators that take sizes, with what is special about a count of 0
or 1 in the formula. What is not here keeps its count: an error says where, if the spec says
otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphport.symbolic.bridge import sym_ite

aten = torch.ops.aten
Function = Callable[..., Any]


def _places(count: Any, dtype: torch.dtype | None, device: Any) -> Tensor:
    """0, 1, 2, ... as floats."""
    return torch.arange(count, dtype=dtype or torch.get_default_dtype(), device=device)


# Windows


def _window(shape: Function) -> Function:
    """A window of a shape, which is given the places and the last of them.

    A periodic one is all but the last value of a longer one. One value is 1, whatever the shape.
    """

    @functools.wraps(shape)
    def window(
        window_length: Any, periodic: bool = True, *numbers: float, dtype: Any = None,
        device: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        if dtype is not None and not dtype.is_floating_point:
            return NotImplemented
        shaping = {k: v for k, v in more.items() if k in ("alpha", "beta")}
        last = torch.sym_max(window_length if periodic else window_length - 1, 1)
        made = shape(_places(window_length, dtype, device), last, *numbers, **shaping)
        single = sym_ite(window_length == 1, 1.0, 0.0)
        return made * (1.0 - single) + single

    return window


@_window
def hamming_window(places: Tensor, last: Any, alpha: float = 0.54, beta: float = 0.46) -> Tensor:
    return (places * (2 * math.pi / last)).cos() * -beta + alpha


@_window
def hann_window(places: Tensor, last: Any) -> Tensor:
    return (places * (2 * math.pi / last)).cos() * -0.5 + 0.5


@_window
def bartlett_window(places: Tensor, last: Any) -> Tensor:
    line = places * (2 / last)
    return torch.where(places < last // 2 + 1, line, 2 - line)


@_window
def blackman_window(places: Tensor, last: Any) -> Tensor:
    line = places * (math.pi / last)
    return (line * 4).cos() * 0.08 - (line * 2).cos() * 0.5 + 0.42


@_window
def kaiser_window(places: Tensor, last: Any, beta: float = 12.0) -> Tensor:
    apart = places * (2 / last) - 1
    top = torch.i0(torch.scalar_tensor(beta, dtype=places.dtype, device=places.device))
    return torch.i0((1 - apart * apart).clamp(min=0).sqrt() * beta) / top


# Lines


def fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    places = _places(n, dtype, device)
    return torch.where(places < (n + 1) // 2, places, places - n) * _frequency(n, d)


def rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    return _places(n // 2 + 1, dtype, device) * _frequency(n, d)


def _frequency(n: Any, d: float) -> Any:
    return sym_ite(n == 0, math.inf, 1.0 / (torch.sym_max(n, 1) * d))


def vander(x: Tensor, N: Any = None, increasing: bool = False) -> Any:
    """Columns of powers: the first is 1, each other the one before it times x."""
    if x.dim() != 1:
        return NotImplemented
    columns = torch.arange(x.shape[0] if N is None else N, device=x.device)
    factors = x.unsqueeze(1).to(torch.promote_types(x.dtype, torch.int64))
    powers = torch.where(columns == 0, torch.ones_like(factors), factors).cumprod(1)
    return powers if increasing else powers.flip(1)


# Triangles


def tril_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, device: Any = None, **_: Any
) -> Any:
    mask = torch.ones(row, col, dtype=torch.bool, device=device).tril(offset)
    return _found(mask, _count_below(row, col, offset), dtype)


def triu_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, device: Any = None, **_: Any
) -> Any:
    mask = torch.ones(row, col, dtype=torch.bool, device=device).triu(offset)
    return _found(mask, row * col - _count_below(row, col, offset - 1), dtype)


def _found(mask: Tensor, count: Any, dtype: Any) -> Tensor:
    rows, columns = torch.nonzero_static(mask, size=count).unbind(1)
    return torch.stack([rows, columns]).to(dtype or torch.int64)


def _count_below(row: Any, col: Any, offset: Any) -> Any:
    """How many elements are on the diagonal of this number and below it.

    From row to row there is one more, from none to a whole row: the sum of the rows that have any
    is a triangle, and the rows past the whole one make it too large by another one.
    """

    def triangle(n: Any) -> Any:
        return n * (n + 1) // 2

    def rows(from_: Any) -> Any:
        return torch.sym_max(row + from_, 0)

    above = torch.sym_max(offset, 0)
    return (
        triangle(rows(offset)) - triangle(above)
        - triangle(rows(offset - col)) + triangle(torch.sym_max(above - col, 0))
    )  # fmt: skip


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    """Pairs only."""
    if r != 2 or input.dim() != 1:
        return NotImplemented
    count = input.shape[0]
    one, other = triu_indices(count, count, 0 if with_replacement else 1, device=input.device)
    return torch.stack([input[one], input[other]], 1)


OPEN: dict[Any, Function] = {
    torch.hann_window: hann_window,
    torch.hamming_window: hamming_window,
    torch.bartlett_window: bartlett_window,
    torch.blackman_window: blackman_window,
    torch.kaiser_window: kaiser_window,
    torch.fft.fftfreq: fftfreq,
    torch.fft.rfftfreq: rfftfreq,
    torch.vander: vander,
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
    torch.combinations: combinations,
}
