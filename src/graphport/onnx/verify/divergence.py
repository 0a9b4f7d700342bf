"""Finds the first node whose operands agree with eager and whose result does not.

Each question runs the program once more and keeps only what was asked for, so that it costs time
rather than memory. The model is given the values as further outputs; what ONNX Runtime has fused
away otherwise is computed by itself then.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Interpreter, Node

from graphport.onnx.lower.lowerer import is_uninitialised
from graphport.onnx.verify.compare import Comparison
from graphport.onnx.write.weights import materialise
from graphport.program import ExportedProgram
from graphport.program.module import find_attribute_paths
from graphport.source import locate_stack_trace
from graphport.tensors.abstract import Abstract, describe
from graphport.tensors.lazy import lacks_data
from graphport.types import Argument, PyTree

if TYPE_CHECKING:
    from graphport.onnx.program import ONNXProgram

_COARSE = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


Place = tuple[dict[str, Any], str]
"""The dict of a module that has a parameter, buffer or other tensor, and its key there."""


def make_runnable(
    program: ExportedProgram, state: Mapping[str, torch.Tensor]
) -> tuple[GraphModule, dict[str, Place]]:
    """The program as a module that begins with copies of this state, and where those are.

    Weights that are in files are read into memory.
    """
    module = program.module(check_guards=False)
    place = find_attribute_paths(program)
    read = {place(k): materialise(t) for k, t in program.state_dict.items() if lacks_data(t)}
    if read:
        module.load_state_dict(read, strict=False, assign=True)
    return module, {name: replace_tensor(module, place(name), t) for name, t in state.items()}


def find_holder(target: Any, name: str) -> Place | None:
    """Where a module has what it calls so, if it does."""
    path, _, last = name.rpartition(".")
    try:
        owner = target.get_submodule(path)
    except AttributeError:
        return None
    held = next((d for d in (owner._parameters, owner._buffers, vars(owner)) if last in d), None)
    return None if held is None else (held, last)


def replace_tensor(target: object, name: str, tensor: torch.Tensor) -> Place:
    """Give a module another tensor; where it is."""
    found = find_holder(target, name)
    assert found is not None
    held, last = found
    new = tensor.detach().clone()
    old = held[last]
    held[last] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return found


def _clone_value(x: object) -> Argument:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _fingerprint(x: object) -> object:
    """A hash of a value, which takes no memory."""
    if isinstance(x, (tuple, list)):
        return [_fingerprint(part) for part in x]
    if not isinstance(x, torch.Tensor):
        return x
    if lacks_data(x):
        return list(x.shape), x.dtype
    plain = x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return list(x.shape), x.dtype, zlib.crc32(plain.view(torch.uint8).numpy())


class Probe:
    """Both sides, for the same inputs."""

    def __init__(self, program: ONNXProgram, flat: Sequence[object]) -> None:
        self.program = program
        self.flat = list(flat)
        self.values = program.interface.values

    @cached_property
    def graph(self) -> Graph:
        return self.program.lowered_program.graph

    def eager(
        self,
        names: Iterable[str],
        given: Mapping[str, torch.Tensor] | None = None,
        keep: Callable[[Any], Any] = _clone_value,
    ) -> dict[str, Any]:
        """What torch computes for nodes; some of them may be given instead of computed."""
        recorder = _Recorder(self.module(), set(names), given or {}, keep)
        with torch.no_grad():
            recorder.run(*self.inputs, enable_io_processing=False)
        return recorder.found

    def module(self) -> GraphModule:
        """The program that was lowered, from its beginning, for an interpreter."""
        return make_runnable(self.program.lowered_program, self.program.initial_state)[0]

    @property
    def inputs(self) -> list[PyTree]:
        return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in self.flat]

    def find_uninitialised(self) -> set[str]:
        """Nodes that are others where memory that was never written holds something else."""
        sources = {n.name for n in self.graph.nodes if is_uninitialised(n.target)}
        if not sources:
            return set()
        names = find_dependents(self.graph, lambda n: n.name in sources)
        found = self.eager(sources)
        one, other = (
            self.eager(names, {k: torch.full_like(x, fill) for k, x in found.items()}, _fingerprint)
            for fill in (0, 1)
        )
        return sources | {name for name in names if one[name] != other[name]}

    def model(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """What ONNX Runtime computes for nodes that are values of the model."""
        wanted = {name: self.values[name] for name in names}
        inputs = self.program.inputs_of(self.flat)
        # A node that does nothing is an input or a weight of the model.
        found = {
            v.name: inputs[v.name] if v.name in inputs else materialise(v.data)
            for v in wanted.values()
            if v.producer is None
        }
        computed = dict.fromkeys(v for v in wanted.values() if v.producer is not None)
        if computed:
            session = self.program.session.add_outputs(computed)
            found.update(session.run(inputs, [v.name for v in computed]))
        return {name: found[value.name] for name, value in wanted.items()}


class _Recorder(Interpreter):
    def __init__(
        self,
        module: GraphModule,
        wanted: set[str],
        given: Mapping[str, torch.Tensor],
        keep: Callable[[Any], Any],
    ) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.given = given
        self.keep = keep
        self.found: dict[str, Any] = {}

    def run_node(self, n: Node) -> Argument:
        out = self.given[n.name] if n.name in self.given else super().run_node(n)
        if n.name in self.wanted:
            self.found[n.name] = self.keep(out)
        return out


def find_precisions(graph: Graph) -> dict[str, torch.dtype]:
    """For each node the coarsest float dtype that it was computed through."""
    found: dict[str, torch.dtype] = {}
    for node in graph.nodes:
        kinds = [found[i.name] for i in node.all_input_nodes if i.name in found]
        val = describe(node)
        tensors = [
            v for v in (val if isinstance(val, tuple) else (val,)) if isinstance(v, Abstract)
        ]
        dtypes = [v.dtype.to_real() if v.dtype.is_complex else v.dtype for v in tensors]
        kinds += [d for d in dtypes if d in _COARSE]
        if kinds:
            found[node.name] = max(kinds, key=_COARSE.index)
    return found


def find_random_nodes(graph: Graph) -> set[str]:
    """Nodes that depend on random numbers."""
    return find_dependents(graph, _is_random)


def find_dependents(graph: Graph, on: Callable[[Node], bool]) -> set[str]:
    """Such nodes, and all that depend on them."""
    found: set[str] = set()
    for node in graph.nodes:
        if on(node) or any(i.name in found for i in node.all_input_nodes):
            found.add(node.name)
    return found


# Attention, dropout and recurrent layers draw random numbers only where they are told to.
_INFERENCE_ARGUMENTS = {
    "dropout_p": 0.0,
    "dropout": 0.0,
    "p": 0.0,
    "train": False,
    "training": False,
}


def _is_random(node: Node) -> bool:
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    given = {a.name: a.default_value for a in target._schema.arguments}
    given.update(zip(given, node.args, strict=False))
    given.update(node.kwargs)
    return not any(
        name in given and given[name] == off for name, off in _INFERENCE_ARGUMENTS.items()
    )


def find_ancestors(node: Node) -> set[Node]:
    """A node and all that it depends on."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting.extend(n.all_input_nodes)
    return found


# Searches for the first node whose operands agree and whose result does not.

_PROBES_AT_ONCE = 8
"""Values to look at in one run: more of them change what ONNX Runtime fuses."""

Compare = Callable[[str, Any, Any], Comparison]
"""(name of a node, the model's value, eager's value)"""


@dataclass(frozen=True)
class Divergence:
    """A node of the program, where it comes from, and how far its values are apart."""

    node: Node
    module: str
    source: str
    judgement: Comparison

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        lines = [f"{self.node.name} ({self.node.target}){where}"]
        if self.judgement.note:
            lines[0] += f": {self.judgement.note}"
        if self.source:
            lines.append(f"  at {self.source}")
        return "\n".join(lines)


def first_divergence(probe: Probe, output: Node, judge: Compare) -> Divergence:
    """Search backwards from a result that differs.

    Between values that agree and one that does not, the interval is narrowed by looking at a few
    values at a time. Branches make that a guess: if an operand of the node that was found differs
    too, the search goes on from there.
    """
    search = _Search(probe, judge)
    suspect = output
    while True:
        suspect = search.narrow_suspect(suspect)
        worse = search.find_bad(search.operands(suspect))
        if worse is None:
            return _locate_divergence(suspect, search.known.get(suspect.name))
        suspect = worse


class _Search:
    def __init__(self, probe: Probe, judge: Compare) -> None:
        self.probe = probe
        self.judge = judge
        self.known: dict[str, Comparison] = {}

    def narrow_suspect(self, bad: Node) -> Node:
        """A node that differs, before which the last that was looked at agrees."""
        before = find_ancestors(bad)
        order = [n for n in self.probe.graph.nodes if n in before and n.name in self.probe.values]
        if bad not in order:
            order.append(bad)
        good, worst = -1, len(order) - 1
        while worst - good > 1:
            step = max(1, -(-(worst - good - 1) // _PROBES_AT_ONCE))
            places = list(range(good + step, worst, step)) or [good + 1]
            self.look([order[i] for i in places])
            wrong = [i for i in places if not self.known[order[i].name].ok]
            good = max((i for i in places if not wrong or i < wrong[0]), default=good)
            worst = wrong[0] if wrong else worst
        return order[worst]

    def operands(self, node: Node) -> list[Node]:
        """The nearest nodes before one that are values of the model."""
        found: dict[Node, None] = {}
        waiting, seen = list(node.all_input_nodes), set()
        while waiting:
            n = waiting.pop()
            if n in seen:
                continue
            seen.add(n)
            if n.name in self.probe.values:
                found[n] = None
            else:
                waiting.extend(n.all_input_nodes)
        return list(found)

    def find_bad(self, nodes: list[Node]) -> Node | None:
        self.look(nodes)
        return next((n for n in nodes if not self.known[n.name].ok), None)

    def look(self, nodes: list[Node]) -> None:
        names = [n.name for n in nodes if n.name not in self.known]
        if not names:
            return
        have, want = self.probe.model(names), self.probe.eager(names)
        for name in names:
            self.known[name] = self.judge(name, have[name], want[name])


def _locate_divergence(node: Node, found: Comparison | None) -> Divergence:
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]  # of several results: the operator that has them
    stack = node.meta.get("nn_module_stack")
    module = str(list(stack.values())[-1][0]) if stack else ""
    where = locate_stack_trace(node.meta.get("stack_trace"))
    return Divergence(node, module, "" if where is None else str(where), found or Comparison(False))
