"""What may be a name.

`.module()` writes Python from the names of nodes and arguments, and puts tensors at the attributes
that they are named after. A name of a file must not become anything else there.
"""

from __future__ import annotations

import keyword
import unicodedata

from graphport.program import attributes
from graphport.program.files.items import Item, shown
from graphport.program.module import RESERVED, parameter_names

# The two sides of a text in quotes.
_QUOTES = set("\"'\\")


def is_identifier(name: str) -> bool:
    """Whether Python reads the name as a plain variable, and as this very one."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
        and name != "__debug__"
    )


def is_path(path: str) -> bool:
    """Whether a tensor can be stored at this path of attributes of a module."""
    return all(
        part
        and part.isprintable()
        and not _QUOTES.intersection(part)
        and not part.startswith("__")
        and part not in attributes.of_modules()
        for part in path.split(".")
    )


def identifier(item: Item, what: str) -> str:
    name = item.text()
    if not is_identifier(name):
        item.fail(f"{shown(name)} cannot be the name of {what}")
    return name


def node(item: Item) -> str:
    """The name of a node, which is a variable of generated code."""
    name = identifier(item, "a node")
    if name in RESERVED:
        item.fail(f"a node cannot be named {shown(name)}: generated code has another use for it")
    return name


def child(item: Item) -> str:
    """The name of a graph within a graph."""
    name = item.text()
    taken = name in RESERVED or name in attributes.of_graphs()
    if not is_identifier(name) or taken or not is_path(name):
        item.fail(f"{shown(name)} cannot be the name of a graph")
    return name


def path(item: Item) -> str:
    """The fully qualified name of a parameter, buffer or constant."""
    name = item.text()
    if not is_path(name):
        item.fail(f"{shown(name)} cannot be the name of a parameter, buffer or constant")
    return name


def arguments(items: list[Item]) -> list[str]:
    """The user's own names of arguments; keywords may be any text that becomes an identifier."""
    names = [item.text() for item in items]
    for item, safe in zip(items, parameter_names(names), strict=True):
        if not is_identifier(safe):
            item.fail(f"{shown(item.value)} cannot be the name of an argument")
    return names
