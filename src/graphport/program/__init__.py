"""Captured programs: signature, state, checks, the callable module."""

from graphport.program.attributes import CONSTANTS
from graphport.program.checks import InputChecks, InputShape
from graphport.program.exported import CallSpec, ExportedProgram, ModuleCall
from graphport.program.identifiers import RESERVED, make_identifier
from graphport.program.module import graph_module
from graphport.program.mutation import owner
from graphport.program.signature import (
    Argument,
    ConstantArgument,
    GraphSignature,
    InputKind,
    InputSpec,
    ModuleCallSignature,
    ObjectArgument,
    OutputKind,
    OutputSpec,
    SymbolicArgument,
    TensorArgument,
)
from graphport.program.torch_interop import from_torch
from graphport.program.unflattening import unflatten

__all__ = [
    "CONSTANTS", "RESERVED", "Argument", "CallSpec", "ConstantArgument", "ExportedProgram",
    "GraphSignature", "InputChecks", "InputKind", "InputShape", "InputSpec", "ModuleCall",
    "ModuleCallSignature", "ObjectArgument", "OutputKind", "OutputSpec", "SymbolicArgument",
    "TensorArgument", "from_torch", "graph_module", "make_identifier", "owner", "unflatten",
]  # fmt: skip
