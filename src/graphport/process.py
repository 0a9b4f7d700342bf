"""Changes of process and thread state that are undone on every exit, interrupts included.

An interrupt is an exception between any two instructions: before the `try` that would undo a
change, or within the `finally` that does. So nothing here relies on a single one. What is to be
undone is noted before it is done, in the record of a call decorated with `restore_on_exit`; every
step of the undoing may be repeated; and such a call undoes what its record says twice, of which the
second finds nothing to do unless the first was interrupted.

Contexts within such a call (`Patch`, `undo_on_exit`, and torch's own) undo what they do as ever;
the record is for what they miss. A context made of a generator that was interrupted as it was
entered undoes it whenever the traceback is dropped, which is too late: so the frames of an
interrupt are cleared before the thread is restored, but for the user's.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import torch

from graphport import source
from graphport.compat import torch as compat

P = ParamSpec("P")
T = TypeVar("T")


def restore_on_exit(fn: Callable[P, T]) -> Callable[P, T]:
    """A function that leaves the process and the thread as they were, however it ends."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        record = _Record()
        try:
            try:
                _thread_state.record = record
                return fn(*args, **kwargs)
            except BaseException as error:
                if find_interrupt(error, record.handled) is not None:
                    _clear_frames(error, record.handled)
                raise_interrupt(error, record.handled)
                raise
            finally:
                record.undo()
        finally:
            record.undo()

    return call


def find_interrupt(
    error: BaseException | None, handled: BaseException | None
) -> BaseException | None:
    """The interrupt that `error` is, or covers up: it came while that was under way.

    `handled` is what the caller was handling before anything began.
    """
    for e in _walk_exceptions(error, handled):
        if not isinstance(e, Exception):
            return e
        if type(e) is TypeError and _SWALLOWED_INTERRUPT in str(e):
            return KeyboardInterrupt()
    return None


def raise_interrupt(error: BaseException, handled: BaseException | None) -> None:
    """Raise it, if there is one that `error` covers up."""
    interrupt = find_interrupt(error, handled)
    try:
        if interrupt is not None and interrupt is not error:
            raise interrupt
    finally:
        del interrupt  # else it would hold this frame, and this frame it


_SWALLOWED_INTERRUPT = 'with error "KeyboardInterrupt'
"""What torch makes of one that comes while it asks an argument for its value."""


def _walk_exceptions(
    error: BaseException | None, handled: BaseException | None
) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and error is not handled and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__context__


def _clear_frames(error: BaseException, handled: BaseException | None) -> None:
    """Drop what the frames of other packages hold that have ended."""
    for e in _walk_exceptions(error, handled):
        trace = e.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if not source.is_user_code(frame.f_code):
                with suppress(RuntimeError):  # it is running
                    frame.clear()


class undo_on_exit:
    """While this lasts, something is different, which `undo` undoes; it may be called again."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        record = _thread_state.record
        self._steps: list[Any] = [] if record is None else record.steps
        self._steps.append(self._undo)

    def __exit__(self, *_: object) -> None:
        self._undo()
        self._forget()

    def _forget(self) -> None:
        if self._undo in self._steps:  # unless an interrupt has seen to it
            self._steps.remove(self._undo)


class undo_on_error(undo_on_exit):
    """What is only undone if it does not come to its end."""

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._undo()
        self._forget()


# The whole process


class Switch:
    """A setting that is read and written by functions."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any]) -> None:
        self.read, self.write = read, write


_ABSENT = object()
Replacement = tuple[Any, str, Any]
"""An object, the name of one of its attributes, and what is in its place; of a `Switch`, `""`."""


class Patch:
    """Attributes that are replaced for the whole process while any thread holds the patch.

    Were each thread to put back what it found, the last to leave could put back what another had
    set; so the first to come replaces, and the last to leave puts back.
    """

    def __init__(self, replacements: Callable[[], Iterable[Replacement]]) -> None:
        self._replacements = replacements
        self._turn = threading.RLock()
        self._holders: dict[Any, int] = {}
        self._before: list[Replacement] = []
        self._instead: list[Replacement] = []
        self._is_applied = False
        _PATCHES.append(self)

    def __enter__(self) -> None:
        self.hold(_thread_state.record)

    def __exit__(self, *_: object) -> None:
        holder = _thread_state.record
        with self._turn:
            left = self._holders.get(holder, 0) - 1
            if left > 0:
                self._holders[holder] = left
            else:
                self.release(holder)

    def hold(self, holder: Any) -> None:
        with self._turn:
            self._holders[holder] = self._holders.get(holder, 0) + 1
            if self._is_applied:
                return
            if not self._before:
                self._instead = list(self._replacements())
                self._before = [(o, name, _read_attribute(o, name)) for o, name, _ in self._instead]
            for replacement in self._instead:
                _write_attribute(*replacement)
            self._is_applied = True

    def release(self, holder: object) -> None:
        """Of a holder that has let go already, nothing but what an interrupt has left undone."""
        with self._turn:
            self._holders.pop(holder, None)
            if not self._holders:
                self._is_applied = False
                for replacement in self._before:
                    _write_attribute(*replacement)
                self._before = []


_PATCHES: list[Patch] = []


def _read_attribute(owner: object, name: str) -> object:
    if isinstance(owner, Switch):
        return owner.read()
    return vars(owner).get(name, _ABSENT)  # what a class inherits is not its own


def _write_attribute(owner: object, name: str, value: object) -> None:
    if isinstance(owner, Switch):
        owner.write(value)
    elif value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


# The thread


def make_thread_local(kind: type[threading.local] = threading.local) -> Any:
    """Attributes of each thread that are as before after a call that is contained."""
    made = kind()
    _THREAD_LOCALS.append(made)
    return made


class _ThreadState(threading.local):
    record: _Record | None = None
    """Of the innermost contained call."""


_thread_state = _ThreadState()
_THREAD_LOCALS: list[threading.local] = [source.running]

# Whatever a guard of torch's may exclude: modes, autograd, autocast.
_EXCLUDABLE_KEYS = [
    key
    for name, key in compat.DispatchKey.__members__.items()
    if (name.startswith(("Autocast", "Python")) and name != "PythonDispatcher")
    or name
    in (
        "ADInplaceOrView",
        "AutogradFunctionality",
        "AutogradOther",
        "AutogradNestedTensor",
        "PreDispatch",
    )
]
_DEVICES = compat.autocast_supported_devices()


# What torch notes of modes besides their stack, each as an owner and an attribute.
MODE_FLAGS = (
    compat.locate("is_in_torch_dispatch_mode"),
    compat.locate("is_in_non_infra_torch_dispatch_mode"),
    compat.locate("is_in_any_mode_without_ignore_compile_internals"),
)


class _Record:
    """What was when a contained call began, and what is to be undone when it ends."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        """What undoes the changes that are under way, the last one last."""
        self.handled = sys.exc_info()[1]
        self._outer = _thread_state.record
        self._locals = [dict(vars(local)) for local in _THREAD_LOCALS]
        self._function_modes = compat.get_current_function_mode_stack()
        self._dispatch_modes = compat.get_current_dispatch_mode_stack()
        self._mode_flags = [getattr(*flag) for flag in MODE_FLAGS]
        self._function_state = compat.get_torch_function_state()
        self._excluded = compat.dispatch_tls_local_exclude_set()
        self._autocast = [torch.get_autocast_dtype(device) for device in _DEVICES]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._grad_mode = torch.is_grad_enabled()

    def undo(self) -> None:
        """All of it; of what has been undone already, nothing."""
        self._restore_thread()  # first, since under a mode nothing else does what it says
        while self.steps:
            self.steps[-1]()
            self.steps.pop()
        for patch in _PATCHES:
            patch.release(self)
        for local, saved in zip(_THREAD_LOCALS, self._locals, strict=False):
            if vars(local) != saved:
                vars(local).clear()
                vars(local).update(saved)
        _thread_state.record = self._outer

    def _restore_thread(self) -> None:
        if not _is_same_list(compat.get_current_function_mode_stack(), self._function_modes):
            while compat.len_torch_function_stack():
                compat.pop_torch_function_stack()
            for mode in self._function_modes:
                compat.push_on_torch_function_stack(mode)
        if not _is_same_list(compat.get_current_dispatch_mode_stack(), self._dispatch_modes):
            while compat.len_torch_dispatch_stack():
                compat.pop_torch_dispatch_stack(None)
            for mode in self._dispatch_modes:
                compat.push_on_torch_dispatch_stack(mode)
            for flag, value in zip(MODE_FLAGS, self._mode_flags, strict=True):
                setattr(*flag, value)
        compat.set_torch_function_state(self._function_state)
        if compat.dispatch_tls_local_exclude_set() != self._excluded:
            for key in _EXCLUDABLE_KEYS:
                compat.dispatch_tls_set_dispatch_key_excluded(key, self._excluded.has(key))
        for device, dtype in zip(_DEVICES, self._autocast, strict=True):
            if torch.get_autocast_dtype(device) is not dtype:
                torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._autocast_cache)
        compat.set_grad_enabled(self._grad_mode)


def _is_same_list(a: list[object], b: list[object]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
