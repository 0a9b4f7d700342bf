"""Locks that are free in a process that was forked, whoever held them before."""

from __future__ import annotations

import os
import threading
from typing import Any


def forkable_lock() -> Any:
    """A lock for good: a fork waits until it is free."""
    made = threading.RLock()
    os.register_at_fork(
        before=made.acquire, after_in_parent=made.release, after_in_child=made.release
    )
    return made
