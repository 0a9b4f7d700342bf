"""The safetensors format: a length, a header in JSON, and the data of all tensors.

Entries follow each other without a gap, as the format wants it. To start each at a multiple of 64
bytes, entries of zeros are put between them; their names start with `padding.`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from graphport.errors import SerializationError
from graphport.program.files import limits
from graphport.program.files.items import Item, parse, shown

_LENGTH = struct.Struct("<Q")
PADDING = "padding."

NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.uint16: "U16", torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64",
    torch.uint64: "U64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}  # fmt: skip
"""Of the dtypes that the format has; others are written as bytes."""

_ITEM_BYTES = {name: dtype.itemsize for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of the file: `start` and `size` in bytes of the data."""

    name: str
    dtype: str
    shape: Sequence[int]
    start: int
    size: int


def arrange(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> list[Entry]:
    """Entries for (name, dtype, shape, bytes), one after the other, aligned."""
    entries: list[Entry] = []
    at = 0
    for name, dtype, shape, size in tensors:
        gap = -at % limits.ALIGNMENT
        if gap:
            entries.append(Entry(f"{PADDING}{len(entries)}", "U8", [gap], at, gap))
        entries.append(Entry(name, dtype, shape, at + gap, size))
        at += gap + size
    return entries


def header(entries: Iterable[Entry]) -> bytes:
    """The start of the file, up to where the data is aligned."""
    rows: dict[str, Any] = {
        e.name: {"dtype": e.dtype, "shape": list(e.shape),
                 "data_offsets": [e.start, e.start + e.size]}
        for e in entries
    }  # fmt: skip
    text = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % limits.ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def read(data: memoryview, place: str) -> tuple[dict[str, Entry], int]:
    """The entries by name, and where in `data` their bytes start."""
    if len(data) < _LENGTH.size:
        raise SerializationError("the header is missing: truncated", where=place)
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    if length > limits.HEADER_BYTES or start > len(data):
        raise SerializationError(
            f"the header says that it has {length} bytes, of {len(data)} in all", where=place
        )
    return entries_of(data[_LENGTH.size : start], len(data) - start, place)[0], start


def entries_of(
    text: bytes | memoryview, nbytes: int, place: str, widths: Mapping[str, int] = _ITEM_BYTES
) -> tuple[dict[str, Entry], dict[str, str] | None]:
    """What a header says of the data after it, of so many bytes; and what its writer has noted."""
    rows = parse(text, place).named()
    notes = rows.pop("__metadata__", None)
    entries = {name: _entry(name, item, widths) for name, item in rows.items()}
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


def _entry(name: str, item: Item, widths: Mapping[str, int]) -> Entry:
    fields = item.fields("dtype", "shape", "data_offsets")
    width = fields["dtype"].choice(widths, "dtype")
    shape = [size.size() for size in fields["shape"].list(most=limits.RANK)]
    if prod(size or 1 for size in shape) >= limits.SIZE:
        fields["shape"].fail(f"a tensor of {shown(shape)} has too many elements")
    start, end = (offset.size() for offset in fields["data_offsets"].list(2))
    if end - start != prod(shape) * width:
        item.fail(
            f"the data has {end - start} bytes, but the shape {shape} needs {prod(shape) * width}"
        )
    return Entry(name, fields["dtype"].text(), shape, start, end - start)
