"""Where in the user's code something happened.

One module owns this question, because every error, fact and graph node asks it. A frame belongs to
the user when its file is not part of graphport, of torch, or of the Python standard library's
machinery that torch runs through. Walking frames is the expensive part of recording an operator, so
frames are classified once per code object and formatted only when somebody reads the text.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)

_is_user_code: dict[CodeType, bool] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code; `module` is the path of the nn.Module that was running."""

    file: str
    line: int
    function: str
    module: str = ""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        code = f": {self.text}" if self.text else ""
        return f"{place}{code}" + (f"      ({self.module})" if self.module else "")


def _belongs_to_user(code: CodeType) -> bool:
    known = _is_user_code.get(code)
    if known is None:
        file = code.co_filename
        stdlib = file.startswith(_STDLIB) and not any(part in file for part in _SITE)
        known = not (file.startswith((_OURS, _TORCH, "<frozen", "<string>")) or stdlib)
        _is_user_code[code] = known
    return known


def user_frames(stop: FrameType | None = None) -> tuple[tuple[CodeType, int], ...]:
    """The user's frames from the innermost outwards, ending before `stop`.

    Kept as (code, instruction offset) pairs: line numbers are looked up when the text is asked for.
    """
    frame = sys._getframe(1)
    found: list[tuple[CodeType, int]] = []
    known = _is_user_code
    while frame is not None and frame is not stop:
        code = frame.f_code
        mine = known.get(code)
        if mine or (mine is None and _belongs_to_user(code)):
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def line_of(code: CodeType, offset: int) -> int:
    """The source line of an instruction offset, as a traceback would print it."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def here(module: str = "") -> Location | None:
    """The user's innermost line that is executing now."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _belongs_to_user(code):
            return Location(code.co_filename, frame.f_lineno, code.co_qualname, module)
        frame = frame.f_back
    return None


def of_traceback(error: BaseException, module: str = "") -> Location | None:
    """The user's innermost line in the traceback of `error`."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _belongs_to_user(code):
            found = Location(code.co_filename, trace.tb_lineno, code.co_qualname, module)
        trace = trace.tb_next
    return found


class StackTrace(str):
    """The text of a stack of user frames, formatted on first use.

    A subclass of str because graph tools expect `node.meta["stack_trace"]` to be one.
    """


def format_frames(frames: tuple[tuple[CodeType, int], ...]) -> str:
    """Frames as a traceback prints them, outermost first."""
    lines = []
    for code, offset in reversed(frames):
        line = line_of(code, offset)
        lines.append(f'  File "{code.co_filename}", line {line}, in {code.co_name}')
        with contextlib.suppress(Exception):
            text = linecache.getline(code.co_filename, line).strip()
            if text:
                lines.append(f"    {text}")
    return "\n".join(lines) + ("\n" if lines else "")
