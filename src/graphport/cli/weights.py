"""Compares the weights of an ONNX file with those of the model that it is verified against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphport.onnx import ONNXProgram
from graphport.onnx.verification import WeightDifference
from graphport.onnx.weights import in_memory, nbytes


def differing_weights(path: Path, file: Any, program: ONNXProgram) -> list[WeightDifference]:
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
        error = _error(theirs, in_memory(own))
        if error:
            found.append(WeightDifference(proto.name, error))
    return sorted(found, key=lambda d: d.name not in state)


def _error(theirs: Any, own: torch.Tensor) -> float:
    """The largest difference; infinite where one of them is no number."""
    if own.is_complex() or theirs.dtype.kind in "OSU":
        return 0.0
    mine = own.detach().cpu().to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):
        error = np.abs(theirs.astype(np.float64) - mine)
        alike = (theirs.astype(np.float64) == mine) | (np.isnan(mine) & np.isnan(error))
    error = np.where(alike, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(error.max()) if error.size else 0.0
