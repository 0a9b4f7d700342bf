"""Text from elsewhere where it is shown."""

from __future__ import annotations

import pytest
import torch

import graphport as gp
from graphport import errors
from graphport.cli.console import Console
from graphport.errors import UserError
from graphport.report.document import (
    Code,
    Document,
    Section,
    Table,
    render_html,
    render_markdown,
    render_text,
)

ESCAPES = ["\x1b[31m", "\x1b]0;t\x07", "\x9b1m", "\x00", "\r", "\x7f", "\u202e", "\u2028", "\ud800"]


@pytest.mark.parametrize("escape", ESCAPES, ids=ascii)
def test_nothing_acts_on_a_terminal(escape: str) -> None:
    for function in (
        errors.escape_terminal,
        errors.escape_line,
        errors.escape_markdown,
        errors.escape_html,
    ):
        shown = function(f"a{escape}b")
        assert not set(escape) & set(map(chr, (*range(32), *range(127, 160)))) & set(shown)
        assert shown.startswith("a") and shown.endswith("b") and len(shown) > 2
        assert shown.isprintable()


def test_plain_text_stays() -> None:
    plain = "f32[batch, 4] \u00e9\u6f22 'x' \"y\" a_b*c\n\tnext"
    assert errors.escape_terminal(plain) == plain
    assert errors.escape_line("two\nlines") == "two\\nlines"


def test_pages() -> None:
    bad = "<script>x</script> [a](javascript:x) \x1b[2J `c`"
    table = Table((bad, "n"), [(bad, "1")])
    document = Document(bad, [Section(bad, [table, Code(f"{bad}\n```\n<b>\n````"), bad])])
    page = render_html(document)
    assert "<script" not in page and "\x1b" not in page
    page = render_markdown(document)
    outside = page.partition("`````")[0] + page.rpartition("`````")[2]
    assert "<script" not in outside and "](javascript" not in outside and "\x1b" not in page
    assert "\x1b" not in render_text(document)


def test_errors_and_console(capsys: pytest.CaptureFixture[str]) -> None:
    error = UserError("\x1b[2J", where="\x1b[2J", fix="\x1b[2J")
    assert "\x1b" not in str(error) and "\x1b" not in repr(error.args)
    console = Console(as_json=False)
    console.output = __import__("sys").stdout
    console.result("\x1b[2J", {})
    console.warn("\x1b[2J")
    console.failure(error)
    out = capsys.readouterr()
    assert "\x1b" not in out.out + out.err


def test_programs() -> None:
    model = torch.nn.Module()
    model.register_parameter("\x1b[2J\nw", torch.nn.Parameter(torch.ones(2)))
    model.forward = lambda x: x + model._parameters["\x1b[2J\nw"]  # type: ignore[method-assign]
    shown = str(gp.export(model, (torch.ones(2),)))
    assert "\x1b" not in shown and "\\x1b[2J\\nw" in shown
