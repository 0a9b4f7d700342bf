"""What capture does for programs that exist already.

A program knows nothing of capture, which stands above it and registers what it offers here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

Decompose = Callable[["ExportedProgram", Any, tuple[Any, ...]], "ExportedProgram"]

decompose: Decompose
"""(program, table, operators to keep) -> the program over fewer operators."""

TakeApart = Callable[["ExportedProgram", Callable[[Any], bool]], "ExportedProgram"]

take_apart: TakeApart
"""(program, which operators are known) -> the program with the others taken apart."""
