"""Finds the user's file, line and frames, for errors, facts and node metadata.

One module owns this question, because every error, fact and graph node asks it. A frame belongs to
the user when its file is not part of graphport, of torch, or of the Python standard library's
machinery that torch runs through. Walking frames is the expensive part of recording an operator, so
frames are classified once per code object and formatted only when somebody reads the text.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import linecache
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)

_WIDTH = 120  # of the source text in a message

_is_user_file: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code; `module` is the path of the nn.Module that was running."""

    file: str
    line: int
    function: str
    module: str = ""
    expression: str = ""
    """The part of the line that was being evaluated, where somebody asked for it."""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    @property
    def trace(self) -> str:
        """As the metadata of a node has it."""
        return f'  File "{self.file}", line {self.line}, in {self.function}\n    {self.text}\n'

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        text = self.text if len(self.text) <= _WIDTH else self.text[: _WIDTH - 3] + "..."
        code = f": {text}" if text else ""
        return f"{place}{code}" + (f"      ({self.module})" if self.module else "")


def is_user_code(code: CodeType) -> bool:
    # By file, not by code object: hashing a code object hashes its bytes.
    return is_user_path(code.co_filename)


def is_user_path(file: str) -> bool:
    known = _is_user_file.get(file)
    if known is None:
        stdlib = file.startswith(_STDLIB) and not any(part in file for part in _SITE)
        known = not (file.startswith((_OURS, _TORCH, "<frozen", "<string>")) or stdlib)
        _is_user_file[file] = known
    return known


def warn(message: str, category: type[Warning]) -> None:
    """A warning about the line of the user's that called graphport."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class Frames:
    """The user's frames from the innermost outwards. Line numbers are looked up when asked for.

    `key` tells stacks apart for as long as the frames object is alive.
    """

    __slots__ = ("codes", "key")

    def __init__(self, stop: FrameType | None = None) -> None:
        """Walk up from the caller, to before `stop`."""
        frame: FrameType | None = sys._getframe(1)
        key: list[int] = []
        codes: list[CodeType] = []
        known = _is_user_file
        while frame is not None and frame is not stop:
            code = frame.f_code
            mine = known.get(code.co_filename)
            if mine or (mine is None and is_user_code(code)):
                codes.append(code)
                key.append(id(code))
                key.append(frame.f_lasti)
            frame = frame.f_back
        self.key = tuple(key)
        self.codes = codes

    def __str__(self) -> str:
        """As a traceback prints them, outermost first."""
        files = (code.co_filename for code in reversed(self.codes))
        return "".join(map(_format_frame, reversed(self.codes), self.key[::-2], files))


@functools.lru_cache(maxsize=1 << 14)
def _format_frame(code: CodeType, offset: int, file: str) -> str:
    """`file` is the code's own: code of another file may be equal to it."""
    line = find_line(code, offset)
    place = f'  File "{file}", line {line}, in {code.co_name}\n'
    text = linecache.getline(file, line).strip()
    return f"{place}    {text}\n" if text else place


def find_line(code: CodeType, offset: int) -> int:
    """The source line of an instruction offset, as a traceback would print it."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


class _Running(threading.local):
    """The path of the nn.Module whose code is running, kept by whoever follows module calls."""

    module: str = ""
    line: Location | None = None
    """The user's line that is running where no frame of Python's is there for it."""
    raises: Raise | None = None
    """What `find_raise` finds there."""


running = _Running()


def locate_user_line() -> Location | None:
    """The user's innermost line that is executing now, in the module that is running."""
    if running.line is not None:
        return running.line
    frame: FrameType | None = sys._getframe(1)
    layer: Location | None = None
    while frame is not None and frame.f_code not in boundaries:
        code = frame.f_code
        if is_user_code(code):
            return Location(code.co_filename, frame.f_lineno, code.co_qualname, running.module)
        if layer is None and _is_layer(code):
            layer = Location(code.co_filename, frame.f_lineno, code.co_qualname, running.module)
        frame = frame.f_back
    return layer


boundaries: set[CodeType] = set()
"""Code that calls the user's program: who called that is no part of the program."""


def _is_layer(code: CodeType) -> bool:
    """A layer of torch's: the place to name when no line of the user's own was running."""
    return code.co_name == "forward" and code.co_filename.startswith(_TORCH)


def find_user_frame() -> FrameType | None:
    """The user's innermost frame that is executing now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        frame = None if frame.f_code in boundaries else frame.f_back
    return frame


def locate_user_expression() -> Location | None:
    """As `locate_user_line`, with the expression that is being evaluated."""
    where, frame = locate_user_line(), find_user_frame()
    if where is None or frame is None or where is running.line:
        return where
    return replace(where, expression=_read_segment(frame))


def _read_segment(frame: FrameType) -> str:
    """The source text of what a frame is evaluating; empty when it spans lines or is unknown."""
    positions = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, end, start, stop = next(positions, (None,) * 4)
    if line is None or line != end:
        return ""
    # Columns count bytes.
    return linecache.getline(frame.f_code.co_filename, line).encode()[start:stop].decode()


def locate_function(fn: Any) -> Location | None:
    """Where a function is defined, if it is written in Python."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return None
    return Location(code.co_filename, code.co_firstlineno, code.co_qualname)


@dataclass(frozen=True, slots=True)
class Raise:
    """A branch of which one side does nothing but raise: `assert ok`, `if bad: raise ...`."""

    truth: bool
    """Of the condition, where it raises."""
    message: str


def find_raise() -> Raise | None:
    """If the user's innermost code asks for a truth in order to raise: when, and what it says."""
    frame = find_user_frame()
    if frame is None or running.line is not None:
        return running.raises
    code = frame.f_code
    steps = list(dis.get_instructions(code))
    index = next((i for i, step in enumerate(steps) if step.offset == frame.f_lasti), None)
    if index is None:
        return None
    if steps[index].opname == "TO_BOOL":
        index += 1
    jump = steps[index]
    if "POP_JUMP" not in jump.opname or "NONE" in jump.opname:
        return None
    at = {step.offset: i for i, step in enumerate(steps)}
    jumps_if = jump.opname.endswith("IF_TRUE")
    for truth, start in ((jumps_if, at[jump.argval]), (not jumps_if, index + 1)):
        message = _read_raise(code, steps, start)
        if message is not None:
            return Raise(truth, message)
    return None


def _read_raise(code: CodeType, steps: list[dis.Instruction], start: int) -> str | None:
    """The text of the exception, if from here on nothing is done but to raise it."""
    texts: list[str] = []
    for step in steps[start:]:
        if step.opname == "RAISE_VARARGS":
            caught = any(e.start <= step.offset < e.end for e in _list_handlers(code, steps))
            return None if caught else "".join(texts)
        if "JUMP" in step.opname or "RETURN" in step.opname or step.opname == "FOR_ITER":
            return None
        if step.opname == "LOAD_CONST" and isinstance(step.argval, str):
            texts.append(step.argval)
        elif step.opname in ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"):
            texts.append("...")
    return None


def _list_handlers(code: CodeType, steps: list[dis.Instruction]) -> Iterator[Any]:
    """The ranges in which exceptions are handled; leaving a `with` does not count."""
    at = {step.offset: i for i, step in enumerate(steps)}
    entries: list[Any] = vars(dis.Bytecode(code))["exception_entries"]
    for entry in entries:
        handler = steps[at[entry.target] :][:2]
        if [s.opname for s in handler] != ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
            yield entry


def locate_error(error: BaseException, module: str = "") -> Location | None:
    """The user's innermost line in the traceback of `error`."""
    found: Location | None = getattr(error, "_script_line", None)
    if found is not None:
        return found
    layer = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user_code(code):
            found = Location(code.co_filename, trace.tb_lineno, code.co_qualname, module)
        elif _is_layer(code):
            layer = Location(code.co_filename, trace.tb_lineno, code.co_qualname, module)
        trace = trace.tb_next
    return found or layer


def find_failing_frame(error: BaseException) -> tuple[CodeType, int] | None:
    """The code and the line of the user's innermost frame in the traceback of `error`."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if is_user_code(trace.tb_frame.f_code):
            found = trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next
    return found


def is_raised_by_graphport(error: BaseException) -> bool:
    """Whether it was code of graphport that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS)


_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')


def locate_stack_trace(trace: str | None) -> Location | None:
    """The innermost line of a `stack_trace` in a node's metadata."""
    found = _FRAME.findall(trace or "")
    return Location(found[-1][0], int(found[-1][1]), found[-1][2]) if found else None


def keep_user_frames(trace: str) -> str:
    """The user's frames of a `stack_trace`; all of it, if there are none."""
    starts = [*(m.start() for m in _FRAME.finditer(trace)), len(trace)]
    frames = [trace[a:b] for a, b in itertools.pairwise(starts)]
    kept = [f for f in frames if (m := _FRAME.match(f)) and is_user_path(m.group(1))]
    return "".join(kept) or trace
