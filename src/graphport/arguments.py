"""Checks the arguments of public functions against declared kinds.

`@check_arguments(timeout=SECONDS)` refuses a call with another kind of timeout, in words that name
the parameter; `@check_fields(...)` does it for the fields of a named tuple or dataclass. A kind is
words and a test. Classes are named by where they are defined and not imported: an object of a class
whose module was never loaded cannot exist.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from graphport.compat.torch import places_of
from graphport.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)


class Kind(NamedTuple):
    """What an argument may be; `words` goes on after "the timeout is"."""

    words: str
    accepts: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.words} or {other.words}", lambda x: self.accepts(x) or other.accepts(x))


def check_arguments(**kinds: Kind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check arguments by parameter name; one that is left to its default is not looked at."""

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(fn)
        unknown = kinds.keys() - signature.parameters.keys()
        if unknown:
            raise TypeError(f"{fn.__qualname__} has no parameter {', '.join(sorted(unknown))}")

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:  # a parameter too many or too few: Python says which
                return fn(*args, **kwargs)
            for name, kind in kinds.items():
                if name in given:
                    require_kind(name, given[name], kind)
            return fn(*args, **kwargs)

        return call

    return decorate


def check_fields(**kinds: Kind) -> Callable[[C], C]:
    """Check what a named tuple or dataclass is made of."""

    def decorate(cls: C) -> C:
        maker = "__new__" if issubclass(cls, tuple) else "__init__"
        setattr(cls, maker, check_arguments(**kinds)(getattr(cls, maker)))
        return cls

    return decorate


def require_kind(name: str, value: object, kind: Kind) -> None:
    """Refuse a value of another kind."""
    if not kind.accepts(value):
        raise InputError(f"{name} is {kind.words}, got {format_value(value)}")


def format_value(value: object) -> str:
    """A value in an error: itself if it is short, else what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)):
        text = repr(value)
        if len(text) <= 60:
            return text
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


# Kinds


def instance_of(words: str, *places: str) -> Kind:
    """An object of a class, given as "module:Class"."""

    def accepts(x: object) -> bool:
        parts = (place.partition(":") for place in places)
        classes = (getattr(sys.modules.get(module), name, None) for module, _, name in parts)
        return isinstance(x, tuple(c for c in classes if c is not None))

    return Kind(words, accepts)


def one_of(*values: str) -> Kind:
    return Kind(" or ".join(f'"{v}"' for v in values), lambda x: type(x) is str and x in values)


def integer(least: int | None = None) -> Kind:
    words = "an int" if least is None else f"an int of at least {least}"
    return Kind(words, lambda x: _is_int(x) and (least is None or x >= least))


def number(least: float) -> Kind:
    return Kind(f"a number of at least {least}", lambda x: _is_number(x) and x >= least)


def several(kind: Kind) -> Kind:
    """A list, tuple or set of one kind; not text, which is a sequence of texts."""
    return Kind(f"a list or tuple, each of its items {kind.words}", lambda x: _is_list_of(x, kind))


def mapping(keys: Kind, values: Kind) -> Kind:
    return Kind(
        f"a dict from {keys.words} to {values.words}",
        lambda x: (
            isinstance(x, Mapping)
            and _is_list_of(list(x), keys)
            and _is_list_of(list(x.values()), values)
        ),
    )


def _is_list_of(x: Any, kind: Kind) -> bool:
    is_collection = isinstance(x, (Sequence, set, frozenset)) and not isinstance(x, (str, bytes))
    return is_collection and all(map(kind.accepts, x))


def _is_hashable(x: object) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _is_int(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and not math.isnan(x)


ANYTHING = Kind("anything", lambda x: True)
NONE = Kind("None", lambda x: x is None)
FLAG = Kind("True or False", lambda x: isinstance(x, int) and x in (False, True))
TEXT = Kind("a str", lambda x: isinstance(x, str))
IDENTIFIER = Kind("a Python identifier", lambda x: isinstance(x, str) and x.isidentifier())
PATH = Kind("a path", lambda x: isinstance(x, (str, os.PathLike)))
WRITABLE = Kind("a file to write to", lambda x: hasattr(x, "write"))
FUNCTION = Kind("a function", callable)
CLASS = Kind("a class", lambda x: isinstance(x, type))
HASHABLE = Kind("something that can be hashed", lambda x: _is_hashable(x))
NAMES = several(TEXT)
ITERABLE = Kind("an iterable", lambda x: isinstance(x, Iterable))
NUMBER = Kind("a number", lambda x: isinstance(x, (bool, int, float, complex)) and abs(x) < 2**63)
ERROR = Kind("a number from 0 to 1e15", lambda x: _is_number(x) and 0 <= x <= 1e15)
POSITIVE = Kind("a number above 0", lambda x: _is_number(x) and x > 0)
SECONDS = Kind("a number of seconds above 0", POSITIVE.accepts)
DICT = Kind("a dict", lambda x: isinstance(x, Mapping))
ARGS = Kind("a list or tuple", lambda x: isinstance(x, (list, tuple)))
PROGRAM = instance_of("an ExportedProgram", "graphport.program.exported:ExportedProgram")
MODULE = instance_of("an nn.Module", "torch.nn:Module")
MODEL = Kind("an nn.Module or a function", lambda x: callable(x) and not isinstance(x, type))
GRAPH_MODULE = instance_of("a torch.fx.GraphModule", "torch.fx:GraphModule")
GRAPH = instance_of("a torch.fx.Graph", "torch.fx:Graph")
NODE = instance_of("a torch.fx.Node", "torch.fx:Node")
TENSOR = instance_of("a tensor", "torch:Tensor")
TRACEABLE = Kind(
    "an nn.Module or a function in Python",
    lambda x: MODULE.accepts(x) or (callable(x) and hasattr(x, "__code__")),
)
TRACER = Kind("a class of tracers", lambda x: isinstance(x, type) and hasattr(x, "trace"))
OPERATOR = instance_of("an operator of torch.ops", *places_of("OperatorBase"))
TABLE = mapping(OPERATOR, FUNCTION)
