from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.helpers import MODELS, Runner


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    """Commands, in an empty folder but for `models.py`; what it imports is forgotten after."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    monkeypatch.setattr(sys, "modules", sys.modules)
    yield Runner(tmp_path, capsys)
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
