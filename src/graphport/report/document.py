"""A report as sections of tables, and its renderers: text, Markdown, HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graphport import errors


@dataclass(frozen=True)
class Table:
    """Rows of text; the columns in `numbers` are aligned to the right."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Code:
    """Text that keeps its lines."""

    text: str


Block = str | Table | Code


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    title: str
    sections: list[Section] = field(default_factory=list)


# Plain text, for a terminal: nothing is cut off or wrapped, so that it can be searched.


def render_text(document: Document) -> str:
    """
    >>> table = Table(("name", "size"), [("weight", "32"), ("bias", "4")], frozenset({1}))
    >>> print(render_text(Document("model", [Section("weights", [table])])))
    model
    <BLANKLINE>
    weights
      name    size
      weight    32
      bias       4
    """
    parts = [errors.escape_line(document.title)]
    for section in document.sections:
        parts += ["", errors.escape_line(section.title)]
        for block in section.blocks:
            parts += [f"  {line}".rstrip() for line in _format_block(block)]
    return "\n".join(parts)


def _format_block(block: Block) -> list[str]:
    if isinstance(block, Table):
        return _align_table(block)
    return errors.escape_terminal(block.text if isinstance(block, Code) else block).split("\n")


def _align_table(table: Table) -> list[str]:
    rows = [*([table.columns] if any(table.columns) else ()), *table.rows]
    rows = [tuple(map(errors.escape_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            _pad_cell(cell, width, i in table.numbers)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _pad_cell(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


# Markdown


def render_markdown(document: Document) -> str:
    parts = [f"# {_escape_cell(document.title)}"]
    for section in document.sections:
        parts.append(f"## {_escape_cell(section.title)}")
        parts += map(_render_markdown_block, section.blocks)
    return "\n\n".join(parts) + "\n"


def _render_markdown_block(block: Block) -> str:
    if isinstance(block, Code):
        inside = errors.escape_terminal(block.text)
        fence = "`" * (1 + max(map(len, re.findall("`+", f"{inside}``"))))
        return f"{fence}\n{inside}\n{fence}"
    if isinstance(block, str):
        return errors.escape_markdown(block)
    rules = ["---:" if i in block.numbers else "---" for i in range(len(block.columns))]
    heads, *rows = (tuple(map(_escape_cell, row)) for row in (block.columns, *block.rows))
    rows = [heads, tuple(rules), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escape_cell(cell: str) -> str:
    return errors.escape_markdown(cell).replace("|", "\\|").replace("\n", " ")


# HTML: one file without anything from elsewhere.

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h2 { margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; }
th, td { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
td { font-family: ui-monospace, monospace; font-size: 13px; border-top: 1px solid #eee; }
th.n, td.n { text-align: right; }
pre { background: #f6f6f6; padding: .75rem; overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; }
  pre { background: #222; }
  h2, td { border-color: #333; }
}
"""


def render_html(document: Document) -> str:
    escape = errors.escape_html
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(document.title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(document.title)}</h1>",
    ]
    for section in document.sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += map(_render_html_block, section.blocks)
    return "\n".join([*parts, "</body></html>", ""])


def _render_html_block(block: Block) -> str:
    escape = errors.escape_html
    if isinstance(block, Code):
        return f"<pre>{escape(block.text)}</pre>"
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"

    def row(tag: str, cells: Sequence[str]) -> str:
        marks = [' class="n"' if i in block.numbers else "" for i in range(len(cells))]
        inside = (f"<{tag}{m}>{escape(c)}</{tag}>" for c, m in zip(cells, marks, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "\n".join(row("td", cells) for cells in block.rows)
    return f"<table><thead>{row('th', block.columns)}</thead>\n<tbody>\n{body}\n</tbody></table>"


RENDERERS: dict[str, Callable[[Document], str]] = {
    ".md": render_markdown,
    ".html": render_html,
    ".txt": render_text,
}
"""By the suffix of the file."""
