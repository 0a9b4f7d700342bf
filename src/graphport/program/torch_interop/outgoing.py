"""A program of ours as a `torch.export.ExportedProgram`."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import export, nn
from torch._export.verifier import SpecViolationError, TrainingIRVerifier, Verifier
from torch.export import graph_signature as theirs
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from graphport.errors import UnsupportedError
from graphport.program import signature as ours
from graphport.program.attributes import Places
from graphport.program.bounds import CHECKS
from graphport.program.exported import ExportedProgram
from graphport.program.identifiers import is_quotable, unique_identifiers
from graphport.program.module import own_state
from graphport.program.torch_interop.assertions import assert_bounds
from graphport.program.torch_interop.conventions import torch_stacks
from graphport.program.torch_interop.environment import Environment
from graphport.symbolic import Expr, bitand, bitor
from graphport.symbolic.bridge import from_torch

aten = torch.ops.aten

_VERIFIERS = {"ATEN": Verifier, "TRAINING": TrainingIRVerifier}
_METADATA = ("stack_trace", "torch_fn", "source_fn_stack", "custom")
_WRITES = {
    ours.OutputKind.BUFFER_MUTATION, ours.OutputKind.PARAMETER_MUTATION,
    ours.OutputKind.USER_INPUT_MUTATION,
}  # fmt: skip
_SYMBOLIC_ARGUMENTS = {
    torch.SymInt: theirs.SymIntArgument, torch.SymFloat: theirs.SymFloatArgument,
    torch.SymBool: theirs.SymBoolArgument, int: theirs.SymIntArgument,
    float: theirs.SymFloatArgument, bool: theirs.SymBoolArgument,
}  # fmt: skip
_FURTHER_CALL = re.compile(r"@\d+$")


def convert(program: ExportedProgram) -> export.ExportedProgram:
    _check_texts(program)
    environment = Environment(program)
    paths = _Paths(program)
    graph_module = _Conversion(program, environment, paths).module(
        program.graph_module, is_top=True
    )
    _settle_outputs(graph_module.graph, program)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    state, constants = _state(program, paths)
    try:
        return export.ExportedProgram(
            root=graph_module,
            graph=graph_module.graph,
            graph_signature=_signature(program, graph_module, nodes, paths),
            state_dict=state,
            range_constraints=environment.range_constraints(),
            module_call_graph=_calls(program, nodes, paths),
            example_inputs=program.example_inputs,
            constants=constants,
            verifiers=[_VERIFIERS[program.dialect]],
        )
    except SpecViolationError as error:
        raise UnsupportedError(f"torch.export does not allow this program: {error}") from error


def _check_texts(program: ExportedProgram) -> None:
    """Refuse what torch would write into Python code as it is: keys of inputs, inputs of text."""
    keywords = program.call_spec.in_spec.child(1).context
    said = [n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")]
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
        self.of_state = Places({*program.state_dict, *program.constants, *modules})

    def of_module(self, key: str) -> str:
        """Of a module, or of a further call of it: `encoder@1`."""
        path = _FURTHER_CALL.sub("", key)
        return self.of_state(path) + key[len(path) :]


class _Conversion:
    """Copies graphs; what describes a node is told in torch's terms."""

    def __init__(self, program: ExportedProgram, environment: Environment, paths: _Paths) -> None:
        self.environment = environment
        self.checked = program.from_file
        stacks = (n.meta.get("nn_module_stack") or {} for n in program.graph.nodes)
        first = next((stack for stack in stacks if stack), None)
        root = next(iter(first.values())) if first else ("", "torch.nn.modules.module.Module")
        self.stack = torch_stacks(paths.of_module, root)

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
                assert_bounds(graph, new)
        return GraphModule(root, graph)

    def _xor(self, graph: Graph, node: Node, args: tuple[Any, ...]) -> Node:
        """torch's programs have no a ^ b: it is (a | b) - (a & b)."""
        values = [from_torch(a.meta["val"]) if isinstance(a, Node) else a for a in node.args]
        parts = []
        for function, meaning in ((operator.or_, bitor), (operator.and_, bitand)):
            part = graph.call_function(function, args)
            part.meta = {
                **self._metadata(node), "val": self.environment.number(meaning(*values))
            }  # fmt: skip
            parts.append(part)
        return graph.call_function(operator.sub, tuple(parts))

    def _metadata(self, node: Node, *, is_input: bool = False) -> dict[str, Any]:
        meta = {key: node.meta[key] for key in _METADATA if key in node.meta}
        if node.op in ("call_function", "get_attr"):
            meta["nn_module_stack"] = self.stack(node.meta.get("nn_module_stack"))
        if "val" in node.meta:
            # The sizes of inputs are where symbols are defined.
            meta["val"] = self.environment.value(node.meta["val"], as_told=is_input)
            bindings = self.environment.bindings(meta["val"])
            if bindings and node.op == "call_function":
                meta["unbacked_bindings"] = bindings
        return meta


def _settle_outputs(graph: Graph, program: ExportedProgram) -> None:
    """torch tells what a program writes by the name of a node: each write needs one of its own.

    A number that has turned out to be fixed is no node. That is for our scope to say: torch takes
    sizes to be positive, and fixes more.
    """
    told = program.graph.output_node().args[0]
    output = graph.output_node()
    results = list(output.args[0])
    seen: set[Node] = set()
    for i, spec in enumerate(program.graph_signature.output_specs):
        value = results[i]
        if not isinstance(value, Node):
            continue
        if isinstance(spec.arg, ours.SymbolicArgument):
            number = program.scope.simplify(from_torch(told[i].meta["val"]))
            results[i] = value if isinstance(number, Expr) else number
        elif spec.kind in _WRITES and value in seen:
            with graph.inserting_before(output):
                results[i] = graph.call_function(aten.clone.default, (value,))
                results[i].meta = {k: v for k, v in value.meta.items() if k != "unbacked_bindings"}
        elif spec.kind in _WRITES:
            seen.add(value)
    output.args = (tuple(results),)


def _state(program: ExportedProgram, paths: _Paths) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict and the constants. What the program writes to is copied: torch's modules write
    to the tensors of the program, and ours are the user's own.
    """
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, t, _ in own_state(program):
        (state if name in program.state_dict else constants)[paths.of_state(name)] = t
    return state, constants


# The signature


def _signature(
    program: ExportedProgram,
    module: GraphModule,
    nodes: dict[str, Node],
    paths: _Paths,
) -> theirs.ExportGraphSignature:
    signature = program.graph_signature
    results = module.graph.output_node().args[0]
    inputs = [
        theirs.InputSpec(
            theirs.InputKind[spec.kind.name],
            _named(spec.arg, nodes),
            spec.target and paths.of_state(spec.target),
            spec.persistent,
        )
        for spec in signature.input_specs
    ]
    outputs = [
        theirs.OutputSpec(
            theirs.OutputKind[spec.kind.name],
            _argument(spec.arg, value),
            _written(spec, paths),
        )
        for spec, value in zip(signature.output_specs, results, strict=True)
    ]
    return theirs.ExportGraphSignature(inputs, outputs)


def _written(spec: ours.OutputSpec, paths: _Paths) -> str | None:
    """What an output is written to: an input of the graph, or state."""
    is_input = spec.target is None or spec.kind is ours.OutputKind.USER_INPUT_MUTATION
    return spec.target if is_input else paths.of_state(spec.target or "")


def _named(argument: ours.Argument, nodes: dict[str, Node]) -> Any:
    if isinstance(argument, ours.ConstantArgument):
        return _argument(argument, argument.value)
    return _argument(argument, nodes[argument.name])


def _argument(argument: ours.Argument, value: Any) -> Any:
    """What stands in torch's signature for a node, or for a constant."""
    if not isinstance(value, Node):
        if not isinstance(value, (int, float, bool, str, type(None))):
            raise UnsupportedError(
                f"torch.export has no inputs and outputs that are a {type(value).__name__}: {value}"
            )
        return theirs.ConstantArgument(argument.name, value)
    kind = _SYMBOLIC_ARGUMENTS.get(type(value.meta["val"]), theirs.TensorArgument)
    return kind(value.name)


def _calls(
    program: ExportedProgram, nodes: dict[str, Node], paths: _Paths
) -> list[ModuleCallEntry]:
    """The program itself first, then its modules; of some the signature was kept."""
    spec = program.call_spec
    names = unique_identifiers(program.argument_names)
    top = ModuleCallSignature([], [], spec.in_spec, spec.out_spec, names)
    found = [ModuleCallEntry("", top)]
    for call in program.module_call_graph:
        kept = call.signature
        if call.fqn:
            found.append(ModuleCallEntry(paths.of_module(call.fqn), kept and ModuleCallSignature(
                [_named(a, nodes) for a in kept.inputs], [_named(a, nodes) for a in kept.outputs],
                kept.in_spec, kept.out_spec, list(kept.argument_names) or None,
            )))  # fmt: skip
    return found
