"""Reports of an export as Markdown, HTML or plain text, by the file's suffix.

The forms alone need neither torch nor onnx: `graphport doctor` uses them where both may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphport.errors import InputError
from graphport.report import sections
from graphport.report.document import RENDERERS, Document

if TYPE_CHECKING:
    from graphport.onnx import ONNXProgram
    from graphport.report.facts import Facts

__all__ = ["check_path", "collect_facts", "make_document", "write"]

_DEPTH = 3
"""Of modules in a report: a layer of a transformer and its parts."""


def write(
    program: ONNXProgram,
    path: str | Path,
    timings: Mapping[str, float] | None = None,
    verification: Any = None,
) -> None:
    """Write the report of an export: timings in seconds by step, a `VerificationReport` if any."""
    path = Path(path)
    check_path(path)
    document = make_document(path.stem, collect_facts(program), timings, verification)
    from graphport.program.atomic_write import write_text

    write_text(path, RENDERERS[path.suffix.lower()](document))


def check_path(path: str | Path) -> None:
    """Raise unless the suffix says how the report is written, and there is a folder for it."""
    if Path(path).suffix.lower() not in RENDERERS:
        raise InputError(
            f"the form of the report {str(path)!r} is not known",
            fix=f"a file that ends in {', '.join(RENDERERS)}",
        )
    if Path(path).is_dir():
        raise InputError(f"the report {str(path)!r} is a folder")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"there is no folder {Path(path).parent} for the report {str(path)!r}")


def collect_facts(program: ONNXProgram) -> Facts:
    from graphport.report.facts import collect_model_facts

    return collect_model_facts(program.skeleton, program.tensors)


def make_document(
    title: str,
    facts: Facts,
    timings: Mapping[str, float] | None = None,
    verification: object = None,
    depth: int = _DEPTH,
) -> Document:
    parts = sections.make_sections(facts, depth)
    if verification is not None:
        parts.append(sections.verification(verification))
    if timings:
        parts.append(sections.timings(timings))
    return Document(title, parts)
