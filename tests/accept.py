"""`pytest --accept`: texts that tests compare in full are rewritten as they are now.

An assertion `text == expected` that fails says what stands in the test and what came instead. The
literal is looked for in the files of the tests, as it is or dedented, and replaced there. `make
accept` does so and shows the difference, which is read before it is committed.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

OPTION = "--accept"
TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help=(__doc__ or "").splitlines()[0])


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION):
        config.pluginmanager.register(Accepting())


class Accepting:
    """Remembers texts that differ, and rewrites the files in the end."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        """What came, by what was expected."""

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        if op == "==" and isinstance(left, str) and isinstance(right, str):
            self.texts[right] = left

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for expected, text in self.texts.items():
            changed = [str(f) for f in sorted(TESTS.rglob("*.py")) if rewrite(f, expected, text)]
            told = f"accepted in {', '.join(changed)}" if changed else "found in no test"
            terminalreporter.write_line(f"{expected.splitlines()[:1]}: {told}")


def rewrite(file: Path, expected: str, text: str) -> bool:
    """Replace the literals of a file that mean a text; whether there was one."""
    source = file.read_text()
    if expected.strip("\n").partition("\n")[0].partition('"')[0].strip() not in source:
        return False
    found = list(literals(source, expected))
    for start, end, column in reversed(found):
        written = source[start:end]
        source = source[:start] + spelled(text, written, column) + source[end:]
    if found:
        file.write_text(source)
    return bool(found)


def literals(source: str, expected: str) -> Iterator[tuple[int, int, int]]:
    """Where each begins and ends in the source, and in which column."""
    begins = [0]
    for line in source.splitlines(True):
        begins.append(begins[-1] + len(line.encode()))
    data = source.encode()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if expected in (node.value, textwrap.dedent(node.value).strip("\n")):
                assert node.end_lineno is not None and node.end_col_offset is not None
                ends = (
                    begins[node.lineno - 1] + node.col_offset,
                    (begins[node.end_lineno - 1] + node.end_col_offset),
                )
                start, end = (len(data[:offset].decode()) for offset in ends)
                yield start, end, node.col_offset


def spelled(text: str, written: str, column: int) -> str:
    """A text as a literal of the form that stood there: indented, or a string for each line."""
    if written.startswith('"""') and "\n" in written:
        lines = written.split("\n")
        inner = lines[1][: len(lines[1]) - len(lines[1].lstrip())]
        escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        return '"""\n' + textwrap.indent(escaped, inner) + "\n" + lines[-1]
    return ("\n" + " " * column).join(quoted(line) for line in text.splitlines(True))


def quoted(line: str) -> str:
    """As the formatter quotes it."""
    escaped = repr(line)[1:-1].replace("\\'", "'")
    if '"' not in line:
        return f'"{escaped}"'
    return repr(line) if "'" not in line else '"' + escaped.replace('"', '\\"') + '"'
