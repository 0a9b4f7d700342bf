"""`graphport export`: a model to an ONNX file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphport import report
from graphport.cli.arguments import parse_verify_options
from graphport.cli.console import Console
from graphport.errors import InputError, UsageError


def run(options: argparse.Namespace, console: Console) -> int:
    _check_options(options)
    how = parse_verify_options(options)
    with console.step("loading PyTorch and ONNX", "load"):
        from graphport import onnx
        from graphport.cli.capture import build_model

        _raise_as_usage(lambda: onnx.ExportOptions(opset=options.opset), "--opset")
    with console.step(f"building {options.model}", "build"):
        model = build_model(options)
    with console.step("capturing", "capture"):
        captured = model.captured()
    with console.step("lowering to ONNX", "lower"):
        program = onnx.export(captured, opset=options.opset, target=options.target)
        program.eager = None if model.model.is_program else model.eager
    verification = None
    if options.verify:
        with console.step("verifying on ONNX Runtime", "verify"):
            verification = program.verify(**how)
    ok = verification is None or verification.ok
    if ok:
        with console.step(f"writing {options.output}", "save"):
            program.save(
                options.output,
                external_data=options.external_data or "auto",
                state_dict=options.weights,
            )
    if options.report:
        report.write(program, options.report, console.timings, verification)
    _print_result(program, verification, options, console)
    return 0 if ok else 1


def _check_options(options: argparse.Namespace) -> None:
    """What can be said before anything slow is done."""
    output = Path(options.output)
    for path in (output, Path(options.report or output)):
        if not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}", where=str(path))
    if output.is_dir():
        raise UsageError(f"{output} is a folder", fix=f"-o {output / 'model.onnx'}")
    if not options.verify and (options.sizes or options.limit or options.no_other_sizes):
        raise UsageError("sizes to verify at were given, but not --verify", fix="--verify")
    if options.report:
        _raise_as_usage(lambda: report.check_path(options.report), "--report")


def _raise_as_usage(check: Callable[[], Any], option: str) -> None:
    """What the library says of an option, as a fault of the command line."""
    try:
        check()
    except InputError as error:
        raise UsageError(error.what, where=option, fix=error.fix) from None


def _print_result(
    program: Any, verification: Any, options: argparse.Namespace, console: Console
) -> None:
    from graphport.cli.console import verification_to_json
    from graphport.report import collect_facts, sections
    from graphport.report.document import Document, render_text

    facts = collect_facts(program)
    ok = verification is None or verification.ok
    size = _count_written_bytes(options) if ok else 0
    parts = [
        sections.summary(
            facts,
            **(
                {"file": f"{options.output}, {sections.format_bytes(size)}"}
                if ok
                else {"file": "not written"}
            ),
        ),
        *sections.interface(facts),
        sections.sizes(facts),
    ]
    if verification is not None:
        parts.append(sections.verification(verification))
    parts.append(sections.timings(console.timings))
    data = {
        "ok": ok,
        "output": options.output if ok else None,
        "bytes": size,
        "opset": program.opset,
        "target": options.target,
        **facts.data(),
        "verification": None if verification is None else verification_to_json(verification),
        "timings": console.timings,
        "report": options.report,
    }
    console.result(render_text(Document(f"{options.model} -> {options.output}", parts)), data)


def _count_written_bytes(options: argparse.Namespace) -> int:
    """Of the file, and of the one beside it if this export has written one."""
    from graphport.onnx.write import weights

    return weights.measure_model(Path(options.output))
