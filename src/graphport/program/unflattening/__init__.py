"""`gp.unflatten`: a program as modules in the original hierarchy.

`calls` reads from the metadata which module each node belongs to, `writes` decides where buffers
are written to, `flow` what crosses the borders between calls, `pieces` which calls are the same
code; `build` writes a graph for each of those, and `tree` puts modules and state to their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Graph

from graphport.arguments import PROGRAM, takes
from graphport.program.bounds import check_bounds
from graphport.program.control import run_plainly
from graphport.program.mutation import keep_statistics
from graphport.program.unflattening.build import Builder, build_root
from graphport.program.unflattening.calls import calls_of
from graphport.program.unflattening.flow import Flow
from graphport.program.unflattening.module import CapturedModule, UnflattenedModule
from graphport.program.unflattening.pieces import Pieces
from graphport.program.unflattening.state import State
from graphport.program.unflattening.tree import Tree
from graphport.program.unflattening.writes import Writes
from graphport.program.weights import require_weights

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

__all__ = ["CapturedModule", "UnflattenedModule", "unflatten"]


@takes(program=PROGRAM)
def unflatten(program: ExportedProgram) -> UnflattenedModule:
    """A module with the hierarchy of the original one, each part a graph of its own.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> unflattened = gp.unflatten(gp.export(model, (torch.randn(3, 4),)))
    >>> unflattened
    Sequential(
      (0): Linear()
      (1): ReLU()
      (2): Linear()
    )
    >>> unflattened.get_submodule("0")(torch.randn(3, 4)).shape
    torch.Size([3, 8])

    Parameters are shared with the program, buffers that it mutates are copies. A submodule takes
    what it uses and returns what others use, unless `preserve_module_call_signature` of `gp.export`
    named it: then it is called as the original, and another module can take its place. A module
    whose calls do different things is several modules: `encoder`, `encoder@1`, ...
    """
    root, home = calls_of(program)
    state = State(program)
    writes = Writes(program, root, home, state)
    flow = Flow(program, root, home, state, writes)
    pieces = Pieces(root, flow, program.graph_module)
    whole = UnflattenedModule(root.kind, Graph(), program)
    tree = Tree(whole, state, (piece.call.path for piece in pieces))
    modules = {p: whole if p.call is root else CapturedModule(p.call.kind, Graph()) for p in pieces}
    for piece, module in modules.items():
        tree.add(piece.name, module)
    for piece, module in modules.items():
        builder = Builder(module, piece, pieces, flow, tree)
        if piece.call is root:
            build_root(builder, program)
        else:
            builder.write()
        keep_statistics(module.graph)
        if program.from_file:
            check_bounds(module.graph)
        run_plainly(module.graph)
        if piece.name != piece.call.path:
            module._original["of"] = tree.at(piece.call.path)
    tree.assemble(program)
    require_weights(whole)
    return whole
