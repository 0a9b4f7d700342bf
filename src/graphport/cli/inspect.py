"""`graphport inspect`: what an ONNX file or a saved program holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphport.cli.console import Console
from graphport.errors import UsageError


def run(options: argparse.Namespace, console: Console) -> int:
    path = Path(options.file)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    read = _READERS.get(path.suffix)
    if read is None:
        raise UsageError(
            f"{path} is neither an ONNX file nor a program", fix="a .onnx or a .gpx file"
        )
    with console.step(f"reading {path}", "read"):
        from graphport.report import document_of
        from graphport.report.document import Code, Section, text

        facts, graph = read(path, options.allow)
    document = document_of(f"{path}, {_size(path)}", facts, depth=options.depth)
    lines = graph() if options.graph else ""
    if options.graph:
        document.sections.append(Section("graph", [Code(lines)]))
    data = {"ok": True, "file": str(path), **facts.data()}
    console.result(text(document), {**data, "graph": lines.splitlines()} if options.graph else data)
    return 0


def _size(path: Path) -> str:
    from graphport.report.sections import octets

    return octets(path.stat().st_size)


def _onnx(path: Path, _: Sequence[str]) -> tuple[Any, Any]:
    from graphport.cli.models import load_onnx
    from graphport.report.facts import of_model
    from graphport.report.listing import listing

    model = load_onnx(path)
    return of_model(model), lambda: listing(model.graph)


def _program(path: Path, allow: Sequence[str]) -> tuple[Any, Any]:
    from graphport.cli.models import load_program
    from graphport.report.facts import of_program

    program = load_program(str(path), allow)
    return of_program(program), lambda: str(program)


_READERS = {".onnx": _onnx, ".gpx": _program}
