"""`graphport bench`: eager, torch.compile and ONNX Runtime side by side.

The contenders are called in turn, so that what else the machine does meets all alike, and their
results are compared with eager's.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from graphport.cli.console import Console
from graphport.errors import ForwardError, UsageError

if TYPE_CHECKING:
    from graphport.types import PyTree

EAGER = "eager"
INDUCTOR = "torch.compile, inductor"
MIN_CALLS = 5
"""Calls of each, however long they take."""


@dataclass
class Contender:
    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[], tuple[Any, Any]]
    """New ones for each call: a model may write to them, or append to a cache."""
    fn: Callable[..., Any] | None = None
    first_sec: float | None = None
    """To the first result, compiling included."""
    calls_sec: list[float] = field(default_factory=list)
    error: float | None = None
    """The largest difference from eager's results."""
    failure: str | None = None

    def start(self) -> Any:
        args, kwargs = self.inputs()
        began = perf_counter()
        try:
            self.fn = self.make()
            result = self.fn(*args, **kwargs)
        # Whatever a compiler raises: it is shown, and the others go on.
        except Exception as error:  # noqa: BLE001
            self.fn, self.failure = None, f"{type(error).__name__}: {error}".splitlines()[0]
            return None
        self.first_sec = perf_counter() - began
        return result

    def measure(self) -> None:
        assert self.fn is not None
        args, kwargs = self.inputs()
        began = perf_counter()
        self.fn(*args, **kwargs)
        self.calls_sec.append(perf_counter() - began)

    @property
    def call_sec(self) -> float | None:
        return median(self.calls_sec) if self.calls_sec else None


def run(options: argparse.Namespace, console: Console) -> int:
    if not options.seconds > 0:
        raise UsageError(f"--seconds is {options.seconds}", fix="--seconds 2")
    with console.step("loading PyTorch and ONNX", "load"):
        import torch

        from graphport.cli.capture import build_model

        if options.threads:
            torch.set_num_threads(options.threads)
    with console.step(f"building {options.model}", "build"):
        model = build_model(options)
    with console.step("capturing", "capture"):
        program = model.captured()
    with torch.no_grad():
        module = model.eager
        contenders = _make_contenders(model, module, program, inductor=not options.no_inductor)
        buffers = list(module.buffers()) if isinstance(module, torch.nn.Module) else []
        before = clone_tensors(buffers)
        wanted: Any = None
        for contender in contenders:
            with console.step(f"preparing {contender.name}", "prepare"):
                result = clone_tensors(contender.start())
                for buffer, value in zip(buffers, before, strict=True):
                    buffer.copy_(value)  # each begins with what eager began with
            if contender.name == EAGER:
                wanted = result
            elif contender.failure is None:
                contender.error = _largest_difference(result, wanted)
        if contenders[0].failure:
            raise ForwardError(f"the model fails in PyTorch: {contenders[0].failure}")
        with console.step("measuring", "measure"):
            _measure_in_turn([c for c in contenders if c.fn is not None], options.seconds)
    _print_result(contenders, torch.get_num_threads(), options, console)
    return 1 if any(c.failure for c in contenders) else 0


def _make_contenders(model: Any, module: Any, program: object, inductor: bool) -> list[Contender]:
    """Each with what makes it a function; eager is the first."""
    import torch

    def inputs() -> PyTree:
        return clone_tensors((model.args, model.kwargs))

    def compiled(backend: Any) -> Any:
        return torch.compile(module, backend=backend)

    def ours() -> Any:
        from graphport.runtime import OrtBackend

        return compiled(OrtBackend({"ort_session_options": _session_options()}))

    def onnx() -> Any:
        from graphport.onnx import export
        from graphport.onnx.target.session import Session

        made = export(program, target="ort")
        made.use_session(Session(made.skeleton, made.tensors, _session_options()), same_within=True)
        return made

    found = [
        Contender(EAGER, lambda: module, inputs),
        Contender("torch.compile, graphport", ours, inputs),
        Contender("ONNX Runtime", onnx, inputs),
    ]
    if inductor and _has_compiler():
        found.insert(1, Contender(INDUCTOR, lambda: compiled("inductor"), inputs))
    return found


def _has_compiler() -> bool:
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"]))


def _session_options() -> object:
    import torch

    from graphport.onnx.target.targets import ORT

    return ORT.session_options(log_errors=True, threads=torch.get_num_threads())


def clone_tensors(value: object) -> Any:
    import torch

    from graphport.compat.torch import pytree

    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, value)


def _largest_difference(found: object, wanted: object) -> float:
    """Infinite where results are not of the same kind or size."""
    import torch

    from graphport.compat.torch import pytree

    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    kinds, wanted_kinds = (
        [(type(x), getattr(x, "shape", None)) for x in leaves] for leaves in (ours, theirs)
    )
    if kinds != wanted_kinds:
        return math.inf
    largest = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, int | float):
            a, b = torch.tensor(a), torch.tensor(b)
        if isinstance(b, torch.Tensor) and b.numel():
            wide = torch.complex128 if b.is_complex() else torch.float64
            a, b = a.to(wide), b.to(wide)
            same = (a == b) | (a.isnan() & b.isnan())
            gap = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
            largest = max(largest, gap.max().item())
    return largest


def _measure_in_turn(contenders: list[Contender], seconds: float) -> None:
    until = perf_counter() + seconds * len(contenders)
    while perf_counter() < until or len(contenders[0].calls_sec) < MIN_CALLS:
        for contender in contenders:
            contender.measure()


def _print_result(
    contenders: list[Contender], threads: int, options: argparse.Namespace, console: Console
) -> None:
    from graphport.cli.console import number_to_json
    from graphport.partition.timeline import format_seconds
    from graphport.report import sections
    from graphport.report.document import Document, Section, Table, render_text

    base = contenders[0].call_sec or 0.0
    rows = []
    for c in contenders:
        cells = [f"fails: {c.failure}", "", "", ""]
        if c.call_sec is not None and c.first_sec is not None:
            error = "" if c.error is None else f"{c.error:.1e}"
            speedup = f"{base / c.call_sec:.2f}x"
            cells = [format_seconds(c.call_sec), speedup, f"{c.first_sec:.1f} s", error]
        rows.append((c.name, *cells))
    columns = ("", "a call", "speedup", "first result", "largest difference")
    calls = len(contenders[0].calls_sec)
    counted = f"{threads} thread{'s' * (threads > 1)}, medians of {calls} calls in turn"
    parts = [
        Section(counted, [Table(columns, rows, frozenset({1, 2, 3, 4}))]),
        sections.timings(console.timings),
    ]
    data = {
        "ok": not any(c.failure for c in contenders),
        "model": options.model,
        "threads": threads,
        "contenders": [
            {
                "name": c.name,
                "call_sec": c.call_sec,
                "first_sec": c.first_sec,
                "calls": len(c.calls_sec),
                "max_abs_error": number_to_json(c.error),
                "failure": c.failure,
            }
            for c in contenders
        ],
        "timings": console.timings,
    }
    console.result(render_text(Document(options.model, parts)), data)
