"""Renames globals and methods in the code of functions, where they are called.

A global that is loaded to be called is marked so in CPython's bytecode: `int` is renamed in
`int(n)` and not in `x.to(int)`. A module is renamed wherever it is loaded, for the sake of its
attributes. A method that is called (`shape.numel()`) becomes a global function of its object.
Nothing moves, so that jumps, lines and handlers of exceptions stay as they are.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_NOP, _SWAP = dis.opmap["NOP"], dis.opmap["SWAP"]
# Since Python 3.12 a bit of LOAD_ATTR says that a method is called.
_LOAD_METHOD = dis.opmap.get("LOAD_METHOD", dis.opmap["LOAD_ATTR"])
_HAS_BIT = sys.version_info >= (3, 12)
_METHOD_CACHES, _GLOBAL_CACHES = (9, 4) if _HAS_BIT else (10, 5)
"""Units of two bytes after the instructions."""

Rename = Callable[[Any], str | None]
"""Under which name something else is found instead of a value; None for what stays."""


class _Load(NamedTuple):
    """An instruction that loads a global, or a method of what is on the stack."""

    offset: int
    name: int
    is_method: bool
    is_call: bool
    bits: int
    """Of its argument, its prefixes included."""


def rename_globals(fn: FunctionType, rename: Rename, methods: Mapping[str, str]) -> CodeType | None:
    """The code of a function in which globals are renamed; None if there is nothing to rename.

    `methods` has the global functions that are called instead of methods, by their names.
    """
    known = fn.__globals__
    if getattr(fn, "__builtins__", None) is not vars(builtins):
        return None

    def find(name: str, *, is_call: bool) -> str | None:
        value = known[name] if name in known else vars(builtins).get(name)
        new = rename(value)
        return new if new is not None and (is_call or isinstance(value, ModuleType)) else None

    return _rename_in_code(fn.__code__, find, methods)


def _rename_in_code(
    code: CodeType, find: Callable[..., str | None], methods: Mapping[str, str]
) -> CodeType | None:
    nested = {
        i: made
        for i, const in enumerate(code.co_consts)
        if isinstance(const, CodeType)
        and (made := _rename_in_code(const, find, methods)) is not None
    }
    changes: dict[str, Any] = {}
    if nested:
        consts = enumerate(code.co_consts)
        changes["co_consts"] = tuple(nested.get(i, const) for i, const in consts)
    if any(name in methods or find(name, is_call=True) for name in code.co_names):
        changes |= _rename_loads(code, find, methods)
    return code.replace(**changes) if changes else None


def _rename_loads(
    code: CodeType, find: Callable[..., str | None], methods: Mapping[str, str]
) -> dict[str, Any]:
    raw, names = bytearray(code.co_code), list(code.co_names)
    new_names: dict[str, int] = {}
    for load in _find_loads(raw):
        name = names[load.name]
        new = methods.get(name) if load.is_method else find(name, is_call=load.is_call)
        if new is None:
            continue
        index = new_names.get(new, len(names))
        if not (_write_method if load.is_method else _write_global)(raw, load, index):
            continue  # it does not fit: this call stays as it is
        if new not in new_names:
            new_names[new] = index
            names.append(new)
    return {"co_code": bytes(raw), "co_names": tuple(names)} if new_names else {}


def _write_global(raw: bytearray, load: _Load, index: int) -> bool:
    argument = index << 1 | load.is_call
    if argument >> load.bits:
        return False
    for i in range(load.bits // 8):
        raw[load.offset + 1 - 2 * i] = argument >> 8 * i & 0xFF
    return True


def _write_method(raw: bytearray, load: _Load, index: int) -> bool:
    """Load the global and put it below the object, in the room of the method and its caches."""
    argument = index << 1
    length = max(1, (argument.bit_length() + 7) // 8)
    code = bytearray()
    for i in reversed(range(length)):
        code += bytes((_EXTENDED_ARG if i else _LOAD_GLOBAL, argument >> 8 * i & 0xFF))
    code += bytes(2 * _GLOBAL_CACHES) + bytes((_SWAP, 2))
    room = 2 + 2 * _METHOD_CACHES - len(code)
    if room < 0:
        return False
    begin = load.offset + 2 - load.bits // 4  # prefixes have nothing to say any more
    raw[begin : load.offset] = bytes((_NOP, 0)) * (load.bits // 8 - 1)
    raw[load.offset : load.offset + len(code) + room] = code + bytes((_NOP, 0)) * (room // 2)
    return True


def _find_loads(raw: bytearray) -> Iterator[_Load]:
    argument, bits = 0, 8
    for offset in range(0, len(raw), 2):
        argument |= raw[offset + 1]
        if raw[offset] == _EXTENDED_ARG:
            argument, bits = argument << 8, bits + 8
            continue
        if raw[offset] == _LOAD_GLOBAL:
            yield _Load(offset, argument >> 1, False, bool(argument & 1), bits)
        elif raw[offset] == _LOAD_METHOD and (argument & 1 or not _HAS_BIT):
            yield _Load(offset, argument >> _HAS_BIT, True, True, bits)
        argument, bits = 0, 8
