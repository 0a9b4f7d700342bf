"""Pages of the site that are files outside docs/, and links to them.

Links are written for a reader of the repository (`../CHANGELOG.md`, `docs/onnx.md`). On the site
they lead to the page that shows the file; a link to a file that has no page stays, and fails the
build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
    "examples": "examples/index.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES},
}
"""A file of the repository, and the page that shows it."""
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_show(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    path = page.file.src_uri
    source = SOURCES.get(path, f"docs/{path}")

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        shown = PAGES.get(target) or (target.startswith("docs/") and target[5:])
        if not shown:
            return link[0]
        there = posixpath.relpath(shown, posixpath.dirname(path) or ".")
        return f"]({there}{link[2] or ''})"

    return LINK.sub(lead, markdown)


def _show(source: str) -> str:
    path = ROOT / source
    if path.is_dir():
        rows = [f"| [{file.name}](examples/{file.name}) | {_summary(file)} |" for file in EXAMPLES]
        return "\n".join(["# Examples", "", "| | |", "| --- | --- |", *rows])
    if path.suffix == ".md":
        return path.read_text()
    title = "License" if source == "LICENSE" else source
    language = "python" if path.suffix == ".py" else "text"
    return f"# {title}\n\n```{language}\n{path.read_text().strip(chr(10))}\n```\n"


def _summary(file: Path) -> str:
    return file.read_text().removeprefix('"""').splitlines()[0].rstrip('"')
