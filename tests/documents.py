"""Runs the blocks of a document in order, as a reader would paste them.

Python runs in one namespace. A block that begins with the name of a file, `# models.py`, is that
file. One that begins with `# raises GP111` must raise the error of that code. A `text` block right
after a Python block is what that prints; numbers with an exponent may differ. Lines of a console
that begin with `$ graphport` are commands, and all of them succeed.

As a script it needs graphport alone, and runs a document against whatever is installed:
`python -I tests/documents.py README.md`.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from types import CodeType

BLOCK = re.compile(r"^```(python|console|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
RAISES = re.compile(r"# raises (GP\d{3})\b")
COMMAND = re.compile(r"^\$ graphport (.+)$", re.MULTILINE)
MEASURED = re.compile(r"\b(\d(\.\d+)?e[-+]\d+|0)\b")  # an error of exactly 0 has no exponent


def has_blocks(document: Path) -> bool:
    return any(block[1] != "text" for block in BLOCK.finditer(document.read_text()))


def run(document: Path) -> None:
    """Run the blocks in the current folder, which files are written to."""
    text = document.read_text()
    namespace: dict[str, object] = {"__name__": "document"}
    printed = ""
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        file = FILE.match(code)
        if kind == "text":
            assert _shown(printed) == _shown(code), f"{document.name} prints\n{printed}"
        elif kind == "console":
            _run_commands(code)
        elif file:
            Path(file[1]).write_text(code)
        else:
            # Blank lines in front make a traceback point at the line in the document.
            before = "\n" * text.count("\n", 0, block.start(2))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                text, name = before + code, str(document)
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
                _execute(compile(text, name, "exec"), namespace, code)
            printed = out.getvalue()


def _execute(code: CodeType, namespace: dict[str, object], text: str) -> None:
    raises = RAISES.match(text)
    if not raises:
        exec(code, namespace)
        return
    from graphport.errors import ExportError

    try:
        exec(code, namespace)
    except ExportError as error:
        if error.code != raises[1]:
            raise
    else:
        raise AssertionError(f"nothing was raised by\n{text}")


def _run_commands(text: str) -> None:
    from graphport.cli import main

    for command in COMMAND.findall(text):
        assert main(shlex.split(command)) == 0, command


def _shown(text: str) -> list[str]:
    """Lines to compare: without measured numbers, which also set the width of columns."""
    return [" ".join(MEASURED.sub("#", line).split()) for line in text.strip().splitlines()]


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(path)
        os.chdir(path.parent)
    import graphport

    print(f"{path.name} runs with {graphport.__file__}")
