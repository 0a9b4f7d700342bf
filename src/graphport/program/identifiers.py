"""Text as names in generated Python: which text is a name, and which name stands for other text.

Modules, arguments and keys of a user's program may be called anything (`class`, `a"b`, `µ`), and
torch.fx writes names into the code that it generates as they are. What it would not read back as
the same name gets another one.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Container, Iterable

from torch.fx import Graph

from graphport.errors import InternalError

# Names that generated code gives a meaning of its own.
RESERVED = frozenset(
    {*keyword.kwlist, "self", "torch", "device", "inf", "nan", "NoneType", "pytree", "fx_pytree"}
)
# What ends, or changes the meaning of, a text in quotes.
_QUOTES = frozenset("\"'\\")


def is_identifier(name: str) -> bool:
    """Whether Python reads the name as a plain variable, and as this very one."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and (name.isascii() or unicodedata.normalize("NFKC", name) == name)
        and name != "__debug__"
    )


def make_identifier(text: str) -> str:
    """An identifier, or a keyword, that is as close to the text as it can be.

    >>> make_identifier("encoder.layers.0"), make_identifier("0"), make_identifier("µ") == "μ"
    ('encoder_layers_0', '_0', True)
    """
    for name in (unicodedata.normalize("NFKC", text), text.encode("ascii", "replace").decode()):
        name = re.sub(r"\W", "_", name)
        name = name if name[:1].isidentifier() else f"_{name}"
        if is_identifier(name) or keyword.iskeyword(name):
            break
    return name


def unique_identifiers(texts: Iterable[str]) -> list[str]:
    """Names for the parameters of generated code: keywords of a call may be any text."""
    used: set[str] = set()
    found = []
    for text in texts:
        wanted = make_identifier(text)
        while wanted in RESERVED or wanted in used or not is_identifier(wanted):
            wanted += "_"
        used.add(wanted)
        found.append(wanted)
    return found


def is_attribute(name: str) -> bool:
    """Whether code of torch.fx, `x.name` or `getattr(x, "name")`, gets at an attribute."""
    return is_identifier(name) if name.isidentifier() else is_quotable(name)


def is_quotable(text: str) -> bool:
    """Whether the text stands for itself in quotes of either kind."""
    return text.isprintable() and not _QUOTES.intersection(text)


def rename(names: Iterable[str], taken: Container[str]) -> dict[str, str]:
    """Other names for attributes that are taken, or that generated code cannot get at."""
    wanted = set(names)
    found: dict[str, str] = {}
    for name in sorted(wanted):
        if name not in taken and is_attribute(name):
            continue
        new = name if is_attribute(name) else make_identifier(name)
        new = f"{new}_" if new == name or keyword.iskeyword(new) else new
        while new in taken or new in wanted or new in found.values():
            new += "_"
        found[name] = new
    return found


def require_attributes(graph: Graph) -> None:
    """That code of a graph gets at the attributes it means: whatever else would be run as code."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module", "call_method"):
            if not all(map(is_attribute, str(node.target).split("."))):
                raise InternalError(f"the attribute {node.target!r} cannot be written as code")
