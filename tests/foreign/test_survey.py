"""Models and patterns of public libraries are right at every size, or refused as their rows say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign import survey


@pytest.mark.slow
@pytest.mark.parametrize("library", survey.LIBRARIES)
def test_library(library: str, tmp_path: Path) -> None:
    """In a process of its own: libraries change what they import."""
    path = tmp_path / "results.jsonl"
    survey.start(library, path)
    results = survey.read(path)
    if not results:
        pytest.skip(f"{library} is not installed: make survey")
    unexpected = [r for r in results if not survey.is_expected(r)]
    assert not unexpected, "\n".join(f"{r.verdict} {r.name}: {r.reason}" for r in unexpected)
