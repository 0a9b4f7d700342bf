"""Where in the user's code a node comes from."""

from __future__ import annotations

from torch.fx import Node

from graphport import source


def place_of(node: Node) -> source.Location | None:
    """The user's line that a node was recorded at, if that was recorded."""
    trace = (node.stack_trace or "").strip()
    # torch.fx strips what it records, frames of torch included.
    return source.of_trace(source.users_part(f"  {trace}")) if trace else None
