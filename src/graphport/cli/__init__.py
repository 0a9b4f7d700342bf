"""`graphport`, the command. Reading the command line loads neither torch nor onnx."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module

from graphport.cli.arguments import build_parser
from graphport.cli.console import Console
from graphport.errors import (
    CaptureWarning,
    ExportError,
    ForwardError,
    InternalError,
    SerializationError,
    UsageError,
)

__all__ = ["main"]


OK, FAILED, USAGE = 0, 1, 2

Command = Callable[[argparse.Namespace, Console], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        options = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said what is wrong, or the help
        return stop.code if isinstance(stop.code, int) else USAGE
    console = Console(as_json=options.json)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("always", CaptureWarning)
        warnings.showwarning = _make_warning_hook(console, warnings.showwarning)
        try:
            run: Command = import_module(f"graphport.cli.{options.command}").run
            return run(options, console)
        except KeyboardInterrupt:
            return FAILED
        except SystemExit as stop:
            return _report_failure(stop, _exit_error(stop), options, console)
        except BrokenPipeError:
            # The reader has gone, as `head` does; Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), console.output.fileno())
            return FAILED
        except ExportError as error:
            return _report_failure(error, error, options, console)
        except Exception as error:  # noqa: BLE001  whatever there is, it is shown
            return _report_failure(error, _to_export_error(error), options, console)


def _to_export_error(error: Exception) -> ExportError:
    """A file that cannot be read or written is the user's matter; all else is our fault."""
    if isinstance(error, OSError) and error.filename is not None:
        return UsageError(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.strerror:
        return SerializationError(f"a file cannot be written or read: {error.strerror}")
    return InternalError(
        f"{type(error).__name__}: {error}", fix="run again with --debug for the traceback"
    )


def _exit_error(stop: SystemExit) -> ExportError:
    """A script that ends the process when it is imported would do so in silence."""
    from graphport import source

    said = "" if stop.code is None else repr(stop.code)
    return ForwardError(
        f"the model's code ends the process: sys.exit({said})",
        where=source.locate_error(stop),
        fix='what only a script does goes below: if __name__ == "__main__":',
    )


def _report_failure(
    error: BaseException, shown: ExportError, options: argparse.Namespace, console: Console
) -> int:
    if options.debug:
        traceback.print_exception(error)
    console.failure(shown)
    return USAGE if isinstance(shown, UsageError) else FAILED


def _make_warning_hook(console: Console, otherwise: Callable[..., object]) -> Callable[..., None]:
    """Warnings of ours in our own form, others as they would be."""

    def show(message: object, category: type, *place: object) -> None:
        if issubclass(category, CaptureWarning):
            console.warn(str(message))
        else:
            otherwise(message, category, *place)

    return show
