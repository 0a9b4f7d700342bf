"""An ONNX file on ONNX Runtime, in the place of a model that was just made."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnxruntime as ort
import torch

from graphport.cli.models import load_onnx
from graphport.errors import UsageError
from graphport.onnx.interface import Interface
from graphport.onnx.ir import Value
from graphport.onnx.runtime import ort_value, tensor_of, with_outputs


class FileSession:
    """The model of a file, called by the names that the program has for inputs and outputs.

    Names of the file that differ are taken by position.
    """

    def __init__(self, path: Path, interface: Interface) -> None:
        self.path = path
        self.session = _loaded(str(path), path)
        taken = [i.name for i in interface.inputs]
        given = [*interface.outputs, *interface.written.values(), *interface.state.values()]
        own = [i.name for i in self.session.get_overridable_initializers()]
        self.inputs = {
            **_paired(taken, [i.name for i in self.session.get_inputs()], path, "inputs"),
            **_paired([*interface.state], own, path, "inputs with state"),
        }
        self.outputs = _paired(given, [o.name for o in self.session.get_outputs()], path, "outputs")

    def run(
        self, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Results by the names of the program."""
        feeds = {self.inputs[name]: ort_value(t) for name, t in inputs.items()}
        wanted = list(self.outputs) if outputs is None else list(outputs)
        names = [self.outputs.get(name, name) for name in wanted]
        found = self.session.run_with_ort_values(names, feeds)
        return dict(zip(wanted, map(tensor_of, found), strict=True))

    def extended(self, values: Iterable[Value]) -> FileSession:
        """A session that gives values within the model as well."""
        wider = copy.copy(self)
        model = with_outputs(load_onnx(self.path), values)
        wider.session = _loaded(model.SerializeToString(), self.path)
        return wider


def _loaded(model: str | bytes, path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Where the weights are that a model in memory says are beside it.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.absolute().parent)
    )
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a dozen classes that have nothing in common
        raise UsageError(f"ONNX Runtime cannot load {path}: {error}") from error


def _paired(ours: Sequence[str], theirs: Sequence[str], path: Path, what: str) -> dict[str, str]:
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
