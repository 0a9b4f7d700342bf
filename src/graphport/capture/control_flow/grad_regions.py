"""`torch.no_grad()` regions: detaches their results, or wraps them as subgraphs (training).

`with torch.no_grad():` becomes `wrap_with_set_grad_enabled(False, submod_1, ...)`. The rest of the
program runs in the mode that it was captured in.
"""

from __future__ import annotations

import operator
from itertools import groupby

import torch
from torch import nn
from torch.fx import Graph, Node

from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.recorder import Recorder, copy_val
from graphport.capture.trace.tracer import Tracer
from graphport.program import make_graph_module
from graphport.symbolic.bridge import NUMBERS
from graphport.tensors.abstract import get_val, set_val
from graphport.types import Args, Argument, Function, Kwargs

wrap_with_set_grad_enabled = torch.ops.higher_order.wrap_with_set_grad_enabled
_NUMBERS = (str, type(None), *NUMBERS)


@register_override(wrap_with_set_grad_enabled)
def retrace_region(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """The same region in a program that is captured once more."""
    mode, fn, *operands = args
    with torch.set_grad_enabled(mode), tracer.function_mode:
        return fn(*operands)


def wrap_grad_regions(recorder: Recorder) -> None:
    """Of a finished graph: each run of nodes in another mode than the program's moves out."""
    calls = [n for n in recorder.graph.nodes if n.op == "call_function"]
    for mode, group in groupby(calls, key=lambda n: _find_grad_mode(recorder, n)):
        if mode is not recorder.grad_mode:
            _wrap_grad_region(recorder, mode, list(group))


def _find_grad_mode(recorder: Recorder, node: Node) -> bool:
    """What a node was computed in; numbers have no gradients, and stay where they are read."""
    if node.target is operator.getitem:
        return _find_grad_mode(recorder, node.args[0])
    if isinstance(get_val(node), _NUMBERS):
        return recorder.grad_mode
    return recorder.grad_modes.get(node, recorder.grad_mode)


def _wrap_grad_region(recorder: Recorder, mode: bool, nodes: list[Node]) -> None:
    inside = set(nodes)
    reads = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes))
    taken = [n for n in reads if n not in inside and n.op != "get_attr"]
    given = [n for n in nodes if any(u not in inside for u in n.users)]
    graph, root = Graph(), nn.Module()
    new: dict[Node, Node] = {}
    for n in taken:
        new[n] = graph.placeholder(n.name)
        set_val(new[n], copy_val(get_val(n)))
    for n in reads:
        if n.op == "get_attr":
            new[n] = graph.node_copy(n)
            root.add_module(str(n.target), recorder.frame.submodules.pop(str(n.target)))
    for n in nodes:
        new[n] = graph.node_copy(n, new.__getitem__)
    graph.output(tuple(new[n] for n in given)).meta = {}
    outer = recorder.graph
    with outer.inserting_before(nodes[0]):
        reference = recorder.attach("submod", make_graph_module(root, graph), first=1)
        args: tuple[Argument, ...] = (mode, reference, *taken)
        call = outer.create_node(
            "call_function", wrap_with_set_grad_enabled, args, {}, "wrap_with_set_grad_enabled"
        )
        set_val(call, tuple(get_val(n) for n in given), nodes[0].meta)
        for i, n in enumerate(given):
            item = outer.create_node("call_function", operator.getitem, (call, i), {}, "getitem")
            item.meta = dict(n.meta)
            n.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for n in (*reversed(nodes), *(n for n in reads if n.op == "get_attr")):
        outer.erase_node(n)
