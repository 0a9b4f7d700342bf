"""`graphport run`: a script as Python runs it, but for its calls of `torch.onnx.export`."""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from graphport.cli.console import Console
from graphport.errors import UsageError

_INTERRUPTED = 130
"""The exit code of a process that was interrupted, as shells have it."""


def run(options: argparse.Namespace, console: Console) -> int:
    execute = _find_program(options)
    with console.step("loading PyTorch and ONNX", "load"):
        from graphport.onnx.redirection import Notice, Redirection

    def tell(notice: Notice) -> None:
        if options.debug and notice.error is not None:
            traceback.print_exception(notice.error)
        place = f"{notice.where.file}:{notice.where.line}: " if notice.where else ""
        console.tell(f"graphport: {place}{notice.text}")

    redirection = Redirection(tell, options.verify)
    with redirect_stdout(console.output), _as_main(options), redirection.redirect():
        code = _execute(execute)
        for thread in threading.enumerate():  # which Python waits for before it exits
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
    return code


def _find_program(options: argparse.Namespace) -> Callable[[], Any]:
    """What runs the script or module; its arguments are put in place by `_as_main`."""
    if options.module:
        name = options.module[0]
        return lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)
    if not options.script:
        raise UsageError("there is no script to run", fix="graphport run export.py")
    path = options.script[0]
    if not Path(path).exists():
        raise UsageError(f"there is no file {path}")
    if Path(path).is_dir() or path.endswith((".zip", ".pyz")):
        return lambda: runpy.run_path(path, run_name="__main__")
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    return lambda: exec(code, vars(sys.modules["__main__"]))


@contextmanager
def _as_main(options: argparse.Namespace) -> Iterator[None]:
    """`sys.argv`, `sys.path` and `__main__` as they are for a script."""
    before = sys.argv, sys.path, sys.modules["__main__"]
    script, *rest = options.module or options.script
    main = ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=builtins)
    home = os.getcwd() if options.module else os.path.dirname(os.path.realpath(script))
    try:
        sys.argv, sys.modules["__main__"] = [script, *rest], main
        sys.path = [home, *sys.path[1:]]
        yield
    finally:
        sys.argv, sys.path, sys.modules["__main__"] = before


def _execute(program: Callable[[], Any]) -> int:
    """Run it to its end; the exit code that Python would give."""
    try:
        program()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  shown as Python shows it
        error.__traceback__ = _skip_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace
