"""`ExportedProgram`: graph, signature, state, input checks and the callable module."""

from graphport.ops.effects import find_base
from graphport.program.call_checks import InputChecks, InputShape
from graphport.program.codegen import CONSTANTS, RESERVED, make_identifier
from graphport.program.exported import CallSpec, ExportedProgram, ModuleCall
from graphport.program.module import make_graph_module
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
from graphport.program.unflatten import unflatten

__all__ = [
    "CONSTANTS",
    "RESERVED",
    "Argument",
    "CallSpec",
    "ConstantArgument",
    "ExportedProgram",
    "GraphSignature",
    "InputChecks",
    "InputKind",
    "InputShape",
    "InputSpec",
    "ModuleCall",
    "ModuleCallSignature",
    "ObjectArgument",
    "OutputKind",
    "OutputSpec",
    "SymbolicArgument",
    "TensorArgument",
    "find_base",
    "from_torch",
    "make_graph_module",
    "make_identifier",
    "unflatten",
]
