"""Types of arguments, and whether a parameter of an operator takes them.

What a schema says and what Python holds differ in known ways, which are the rules here: a list
takes a tuple and, for `int[]`, a single int; a float takes an int; a number takes an int, a float,
a bool or a complex; dtypes are ints in schemas.
"""

from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Sequence
from typing import Any, Union

import torch

from graphport.arguments import HASHABLE, takes

_UNIONS = (Union, types.UnionType)
_SEQUENCES = (list, tuple)
_NONE = type(None)

_ALSO_TAKES: dict[Any, tuple[type, ...]] = {
    int: (torch.SymInt, torch.dtype),
    float: (int, torch.SymFloat, torch.SymInt),
    complex: (float, int),
    bool: (torch.SymBool,),
    numbers.Number: (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool),
    torch.dtype: (int,),
    torch.layout: (int,),
    torch.memory_format: (int,),
    torch.device: (str, int),
}
"""Types that a parameter takes although they are no subclasses of its own type."""


def create_type_hint(x: object) -> object:
    """The type of a list or tuple, given the types of its elements; any other type as it is.

        >>> create_type_hint([int, int]), create_type_hint((torch.nn.Parameter, torch.Tensor))
        (list[int], tuple[torch.Tensor, ...])
        >>> create_type_hint([[int, int], [int]])
        list[list[int]]

    The element type is the one that all others are subclasses of, with `None` beside it where some
    are None, and `Any` where there is none.
    """
    if not isinstance(x, _SEQUENCES):
        return x
    element: Any = _common([create_type_hint(t) for t in x])
    return list[element] if isinstance(x, list) else tuple[element, ...]


def _common(hints: list[Any]) -> Any:
    """The hint that takes all others; Any if none does, or if one is unknown."""
    known = [h for h in hints if h is not _NONE]
    if not known or None in hints:
        return Any if None in hints or not hints else _NONE
    for base in known:
        if all(h == base or _is_subclass(h, base) for h in known):
            # typing's spelling: the new one refuses what is no class.
            return base if len(known) == len(hints) else Union[base, None]  # noqa: UP007
    return Any


def _is_subclass(t: Any, base: Any) -> bool:
    return isinstance(t, type) and isinstance(base, type) and issubclass(t, base)


_NAMES = {**vars(typing), "torch": torch, "typing": typing, "Tensor": torch.Tensor, "nn": torch.nn}


def resolved(hint: Any) -> Any:
    """A type that is written as text, as `from __future__ import annotations` leaves it.

    None where it uses names that are not known here.
    """
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, dict(_NAMES))
    except (NameError, AttributeError, SyntaxError, TypeError):
        return None


@takes(signature_type=HASHABLE, argument_type=HASHABLE)
def type_matches(signature_type: Any, argument_type: Any) -> bool:
    """Whether a parameter of one type takes an argument of the other.

    >>> type_matches(int | float, int), type_matches(int, float)
    (True, False)
    >>> type_matches(list[torch.Tensor], tuple[torch.nn.Parameter, torch.Tensor])
    True
    """
    if signature_type == argument_type or Any in (signature_type, argument_type):
        return True
    if isinstance(signature_type, typing.TypeVar):
        return True
    if typing.get_origin(argument_type) in _UNIONS:
        return all(type_matches(signature_type, t) for t in typing.get_args(argument_type))
    origin = typing.get_origin(signature_type)
    if origin in _UNIONS:
        return any(type_matches(t, argument_type) for t in typing.get_args(signature_type))
    if origin is list:
        return _list_takes(typing.get_args(signature_type)[0], argument_type)
    if origin is tuple:
        return _tuple_takes(typing.get_args(signature_type), argument_type)
    if origin is dict:
        return _dict_takes(typing.get_args(signature_type), argument_type)
    if not isinstance(argument_type, type):
        argument_type = typing.get_origin(argument_type)
    if not isinstance(argument_type, type):
        return False
    return _is_subclass(argument_type, signature_type) or any(
        issubclass(argument_type, t) for t in _ALSO_TAKES.get(signature_type, ())
    )


def _list_takes(element: Any, argument: Any) -> bool:
    if _is_subclass(argument, torch.Size):
        return type_matches(element, int)
    if argument in (int, torch.SymInt):
        return element is int
    if argument is float:
        return element is float
    elements = _elements(argument)
    return elements is not None and all(type_matches(element, e) for e in elements)


def _tuple_takes(elements: tuple[Any, ...], argument: Any) -> bool:
    given = _elements(argument)
    if given is None or typing.get_origin(argument) is not tuple:
        return argument is tuple
    if Ellipsis in elements:
        return all(type_matches(elements[0], g) for g in given)
    if Ellipsis in typing.get_args(argument):
        return all(type_matches(e, g) for e in elements for g in given)
    return len(given) == len(elements) and all(map(type_matches, elements, given))


def _dict_takes(items: tuple[Any, ...], argument: Any) -> bool:
    given = typing.get_args(argument)
    return argument is dict or (
        typing.get_origin(argument) is dict and all(map(type_matches, items, given))
    )


def _elements(argument: Any) -> Sequence[Any] | None:
    """The types of the elements of a sequence type; None for what is none."""
    if argument in _SEQUENCES:
        return ()
    if typing.get_origin(argument) not in _SEQUENCES:
        return None
    # Tuple[()] has had an empty tuple as its argument.
    return [t for t in typing.get_args(argument) if t not in (Ellipsis, ())]
