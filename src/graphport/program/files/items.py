"""JSON from a file, read item by item: of the expected kind, or an error that says where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from graphport import escaping
from graphport.errors import SerializationError
from graphport.program.files import limits


def parse(text: bytes | memoryview, place: str) -> Item:
    """The JSON text as an item. Stricter than JSON: a key is given once, NaN is no number."""
    try:
        value = json.loads(
            str(text, "utf-8"),
            object_pairs_hook=_object, parse_int=_integer, parse_float=_real,
            parse_constant=_constant,
        )  # fmt: skip
    except UnicodeDecodeError as error:
        raise SerializationError(f"the text is not UTF-8: {error}", where=place) from None
    except RecursionError:
        raise SerializationError("lists and objects are nested too deeply", where=place) from None
    except ValueError as error:
        raise SerializationError(f"not valid JSON: {error}", where=place) from None
    return Item(value, None, place)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} is given twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > limits.DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise ValueError(f"the number {shown(digits)} is too large")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def shown(value: Any) -> str:
    """A value of the file in an error message: escaped, and not all of it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def is_utf8(text: str) -> bool:
    """Whether it has no surrogates, which JSON can say and nothing else can write."""
    return text.isascii() or not _SURROGATES.search(text)


_SURROGATES = re.compile("[\ud800-\udfff]")
_KINDS = {
    dict: "an object", list: "a list", str: "a text", int: "an integer", float: "a number",
    bool: "true or false", type(None): "null",
}  # fmt: skip


def _field(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{shown(name)}]"


class Item:
    """A value, and where in the file it is. The place is put into words when it is needed."""

    __slots__ = ("key", "parent", "value")

    def __init__(self, value: Any, parent: Item | None, key: str | int) -> None:
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
        path = "".join(f"[{k}]" if isinstance(k, int) else _field(k) for k in reversed(keys))
        return f"{item.key}: {path.lstrip('.')}" if path else str(item.key)

    def fail(self, what: str, fix: str | Iterable[str] = ()) -> NoReturn:
        raise SerializationError(what, where=self.place, fix=fix)

    def _expected(self, kind: type) -> NoReturn:
        found = _KINDS[type(self.value)]
        self.fail(f"expected {_KINDS[kind]}, found {found}: {shown(self.value)}")

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
                self.fail(f"unknown field {shown(name)}: expected {', '.join(allowed)}")
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

    def text(self, most: int = limits.TEXT) -> str:
        """Of so many characters at most; all of them can be written in UTF-8."""
        value = self.value
        if type(value) is not str:
            self._expected(str)
        if len(value) > most:
            self.fail(f"a text of {len(value)} characters: at most {most} are allowed")
        if not is_utf8(value):
            self.fail(f"{shown(value)} has half of a character in it")
        return value

    def words(self) -> str:
        """A text that is for people: it may be shown as it is."""
        return escaping.terminal(self.text())

    def truth(self) -> bool:
        if type(self.value) is not bool:
            self._expected(bool)
        return self.value

    def integer(self, low: int = -limits.INTEGER, high: int = limits.INTEGER) -> int:
        """From `low` to `high`, both included."""
        if type(self.value) is not int:
            self._expected(int)
        if not low <= self.value <= high:
            self.fail(f"{shown(self.value)} is not from {low} to {high}")
        return self.value

    def size(self) -> int:
        return self.integer(0, limits.SIZE - 1)

    def index(self, count: int, of: str) -> int:
        """The number of an entry in a table of the file."""
        if type(self.value) is not int:
            self._expected(int)
        if not 0 <= self.value < count:
            self.fail(f"there is no {of} {shown(self.value)}: the file has {count} before this")
        return self.value

    def choice(self, table: Any, what: str) -> Any:
        """What a table has under a name."""
        name = self.text()
        if name not in table:
            self.fail(f"unknown {what} {shown(name)}")
        return table[name]
