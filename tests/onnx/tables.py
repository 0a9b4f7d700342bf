"""The tables of docs/operators.md and docs/models.md: every case, by us and by torch.onnx.

    python -m tests.onnx.tables run results.jsonl --kinds operators --exporters graphport
    python -m tests.onnx.tables write results.jsonl

Running takes hours, most of them torch.onnx's, so each result is a line of the file as soon as it
is known, and a run goes on where the last one ended. A case that ended the process is a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.onnx import sweep, tables_text, zoo

SECONDS = 120
"""For an operator in one dtype. A model may take five times as long."""


@dataclass(frozen=True)
class Result:
    """What became of an operator in a dtype, or of a model at fixed or open sizes."""

    kind: str
    name: str
    case: str
    exporter: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.name, self.case, self.exporter


Job = tuple[Result, Callable[[], "Result | None"]]


def operators(exporter: str) -> Iterator[Job]:
    """By dtype, so that a run that ends early has the most common first."""
    for dtype in sweep.DTYPES:
        for op in sweep.op_db:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            start = Result("operators", sweep.name_of(op), str(dtype)[6:], exporter, "crash")
            yield start, lambda op=op, dtype=dtype, start=start: _operator(op, dtype, start)


def _operator(op: Any, dtype: torch.dtype, start: Result) -> Result | None:
    outcome = sweep.sweep(op, dtype, sweep.EXPORTERS[start.exporter], patient=_is_ours(start))
    return _ended(start, outcome.verdict, outcome.reasons.get(outcome.verdict, ""))


def models(exporter: str) -> Iterator[Job]:
    for dynamic in (True, False):
        for case in zoo.cases():
            sizes = "dynamic" if dynamic else "static"
            start = Result("models", case.name, sizes, exporter, "crash")
            yield start, lambda case=case, d=dynamic, start=start: _model(case, d, start)


def _model(case: zoo.Case, dynamic: bool, start: Result) -> Result:
    outcome = zoo.outcome(case, start.exporter, dynamic)
    return _ended(start, outcome.verdict, outcome.reason, outcome.seconds)


def _is_ours(result: Result) -> bool:
    return result.exporter == "graphport"


def _ended(start: Result, verdict: str, reason: str, seconds: float = 0.0) -> Result:
    return Result(*start.key, verdict, reason, round(seconds, 2))


KINDS = {"operators": operators, "models": models}
LIMITS = {"operators": SECONDS, "models": 5 * SECONDS}


def run(path: Path, kinds: list[str], exporters: list[str], names: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    known = {r.key for r in read(path)} if path.exists() else set()
    signal.signal(signal.SIGALRM, _late)
    with path.open("a") as file:
        for kind in kinds:
            for exporter in exporters:
                for start, work in KINDS[kind](exporter):
                    if start.key in known or (names and start.name not in names):
                        continue
                    _write_line(file, start)
                    signal.alarm(LIMITS[kind])
                    try:
                        with _silence():
                            result = work()
                    except TimeoutError as error:
                        result = _ended(start, "not exported", str(error))
                    finally:
                        signal.alarm(0)
                    if result is not None:
                        _write_line(file, result)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _late(*_: Any) -> None:
    raise TimeoutError("takes too long")


def _write_line(file: Any, result: Result) -> None:
    file.write(json.dumps(asdict(result)) + "\n")
    file.flush()


def read(path: Path) -> list[Result]:
    """The last line of each case."""
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return list({r.key: r for r in results}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("run", "write"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--exporters", nargs="*", default=list(sweep.EXPORTERS))
    parser.add_argument("--names", nargs="*", default=[])
    options = parser.parse_args()
    if options.action == "run":
        run(options.file, options.kinds, options.exporters, options.names)
    else:
        tables_text.write(read(options.file))


if __name__ == "__main__":
    sys.exit(main())
