"""The blocks of the documents run, in order, as a reader would paste them.

Python is run in one namespace; a block that begins with the name of a file, `# models.py`, is that
file. Lines of a console that begin with `$ graphport` are commands, and all of them succeed.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from graphport.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
COMMAND = re.compile(r"^\$ graphport (.+)$", re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        "onnx.md",
        "cli.md",
        "generation.md",
        "torch_compile.md",
        "fx.md",
        "partition.md",
        "pipeline.md",
    ],
)
def test_blocks_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    text = (DOCS / name).read_text()
    namespace: dict[str, object] = {"__name__": "docs"}
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        kind, code = block.groups()
        file = FILE.match(code)
        if kind == "console":
            for command in COMMAND.findall(code):
                assert main(shlex.split(command)) == 0, (command, capsys.readouterr().err)
        elif file:
            Path(file[1]).write_text(code)
        else:
            # Blank lines in front make a traceback point at the line in the document.
            before = "\n" * text.count("\n", 0, block.start(2))
            exec(compile(before + code, str(DOCS / name), "exec"), namespace)
    monkeypatch.delitem(sys.modules, "models", raising=False)
