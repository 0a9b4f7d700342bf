"""An ONNX file on ONNX Runtime, in the place of a model that was just made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort
import torch

from graphport.errors import UsageError
from graphport.onnx.interface import Interface
from graphport.onnx.runtime import ort_value, tensor_of


class FileSession:
    """The model of a file, called by the names that the program has for inputs and outputs.

    Names of the file that differ are taken by position.
    """

    def __init__(self, path: Path, interface: Interface) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of a dozen classes that have nothing in common
            raise UsageError(f"ONNX Runtime cannot load {path}: {error}") from error
        taken = [i.name for i in interface.inputs]
        given = [*interface.outputs, *interface.written.values(), *interface.state.values()]
        self.inputs = _paired(taken, [i.name for i in self.session.get_inputs()], path, "inputs")
        self.inputs.update(_paired([*interface.state],
                                   [i.name for i in self.session.get_overridable_initializers()],
                                   path, "inputs with state"))  # fmt: skip
        self.outputs = _paired(given, [o.name for o in self.session.get_outputs()], path, "outputs")

    def run(
        self, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Results by the names of the program."""
        feeds = {self.inputs[name]: ort_value(t) for name, t in inputs.items()}
        wanted = list(self.outputs) if outputs is None else list(outputs)
        found = self.session.run_with_ort_values([self.outputs[n] for n in wanted], feeds)
        return dict(zip(wanted, map(tensor_of, found), strict=True))


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
