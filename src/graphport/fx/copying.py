"""A copy of a graph module to rewrite: the graph is its own, parameters and submodules are shared.

Nodes keep their names, metadata and types; the module keeps its hooks, attributes and the way it is
called, so that a rewritten `ep.module()` still checks its inputs.
"""

from __future__ import annotations

import copy
import types
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule

from graphport.errors import InputError
from graphport.program import ExportedProgram


def copied(gm: GraphModule) -> GraphModule:
    """`gm` with a graph of its own. Call `recompile` on it when the graph is as it should be."""
    require_graph_module(gm)
    new = GraphModule(nn.Module(), Graph(), gm._get_name())
    for name, value in vars(gm).items():
        if name not in ("_graph", "_code"):
            vars(new)[name] = _own(value, gm, new)
    new.graph = copy.deepcopy(gm.graph)
    return new


def _own(value: Any, old: nn.Module, new: nn.Module) -> Any:
    """Tables such as `_modules` are the copy's own, and its methods are of the copy."""
    if isinstance(value, types.MethodType) and value.__self__ is old:
        return types.MethodType(value.__func__, new)
    return copy.copy(value) if isinstance(value, (dict, set)) else value


def require_graph_module(gm: Any) -> None:
    if isinstance(gm, GraphModule):
        return
    fix = "gm = torch.fx.symbolic_trace(model), or ep = gp.export(model, args); gm = ep.module()"
    if isinstance(gm, ExportedProgram):
        fix = "pass ep.module(), or ep.graph_module with parameters as inputs"
    raise InputError(f"a torch.fx.GraphModule is needed, not {type(gm).__name__}", fix=fix)
