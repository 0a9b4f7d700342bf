"""Tensors without data that a user passes in: on the meta device, or torch's `FakeTensor`s.

Capture only ever describes the user's tensors, so that most of what it does is the same for them.
Here is the rest: sizes that are symbols of a torch `ShapeEnv` are taken as they are in the example
behind them (the hint), without leaving a guard there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphport.errors import InputError


def sizes_of(t: torch.Tensor) -> tuple[int, ...]:
    """The sizes of a tensor from outside of the program, as numbers."""
    sizes = tuple(t.shape)
    return sizes if _are_plain(sizes) else _numbers(sizes, "a size")


def strides_of(t: torch.Tensor) -> tuple[int, ...]:
    strides = tuple(t.stride())
    return strides if _are_plain(strides) else _numbers(strides, "a stride")


def offset_of(t: torch.Tensor) -> int:
    return int(number_of(t.storage_offset(), "the place in memory"))


def number_of(x: Any, what: str) -> Any:
    """A number from outside of the program: the hint of a symbol of torch's, or itself."""
    node = getattr(x, "node", None)
    if node is None:
        return x
    hint = node.hint
    if hint is None:
        raise InputError(
            f"{what} of an input is {x}, a symbol of torch's that stands for unknown data",
            fix="pass an example with sizes that are known, and open them with dynamic_shapes",
        )
    return hint


def _are_plain(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int for n in numbers)


def _numbers(symbols: tuple[Any, ...], what: str) -> tuple[int, ...]:
    return tuple(int(number_of(s, what)) for s in symbols)


def home_of(tensors: Iterable[Any]) -> torch.device | None:
    """Where a program is at home: the first device that is not the meta device, if there is one.

    A program that has tensors elsewhere too will get its weights, or its inputs, there.
    """
    devices = (t.device for t in tensors if isinstance(t, torch.Tensor))
    return next((d for d in devices if d.type != "meta"), None)


def memory_of(t: torch.Tensor) -> tuple[str, int] | None:
    """What tensors over the same memory have in common; None where nothing can be shared."""
    try:
        storage = t.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    if storage.device.type == "meta":  # no address, but an object
        return "object", storage._cdata
    address = storage.data_ptr()
    return ("address", address) if address else None
