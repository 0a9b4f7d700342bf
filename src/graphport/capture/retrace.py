"""Capturing what is a captured program already: its nodes keep what they say of themselves.

A GraphModule whose nodes carry metadata is run node by node instead of through its generated code,
which is nobody's source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from graphport.capture.recorder import Recorder


def remembers(module: Any) -> bool:
    """Whether a module is a graph whose nodes say where they come from."""
    return isinstance(module, GraphModule) and any(
        "nn_module_stack" in n.meta for n in module.graph.nodes if n.op == "call_function"
    )


def node_by_node(module: GraphModule, recorder: Recorder, prefix: str) -> GraphModule:
    """The module, hooks and state included, whose call runs its graph under its nodes' metadata."""
    made: GraphModule = object.__new__(type(module))
    vars(made).update(vars(module), forward=_runner(module, recorder, prefix))
    return made


def _runner(module: GraphModule, recorder: Recorder, prefix: str) -> Callable[..., Any]:
    codegen = module.graph._codegen
    structured = isinstance(codegen, _PyTreeCodeGen)

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs)) if structured else _bound(module, args, kwargs)
        out = _run(module, recorder, prefix, leaves)
        if structured:
            return pytree.tree_unflatten(list(out), codegen.pytree_info.out_spec)
        return out

    return forward


def _bound(module: GraphModule, args: Any, kwargs: Any) -> list[Any]:
    """Arguments in the order of the graph's inputs."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    values = list(args)
    for node in inputs[len(args) :]:
        values.append(kwargs[node.target] if node.target in kwargs else node.args[0])
    return values


def _run(module: GraphModule, recorder: Recorder, prefix: str, leaves: list[Any]) -> Any:
    env: dict[Node, Any] = {}
    supply = iter(leaves)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(supply)
            continue
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            env[node] = _attribute(module, node.target)
        elif node.op == "call_module":
            env[node] = _attribute(module, node.target)(*args, **kwargs)
        elif node.op == "call_method":
            env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            with recorder.inheriting(node, prefix):
                env[node] = node.target(*args, **kwargs)
    return None


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
