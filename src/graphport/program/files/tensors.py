"""Encodes and reads tensors and the storages that they share, in the safetensors format.

A storage is written once, however many tensors show it: tied weights, views and slices share their
memory again after loading, and keep their strides. Only the part of a storage that some tensor
reaches is written. A storage that is one contiguous tensor is an entry of its dtype and shape, for
other tools to read; any other is an entry of bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

from graphport.errors import SerializationError
from graphport.program.files import json_reader
from graphport.program.files.json_reader import Item, format_excerpt, parse_json
from graphport.program.files.values import DTYPES, read_device, read_dtype
from graphport.tensors.concrete import count_spanned

_DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
_CHUNK = 1 << 24
# The start of a part of a storage is rounded down to this: the width of the widest dtype.
_WIDEST_ITEM = 16


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
        name = DTYPE_NAMES.get(t.dtype)
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
            _require_plain_data(t, where)
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

    def _place(self, t: torch.Tensor, name: str, row: dict[str, object]) -> None:
        data = t.detach().resolve_conj().resolve_neg()
        if list(data.stride()) != row["strides"]:
            row["strides"] = list(data.stride())
        self._kept.append(data)
        width = data.element_size()
        start = data.storage_offset() * width
        end = start + count_spanned(data.shape, data.stride()) * width
        if end == start:
            start = end = 0
        floor = start // _WIDEST_ITEM * _WIDEST_ITEM
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
        while name in self._names or name.startswith(PADDING):
            n += 1
            name = f"storage.{wanted}.{n}"
        self._names.add(name)
        return name

    def finish(self) -> Iterator[memoryview | bytes]:
        """Assign the offset of every tensor. The chunks of the file of tensors."""
        storages = {s.name: s for s in self._storages.values()}
        for storage in storages.values():
            for row, start in storage.rows:
                width = DTYPES[row["dtype"]].itemsize
                row["offset"] = max(0, start - storage.start) // width
        entries = arrange_entries(s.described() for s in storages.values())
        return _encode_chunks(entries, storages)


def _encode_chunks(
    entries: list[Entry], storages: dict[str, _Storage]
) -> Iterator[memoryview | bytes]:
    yield encode_header(entries)
    for entry in entries:
        if entry.name in storages:
            yield from storages[entry.name].pieces()
        else:
            yield bytes(entry.size)


def _require_plain_data(t: torch.Tensor, where: str) -> None:
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

    def __init__(self, table: Item, entries: dict[str, Entry], data: object, start: int) -> None:
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
            "dtype",
            "device",
            "sizes",
            "strides",
            "requires_grad",
            "parameter",
            optional=("storage", "offset"),
        )
        kind, where = read_dtype(fields["dtype"]), read_device(fields["device"])
        sizes = [size.size() for size in fields["sizes"].list(most=json_reader.RANK)]
        strides = [stride.size() for stride in fields["strides"].list(len(sizes))]
        if prod(size or 1 for size in sizes) >= json_reader.SIZE:
            fields["sizes"].fail(f"a tensor of {format_excerpt(sizes)} has too many elements")
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
            fields["storage"].fail(
                f"there is no tensor {format_excerpt(name)} in the file of tensors"
            )
        needed = count_spanned(sizes, strides)
        if (offset + needed) * kind.itemsize > entry.size and needed:
            item.fail(
                f"the tensor reaches beyond its storage {format_excerpt(name)}, which has "
                f"{entry.size} bytes"
            )
        if prod(sizes) > needed and prod(sizes) * kind.itemsize > json_reader.OVERLAPPING_BYTES:
            fields["sizes"].fail(f"an expanded tensor of {format_excerpt(sizes)} is too large")
        storage = self._storage(fields["storage"], entry)
        return torch.empty(0, dtype=kind).set_(storage, offset if needed else 0, sizes, strides)

    def _storage(self, item: Item, entry: Entry) -> torch.UntypedStorage:
        """The storage of an entry: one for all tensors in it."""
        found = self._storages.get(entry.name)
        if found is None:
            start = self._start + entry.start
            if start % json_reader.ALIGNMENT:
                item.fail(
                    f"the data of {format_excerpt(entry.name)} does not start at a multiple of 64"
                )
            data = torch.empty(0, dtype=torch.uint8)
            if entry.size:
                data = torch.frombuffer(
                    self._data, dtype=torch.uint8, count=entry.size, offset=start
                )
            found = self._storages[entry.name] = data.untyped_storage()
        return found


# The safetensors format: a length, a header in JSON, and the data of all tensors.
#
# Entries follow each other without a gap, as the format wants it. To start each at a multiple of 64
# bytes, entries of zeros are put between them; their names start with `padding.`.

_LENGTH = struct.Struct("<Q")
PADDING = "padding."

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
"""Of the dtypes that the format has; others are written as bytes."""

_ITEM_BYTES = {name: dtype.itemsize for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of the file: `start` and `size` in bytes of the data."""

    name: str
    dtype: str
    shape: Sequence[int]
    start: int
    size: int


def arrange_entries(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> list[Entry]:
    """Entries for (name, dtype, shape, bytes), one after the other, aligned."""
    entries: list[Entry] = []
    at = 0
    for name, dtype, shape, size in tensors:
        gap = -at % json_reader.ALIGNMENT
        if gap:
            entries.append(Entry(f"{PADDING}{len(entries)}", "U8", [gap], at, gap))
        entries.append(Entry(name, dtype, shape, at + gap, size))
        at += gap + size
    return entries


def encode_header(entries: Iterable[Entry]) -> bytes:
    """The start of the file, up to where the data is aligned."""
    rows: dict[str, Any] = {
        e.name: {
            "dtype": e.dtype,
            "shape": list(e.shape),
            "data_offsets": [e.start, e.start + e.size],
        }
        for e in entries
    }
    text = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % json_reader.ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def read_header(data: memoryview, place: str) -> tuple[dict[str, Entry], int]:
    """The entries by name, and where in `data` their bytes start."""
    if len(data) < _LENGTH.size:
        raise SerializationError("the header is missing: truncated", where=place)
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    if length > json_reader.HEADER_BYTES or start > len(data):
        raise SerializationError(
            f"the header says that it has {length} bytes, of {len(data)} in all", where=place
        )
    return parse_header(data[_LENGTH.size : start], len(data) - start, place)[0], start


def parse_header(
    text: bytes | memoryview, nbytes: int, place: str, widths: Mapping[str, int] = _ITEM_BYTES
) -> tuple[dict[str, Entry], dict[str, str] | None]:
    """What a header says of the data after it, of so many bytes; and what its writer has noted."""
    rows = parse_json(text, place).named()
    notes = rows.pop("__metadata__", None)
    entries = {name: _parse_entry(name, item, widths) for name, item in rows.items()}
    end = 0
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.size)):
        if entry.start != end:
            how = "overlaps" if entry.start < end else "leaves a gap to"
            rows[entry.name].fail(f"the data of {entry.name!r} {how} the tensor before it")
        end += entry.size
    if end != nbytes:
        raise SerializationError(
            f"the tensors have {end} bytes, but the file has {nbytes}", where=place
        )
    if notes is None:
        return entries, None
    return entries, {key: item.text() for key, item in notes.named().items()}


def _parse_entry(name: str, item: Item, widths: Mapping[str, int]) -> Entry:
    fields = item.fields("dtype", "shape", "data_offsets")
    width = fields["dtype"].choice(widths, "dtype")
    shape = [size.size() for size in fields["shape"].list(most=json_reader.RANK)]
    if prod(size or 1 for size in shape) >= json_reader.SIZE:
        fields["shape"].fail(f"a tensor of {format_excerpt(shape)} has too many elements")
    start, end = (offset.size() for offset in fields["data_offsets"].list(2))
    if end - start != prod(shape) * width:
        item.fail(
            f"the data has {end - start} bytes, but the shape {shape} needs {prod(shape) * width}"
        )
    return Entry(name, fields["dtype"].text(), shape, start, end - start)
