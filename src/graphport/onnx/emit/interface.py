"""Maps inputs and outputs of the ONNX graph to those of the program.

The user's inputs come first, under their own names or chosen ones. State that the program changes
is both an initialiser and an input, which a caller may leave out. The user's outputs keep their
order and are followed by what has become of the state. Every name is used once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from graphport.compat.operators import aten
from graphport.compat.torch import TreeSpec
from graphport.errors import InputError, UnsupportedError
from graphport.huggingface import caches
from graphport.onnx.emit import ir
from graphport.onnx.emit.ir import Complex, Graph, Value, source_weights
from graphport.onnx.emit.schemas import ONNX_OF
from graphport.onnx.lower import lowerer
from graphport.onnx.lowerings.complex import view_as_complex, view_as_real
from graphport.onnx.options import ExportOptions
from graphport.program import ExportedProgram
from graphport.program.codegen import Names
from graphport.program.signature import InputKind, OutputKind
from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract, describe, get_val
from graphport.tensors.lazy import lacks_data
from graphport.types import Argument

_STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)
_KINDS: dict[type, str] = {Value: "tensor", Complex: "complex"}
_CACHE_PREFIX = "present"
"""What a cache is called among the results, whatever it is called among the arguments."""
_NUMBER_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


@dataclass(frozen=True)
class Input:
    """An input of the model that the user gives: which of the program's flat inputs it is."""

    name: str
    flat: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Result:
    """A flat result of the program: an output by name, the caller's own input, or a constant."""

    kind: str
    """tensor, complex, int, float, bool, input, constant."""
    what: Any


@dataclass(frozen=True)
class Interface:
    """How inputs and outputs of the model relate to those of the program."""

    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    state: dict[str, str]
    """Inputs with state that the model changes, and the outputs with the new one."""
    weights: dict[str, str]
    """Initialisers that hold parameters, buffers or constants of the program, and which."""
    written: dict[int, str]
    """Flat inputs that the program writes to, and the outputs with what is written."""
    values: dict[str, Value]
    """What nodes of the lowered program have become, by their names."""

    @property
    def outputs(self) -> list[str]:
        """Those of the user, in order."""
        return [r.what for r in self.results if r.kind not in ("input", "constant")]


class InterfaceBuilder:
    """Makes inputs before the walk over the program, and outputs after it."""

    def __init__(
        self, program: ExportedProgram, walk: lowerer.Lowerer, options: ExportOptions
    ) -> None:
        self.program = program
        self.walk = walk
        self.graph: Graph = walk.b.main
        self.options = options
        self.names = Names()
        self.inputs: list[Input] = []
        self.state: dict[str, Value] = {}
        """Inputs with state that the program changes, by what it calls them."""
        self.weights: dict[Value, str] = {}
        self.mutated = {
            s.target
            for s in program.graph_signature.output_specs
            if s.kind in _MUTATIONS and s.target
        }

    # Before

    def open(self) -> None:
        """Give the placeholders of the program their values."""
        walk = self.walk
        specs = list(
            zip(_placeholders(self.program), self.program.graph_signature.input_specs, strict=True)
        )
        users = [(n, s) for n, s in specs if s.kind not in _STATE_KINDS]
        self._name_inputs([n for n, s in users if _is_input(n)])
        flat = -1
        for node, spec in users:
            flat += spec.kind is InputKind.USER_INPUT
            walk.env[node] = self._input(node, spec, flat)
        for node, spec in specs:
            if spec.kind in _STATE_KINDS:
                walk.env[node] = self._state(spec)
                if self.options.share_weights or _is_shared(node, spec.target in self.mutated):
                    walk.b.shared.add(walk.env[node])
        walk.b.sizes.learn(*self.graph.inputs)

    def _name_inputs(self, nodes: Sequence[Node]) -> None:
        given = _check_names(self.options.input_names, "input_names")
        if len(given) > len(nodes):
            own = ", ".join(n.name for n in nodes)
            raise InputError(
                f"input_names has {len(given)} names, the program {len(nodes)} inputs: {own}"
            )
        self.named: dict[Node, str] = dict(zip(nodes, given, strict=False))
        self.names.used.update(given)
        for node in nodes[len(given) :]:
            self.named[node] = self.names.unique(node.name)

    def _input(self, node: Node, spec: Any, flat: int) -> Argument:
        if node not in self.named:
            return getattr(spec.arg, "value", self.program.constants.get(spec.target or ""))
        result, name = describe(node), self.named[node]
        number = isinstance(result, Expr)
        dtype, shape = (_NUMBER_DTYPES[result.type], ()) if number else (result.dtype, result.sizes)
        is_complex = dtype.is_complex
        if is_complex:  # as torch.view_as_real has it
            dtype, shape = dtype.to_real(), (*shape, 2)
        _require_type(dtype, f"the input {name}")
        value = Value(name, dtype, shape, self.graph)
        self.graph.inputs.append(value)
        self.inputs.append(Input(name, flat, dtype))
        if number:
            self.walk.b.sizes.learn_number(result, value)
        if is_complex:
            return view_as_complex(self.walk.b, value)
        return result if number else value

    def _state(self, spec: Any) -> Argument:
        tensor = self.program.tensor(spec.target)
        is_complex = tensor.is_complex()
        if is_complex:
            tensor = torch.view_as_real(tensor.detach().resolve_conj())
        mutated = spec.target in self.mutated
        if mutated and not lacks_data(tensor):
            tensor = tensor.detach().clone()  # the user's own model goes on changing its own
        known = spec.kind is InputKind.CONSTANT_TENSOR and not mutated and not lacks_data(tensor)
        make = self.walk.b.initializer if known else self.walk.b.weight
        value = make(self.names.unique(spec.target), tensor)
        self.weights[value] = spec.target
        if not known:
            self.walk.weights.add(value)
        if mutated:
            self.graph.inputs.append(value)
            self.state[spec.target] = value
        return view_as_complex(self.walk.b, value) if is_complex else value

    # After

    def close(self, outputs: Sequence[Any]) -> None:
        """Make the program's results outputs of the graph: the user's first, then new state."""
        self.walk.b.origin = None
        nodes: Any = self.program.graph.output_node().args[0]
        specs = self.program.graph_signature.output_specs
        rows = list(zip(outputs, nodes, specs, strict=True))
        users = [row for row in rows if row[2].kind not in _MUTATIONS]
        own = {
            node: spec.target
            for _, node, spec in rows
            if spec.kind is OutputKind.USER_INPUT_MUTATION and isinstance(node, Node)
        }
        flat = {n.name: i.flat for n, i in zip(self.named, self.inputs, strict=True)}
        shown = [isinstance(v, Value | Complex | Expr) and n not in own for v, n, _ in users]
        names = self._output_names(shown)
        self.results: list[Result] = []
        own_names: dict[str, str] = {}
        places = _name_results(self.program.call_spec.out_spec)
        for (value, node, spec), is_shown, place in zip(users, shown, places, strict=True):
            if is_shown:
                name = self._output(value, next(names))
                kind = _KINDS.get(type(value)) or value.type.__name__
                self.results.append(Result(kind, name))
            elif isinstance(value, Value | Complex | Expr):
                self.results.append(Result("input", flat[own[node]]))
                if place and place.startswith(f"{_CACHE_PREFIX}_"):
                    own_names.setdefault(str(own[node]), place)
            else:
                self.results.append(Result("constant", getattr(spec.arg, "value", value)))
        self.updated: dict[str, str] = {}
        self.written: dict[int, str] = {}
        by_node = {n.name: name for n, name in self.named.items()}
        for value, _, spec in rows:
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                own_name = own_names.get(str(spec.target), f"{by_node[spec.target]}_updated")
                name = self.names.unique(own_name)
                self.written[flat[spec.target]] = self._output(value, name)
            elif spec.kind in _MUTATIONS:
                source = self.state[str(spec.target)].name
                name = self.names.unique(f"{source}_updated")
                self.updated[source] = self._output(value, name)

    def _output_names(self, shown: Sequence[bool]) -> Iterator[str]:
        """Names of the outputs: chosen ones, or by their places in the user's structure."""
        given = _check_names(self.options.output_names, "output_names")
        count = sum(shown)
        if len(given) > count:
            raise InputError(
                f"output_names has {len(given)} names, the program {count} outputs that are "
                "tensors or numbers"
            )
        taken = sorted(set(given) & self.names.used)
        if taken:
            raise InputError(
                f"{', '.join(taken)} in output_names is the name of an input or a weight: a name "
                "stands for one value in ONNX",
                fix=f'output_names=["{taken[0]}_out", ...]',
            )
        self.names.used.update(given)
        places = _name_results(self.program.call_spec.out_spec)
        alone = len(places) == 1
        found: list[str] = list(given)
        for i, place in enumerate(p for p, s in zip(places, shown, strict=True) if s):
            if i >= len(given):
                own = place or ("output" if alone else f"output_{i}")
                free = own if own not in self.names.used else f"{own}_out"
                found.append(self.names.unique(free))
        return iter(found)

    def _output(self, value: Any, name: str) -> str:
        if isinstance(value, Expr):
            value = self.walk.b.sizes.number(value)
        elif isinstance(value, Complex):
            value = view_as_real(self.walk.b, value)
        _require_type(value.dtype, f"the output {name}")
        value = self.walk.b.assertions.add_control_dependency(value)
        # An output is a value of its own: not an input, a weight, or another output.
        if value.producer is None or value in self.graph.outputs:
            node = ir.Node("Identity", [value], {})
            value = Value("", value.dtype, value.shape, self.graph, node)
            node.outputs.append(value)
            self.graph.nodes.append(node)
        value.name = name
        self.graph.outputs.append(value)
        return name

    def made(self) -> Interface:
        alive = {v for node in self.graph.nodes for v in (*node.inputs, *node.outputs)}
        alive.update(self.graph.inputs)
        values = {
            node.name: value
            for node, value in self.walk.env.items()
            if isinstance(value, Value) and value in alive and node.op == "call_function"
        }
        weights = {
            source.name: self.weights[source]
            for v in self.graph.initializers.values()
            for source in source_weights(v)
            if source in self.weights
        }
        return Interface(
            tuple(self.inputs), tuple(self.results), self.updated, weights, self.written, values
        )


def _require_type(dtype: torch.dtype, what: str) -> None:
    if dtype not in ONNX_OF:
        kind = str(dtype).removeprefix("torch.")
        raise UnsupportedError(f"{what} is {kind}, for which ONNX has no element type")


def _check_names(names: Sequence[str] | None, what: str) -> list[str]:
    if isinstance(names, Mapping):
        raise InputError(f"{what} is a {type(names).__name__}", fix=f"{what}=[...], in order")
    found = [names] if isinstance(names, str) else list(names or ())
    wrong = [n for n in found if not isinstance(n, str) or not n]
    if wrong:
        raise InputError(f"{what} has {wrong[0]!r}, which is no name")
    repeated = sorted({n for n in found if found.count(n) > 1})
    if repeated:
        raise InputError(f"{what} has {', '.join(repeated)} more than once")
    return found


def _placeholders(program: ExportedProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


def _is_input(node: Node) -> bool:
    """Whether a placeholder is an input of the model: a tensor, or a number that may vary."""
    return isinstance(describe(node), Abstract | Expr)


def count_inputs(program: ExportedProgram) -> int:
    """How many inputs the model of a program has for its users."""
    specs = zip(_placeholders(program), program.graph_signature.input_specs, strict=True)
    return sum(spec.kind not in _STATE_KINDS and _is_input(node) for node, spec in specs)


def _is_shared(weight: Node, mutated: bool) -> bool:
    """Whether a weight is used otherwise than as that of linear layers, on rows or on more dims."""
    linear = aten.linear.default
    if mutated or any(u.target is not linear or u.args[1] is not weight for u in weight.users):
        return True
    return len({get_val(u.args[0]).dim() == 2 for u in weight.users}) > 1


def _name_results(spec: TreeSpec) -> list[str | None]:
    """Names of results by their place in dicts and the like; None for those in tuples alone."""

    def walk(spec: TreeSpec, path: tuple[str, ...], named: bool) -> Iterator[str | None]:
        if spec.is_leaf():
            yield "_".join(path) if named else None
            return
        if caches.is_cache(spec.type):
            path = (_CACHE_PREFIX,)
        keys = _list_child_keys(spec)
        parts = keys or [str(i) for i in range(spec.num_children)]
        for part, child in zip(parts, spec.children(), strict=True):
            yield from walk(child, (*path, part), named or keys is not None)

    return list(walk(spec, (), False))


def _list_child_keys(spec: TreeSpec) -> list[str] | None:
    """What the children of a container are called, as far as its kind or its context says it."""
    context: Any = spec.context
    if isinstance(context, caches.CacheContext):
        context = context.keys
    elif isinstance(context, type):
        context = getattr(context, "_fields", None)  # a named tuple
    elif isinstance(context, list) and context and isinstance(context[-1], list):
        context = next(c for c in context if isinstance(c, list))  # dataclasses, default dicts
    if isinstance(context, list | tuple) and len(context) == spec.num_children:
        # Half of a surrogate pair is text in Python, and nowhere else.
        return [str(k).encode("utf-8", "replace").decode() for k in context]
    return None
