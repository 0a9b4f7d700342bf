"""The README: its blocks run, it is short, and its figures are those of the tables in docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import documents

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a reader may save programs
    documents.run(README)


def test_it_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 160


def test_figures_are_those_of_the_tables() -> None:
    measured = README.read_text().split("## Measured")[1].split("\n## ")[0]
    rows = [line for line in measured.splitlines() if line.startswith("|")][2:]
    tables = "".join(
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("benchmarks", "operators")
    )
    assert len(rows) == 5
    for row in rows:
        for figure in re.findall(r"\d+(?:[.,]\d+)*x?", row):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d])", tables), (figure, row)
