"""Writes the zip archive of a program as a stream, and reads it with validation.

Members are stored, not compressed, so that tensors can be used where they lie in the file and no
small file turns into a large one. The data of each member starts at a multiple of 64 bytes.
Reading looks at the directory at the end of the file, and believes nothing that does not agree
with the rest.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from graphport.errors import InputError, SerializationError
from graphport.program.files import json_reader

FORMAT = "graphport program"
VERSION = 1
"""Of the document: what changes its fields is a new one. `reading.py` says which it takes."""
PROGRAM = "program.json"
TENSORS = "tensors.safetensors"
MEMBERS = (PROGRAM, TENSORS)

_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_PADDING_ID = 0x4750
_ZIP64_EXTRA = 20
_CHUNK = 1 << 20


def refuse_extra_files(function: str, given: object) -> None:
    """A file is a program and nothing else, so that all of it can be checked."""
    if given:
        raise InputError(
            f"{function} has no extra_files: a file holds a program alone",
            fix="files of their own beside it",
        )


# Writing


class _Stream:
    """A file that is only written to: there is no way back, and the bytes are the same anywhere."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._position = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):  # a raw file may take a part
            written = self._file.write(view[done:])
            done += len(view) if written is None else written
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        self._file.flush()


Chunks = Iterable[bytes | memoryview]


def write_archive(file: Any, members: Iterable[tuple[str, Chunks]]) -> None:
    """Write members, each given as pieces of its data."""
    stream: Any = _Stream(file)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, pieces in members:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3
            info.extra = _make_padding(stream.tell() + _LOCAL.size + len(name) + _ZIP64_EXTRA)
            with archive.open(info, "w", force_zip64=True) as member:
                for piece in pieces:
                    member.write(piece)


def _make_padding(start: int) -> bytes:
    """An extra field after which the data is aligned."""
    zeros = -(start + 4) % json_reader.ALIGNMENT
    return struct.pack("<HH", _PADDING_ID, zeros) + bytes(zeros)


# Reading


@dataclass(frozen=True)
class Member:
    """The offset and size of a member in the file."""

    name: str
    start: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Archive:
    """The members of an archive; `data` is the whole file."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.data = data
        self.name = name
        self.members = self._members()

    def _fail(self, what: str) -> NoReturn:
        raise SerializationError(what, where=self.name)

    def _unpack(self, layout: struct.Struct, at: int, what: str) -> tuple[Any, ...]:
        if not 0 <= at <= len(self.data) - layout.size:
            self._fail(f"{what} lies outside of the file: truncated or corrupted")
        return layout.unpack_from(self.data, at)

    def _directory(self) -> tuple[int, int, int]:
        """How many members, and where their directory starts and ends."""
        at = len(self.data) - _END.size
        end = _END.unpack_from(self.data, at) if at >= 0 else (b"",)
        if end[0] != b"PK\5\6":
            self._fail("not a program of graphport, or truncated: it does not end as a zip archive")
        count, size, start = end[4], end[5], end[6]
        before = at - _LOCATOR.size
        if before >= 0 and bytes(self.data[before : before + 4]) == b"PK\6\7":
            _, _, place, _ = self._unpack(_LOCATOR, before, "the directory of the archive")
            large = self._unpack(_END_64, place, "the directory of the archive")
            if large[0] != b"PK\6\6" or place + _END_64.size != before:
                self._fail("the end of the zip archive is corrupted")
            count, size, start, at = large[7], large[8], large[9], place
        if start + size != at:
            self._fail("the directory of the zip archive is not where it should be: corrupted")
        if count > json_reader.MEMBERS:
            self._fail(f"the archive has {count} members; a program has {len(MEMBERS)}")
        return count, start, at

    def _members(self) -> dict[str, Member]:
        count, at, end = self._directory()
        first = at
        found: dict[str, Member] = {}
        for _ in range(count):
            member, at = self._member(at, first)
            if member.name in found:
                self._fail(f"the archive has two members named {member.name!r}")
            found[member.name] = member
        if at != end:
            self._fail("the directory of the zip archive has more in it than members: corrupted")
        for name in MEMBERS:
            if name not in found:
                self._fail(f"the archive has no member {name!r}: not a program of graphport")
        one, other = sorted(found.values(), key=lambda m: m.start)
        if one.end > other.start:
            self._fail(f"the members {one.name!r} and {other.name!r} overlap: corrupted")
        return found

    def _member(self, at: int, end: int) -> tuple[Member, int]:
        """An entry of the directory, and where the next one is."""
        entry = self._unpack(_CENTRAL, at, "the directory of the archive")
        mark, _, _, flags, method, _, _, crc, packed, size, n, m, k, disk, _, mode, offset = entry
        if mark != b"PK\1\2":
            self._fail("the directory of the zip archive is corrupted")
        at += _CENTRAL.size
        name = bytes(self.data[at : at + n]).decode("utf-8", "replace")
        extra = bytes(self.data[at + n : at + n + m])
        size, packed, offset = self._large(name, extra, size, packed, offset)
        if name not in MEMBERS:
            self._fail(f"the archive has a member {name!r}, which is no part of a program")
        if (mode >> 16) & 0o170000 == 0o120000:
            self._fail(f"the member {name!r} is a symbolic link")
        if method != zipfile.ZIP_STORED or packed != size:
            self._fail(f"the member {name!r} is compressed; members of a program are stored")
        if flags & ~0x808 or disk:
            self._fail(f"the member {name!r} is encrypted, or of a kind that is not supported")
        start = self._data_start(name, offset)
        if start + size > end:
            self._fail(f"the member {name!r} of {size} bytes does not fit into the file: truncated")
        return Member(name, start, size, crc), at + n + m + k

    def _large(self, name: str, extra: bytes, *fields: int) -> list[int]:
        """Fields of an entry; those that do not fit into 32 bits stand in an extra field."""
        wide: tuple[int, ...] = ()
        while len(extra) >= 4:
            id_, length = struct.unpack_from("<HH", extra)
            if id_ == 1 and length % 8 == 0 and len(extra) >= 4 + length:
                wide = struct.unpack_from(f"<{length // 8}Q", extra, 4)
            extra = extra[4 + length :]
        values, rest = list(fields), list(wide)
        for i, value in enumerate(values):
            if value == 0xFFFFFFFF:
                if not rest:
                    self._fail(f"the size of the member {name!r} is missing: corrupted")
                values[i] = rest.pop(0)
        return values

    def _data_start(self, name: str, offset: int) -> int:
        header = self._unpack(_LOCAL, offset, f"the member {name!r}")
        mark, _, _, method, _, _, _, _, _, n, m = header
        at = offset + _LOCAL.size
        written = bytes(self.data[at : at + n])
        if mark != b"PK\3\4" or written != name.encode() or method != zipfile.ZIP_STORED:
            self._fail(f"the member {name!r} and the directory do not agree: corrupted")
        return at + n + m

    def bytes_of(self, name: str) -> memoryview:
        member = self.members[name]
        return self.data[member.start : member.end]

    def check(self, name: str, read: Any) -> None:
        """Compare the data of a member with its checksum; `read` gives the bytes of a part."""
        member, crc = self.members[name], 0
        for start in range(member.start, member.end, _CHUNK):
            crc = zlib.crc32(read(start, min(_CHUNK, member.end - start)), crc)
        if crc != member.crc:
            self._fail(f"the data of the member {name!r} is corrupted: its checksum is wrong")
