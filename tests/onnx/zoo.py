"""Whole models through ONNX Runtime: what passes, and how torch.onnx.export does beside it.

    python -m tests.onnx.zoo llama bert --opponent

A model passes if it is exported with its open dims, runs at the example and at other sizes, and
agrees with eager there. `docs/models.md` is the table of all of them (`--write`).
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import graphport as gp
from examples import mobilenet, resnet
from tests.models import zoo
from tests.models.test_vision import SMALL
from tests.onnx.helpers import assert_close

TABLE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
SCALE = 10.0
"""Of the tolerance for one operator: models have dozens in a row."""


@dataclass
class Case:
    """A model with inputs by keyword, its open dims, and inputs of other sizes."""

    name: str
    build: Callable[[], nn.Module]
    inputs: dict[str, Any]
    spec: Callable[[Any], Any]
    others: list[dict[str, Any]] = field(default_factory=list)


def huggingface() -> Iterator[Case]:
    for name, row in zoo.ROWS.items():
        inputs = row.inputs(2, row.lengths[0])
        yield Case(
            name,
            lambda row=row: zoo.build(row),
            inputs,
            lambda Dim, row=row: zoo.spec(row, Dim),
            zoo.others(row) if row.dynamic else [],
        )


def vision() -> Iterator[Case]:
    """Convolutional networks of our own: the examples, and small ones of every shape."""
    for name, (make, (sizes,), (first, *others)) in SMALL.items():
        argument = "z" if name == "generator" else "x"
        yield Case(
            name,
            lambda make=make: make().eval(),
            {argument: first[0]},
            lambda Dim, argument=argument, sizes=sizes: {argument: _sizes(Dim, sizes)},
            [{argument: x} for (x,) in others],
        )
    for name, module in (
        ("resnet50", resnet.resnet50),
        ("mobilenet", mobilenet.mobilenet_v3_small),
    ):
        yield Case(
            name,
            lambda module=module: module().eval(),
            {"image": torch.randn(2, 3, 64, 64)},
            resnet.spec,
            [{"image": torch.randn(1, 3, 96, 64)}],
        )


def _sizes(Dim: Any, sizes: dict[int, Any]) -> dict[int, Any]:
    """A spec with the Dim class given."""
    if Dim is gp.Dim:
        return sizes
    return dict.fromkeys(sizes, Dim.DYNAMIC)


def cases() -> Iterator[Case]:
    yield from huggingface()
    yield from vision()


# What cannot be compared number by number: the model draws random numbers, or picks the best of
# several that are equal, where eager's choice is arbitrary.
ONLY_SIZES = {"vit_mae", "rt_detr"}

Run = Callable[[dict[str, Any]], list[Any]]


def graphport(model: nn.Module, inputs: dict[str, Any], spec: Any) -> Run:
    program = gp.onnx.export(model, (), inputs, dynamic_shapes=spec and spec(gp.Dim))
    return lambda given: pytree.tree_leaves(program(**given))


def torch_onnx(model: nn.Module, inputs: dict[str, Any], spec: Any) -> Run:
    """The opponent; its file is run by ONNX Runtime from disk."""
    import onnxruntime as ort

    shapes = spec and spec(torch.export.Dim)
    program = torch.onnx.export(
        model, (), kwargs=inputs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    assert program is not None
    folder = tempfile.TemporaryDirectory()
    program.save(f"{folder.name}/model.onnx")
    session = ort.InferenceSession(f"{folder.name}/model.onnx")
    names = [i.name for i in session.get_inputs()]

    def run(given: dict[str, Any], folder: Any = folder) -> list[Any]:
        flat = [t.numpy() for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
        feeds = dict(zip(names, flat, strict=True))
        return [torch.from_numpy(x) for x in session.run(None, feeds)]

    return run


EXPORTERS = {"graphport": graphport, "torch.onnx": torch_onnx}


@dataclass
class Outcome:
    """`ok`, or the first thing that went wrong: `not exported`, `not run`, `wrong`."""

    name: str
    exporter: str
    shapes: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.verdict:12} {self.name} {self.shapes} ({self.seconds:.1f} s){reason}"


def outcome(case: Case, exporter: str, dynamic: bool) -> Outcome:
    with torch.random.fork_rng(devices=[]):
        model = case.build()
    shapes = "dynamic" if dynamic else "static"
    result = Outcome(case.name, exporter, shapes, "ok")
    start = time.perf_counter()
    try:
        run = EXPORTERS[exporter](model, copy.deepcopy(case.inputs), case.spec if dynamic else None)
    except Exception as error:
        result.verdict, result.reason = "not exported", first_lines(error)
        result.seconds = time.perf_counter() - start
        return result
    result.seconds = time.perf_counter() - start
    for given in (case.inputs, *(case.others if dynamic else ())):
        with torch.no_grad():
            want = pytree.tree_leaves(model(**copy.deepcopy(given)))
        try:
            have = run(copy.deepcopy(given))
        except Exception as error:
            result.verdict, result.reason = "not run", first_lines(error)
            return result
        want = [x for x in want if isinstance(x, torch.Tensor)]
        if case.name in ONLY_SIZES:
            have, want = ([torch.zeros_like(x) for x in some] for some in (have, want))
        try:
            assert_close(have, want, "", SCALE)
        except (AssertionError, ValueError) as error:
            result.verdict, result.reason = "wrong", first_lines(error)
            return result
    return result


def first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:3])}"[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--opponent", action="store_true", help="torch.onnx.export instead")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--failures", action="store_true", help="print only what fails")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    exporter = "torch.onnx" if options.opponent else "graphport"
    passed = total = 0
    for case in cases():
        if options.names and case.name not in options.names:
            continue
        result = outcome(case, exporter, not options.static)
        total += 1
        passed += result.verdict == "ok"
        if result.verdict != "ok" or not options.failures:
            print(result, flush=True)
    print(f"{passed} of {total}")


if __name__ == "__main__":
    main()
