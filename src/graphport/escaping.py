"""Text from elsewhere where it is shown: on a terminal, in Markdown, in HTML.

Names of modules, keys of inputs and stack traces may come from a file, and hold whatever its author
liked. A function per kind of output lets it be read and not act. JSON escapes by itself.
"""

from __future__ import annotations

import html as _html
import re

# Control characters but the tab and the end of a line; what changes the direction of writing or is
# not seen; what ends a line for some readers; halves of characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ENDS = re.compile("[\t\n]")
_MARKUP = re.compile(r"(?<=\])(?=[(:])|(?=`)")


def terminal(text: str) -> str:
    r"""Several lines for a terminal.

    >>> print(terminal("\x1b[31mred\x1b[0m\n"), end="")
    \x1b[31mred\x1b[0m
    """
    return _CONTROL.sub(_escaped, text)


def line(text: str) -> str:
    r"""A part of one line.

    >>> print(line("two\nlines"))
    two\nlines
    """
    return _ENDS.sub(_escaped, terminal(text))


def markdown(text: str) -> str:
    """Text of Markdown: no HTML, no links, no code.

    >>> print(markdown("<script> [here](javascript:x) f32[2]"))
    &lt;script&gt; [here]\\(javascript:x) f32[2]
    """
    return _MARKUP.sub(r"\\", _html.escape(terminal(text), quote=False))


def html(text: str) -> str:
    """Text of HTML, also within the quotes of an attribute.

    >>> html("<b>")
    '&lt;b&gt;'
    """
    return _html.escape(terminal(text))


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
