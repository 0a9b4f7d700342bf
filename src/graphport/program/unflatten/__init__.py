"""`gp.unflatten`: rebuilds the original module hierarchy of a program.

`calls` reads from the metadata which module each node belongs to, `dataflow` decides where buffers
are written to and what crosses the borders between calls, `dedupe` which calls are the same code;
`build` writes a graph for each of those, and `module` puts modules and state to their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Graph

from graphport.arguments import PROGRAM, check_arguments
from graphport.ops.effects import clone_running_statistics
from graphport.program.bounds import insert_bounds_checks
from graphport.program.control import use_python_kernels
from graphport.program.module import require_weights
from graphport.program.unflatten.build import Builder, build_root
from graphport.program.unflatten.calls import State, build_call_tree
from graphport.program.unflatten.dataflow import BufferWrites, Dataflow
from graphport.program.unflatten.dedupe import CallBodies
from graphport.program.unflatten.module import CapturedModule, Tree, UnflattenedModule

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram

__all__ = ["CapturedModule", "UnflattenedModule", "unflatten"]


@check_arguments(program=PROGRAM)
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
    root, home = build_call_tree(program)
    state = State(program)
    writes = BufferWrites(program, root, home, state)
    flow = Dataflow(program, root, home, state, writes)
    pieces = CallBodies(root, flow, program.graph_module)
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
        clone_running_statistics(module.graph)
        if program.from_file:
            insert_bounds_checks(module.graph)
        use_python_kernels(module.graph)
        if piece.name != piece.call.path:
            module._original["of"] = tree.at(piece.call.path)
    tree.assemble(program)
    require_weights(whole)
    return whole
