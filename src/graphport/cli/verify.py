"""`graphport verify`: an ONNX file against the model in PyTorch that it was made from.

The model is captured again, to know its inputs, the sizes that they may have and how results relate
to outputs; what is run and compared with eager is the file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphport.cli.console import Console
from graphport.errors import UsageError


def run(options: argparse.Namespace, console: Console) -> int:
    path = Path(options.file)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with console.step("loading PyTorch and ONNX", "load"):
        from graphport import onnx
        from graphport.cli import inputs, models
        from graphport.cli.capturing import Described
        from graphport.cli.declared import inputs_of_file
        from graphport.cli.sessions import FileSession
        from graphport.cli.trying import verify_options
        from graphport.cli.weights import differing_weights

        how = verify_options(options)
    with console.step(f"building {options.against}", "build"):
        model = models.resolve(options.against, options.allow)
        args, kwargs = inputs.arguments(
            model, options.input, options.inputs, lambda: inputs_of_file(path, model.target)
        )
        shapes = _shapes(options, model, args, kwargs)
    with console.step("capturing", "capture"):
        captured = Described(model, args, kwargs, shapes, bool(options.dynamic)).captured()
        file = models.load_onnx(path)
        program = onnx.export(captured, **_written_for(file))
        program.eager = None if model.is_program else model.target
    with console.step(f"loading {path}", "open"):
        same_within = _values(file) == _values(program.skeleton)
        program.run_on(FileSession(path, program.interface), same_within)
        weights = differing_weights(path, file, program)
    with console.step("verifying on ONNX Runtime", "verify"):
        report = program.verify(args, kwargs, rtol=options.rtol, atol=options.atol, **how)
        if not same_within:  # where the file goes wrong cannot be told then
            report = replace(report, first_divergence=None)
        report = replace(report, weights=weights)
    _tell(report, options, console)
    return 0 if report.ok else 1


def _written_for(file: Any) -> dict[str, Any]:
    """The options that a file of ours was made with, so that the new model is like it."""
    from graphport.onnx.options import NEWEST, OLDEST

    opsets = {entry.domain: entry.version for entry in file.opset_import}
    known = OLDEST <= opsets.get("", 0) <= NEWEST
    return {
        "opset": opsets[""] if known else None,
        "target": "ort" if "com.microsoft" in opsets else "onnx",
    }


def _values(model: Any) -> set[str]:
    return {name for node in model.graph.node for name in node.output}


def _shapes(options: argparse.Namespace, model: Any, args: Any, kwargs: Any) -> Any:
    """Which sizes vary: as the user says, as the model says, or as the file says."""
    from graphport.cli import dynamic

    if model.is_program:
        if options.dynamic:
            raise UsageError("a program has its dynamic sizes already", fix="leave out --dynamic")
        return None
    if options.dynamic:
        return dynamic.shapes(options.dynamic, model.target, args, kwargs)
    if model.dynamic_shapes is not None:
        return model.dynamic_shapes
    return dynamic.shapes_of_file(Path(options.file), model.target, args, kwargs)


def _tell(report: Any, options: argparse.Namespace, console: Console) -> None:
    from graphport.cli.told import verified
    from graphport.report import sections
    from graphport.report.document import Document, text

    word = "agrees with" if report.ok else "DIFFERS from"
    parts = [sections.verification(report), sections.timings(console.timings)]
    title = f"{options.file} {word} {options.against}"
    data = {
        "ok": report.ok,
        "file": options.file,
        "against": options.against,
        "verification": verified(report),
        "timings": console.timings,
    }
    console.result(text(Document(title, parts)), data)
