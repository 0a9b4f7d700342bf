"""Cuts a program into stages, each a program of its own, with what they send to each other.

A value is known by the name of its node. A stage takes values from the *front*, which is where the
user calls the pipeline, and from earlier stages, and gives some to later stages and to the front.
A value goes straight to every stage that uses it: one that skips stages would otherwise be sent,
held and sent again by each of those between.

Weights are in every stage that reads them. State that the program changes lives in its stage if
that alone reads and writes it; otherwise the front keeps it and sends it out with the inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from graphport.compat.operators import aten
from graphport.errors import UnsupportedError
from graphport.program import (
    ConstantArgument,
    ExportedProgram,
    GraphSignature,
    InputChecks,
    InputKind,
    InputShape,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from graphport.program.extract import (
    RegionGraph,
    find_hidden_symbols,
    list_inputs,
    make_argument,
    make_region_program,
)
from graphport.symbolic import Expr
from graphport.symbolic.bridge import to_torch
from graphport.tensors.abstract import get_shape, get_val, iter_numbers, set_val

FRONT = -1
"""Where the user calls the pipeline, among the numbers of stages."""

_STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_RESULT_KINDS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


@dataclass(frozen=True)
class Route:
    """A stage without its program: what it takes and gives, by name."""

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[int, ...]
    """The stages that send it something, in order; the front always does."""
    sends: Mapping[int, tuple[str, ...]]
    """By stage, or the front, what it is sent."""
    modules: str
    """The user's modules that it computes, in words."""


@dataclass(frozen=True)
class Stage:
    """A part of a program; without a program it has no work and nothing to pass on."""

    route: Route
    program: ExportedProgram | None


@dataclass(frozen=True)
class Front:
    """What the caller's side has to know: no weights, except for state that no stage owns."""

    inputs: tuple[str, ...]
    """Names of the flat inputs."""
    sends: Mapping[int, tuple[str, ...]]
    results: tuple[str | ConstantArgument, ...]
    """By flat output, the name of a value, or a constant."""
    written: Mapping[str, str]
    """Inputs that the program writes to, and the values that it writes."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """State that no single stage owns, by name."""
    updates: Mapping[str, str] = field(default_factory=dict)
    """By name of such state, the value that becomes the next."""
    changes_state: bool = False
    """Whether a run changes anything that the next one sees."""


@dataclass(frozen=True)
class StagedProgram:
    front: Front
    stages: tuple[Stage, ...]


def split_into_stages(
    program: ExportedProgram, places: Mapping[Node, int], count: int
) -> StagedProgram:
    """The program in `count` stages; `places` has the stage of each call of its graph.

    No call may be in an earlier stage than what it depends on.
    """
    return _StageCutter(program, places, count).made()


class _StageCutter:
    def __init__(self, program: ExportedProgram, places: Mapping[Node, int], count: int) -> None:
        self.program, self.count = program, count
        self.graph = Graph()
        copies: dict[Node, Node] = {}
        self.outputs: Any = self.graph.graph_copy(program.graph, copies)
        self.place = {copies[n]: stage for n, stage in places.items()}
        self._flatten_tuples()
        specs = program.graph_signature.input_specs
        pairs = zip([n for n in copies if n.op == "placeholder"], specs, strict=True)
        self.spec = {copies[n]: s for n, s in pairs}
        self.names = {s.arg.name: n for n, s in self.spec.items()}
        for name, node in self.names.items():
            node.name = name
        self.carried: dict[Node, Any] = {}
        """State that the front keeps, and what becomes of it."""
        self.state_updates: dict[int, list[tuple[OutputSpec, Node]]] = {k: [] for k in range(count)}
        """By stage, the changes of its own state."""
        self.extra_inputs: dict[int, list[Node]] = {k: [] for k in range(count)}
        """By stage, numbers that it takes for the sake of its sizes."""
        self.results: list[str | ConstantArgument] = []
        self.written: dict[str, str] = {}
        self.asked: list[Node] = []
        """Values that the caller gets."""
        self._settle()
        self._pass_sizes()

    def made(self) -> StagedProgram:
        takes = {k: self._taken(k) for k in range(self.count)}
        wanted: dict[int, dict[Node, None]] = {k: dict.fromkeys(takes[k]) for k in takes}
        wanted[FRONT] = dict.fromkeys(
            n for n in (*self.asked, *self.carried.values()) if self._home(n) != FRONT
        )
        sends: dict[int, dict[int, tuple[str, ...]]] = {k: {} for k in (FRONT, *takes)}
        for to, nodes in wanted.items():
            for node in nodes:
                source = self._home(node)
                sends[source][to] = (*sends[source].get(to, ()), node.name)
        stages = tuple(self._stage(k, takes[k], sends) for k in range(self.count))
        users = [n for n, s in self.spec.items() if s.kind is InputKind.USER_INPUT]
        front = Front(
            tuple(n.name for n in users),
            sends[FRONT],
            tuple(self.results),
            self.written,
            {
                n.name: self.program.tensor(str(self.spec[n].target)).detach().clone()
                for n in self.carried
            },
            {n.name: new.name for n, new in self.carried.items()},
            bool(self.carried) or any(self.state_updates.values()),
        )
        return StagedProgram(front, stages)

    # The graph, made ready

    def _flatten_tuples(self) -> None:
        """Let every use of several values name them one by one, where they were made."""
        for node in list(self.place):
            if not isinstance(get_val(node), (tuple, list)):
                continue
            for user in [u for u in node.users if u.target is not operator.getitem]:
                user.replace_input_with(node, self._elements(node))
            for user in node.users:
                self.place[user] = self.place[node]

    def _elements(self, node: Node) -> list[Node]:
        found = []
        with self.graph.inserting_after(node):
            for i, val in enumerate(get_val(node)):
                new = self.graph.call_function(operator.getitem, (node, i))
                set_val(new, val, node.meta)
                self.place[new] = self.place[node]
                found.append(new)
        return found

    def _settle(self) -> None:
        """What becomes of each output of the program."""
        for value, spec in zip(
            self.outputs, self.program.graph_signature.output_specs, strict=True
        ):
            if spec.kind in _RESULT_KINDS:
                self.results.append(self._result(value))
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                self.asked.append(value)
                self.written[str(spec.target)] = value.name
            elif spec.kind in _STATE_MUTATIONS:
                self._change(value, spec)
            else:
                raise UnsupportedError(f"a pipeline for a program with a {spec.kind.name} output")

    def _result(self, value: object) -> str | ConstantArgument:
        if not isinstance(value, Node):
            return ConstantArgument("", value)
        self.asked.append(value)
        return value.name

    def _change(self, value: Node, spec: OutputSpec) -> None:
        kinds = self.spec.items()
        state = next(n for n, s in kinds if s.target == spec.target)
        involved = {self.place.get(n) for n in (*state.users, value)}
        returned = any(v is state for v in self.outputs)
        if len(involved) == 1 and None not in involved and not returned:
            (stage,) = involved
            self.state_updates[stage].append((spec, value))  # type: ignore[index]
        else:
            self.carried[state] = value

    def _home(self, node: Node) -> int:
        """The stage that has a value."""
        if node in self.place:
            return self.place[node]
        if self.spec[node].kind is InputKind.USER_INPUT or node in self.carried:
            return FRONT
        return min((self.place[u] for u in node.users), default=0)

    def _is_state(self, node: Node) -> bool:
        """Whether stages have a node as their own state."""
        return node in self.spec and self.spec[node].kind is not InputKind.USER_INPUT

    # Sizes that a stage cannot see in what it takes

    def _pass_sizes(self) -> None:
        """Nodes for the symbols that stages need and none of their inputs shows."""
        symbol_nodes = {
            e: n
            for n in reversed(self.graph.nodes)
            if isinstance(e := _get_number(n), Expr) and e.kind == "symbol"
        }
        for k in range(self.count):
            inside = [n for n, stage in self.place.items() if stage == k]
            for symbol in find_hidden_symbols(inside, self._taken(k)):
                if symbol not in symbol_nodes:
                    self._read_size(symbol, symbol_nodes)
                node = symbol_nodes.get(symbol)
                if node is not None and self._home(node) < k:
                    self.extra_inputs[k].append(node)

    def _read_size(self, symbol: Expr, symbol_nodes: dict[Expr, Node]) -> None:
        """Read a size where a tensor that is computed, or an input, first shows it."""
        for node in list(self.graph.nodes):
            shape = get_shape(node)
            if shape is None or symbol not in shape or node in self.carried:
                continue
            after = node if node in self.place else list(self.spec)[-1]
            with self.graph.inserting_after(after):
                args = (node, shape.index(symbol))
                new = self.graph.call_function(aten.sym_size.int, args)
            set_val(new, to_torch(symbol))
            self.place[new] = self.place.get(node, 0)
            symbol_nodes[symbol] = new
            return

    # One stage

    def _taken(self, k: int) -> list[Node]:
        """The values that a stage takes from elsewhere."""
        used = list_inputs(node for node, stage in self.place.items() if stage == k)
        return [
            n
            for n in dict.fromkeys((*used, *self.extra_inputs[k]))
            if n.op != "get_attr"
            and self.place.get(n) != k
            and (not self._is_state(n) or n in self.carried)
        ]

    def _stage(
        self, k: int, taken: list[Node], sends: Mapping[int, Mapping[int, tuple[str, ...]]]
    ) -> Stage:
        inside = [n for n in self.graph.nodes if self.place.get(n) == k]
        names = dict.fromkeys(name for given in sends[k].values() for name in given)
        by_name = {n.name: n for n in self.graph.nodes}
        given = [by_name[name] for name in names]
        route = Route(
            k,
            tuple(n.name for n in taken),
            tuple(names),
            tuple(j for j in range(k) if k in sends[j]),
            dict(sends[k]),
            describe_modules(inside),
        )
        if not inside and not given:
            return Stage(route, None)
        changes = self.state_updates[k]
        return Stage(route, _build_stage(self.program, inside, taken, given, changes, self.spec))


def _build_stage(
    whole: ExportedProgram,
    inside: Sequence[Node],
    taken: Sequence[Node],
    given: Sequence[Node],
    changes: Sequence[tuple[OutputSpec, Node]],
    specs: Mapping[Node, InputSpec],
) -> ExportedProgram:
    """The program of a stage."""
    region, inputs = RegionGraph(), list[InputSpec]()
    used = dict.fromkeys((*list_inputs(inside), *given))
    for node in (*(n for n in used if n in specs and n not in taken), *taken):
        new = region.take(node)
        new.name, new.meta = node.name, dict(node.meta)
        own = InputSpec(InputKind.USER_INPUT, make_argument(new), None)
        inputs.append(own if node in taken else specs[node])
    for node in (n for n in used if n.op == "get_attr"):
        region.attach(node, getattr(whole.graph_module, str(node.target)))
    region.copy(*inside)
    written = [(region.mapping[n], spec) for spec, n in changes]
    results = [region.mapping[n] for n in given]
    module = region.close((*(n for n, _ in written), *results))
    outputs = [OutputSpec(s.kind, TensorArgument(n.name), s.target) for n, s in written]
    outputs += [OutputSpec(OutputKind.USER_OUTPUT, make_argument(n), None) for n in results]
    state = {str(s.target): whole.tensor(str(s.target)) for s in inputs if s.target}
    checks = InputChecks(list(map(_make_input_shape, taken)), whole.checks.ranges, ())
    return make_region_program(whole, module, GraphSignature(inputs, outputs), state, taken, checks)


def _make_input_shape(node: Node) -> InputShape:
    """What a stage expects of a value; one that is no tensor is taken as it comes."""
    shape, val = get_shape(node), get_val(node)
    if shape is not None:
        return InputShape(node.name, shape, val.dtype, device=val.device)
    number = _get_number(node)
    return (
        InputShape(node.name, number=number)
        if isinstance(number, Expr)
        else InputShape(node.name, value=number)
    )


def _get_number(node: Node) -> object:
    found = list(iter_numbers(node)) if get_shape(node) is None else []
    return found[0] if len(found) == 1 else None


def describe_modules(nodes: Sequence[Node]) -> str:
    """The modules that nodes belong to, each as far as its first number (`layers.3`)."""
    names = list(dict.fromkeys(filter(None, map(_find_module_path, nodes))))
    if len(names) > 6:
        names = [*names[:3], "...", *names[-2:]]
    return ", ".join(names)


def _find_module_path(node: Node) -> str:
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    path = next((p for p, _ in reversed(list(stack.values()))), "")
    return ".".join(_take_until_number(path.split(".")))


def _take_until_number(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        yield part
        if part.isdigit():
            return
