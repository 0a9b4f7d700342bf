"""Models run in one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """Every test of this folder."""
