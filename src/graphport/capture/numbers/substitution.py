"""Lets the user's code call `functions` while it is captured, in place of Python's own.

The functions of the modules that are captured have their code replaced from the beginning: those of
their classes, and what stands beside them in the same files. Where other code fixes a size, or asks
for a number that is data, its functions are noted, and the program is captured again with theirs.
"""

from __future__ import annotations

import builtins
import functools
import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from graphport import source
from graphport.capture.control_flow.cond import BranchMismatchError
from graphport.capture.control_flow.conversion import Asked, convert_statements
from graphport.capture.control_flow.python_flow import list_replacements
from graphport.capture.numbers.arrays import patch_arrays
from graphport.capture.numbers.bytecode import rename_globals
from graphport.capture.numbers.functions import METHODS, REPLACEMENTS, ModuleReplacement
from graphport.capture.trace import registries
from graphport.errors import CaptureWarning, DataDependentError, ExportError
from graphport.process import Patch, Replacement, Switch, undo_on_exit

_NAMES = {i: f"symbolic {original.__name__}" for i, (original, _) in REPLACEMENTS.items()}
_METHOD_NAMES = {name: f"symbolic .{name}" for name in METHODS}


def _rename(value: Any, is_call: bool) -> str | None:
    name = _NAMES.get(id(value))
    if name is not None and isinstance(value, ModuleType):
        return f"{name}()" if is_call else name
    return name if is_call else None


def _patch_names() -> Iterator[Replacement]:
    """Where renamed globals and modules are found: under names that no source can have."""
    for i, name in _NAMES.items():
        ours = REPLACEMENTS[i][1]
        yield builtins, name, ours
        if isinstance(ours, ModuleReplacement):
            yield builtins, f"{name}()", ours.called
            read = functools.partial(sys.modules.get, name)
            yield Switch(read, functools.partial(_set_module, name)), "", ours
    for method, name in _METHOD_NAMES.items():
        yield builtins, name, METHODS[method]
    yield from patch_arrays()
    yield from list_replacements()


def _set_module(name: str, module: Any) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


_NAMES_PATCH = Patch(_patch_names)


class NumberCalls:
    """The functions whose code is replaced for one capture."""

    def __init__(self, root: nn.Module | None, function: Any) -> None:
        self._functions: dict[int, FunctionType] = {}
        self._files: set[int] = set()
        """Namespaces of modules whose functions are among them, by id."""
        self._noted: dict[int, FunctionType] = {}
        self._asked: dict[int, frozenset[Asked]] = {}
        """Of functions by id: the statements that data decides."""
        for fn in _find_functions(root, function):
            self._add_file(fn, self._functions)

    def __enter__(self) -> None:
        _NAMES_PATCH.__enter__()
        self._undo = undo_on_exit(self._restore)
        self._undo.__enter__()
        for i, fn in self._functions.items():
            _CODES.replace(fn, self, self._asked.get(i, _NOTHING))

    def __exit__(self, *error: object) -> None:
        self._undo.__exit__(*error)
        _NAMES_PATCH.__exit__(*error)

    def _restore(self) -> None:
        _CODES.restore(self)

    def note_callers(self) -> None:
        """The code that is running needs a plain number: next time it may not."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in source.boundaries:
            if source.is_user_code(frame.f_code):
                self._note(frame)
            frame = frame.f_back

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        known = (*self._functions.values(), *self._noted.values())
        if any(_holds_code(fn.__code__, code) for fn in known):
            return
        fn = _find_function(code)
        if fn is not None:
            self._add_file(fn, self._noted)

    def convert(self, error: ExportError) -> bool:
        """Convert the statement that failed since data decides it; False if that is no help."""
        found = source.find_failing_frame(error)
        one_sided = isinstance(error, BranchMismatchError)
        if found is None or not (one_sided or isinstance(error, DataDependentError)):
            return False
        code, line = found
        known = (f for f in self._functions.values() if _CODES.has_run(f, code))
        fn = next(known, None) or _find_function(code)
        before = self._asked.get(id(fn), _NOTHING)
        asked = (before - {Asked(line)}) | {Asked(line, one_sided)}
        tried = Asked(line, one_sided=True) in before or asked == before
        if fn is None or tried or (one_sided and Asked(line) not in before):
            return False
        if not _CODES.is_convertible(fn, asked):
            return False
        self._functions[id(fn)] = fn
        self._asked[id(fn)] = asked
        return True

    def warn_of_sides(self) -> None:
        """Name the branches of which the program has one side."""
        for i, asked in self._asked.items():
            code = self._functions[i].__code__
            for line in (each.line for each in asked if each.one_sided):
                where = source.Location(code.co_filename, line, code.co_qualname)
                source.warn(
                    f"{where}: data decides, and the two sides give different things: the program "
                    "is for sizes that are not 0, and stops where it would take the other",
                    CaptureWarning,
                )

    @property
    def has_noted(self) -> bool:
        return bool(self._noted)

    def extend(self) -> bool:
        """Take in what was noted; whether there is anything new."""
        new = {i: fn for i, fn in self._noted.items() if _CODES.renamed(fn) is not None}
        self._noted = {}
        self._functions |= new
        return bool(new)

    def _add_file(self, fn: FunctionType, found: dict[int, FunctionType]) -> None:
        """A function, and those of its file."""
        if not source.is_user_code(fn.__code__):
            return
        beside: Iterable[FunctionType] = ()
        if id(fn.__globals__) not in self._files:
            self._files.add(id(fn.__globals__))
            beside = _list_functions(fn.__globals__)
        for f in (fn, *beside):
            if id(f) not in self._functions and _CODES.renamed(f) is not None:
                found[id(f)] = f


def _find_function(code: CodeType) -> FunctionType | None:
    holders = gc.get_referrers(code)
    return next((f for f in holders if type(f) is FunctionType and f.__code__ is code), None)


def _holds_code(code: CodeType, inner: CodeType) -> bool:
    return code is inner or any(
        isinstance(c, CodeType) and _holds_code(c, inner) for c in code.co_consts
    )


def _find_functions(root: nn.Module | None, function: Any) -> Iterator[FunctionType]:
    """The code that a capture is known to run."""
    yield from _unwrap(function)
    seen: set[type] = set()
    for _, module in registries.named_modules(root):
        yield from _unwrap(vars(module).get("forward"))
        kinds = [k for k in type(module).__mro__ if k not in seen]
        seen.update(kinds)
        for kind in kinds:
            if not kind.__module__.startswith(("torch.", "builtins")):
                yield from _list_methods(kind)


def _list_functions(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions and methods that a module of Python defines."""
    name = namespace.get("__name__")
    for value in tuple(namespace.values()):
        if isinstance(value, type):
            if value.__module__ == name:
                yield from _list_methods(value)
        elif not isinstance(value, ModuleType):
            for fn in _unwrap(value):
                if fn.__module__ == name:
                    yield fn


def _list_methods(kind: type) -> Iterator[FunctionType]:
    for value in tuple(vars(kind).values()):
        yield from _unwrap(value)
        if isinstance(value, property):
            yield from _unwrap(value.fget)


def _unwrap(fn: Any) -> Iterator[FunctionType]:
    """The function in a method, a static method or a decorated function, and what it wraps."""
    for _ in range(_DEPTH):
        if isinstance(fn, (MethodType, staticmethod, classmethod)):
            fn = fn.__func__
        if isinstance(fn, FunctionType):
            yield fn
        fn = getattr(fn, "__dict__", {}).get("__wrapped__")
        if fn is None:
            return


_DEPTH = 8
"""Decorators around one function, at most."""


_NOTHING: frozenset[Asked] = frozenset()


class _Codes:
    """The functions whose code is replaced, for all captures that are under way."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._made: WeakKeyDictionary[
            FunctionType, tuple[CodeType, dict[frozenset[Asked], CodeType | None]]
        ] = WeakKeyDictionary()
        self._holders: dict[FunctionType, set[int]] = {}

    def renamed(self, fn: FunctionType, asked: frozenset[Asked] = _NOTHING) -> CodeType | None:
        """The code of a function with other names, None if it calls nothing of the kind.

        With the statements converted that are asked for; None if they cannot be, either.
        """
        known = self._made.get(fn)
        if known is None or not any(fn.__code__ is c for c in (known[0], *known[1].values())):
            known = self._made[fn] = (fn.__code__, {})
        original, made = known
        if asked not in made:
            code = convert_statements(original, asked) if asked else original
            new = code and rename_globals(fn, code, _rename, _METHOD_NAMES)
            made[asked] = new or (code if asked else None)
        return made[asked]

    def has_run(self, fn: FunctionType, code: CodeType) -> bool:
        """Whether code is that of a function, or of a function in it, with names or without."""
        original, made = self._made.get(fn, (fn.__code__, {}))
        return any(c is not None and _holds_code(c, code) for c in (original, *made.values()))

    def is_convertible(self, fn: FunctionType, asked: frozenset[Asked]) -> bool:
        with self._turn:
            return self.renamed(fn, asked) is not None

    def replace(self, fn: FunctionType, holder: object, asked: frozenset[Asked]) -> None:
        with self._turn:
            new = self.renamed(fn, asked)
            if new is not None:
                self._holders.setdefault(fn, set()).add(id(holder))
                fn.__code__ = new

    def restore(self, holder: object) -> None:
        """Also what an interrupt has left undone."""
        with self._turn:
            for fn, holders in tuple(self._holders.items()):
                holders.discard(id(holder))
                if not holders:
                    original, made = self._made[fn]
                    if any(fn.__code__ is code for code in made.values()):
                        fn.__code__ = original
                    self._holders.pop(fn, None)


_CODES = _Codes()
