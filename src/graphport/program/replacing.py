"""Files that take their names when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(*paths: Path) -> Iterator[Any]:
    """Files beside `paths` that take their places in the end, in this order; one, or a list.

    On an error nothing is left of them, and what was at the paths is as it was.
    """
    beside = [path.with_name(f".{path.name}.{os.urandom(8).hex()}") for path in paths]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(open(b, "xb", buffering=0)) for b in beside]
            yield files[0] if len(files) == 1 else files
            for file in files:
                os.fsync(file.fileno())
        for temporary, path in zip(beside, paths, strict=True):
            os.replace(temporary, path)
    except BaseException:
        for temporary in beside:
            temporary.unlink(missing_ok=True)
        raise
    for parent in dict.fromkeys(path.parent for path in paths):
        _sync(parent)


def _sync(folder: Path) -> None:
    """Let the names in a folder survive a power cut."""
    entry = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
