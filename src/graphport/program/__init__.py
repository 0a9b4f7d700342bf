"""Captured programs: signature, state, checks, the callable module."""

from graphport.program.checks import InputChecks, InputShape
from graphport.program.exported import CallSpec, ExportedProgram, ModuleCall
from graphport.program.module import RESERVED, graph_module
from graphport.program.signature import (
    Argument,
    ConstantArgument,
    GraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymbolicArgument,
    TensorArgument,
)

__all__ = [
    "RESERVED", "Argument", "CallSpec", "ConstantArgument", "ExportedProgram", "GraphSignature",
    "InputChecks", "InputKind", "InputShape", "InputSpec", "ModuleCall", "OutputKind",
    "OutputSpec", "SymbolicArgument", "TensorArgument", "graph_module",
]  # fmt: skip
