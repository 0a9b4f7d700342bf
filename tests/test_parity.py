"""docs/parity.md: every row has a status, and every test that it names exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
STATUS = re.compile(r"holds\b|(differs|n/a): \S")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@functools.cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_rows_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if row[0] not in ("behaviour", "---")]
    assert len(rows) > 100
    for behaviour, tests, status in rows:
        assert STATUS.match(status), f"{behaviour}: {status}"
        assert re.fullmatch(rf"{TEST.pattern}(, {TEST.pattern})*", tests), behaviour
        for path, name in TEST.findall(tests):
            assert name in functions_of(path), f"{behaviour}: {path} has no {name}"
