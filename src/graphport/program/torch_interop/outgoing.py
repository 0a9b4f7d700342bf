"""Converts an `ExportedProgram` to a `torch.export.ExportedProgram`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import export, nn
from torch.export import graph_signature as theirs
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
from graphport.compat.torch import SpecViolationError, TrainingIRVerifier, Verifier, pytree
from graphport.errors import UnsupportedError
from graphport.program import bounds
from graphport.program import signature as ours
from graphport.program.bounds import CHECKS
from graphport.program.codegen import AttributePaths, is_quotable, make_unique_identifiers
from graphport.program.exported import ExportedProgram
from graphport.program.module import collect_state
from graphport.program.torch_interop.environment import TorchEnvironment, make_outgoing_stacks
from graphport.symbolic import Expr, bitand, bitor
from graphport.symbolic.bridge import from_torch, python_type
from graphport.tensors.abstract import get_val, has_val, set_val
from graphport.tensors.subclasses import has_parts
from graphport.types import Argument

_VERIFIERS = {"ATEN": Verifier, "TRAINING": TrainingIRVerifier}
_METADATA = ("stack_trace", "torch_fn", "source_fn_stack", "custom")
_MUTATIONS = {
    ours.OutputKind.BUFFER_MUTATION,
    ours.OutputKind.PARAMETER_MUTATION,
    ours.OutputKind.USER_INPUT_MUTATION,
}
_SYMBOLIC_ARGUMENTS = {
    int: theirs.SymIntArgument,
    float: theirs.SymFloatArgument,
    bool: theirs.SymBoolArgument,
}
_FURTHER_CALL = re.compile(r"@\d+$")


def convert(program: ExportedProgram) -> export.ExportedProgram:
    _check_texts(program)
    if has_parts(program.call_spec.in_spec):
        raise UnsupportedError(
            "an input is a tensor subclass, which here is several inputs and one in torch.export",
            fix="capture it with the tensors that the subclass is made of as inputs",
        )
    environment = TorchEnvironment(program)
    paths = _Paths(program)
    graph_module = _Conversion(program, environment, paths).module(
        program.graph_module, is_top=True
    )
    _separate_outputs(graph_module.graph, program)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    state, constants = _convert_state(program, paths)
    try:
        return export.ExportedProgram(
            root=graph_module,
            graph=graph_module.graph,
            graph_signature=_convert_signature(program, graph_module, nodes, paths),
            state_dict=state,
            range_constraints=environment.range_constraints(),
            module_call_graph=_convert_calls(program, nodes, paths),
            example_inputs=program.example_inputs,
            constants=constants,
            verifiers=[_VERIFIERS[program.dialect]],
        )
    except SpecViolationError as error:
        raise UnsupportedError(f"torch.export does not allow this program: {error}") from error


def _check_texts(program: ExportedProgram) -> None:
    """Refuse what torch would write into Python code as it is: keys of inputs, inputs of text."""
    keywords = program.call_spec.in_spec.child(1).context
    said = [get_val(n) for n in program.graph.find_nodes(op="placeholder")]
    leaves = [*said, *pytree.tree_leaves(program.example_inputs)]
    texts = [x for x in leaves if isinstance(x, str)]
    try:
        paths = pytree.tree_flatten_with_path(program.example_inputs)[0]
    except ValueError:  # a container that does not tell its keys: torch names no input then
        paths = []
    places = [pytree.keystr(path) for path, _ in paths]
    # A place has the keys of dicts in quotes: double ones if there is a quote in the key.
    unquotable = [x for x in (*keywords, *texts) if not is_quotable(x)]
    unquotable += [x for x in places if not is_quotable(x.replace("'", ""))]
    if unquotable:
        raise UnsupportedError(
            "torch.export writes the keys of inputs, and inputs that are texts, into Python code, "
            f"where quotes, backslashes and control characters end a text: {unquotable[0]!r}"
        )


class _Paths:
    """Where torch's modules have what a program names: they generate code from it too."""

    def __init__(self, program: ExportedProgram) -> None:
        stacks = (n.meta.get("nn_module_stack") or {} for n in program.graph.nodes)
        called = set().union(*stacks)
        called |= {call.fqn for call in program.module_call_graph}
        modules = {_FURTHER_CALL.sub("", key) for key in called}
        self.of_state = AttributePaths({*program.state_dict, *program.constants, *modules})

    def of_module(self, key: str) -> str:
        """Of a module, or of a further call of it: `encoder@1`."""
        path = _FURTHER_CALL.sub("", key)
        return self.of_state(path) + key[len(path) :]


class _Conversion:
    """Copies graphs, and converts the metadata of nodes."""

    def __init__(
        self, program: ExportedProgram, environment: TorchEnvironment, paths: _Paths
    ) -> None:
        self.environment = environment
        self.checked = program.from_file
        stacks = (n.meta.get("nn_module_stack") or {} for n in program.graph.nodes)
        first = next((stack for stack in stacks if stack), None)
        root = next(iter(first.values())) if first else ("", "torch.nn.modules.module.Module")
        self.stack = make_outgoing_stacks(paths.of_module, root)

    def module(self, module: GraphModule, *, is_top: bool = False) -> GraphModule:
        root, graph = nn.Module(), Graph()
        mapping: dict[Node, Node] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                inner = getattr(module, node.target)
                if not isinstance(inner, GraphModule):
                    raise UnsupportedError(f"{node.target} is a {type(inner).__name__}")
                if not hasattr(root, node.target):
                    root.add_module(node.target, self.module(inner))
            if node.target is operator.xor:
                new = self._xor(graph, node, tuple(mapping.get(a, a) for a in node.args))
            else:
                new = graph.node_copy(node, lambda n: mapping[n])
            if node.op == "placeholder":
                new.name = node.name
            mapping[node] = new
            new.meta = self._metadata(node, is_input=is_top and node.op == "placeholder")
            if self.checked and node.target in CHECKS:
                insert_bounds_assertions(graph, new)
        return GraphModule(root, graph)

    def _xor(self, graph: Graph, node: Node, args: tuple[object, ...]) -> Node:
        """torch's programs have no a ^ b: it is (a | b) - (a & b)."""
        values = [from_torch(get_val(a)) if isinstance(a, Node) else a for a in node.args]
        parts = []
        for function, meaning in ((operator.or_, bitor), (operator.and_, bitand)):
            part = graph.call_function(function, args)
            set_val(part, self.environment.number(meaning(*values)), self._metadata(node))
            parts.append(part)
        return graph.call_function(operator.sub, tuple(parts))

    def _metadata(self, node: Node, *, is_input: bool = False) -> dict[str, Any]:
        meta = {key: node.meta[key] for key in _METADATA if key in node.meta}
        if node.op in ("call_function", "get_attr"):
            meta["nn_module_stack"] = self.stack(node.meta.get("nn_module_stack"))
        if has_val(node):
            # The sizes of inputs are where symbols are defined.
            meta["val"] = self.environment.value(get_val(node), as_told=is_input)
            bindings = self.environment.bindings(meta["val"])
            if bindings and node.op == "call_function":
                meta["unbacked_bindings"] = bindings
        return meta


def _separate_outputs(graph: Graph, program: ExportedProgram) -> None:
    """torch tells what a program writes by the name of a node: each write needs one of its own.

    A number that has turned out to be fixed is no node. That is for our scope to say: torch takes
    sizes to be positive, and fixes more.
    """
    own = program.graph.output_node().args[0]
    output = graph.output_node()
    results = list(output.args[0])
    seen: set[Node] = set()
    for i, spec in enumerate(program.graph_signature.output_specs):
        value = results[i]
        if not isinstance(value, Node):
            continue
        if isinstance(spec.arg, ours.SymbolicArgument):
            number = program.scope.simplify(from_torch(get_val(own[i])))
            results[i] = value if isinstance(number, Expr) else number
        elif spec.kind in _MUTATIONS and value in seen:
            with graph.inserting_before(output):
                results[i] = graph.call_function(aten.clone.default, (value,))
                results[i].meta = {k: v for k, v in value.meta.items() if k != "unbacked_bindings"}
        elif spec.kind in _MUTATIONS:
            seen.add(value)
    output.args = (tuple(results),)


def _convert_state(
    program: ExportedProgram, paths: _Paths
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict and the constants. What the program writes to is copied: torch's modules write
    to the tensors of the program, and ours are the user's own.
    """
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, t, _ in collect_state(program):
        (state if name in program.state_dict else constants)[paths.of_state(name)] = t
    return state, constants


# The signature


def _convert_signature(
    program: ExportedProgram, module: GraphModule, nodes: dict[str, Node], paths: _Paths
) -> theirs.ExportGraphSignature:
    signature = program.graph_signature
    results = module.graph.output_node().args[0]
    inputs = [
        theirs.InputSpec(
            theirs.InputKind[spec.kind.name],
            _convert_named(spec.arg, nodes),
            spec.target and paths.of_state(spec.target),
            spec.persistent,
        )
        for spec in signature.input_specs
    ]
    outputs = [
        theirs.OutputSpec(
            theirs.OutputKind[spec.kind.name],
            _convert_argument(spec.arg, value),
            _find_mutation_target(spec, paths),
        )
        for spec, value in zip(signature.output_specs, results, strict=True)
    ]
    return theirs.ExportGraphSignature(inputs, outputs)


def _find_mutation_target(spec: ours.OutputSpec, paths: _Paths) -> str | None:
    """What an output is written to: an input of the graph, or state."""
    is_input = spec.target is None or spec.kind is ours.OutputKind.USER_INPUT_MUTATION
    return spec.target if is_input else paths.of_state(spec.target or "")


def _convert_named(argument: ours.Argument, nodes: dict[str, Node]) -> Argument:
    if isinstance(argument, ours.ConstantArgument):
        return _convert_argument(argument, argument.value)
    return _convert_argument(argument, nodes[argument.name])


def _convert_argument(argument: ours.Argument, value: object) -> Argument:
    """What stands in torch's signature for a node, or for a constant."""
    if not isinstance(value, Node):
        if not isinstance(value, (int, float, bool, str, type(None))):
            raise UnsupportedError(
                f"torch.export has no inputs and outputs that are a {type(value).__name__}: {value}"
            )
        return theirs.ConstantArgument(argument.name, value)
    kind = _SYMBOLIC_ARGUMENTS.get(python_type(get_val(value)), theirs.TensorArgument)
    return kind(value.name)


def _convert_calls(
    program: ExportedProgram, nodes: dict[str, Node], paths: _Paths
) -> list[ModuleCallEntry]:
    """The program itself first, then its modules; of some the signature was kept."""
    spec = program.call_spec
    names = make_unique_identifiers(program.argument_names)
    top = ModuleCallSignature([], [], spec.in_spec, spec.out_spec, names)
    found = [ModuleCallEntry("", top)]
    for call in program.module_call_graph:
        kept = call.signature
        if call.fqn:
            found.append(
                ModuleCallEntry(
                    paths.of_module(call.fqn),
                    kept
                    and ModuleCallSignature(
                        [_convert_named(a, nodes) for a in kept.inputs],
                        [_convert_named(a, nodes) for a in kept.outputs],
                        kept.in_spec,
                        kept.out_spec,
                        list(kept.argument_names) or None,
                    ),
                )
            )
    return found


# Emits the checks of `program/bounds.py` as nodes: torch's programs call operators alone.

Make = Callable[..., Any]
"""Makes a node that calls a function."""


def insert_bounds_assertions(graph: Graph, node: Node) -> None:
    """Have a call that has just been written checked before it is made."""
    check = bounds.CHECKS[node.target]
    args = bounds.bind_arguments(node.target, node.args, node.kwargs)

    def make(function: Any, *args: Argument) -> Any:
        made = graph.call_function(function, args)
        values = [get_val(a) if isinstance(a, Node) else a for a in args]
        made.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
        set_val(made, function(*values))
        return made

    with graph.inserting_before(node):
        try:
            for condition in _CONDITIONS[check](make, *args):
                made = graph.call_function(aten._assert_scalar.default, (condition, _MESSAGE))
                set_val(made, None, condition.meta)
        except (IndexError, TypeError) as error:
            raise UnsupportedError(
                f"{node.name} has arguments that {node.target} cannot take: {error}"
            ) from error


_MESSAGE = "an operator of the program has arguments that it cannot take"


def _emit_size(make: Make, x: object, dim: int) -> Argument:
    return make(aten.sym_size.int, x, dim)


def _fft(make: Make, x: object, dims: Argument, *_: object) -> Iterator[Argument]:
    if len(set(dims)) < len(dims):
        raise IndexError("a dim is given twice")
    for dim in dims:
        yield make(operator.ge, _emit_size(make, x, dim), 0)


def _fft_to_real(
    make: Make, x: object, dims: Argument, _: object, count: object
) -> Iterator[Argument]:
    yield from _fft(make, x, dims)
    needed = make(operator.add, make(operator.floordiv, count, 2), 1)
    yield make(operator.ge, _emit_size(make, x, dims[-1]), needed)
    yield make(operator.ge, count, 1)


def _batch_norm(make: Make, x: object, *numbers: object) -> Iterator[Argument]:
    channels = _emit_size(make, x, 1)
    for t in numbers[:4]:
        if isinstance(t, Node):
            yield make(operator.eq, _emit_size(make, t, 0), channels)


def _norm(make: Make, x: object, weight: object, bias: object, *_: object) -> Iterator[Argument]:
    return _batch_norm(make, x, weight, bias)


def _resize(make: Make, x: object, sizes: Argument, _: object, *scales: Any) -> Iterator[Argument]:
    for i, (out, scale) in enumerate(zip(sizes, scales, strict=False)):
        if scale is not None:
            most = make(operator.add, make(operator.mul, _emit_size(make, x, 2 + i), scale), 1)
            yield make(operator.le, out, most)


def _weight_norm(make: Make, v: Any, g: Any, dim: Argument) -> Iterator[Argument]:
    yield make(operator.eq, make(aten.sym_numel.default, g), _emit_size(make, v, dim))


def _attention(
    make: Make, query: object, key: object, value: object, *_: object
) -> Iterator[Argument]:
    yield make(operator.eq, _emit_size(make, key, -2), _emit_size(make, value, -2))


def _lstm(
    make: Make,
    x: object,
    hx: Any,
    params: Any,
    biases: object,
    layers: Any,
    dropout: object,
    train: object,
    both: object,
    batch_first: object,
) -> Iterator[Argument]:
    """The sizes of weights are those of tensors of the program, and the others are compared."""
    directions = 2 if both else 1
    hidden, cells = (_emit_size(make, t, -1) for t in hx)
    is_projected = get_val(hx[0]).shape[-1] != get_val(hx[1]).shape[-1]
    kinds = 2 + 2 * bool(biases) + is_projected
    if len(params) != kinds * layers * directions:
        raise IndexError(f"{layers} layers with {len(params)} weights")
    gates = make(operator.mul, cells, 4)
    yield make(operator.ne if is_projected else operator.eq, hidden, cells)
    for t in hx:
        yield make(operator.eq, _emit_size(make, t, 0), layers * directions)
    for i in range(layers * directions):
        inner = make(operator.mul, hidden, directions)
        width = _emit_size(make, x, -1) if i < directions else inner
        wanted = [(gates, width), (gates, hidden), *([(gates,), (gates,)] if biases else [])]
        wanted += [(hidden, cells)] if is_projected else []
        for t, sizes in zip(params[i * kinds : (i + 1) * kinds], wanted, strict=True):
            for dim, size in enumerate(sizes):
                yield make(operator.eq, _emit_size(make, t, dim), size)


_CONDITIONS: dict[bounds.Check, Callable[..., Iterator[Any]]] = {
    bounds.check_fft: _fft,
    bounds.check_fft_to_real: _fft_to_real,
    bounds.check_batch_norm: _batch_norm,
    bounds.check_norm: _norm,
    bounds.check_resize: _resize,
    bounds.check_weight_norm: _weight_norm,
    bounds.check_attention: _attention,
    bounds.check_lstm: _lstm,
}
