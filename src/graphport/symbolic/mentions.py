"""Where a symbol occurs: who has to be told when it gets another form.

Looking through everything known for each new fact would make a chain of facts quadratic.
"""

from __future__ import annotations

from graphport.symbolic.nodes import Expr, Value, symbols


class Mentions:
    """For each symbol, the holders of expressions that contain it, in order of arrival."""

    def __init__(self) -> None:
        self._holders: dict[Expr, dict[Expr, None]] = {}

    def add(self, holder: Expr, e: Value) -> None:
        """Note that `holder` has to do with `e`; never taken back, so ask the holder again."""
        for s in symbols(e):
            self._holders.setdefault(s, {})[holder] = None

    def of(self, part: Expr) -> list[Expr]:
        """The holders that may contain `part`: those of its rarest symbol."""
        return list(min((self._holders.get(s, {}) for s in symbols(part)), key=len, default={}))
