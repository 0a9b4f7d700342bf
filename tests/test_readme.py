"""The README's Python blocks run, in order and in one namespace, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a reader may save programs
    text = README.read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        # Blank lines in front make a traceback point at the line in the README.
        before = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(before + block[1], str(README), "exec"), namespace)


def test_bench_markers_are_in_place() -> None:
    text = README.read_text()
    assert text.count("<!-- bench:begin -->") == text.count("<!-- bench:end -->") == 1
    assert text.index("<!-- bench:begin -->") < text.index("<!-- bench:end -->")
