"""Files that take their names when they are complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(*paths: Path) -> Iterator[Any]:
    """Files beside `paths` that take their places in the end, in this order; one, or a list.

    On an error nothing is left of them, and what was at the paths is as it was. What is no file,
    such as /dev/null, is not replaced but written to.
    """
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    beside = {
        path: path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        for path in paths
        if path.is_file() or not path.exists()
    }
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(_opened(beside.get(p), p)) for p in paths]
            yield files[0] if len(files) == 1 else files
            for path, file in zip(paths, files, strict=True):
                if path in beside:
                    os.fsync(file.fileno())
        for path, temporary in beside.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)
        raise
    for parent in dict.fromkeys(path.parent for path in beside):
        _sync(parent)


def _opened(temporary: Path | None, path: Path) -> IO[bytes]:
    if temporary is None:
        return open(path, "wb", buffering=0)
    try:
        return open(temporary, "xb", buffering=0)
    except OSError as error:  # in terms of the file that the user has named
        error.filename = str(path)
        raise


def _sync(folder: Path) -> None:
    """Let the names in a folder survive a power cut."""
    entry = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
