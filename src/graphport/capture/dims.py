"""`Dim`: a dimension that may vary, as the user writes it."""

from __future__ import annotations

from typing import Any, ClassVar

from graphport.errors import SpecError


class _Hint:
    """Dim.AUTO, Dim.DYNAMIC, Dim.STATIC."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


class Dim:
    """A symbolic dimension with a name and a range.

    Any size in the range is accepted, 0 and 1 included. Arithmetic gives derived dims:

    >>> d = Dim("d", min=2, max=8)
    >>> 2 * d + 1
    2*d + 1
    """

    AUTO: ClassVar[_Hint] = _Hint("AUTO")
    """May vary, and may turn out to be fixed."""
    DYNAMIC: ClassVar[_Hint] = _Hint("DYNAMIC")
    """Varies; an error if the program fixes it."""
    STATIC: ClassVar[_Hint] = _Hint("STATIC")
    """Fixed at the example size."""

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"a Dim needs a name that is a Python identifier, got {name!r}")
        if min is not None and min < 0:
            raise SpecError(f"Dim({name!r}): min={min} is negative")
        if max is not None and max < (min or 0):
            raise SpecError(f"Dim({name!r}): max={max} is smaller than min={min or 0}")
        self.__name__ = name
        self.min = 0 if min is None else min
        self.max = max
        self._given = (min, max)

    @property
    def root(self) -> Dim:
        return self

    def at(self, value: int) -> int:
        """The size, where the root is `value`."""
        return value

    @property
    def linear(self) -> tuple[int, int]:
        """(factor, offset) of the root."""
        return 1, 0

    def _derived(self, factor: int, offset: int) -> Dim:
        if (factor, offset) == (1, 0):
            return self.root
        return DerivedDim(self.root, factor, offset)

    def __add__(self, other: Any) -> Dim:
        _check_int(self, "+", other)
        factor, offset = self.linear
        return self._derived(factor, offset + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dim:
        _check_int(self, "-", other)
        return self + -other

    def __mul__(self, other: Any) -> Dim:
        _check_int(self, "*", other)
        if other <= 0:
            raise SpecError(f"a derived dim needs a positive factor: {self} * {other}")
        factor, offset = self.linear
        return self._derived(factor * other, offset * other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        low, high = self._given
        parts = [repr(self.__name__)]
        parts += [f"min={low}"] if low is not None else []
        parts += [f"max={high}"] if high is not None else []
        return f"Dim({', '.join(parts)})"


class DerivedDim(Dim):
    """factor * root + offset."""

    def __init__(self, root: Dim, factor: int, offset: int) -> None:
        self._root, self._factor, self._offset = root, factor, offset
        self.__name__ = _linear_text(root.__name__, factor, offset)
        self.min = max(self.at(root.min), 0)
        self.max = None if root.max is None else self.at(root.max)
        self._given = (None, None)

    @property
    def root(self) -> Dim:
        return self._root

    @property
    def linear(self) -> tuple[int, int]:
        return self._factor, self._offset

    def at(self, value: int) -> int:
        return self._factor * value + self._offset

    def __repr__(self) -> str:
        return self.__name__


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Several dims at once."""
    return tuple(Dim(name, min=min, max=max) for name in names)


def _linear_text(name: str, factor: int, offset: int) -> str:
    text = name if factor == 1 else f"{factor}*{name}"
    if offset:
        text += f" {'+' if offset > 0 else '-'} {abs(offset)}"
    return text


def _check_int(dim: Dim, sign: str, other: Any) -> None:
    if not isinstance(other, int) or isinstance(other, bool):
        raise SpecError(
            f"a derived dim is a Dim with an integer, as in 2*d + 1; got {dim} {sign} {other!r}"
        )
