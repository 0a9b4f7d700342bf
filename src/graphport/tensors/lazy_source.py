"""Sources of a lazy tensor's data: file regions, held tensors, deferred operators.

A source describes the bytes of one piece of memory: a region of a file, a tensor of the user's, or
an operator to be run on other sources. `storage()` makes those bytes anew each time, so that what a
reader does with them stays its own; nothing is kept in between. Sources never change: whoever
writes to memory gives it another source.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from graphport.compat.torch import OpOverload, conj, neg_view, pytree
from graphport.errors import NoDataError, SerializationError
from graphport.types import Args, Argument, Function

_CHUNK = 16 << 20  # bytes; large enough for the speed of the disk, small beside a model
_MAX_COPIED_BYTES = (
    64 << 10
)  # bytes; below this a tensor of the user's is copied rather than watched


class Geometry(NamedTuple):
    """Sizes, strides and storage offset of a tensor."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_conj: bool = False
    """Whether the tensor shows the conjugates of what is in memory."""
    is_neg: bool = False

    @classmethod
    def of(cls, t: torch.Tensor) -> Geometry:
        return cls(
            t.dtype, tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.is_conj(), t.is_neg()
        )

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are the tensor, row by row."""
        step = 1
        if self.is_conj or self.is_neg:
            return False
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """A tensor of this geometry over the given storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        lies = empty.set_(storage, self.offset, self.sizes, self.strides)
        lies = conj(lies) if self.is_conj else lies
        return neg_view(lies) if self.is_neg else lies


class Source(Protocol):
    """The bytes of one piece of memory."""

    @property
    def is_saved(self) -> bool:
        """Whether some of it is in a file: data that a model was given, not made by its code."""

    @property
    def is_random(self) -> bool:
        """Whether the bytes are others each time they are made: drawn, or never written."""

    def storage(self) -> torch.UntypedStorage:
        """The bytes, for the caller to keep."""


@dataclass(frozen=True)
class FileRegion:
    """Bytes in a file. The file must still be what it was when the region was found."""

    path: Path
    name: str
    offset: int
    nbytes: int
    stamp: tuple[int, int]
    """Size and time of change of the file."""

    is_saved = True
    is_random = False

    @staticmethod
    def stamp_of(path: Path) -> tuple[int, int]:
        """Refuses what is no plain file: opening a pipe waits for somebody to write to it."""
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise SerializationError(f"{path} is no regular file")
        return found.st_size, found.st_mtime_ns

    def chunks(self, limit: int = _CHUNK) -> Iterator[bytes]:
        """The bytes in order, a piece at a time."""
        with self._open_file() as file:
            left = self.nbytes
            while left:
                piece = file.read(min(left, limit))
                left -= len(piece)
                if not piece:
                    raise self._changed("it ends before the data does")
                yield piece

    def storage(self) -> torch.UntypedStorage:
        made = torch.UntypedStorage(self.nbytes)
        if self.nbytes:
            view = memoryview(Geometry(torch.uint8, (self.nbytes,), (1,), 0).over(made).numpy())
            with self._open_file() as file:
                if file.readinto(view) != self.nbytes:
                    raise self._changed("it ends before the data does")
        return made

    def _open_file(self) -> Argument:
        try:
            if self.stamp_of(self.path) != self.stamp:
                raise self._changed("it has been written to since")
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115  the callers close it
        except OSError as error:
            raise self._changed(str(error)) from None
        file.seek(self.offset)
        return file

    def _changed(self, why: str) -> NoDataError:
        return NoDataError(
            f"the data of {self.name!r} was to be read from {self.path}, but {why}",
            fix="load the checkpoint again, and keep the file until the data has been used",
        )


class HeldTensor:
    """A tensor that the user has; small ones are copied, of others it is known if they change.

    Unless they are written to behind torch's back: through `.data`, or an array of numpy's.
    """

    is_saved = is_random = False

    def __init__(self, t: torch.Tensor, geometry: Geometry | None = None) -> None:
        self.geometry = geometry or Geometry.of(t)
        watched = t.numel() * t.element_size() > _MAX_COPIED_BYTES and not t.is_inference()
        with torch.inference_mode(False):  # what is made in that mode has no version
            self.tensor = t if watched else t.detach().clone()
        self.version = self.tensor._version

    def storage(self) -> torch.UntypedStorage:
        if self.tensor._version != self.version:
            raise NoDataError(
                f"a tensor of size {list(self.tensor.shape)} was written to after it had been "
                "copied into one without memory, which refers to it",
                fix="copy from x.clone() instead of x",
            )
        return copy_to_storage(self.tensor, self.geometry)


@dataclass(frozen=True)
class ShapeOperand:
    """A tensor of which an operator takes no more than sizes, layout and dtype."""

    geometry: Geometry


class TensorSnapshot:
    """A snapshot of a weightless tensor."""

    def __init__(self, source: Source, geometry: Geometry) -> None:
        self.source = source
        self.geometry = geometry

    def read(self, memory: dict[int, torch.UntypedStorage] | None = None) -> torch.Tensor:
        """The data; windows that are read with one `memory` share what their tensors shared."""
        memory = {} if memory is None else memory
        storage = memory.get(id(self.source))
        if storage is None:
            storage = memory[id(self.source)] = self.source.storage()
        return self.geometry.over(storage)


class DeferredCall:
    """The result of an operator, or one of its results, laid out in memory as was foreseen."""

    def __init__(
        self, op: Function, args: Args, kwargs: Argument, geometry: Geometry, index: int | None
    ) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        self.geometry, self.index = geometry, index
        self.is_saved = _has_source("is_saved", (args, kwargs))
        self.is_random = _is_random(op) or _has_source("is_random", (args, kwargs))

    def storage(self) -> torch.UntypedStorage:
        args, kwargs = _materialise_arguments((self.args, self.kwargs), {})
        out = self.op(*args, **kwargs)
        return copy_to_storage(out if self.index is None else out[self.index], self.geometry)


class DeferredWrite:
    """Memory after an operator has written to it."""

    def __init__(self, op: Function, args: Args, kwargs: Argument, before: Source) -> None:
        self.op, self.args, self.kwargs, self.before = op, args, kwargs, before
        self.is_saved = before.is_saved or _has_source("is_saved", (args, kwargs))
        self.is_random = _is_random(op) or _has_source("is_random", (args, kwargs))

    def storage(self) -> torch.UntypedStorage:
        memory: dict[int, torch.UntypedStorage] = {}
        args, kwargs = _materialise_arguments((self.args, self.kwargs), memory)
        self.op(*args, **kwargs)
        return memory[id(self.before)]


def copy_to_storage(t: torch.Tensor, geometry: Geometry) -> torch.UntypedStorage:
    """A new storage, in which a tensor of these values has this geometry."""
    sizes, strides = geometry.sizes, geometry.strides
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if t.numel() else 0
    made = torch.UntypedStorage((geometry.offset + span) * geometry.dtype.itemsize)
    if math.prod(sizes):
        geometry.over(made).copy_(t.detach())
    return made


def convert_for_copy(t: torch.Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What `copy_` writes."""
    return t.to(dtype).expand(sizes)


def make_filled(lies: Geometry, value: Argument = 0) -> torch.Tensor:
    """What `fill_` and `zero_` write."""
    return torch.full((), value, dtype=lies.dtype, device="cpu").expand(lies.sizes)


def _has_source(what: str, arguments: Argument) -> bool:
    windows = (x for x in pytree.tree_leaves(arguments) if isinstance(x, TensorSnapshot))
    return any(getattr(w.source, what) for w in windows)


def _is_random(op: OpOverload) -> bool:
    tags = getattr(op, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or "empty" in op.__name__


def _materialise_arguments(
    arguments: Argument, memory: dict[int, torch.UntypedStorage]
) -> Argument:
    """Arguments as an operator takes them, with data; everything is computed on the CPU."""

    def one(x: Argument) -> Argument:
        if isinstance(x, TensorSnapshot):
            return x.read(memory)
        if isinstance(x, HeldTensor):
            return x.geometry.over(x.storage())
        if isinstance(x, ShapeOperand):
            lies = x.geometry
            return torch.empty_strided(lies.sizes, lies.strides, dtype=lies.dtype, device="cpu")
        return torch.device("cpu") if isinstance(x, torch.device) else x

    return pytree.tree_map(one, arguments)
