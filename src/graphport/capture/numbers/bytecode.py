"""Replaces globals and methods in the code of functions, where they are called.

A global that is loaded to be called is marked so in CPython's bytecode: `int` is another function
in `int(n)` and not in `x.to(int)`. A module is replaced wherever it is loaded or imported, for the
sake of its attributes. A method that is called (`shape.numel()`) becomes a function of its object.
What takes their place are constants of the code: no namespace has more names, so that what CPython
knows of namespaces stays valid. Nothing moves, so that jumps, lines and handlers of exceptions stay
as they are.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_LOAD_GLOBAL, _IMPORT = dis.opmap["LOAD_GLOBAL"], dis.opmap["IMPORT_NAME"]
_EXTENDED_ARG, _LOAD_CONST = dis.opmap["EXTENDED_ARG"], dis.opmap["LOAD_CONST"]
_NOP, _SWAP = dis.opmap["NOP"], dis.opmap["SWAP"]
# Since Python 3.12 a bit of LOAD_ATTR says that a method is called.
_HAS_BIT = sys.version_info >= (3, 12)
_LOAD_ATTR, _PUSH_NULL = dis.opmap["LOAD_ATTR"], dis.opmap["PUSH_NULL"]
_LOAD_METHOD = _LOAD_ATTR if _HAS_BIT else dis.opmap["LOAD_METHOD"]
_OPCODES = (_LOAD_GLOBAL, _LOAD_METHOD, _IMPORT)
_NULL_FOLLOWS = sys.version_info >= (3, 13)
_CACHES = {_LOAD_METHOD: 9 if _HAS_BIT else 10, _LOAD_GLOBAL: 4 if _HAS_BIT else 5, _IMPORT: 0}
"""Units of two bytes after the instructions."""

Find = Callable[[Any, bool], Any]
"""What takes the place of a value, which is called or not; None for what stays."""
_FindLoaded = Callable[[int, str, bool], Any]
"""In the same way, by the instruction and the name that it loads."""


_NO_NAMES: Mapping[str, Any] = {}


class _Load(NamedTuple):
    """An instruction that loads a global, a module, or a method of what is on the stack."""

    begin: int
    end: int
    """Of the bytes that may be written to."""
    name: int
    opcode: int
    is_call: bool
    has_null: bool


def replace_globals(
    fn: FunctionType,
    code: CodeType,
    find: Find,
    methods: Mapping[str, Any],
    names: Mapping[str, Any] = _NO_NAMES,
) -> CodeType | None:
    """Code for a function in which globals are others; None if there is nothing to replace.

    `methods` has the functions that are called instead of methods, by their names, `names` those of
    globals that no namespace has.
    """
    known = fn.__globals__
    if getattr(fn, "__builtins__", None) is not vars(builtins):
        return None

    def find_loaded(opcode: int, name: str, is_call: bool) -> Any:
        if opcode == _LOAD_METHOD:
            return methods.get(name)
        if opcode == _IMPORT:
            return find(sys.modules.get(name), False)
        if name in names:
            return names[name]
        return find(known[name] if name in known else vars(builtins).get(name), is_call)

    return _replace_in_code(code, find_loaded)


def _replace_in_code(code: CodeType, find: _FindLoaded) -> CodeType | None:
    nested = {
        i: made
        for i, const in enumerate(code.co_consts)
        if isinstance(const, CodeType) and (made := _replace_in_code(const, find)) is not None
    }
    consts = [nested.get(i, const) for i, const in enumerate(code.co_consts)]
    raw = bytearray(code.co_code)
    if any(find(op, name, True) is not None for name in code.co_names for op in _OPCODES):
        _replace_loads(raw, consts, code, find)
    if not nested and len(consts) == len(code.co_consts):
        return None
    return code.replace(co_code=bytes(raw), co_consts=tuple(consts))


def _replace_loads(raw: bytearray, consts: list[Any], code: CodeType, find: _FindLoaded) -> None:
    indices: dict[int, int] = {}
    for load in tuple(_find_loads(raw, code)):
        new = find(load.opcode, code.co_names[load.name], load.is_call)
        if new is None:
            continue
        if id(new) not in indices:
            indices[id(new)] = len(consts)
            consts.append(new)
        made = _load_constant(load, indices[id(new)])
        made += bytes((_NOP, 0)) * ((load.end - load.begin - len(made)) // 2)
        raw[load.begin : load.end] = made


def _load_constant(load: _Load, index: int) -> bytes:
    made = b"".join(
        bytes((_EXTENDED_ARG if i else _LOAD_CONST, index >> 8 * i & 0xFF))
        for i in reversed(range(2 if index > 0xFF else 1))
    )
    if load.opcode == _LOAD_METHOD:
        return made + bytes((_SWAP, 2))  # below its object
    null = bytes((_PUSH_NULL, 0)) if load.has_null else b""
    return made + null if _NULL_FOLLOWS else null + made


def _find_loads(raw: bytearray, code: CodeType) -> Iterator[_Load]:
    argument, begin = 0, 0
    before: tuple[tuple[int, int, int], ...] = ((0, 0, 0),) * 2
    for offset in range(0, len(raw), 2):
        opcode, argument = raw[offset], argument << 8 | raw[offset + 1]
        if opcode == _EXTENDED_ARG:
            continue
        end = offset + 2 + 2 * _CACHES.get(opcode, 0)
        if opcode == _LOAD_GLOBAL:
            has_null = bool(argument & 1)
            is_call = has_null or (_NULL_FOLLOWS and _is_attribute_called(raw, end))
            yield _Load(begin, end, argument >> 1, opcode, is_call, has_null)
        elif opcode == _IMPORT and _is_absolute(before, code):
            yield _Load(before[0][0], end, argument, opcode, False, False)
        elif opcode == _LOAD_METHOD and (argument & 1 or not _HAS_BIT):
            yield _Load(begin, end, argument >> _HAS_BIT, opcode, True, False)
        before = (before[1], (begin, opcode, argument))
        argument, begin = 0, offset + 2


def _is_absolute(before: tuple[tuple[int, int, int], ...], code: CodeType) -> bool:
    """Whether the constants before an import, its level and its names, are those of no package."""
    (_, first, level), (_, second, _) = before
    return first == second == _LOAD_CONST and code.co_consts[level] == 0


def _is_attribute_called(raw: bytearray, at: int) -> bool:
    """Whether a call follows of an attribute of the global."""
    begin = at
    while raw[at] in (_EXTENDED_ARG, _LOAD_ATTR):
        at += 2 * (1 + _CACHES[_LOAD_METHOD]) if raw[at] == _LOAD_ATTR else 2
    return raw[at] == _PUSH_NULL and at > begin
