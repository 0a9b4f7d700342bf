"""Settings of the whole process that hold while a program is captured.

Several threads may capture at once. Were each to put back what it found, the last to leave could
put back what another had set; so the first to come sets, and the last to leave puts back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class ProcessWide:
    """A context that is entered by the first thread and left by the last."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._inside = 0
        self._lock = threading.Lock()
        self._context: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._context = self._make()
                self._context.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._context is not None:
                self._context.__exit__(None, None, None)
                self._context = None
