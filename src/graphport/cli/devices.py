"""Devices for `graphport partition`, from a TOML file.

transfer = "10 GB/s"

[[devices]]
name = "gpu"
memory = "16 GB"
count = 4
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from graphport.errors import UsageError
from graphport.partition import Device

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*(?:/\s*s)?\s*", re.IGNORECASE)
_KEYS = {"": {"transfer", "devices"}, "devices": {"name", "memory", "count"}}


class Fleet(NamedTuple):
    devices: list[Device]
    transfer: float | None
    """Octets per second between two devices, where the file says so."""


def read(path: Path) -> Fleet:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", where="--devices")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", where="--devices") from None
    _require_known(table, "", path)
    rows = table.get("devices")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise UsageError(
            f"{path} has no devices", fix='[[devices]] with name = "gpu" and memory = "16 GB"'
        )
    devices: list[Device] = []
    for number, row in enumerate(rows):
        _require_known(row, "devices", path)
        name = str(row.get("name", f"device{number}"))
        memory = size(row.get("memory"), f"memory of {name}", path)
        count = row.get("count", 1)
        if type(count) is not int or count < 1:
            raise UsageError(f"{path}: the count of {name} is {count!r}", fix="count = 2")
        names = [name] if count == 1 else [f"{name}{i}" for i in range(count)]
        devices += [Device(n, memory, len(devices) + i) for i, n in enumerate(names)]
    transfer = table.get("transfer")
    return Fleet(devices, None if transfer is None else size(transfer, "transfer", path))


def size(value: Any, what: str, where: Path | str) -> int:
    """A number of octets: `16 GB`, `512 MiB`, `10 GB/s`, 900.

    >>> size("1.5 GB", "memory", ""), size("2KiB", "memory", ""), size(900, "memory", "")
    (1500000000, 2048, 900)
    """
    octets = 0
    if type(value) is int or (type(value) is float and value.is_integer()):
        octets = int(value)
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        octets = round(float(found[1]) * _UNITS.get(found[2].lower(), 0))
    if octets < 1:
        raise UsageError(f"{what} is {value!r}", where=str(where), fix='"16 GB", or 16_000_000_000')
    return octets


def _require_known(table: Mapping[str, Any], part: str, path: Path) -> None:
    unknown = sorted(set(table) - _KEYS[part])
    if unknown:
        raise UsageError(
            f"{path} has {', '.join(map(repr, unknown))}, which means nothing here",
            fix=f"one of {', '.join(sorted(_KEYS[part]))}",
        )
