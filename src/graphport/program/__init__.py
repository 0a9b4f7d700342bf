"""`ExportedProgram`: graph, signature, state, input checks and the callable module."""

from graphport.ops.effects import find_base as find_base
from graphport.program.call_checks import InputChecks as InputChecks
from graphport.program.call_checks import InputShape as InputShape
from graphport.program.codegen import CONSTANTS as CONSTANTS
from graphport.program.codegen import RESERVED as RESERVED
from graphport.program.codegen import make_identifier as make_identifier
from graphport.program.exported import CallSpec as CallSpec
from graphport.program.exported import ExportedProgram as ExportedProgram
from graphport.program.exported import ModuleCall as ModuleCall
from graphport.program.module import make_graph_module as make_graph_module
from graphport.program.signature import Argument as Argument
from graphport.program.signature import ConstantArgument as ConstantArgument
from graphport.program.signature import GraphSignature as GraphSignature
from graphport.program.signature import InputKind as InputKind
from graphport.program.signature import InputSpec as InputSpec
from graphport.program.signature import ModuleCallSignature as ModuleCallSignature
from graphport.program.signature import ObjectArgument as ObjectArgument
from graphport.program.signature import OutputKind as OutputKind
from graphport.program.signature import OutputSpec as OutputSpec
from graphport.program.signature import SymbolicArgument as SymbolicArgument
from graphport.program.signature import TensorArgument as TensorArgument
from graphport.program.torch_interop import from_torch as from_torch
from graphport.program.unflatten import unflatten as unflatten
