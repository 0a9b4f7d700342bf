"""The partitioner: a graph over several devices, and what runs it there."""

from importlib import import_module
from typing import Any

_PLACES: dict[str, str] = {}
"""The file of each name, loaded when it is first used; no file is called as a name is."""

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'graphport.partition' has no attribute {name!r}")
    found = getattr(import_module(f"graphport.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
