"""Builds the callable module: unlifts state, checks inputs, writes mutations back."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.compat.operators import aten
from graphport.compat.torch import LazyGraphModule, PyTreeCodeGen, PyTreeInfo, pytree
from graphport.errors import NoDataError
from graphport.ops.effects import clone_running_statistics, find_base, find_mutated_inputs
from graphport.program.bounds import insert_bounds_checks
from graphport.program.call_checks import InputChecks
from graphport.program.codegen import (
    CONSTANTS,
    AttributePaths,
    Unpacking,
    describe_difference,
    emit_leaves,
    emit_literal,
    fit_structure,
    is_identifier,
    make_unique_identifiers,
)
from graphport.program.control import copy_subgraph, use_python_kernels
from graphport.program.input_checks import variable_name
from graphport.program.signature import GraphSignature, InputKind, OutputKind
from graphport.tensors.concrete import storage_key
from graphport.tensors.lazy import WeightlessTensor, lacks_data
from graphport.types import PyTree

if TYPE_CHECKING:
    from graphport.program.exported import ExportedProgram


_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
_MUTATIONS = {
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
}


class ProgramModule(LazyGraphModule):
    """A GraphModule whose Python code is generated when somebody asks for `forward`.

    torch's own generates it in the first call, which torch.compile cannot trace.
    """

    @property
    def _lazy_forward(self) -> Callable[..., Any]:
        self.real_recompile()
        return self.forward

    forward = _lazy_forward


def make_graph_module(root: nn.Module, graph: Graph) -> GraphModule:
    return ProgramModule(root, graph, "GraphModule")


class UserSignature(PyTreeCodeGen):
    """Generates `forward` with the user's own arguments, flattened inside."""

    def __deepcopy__(self, memo: dict[int, object]) -> UserSignature:
        return copy.copy(self)  # structures never change

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        names = self.pytree_info.orig_args
        args_spec, kwargs_spec = self.pytree_info.in_spec.children()
        children = [*args_spec.children(), *kwargs_spec.children()]
        pairs = zip(children, names, strict=True)
        leaves = [leaf for spec, name in pairs for leaf in emit_leaves(spec, name)]
        targets = [v.split(":")[0].split("#")[0] for v in free_vars]
        if targets == leaves:
            return ""
        return f"\n    {', '.join(targets)}, = ({', '.join(leaves)},)"

    def generate_output(self, output_args: Any, **options: Any) -> str:
        show = options.get("repr_fn") or repr
        text = emit_literal(self.pytree_info.out_spec, map(show, output_args))
        # A text of several lines with comments is for reading, and pytree shows what is returned.
        if text is None or options.get("descs") is not None:
            return super().generate_output(output_args, **options)
        return f"return {text}"


def make_user_signature(program: ExportedProgram) -> inspect.Signature:
    """The signature as the user knows it; names that no parameter can have are keywords."""
    kinds, names = inspect.Parameter, program.argument_names
    by_position = names[: program.positional]
    plain = [n for n in names if is_identifier(n)]
    parameters = [
        kinds(n, kinds.POSITIONAL_OR_KEYWORD if n in by_position else kinds.KEYWORD_ONLY)
        for n in plain
    ]
    if len(plain) < len(names):
        parameters.append(kinds("kwargs", kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


def unlift_program(program: ExportedProgram, places: Callable[[str], str] = str) -> Graph:
    """The program as a graph of the user's inputs: state are attributes, and writes are written."""
    signature = program.graph_signature
    graph, getters = _unlift_graph(program.graph, signature, places)
    _write_back(graph, signature, getters)
    for getter in getters.values():
        if getter.op == "get_attr" and not getter.users:
            graph.erase_node(getter)
    return graph


def build_module(program: ExportedProgram, *, check_guards: bool) -> GraphModule:
    places = find_attribute_paths(program)
    graph = unlift_program(program, places)
    clone_running_statistics(graph)
    if program.from_file:
        insert_bounds_checks(graph)
    use_python_kernels(graph)
    info = PyTreeInfo(
        make_unique_identifiers(program.argument_names),
        program.call_spec.in_spec,
        program.call_spec.out_spec,
    )
    graph.set_codegen(UserSignature(info))

    root = nn.Module()
    _attach_state(root, program, places)
    for name, inner in program.graph_module.named_children():
        root.add_module(name, copy_subgraph(inner, program.from_file))
    module = make_graph_module(root, graph)
    _attach_state(module, program, places)
    # `forward` is generated when it is first needed: until then it does not show its parameters.
    module._graphport_signature = make_user_signature(program)
    kinds = program.graph_signature.inputs_to_lifted_tensor_constants
    setattr(module, CONSTANTS, frozenset(map(places, kinds.values())))
    module._in_spec = program.call_spec.in_spec
    module._out_spec = program.call_spec.out_spec
    module.meta.update(program.graph_module.meta)
    module.register_forward_pre_hook(
        CallGuard(program, check_guards), with_kwargs=True, prepend=True
    )
    require_weights(module)
    module.train = types.MethodType(refuse_mode_change("train"), module)
    module.eval = types.MethodType(refuse_mode_change("eval"), module)
    return module


def find_attribute_paths(program: ExportedProgram) -> AttributePaths:
    """Where the module of a program has its state."""
    return AttributePaths((*program.state_dict, *program.constants))


def _unlift_graph(
    lifted: Graph, signature: GraphSignature, places: Callable[[str], str]
) -> tuple[Graph, dict[str, Node]]:
    """A copy of the graph in which inputs for state are attributes; nodes by name of the input."""
    graph = Graph()
    specs = {s.arg.name: s for s in signature.input_specs}
    mapping: dict[Node, Node] = {}
    getters: dict[str, Node] = {}
    for node in lifted.nodes:
        spec = specs.get(node.name) if node.op == "placeholder" else None
        if spec is not None and spec.kind in _STATE:
            assert spec.target is not None
            target = places(spec.target)
            new = graph.create_node("get_attr", target, (), {}, name=node.name)
            new.meta = dict(node.meta)
        else:
            new = graph.node_copy(node, lambda n: mapping[n])
            if node.op == "placeholder":
                new.name = node.name
        mapping[node] = new
        if spec is not None:
            getters[node.name] = new
    return graph, getters


def _write_back(graph: Graph, signature: GraphSignature, getters: dict[str, Node]) -> None:
    """Replace outputs that stand for mutations by copies into what they mutate."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    by_target = {s.target: s.arg.name for s in signature.input_specs if s.target is not None}
    pairs = list(zip(output.args[0], signature.output_specs, strict=True))
    names = [
        s.target if s.kind is OutputKind.USER_INPUT_MUTATION else by_target.get(s.target or "")
        for _, s in pairs
    ]
    targets = [
        getters[n] if s.kind in _MUTATIONS and n is not None else None
        for n, (_, s) in zip(names, pairs, strict=True)
    ]
    with graph.inserting_before(output):
        kept = _clone_overwritten(graph, [value for value, _ in pairs], targets)
        results: list[Any] = []
        copies: dict[Node, Node] = {}
        for value, target, (_, spec) in zip(kept, targets, pairs, strict=True):
            if target is None:
                results.append(value)
                continue
            if spec.kind is OutputKind.PARAMETER_MUTATION:
                # The program writes to it as the user did, without a gradient.
                meta = dict(target.meta)
                target = graph.call_function(aten.detach.default, (target,))
                target.meta = meta
            made = graph.call_function(aten.copy_.default, (target, value))
            made.meta = dict(value.meta)
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                copies[value] = made
    # A mutated input that is also returned is the caller's own tensor.
    output.args = (tuple(copies.get(r, r) if isinstance(r, Node) else r for r in results),)


def _clone_overwritten(graph: Graph, values: list[object], targets: list[Node | None]) -> list[Any]:
    """The values, cloned where they alias something that is about to be overwritten."""
    overwritten = {t for t in targets if t is not None}
    apart: dict[Any, Node] = {}
    for value in values:
        if isinstance(value, Node) and value not in apart and find_base(value) in overwritten:
            apart[value] = graph.call_function(aten.clone.default, (value,))
            apart[value].meta = dict(value.meta)
    return [apart.get(v, v) if isinstance(v, Node) else v for v in values]


def _attach_state(module: nn.Module, program: ExportedProgram, places: AttributePaths) -> None:
    for name, t, persistent in collect_state(program):
        _assign_state(module, places(name), t, persistent)


def collect_state(program: ExportedProgram) -> Iterator[tuple[str, Any, bool]]:
    """State for a module to have, by name, and whether it is saved.

    Parameters are shared; buffers that the program mutates are copies of the module's own.
    """
    signature = program.graph_signature
    in_place = program.dialect == "TRAINING"
    names: set[str | None]
    if in_place:
        by_input = {s.arg.name: s.target for s in signature.input_specs}
        names = {by_input[n] for n in find_mutated_inputs(program.graph_module) if n in by_input}
    else:
        names = {s.target for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION}
    mutated = [program.tensor(n) for n in names if n is not None]
    same, memory = {id(t) for t in mutated}, {storage_key(t) for t in mutated if in_place} - {None}
    persistent = {s.target: s.persistent for s in signature.input_specs}
    copies: dict[int, torch.Tensor] = {}
    memo: dict[int, Any] = {}
    for name, t in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(t, torch.Tensor) and not isinstance(t, nn.Parameter):
            if in_place and storage_key(t) in memory:
                # Copied together: what is written to one is seen by all that share its memory.
                t = copies.setdefault(id(t), copy.deepcopy(t.detach(), memo))
            elif id(t) in same:
                t = copies.setdefault(id(t), t.detach().clone())
        in_state = name in program.state_dict
        yield name, t, in_state and persistent.get(name, True) is not False


def _assign_state(module: nn.Module, name: str, t: Any, persistent: bool) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    # What the GraphModule copied from its root is replaced: it forgets what is persistent.
    for store in (module._parameters, module._buffers, module.__dict__):
        store.pop(last, None)
    register_state(module, last, t, persistent)


def register_state(module: nn.Module, name: str, t: torch.Tensor, persistent: bool) -> None:
    """Make a tensor a parameter or buffer of the module, by what it is; or an object its own."""
    if isinstance(t, nn.Parameter):
        module.register_parameter(name, t)
    elif isinstance(t, torch.Tensor):
        module.register_buffer(name, t, persistent=persistent)
    else:
        setattr(module, name, t)


def make_call_checks(program: ExportedProgram) -> InputChecks:
    """The checks of a program, and of the memory that it writes to if that is its caller's.

    A program in training form writes as eager does, whatever shares the memory.
    """
    checks = program.checks
    if checks.written is not None or program.dialect == "TRAINING":
        return checks
    signature = program.graph_signature
    names = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    written = [
        names.index(s.target)
        for s in signature.output_specs
        if s.kind is OutputKind.USER_INPUT_MUTATION and s.target in names
    ]
    tensors = [i for i, shape in enumerate(checks.inputs) if shape.sizes is not None]
    others = {i: [j for j in tensors if j != i] for i in written if i in tensors}
    return replace(checks, written=others)


class CallGuard:
    """Checks the structure and sizes of the arguments before `forward` sees them."""

    def __init__(self, program: ExportedProgram, check_guards: bool) -> None:
        self.spec = program.call_spec.in_spec
        self.names = program.argument_names
        self.positional = program.positional
        self.checks = make_call_checks(program) if check_guards else None
        safe = make_unique_identifiers(self.names)
        self.renamed = {n: s for n, s in zip(self.names, safe, strict=True) if n != s}
        self.original = {s: n for n, s in self.renamed.items()}
        self.accepts = self._compile()

    def __deepcopy__(self, memo: dict[int, object]) -> CallGuard:
        return self  # nothing in it changes

    def __getstate__(self) -> dict[str, object]:
        """Without what is compiled."""
        return {k: v for k, v in vars(self).items() if k != "accepts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.accepts = self._compile()

    def _compile(self) -> Callable[[Any, Any], bool | None]:
        """Whether arguments pass; None where they are structured differently.

        Not on first use: torch.compile, which may be the first, takes functions that are there.
        """
        leaves = [variable_name(i) for i in range(self.spec.num_leaves)]
        unpacking = Unpacking(leaves, check_leaves=self.checks is None)
        for spec, source in zip(self.spec.children(), ("args", "kwargs"), strict=True):
            unpacking.take(spec, source)
        checks = self.checks or InputChecks((), {}, ())
        accepts: Callable[[Any, Any], bool | None] = checks.compiled(
            "args, kwargs", unpacking.lines, **unpacking.names
        )
        return accepts

    def __call__(
        self, module: nn.Module, args: PyTree, kwargs: PyTree
    ) -> tuple[PyTree, PyTree] | None:
        if self.renamed:
            # A lazy GraphModule starts its first call over, with what this has returned.
            kwargs = {self.original.get(k, k): v for k, v in kwargs.items()}
        elif self.accepts(args, kwargs):
            return None
        args, kwargs = self.arranged(args, kwargs)
        if not self.accepts(args, kwargs):
            self.explain(args, kwargs)
        if self.renamed:
            kwargs = {self.renamed.get(k, k): v for k, v in kwargs.items()}
        return args, kwargs

    def flat(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> list[Any]:
        """Arguments that have passed, as the leaves that the program takes."""
        if not self.accepts(args, kwargs):
            args, kwargs = self.arranged(args, kwargs)
            if not self.accepts(args, kwargs):
                self.explain(args, kwargs)
        return pytree.tree_leaves((args, kwargs))

    def explain(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Raise what is wrong with arguments that were not accepted."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.spec:
            raise ValueError(
                "Trying to flatten user inputs with exported input tree spec:\n"
                f"{self.spec}\nbut actually got inputs with tree spec of:\n{spec}\n"
                f"{self.difference(args, kwargs)}"
            )
        if self.checks is not None:
            self.checks.explain(leaves)

    def difference(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
        """Where arguments are structured otherwise than the program takes them, in words."""
        found = pytree.tree_structure((args, kwargs))
        pairs = zip(("*args", "kwargs"), self.spec.children(), found.children(), strict=True)
        other = ((path, want, got) for path, want, got in pairs if want != got)
        return next((describe_difference(want, got, path) for path, want, got in other), None)

    def arranged(
        self, args: PyTree, kwargs: dict[str, object]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as positional or keyword ones the way the program was captured."""
        args_spec, kwargs_spec = self.spec.children()
        count = args_spec.num_children
        named = dict(zip(kwargs_spec.context, self.names[count:], strict=True))
        if len(args) < count and kwargs:
            missing = self.names[len(args) : count]
            if all(n in kwargs for n in missing):
                args = (*args, *(kwargs[n] for n in missing))
                kwargs = {k: v for k, v in kwargs.items() if k not in missing}
        if len(args) > count:
            extra = list(named)[: len(args) - count]
            most = len(self.names) if self.positional is None else self.positional
            if len(args) <= most and not kwargs.keys() & extra:
                kwargs = {**dict(zip(extra, args[count:], strict=True)), **kwargs}
                args = args[:count]
        return fit_structure(tuple(args), args_spec), fit_structure(kwargs, kwargs_spec)


def refuse_mode_change(what: str) -> Callable[..., object]:
    def refuse(self: nn.Module, mode: bool = True) -> nn.Module:
        raise NotImplementedError(
            f"Calling {what}() is not supported yet. The program was captured in the mode that the "
            "model was in: dropout and batch norm are part of the graph. Export it again after "
            f"model.{what}()."
        )

    return refuse


# Weights without data: a program with them can be built and printed, and says why not to run.

_LOAD_ARGUMENTS = {
    True: '{k: v.read() for k, v in module.state_dict().items() if hasattr(v, "read")}, '
    "strict=False",
    False: "weights",
}


def require_weights(module: nn.Module) -> None:
    """Let a module without weights refuse inputs that have data, until it is given weights."""
    if _find_missing(module):
        module.register_forward_pre_hook(_refuse_data, with_kwargs=True, prepend=True)


def _refuse_data(module: nn.Module, args: object, kwargs: object) -> None:
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if tensors and all(map(lacks_data, tensors)):
        return  # sizes in, sizes out; capture is one such case
    missing = _find_missing(module)
    if not missing:
        return
    names = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
    raise NoDataError(
        f"the program has no weights: {len(missing)} of its parameters, buffers and constants were "
        f"captured without data ({names})",
        fix=_suggest_fixes(module, missing),
    )


def _suggest_fixes(module: nn.Module, missing: dict[str, torch.Tensor]) -> list[str]:
    fixes = []
    if missing.keys() & module.state_dict().keys():
        known = all(isinstance(t, WeightlessTensor) and t.has_data for t in missing.values())
        fixes.append(
            f"module = ep.module(); module.load_state_dict({_LOAD_ARGUMENTS[known]}, assign=True)"
        )
    others = sorted(missing.keys() - module.state_dict().keys())
    if others:
        fixes.append(
            f"{others[0]} is in no state_dict: build the model under gp.fake_mode(), which "
            "computes such tensors, or give it data with module.get_buffer(...)"
        )
    return fixes


def _find_missing(module: nn.Module) -> dict[str, torch.Tensor]:
    state = (*module.named_parameters(), *module.named_buffers())
    return {name: t for name, t in state if lacks_data(t)}
