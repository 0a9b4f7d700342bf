"""What differs between the tested versions of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

NEWER = int(transformers.__version__.split(".")[0]) >= 5
"""Transformers 5 has further kinds of caches, and counts in more of them."""

since_5 = pytest.mark.skipif(not NEWER, reason="caches of transformers 5 have this")


def mask_sizes(cache: Any, new: int) -> tuple[int, int]:
    """How many keys the first layer has for so many new tokens, and where they begin."""
    return cache.get_mask_sizes(new if NEWER else torch.arange(new), 0)
