"""What packages above offer to those below, which may not import them.

`graphport/__init__.py`, which runs before every other module of the package, fills this in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

check_report: Callable[[Any], None]
"""`graphport.report.check_path`: raises unless a report can be written there."""
write_report: Callable[..., Any]
"""`graphport.report.write`: (ONNXProgram, path, timings, verification) -> None."""
