"""How torch spells what both programs have: symbols, modules that are running, paths of inputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

Stack = dict[str, tuple[str, Any]]
Entry = tuple[str, tuple[str, Any]]

_ROOT = "L__self__"


def symbol_index(name: str, letters: str = "su") -> int | None:
    """The number in a name that torch could have given: s7 for a size, u7 if it depends on data."""
    match = re.fullmatch(f"[{letters}](\\d+)", name)
    return int(match[1]) if match else None


class Stacks:
    """nn_module_stack of many nodes, with each module told anew once.

    Modules within one another are in the stacks of all that they call: their number is that of the
    nodes times the depth, so that a stack is put together without Python code of ours.
    """

    def __init__(self, tell: Callable[[Entry], Entry | None]) -> None:
        self._tell = functools.cache(tell)

    def __call__(self, stack: Stack | None) -> Stack:
        """A module of which there is nothing to tell is left out."""
        return dict(filter(None, map(self._tell, (stack or {}).items())))


def torch_stacks(place: Callable[[str], str], root: tuple[str, str]) -> Callable[[Any], Stack]:
    """nn_module_stack as torch has it; a node of no module belongs to the outermost one."""

    def tell(entry: Entry) -> Entry:
        key, (path, kind) = entry
        return f"{_ROOT}{place(key)}", (place(path), kind)

    stacks = Stacks(tell)
    return lambda stack: stacks(stack) or {_ROOT: root}


def our_stacks() -> Stacks:
    """nn_module_stack as capture records it: by path, with the number of a further call."""
    return Stacks(_our_entry)


def _our_entry(entry: Entry) -> Entry | None:
    key, (path, kind) = entry
    if path.startswith("_empty_nn_module_stack"):
        return None
    call = key.rpartition("@")[2] if "@" in key else ""
    path = path.partition("@")[0]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return f"{path}@{call}" if call else path, (path, name)
