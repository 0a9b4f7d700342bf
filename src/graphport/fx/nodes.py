"""What nodes are given and refer to, and where in the user's code they come from."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from graphport import source


def first(node: Node) -> Any:
    """The first argument of a call, by position or by name."""
    if node.args:
        return node.args[0]
    return node.kwargs.get("input", node.kwargs.get("self"))


def down_to(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c`, of the last."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def place_of(node: Node) -> source.Location | None:
    """The user's line that a node was recorded at, if that was recorded."""
    trace = (node.stack_trace or "").strip()
    # torch.fx strips what it records, frames of torch included.
    return source.of_trace(source.users_part(f"  {trace}")) if trace else None
