"""What type checking does not see: `Any`, and packages that mypy is told to pass over."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1]
MOST = 26
"""Mentions of `Any` in 1,000 lines. It may come down, and is not to go up again."""


def test_any_is_rare() -> None:
    lines, mentions = 0, {}
    for path in (ROOT / "src" / "graphport").rglob("*.py"):
        text = path.read_text()
        lines += text.count("\n")
        mentions[path.relative_to(ROOT).as_posix()] = len(re.findall(r"\bAny\b", text))
    worst = sorted(mentions.items(), key=lambda item: -item[1])[:10]
    assert 1000 * sum(mentions.values()) <= MOST * lines, worst


def test_mypy_checks_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    named = [name for override in config["overrides"] for name in override["module"]]
    assert config["strict"] and not [name for name in named if name.startswith("graphport")]
