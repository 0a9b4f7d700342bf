"""Renames globals in the code of functions, where they are called.

A global that is loaded to be called is marked so in CPython's bytecode: `int` is renamed in `int(n)`
and not in `x.to(int)`. A module is renamed wherever it is loaded, for the sake of its attributes.
Nothing moves, so that jumps, lines and handlers of exceptions stay as they are.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]

Rename = Callable[[Any], str | None]
"""Under which name something else is found instead of a value; None for what stays."""


class _Load(NamedTuple):
    """An instruction that loads a global."""

    offset: int
    name: int
    is_call: bool
    bits: int
    """Of its argument, its prefixes included."""


def rename_globals(fn: FunctionType, rename: Rename) -> CodeType | None:
    """The code of a function in which globals are renamed; None if there is nothing to rename."""
    known = fn.__globals__
    if fn.__builtins__ is not vars(builtins):  # type: ignore[attr-defined]
        return None

    def find(name: str, *, is_call: bool) -> str | None:
        value = known[name] if name in known else vars(builtins).get(name)
        new = rename(value)
        return new if new is not None and (is_call or isinstance(value, ModuleType)) else None

    return _rename_in_code(fn.__code__, find)


def _rename_in_code(code: CodeType, find: Callable[..., str | None]) -> CodeType | None:
    nested = {
        i: made
        for i, const in enumerate(code.co_consts)
        if isinstance(const, CodeType) and (made := _rename_in_code(const, find)) is not None
    }
    changes: dict[str, Any] = {}
    if nested:
        consts = enumerate(code.co_consts)
        changes["co_consts"] = tuple(nested.get(i, const) for i, const in consts)
    if any(find(name, is_call=True) for name in code.co_names):
        changes |= _rename_loads(code, find)
    return code.replace(**changes) if changes else None


def _rename_loads(code: CodeType, find: Callable[..., str | None]) -> dict[str, Any]:
    raw, names = bytearray(code.co_code), list(code.co_names)
    new_names: dict[str, int] = {}
    for load in _find_loads(raw):
        new = find(names[load.name], is_call=load.is_call)
        if new is None:
            continue
        index = new_names.get(new, len(names))
        argument = index << 1 | load.is_call
        if argument >> load.bits:  # it does not fit: this call stays as it is
            continue
        if new not in new_names:
            new_names[new] = index
            names.append(new)
        for i in range(load.bits // 8):
            raw[load.offset + 1 - 2 * i] = argument >> 8 * i & 0xFF
    return {"co_code": bytes(raw), "co_names": tuple(names)} if new_names else {}


def _find_loads(raw: bytearray) -> Iterator[_Load]:
    argument, bits = 0, 8
    for offset in range(0, len(raw), 2):
        argument |= raw[offset + 1]
        if raw[offset] == _EXTENDED_ARG:
            argument, bits = argument << 8, bits + 8
            continue
        if raw[offset] == _LOAD_GLOBAL:
            yield _Load(offset, argument >> 1, bool(argument & 1), bits)
        argument, bits = 0, 8
