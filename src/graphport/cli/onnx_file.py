"""Runs an ONNX file in the place of a model that was just exported, and compares its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphport.cli.models import load_onnx
from graphport.errors import UsageError
from graphport.onnx import ONNXProgram
from graphport.onnx.emit.interface import Interface
from graphport.onnx.emit.ir import Value
from graphport.onnx.target.session import add_outputs, open_session, to_ort_value, to_tensor
from graphport.onnx.target.targets import ORT
from graphport.onnx.verify.verification import WeightDifference
from graphport.onnx.write.weights import materialise, nbytes


class FileSession:
    """The model of a file, called by the names that the program has for inputs and outputs.

    Names of the file that differ are taken by position.
    """

    def __init__(self, path: Path, interface: Interface) -> None:
        self.path = path
        self.session = _load_session(str(path), path)
        taken = [i.name for i in interface.inputs]
        given = [*interface.outputs, *interface.written.values(), *interface.state.values()]
        own = [i.name for i in self.session.get_overridable_initializers()]
        self.inputs = {
            **_pair_names(taken, [i.name for i in self.session.get_inputs()], path, "inputs"),
            **_pair_names([*interface.state], own, path, "inputs with state"),
        }
        self.outputs = _pair_names(
            given, [o.name for o in self.session.get_outputs()], path, "outputs"
        )

    def run(
        self, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Results by the names of the program."""
        feeds = {self.inputs[name]: to_ort_value(t) for name, t in inputs.items()}
        wanted = list(self.outputs) if outputs is None else list(outputs)
        names = [self.outputs.get(name, name) for name in wanted]
        found = self.session.run_with_ort_values(names, feeds)
        return dict(zip(wanted, map(to_tensor, found), strict=True))

    def add_outputs(self, values: Iterable[Value]) -> FileSession:
        """A session that gives values within the model as well."""
        wider = copy.copy(self)
        model = add_outputs(load_onnx(self.path), values)
        wider.session = _load_session(model.SerializeToString(), self.path)
        return wider


def _load_session(model: str | bytes, path: Path) -> Any:
    options = ORT.session_options(log_errors=True, folder=path.absolute().parent)
    try:
        return open_session(model, options)
    except Exception as error:  # of a dozen classes that have nothing in common
        raise UsageError(f"ONNX Runtime cannot load {path}: {error}") from error


def _pair_names(
    ours: Sequence[str], theirs: Sequence[str], path: Path, what: str
) -> dict[str, str]:
    """Names of the program, and those of the file for the same."""
    if set(ours) <= set(theirs):
        return {name: name for name in ours}
    if len(ours) != len(theirs):
        raise UsageError(
            f"the {what} of {path} are {', '.join(theirs) or 'none'}, those of the model are "
            f"{', '.join(ours) or 'none'}",
            fix="verify against the model that the file was made from",
        )
    return dict(zip(ours, theirs, strict=True))


# Compares the weights of a file with those of the model that it is verified against.


def compare_weights(path: Path, file: Any, program: ONNXProgram) -> list[WeightDifference]:
    """Weights of the same name and sizes that differ, the parameters before what is made of them.

    One at a time is in memory. What the file calls otherwise is not compared.
    """
    from onnx import numpy_helper

    state = program.exported_program.state_dict
    ours = {**{name: t for name, t in program.tensors.items() if nbytes(t)}, **state}
    found = []
    for proto in file.graph.initializer:
        own = ours.get(proto.name)
        if own is None or list(own.shape) != list(proto.dims):
            continue
        theirs = numpy_helper.to_array(proto, base_dir=str(path.absolute().parent))
        error = _max_error(theirs, materialise(own))
        if error:
            found.append(WeightDifference(proto.name, error))
    return sorted(found, key=lambda d: d.name not in state)


def _max_error(theirs: Any, own: torch.Tensor) -> float:
    """The largest difference; infinite where one of them is no number."""
    if own.is_complex() or theirs.dtype.kind in "OSU":
        return 0.0
    mine = own.detach().cpu().to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):
        error = np.abs(theirs.astype(np.float64) - mine)
        alike = (theirs.astype(np.float64) == mine) | (np.isnan(mine) & np.isnan(error))
    error = np.where(alike, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(error.max()) if error.size else 0.0
