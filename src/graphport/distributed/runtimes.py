"""What computes a stage: PyTorch, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from graphport.errors import StageError
from graphport.program import ExportedProgram

Runtime = Callable[[Sequence[Any]], tuple[Any, ...]]
"""The values that a stage gives, from those that it takes."""


def runtime(name: str, program: ExportedProgram | None) -> Runtime:
    """What runs the program of a stage; state that it changes is kept from call to call."""
    check_runtime(name)
    if program is None:
        return lambda values: ()
    return RUNTIMES[name](_with_data(program))


def check_runtime(name: str) -> None:
    if not isinstance(name, str) or name not in RUNTIMES:
        known = " or ".join(f'runtime="{n}"' for n in RUNTIMES)
        raise StageError(f"there is no runtime {name!r}", fix=known)


def _torch(program: ExportedProgram) -> Runtime:
    module = program.module(check_guards=False)

    def run(values: Sequence[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            return module(*values)

    return run


def _ort(program: ExportedProgram) -> Runtime:
    import onnxruntime

    from graphport.onnx import export
    from graphport.onnx.runtime import Session

    model = export(program)
    if model.graph.outputs:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        model.run_on(Session(model.skeleton, model.tensors, options), same_within=True)
    return lambda values: model(*values)


RUNTIMES: dict[str, Callable[[ExportedProgram], Runtime]] = {"torch": _torch, "ort": _ort}


def _with_data(program: ExportedProgram) -> ExportedProgram:
    """Read the weights of a program that was captured without: those of this stage only."""
    return replace(
        program,
        state_dict={name: _read(t) for name, t in program.state_dict.items()},
        constants={name: _read(t) for name, t in program.constants.items()},
    )


def _read(t: Any) -> Any:
    if not getattr(t, "has_data", False):
        return t
    data = t.read()
    return torch.nn.Parameter(data, False) if isinstance(t, torch.nn.Parameter) else data
