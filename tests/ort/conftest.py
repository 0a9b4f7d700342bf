"""Each test compiles anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphport.ort import OrtBackend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
    yield
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
