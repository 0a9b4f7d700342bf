"""How torch spells what both programs have: symbols, modules that are running, paths of inputs."""

from __future__ import annotations

import re
from typing import Any

Stack = dict[str, tuple[str, Any]]

_ROOT = "L__self__"


def symbol_index(name: str, letters: str = "su") -> int | None:
    """The number in a name that torch could have given: s7 for a size, u7 if it depends on data."""
    match = re.fullmatch(f"[{letters}](\\d+)", name)
    return int(match[1]) if match else None


def torch_stack(stack: Stack, root: tuple[str, str]) -> Stack:
    """nn_module_stack as torch has it; a node of no module belongs to the outermost one."""
    if not stack:
        return {_ROOT: root}
    return {f"{_ROOT}{key}": place for key, place in stack.items()}


def our_stack(stack: Stack | None) -> Stack:
    """nn_module_stack as capture records it: by path, with the number of a further call."""
    ours: Stack = {}
    for key, (path, kind) in (stack or {}).items():
        if path.startswith("_empty_nn_module_stack"):
            continue
        call = key.rpartition("@")[2] if "@" in key else ""
        path = path.partition("@")[0]
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        ours[f"{path}@{call}" if call else path] = (path, name)
    return ours
