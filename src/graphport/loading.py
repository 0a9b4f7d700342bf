"""Names of a package that are loaded when they are first used, not with the package."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, base: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `places` has the module of each name, below `base`.

    No module may be called as a name is: importing it would put it in the name's place.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{base}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
