"""The single input checks, each as an error message and as generated Python.

A step says the same thing twice. `failure` looks at the inputs and returns what is wrong with them
in the user's terms, or None; `lines` is Python that returns False exactly where `failure` finds
something. The Python of all steps is compiled into one function, which costs a tenth of the walk;
the words are needed only after it has said no.

Steps share the values of symbols: `env` when they walk, variables of the generated code otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from graphport.symbolic import Expr, Range, Truth, Value, evaluate, symbolic_repr, symbols
from graphport.symbolic.bridge import evaluate_in_torch
from graphport.symbolic.nodes import operands
from graphport.symbolic.printing import to_str
from graphport.tensors.abstract import AbstractTensor
from graphport.tensors.concrete import address_range
from graphport.types import PyTree

Environment = dict[Expr, Any]

# What an expression can raise at some values: no root of a negative number, nothing divided by 0.
EVALUATION_ERRORS = (ArithmeticError, ValueError, TypeError)

ASSERTION_PREFIX = "Runtime assertion failed for expression"
"""How a check begins that capture made of an assumption: people search for it."""

# An expression with more operations is evaluated where it stands: shared parts would be written
# out each time, and Python's parser nests only so deep.
MAX_OPERATIONS = 60


class Code:
    """What the lines of all steps have in common: variables of symbols, objects by name."""

    def __init__(self) -> None:
        self.variables: dict[Expr, str] = {}
        self.names: dict[str, Any] = {
            "Tensor": torch.Tensor,
            "inf": math.inf,
            "nan": math.nan,
            "evaluate": evaluate_in_torch,
            "is_int": is_int,
            "is_float": is_float,
            "same": is_same_constant,
            "is_apart": is_non_overlapping,
        }

    def object(self, value: Any) -> str:
        """A name for an object that has no literal."""
        name = f"object_{len(self.names)}"
        self.names[name] = value
        return name

    def text(self, e: Value) -> str:
        """An expression as Python; it stands in parentheses unless it is a name or a number."""
        if type(e) is not Expr:
            return repr(e)
        if e.kind == "symbol":
            return self.variables[e]
        if e.size <= MAX_OPERATIONS and not _holds_float(e):
            return f"({to_str(e, self.variables)})"
        values = ", ".join(f"{self.object(s)}: {self.variables[s]}" for s in symbols(e))
        return f"evaluate({self.object(e)}, {{{values}}})"


def _holds_float(e: Value) -> bool:
    """Python's functions of floats would ask a symbolic size for its number."""
    return type(e) is Expr and (e.type is float or any(map(_holds_float, operands(e))))


class Step(Protocol):
    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        """What is wrong with the inputs, in the user's terms. May add to `env`."""

    def lines(self, code: Code) -> list[str]:
        """The same as statements of Python that `return False`."""


@dataclass(frozen=True)
class Place:
    """Where a number is found: a size of a tensor among the flat inputs, or an input itself."""

    path: str
    index: int
    dim: int | None = None

    def value(self, leaves: Sequence[PyTree]) -> Any:
        leaf = leaves[self.index]
        return leaf if self.dim is None else leaf.shape[self.dim]

    @property
    def variable(self) -> str:
        return variable_name(self.index) + ("" if self.dim is None else f"_{self.dim}")


def variable_name(index: int) -> str:
    """The variable that holds a flat input in generated code."""
    return f"x{index}"


# What an input is


# The attribute is five times faster than the type of the device.
_DEVICES = {"cpu": "is_cpu", "cuda": "is_cuda", "meta": "is_meta"}


@dataclass(frozen=True)
class IsTensor:
    """A tensor of the captured rank, dtype and kind of device, static sizes included."""

    path: str
    index: int
    sizes: tuple[int | Expr, ...]
    dtype: torch.dtype | None
    device: torch.device | None

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        leaf = leaves[self.index]
        at = f"Expected input at {self.path}"
        if not isinstance(leaf, torch.Tensor):
            return f"{at} to be a tensor, but got {_type_name(leaf)}"
        if leaf.ndim != len(self.sizes):
            return f"{at} to have {len(self.sizes)} dimensions, but got {leaf.ndim}"
        if self.dtype is not None and leaf.dtype is not self.dtype:
            return f"{at} to have dtype {self.dtype}, but got {leaf.dtype}"
        if self.device is not None and leaf.device.type != self.device.type:
            return (
                f"{at} to be on {self.device.type}, where the program was captured, but got a "
                f"tensor on {leaf.device.type}"
            )
        for d, (size, want) in enumerate(zip(leaf.shape, self.sizes, strict=True)):
            if type(want) is int and size != want:
                return f"{at}.shape[{d}] to be equal to {want}, but got {size}"
        return None

    def lines(self, code: Code) -> list[str]:
        x = variable_name(self.index)
        wrong = [f"not isinstance({x}, Tensor)"]
        if self.dtype is not None:
            wrong.append(f"{x}.dtype is not {code.object(self.dtype)}")
        if self.device is not None:
            kind = self.device.type
            known = _DEVICES.get(kind)
            wrong.append(f"not {x}.{known}" if known else f"{x}.device.type != {kind!r}")
        if all(type(size) is int for size in self.sizes):
            wrong.append(f"{x}.shape != {self.sizes!r}")
            return [f"if {' or '.join(wrong)}: return False"]
        sizes = [f"{x}_{d}" for d in range(len(self.sizes))]
        fixed = [
            f"{size} != {want}"
            for size, want in zip(sizes, self.sizes, strict=True)
            if type(want) is int
        ]
        lines = [
            f"if {' or '.join(wrong)}: return False",
            f"shape = {x}.shape",
            f"if len(shape) != {len(sizes)}: return False",
            f"{', '.join(sizes)}, = shape",
        ]
        return [*lines, f"if {' or '.join(fixed)}: return False"] if fixed else lines


@dataclass(frozen=True)
class IsConstant:
    """The value that was part of the program when it was captured."""

    path: str
    index: int
    value: Any

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        leaf = leaves[self.index]
        if is_same_constant(leaf, self.value):
            return None
        want, got = (
            str(self.value),
            _type_name(leaf) if isinstance(leaf, torch.Tensor) else str(leaf),
        )
        if want == got:
            want, got = f"{want} ({_type_name(self.value)})", f"{got} ({_type_name(leaf)})"
        return f"Expected input at {self.path} to be equal to {want}, but got {got}"

    def lines(self, code: Code) -> list[str]:
        x, value = variable_name(self.index), self.value
        if value is None or type(value) is bool:
            return [f"if {x} is not {value}: return False"]
        if type(value) is str:
            return [f"if type({x}) is not str or {x} != {value!r}: return False"]
        if type(value) is int and value.bit_length() < 64:
            quick = f"type({x}) is int and {x} == {value!r}"
            return [f"if not ({quick}) and not same({x}, {value!r}): return False"]
        name = code.object(value)
        # Others are mostly unique objects, such as dtypes: asking for the same one is quick.
        return [f"if {x} is not {name} and not same({x}, {name}): return False"]


def is_same_constant(a: Any, b: Any) -> bool:
    """Whether no program can tell two constants apart: 1 is not True, 0.0 not -0.0, nan is nan."""
    if isinstance(a, torch.SymInt) and type(b) is int:
        return bool(a == b)  # a program that is captured again: fixed from now on
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        both_nan = a != a and b != b
        return both_nan or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
    if isinstance(a, complex):
        return is_same_constant(a.real, b.real) and is_same_constant(a.imag, b.imag)
    return bool(a == b)


def _type_name(value: object) -> str:
    return type(value).__name__


@dataclass(frozen=True)
class IsNumber:
    """A number that is an input of the program."""

    path: str
    index: int
    type: type

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        leaf = leaves[self.index]
        accepts, name, _ = _NUMBERS[self.type]
        if accepts(leaf):
            return None
        return f"Expected input at {self.path} to be {name}, but got {_type_name(leaf)}"

    def lines(self, code: Code) -> list[str]:
        x = variable_name(self.index)
        _, _, function = _NUMBERS[self.type]
        quick = self.type.__name__
        return [f"if type({x}) is not {quick} and not {function}({x}): return False"]


def is_int(x: object) -> bool:
    return isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)


def is_float(x: object) -> bool:
    """An int will not do: eager would compute in another dtype."""
    return isinstance(x, (float, torch.SymFloat))


_NUMBERS: dict[type, tuple[Callable[[Any], bool], str, str]] = {
    int: (is_int, "an int", "is_int"),
    float: (is_float, "a float", "is_float"),
}


# What a number at a place tells


@dataclass(frozen=True)
class Within:
    """The number at a place lies in a range."""

    place: Place
    limits: Range

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        return _describe_out_of_range(self.place, self.place.value(leaves), self.limits)

    def lines(self, code: Code) -> list[str]:
        return _emit_range_check(
            self.place.variable, self.limits, is_size=self.place.dim is not None
        )


def _describe_out_of_range(place: Place, value: Any, limits: Range) -> str | None:
    # Not `value < lower`: nan is in no range that has an end.
    if limits.lower != -math.inf and not value >= limits.lower:
        return f"Expected input at {place.path} to be >= {limits.lower}, but got {value}"
    if limits.upper != math.inf and not value <= limits.upper:
        return f"Expected input at {place.path} to be <= {limits.upper}, but got {value}"
    return None


def _emit_range_check(x: str, limits: Range, *, is_size: bool = False) -> list[str]:
    # No size is negative.
    low = f"{limits.lower} <= " if limits.lower > (0 if is_size else -math.inf) else ""
    high = f" <= {limits.upper}" if limits.upper != math.inf else ""
    return [f"if not {low}{x}{high}: return False"] if low or high else []


@dataclass(frozen=True)
class Binds:
    """The number at a place is the value of a symbol that was not known before."""

    place: Place
    symbol: Expr

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        env[self.symbol] = self.place.value(leaves)
        return None

    def lines(self, code: Code) -> list[str]:
        code.variables[self.symbol] = self.place.variable
        return []


@dataclass(frozen=True)
class Solves:
    """The number at a place is factor*symbol + rest, which tells the symbol.

    Where the factor is 0 any value will do; it gets the least.
    """

    place: Place
    expr: Expr
    symbol: Expr
    factor: int | Expr
    rest: int | Expr
    limits: Range
    """The range of the symbol."""

    @property
    def least(self) -> Any:
        lower, upper = self.limits.lower, self.limits.upper
        return min(0, upper) if lower == -math.inf else lower

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        value = self.place.value(leaves)
        try:
            factor, rest = evaluate(self.factor, env), evaluate(self.rest, env)
        except EVALUATION_ERRORS as error:
            return _describe_undefined(self.place, self.expr, env, error)
        part = value - rest
        if part % factor if factor else part:
            return (
                f"Expected input at {self.place.path} = {value} to be of the form {self.expr}, "
                f"where {self.symbol} is an integer{_format_known_values(self.expr, env, ' and ')}"
            )
        env[self.symbol] = solved = part // factor if factor else self.least
        if solved in self.limits:
            return None
        ends = [factor * end + rest for end in (self.limits.lower, self.limits.upper)]
        return _describe_out_of_range(self.place, value, Range(min(ends), max(ends)))

    def lines(self, code: Code) -> list[str]:
        symbol = f"s{len(code.variables)}"
        lines = [f"{symbol} = {self.place.variable} - {code.text(self.rest)}"]
        if isinstance(self.factor, Expr):
            lines += [
                f"factor = {code.text(self.factor)}",
                f"if {symbol} % factor if factor else {symbol}: return False",
                f"{symbol} = {symbol} // factor if factor else {self.least}",
            ]
        elif abs(self.factor) != 1:
            lines.append(f"if {symbol} % {self.factor}: return False")
            lines.append(f"{symbol} //= {self.factor}")
        elif self.factor == -1:
            lines.append(f"{symbol} = -{symbol}")
        code.variables[self.symbol] = symbol
        return lines + _emit_range_check(symbol, self.limits)


@dataclass(frozen=True)
class Equals:
    """The number at a place is that of an expression in symbols that are known."""

    place: Place
    expr: Expr

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        value = self.place.value(leaves)
        try:
            want = evaluate(self.expr, env)
        except EVALUATION_ERRORS as error:
            return _describe_undefined(self.place, self.expr, env, error)
        if _is_equal(value, want):
            return None
        return f"Expected input at {self.place.path} to be equal to {want}, but got {value}"

    def lines(self, code: Code) -> list[str]:
        x, want = self.place.variable, code.text(self.expr)
        if self.expr.type is float:
            equal = code.object(_is_equal)
            return [f"if not {equal}({x}, {want}): return False"]
        return [f"if {x} != {want}: return False"]


def _is_equal(a: object, b: object) -> bool:
    return bool(a == b) or (a != a and b != b)


def _describe_undefined(place: Place, expr: Expr, env: Environment, error: Exception) -> str:
    return (
        f"Expected input at {place.path} to be equal to {expr}, which has no value"
        f"{_format_known_values(expr, env, ' for ')}: {error}"
    )


def _format_known_values(e: Value, env: Environment, word: str) -> str:
    """The values of those symbols in `e` that are known, after a word."""
    values = ", ".join(f"{s} = {env[s]}" for s in symbols(e) if s in env)
    return word + values if values else ""


# What holds between inputs


@dataclass(frozen=True)
class Holds:
    """A condition on symbols that are known."""

    cond: Truth
    origins: Mapping[Expr, str]
    """Where each symbol has its value from, as the user passes it."""

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        try:
            if evaluate(self.cond, env):
                return None
            problem = "does not hold"
        except EVALUATION_ERRORS as error:
            problem = f"has no value ({error})"
        values = ", ".join(f"{s} = {env[s]} ({self.origins[s]})" for s in symbols(self.cond))
        return f"{ASSERTION_PREFIX} {symbolic_repr(self.cond)}: {self.cond} {problem} for {values}"

    def lines(self, code: Code) -> list[str]:
        return [f"if not {code.text(self.cond)}: return False"]


# Memory


@dataclass(frozen=True)
class HasStrides:
    """A tensor with the strides of the example: at others, eager would copy, or alias."""

    path: str
    index: int
    strides: tuple[int | Expr, ...]

    def failure(self, leaves: Sequence[PyTree], env: Environment) -> str | None:
        leaf = leaves[self.index]
        want = tuple(evaluate(s, env) for s in self.strides)
        if not _has_other_strides(leaf.shape, leaf.stride(), want):
            return None
        return (
            f"Expected input at {self.path} to have strides {want}, as in the example: what the "
            f"program does depends on them; but got {leaf.stride()}"
        )

    def lines(self, code: Code) -> list[str]:
        x, differs = variable_name(self.index), code.object(_has_other_strides)
        want = "".join(f"{code.text(s)}, " for s in self.strides)
        return [f"if {differs}({x}.shape, {x}.stride(), ({want})): return False"]


def _has_other_strides(
    sizes: Sequence[object], have: Sequence[object], want: Sequence[object]
) -> bool:
    """Whether strides differ; those of a single element, or of none at all, do not matter."""
    if 0 in sizes:
        return False
    return any(n != 1 and a != b for n, a, b in zip(sizes, have, want, strict=True))


@dataclass(frozen=True)
class HasNoOffset:
    """A tensor with storage offset 0, which `as_strided` in the program counts from."""

    path: str
    index: int

    def failure(self, leaves: Sequence[PyTree], env: Environment) -> str | None:
        offset = leaves[self.index].storage_offset()
        if offset == 0:
            return None
        return (
            f"Expected input at {self.path} to have storage offset 0, as the program uses "
            f"as_strided, but got a storage offset of {offset}: pass a clone()"
        )

    def lines(self, code: Code) -> list[str]:
        return [f"if {variable_name(self.index)}.storage_offset() != 0: return False"]


@dataclass(frozen=True)
class IsNonOverlapping:
    """An input that is written to: no internal overlap, and none with others that are read."""

    index: int
    paths: Mapping[int, str]
    """Paths of the input, and of those that it must not overlap."""

    def failure(self, leaves: Sequence[object], env: Environment) -> str | None:
        written, path = leaves[self.index], self.paths[self.index]
        if not is_non_overlapping(written):
            return (
                f"Expected input at {path}, which the program writes to, to have no internal "
                "overlap, but several of its elements share memory: pass a clone()"
            )
        for i, other in self.paths.items():
            if i != self.index and not is_non_overlapping(written, leaves[i]):
                return (
                    f"Expected input at {path}, which the program writes to, to share no memory "
                    f"with the input at {other}, which it reads later: pass a clone()"
                )
        return None

    def lines(self, code: Code) -> list[str]:
        others = [variable_name(i) for i in self.paths if i != self.index]
        given = ", ".join([variable_name(self.index), *others])
        return [f"if not is_apart({given}): return False"]


def is_non_overlapping(t: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether no two elements of a tensor share memory, and none does with other tensors."""
    if type(t) is AbstractTensor:
        return True  # captured again: what is written to is followed there
    if not t.is_contiguous() and _has_internal_overlap(t):
        return False
    extent = address_range(t)
    return not any(
        _is_overlapping_range(extent, address_range(other)) and _has_common_element(t, other)
        for other in others
    )


_MAX_ELEMENTS = 1 << 20
"""What is larger is not looked at element by element, and taken to overlap if it may."""


def _is_overlapping_range(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _has_internal_overlap(t: torch.Tensor) -> bool:
    """Whether several elements share memory."""
    steps = sorted((step, n) for n, step in zip(t.shape, t.stride(), strict=True) if n != 1)
    if not t.numel():
        return False
    reach = 0
    for step, n in steps:
        if step <= reach:
            return t.numel() > _MAX_ELEMENTS or _element_addresses(t).unique().numel() < t.numel()
        reach += step * (n - 1)
    return False


def _has_common_element(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have elements in one place; those of different sizes are taken to."""
    if max(a.numel(), b.numel()) > _MAX_ELEMENTS or a.itemsize != b.itemsize:
        return True
    return bool(torch.isin(_element_addresses(a), _element_addresses(b)).any())


def _element_addresses(t: torch.Tensor) -> torch.Tensor:
    """The addresses of the elements of a tensor."""
    places = torch.tensor([t.data_ptr()])
    for size, step in zip(t.shape, t.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * (step * t.itemsize)).flatten()
    return places
