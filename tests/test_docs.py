"""The pages of docs/: their blocks run, and they name what there is."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path

import pytest

import graphport as gp
from graphport import errors
from tests import documents
from tests.test_imports import LAYERS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "graphport"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if documents.has_blocks(page)]
SECTION = re.compile(r"^### (GP\d{3}): (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
WITHOUT_EXAMPLE = {"GP000", "GP190", "GP210", "GP900"}
"""The base, which nothing is; what commands end with; a package that is there; our own faults."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    try:
        documents.run(page)
    finally:  # not by monkeypatch, which would bring back what the page has imported
        sys.modules.pop("models", None)


def test_every_error_has_a_section_with_an_example() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if hasattr(c, "code")]
    sections = SECTION.findall((DOCS / "errors.md").read_text())
    assert sorted((code, name) for code, name, _ in sections) == sorted(
        (c.code, c.__name__) for c in classes
    )
    examples = {code for code, _, text in sections if f"```python\n# raises {code}\n" in text}
    assert examples == {c.code for c in classes} - WITHOUT_EXAMPLE


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file, and to a heading of it, as GitHub and the site both name headings."""
    text = page.read_text()
    for path in re.findall(r"\b(?:tests|examples|benchmarks)/[\w/]+\.py\b", text):
        assert (ROOT / path).exists(), path
    for target, heading in LINK.findall(CODE.sub("", BLOCK.sub("", text))):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not heading or heading in _headings(there), f"{target}#{heading}"


def _headings(page: Path) -> set[str]:
    found = HEADING.findall(BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in found}


def test_public_names_are_listed() -> None:
    text = (DOCS / "index.md").read_text()
    assert [name for name in gp.__all__ if f"`gp.{name}`" not in text] == []


def test_options_and_members_are_described() -> None:
    text = (DOCS / "capture.md").read_text()
    for function in (gp.export, gp.draft_export):
        for option in inspect.signature(function).parameters:
            assert re.search(rf"^\|.*`{option}\b.*\|", text, re.MULTILINE), option
    members = {name for name in dir(gp.ExportedProgram) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(gp.ExportedProgram)}
    for name in members | fields:
        assert re.search(rf"^\|.*`\.{name}\b.*\|", text, re.MULTILINE), name


def test_bench_markers_are_in_place() -> None:
    text = (DOCS / "benchmarks.md").read_text()
    assert text.count("<!-- bench:begin -->") == text.count("<!-- bench:end -->") == 1
    assert text.index("<!-- bench:begin -->") < text.index("<!-- bench:end -->")


PATH = re.compile(r"`((?:\w+/)*\w+\.pyi?|(?:\w+/)+)`")


def test_the_map_names_files_that_exist() -> None:
    named = set(PATH.findall((ROOT / "CONTRIBUTING.md").read_text()))
    inner = {f"{path.name}/" for path in SOURCE.glob("*/**/") if path.name != "__pycache__"}
    missing = {p for p in named - inner if not any((r / p).exists() for r in (ROOT, SOURCE))}
    assert missing == set()


def test_the_map_shows_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The layers")[2]
    names = (re.split(r" {3,}", line)[0] for line in text.split("```")[1].strip().splitlines())
    shown = [set(re.findall(r"\w+", line)) for line in names]
    assert shown == [set(layer.split()) for layer in reversed(LAYERS)]
