"""Output of a command: results as text or JSON, progress, warnings and errors.

Results go to standard output, as text or as JSON; progress, warnings and errors to standard error,
and so does what the user's own code prints. Progress is shown on a terminal only.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from graphport import errors
from graphport.errors import ExportError, MissingLoweringError


class Console:
    """The output of one command; `timings` has the seconds of each step."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.output = sys.stdout
        self.timings: dict[str, float] = {}

    @contextmanager
    def step(self, doing: str, name: str) -> Iterator[None]:
        """Show what is being done and for how long; remember how long it took."""
        began = perf_counter()
        try:
            with _show_spinner(doing):
                yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + perf_counter() - began

    def result(self, text: str, data: Mapping[str, object]) -> None:
        self._print(json.dumps(data, indent=2) if self.as_json else text)

    def _print(self, text: str) -> None:
        """What the output cannot encode is shown escaped, as on standard error."""
        encoding = getattr(self.output, "encoding", None) or "utf-8"
        text = errors.escape_terminal(text).encode(encoding, "backslashreplace").decode(encoding)
        print(text, file=self.output, flush=True)

    def tell(self, text: str) -> None:
        """What a user has to know, and is not wrong."""
        _print_message(text, "cyan")

    def warn(self, text: str) -> None:
        _print_message(f"warning: {text}", "yellow")

    def failure(self, error: ExportError) -> None:
        _print_message(str(error), "red")
        if self.as_json:
            document = {"ok": False, "error": error_to_json(error)}
            self._print(json.dumps(document, indent=2))


def error_to_json(error: ExportError) -> dict[str, object]:
    """An error for `--json`."""
    return {
        "code": type(error).code,
        "type": type(error).__name__,
        "what": error.what,
        "where": _format_where(error),
        "fix": error.fix,
    }


def _format_where(error: ExportError) -> str | None:
    if isinstance(error, MissingLoweringError):
        return "\n".join(error.lines)
    return None if error.where is None else str(error.where)


@contextmanager
def _show_spinner(doing: str) -> Iterator[None]:
    if not _is_terminal():
        yield
        return
    from rich.console import Console as Terminal
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as progress:
        progress.add_task(errors.escape_line(doing), total=None)
        yield


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None where it is closed


def _print_message(text: str, colour: str) -> None:
    """On standard error; the code or the first word in colour on a terminal."""
    text = errors.escape_terminal(text)
    if not _is_terminal():
        print(text, file=sys.stderr)
        return
    from rich.console import Console as Terminal
    from rich.text import Text

    head, _, rest = text.partition(" ")
    Terminal(stderr=True, soft_wrap=True).print(Text.assemble((head, f"bold {colour}"), " ", rest))


# Results as data, for `--json`.


def verification_to_json(report: Any) -> dict[str, object]:
    """A `VerificationReport`."""
    where = report.first_divergence
    return {
        "ok": report.ok,
        "outputs": [
            {
                "name": o.name,
                "ok": o.ok,
                "max_abs_error": number_to_json(o.max_abs_error),
                "max_rel_error": number_to_json(o.max_rel_error),
            }
            for o in report.outputs
        ],
        "sizes_tried": [trial.sizes for trial in report.sizes_tried if trial.compared],
        "sizes_refused": [
            {"sizes": trial.sizes, "outcome": trial.outcome, "reason": trial.reason}
            for trial in report.sizes_refused
        ],
        "weights_differ": [
            {"name": w.name, "max_abs_error": number_to_json(w.max_abs_error)}
            for w in report.weights
        ],
        "first_divergence": None
        if where is None
        else {"node": str(where.node), "module": where.module, "source": str(where.source)},
    }


def number_to_json(x: float | None) -> float | str | None:
    """JSON has no infinity and no NaN."""
    return x if x is None or math.isfinite(x) else str(x)
