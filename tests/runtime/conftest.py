"""Each test compiles anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphport.runtime import OrtBackend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
    yield
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()


@pytest.fixture(
    params=[
        pytest.param(True, id="dynamic"),
        pytest.param(False, id="static", marks=pytest.mark.slow),
        pytest.param(None, id="automatic", marks=pytest.mark.slow),
    ]
)
def dynamic(request: pytest.FixtureRequest) -> bool | None:
    """What torch.compile is told about sizes: symbolic, fixed, or symbolic once they differ."""
    return request.param
