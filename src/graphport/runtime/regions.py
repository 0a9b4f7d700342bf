"""Partitions a program into regions for ONNX Runtime and nodes that run in PyTorch.

A region is computed as a whole, so nothing outside may lie between two of its nodes. The level of a
node counts how often the longest path to it comes from outside into what the backend takes. Nodes
that the backend takes at one level are one region: a path that leaves the region and comes back
would have come from outside once more, and so would lead to a higher level.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
from graphport.compat.torch import HigherOrderOperator, OpOverload
from graphport.errors import ExportError, UnsupportedError
from graphport.fx.effects import is_random
from graphport.onnx.emit.schemas import ONNX_OF
from graphport.onnx.lower.lowerer import report_missing
from graphport.onnx.target.targets import ORT
from graphport.process import restore_on_exit
from graphport.program import ExportedProgram
from graphport.program.atomic_write import write_atomically, write_text
from graphport.program.module import unlift_program
from graphport.runtime.options import can_run_on
from graphport.source import locate_stack_trace
from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract, describe, get_val

if TYPE_CHECKING:
    from graphport.runtime.backend import OrtBackend
    from graphport.runtime.compiled import CompiledGraph


@dataclass(frozen=True)
class Step:
    """What runs next: a region at once, or nodes outside of any one after the other."""

    nodes: tuple[Node, ...]
    is_region: bool


def plan_steps(
    graph: Graph,
    taken: Callable[[Node], bool],
    ordered: Callable[[Node], bool] = lambda node: False,
    last: Iterable[Node] = (),
) -> list[Step]:
    """The calls of a graph in an order in which they can run.

    Calls that are `ordered` keep their order among themselves: what they do is seen outside. The
    `last` ones, which the backend does not take, come in the end.
    """
    final = set(last)
    levels = _compute_levels(graph, taken, ordered, final)
    top = max(levels.values(), default=0)
    regions: dict[int, list[Node]] = {}
    outside: dict[int, list[Node]] = {}
    for node, level in levels.items():
        if node.op == "call_function" and node not in final:
            (regions if taken(node) else outside).setdefault(level, []).append(node)
    found = []
    for level in range(top + 1):
        if level in regions:
            found.append(Step(tuple(regions[level]), True))
        if level in outside:
            found.append(Step(tuple(outside[level]), False))
    if final:
        found.append(Step(tuple(n for n in graph.nodes if n in final), False))
    return found


def _compute_levels(
    graph: Graph, taken: Callable[[Node], bool], ordered: Callable[[Node], bool], final: set[Node]
) -> dict[Node, int]:
    levels: dict[Node, int] = {}
    reached = 0
    """By what is ordered."""
    was_taken = True
    """Whether the backend takes the ordered call before: at one level, its region runs first."""
    for node in graph.nodes:
        if node.op == "output" or node in final:
            continue
        into = node.op == "call_function" and taken(node)
        level = max(
            (levels[n] + (into and not _is_taken(n, taken)) for n in node.all_input_nodes),
            default=int(into),
        )
        if ordered(node):
            level = reached = max(level, reached + (into and not was_taken))
            was_taken = into
        levels[node] = level
    return levels


def _is_taken(node: Node, taken: Callable[[Node], bool]) -> bool:
    return node.op == "call_function" and taken(node)


# Plans which nodes of a program run on ONNX Runtime, and which in torch.
#
# ONNX Runtime takes every operator with a lowering, but not those that draw random numbers: torch's
# generator decides what they draw. Views at the end are torch's too, since a result that shares
# memory with an input, or with another result, is to go on sharing it.

_NUMBERS = (Expr, int, float, bool)


@dataclass
class Plan:
    """The graph of a program and the steps to run it in."""

    program: ExportedProgram
    graph: Graph
    free_views: set[Node]
    """Those that give results, for torch to run."""
    draws: set[Node]
    """Nodes that draw random numbers; they keep their order."""
    steps: list[Step] = field(default_factory=list)
    reasons: dict[Node, str] = field(default_factory=dict)
    """Why a node runs in torch that could have been computed elsewhere."""

    def refuse(self, nodes: Iterable[Node], reason: str) -> None:
        """Let torch run these nodes."""
        self.reasons.update(dict.fromkeys(nodes, reason))
        self.settle()

    def settle(self) -> None:
        """Find the regions; those that compute nothing are torch's as well."""
        in_torch = _find_torch_nodes(self.graph) | self.reasons.keys() | self.free_views
        in_torch |= self.draws
        taken = {n for n in self.graph.nodes if n.op == "call_function" and n not in in_torch}
        while True:
            _follow_sources(self.graph, taken)
            found = plan_steps(
                self.graph, taken.__contains__, self.draws.__contains__, _find_writes(self.graph)
            )
            idle = [s for s in found if s.is_region and not any(map(_is_computation, s.nodes))]
            if not idle:
                self.steps = found
                return
            for step in idle:
                taken.difference_update(step.nodes)


def make_plan(program: ExportedProgram, missing: Mapping[OpOverload, list[Node]]) -> Plan:
    """How to run a program, some operators of which have no lowering."""
    graph = unlift_program(program)
    inner = dict(program.graph_module.named_modules(remove_duplicate=False))
    drawing = {n for n in graph.nodes if is_random(n, inner)}
    made = Plan(program, graph, _separate_views(graph, drawing), drawing)
    unknown = {n.name for nodes in missing.values() for n in nodes}
    for node in graph.nodes:
        if node.op == "call_function":
            reason = _fallback_reason(node, unknown, made)
            if reason:
                made.reasons[node] = reason
    made.settle()
    return made


def _fallback_reason(node: Node, unknown: set[str], plan: Plan) -> str:
    """Why a node does not run on ONNX Runtime; empty if it does."""
    if node in plan.draws:
        return "draws random numbers" if node.users else ""
    if node.name in unknown:
        return "no ONNX lowering"
    if any(n.name in unknown for n in _inner_nodes(node, plan.program.graph_module)):
        return "a subgraph has operators without an ONNX lowering"
    for about in map(describe, (node, *node.all_input_nodes)):
        for part in about if isinstance(about, tuple) else (about,):
            if not isinstance(part, Abstract):
                continue
            if part.dtype not in ONNX_OF and not part.dtype.is_complex:
                return f"ONNX has no {str(part.dtype).removeprefix('torch.')}"
            if not can_run_on(part.device):
                return f"ONNX Runtime has no execution provider for {part.device.type}"
    return ""


def _inner_nodes(node: Node, module: GraphModule) -> list[Node]:
    """The nodes of the subgraphs of a node, such as control flow, at any depth."""
    if not isinstance(node.target, HigherOrderOperator):
        return []
    taken = [module._modules.get(str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
    parts = [part for m in taken if isinstance(m, GraphModule) for part in m.modules()]
    return [n for part in parts if isinstance(part, GraphModule) for n in part.graph.nodes]


def _find_torch_nodes(graph: Graph) -> set[Node]:
    """Numbers are torch's: reading a size costs nothing. So are writes, assertions and the like."""
    return {
        n
        for n in graph.nodes
        if n.op == "call_function" and (isinstance(describe(n), _NUMBERS) or _has_effects(n))
    }


def _is_write(node: Node) -> bool:
    return node.target is aten.copy_.default


def _find_writes(graph: Graph) -> list[Node]:
    """Writes to inputs, and the views through which results show what was written."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op == "call_function" and (
            _is_write(node) or any(n in found for n in node.all_input_nodes)
        ):
            found[node] = None
    return list(found)


def _follow_sources(graph: Graph, taken: set[Node]) -> None:
    """An element of a tuple belongs to the region of the tuple."""
    for node in graph.nodes:
        if node.target is operator.getitem and node in taken and node.args[0] not in taken:
            taken.discard(node)


def _is_computation(node: Node) -> bool:
    return not (is_view(node) or node.target is operator.getitem)


def is_view(node: Node) -> bool:
    """Whether a node is a view of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None or _is_write(node):
        return False
    about, source = describe(node), node.args[0] if node.args else None
    shares = any(r.alias_info is not None for r in schema.returns)
    if not shares or not isinstance(source, Node):
        return False
    first = about[0] if isinstance(about, tuple) and about else about
    origin = describe(source)
    if not isinstance(first, Abstract) or not isinstance(origin, Abstract):
        return False
    return first.dtype is origin.dtype or node.target.overloadpacket is not aten.to


def _separate_views(graph: Graph, draws: set[Node]) -> set[Node]:
    """Give each result that is a view one of its own, and say which nodes these are.

    A view of what was written to an input shows the input. What nobody reads goes, but for what
    draws random numbers: others are drawn after it.
    """
    output = graph.output_node()
    copies: dict[Node, Node] = {}
    written = {n.args[1]: n for n in graph.nodes if _is_write(n)}

    def freed(node: object) -> object:
        if not isinstance(node, Node) or node in written or not is_view(node):
            return written.get(node, node) if isinstance(node, Node) else node
        if node not in copies:
            source = freed(node.args[0])
            copies[node] = new = graph.create_node(
                node.op, node.target, (source, *node.args[1:]), node.kwargs, f"{node.name}_result"
            )
            new.meta = dict(node.meta)
        return copies[node]

    with graph.inserting_before(output):
        output.args = (tuple(freed(r) for r in output.args[0]),)
    kept = ("placeholder", "output")
    graph.eliminate_dead_code(lambda n: n.op in kept or n in draws or _has_effects(n))
    return set(copies.values())


def _has_effects(node: Node) -> bool:
    return _is_write(node) or (node.op == "call_function" and get_val(node) is None)


# Explains which operators run on ONNX Runtime and which in PyTorch, and dumps models.

_dump_counts: Counter[str] = Counter()
"""How many this process has written, by prefix."""


def dump_model(prefix: str, model: onnx.ModelProto, text: str) -> None:
    """`prefix0.onnx` and `prefix0.txt`, then `prefix1.onnx`, ..."""
    path = Path(f"{prefix}{_dump_counts[prefix]}.onnx")
    _dump_counts[prefix] += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_model(path, model)
    write_text(path.with_suffix(".txt"), text)


@restore_on_exit
def _write_model(path: Path, model: onnx.ModelProto) -> None:
    with write_atomically(path) as file:
        file.write(model.SerializeToString())


# Explains in words what runs where.

log = logging.getLogger("graphport.ort")


def log_plan(made: CompiledGraph) -> None:
    """Log how a graph was divided; what fell back is worth a line by default."""
    if log.isEnabledFor(logging.INFO):
        for line in describe_plan(made):
            log.info("%s", line)


def describe_plan(made: CompiledGraph) -> list[str]:
    regions = [s for s in made.plan.steps if s.is_region]
    inside = sum(len(s.nodes) for s in regions)
    found = [f"{_pluralise(inside, 'operator')} in {_pluralise(len(regions), 'session')}"]
    return [*found, *(f"  in PyTorch: {line}" for line in describe_fallbacks(made.plan))]


def describe_fallbacks(plan: Plan) -> list[str]:
    """The operators that fell back, each with the reason and the first line that needs it."""
    reasons = Counter((_operator_name(n), why) for n, why in plan.reasons.items())
    places = {
        (_operator_name(n), why): locate_stack_trace(n.meta.get("stack_trace"))
        for n, why in reversed(plan.reasons.items())
    }
    found = []
    for (target, why), count in reasons.most_common():
        where = places[target, why]
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"{target}{times}: {why}{f', at {where}' if where else ''}")
    return found


def fallback_error(plan: Plan, missing: Mapping[OpOverload, list[Node]]) -> ExportError:
    """For a graph that was to run on ONNX Runtime as a whole."""
    if missing:
        return report_missing(missing, ORT.default_opset())
    return UnsupportedError(
        "not all of a graph can run on ONNX Runtime\n"
        + "\n".join(f"  - {line}" for line in describe_fallbacks(plan)),
        fix="OrtBackendOptions(strict=False)",
    )


def _operator_name(node: Node) -> str:
    """The operator; of one that writes to its arguments, not the form it is called in."""
    inner = node.args[0] if node.args else None
    return str(inner if isinstance(inner, OpOverload) else node.target)


def report_backend(backend: OrtBackend) -> str:
    parts = []
    for i, made in enumerate(backend.compiled.values()):
        first, *rest = describe_plan(made)
        parts += [f"graph {i}: {first}", *rest]
    parts += [f"a graph runs in PyTorch: {why}" for why in backend.refused.values()]
    parts.append(f"sessions have run {_pluralise(backend.execution_count, 'time')}")
    return "\n".join(parts)


def _pluralise(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
