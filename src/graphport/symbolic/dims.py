"""`Dim`: a dimension that may vary, as the user writes it, and the hints that need no name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from graphport.arguments import check_arguments, integer
from graphport.errors import SpecError

_LINEAR_TEXT = "a derived dim is a Dim with an integer, as in 2*d + 1; got "


def _refuse_operator(sign: str, *, reflected: bool = False) -> Callable[..., object]:
    def method(self: _NoArithmetic, other: object) -> Any:
        left, right = (other, self) if reflected else (self, other)
        raise self._arithmetic_error(f"{left!r} {sign} {right!r}")

    return method


class _NoArithmetic:
    """Refuses every operator; a class takes back those that it has, and says why not others."""

    __add__, __radd__ = _refuse_operator("+"), _refuse_operator("+", reflected=True)
    __sub__, __rsub__ = _refuse_operator("-"), _refuse_operator("-", reflected=True)
    __mul__, __rmul__ = _refuse_operator("*"), _refuse_operator("*", reflected=True)
    __truediv__, __floordiv__ = _refuse_operator("/"), _refuse_operator("//")
    __mod__, __pow__ = _refuse_operator("%"), _refuse_operator("**")

    def __neg__(self) -> Any:
        raise self._arithmetic_error(f"-{self!r}")

    def _arithmetic_error(self, text: str) -> SpecError:
        raise NotImplementedError


@dataclass(frozen=True)
class Hint(_NoArithmetic):
    """Dim.AUTO, Dim.DYNAMIC or Dim.STATIC. The first two can be called with a range.

    >>> Dim.AUTO(min=1, max=64)
    Dim.AUTO(min=1, max=64)
    """

    kind: str
    min: float | None = None
    max: float | None = None
    label: str | None = None
    """What the size is called where it has no Dim; one label may stand for unequal sizes."""

    def __call__(self, *, min: float | None = None, max: float | None = None) -> Hint:
        if self.kind == "STATIC" or self != Hint(self.kind):
            raise SpecError(f"{self!r} takes no range", fix="Dim.DYNAMIC(min=..., max=...)")
        made = replace(self, min=min, max=max)
        for limit in (min, max):
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and (not is_number or math.isnan(limit)):
                raise SpecError(f"{made!r}: a limit is a number, got {limit!r}")
        if min is not None and max is not None and max < min:
            raise SpecError(f"{made!r}: max={max} is smaller than min={min}")
        return made

    def __repr__(self) -> str:
        limits = _format_limits(self.min, self.max)
        if self.label is not None and not limits:
            return repr(self.label)
        return f"Dim.{self.kind}({limits})" if limits else f"Dim.{self.kind}"

    def _arithmetic_error(self, text: str) -> SpecError:
        return SpecError(
            f"a derived dim needs a Dim with a name; got {text}", fix='d = Dim("d"), then 2*d + 1'
        )


class Dim(_NoArithmetic):
    """A symbolic dimension with a name and a range.

    Any size in the range is accepted, 0 and 1 included. Arithmetic gives derived dims:

    >>> d = Dim("d", min=2, max=8)
    >>> 2 * d + 1
    2*d + 1
    """

    AUTO: ClassVar[Hint] = Hint("AUTO")
    """May vary, and may turn out to be fixed."""
    DYNAMIC: ClassVar[Hint] = Hint("DYNAMIC")
    """Varies; an error if the program fixes it."""
    STATIC: ClassVar[Hint] = Hint("STATIC")
    """Fixed at the example size."""

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"a Dim needs a name that is a Python identifier, got {name!r}")
        for text, limit in (("min", min), ("max", max)):
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
                raise SpecError(f"Dim({name!r}): {text} is an integer, got {limit!r}")
        if min is not None and min < 0:
            raise SpecError(f"Dim({name!r}): min={min} is negative")
        if max is not None and max < (min or 0):
            raise SpecError(f"Dim({name!r}): max={max} is smaller than min={min or 0}")
        self.__name__ = name
        self.min = 0 if min is None else min
        self.max = max
        self.given = (min, max)
        """The ends of the range that were written."""

    @property
    def root(self) -> Dim:
        return self

    @check_arguments(value=integer())
    def at(self, value: int) -> int:
        """The size, where the root is `value`."""
        factor, offset = self.linear
        return factor * value + offset

    @property
    def linear(self) -> tuple[int, int]:
        """(factor, offset) of the root."""
        return 1, 0

    @property
    def least_root(self) -> int:
        """The smallest root for which this is a size, that is, not negative."""
        factor, offset = self.linear
        return max(self.root.min, -(offset // factor))

    def _derived(self, factor: int, offset: int) -> Dim:
        if (factor, offset) == (1, 0):
            return self.root
        return DerivedDim(self.root, factor, offset)

    def __add__(self, other: Any) -> Dim:
        self._check_int("+", other)
        factor, offset = self.linear
        return self._derived(factor, offset + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dim:
        self._check_int("-", other)
        return self + -other

    def __mul__(self, other: Any) -> Dim:
        self._check_int("*", other)
        if other <= 0:
            raise SpecError(f"a derived dim needs a positive factor: {self} * {other}")
        factor, offset = self.linear
        return self._derived(factor * other, offset * other)

    __rmul__ = __mul__

    def _check_int(self, sign: str, other: object) -> None:
        if not isinstance(other, int) or isinstance(other, bool):
            raise self._arithmetic_error(f"{self} {sign} {other!r}")

    def _arithmetic_error(self, text: str) -> SpecError:
        fix: tuple[str, ...] = ()
        if " // " in text or " / " in text:
            name = self.root.__name__
            fix = (f'half = Dim("half"), and {name} = 2*half: name the smaller one',)
        return SpecError(_LINEAR_TEXT + text, fix=fix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        root = self.root
        return root.__name__, root.min, root.max, self.linear

    def __repr__(self) -> str:
        parts = [repr(self.__name__), _format_limits(*self.given)]
        return f"Dim({', '.join(filter(None, parts))})"


class DerivedDim(Dim):
    """factor * root + offset."""

    def __init__(self, root: Dim, factor: int, offset: int) -> None:
        self._root, self._factor, self._offset = root, factor, offset
        self.__name__ = _format_linear(root.__name__, factor, offset)
        self.min = max(self.at(root.min), 0)
        self.max = None if root.max is None else self.at(root.max)
        self.given = (None, None)

    @property
    def root(self) -> Dim:
        return self._root

    @property
    def linear(self) -> tuple[int, int]:
        return self._factor, self._offset

    def __repr__(self) -> str:
        return self.__name__


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Several dims at once.

    >>> dims("a", "b", max=8)
    (Dim('a', max=8), Dim('b', max=8))
    """
    return tuple(Dim(name, min=min, max=max) for name in names)


def convert_torch_dim(x: Any) -> Any:
    """PyTorch's own Dim and hints as ours, known by their looks; anything else as it is."""
    kind = getattr(getattr(x, "type", None), "name", None)
    if isinstance(kind, str) and type(x).__name__ == "_DimHint":
        return Hint(kind, x.min, x.max)
    if isinstance(x, Dim) or not isinstance(getattr(x, "__name__", None), str):
        return x
    if hasattr(x, "fn") and hasattr(x, "root"):
        offset = int(x.fn(0))
        return convert_torch_dim(x.root) * (int(x.fn(1)) - offset) + offset
    if hasattr(x, "min") and hasattr(x, "max"):
        low, high = x.min, x.max
        return Dim(x.__name__, min=int(low) or None, max=int(high) if high < math.inf else None)
    return x


def _format_limits(low: float | None, high: float | None) -> str:
    parts = [f"{name}={v}" for name, v in (("min", low), ("max", high)) if v is not None]
    return ", ".join(parts)


def _format_linear(name: str, factor: int, offset: int) -> str:
    text = name if factor == 1 else f"{factor}*{name}"
    if offset:
        text += f" {'+' if offset > 0 else '-'} {abs(offset)}"
    return text
