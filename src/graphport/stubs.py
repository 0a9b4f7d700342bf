"""Imports public names lazily, from the modules that a package's stub (`__init__.pyi`) names.

The stub (`__init__.pyi`) is the one list of a package's names: type checkers read it, and so does
this module. No submodule may be called as a name is: importing it would take the name's place.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def attach_stub(
    package: str, file: str, new_words: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the `__all__` of the package whose `__init__.py` is `file`.

    `new_words` says what to write in place of names that users look for and do not find.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    places = {
        alias.name: line.module or ""
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def load(name: str) -> Any:
        if name not in places:
            new = (new_words or {}).get(name)
            hint = f": {new}" if new else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        place = places[name]
        if place == package:
            return import_module(f"{package}.{name}")
        found = getattr(import_module(place), name)
        setattr(sys.modules[package], name, found)
        return found

    return load, sorted(places)
