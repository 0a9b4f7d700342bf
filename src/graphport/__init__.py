"""graphport: PyTorch programs captured as graphs with symbolic sizes."""

from graphport import errors
from graphport.capture import Dim, dims, export, register_dataclass
from graphport.program import (
    ExportedProgram,
    GraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)

__all__ = [
    "Dim",
    "ExportedProgram",
    "GraphSignature",
    "InputKind",
    "InputSpec",
    "OutputKind",
    "OutputSpec",
    "dims",
    "errors",
    "export",
    "register_dataclass",
]
