"""What may be a name, and how long.

Names of nodes and of their arguments are variables of generated code. Those of arguments, modules
and state are the user's own and may be any text: what generates code from them makes other names of
them (`program/identifiers.py`).
"""

from __future__ import annotations

import re
from typing import Any

from graphport.program import attributes
from graphport.program.files import limits
from graphport.program.files.items import Item, shown
from graphport.program.identifiers import RESERVED, is_identifier

_FURTHER_CALL = re.compile(r"@[0-9]+$")


def is_path(path: str) -> bool:
    """Whether a tensor can be stored at this path of attributes of a module."""
    taken = attributes.of_modules()
    return bool(path) and is_call(path) and taken.isdisjoint(path.split("."))


def is_call(key: str) -> bool:
    """Whether it is the path of a module that is called, or a further call of it: `encoder@1`."""
    parts = key.split(".")
    return not key or (len(key) <= limits.PATH and len(parts) <= limits.PATH_PARTS and all(parts))


def is_call_of(key: str, path: str) -> bool:
    return key == path or _FURTHER_CALL.sub("", key) == path


def identifier(item: Item, what: str, most: int = limits.NAME) -> str:
    name = item.text(most)
    if not is_identifier(name):
        item.fail(f"{shown(name)} cannot be the name of {what}")
    return name


def node(item: Item) -> str:
    """The name of a node, which is a variable of generated code."""
    name = identifier(item, "a node", limits.PATH)
    if name in RESERVED:
        item.fail(f"a node cannot be named {shown(name)}: generated code has another use for it")
    return name


def child(item: Item) -> str:
    """The name of a graph within a graph."""
    name = item.text(limits.PATH)
    taken = name in RESERVED or name in attributes.of_graphs()
    if not is_identifier(name) or taken:
        item.fail(f"{shown(name)} cannot be the name of a graph")
    return name


def path(item: Item) -> str:
    """The fully qualified name of a parameter, buffer or constant."""
    name = item.text()
    if not is_path(name):
        item.fail(f"{shown(name)} cannot be the name of a parameter, buffer or constant")
    return name


def call(item: Item) -> str:
    """The path of a module that is called, empty for the program itself."""
    key = item.text()
    if not is_call(key):
        item.fail(f"{shown(key)} cannot be the path of a module")
    return key


class Tree:
    """The modules that paths lead through: a few long paths would make very many."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._characters = 0

    def add(self, item: Item, path: str) -> None:
        branch, length = self._root, 0
        for part in path.split("."):
            length += len(part) + 1
            if part not in branch:
                branch[part] = {}
                self._characters += length
            branch = branch[part]
        if self._characters > limits.PATHS:
            item.fail("the paths of modules are too long, and too many")


def arguments(items: list[Item]) -> list[str]:
    """The user's own names of arguments; keywords may be any text."""
    return [item.text(limits.NAME) for item in items]
