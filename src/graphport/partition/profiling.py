"""How long the nodes of a graph take, and what they hold, measured on this machine."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from graphport.arguments import NODE, instance_of, integer, mapping, takes
from graphport.errors import InputError
from graphport.partition.config import NodeLatency
from graphport.partition.pieces import is_op
from graphport.process import contained, undone
from graphport.program import ExportedProgram
from graphport.program.module import Entrance


class NodeProfile(NamedTuple):
    """What one operator took.

    `latency_s` is the median over the runs, `output_bytes` the size of the result, and `peak_bytes`
    what was held while it ran: every value that was alive, its own result, and the parameters that
    it read.
    """

    latency_s: float
    output_bytes: int
    peak_bytes: int


@takes(runs=integer(1), warmup=integer(0))
@contained
def profile(
    gm: GraphModule | ExportedProgram, /, *args: Any, runs: int = 5, warmup: int = 1, **kwargs: Any
) -> dict[Node, NodeProfile]:
    """Run a graph node by node and measure each operator.

    Give example inputs as to the module itself; an exported program without any takes those that it
    was exported with. State that a run changes is put back. The nodes are those of the graph, or of
    a copy that `ep.module()` makes: `PartitionerConfig` takes either.

        >>> import torch, graphport as gp
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        >>> found = gp.partition.profile(gm, torch.randn(4, 8))
        >>> [(node.name, p.output_bytes, p.peak_bytes) for node, p in found.items()]
        [('_0', 128, 544)]
    """
    if isinstance(gm, ExportedProgram):
        if not args and not kwargs and gm.example_inputs is not None:
            args, kwargs = gm.example_inputs
        gm = gm.module()
    if not isinstance(gm, GraphModule):
        raise InputError(
            f"profile takes a GraphModule or an ExportedProgram, not {type(gm).__name__}",
            fix=["torch.fx.symbolic_trace(model)", "gp.export(model, args)"],
        )
    inputs = _leaves(gm, args, kwargs)
    runner = _Runner(gm)
    state = [(t, t.detach().clone()) for t in (*gm.parameters(), *gm.buffers())]

    def put_back() -> None:
        for t, before in state:
            t.detach().copy_(before)

    with torch.no_grad():
        for _ in range(warmup + runs):
            with undone(put_back):
                runner.run(*_copied(inputs), enable_io_processing=False)
    return {
        node: NodeProfile(statistics.median(times[warmup:]), runner.sizes[node], runner.peaks[node])
        for node, times in runner.times.items()
    }


@takes(profiled=mapping(NODE, instance_of("a NodeProfile", f"{__name__}:NodeProfile")))
def latencies(profiled: Mapping[Node, NodeProfile]) -> dict[Node, NodeLatency]:
    """A profile as `node_to_latency_mapping`: what was measured is both memory and computing."""
    return {node: NodeLatency(found.latency_s, found.latency_s) for node, found in profiled.items()}


class _Runner(Interpreter):
    """An interpreter that times operators and counts what is alive."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.times: dict[Node, list[float]] = {}
        self.sizes: dict[Node, int] = {}
        self.peaks: dict[Node, int] = {}

    def run_node(self, n: Node) -> Any:
        if not is_op(n):
            return super().run_node(n)
        start = time.perf_counter()
        result = super().run_node(n)
        taken = time.perf_counter() - start
        if n not in self.times:
            held = [v for node, v in self.env.items() if node.op != "get_attr"]
            held += [self.env[node] for node in n.all_input_nodes if node.op == "get_attr"]
            if n.op == "call_module":
                held += list(self.fetch_attr(str(n.target)).parameters())
            self.sizes[n] = sum(t.numel() * t.element_size() for t in _tensors(result))
            self.peaks[n] = _held([held, result])
        self.times.setdefault(n, []).append(taken)
        return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _held(value: Any) -> int:
    """The bytes of memory that the tensors in a value lie in; what they share counts once."""
    spans = []
    for t in _tensors(value):
        if t.numel():
            last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
            spans.append((t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()))
    total = reached = 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _leaves(gm: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """One value per placeholder, from arguments as the module takes them."""
    for hook in gm._forward_pre_hooks.values():
        if isinstance(hook, Entrance):
            return hook.flat(args, kwargs)
    bound = inspect.signature(gm.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return list(gm.graph.process_inputs(*bound.args, *bound.kwargs.values()))


def _copied(inputs: Any) -> Any:
    """Inputs that a run may write to."""
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, inputs)
