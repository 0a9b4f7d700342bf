"""What statements of Python become where data decides: `torch.cond` and `torch.while_loop`.

`conversion` writes the calls. Where the condition or the length is known they do what Python does.
Otherwise each side, or one step for all, is captured as a subgraph: what it returns must be tensors
and numbers, or the same objects whichever side is taken; what it changes in lists, dicts and
objects would be changed by every side, and is refused.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any

import torch

from graphport import source
from graphport.capture.control_flow.cond import BranchMismatchError
from graphport.capture.control_flow.conversion import NAMES
from graphport.capture.numbers.sequences import SymbolicRange, SymbolicSequence
from graphport.capture.trace.function_mode import FunctionMode, register_override
from graphport.capture.trace.recorder import describe_argument
from graphport.capture.trace.subgraph import Subgraph
from graphport.capture.trace.tracer import Tracer
from graphport.compat.torch import get_current_function_mode
from graphport.errors import UserError
from graphport.ops import Abstract
from graphport.symbolic import Expr, eq, evaluate, symbols
from graphport.symbolic.bridge import SYMBOLIC, from_torch, to_torch
from graphport.types import Args, Argument, Function, Kwargs


class Unbound:
    """Stands for a variable that has no value."""


UNBOUND = Unbound()


def read_variable(read: Callable[[], Argument]) -> Argument:
    try:
        return read()
    except (NameError, ValueError):  # of a cell
        return UNBOUND


def is_undecided(x: object) -> bool:
    """Whether data decides if a number is true."""
    if not _is_data(x):
        return False
    number = from_torch(x)
    return number.scope.decide(number if number.type is bool else eq(number, 0)) is None


def _is_data(x: object) -> bool:
    """Whether a number is known only when the program runs."""
    number = from_torch(x) if isinstance(x, SYMBOLIC) else None
    if type(number) is not Expr or number.scope.hint(number) is not None:
        return False
    scope = number.scope
    return any(scope.recall(s) is None for s in symbols(number) if scope.is_fresh(s))


def _to_bool(x: Argument) -> Argument:
    return x if isinstance(x, torch.SymBool) else x != 0


def take_and(*parts: Callable[[], Argument]) -> Argument:
    return _connect(parts, False, operator.and_)


def take_or(*parts: Callable[[], Argument]) -> Argument:
    return _connect(parts, True, operator.or_)


def _connect(
    parts: Iterable[Callable[[], Argument]], ends: bool, join: Callable[[Any, Any], Argument]
) -> Argument:
    """The truth of parts, of which one that is `ends` decides."""
    unknown: Argument = None
    for part in parts:
        found = part()
        if is_undecided(found):
            truth = _to_bool(found)
            unknown = truth if unknown is None else join(unknown, truth)
        elif bool(found) is ends:
            return ends
    return (not ends) if unknown is None else unknown


def take_not(x: Argument) -> Argument:
    return torch.sym_not(_to_bool(x)) if is_undecided(x) else not x


def choose(
    test: Argument,
    then: Callable[..., Argument],
    otherwise: Callable[..., Argument],
    values: Sequence[Argument],
    names: Sequence[str] | None,
    one_sided: bool,
) -> Argument:
    """`if`: of what is read later there are names; without them a side is what is returned."""
    if not is_undecided(test):
        return (then if test else otherwise)(*values)
    test = _to_bool(test)
    general = _answer_in_general(test)
    if one_sided and general is not None:
        where = source.locate_user_line()
        stated = test if general else torch.sym_not(test)
        torch._check(stated, lambda: f"the sizes that {where} is captured for")
        return (then if general else otherwise)(*values)
    sides = [_Part(fn, values, names is not None) for fn in (then, otherwise)]
    try:
        made = torch.cond(test, sides[0].capture, sides[1].capture)
    except BranchMismatchError:
        if general is None:
            bool(test)  # an error that says what Python asks
        raise
    if names is None:
        return made
    return tuple(
        sides[0].join(sides[1], i, name, x)
        for i, (name, x) in enumerate(zip(names, made, strict=True))
    )


def _answer_in_general(test: torch.SymBool) -> bool | None:
    """The answer for sizes that are not 0, if that is what is asked of them."""
    question = from_torch(test)
    general = question.scope.answer_in_general(question)
    if not isinstance(general, bool):
        return None
    with suppress(ArithmeticError):
        of_ones = evaluate(question, dict.fromkeys(symbols(question), 1))
        return general if general is bool(of_ones) else None
    return None


class _Part:
    """A side of an `if`, captured: what is no tensor or number stays out of the graph."""

    def __init__(
        self, fn: Callable[..., Argument], values: Sequence[Argument], by_name: bool
    ) -> None:
        self._apart: dict[int, Argument] = {}

        @functools.wraps(fn)
        def capture() -> Argument:
            with _Unchanged(fn, values):
                found = fn(*values)
            if not by_name:  # but what the function returns
                return found
            self._apart = {i: x for i, x in enumerate(found) if not _is_value(x)}
            return tuple(None if i in self._apart else x for i, x in enumerate(found))

        self.capture = capture

    def join(self, other: _Part, i: int, name: str, made: Argument) -> Argument:
        if i not in self._apart and i not in other._apart:
            return made
        own, theirs = self._apart.get(i, made), other._apart.get(i, made)
        if own is theirs or (type(own) is type(theirs) is str and own == theirs):
            return own
        raise UserError(
            f"{name!r} is a tensor or number on one side of a branch that depends on data, or has "
            "no value",
            where=source.locate_user_line(),
        )


def _is_value(x: object) -> bool:
    return isinstance(x, (torch.Tensor, *SYMBOLIC, int, float, bool)) or x is None


# Loops


class _Zipped:
    """Sequences side by side of which one is as long as data says."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts


def zip_sequences(called: Function, *parts: Any) -> Any:
    """`zip`, if it is Python's own that is called."""
    is_open = called is builtins.zip and any(map(_Steps.open, parts))
    return _Zipped(parts) if is_open else called(*parts)


class _Steps:
    """The elements of something, by their number; as many as data says."""

    def __init__(self, count: Argument, element: Callable[[Any], Argument]) -> None:
        self.count = count
        self.element = element

    @classmethod
    def open(cls, items: Any) -> _Steps | None:
        """None where it is known how many there are, or they have to be asked one by one."""
        found = cls._find(items)
        return found if found is not None and _is_data(found.count) else None

    @classmethod
    def _find(cls, items: Any) -> _Steps | None:
        if isinstance(items, torch.Tensor) and items.dim():
            return cls(items.shape[0], lambda i: items[i])
        if isinstance(items, SymbolicRange):
            return cls(items.length, lambda i: items.start + i * items.step)
        if isinstance(items, StackedList):
            return cls(items.length, lambda i: items.elements[i])
        if isinstance(items, _Zipped):
            parts = [cls._find(part) for part in items.parts]
            if all(parts):
                count = parts[0].count  # type: ignore[union-attr]
                for part in parts[1:]:
                    count = torch.sym_min(count, part.count)  # type: ignore[union-attr]
                return cls(count, lambda i: tuple(part.element(i) for part in parts))  # type: ignore[union-attr]
        return None


def run_steps(
    items: Any,
    step: Callable[..., Sequence[Argument]],
    values: Sequence[Argument],
    names: Sequence[str],
) -> Sequence[Argument]:
    """`for`: a step takes an element and the values that go from step to step."""
    steps = _Steps.open(items)
    if steps is None:
        for element in items.parts if isinstance(items, _Zipped) else items:
            values = step(element, *values)
        return values
    carried = [i for i, x in enumerate(values) if x is not None and _is_value(x)]

    @functools.wraps(step)
    def body(i: Argument, *inner: Argument) -> Argument:
        given = list(values)
        for place, x in zip(carried, inner, strict=True):
            given[place] = x
        with _Unchanged(step, values):
            made = step(steps.element(i), *given)
        for place, (old, new) in enumerate(zip(values, made, strict=True)):
            if place not in carried and old is not new:
                raise UserError(
                    f"{names[place]!r} is given a value in a loop whose length is data, and is no "
                    "tensor or number before it",
                    where=source.locate_user_line(),
                    fix=f"give {names[place]!r} a first value before the loop",
                )
        return (i + 1, *(made[place] for place in carried))

    first = [values[place] for place in carried]
    _, *last = torch.while_loop(lambda i, *rest: i < steps.count, body, (0, *first))
    result = list(values)
    for place, x in zip(carried, last, strict=True):
        result[place] = x
    return result


# Lists of what a loop makes


class StackedList(SymbolicSequence, list[Any]):
    """A list of tensors of one size, as many as data says: one tensor, along its first dim."""

    kind = list

    def __init__(self, elements: torch.Tensor) -> None:
        super().__init__()
        self.elements = elements

    @property
    def length(self) -> Argument:
        return self.elements.shape[0]

    def as_tensor(self, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        return self.elements.to(dtype=dtype, device=device)

    def _fix(self) -> list[Argument]:
        return list(self.elements.unbind())

    def __getitem__(self, i: Any) -> Argument:
        return StackedList(self.elements[i]) if isinstance(i, slice) else self.elements[i]


def _refuse_change(self: StackedList, *args: object) -> Any:
    raise UserError(
        "a list whose length is data is changed, compared or joined with another",
        where=source.locate_user_line(),
        fix="make one tensor of it first: torch.stack(items)",
    )


for _name in """
    __add__ __delitem__ __ge__ __gt__ __iadd__ __imul__ __le__ __lt__ __mul__ __radd__ __rmul__
    __setitem__ append clear copy count extend index insert pop remove reverse sort
""".split():
    setattr(StackedList, _name, _refuse_change)


def make_elements(items: Any, fn: Callable[..., Argument], is_tuple: bool) -> Argument:
    """A list comprehension."""

    def make(element: Any) -> Argument:
        return fn(*element) if is_tuple else fn(element)

    steps = _Steps.open(items)
    if steps is None:
        return [make(element) for element in (items.parts if isinstance(items, _Zipped) else items)]
    with _Unchanged(fn, ()):
        about = _describe_element(steps, make)
    sizes = [to_torch(size) for size in about.sizes]
    made = torch.zeros((steps.count, *sizes), dtype=about.dtype, device=about.device)

    @functools.wraps(fn)
    def body(i: Argument) -> Argument:
        made[i] = make(steps.element(i))
        return (i + 1,)

    torch.while_loop(lambda i: i < steps.count, body, (0,))
    return StackedList(made)


def _describe_element(steps: _Steps, make: Callable[[Any], Argument]) -> Abstract:
    """What each element is, as a first look says that nothing else comes of."""
    tracer = _tracer()
    graph = Subgraph(tracer, "element")
    place = tracer.scope.fresh(lower=0, origin=source.locate_user_expression())
    graph.make_number("place", place, "the number of an element")
    since = len(tracer.scope.symbols)
    graph.run(lambda: make(steps.element(to_torch(place))))
    about = [describe_argument(x) for x in graph.results]
    if len(about) != 1 or not isinstance(about[0], Abstract):
        raise UserError(
            "a list whose length is data is of something else than one tensor each",
            where=source.locate_user_line(),
        )
    own = [s for size in about[0].sizes for s in symbols(size) if s.index >= since - 1]
    if own or graph.written:
        raise UserError(
            f"the elements of a list whose length is data differ in size: {about[0]}",
            where=source.locate_user_line(),
        )
    return about[0]


def _tracer() -> Tracer:
    mode = get_current_function_mode()
    assert isinstance(mode, FunctionMode)
    return mode.tracer


@register_override(torch.stack)
def stack(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """One tensor already, with the new dim in front."""
    if not isinstance(args[0], StackedList):
        return NotImplemented
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return args[0].elements.movedim(0, dim)


@register_override(torch.cat, torch.concat, torch.concatenate)
def cat(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    if not isinstance(args[0], StackedList):
        return NotImplemented
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    elements = args[0].elements
    dim = dim % (elements.dim() - 1)
    return elements.movedim(0, dim).flatten(dim, dim + 1)


# What a side or a step must not do


class _Unchanged:
    """While it lasts, containers and objects that a function can reach stay as they are."""

    def __init__(self, fn: Any, values: Sequence[object]) -> None:
        self._before = {id(x): (x, copy) for x, copy in _list_contents([fn, *values])}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None and any(not _is_same(x, copy) for x, copy in self._before.values()):
            raise UserError(
                "a list, dict or object is changed by a branch or loop that depends on data, and "
                "so would be changed by all of them",
                where=source.locate_user_line(),
                fix="assign what is new to a variable, after the branch",
            )


def _list_contents(roots: Sequence[object]) -> Iterator[tuple[Any, Any]]:
    """What a function holds, and what is in that; with a copy of each."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        x: Any = waiting.pop()
        if id(x) in seen or isinstance(x, _CONSTANT):
            continue
        seen.add(id(x))
        if isinstance(x, FunctionType):
            waiting += x.__closure__ or ()
        elif isinstance(x, CellType):
            waiting.append(read_variable(functools.partial(getattr, x, "cell_contents")))
        elif isinstance(x, tuple):
            waiting += x
        elif isinstance(x, (list, set)):
            yield x, builtins.list(x)
            waiting += x
        elif isinstance(x, dict):
            yield x, dict(x)
            waiting += x.values()
        elif isinstance(x, torch.nn.Module) or not type(x).__module__.startswith(_NOT_THE_USERS):
            contents = getattr(x, "__dict__", {})
            yield contents, dict(contents)
            waiting += contents.values()


_CONSTANT = (torch.Tensor, SymbolicSequence, *SYMBOLIC, type, str, int, float, bytes)
_NOT_THE_USERS = ("torch.", "graphport.", "numpy.", "builtins", "functools")


def _is_same(x: Any, copy: Any) -> bool:
    if isinstance(x, dict):
        return x.keys() == copy.keys() and all(x[k] is copy[k] for k in copy)
    return len(x) == len(copy) and all(a is b for a, b in zip(x, copy, strict=True))


FUNCTIONS: dict[str, Function] = {
    NAMES["if"]: choose,
    NAMES["and"]: take_and,
    NAMES["or"]: take_or,
    NAMES["not"]: take_not,
    NAMES["for"]: run_steps,
    NAMES["list"]: make_elements,
    NAMES["zip"]: zip_sequences,
    NAMES["value"]: read_variable,
}
"""By the names under which converted statements call them."""
