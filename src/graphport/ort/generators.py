"""Graphs that draw the same random numbers twice, by the state of torch's generator as a value.

Where a checkpointed part has dropout, AOTAutograd's forward graph runs what draws by an operator
that also gives the state of the generator before, and the backward graph by one that takes it. Both
are written out here, as calls that read and exchange the state around what draws: these keep their
order among all that draw.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

_library = torch.library.Library("graphport", "FRAGMENT")
_DRAWS = (torch.Tag.nondeterministic_seeded,)
_library.define("rng_state() -> Tensor", tags=_DRAWS)
_library.define("exchange_rng_state(Tensor state) -> Tensor", tags=_DRAWS)


def _exchanged(state: torch.Tensor) -> torch.Tensor:
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    return before


_library.impl("rng_state", torch.get_rng_state, "CompositeExplicitAutograd")
_library.impl("exchange_rng_state", _exchanged, "CompositeExplicitAutograd")
_library._register_fake("rng_state", torch.get_rng_state)
_library._register_fake("exchange_rng_state", torch.empty_like)
_read = torch.ops.graphport.rng_state.default
_exchange = torch.ops.graphport.exchange_rng_state.default


def with_states_as_values(module: GraphModule) -> GraphModule:
    """The graph with these operators written out; the graph itself if it has none."""
    if not any(map(_kind, module.graph.nodes)):
        return module
    graph = Graph()
    values: dict[Node, Any] = {}
    for node in module.graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if _kind(node) == "run_and_save_rng_state":
            op, *given = args
            state = graph.call_function(_read)
            values[node] = (state, graph.call_function(op, tuple(given), kwargs))
        elif _kind(node):
            state, op, *given = args
            before = graph.call_function(_exchange, (state,))
            values[node] = graph.call_function(op, tuple(given), kwargs)
            graph.call_function(_exchange, (before,))
        elif node.target is operator.getitem and type(args[0]) is tuple:
            values[node] = args[0][args[1]]
        else:
            new = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            new.meta = dict(node.meta)
            values[node] = new
    return GraphModule(module, graph)


def _kind(node: Node) -> str:
    """Which of the two a node calls; empty for anything else."""
    name = node.target.name() if isinstance(node.target, HigherOrderOperator) else ""
    return name if name in ("run_and_save_rng_state", "run_with_rng_state") else ""
