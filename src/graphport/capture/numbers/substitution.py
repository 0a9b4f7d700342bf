"""Lets the user's code call `functions` while it is captured, in place of Python's own.

The functions of the modules that are captured have their code replaced from the beginning: those of
their classes, and what stands beside them in the same files. Where other code fixes a size, or asks
for a number that is data, its functions are noted, and the program is captured again with theirs.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary, ref

from torch import nn

from graphport import source
from graphport.capture.control_flow.cond import BranchMismatchError
from graphport.capture.control_flow.conversion import Asked, convert_statements
from graphport.capture.control_flow.python_flow import FUNCTIONS
from graphport.capture.numbers.arrays import patch_arrays
from graphport.capture.numbers.bytecode import replace_globals
from graphport.capture.numbers.functions import METHODS, REPLACEMENTS, ModuleReplacement
from graphport.capture.trace import registries
from graphport.errors import CaptureWarning, DataDependentError, ExportError
from graphport.process import Patch, undo_on_exit


def _find_replacement(value: Any, is_call: bool) -> Any:
    found = REPLACEMENTS.get(id(value))
    if found is None or not (is_call or isinstance(value, ModuleType)):
        return None
    ours = found[1]
    return ours.called if is_call and isinstance(ours, ModuleReplacement) else ours


_ARRAYS_PATCH = Patch(patch_arrays)


class NumberCalls:
    """The functions whose code is replaced for one capture."""

    def __init__(self, root: nn.Module | None, function: Any) -> None:
        self._functions: dict[int, FunctionType] = {}
        self._noted: dict[int, FunctionType] = {}
        self._listed: set[Any] = set()
        """Classes and files whose functions are among them."""
        self._asked: dict[int, frozenset[Asked]] = {}
        """Of functions by id: the statements that data decides."""
        for fn in _unwrap(function):
            self._add_file(fn, self._functions)
        modules = tuple(registries.named_modules(root))
        for _, module in modules:
            for fn in _unwrap(vars(module).get("forward")):
                self._add_file(fn, self._functions)
        kinds = dict.fromkeys(type(module) for _, module in modules)
        for kind in dict.fromkeys(base for k in kinds for base in k.__mro__):
            if not kind.__module__.startswith(("torch.", "builtins")):
                for name in self._add_owner(kind, self._functions).files:
                    self._add_module(name, self._functions)

    def __enter__(self) -> None:
        _ARRAYS_PATCH.__enter__()
        self._undo = undo_on_exit(self._restore)
        self._undo.__enter__()
        _CODES.replace(self._functions, self._asked, self)

    def __exit__(self, *error: object) -> None:
        self._undo.__exit__(*error)
        _ARRAYS_PATCH.__exit__(*error)

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
        new = {i: fn for i, fn in self._noted.items() if _CODES.substituted(fn) is not None}
        self._noted = {}
        self._functions |= new
        return bool(new)

    def _add_file(self, fn: FunctionType, found: dict[int, FunctionType]) -> None:
        """A function, and those of its file."""
        if not source.is_user_code(fn.__code__):
            return
        self._add((fn,), found)
        name = fn.__globals__.get("__name__")
        if _is_module(name, fn.__globals__):
            self._add_module(name, found)
        else:
            self._add(_list_functions(fn.__globals__), found)
            for kind in _list_classes(fn.__globals__):
                self._add_owner(kind, found)

    def _add_module(self, name: str, found: dict[int, FunctionType]) -> None:
        module = sys.modules.get(name)
        if module is not None and module not in self._listed:
            for kind in self._add_owner(module, found).classes:
                if (known := kind()) is not None and known not in self._listed:
                    self._add_owner(known, found)

    def _add_owner(self, owner: Any, found: dict[int, FunctionType]) -> _Listing:
        self._listed.add(owner)
        listing = _list_owner(owner)
        for call in listing.calls:
            if (fn := call()) is not None and id(fn) not in self._functions:
                found[id(fn)] = fn
        return listing

    def _add(self, functions: Iterable[FunctionType], found: dict[int, FunctionType]) -> None:
        for fn in functions:
            if id(fn) not in self._functions and _CODES.substituted(fn) is not None:
                found[id(fn)] = fn


def _find_function(code: CodeType) -> FunctionType | None:
    holders = gc.get_referrers(code)
    return next((f for f in holders if type(f) is FunctionType and f.__code__ is code), None)


def _holds_code(code: CodeType, inner: CodeType) -> bool:
    return code is inner or any(
        isinstance(c, CodeType) and _holds_code(c, inner) for c in code.co_consts
    )


class _Listing(NamedTuple):
    """What a class or a module of Python defines."""

    mark: tuple[int, ...]
    """The ids of its values: others are other functions."""
    calls: list[ref[FunctionType]]
    """Functions that have calls to replace."""
    files: list[str]
    """The modules of its functions."""
    classes: list[ref[type]]


_listings: WeakKeyDictionary[Any, _Listing] = WeakKeyDictionary()


def _list_owner(owner: Any) -> _Listing:
    mark = tuple(map(id, vars(owner).values()))
    known = _listings.get(owner)
    if known is None or known.mark != mark:
        is_class = isinstance(owner, type)
        found = _list_methods(owner) if is_class else _list_functions(vars(owner))
        functions = [fn for fn in found if source.is_user_code(fn.__code__)]
        calls = [ref(fn) for fn in functions if _CODES.substituted(fn) is not None]
        files = dict.fromkeys(fn.__globals__.get("__name__", "") for fn in functions)
        classes = [] if is_class else [ref(kind) for kind in _list_classes(vars(owner))]
        known = _listings[owner] = _Listing(mark, calls, list(files), classes)
    return known


def _is_module(name: object, namespace: dict[str, Any]) -> TypeGuard[str]:
    return isinstance(name, str) and vars(sys.modules.get(name, _NO_MODULE)) is namespace


_NO_MODULE = ModuleType("absent")


def _list_functions(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions that a module of Python defines."""
    name = namespace.get("__name__")
    for value in tuple(namespace.values()):
        if not isinstance(value, (type, ModuleType)):
            for fn in _unwrap(value):
                if fn.__module__ == name:
                    yield fn


def _list_classes(namespace: dict[str, Any]) -> Iterator[type]:
    name = namespace.get("__name__")
    for value in tuple(namespace.values()):
        if isinstance(value, type) and value.__module__ == name:
            yield value


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

    def substituted(self, fn: FunctionType, asked: frozenset[Asked] = _NOTHING) -> CodeType | None:
        """The code of a function with other calls, None if it calls nothing of the kind.

        With the statements converted that are asked for; None if they cannot be, either.
        """
        known = self._made.get(fn)
        if known is None or not any(fn.__code__ is c for c in (known[0], *known[1].values())):
            known = self._made[fn] = (fn.__code__, {})
        original, made = known
        if asked not in made:
            code = convert_statements(original, asked) if asked else original
            made[asked] = code and replace_globals(fn, code, _find_replacement, METHODS, FUNCTIONS)
        return made[asked]

    def has_run(self, fn: FunctionType, code: CodeType) -> bool:
        """Whether code is that of a function, or of a function in it, with whatever calls."""
        original, made = self._made.get(fn, (fn.__code__, {}))
        return any(c is not None and _holds_code(c, code) for c in (original, *made.values()))

    def is_convertible(self, fn: FunctionType, asked: frozenset[Asked]) -> bool:
        with self._turn:
            return self.substituted(fn, asked) is not None

    def replace(
        self, functions: dict[int, FunctionType], asked: dict[int, frozenset[Asked]], holder: object
    ) -> None:
        with self._turn:
            for i, fn in functions.items():
                new = self.substituted(fn, asked.get(i, _NOTHING))
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
