"""The processes that a test has started, as the system sees them."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep


def children(
    name: str = "graphport.partition.pipelines.worker", parent: int | None = None
) -> list[int]:
    """Processes with this in their command, of this process or of another; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if name in command and fields[0] != "Z" and int(fields[1]) == (parent or os.getpid()):
            found.append(int(entry.name))
    return sorted(found)


def is_gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process ends in time."""
    until = monotonic() + seconds
    while monotonic() < until:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True
        if fields[0] == "Z":
            return True
        sleep(0.05)
    return False


def none_left() -> bool:
    """Whether this process soon has no worker any more."""
    until = monotonic() + 5
    while children():
        if monotonic() > until:
            return False
        sleep(0.05)
    return True


def running(argument: str) -> list[str]:
    """Processes of anybody that were started with this argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode().split("\0")
        except OSError:
            continue
        if argument in command:
            found.append(entry.parent.name)
    return found
