"""Renames globals and methods in the code of functions, where they are called.

A global that is loaded to be called is marked so in CPython's bytecode: `int` is renamed in
`int(n)` and not in `x.to(int)`. A module is renamed wherever it is loaded or imported, for the sake
of its attributes. A method that is called (`shape.numel()`) becomes a global function of its
object. Nothing moves, so that jumps, lines and handlers of exceptions stay as they are.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_LOAD_GLOBAL, _IMPORT = dis.opmap["LOAD_GLOBAL"], dis.opmap["IMPORT_NAME"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_NOP, _SWAP = dis.opmap["NOP"], dis.opmap["SWAP"]
# Since Python 3.12 a bit of LOAD_ATTR says that a method is called.
_HAS_BIT = sys.version_info >= (3, 12)
_LOAD_ATTR, _PUSH_NULL = dis.opmap["LOAD_ATTR"], dis.opmap["PUSH_NULL"]
_LOAD_METHOD = _LOAD_ATTR if _HAS_BIT else dis.opmap["LOAD_METHOD"]
_OPCODES = (_LOAD_GLOBAL, _LOAD_METHOD, _IMPORT)
_NULL_FOLLOWS = sys.version_info >= (3, 13)
_METHOD_CACHES, _GLOBAL_CACHES = (9, 4) if _HAS_BIT else (10, 5)
"""Units of two bytes after the instructions."""

Rename = Callable[[Any, bool], str | None]
"""Under which name something else is found instead of a value, which is called or not; None for
what stays."""
_Find = Callable[["_Load", str], str | None]


class _Load(NamedTuple):
    """An instruction that loads a global, a module, or a method of what is on the stack."""

    offset: int
    name: int
    opcode: int
    is_call: bool
    bits: int
    """Of its argument, its prefixes included."""


def rename_globals(
    fn: FunctionType, code: CodeType, rename: Rename, methods: Mapping[str, str]
) -> CodeType | None:
    """Code for a function in which globals are renamed; None if there is nothing to rename.

    `methods` has the global functions that are called instead of methods, by their names.
    """
    known = fn.__globals__
    if getattr(fn, "__builtins__", None) is not vars(builtins):
        return None

    def find(load: _Load, name: str) -> str | None:
        if load.opcode == _LOAD_METHOD:
            return methods.get(name)
        if load.opcode == _IMPORT:
            return rename(sys.modules.get(name), False)
        return rename(known[name] if name in known else vars(builtins).get(name), load.is_call)

    return _rename_in_code(code, find)


def _rename_in_code(code: CodeType, find: _Find) -> CodeType | None:
    nested = {
        i: made
        for i, const in enumerate(code.co_consts)
        if isinstance(const, CodeType) and (made := _rename_in_code(const, find)) is not None
    }
    changes: dict[str, Any] = {}
    if nested:
        consts = enumerate(code.co_consts)
        changes["co_consts"] = tuple(nested.get(i, const) for i, const in consts)
    if any(find(_Load(0, 0, op, True, 0), name) for name in code.co_names for op in _OPCODES):
        changes |= _rename_loads(code, find)
    return code.replace(**changes) if changes else None


def _rename_loads(code: CodeType, find: _Find) -> dict[str, Any]:
    raw, names = bytearray(code.co_code), list(code.co_names)
    new_names: dict[str, int] = {}
    for load in _find_loads(raw):
        new = find(load, names[load.name])
        if new is None:
            continue
        index = new_names.get(new, len(names))
        if not (_write_method if load.opcode == _LOAD_METHOD else _write_name)(raw, load, index):
            continue  # it does not fit: this call stays as it is
        if new not in new_names:
            new_names[new] = index
            names.append(new)
    return {"co_code": bytes(raw), "co_names": tuple(names)} if new_names else {}


def _write_name(raw: bytearray, load: _Load, index: int) -> bool:
    bit = raw[load.offset + 1] & 1
    argument = index << 1 | bit if load.opcode == _LOAD_GLOBAL else index
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
            is_call = bool(argument & 1) or (_NULL_FOLLOWS and _is_attribute_called(raw, offset))
            yield _Load(offset, argument >> 1, _LOAD_GLOBAL, is_call, bits)
        elif raw[offset] == _IMPORT:
            yield _Load(offset, argument, _IMPORT, False, bits)
        elif raw[offset] == _LOAD_METHOD and (argument & 1 or not _HAS_BIT):
            yield _Load(offset, argument >> _HAS_BIT, _LOAD_METHOD, True, bits)
        argument, bits = 0, 8


def _is_attribute_called(raw: bytearray, offset: int) -> bool:
    """Whether a call follows of an attribute of the global."""
    at = offset + 2 * (1 + _GLOBAL_CACHES)
    while raw[at] in (_EXTENDED_ARG, _LOAD_ATTR):
        at += 2 * (1 + _METHOD_CACHES) if raw[at] == _LOAD_ATTR else 2
    return raw[at] == _PUSH_NULL and at > offset + 2 * (1 + _GLOBAL_CACHES)
