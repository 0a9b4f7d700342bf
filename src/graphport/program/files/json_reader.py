"""Reads JSON item by item, with limits, type checks and errors that say where.

A file is data from elsewhere. What it makes a reader compute or allocate is bounded by these
numbers and by the bytes that it really holds. They are far beyond what programs need: the deepest
expression of sizes in the models of the test-suite has nine levels.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from graphport import errors
from graphport.errors import SerializationError
from graphport.program import codegen
from graphport.program.codegen import RESERVED, is_identifier

MEMBERS = 16
"""Of the zip archive."""

JSON_BYTES = 1 << 29
HEADER_BYTES = 100_000_000
"""Of the header of the tensors, as in the safetensors format itself."""

DIGITS = 40
"""Of an integer: no number in a program needs more than 128 bits."""

INTEGER = 1 << 127
SIZE = 1 << 63
"""Sizes, strides and offsets are below."""

TEXT = 1 << 20
"""Characters of a text that is for people, such as a stack trace."""

NAME = 1_024
"""Characters of the name of an argument or symbol."""

PATH = 4_096
"""Characters of the path of a module, and of a node that is named after one."""

PATH_PARTS = 128
"""Modules within one another: torch walks through them recursively."""

PATHS = 1 << 25
"""Characters of all paths of modules, those of the modules that they are within included."""

STACK_ENTRIES = 32
MORE_STACK_ENTRIES = 100_000
"""Modules that nodes are within: so many per node on average, and so many besides."""

RANK = 64
VALUE_DEPTH = 32
TREE_DEPTH = 64
GRAPH_DEPTH = 32

EXPRESSION_DEPTH = 100
EXPRESSION_NODES = 1 << 14
"""When written out, shared parts as often as they occur: as in n - n//3, and that of it, ..."""

ALL_EXPRESSION_NODES = 1 << 18
MORE_EXPRESSION_NODES = 64
"""Of all expressions together: so many, and so many more for each."""

OPERANDS = 64
"""Of a minimum, a maximum, or of conditions that are connected."""

COMPARISONS = 1 << 16
MORE_COMPARISONS = 16
"""Of the operands of minima, and of the terms of products: in all, and for each expression."""

DEGREE = 64
"""The sum of powers in a product, operations within it included."""

UNBOUNDED_DEGREE = 16
"""What a power with a symbol in the exponent counts as."""

FACTOR_TERMS = 4_096
FACTS = 20_000

OVERLAPPING_BYTES = 1 << 30
"""Of a tensor whose elements share memory (an expanded one), if it were copied."""

ALIGNMENT = 64
"""Of the data of tensors within the file."""


# Items: read as the expected kind, or an error that says where.


def parse_json(text: bytes | memoryview, place: str) -> Item:
    """The JSON text as an item. Stricter than JSON: a key is given once, NaN is no number."""
    try:
        value = json.loads(
            str(text, "utf-8"),
            object_pairs_hook=_parse_object,
            parse_int=_parse_integer,
            parse_float=_parse_real,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise SerializationError(f"the text is not UTF-8: {error}", where=place) from None
    except RecursionError:
        raise SerializationError("lists and objects are nested too deeply", where=place) from None
    except ValueError as error:
        raise SerializationError(f"not valid JSON: {error}", where=place) from None
    return Item(value, None, place)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {format_excerpt(twice)} is given twice in one object")
    return found


def _parse_integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _parse_real(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise ValueError(f"the number {format_excerpt(digits)} is too large")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def format_excerpt(value: Any) -> str:
    """A value of the file in an error message: escaped, and not all of it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def is_utf8(text: str) -> bool:
    """Whether it has no surrogates, which JSON can say and nothing else can write."""
    return text.isascii() or not _SURROGATES.search(text)


_SURROGATES = re.compile("[\ud800-\udfff]")
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _format_field(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{format_excerpt(name)}]"


class Item:
    """A value, and where in the file it is. The place is put into words when it is needed."""

    __slots__ = ("key", "parent", "value")

    def __init__(self, value: object, parent: Item | None, key: str | int) -> None:
        self.value = value
        self.parent = parent
        self.key = key

    @property
    def place(self) -> str:
        keys: list[str | int] = []
        item: Item = self
        while item.parent is not None:
            keys.append(item.key)
            item = item.parent
        path = "".join(f"[{k}]" if isinstance(k, int) else _format_field(k) for k in reversed(keys))
        return f"{item.key}: {path.lstrip('.')}" if path else str(item.key)

    def fail(self, what: str, fix: str | Iterable[str] = ()) -> NoReturn:
        raise SerializationError(what, where=self.place, fix=fix)

    def _expected(self, kind: type) -> NoReturn:
        found = _KINDS[type(self.value)]
        self.fail(f"expected {_KINDS[kind]}, found {found}: {format_excerpt(self.value)}")

    def fields(self, *required: str, optional: Iterable[str] = ()) -> dict[str, Item]:
        """The fields of an object, which has these and no others."""
        value = self.value
        if type(value) is not dict:
            self._expected(dict)
        for name in required:
            if name not in value:
                self.fail(f"the field {name!r} is missing")
        allowed = (*required, *optional)
        for name in value:
            if name not in allowed:
                self.fail(f"unknown field {format_excerpt(name)}: expected {', '.join(allowed)}")
        return {name: Item(inner, self, name) for name, inner in value.items()}

    def named(self) -> dict[str, Item]:
        """The entries of an object with keys of its own."""
        if type(self.value) is not dict:
            self._expected(dict)
        return {name: Item(inner, self, name) for name, inner in self.value.items()}

    def list(
        self, length: int | None = None, most: int | None = None, start: int = 0
    ) -> list[Item]:
        value = self.value
        if type(value) is not list:
            self._expected(list)
        if length is not None and len(value) != length:
            self.fail(f"expected a list of {length}, found {len(value)} items")
        if most is not None and len(value) > most:
            self.fail(f"a list of {len(value)} items: at most {most} are allowed")
        return [Item(inner, self, i) for i, inner in enumerate(value[start:], start)]

    def text(self, most: int = TEXT) -> str:
        """Of so many characters at most; all of them can be written in UTF-8."""
        value = self.value
        if type(value) is not str:
            self._expected(str)
        if len(value) > most:
            self.fail(f"a text of {len(value)} characters: at most {most} are allowed")
        if not is_utf8(value):
            self.fail(f"{format_excerpt(value)} has half of a character in it")
        return value

    def words(self) -> str:
        """A text that is for people: it may be shown as it is."""
        return errors.escape_terminal(self.text())

    def truth(self) -> bool:
        if type(self.value) is not bool:
            self._expected(bool)
        return self.value

    def integer(self, low: int = -INTEGER, high: int = INTEGER) -> int:
        """From `low` to `high`, both included."""
        if type(self.value) is not int:
            self._expected(int)
        if not low <= self.value <= high:
            self.fail(f"{format_excerpt(self.value)} is not from {low} to {high}")
        return self.value

    def size(self) -> int:
        return self.integer(0, SIZE - 1)

    def index(self, count: int, of: str) -> int:
        """The number of an entry in a table of the file."""
        if type(self.value) is not int:
            self._expected(int)
        if not 0 <= self.value < count:
            self.fail(
                f"there is no {of} {format_excerpt(self.value)}: the file has {count} before this"
            )
        return self.value

    def choice(self, table: Any, what: str) -> Any:
        """What a table has under a name."""
        name = self.text()
        if name not in table:
            self.fail(f"unknown {what} {format_excerpt(name)}")
        return table[name]


# Names: which text may be one, and how long.
#
# Names of nodes and of their arguments are variables of generated code. Those of arguments, modules
# and state are the user's own and may be any text: what generates code from them makes other names
# of them (`program/codegen.py`).

_FURTHER_CALL = re.compile(r"@[0-9]+$")


def is_state_path(path: str) -> bool:
    """Whether a tensor can be stored at this path of attributes of a module."""
    taken = codegen.list_module_attributes()
    return bool(path) and is_call_key(path) and taken.isdisjoint(path.split("."))


def is_call_key(key: str) -> bool:
    """Whether it is the path of a module that is called, or a further call of it: `encoder@1`."""
    parts = key.split(".")
    return not key or (len(key) <= PATH and len(parts) <= PATH_PARTS and all(parts))


def is_call_of(key: str, path: str) -> bool:
    return key == path or _FURTHER_CALL.sub("", key) == path


def read_identifier(item: Item, what: str, most: int = NAME) -> str:
    name = item.text(most)
    if not is_identifier(name):
        item.fail(f"{format_excerpt(name)} cannot be the name of {what}")
    return name


def read_node_name(item: Item) -> str:
    """The name of a node, which is a variable of generated code."""
    name = read_identifier(item, "a node", PATH)
    if name in RESERVED:
        item.fail(
            f"a node cannot be named {format_excerpt(name)}: generated code has another use for it"
        )
    return name


def read_subgraph_name(item: Item) -> str:
    """The name of a subgraph."""
    name = item.text(PATH)
    taken = name in RESERVED or name in codegen.list_graph_module_attributes()
    if not is_identifier(name) or taken:
        item.fail(f"{format_excerpt(name)} cannot be the name of a graph")
    return name


def read_state_path(item: Item) -> str:
    """The fully qualified name of a parameter, buffer or constant."""
    name = item.text()
    if not is_state_path(name):
        item.fail(f"{format_excerpt(name)} cannot be the name of a parameter, buffer or constant")
    return name


def read_call_key(item: Item) -> str:
    """The path of a module that is called, empty for the program itself."""
    key = item.text()
    if not is_call_key(key):
        item.fail(f"{format_excerpt(key)} cannot be the path of a module")
    return key


class ModulePaths:
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
        if self._characters > PATHS:
            item.fail("the paths of modules are too long, and too many")


def read_argument_names(items: list[Item]) -> list[str]:
    """The user's own names of arguments; keywords may be any text."""
    return [item.text(NAME) for item in items]
