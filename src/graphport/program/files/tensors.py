"""Tensors and the storages that they lie in.

A storage is written once, however many tensors show it: tied weights, views and slices share their
memory again after loading, and keep their strides. Only the part of a storage that some tensor
reaches is written. A storage that is one contiguous tensor is an entry of its dtype and shape, for
other tools to read; any other is an entry of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

from graphport.errors import SerializationError
from graphport.program.files import limits, safetensors
from graphport.program.files.items import Item, shown
from graphport.program.files.safetensors import Entry
from graphport.program.files.values import DTYPES, device, dtype

_DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
_CHUNK = 1 << 24
# The start of a part of a storage is rounded down to this: the width of the widest dtype.
_WIDEST = 16


def reach(sizes: Any, strides: Any) -> int:
    """How many elements of its storage a tensor spans, from its first one."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


# Writing


@dataclass
class _Storage:
    """A storage to be written: the bytes from `start` to `end`."""

    name: str
    first: torch.Tensor
    start: int
    end: int
    rows: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    """Tensors in it: their rows of the table, and their offsets in bytes."""

    def described(self) -> tuple[str, str, list[int], int]:
        """(name, dtype, shape, bytes), for the header."""
        t, size = self.first, self.end - self.start
        name = safetensors.NAMES.get(t.dtype)
        whole = size == t.numel() * t.element_size() and t.is_contiguous()
        shifted = size > 0 and t.storage_offset() * t.element_size() != self.start
        if name is None or not whole or shifted:
            return self.name, "U8", [size], size
        return self.name, name, list(t.shape), size

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, without a copy of what is in this computer's memory."""
        if self.end == self.start:
            return
        storage = self.first.untyped_storage()
        if storage.device.type != "cpu":
            storage = storage.cpu()
        octets = torch.empty(0, dtype=torch.uint8).set_(storage)
        view = memoryview(octets.numpy())
        for at in range(self.start, self.end, _CHUNK):
            yield view[at : min(at + _CHUNK, self.end)]


class TensorTable:
    """The tensors of a program, numbered as they are met."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []
        self._storages: dict[int, _Storage] = {}
        self._names: set[str] = {"__metadata__"}

    def __call__(self, t: torch.Tensor, name: str, where: str) -> int:
        """The number of a tensor; `name` is for its storage, if that is met for the first time."""
        if id(t) not in self._numbers:
            _check(t, where)
            row: dict[str, Any] = {
                "dtype": _DTYPE_NAMES[t.dtype],
                "device": str(t.device),
                "sizes": list(t.shape),
                "strides": list(t.stride()),
                "requires_grad": t.requires_grad,
                "parameter": isinstance(t, nn.Parameter),
            }
            if t.device.type != "meta":
                self._place(t, name, row)
            self._numbers[id(t)] = len(self.rows)
            self._kept.append(t)
            self.rows.append(row)
        return self._numbers[id(t)]

    def _place(self, t: torch.Tensor, name: str, row: dict[str, Any]) -> None:
        data = t.detach().resolve_conj().resolve_neg()
        if list(data.stride()) != row["strides"]:
            row["strides"] = list(data.stride())
        self._kept.append(data)
        width = data.element_size()
        start = data.storage_offset() * width
        end = start + reach(data.shape, data.stride()) * width
        if end == start:
            start = end = 0
        floor = start // _WIDEST * _WIDEST
        key = data.untyped_storage()._cdata
        storage = self._storages.get(key)
        if storage is None:
            storage = self._storages[key] = _Storage(self._name(name), data, floor, end)
        elif storage.start == storage.end:
            storage.start, storage.end = floor, end
        elif start < end:
            storage.start, storage.end = min(storage.start, floor), max(storage.end, end)
        row["storage"] = storage.name
        storage.rows.append((row, start))

    def _name(self, wanted: str) -> str:
        name, n = wanted, 0
        while name in self._names or name.startswith(safetensors.PADDING):
            n += 1
            name = f"storage.{wanted}.{n}"
        self._names.add(name)
        return name

    def finish(self) -> Iterator[memoryview | bytes]:
        """Tell every tensor its place. Gives the pieces of the file of tensors."""
        storages = {s.name: s for s in self._storages.values()}
        for storage in storages.values():
            for row, start in storage.rows:
                width = DTYPES[row["dtype"]].itemsize
                row["offset"] = max(0, start - storage.start) // width
        entries = safetensors.arrange(s.described() for s in storages.values())
        return _pieces(entries, storages)


def _pieces(entries: list[Entry], storages: dict[str, _Storage]) -> Iterator[memoryview | bytes]:
    yield safetensors.header(entries)
    for entry in entries:
        if entry.name in storages:
            yield from storages[entry.name].pieces()
        else:
            yield bytes(entry.size)


def _check(t: torch.Tensor, where: str) -> None:
    """Refuse what has no plain data."""
    kind = type(t)
    if kind is not torch.Tensor and kind is not nn.Parameter:
        raise SerializationError(
            f"a tensor of the class {kind.__module__}.{kind.__qualname__} has no data that can be "
            "saved",
            where=where,
            fix="give the program real tensors: load the weights before you save it",
        )
    if t.layout is not torch.strided or t.is_quantized or t.dtype not in _DTYPE_NAMES:
        raise SerializationError(
            f"a tensor of dtype {t.dtype} and layout {t.layout} cannot be saved", where=where
        )


# Reading


class Tensors:
    """The tensors of a file, by their numbers. Their data stays where it is in `data`."""

    def __init__(self, table: Item, entries: dict[str, Entry], data: Any, start: int) -> None:
        """`data` is the whole file, as a writable buffer; the entries count from `start`."""
        self._entries = entries
        self._data = data
        self._start = start
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._found = [self._read(item) for item in table.list()]

    def __call__(self, item: Item) -> torch.Tensor:
        return self._found[item.index(len(self._found), "tensor")]

    def _read(self, item: Item) -> torch.Tensor:
        fields = item.fields(
            "dtype", "device", "sizes", "strides", "requires_grad", "parameter",
            optional=("storage", "offset"),
        )  # fmt: skip
        kind, where = dtype(fields["dtype"]), device(fields["device"])
        sizes = [size.size() for size in fields["sizes"].list(most=limits.RANK)]
        strides = [stride.size() for stride in fields["strides"].list(len(sizes))]
        if prod(size or 1 for size in sizes) >= limits.SIZE:
            fields["sizes"].fail(f"a tensor of {shown(sizes)} has too many elements")
        grad, parameter = fields["requires_grad"].truth(), fields["parameter"].truth()
        if grad and not (kind.is_floating_point or kind.is_complex):
            item.fail(f"a tensor of dtype {fields['dtype'].value} cannot require gradients")
        try:
            if where.type == "meta":
                t = torch.empty_strided(sizes, strides, dtype=kind, device=where)
            else:
                t = self._view(item, fields, kind, sizes, strides)
                t = t if where.type == "cpu" else t.to(where)
        except (RuntimeError, AssertionError) as error:
            item.fail(f"the tensor cannot be made: {str(error).splitlines()[0]}")
        return nn.Parameter(t, grad) if parameter else t.requires_grad_(grad)

    def _view(
        self, item: Item, fields: dict[str, Item], kind: torch.dtype, sizes: Any, strides: Any
    ) -> torch.Tensor:
        if "storage" not in fields or "offset" not in fields:
            item.fail("a tensor with data has a storage and an offset")
        name, offset = fields["storage"].text(), fields["offset"].size()
        entry = self._entries.get(name)
        if entry is None:
            fields["storage"].fail(f"there is no tensor {shown(name)} in the file of tensors")
        needed = reach(sizes, strides)
        if (offset + needed) * kind.itemsize > entry.size and needed:
            item.fail(
                f"the tensor reaches beyond its storage {shown(name)}, which has {entry.size} bytes"
            )
        if prod(sizes) > needed and prod(sizes) * kind.itemsize > limits.OVERLAPPING_BYTES:
            fields["sizes"].fail(f"an expanded tensor of {shown(sizes)} is too large")
        storage = self._storage(fields["storage"], entry)
        return torch.empty(0, dtype=kind).set_(storage, offset if needed else 0, sizes, strides)

    def _storage(self, item: Item, entry: Entry) -> torch.UntypedStorage:
        """The storage of an entry: one for all tensors in it."""
        found = self._storages.get(entry.name)
        if found is None:
            start = self._start + entry.start
            if start % limits.ALIGNMENT:
                item.fail(f"the data of {shown(entry.name)} does not start at a multiple of 64")
            data = torch.empty(0, dtype=torch.uint8)
            if entry.size:
                data = torch.frombuffer(
                    self._data, dtype=torch.uint8, count=entry.size, offset=start
                )
            found = self._storages[entry.name] = data.untyped_storage()
        return found
