"""Graph modules to rewrite: traced or exported, copied, with attributes and locations."""

from __future__ import annotations

import copy
import operator
import types
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from graphport import errors, source
from graphport.errors import InputError
from graphport.program import ExportedProgram
from graphport.program.codegen import CONSTANTS
from graphport.program.module import (
    CallGuard,
    make_graph_module,
    refuse_mode_change,
    register_state,
)
from graphport.types import Argument


def get_first_argument(node: Node) -> Argument:
    """The first argument of a call, by position or by name."""
    if node.args:
        return node.args[0]
    return node.kwargs.get("input", node.kwargs.get("self"))


def list_path_prefixes(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c`, of the last."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def locate_node(node: Node) -> source.Location | None:
    """The user's line that a node was recorded at, if that was recorded."""
    trace = (node.stack_trace or "").strip()
    # torch.fx strips what it records, frames of torch included.
    return source.locate_stack_trace(source.keep_user_frames(f"  {trace}")) if trace else None


# Copies a graph module to rewrite: the graph is its own, parameters and submodules are shared.
#
# Nodes keep their names, metadata and types; the module keeps its hooks, attributes and the way it
# is called, so that a rewritten `ep.module()` still checks its inputs.


def copy_graph_module(
    gm: GraphModule, *, only_used: bool = False, deep: bool = False
) -> GraphModule:
    """`gm` with a graph of its own, and all that it has, or `only_used` by the graph.

    That is shared, or copied too. Call `recompile` when the graph is as it should be.
    """
    require_graph_module(gm)
    if only_used:
        result, memo = make_empty_module(gm), dict[int, Any]() if deep else None
        for node in gm.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                assign_attribute(result, str(node.target), gm, memo=memo)
        adopt_calling_convention(result, _copy_graph(gm.graph), gm)
        return result
    result = GraphModule(nn.Module(), Graph(), gm._get_name())
    for name, value in vars(gm).items():
        if name not in ("_graph", "_code"):
            vars(result)[name] = _rebind_attribute(value, gm, result)
    result.graph = _copy_graph(gm.graph)
    return result


def _copy_graph(old: Graph) -> Graph:
    """Metadata are copied one level deep, so that both graphs can be annotated."""
    graph = Graph()
    copied = graph.graph_copy(old, {}, return_output_node=True)
    if copied is not None:
        value, output = copied
        new = graph.output(value)
        new.meta, new.type = dict(output.meta), output.type
    graph.set_codegen(old._codegen)
    return graph


def _rebind_attribute(value: object, old: nn.Module, new: nn.Module) -> Argument:
    """Tables such as `_modules` are the copy's own, and its methods are of the copy."""
    if isinstance(value, types.MethodType) and value.__self__ is old:
        return types.MethodType(value.__func__, new)
    return copy.copy(value) if isinstance(value, (dict, set)) else value


def require_graph_module(gm: object) -> None:
    if isinstance(gm, GraphModule):
        return
    fix = "gm = torch.fx.symbolic_trace(model), or ep = gp.export(model, args); gm = ep.module()"
    if isinstance(gm, ExportedProgram):
        fix = "pass ep.module(), or ep.graph_module with parameters as inputs"
    raise InputError(f"a torch.fx.GraphModule is needed, not {type(gm).__name__}", fix=fix)


# Graph modules to rewrite: of a model, of a traced module or of an exported program.
#
# The `module()` of an exported program is a GraphModule that knows how it is called. A rewritten
# one is called in the same way, with the same checks.


def is_program(gm: GraphModule) -> bool:
    """Whether a module is that of an exported program."""
    return any(isinstance(hook, CallGuard) for hook in gm._forward_pre_hooks.values())


def to_graph_module(
    model: nn.Module | ExportedProgram, what: str, *, inline: bool = True, tracer: Any = Tracer
) -> GraphModule:
    """The model as a graph, traced unless it is one; shares its modules and tensors.

    With `inline`, a graph that calls modules which the tracer would trace is traced again; that of
    a program which was split is put together again.
    """
    if isinstance(model, ExportedProgram):
        return model.module()
    if not isinstance(model, nn.Module):
        raise errors.InputError(
            f"{what} takes a module or an ExportedProgram, not {type(model).__name__}"
        )
    trace = tracer()
    if isinstance(model, GraphModule):
        modules = dict(model.named_modules(remove_duplicate=False))
        calls = [str(n.target) for n in model.graph.nodes if n.op == "call_module"]
        if not inline or all(trace.is_leaf_module(modules[name], name) for name in calls):
            return model
        if is_program(model):
            return _inline_submodules(model)
    try:
        graph = trace.trace(model)
        return GraphModule(trace.root, graph, type(model).__name__)
    except TraceError as problem:
        raise errors.GraphError(
            f"{type(model).__name__} cannot be traced by torch.fx: {problem}",
            fix=f"capture it with example inputs: {what}(gp.export(model, args))",
        ) from problem


def _inline_submodules(gm: GraphModule) -> GraphModule:
    """A program with the graphs that it calls written out, called as before."""
    graph = Graph()
    old = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    new = graph.output(_inline_nodes(gm, graph, "", {}))
    new.meta, new.type = dict(old.meta), old.type
    result = make_empty_module(gm)
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            assign_attribute(result, str(node.target), gm)
    adopt_calling_convention(result, graph, gm)
    return result


def _inline_nodes(
    gm: GraphModule, graph: Graph, path: str, values: dict[Node, Argument]
) -> Argument:
    """Copy the nodes of a module at a path, and find what it returns; `values` has its inputs."""
    for node in gm.graph.nodes:
        if node in values:
            continue
        args: Any = map_arg(node.args, lambda n: values[n])
        if node.op == "output":
            return args[0]
        called = gm.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(called, GraphModule):
            inputs = [n for n in called.graph.nodes if n.op == "placeholder"]
            given = dict(zip(inputs, args, strict=True))
            values[node] = _inline_nodes(called, graph, f"{path}{node.target}.", given)
        elif node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            values[node] = args[0][args[1]]
        else:
            values[node] = new = graph.node_copy(node, lambda n: values[n])
            if node.op in ("call_module", "get_attr"):
                new.target = f"{path}{node.target}"
    raise AssertionError("a graph has an output")


def make_empty_module(gm: GraphModule, *, lazy: bool = False) -> GraphModule:
    """A module with nothing in it, in the same mode.

    Code of a lazy one is generated when it is called: `forward` shows no parameters until then.
    """
    result = (make_graph_module if lazy else GraphModule)(nn.Module(), Graph())
    result.training = gm.training
    return result


def adopt_calling_convention(result: GraphModule, graph: Graph, gm: GraphModule) -> None:
    """Give a module its graph, and have it called, shown and guarded as another one is."""
    graph.set_codegen(gm.graph._codegen)
    result.graph = graph
    result.meta.update(gm.meta)
    if not is_program(gm):
        return
    for name in ("_graphport_signature", CONSTANTS, "_in_spec", "_out_spec"):
        if hasattr(gm, name):  # a deep copy of a GraphModule has lost them
            setattr(result, name, getattr(gm, name))
    for hook in gm._forward_pre_hooks.values():
        if isinstance(hook, CallGuard):
            result.register_forward_pre_hook(hook, with_kwargs=True)
    for mode in ("train", "eval"):
        setattr(result, mode, types.MethodType(refuse_mode_change(mode), result))


def get_attribute(target: str, *places: nn.Module | None) -> Argument:
    """What a graph calls `target`, in the first place that has it."""
    for place in places:
        found: Any = place
        for part in target.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found
    raise errors.GraphError(
        f"the graph uses {target}, which the module does not have",
        fix=f"graph_module.{target} = ...",
    )


def assign_attribute(
    module: nn.Module,
    target: str,
    source: nn.Module,
    root: nn.Module | None = None,
    memo: dict[int, Any] | None = None,
) -> None:
    """Make what the graph of `source` calls `target` an attribute of a module, at the same path.

    It is shared, or copied deeply with a `memo`.
    """
    value = get_attribute(target, source, root)
    if memo is not None:
        value = copy.deepcopy(value, memo)
    *path, name = target.split(".")
    owner: Any = source
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module, owner = getattr(module, part), getattr(owner, part, None)
    if getattr(module, name, None) is value:
        return
    if isinstance(value, nn.Module):
        module.add_module(name, value)
    else:
        register_state(
            module, name, value, name not in getattr(owner, "_non_persistent_buffers_set", ())
        )
