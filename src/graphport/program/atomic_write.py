"""Writes files under temporary names and renames them when they are complete.

What is being written is beside its place under a name that ends in `.tmp`, and locked by whoever
writes it. Of a process that was killed it stays, unlocked, and the next one that writes to the same
place removes it. Taking names is short, and one process does it at a time in a folder.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import IO, Any

from graphport.process import restore_on_exit, undo_on_exit

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def write_atomically(*paths: Path) -> Iterator[Any]:
    """Files beside `paths` that take their places in the end, in this order; one, or a list.

    On an error nothing is left of them, and what was at the paths is as it was. What is no file,
    such as /dev/null, is not replaced but written to.
    """
    with write_files_atomically() as new:
        files = [new.open(path) for path in paths]
        yield files[0] if len(files) == 1 else files


@contextmanager
def write_files_atomically(before: Callable[[], object] = lambda: None) -> Iterator[AtomicFiles]:
    """Several of them; `before` they take their names, something is done that nobody comes between.

    To be used within a call that is contained.
    """
    new = AtomicFiles()
    with undo_on_exit(new.remove):
        yield new
        new.commit_files(before)


@restore_on_exit
def write_text(path: Path, text: str) -> None:
    """A file of text, all of it or as it was."""
    with write_atomically(path) as file:
        file.write(text.encode())


class AtomicFiles:
    """Temporary files that are to be renamed."""

    def __init__(self) -> None:
        self._folders: list[int] = []
        """Those that are open."""
        self._open = ExitStack()
        self._beside: list[Path] = []
        self._targets: dict[IO[bytes], tuple[Path, Path]] = {}
        """Where a file is, and where it goes."""

    def open(self, path: Path) -> IO[bytes]:
        """A file that takes the place of `path`."""
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and not path.is_file():
            return self._open.enter_context(open(path, "wb", buffering=0))
        beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        self._beside.append(beside)
        try:
            with self._lock_folder(path.parent):
                _remove_abandoned(path)
                file = self._open.enter_context(_create_file(beside))
                _lock_file(file.fileno())
        except OSError as error:  # in terms of the file that the user has named
            error.filename = str(path)
            raise
        self._targets[file] = beside, path
        return file

    def rename(self, file: IO[bytes], path: Path) -> None:
        """Let a file take another name in the same folder."""
        self._targets[file] = self._targets[file][0], path

    def commit_files(self, before: Callable[[], object]) -> None:
        for file in self._targets:
            os.fsync(file.fileno())
        folders = {path.parent for _, path in self._targets.values()}
        with ExitStack() as stack:
            for folder in sorted(folders):
                stack.enter_context(self._lock_folder(folder))
            before()
            for beside, path in self._targets.values():
                os.replace(beside, path)
            for entry in self._folders:
                os.fsync(entry)  # so that the names survive a power cut

    def remove(self) -> None:
        """Whatever has no name yet."""
        for beside in self._beside:
            beside.unlink(missing_ok=True)
        self._open.close()
        _close_last(self._folders, len(self._folders))

    @contextmanager
    def _lock_folder(self, folder: Path) -> Iterator[None]:
        """Alone among those that give names in a folder, where the file system knows of locks."""
        # Opened and noted by one call: between two of Python's an interrupt could come.
        self._folders.extend(map(os.open, (folder,), (os.O_RDONLY,)))
        try:
            if fcntl is not None:
                with suppress(OSError):
                    fcntl.flock(self._folders[-1], fcntl.LOCK_EX)
            yield
        finally:
            _close_last(self._folders, min(1, len(self._folders)))


def _create_file(path: Path) -> IO[bytes]:
    return open(path, "xb", buffering=0)


def _remove_abandoned(path: Path) -> None:
    """What a process that was killed has left where it wrote to the same place."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    for entry in filter(name.fullmatch, os.listdir(path.parent)):
        with suppress(OSError), open(path.with_name(entry), "rb") as file:
            if _lock_file(file.fileno()):
                os.unlink(path.with_name(entry))


def _lock_file(file: int) -> bool:
    """Lock a file for as long as it is open; False where somebody else has, or it is not known."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _close_last(entries: list[int], count: int) -> None:
    """Close the last ones, each of which is forgotten by the same call that closes it."""
    deque(map(os.close, map(list.pop, repeat(entries, count))), 0)
