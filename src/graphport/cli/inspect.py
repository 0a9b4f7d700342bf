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
        from graphport.report import make_document
        from graphport.report.document import Code, Section, render_text

        facts, graph = read(path, options.allow)
    document = make_document(f"{path}, {_format_file_size(path)}", facts, depth=options.depth)
    lines = graph() if options.graph else ""
    if options.graph:
        document.sections.append(Section("graph", [Code(lines)]))
    data = {"ok": True, "file": str(path), **facts.data()}
    console.result(
        render_text(document), {**data, "graph": lines.splitlines()} if options.graph else data
    )
    return 0


def _format_file_size(path: Path) -> str:
    from graphport.report.sections import format_bytes

    return format_bytes(path.stat().st_size)


def _read_onnx(path: Path, _: Sequence[str]) -> tuple[Any, Any]:
    from graphport.cli.models import load_onnx
    from graphport.report.facts import collect_model_facts, format_graph

    model = load_onnx(path)
    return collect_model_facts(model), lambda: format_graph(model.graph)


def _read_program(path: Path, allow: Sequence[str]) -> tuple[Any, Any]:
    from graphport.cli.models import load_program
    from graphport.report.facts import collect_program_facts

    program = load_program(str(path), allow)
    return collect_program_facts(program), lambda: str(program)


_READERS = {".onnx": _read_onnx, ".gpx": _read_program}
