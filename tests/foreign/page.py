"""How the results of the survey read in docs/models.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.onnx.tables_text import LIBRARIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
OURS, THEIRS = "graphport", "torch.onnx"
MARKS = {"right": "yes", "wrong": "**wrong**", "not run": "not run", "crash": "crash"}

TEXT = """
{count} models and patterns of {libraries} public libraries, small and with random weights,
exported with open dims (those that differ between the example and the other sizes), and run on bare
ONNX Runtime at the example and at the other sizes: `yes` agrees with eager at each of them. The
other marks are those of the table above, and torch.onnx is `torch.onnx.export(dynamo=True)` where a
cell is not empty. `make survey` installs the libraries, runs the rows of `tests/foreign/` and makes
this part.

{summary}

### What is not exported

{gaps}

### Each

{all}
"""


def write(results: Iterable[Any]) -> None:
    """The part of the page below its header; the rest stays."""
    found = {(r.library, r.name, r.exporter): r for r in results if r.verdict != "broken"}
    rows = list(dict.fromkeys((library, name) for library, name, _ in found))
    text = TEXT.format(
        count=len(rows),
        libraries=len({library for library, _ in rows}),
        summary=_summarise(found),
        gaps=_list_gaps(found),
        all=_list_all(found, rows),
    )
    PAGE.write_text(PAGE.read_text().partition(LIBRARIES)[0] + LIBRARIES + text)


def _summarise(found: dict[Any, Any]) -> str:
    lines = []
    for library in (*sorted({library for library, *_ in found}), ""):
        line = [library or "all"]
        for exporter in (OURS, THEIRS):
            of = [
                r for r in found.values() if r.exporter == exporter and library in (r.library, "")
            ]
            counts = Counter(r.verdict for r in of)
            line += [f"{counts['right']} of {counts.total()}", str(counts["wrong"])]
        lines.append(line)
    return _table(["", "graphport passes", "wrong", "torch.onnx passes", "wrong"], lines)


def _list_gaps(found: dict[Any, Any]) -> str:
    lines = []
    for (library, name, exporter), result in found.items():
        if exporter == OURS and result.verdict != "right":
            reason = result.reason.split(" | ")[0].partition(": ")[2].replace("|", "\\|")
            theirs = found.get((library, name, THEIRS))
            passes = "passes" if theirs is not None and theirs.verdict == "right" else ""
            lines.append([f"{library} `{name}`", reason, passes])
    return _table(["", "why", "torch.onnx"], lines) if lines else "Everything is."


def _list_all(found: dict[Any, Any], rows: list[tuple[str, str]]) -> str:
    lines = []
    for library, name in rows:
        marks = [_mark(found.get((library, name, exporter))) for exporter in (OURS, THEIRS)]
        lines.append([library, f"`{name}`", *marks])
    return _table(["library", "row", "graphport", "torch.onnx"], lines)


def _mark(result: Any) -> str:
    return "" if result is None else MARKS.get(result.verdict, "no")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
