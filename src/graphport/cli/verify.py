"""`graphport verify`: an ONNX file against the PyTorch model that it was made from.

The model is captured again, to know its inputs, the sizes that they may have and how results relate
to outputs; what is run and compared with eager is the file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphport.cli.console import Console

if TYPE_CHECKING:
    from graphport.types import PyTree
from graphport.errors import UsageError


def run(options: argparse.Namespace, console: Console) -> int:
    path = Path(options.file)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with console.step("loading PyTorch and ONNX", "load"):
        from graphport import onnx
        from graphport.cli import inputs, models
        from graphport.cli.arguments import parse_verify_options
        from graphport.cli.capture import ModelWithInputs
        from graphport.cli.inputs import draw_file_inputs
        from graphport.cli.onnx_file import FileSession, compare_weights

        how = parse_verify_options(options)
    with console.step(f"building {options.against}", "build"):
        model = models.resolve_model(options.against, options.allow)
        args, kwargs = inputs.resolve_inputs(
            model, options.input, options.inputs, lambda: draw_file_inputs(path, model.target)
        )
        shapes = _resolve_shapes(options, model, args, kwargs)
    with console.step("capturing", "capture"):
        captured = ModelWithInputs(model, args, kwargs, shapes, bool(options.dynamic)).captured()
        file = models.load_onnx(path)
        program = onnx.export(captured, **_infer_export_options(file))
        program.eager = None if model.is_program else model.target
    with console.step(f"loading {path}", "open"):
        same_within = _list_value_names(file) == _list_value_names(program.skeleton)
        program.use_session(FileSession(path, program.interface), same_within)
        weights = compare_weights(path, file, program)
    with console.step("verifying on ONNX Runtime", "verify"):
        report = program.verify(args, kwargs, rtol=options.rtol, atol=options.atol, **how)
        if not same_within:  # where the file diverges cannot be found then
            report = replace(report, first_divergence=None)
        report = replace(report, weights=weights)
    _print_result(report, options, console)
    return 0 if report.ok else 1


def _infer_export_options(file: Any) -> dict[str, Any]:
    """The options that a file of ours was made with, so that the new model is like it."""
    from graphport.onnx.target.targets import TARGETS, infer_target

    opsets = {entry.domain: entry.version for entry in file.opset_import}
    target = infer_target(opsets)
    known = opsets.get("", 0) in TARGETS[target].opsets
    return {"opset": opsets[""] if known else None, "target": target}


def _list_value_names(model: Any) -> set[str]:
    return {name for node in model.graph.node for name in node.output}


def _resolve_shapes(options: argparse.Namespace, model: Any, args: PyTree, kwargs: PyTree) -> Any:
    """Which sizes vary: as the user says, as the model says, or as the file says."""
    from graphport.cli import capture

    if model.is_program:
        if options.dynamic:
            raise UsageError("a program has its dynamic sizes already", fix="leave out --dynamic")
        return None
    if options.dynamic:
        return capture.parse_dynamic_shapes(options.dynamic, model.target, args, kwargs)
    if model.dynamic_shapes is not None:
        return model.dynamic_shapes
    return capture.read_dynamic_shapes(Path(options.file), model.target, args, kwargs)


def _print_result(report: Any, options: argparse.Namespace, console: Console) -> None:
    from graphport.cli.console import verification_to_json
    from graphport.report import sections
    from graphport.report.document import Document, render_text

    word = "agrees with" if report.ok else "DIFFERS from"
    parts = [sections.verification(report), sections.timings(console.timings)]
    title = f"{options.file} {word} {options.against}"
    data = {
        "ok": report.ok,
        "file": options.file,
        "against": options.against,
        "verification": verification_to_json(report),
        "timings": console.timings,
    }
    console.result(render_text(Document(title, parts)), data)
