"""How the results of `tables` read in the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
OURS, THEIRS = "graphport", "torch.onnx"
MARKS = {"ok": "yes", "wrong": "**wrong**", "not run": "not run", "crash": "crash"}
COLUMNS = {"operators": ("float32", "int64", "bool", "float16"), "models": ("dynamic", "static")}

LIBRARIES = "\n## Libraries\n"
"""Where the part of docs/models.md begins that the survey makes."""

Verdicts = dict[tuple[str, str, str], Any]
"""Result by name, case and exporter."""


def write(results: Iterable[Any]) -> None:
    results = [r for r in results if r.verdict != "no samples"]
    for kind, text in (("operators", OPERATORS), ("models", MODELS)):
        of = {(r.name, r.case, r.exporter): r for r in results if r.kind == kind}
        parts = {"summary": _summary(of, kind), "gaps": _gaps(of), "all": _all(of, kind)}
        page = DOCS / f"{kind}.md"
        rest = "".join(page.read_text().partition(LIBRARIES)[1:])
        page.write_text(text.format(**parts) + rest)


def _summary(of: Verdicts, kind: str) -> str:
    """By column, and for what passes in every column that it has; of as many as were tried."""
    lines = []
    for column in COLUMNS[kind]:
        line = [column]
        for exporter in (OURS, THEIRS):
            case = column, exporter
            verdicts = Counter(r.verdict for (_, *c), r in of.items() if tuple(c) == case)
            line += [f"{verdicts['ok']} of {verdicts.total()}", str(verdicts["wrong"])]
        lines.append(line)
    last = ["in each of its columns"]
    for exporter in (OURS, THEIRS):
        names = {n for n, _, e in of if e == exporter}
        tried = [n for n in names if _cases(of, n, exporter) == _cases(of, n, OURS)]
        passed = sum(_whole(of, n, exporter) for n in tried)
        last += [f"{passed} of {len(tried)}", ""]
    header = ["", "graphport passes", "wrong", "torch.onnx passes", "wrong"]
    return _table(header, [*lines, last])


def _cases(of: Verdicts, name: str, exporter: str) -> set[str]:
    return {c for n, c, e in of if (n, e) == (name, exporter)}


def _whole(of: Verdicts, name: str, exporter: str) -> bool:
    return all(of[name, c, exporter].verdict == "ok" for c in _cases(of, name, exporter))


def _gaps(of: Verdicts) -> str:
    """What we do not pass: the reason, and whether torch.onnx passes."""
    lines: dict[tuple[str, str], list[str]] = {}
    for (name, case, exporter), result in of.items():
        if exporter == OURS and result.verdict != "ok":
            their = of.get((name, case, THEIRS))
            key = (f"{name}", _reason(result.reason))
            passes = "passes" if their is not None and their.verdict == "ok" else ""
            lines.setdefault(key, []).append(f"{case}{' (torch.onnx passes)' if passes else ''}")
    rows = [[f"`{name}`", ", ".join(cases), reason] for (name, reason), cases in lines.items()]
    return _table(["name", "in", "why"], rows) if rows else "Everything does."


def _reason(reason: str) -> str:
    """The first line of it, without the class of the error."""
    first = reason.split(" | ")[0]
    return first.partition(": ")[2].replace("|", "\\|") or first


def _all(of: Verdicts, kind: str) -> str:
    columns = COLUMNS[kind]
    rows = []
    for name in dict.fromkeys(name for name, _, _ in of):
        cells = []
        for column in columns:
            cells += [_mark(of.get((name, column, e))) for e in (OURS, THEIRS)]
        rows.append([f"`{name}`", *cells])
    header = ["name"]
    for column in columns:
        header += [column, THEIRS]
    return _table(header, rows)


def _mark(result: Any) -> str:
    return "" if result is None else MARKS.get(result.verdict, "no")


def _table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)


OPERATORS = """# Operators

Every operator of PyTorch's own test database (`op_db`), up to five samples of each in four dtypes,
exported with fixed sizes, run on ONNX Runtime and compared with eager: by graphport, and by
`torch.onnx.export(dynamo=True)` of torch 2.13 on the same samples. A case passes if all of its
samples do. Results of random operators are compared by dtype and size; which of equal elements a
sort puts first is left open; float16 that disagrees with eager passes if it agrees with eager in
float32, rounded. `python -m tests.onnx.tables` makes this page.

{summary}

## What does not pass

{gaps}

## All

`yes` passes, `no` is not exported (an error says why), `not run` is refused by ONNX Runtime,
`**wrong**` differs from eager, `crash` ends the process. The first column of a pair is graphport's.

{all}
"""

MODELS = """# Models

Hugging Face architectures from small configurations with random weights, and convolutional networks
of our own, exported with open dims (batch, length, image size where the model allows it) and with
fixed sizes, run on ONNX Runtime at the example and, where dims are open, at other sizes, and
compared with eager: by graphport, and by `torch.onnx.export(dynamo=True)` of torch 2.13 with the
same inputs and dims, where a cell is not empty: it takes half a minute for each. Of `vit_mae`,
which draws random numbers, and `rt_detr`, which picks among equals, only sizes are compared.
`python -m tests.onnx.tables` makes this part of the page.

{summary}

## What does not pass

{gaps}

## All

`yes` passes, `no` is not exported (an error says why), `not run` is refused by ONNX Runtime or by
the sizes, `**wrong**` differs from eager. The first column of a pair is graphport's.

{all}
"""
