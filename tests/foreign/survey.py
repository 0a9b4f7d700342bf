"""Models and patterns of public libraries through ONNX Runtime, and torch.onnx beside it.

    python -m tests.foreign.survey timm einops              # print what becomes of each row
    python -m tests.foreign.survey --exporter torch.onnx timm --names resnet
    python -m tests.foreign.survey --write                   # all, then the table in docs/models.md

A row is right if it is exported with its open dims, and bare ONNX Runtime agrees with eager at the
example and at the other sizes. The libraries are found where `make survey` puts them; each runs in
a process of its own, and what is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import inspect
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import graphport as gp
from tests.foreign import page
from tests.foreign.rows import Row, Table
from tests.onnx.helpers import assert_close

HERE = Path(__file__).resolve().parent
SITE = HERE.parents[1] / "build" / "survey"
RESULTS = HERE.parents[1] / "build" / "survey.jsonl"
LIBRARIES = sorted(path.stem.removeprefix("rows_") for path in HERE.glob("rows_*.py"))
SECONDS = {"graphport": 300, "torch.onnx": 600}


@dataclass
class Result:
    """What became of a row: `right`, `refused`, `error` (a raw one), `not run`, `wrong`, `crash`;
    `broken` if eager itself fails."""

    library: str
    name: str
    exporter: str
    expected: str = ""
    """The code of the error that there has to be."""
    verdict: str = "crash"
    code: str = ""
    reason: str = ""
    """The first lines of the error."""
    has_line: bool = False
    has_fix: bool = False
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.library, self.name, self.exporter


def is_expected(result: Result) -> bool:
    """Right; or refused as the row says, with the line and what to write instead."""
    refused = result.verdict == "refused" and result.code == result.expected
    return result.verdict == "right" or (refused and result.has_line and result.has_fix)


def load(library: str) -> Table:
    """The rows of a library; none where it is not installed."""
    if str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    vision = importlib.util.find_spec("torchvision")
    if vision is not None and vision.submodule_search_locations:
        _declare_torchvision(vision.submodule_search_locations[0])
    try:
        table: Table = importlib.import_module(f"tests.foreign.rows_{library}").TABLE
    except ModuleNotFoundError as error:
        print(f"{library}: {error}", file=sys.stderr)
        return Table()
    return table


_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _declare_torchvision(folder: str) -> None:
    """Libraries import torchvision, whose operators may be compiled for another torch."""
    try:
        torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        _KEPT.append(library)
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(name + _SCHEMA)


_KEPT: list[torch.library.Library] = []
"""What a library declares is gone with it."""


def find_dims(inputs: list[Any], dim: Any) -> Any:
    """A spec in which the dims that differ between inputs are open."""

    def of(*leaves: Any) -> Any:
        if not isinstance(leaves[0], torch.Tensor):
            return None
        sizes = zip(*(leaf.shape for leaf in leaves), strict=True)
        return {i: dim for i, some in enumerate(sizes) if len(set(some)) > 1}

    return pytree.tree_map(of, *inputs)


Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def graphport(model: Any, args: Any, kwargs: Any, spec: Any, path: Path) -> None:
    shapes = spec(gp.Dim.DYNAMIC)
    gp.onnx.export(model, args, kwargs, dynamic_shapes=shapes).save(path)


def torch_onnx(model: Any, args: Any, kwargs: Any, spec: Any, path: Path) -> None:
    shapes = spec(torch.export.Dim.DYNAMIC)
    program = torch.onnx.export(
        model, args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    assert program is not None
    program.save(str(path))


EXPORTERS = {"graphport": graphport, "torch.onnx": torch_onnx}


def try_row(library: str, row: Row, exporter: str) -> Result:
    result = Result(library, row.name, exporter, row.refused)
    torch.manual_seed(0)
    try:
        model = row.build()
        made = [_sort(model, row.inputs(*sizes)) for sizes in row.sizes]
        wanted = [_call(copy.deepcopy(model), given) for given in made]
    except Exception as error:
        result.verdict, result.reason = "broken", first_lines(error)
        return result
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            _export(model, made, exporter, path)
        except Exception as error:
            return _judge_error(result, error, time.perf_counter() - start)
        result.seconds = round(time.perf_counter() - start, 2)
        result.verdict, result.reason = _compare(made, wanted, row, path)
    return result


def _export(model: Any, made: list[Any], exporter: str, path: Path) -> None:
    by_name = isinstance(made[0], dict)
    args, kwargs = ((), made[0]) if by_name else (made[0], {})

    def spec(dim: Any) -> Any:
        return find_dims(made, dim)

    EXPORTERS[exporter](model, copy.deepcopy(args), copy.deepcopy(kwargs), spec, path)


def _judge_error(result: Result, error: Exception, seconds: float) -> Result:
    result.seconds, result.reason = round(seconds, 2), first_lines(error)
    result.verdict = "error"
    if isinstance(error, gp.errors.ExportError) and not isinstance(error, gp.errors.InternalError):
        result.verdict, result.code = "refused", type(error).code
        result.has_line = re.search(r"\bat +\S+\.py:\d+ in ", str(error)) is not None
        result.has_fix = bool(error.fix)
    return result


def _sort(model: Any, given: Any) -> Any:
    """Keywords in the order of the signature: inputs of a file have it."""
    if not isinstance(given, dict):
        return given
    order = [name for name in inspect.signature(model.forward).parameters if name in given]
    return {name: given[name] for name in (*order, *(n for n in given if n not in order))}


def _call(model: Any, given: Any) -> Any:
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    with torch.no_grad():
        return model(*copy.deepcopy(args), **copy.deepcopy(kwargs))


def _compare(made: list[Any], wanted: list[Any], row: Row, path: Path) -> tuple[str, str]:
    """Bare ONNX Runtime beside eager, at each of the sizes."""
    import onnxruntime as ort

    try:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = ort.InferenceSession(path, options)
        names = [x.name for x in session.get_inputs()]
    except Exception as error:
        return "not run", first_lines(error)
    for given, want, sizes in zip(made, wanted, row.sizes, strict=True):
        tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
        feeds = zip(names, (x.detach().numpy() for x in tensors), strict=len(names) >= len(tensors))
        try:
            have = [torch.from_numpy(x) for x in session.run(None, dict(feeds))]
        except Exception as error:
            return "not run", f"at {sizes}: {first_lines(error)}"
        # Only now: exporters teach pytree containers of the model.
        want = [x for x in pytree.tree_leaves(want) if isinstance(x, torch.Tensor)]
        if row.only_sizes:
            have, want = ([torch.zeros_like(x) for x in some] for some in (have, want))
        try:
            assert_close(have, want, f"at {sizes}", row.scale)
        except (AssertionError, ValueError) as error:
            return "wrong", first_lines(error)
    return "right", ""


def first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:400]


def run(
    library: str,
    exporter: str,
    names: list[str],
    known: set[tuple[str, str, str]],
    report: Callable[[Result], None],
) -> None:
    """The rows of a library that are not known yet, here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    for row in load(library):
        if (library, row.name, exporter) in known:
            continue
        if names and not any(name in row.name for name in names):
            continue
        report(Result(library, row.name, exporter))
        signal.alarm(SECONDS[exporter])
        try:
            with _silence():
                result = try_row(library, row, exporter)
        except TimeoutError as error:
            result = Result(library, row.name, exporter, "error", reason=str(error))
        finally:
            signal.alarm(0)
        report(result)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _late(*_: Any) -> None:
    raise TimeoutError("takes too long")


def start(library: str, path: Path, *options: str) -> None:
    """The rows of a library in a process of its own."""
    command = [sys.executable, "-m", "tests.foreign.survey", library, "--to", str(path), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=False, cwd=HERE.parents[1])


def read(path: Path) -> list[Result]:
    """The last line of each row."""
    if not path.exists():
        return []
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return list({r.key: r for r in results}.values())


def _print(result: Result) -> None:
    if result.verdict != "crash":
        reason = f": {result.code} {result.reason}" if result.reason else ""
        print(f"{result.verdict:8} {result.name} ({result.seconds} s){reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(LIBRARIES))
    parser.add_argument("--names", nargs="*", default=[], help="rows whose names contain these")
    parser.add_argument("--exporter", default="graphport", choices=list(EXPORTERS))
    parser.add_argument("--to", type=Path, help="a file for the results, one a line")
    parser.add_argument("--resume", action="store_true", help="only rows that have no result yet")
    parser.add_argument("--write", action="store_true", help="also docs/models.md")
    options = parser.parse_args()
    path = options.to or RESULTS
    libraries = options.libraries or LIBRARIES
    if options.to and len(libraries) == 1:
        known = {r.key for r in read(path)} if options.resume else set()
        with path.open("a") as file:

            def report(result: Result) -> None:
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
                _print(result)

            run(libraries[0], options.exporter, options.names, known, report)
    else:
        path.parent.mkdir(exist_ok=True)
        given = ["--exporter", options.exporter, *(["--resume"] if options.resume else [])]
        given += ["--names", *options.names] if options.names else []
        for library in libraries:
            start(library, path, *given)
    if options.write:
        page.write(read(path))


if __name__ == "__main__":
    main()
