"""`gp.export`: one run of the user's code on abstract tensors becomes an `ExportedProgram`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from graphport import source
from graphport.arguments import FLAG, NAMES, NONE, TABLE, check_arguments, one_of
from graphport.capture.control_flow import autograd_functions, cond, derivatives, loops, transforms  # noqa: F401  register their operators
from graphport.capture.handlers import (  # noqa: F401  register their operators
    attention,
    collectives,
    composites,
    custom,
    data_dependent,
    functions,
    operators,
    packed,
    quantization,
    sparse,
)
from graphport.capture.numbers.substitution import NumberCalls
from graphport.capture.rewrite import decomposition  # noqa: F401
from graphport.capture.soundness import refusals, side_effects
from graphport.capture.soundness.constraints import (
    Answers,
    Constraints,
    drop_irrelevant_guards,
    solve_constraints,
    substitute_symbols,
)
from graphport.capture.soundness.patches import MODE_FLAGS, NO_GC, RECURSION_LIMIT, enter_capture
from graphport.capture.soundness.sharding import unshard
from graphport.capture.soundness.snapshot import Snapshot, list_holders
from graphport.capture.spec.inputs import (
    CONSTANT_TYPES,
    Inputs,
    Leaf,
    bind_inputs,
    to_plain_constant,
    unwrap_compiled,
)
from graphport.capture.spec.shapes import AdditionalInputs
from graphport.capture.spec.symbols import Spec
from graphport.capture.trace import registries
from graphport.capture.trace.function_mode import FunctionMode
from graphport.capture.trace.modules import ModuleTracker
from graphport.capture.trace.recorder import Namespace, Recorder
from graphport.capture.trace.scalars import ConcreteRun
from graphport.capture.trace.signatures import (
    CallSignatures,
    build_graph_signature,
    collect_mutations,
)
from graphport.capture.trace.state import (
    State,
    describe_tensor,
    has_storage_offset,
    split_state,
    storage_elements,
)
from graphport.capture.trace.state_values import StateValues
from graphport.capture.trace.subgraph import (
    build_graph_module,
    eliminate_dead_code,
    list_frame_graphs,
    list_module_graphs,
)
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.training import (
    TrainingTracer,
    detach_no_grad_results,
    wrap_grad_regions,
)
from graphport.capture.trace.values import Storage, Value, note_overlap
from graphport.compat.operators import aten
from graphport.compat.schemas import warn_if_newer
from graphport.compat.torch import OpOverload, disable_current_modes, pytree
from graphport.errors import (
    ConstraintViolationError,
    ExportError,
    ForwardError,
    InputError,
    ShapeError,
    UserError,
)
from graphport.huggingface import cache_shapes, caches
from graphport.ops import Abstract
from graphport.process import raise_interrupt, restore_on_exit, undo_on_exit
from graphport.program import (
    CallSpec,
    ExportedProgram,
    InputChecks,
    InputShape,
    OutputSpec,
    TensorArgument,
    find_base,
)
from graphport.symbolic import Expr, Range, Scope
from graphport.symbolic.bridge import SYMBOLIC, from_torch, to_torch
from graphport.tensors.abstract import (
    AbstractTensor,
    describe,
    is_dense,
    make_abstract_tensor,
    permute_strides,
    set_val,
)
from graphport.tensors.concrete import find_device, sizes_of, storage_key, warn_of_torch_function
from graphport.tensors.subclasses import has_own_dispatch, split_subclasses
from graphport.types import PyTree


def run_stages(capture: _Capture) -> ExportedProgram:
    """The stages of a capture, in their order."""
    try:
        leaves = capture.open_inputs()
        capture.lift_state()
        outputs, out_spec = capture.trace(leaves)
        results = capture.record_outputs(outputs)
        outcome = capture.solve()
        return capture.assemble(results, out_spec, outcome)
    finally:
        capture.scope.forget_program()


@check_arguments(
    strict=FLAG,
    training=FLAG,
    decompose=one_of("core") | TABLE | NONE,
    preserve_module_call_signature=NAMES,
    guards=one_of("error", "runtime_assert"),
    prefer_deferred_runtime_asserts_over_guards=FLAG,
)
def export(
    mod: nn.Module | Callable[..., Any],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree] | None = None,
    *,
    dynamic_shapes: PyTree = None,
    strict: bool = False,
    training: bool = False,
    decompose: str | Mapping[OpOverload, Callable[..., Any]] | None = None,
    preserve_module_call_signature: tuple[str, ...] = (),
    guards: str = "error",
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """Capture a module or function as a program with symbolic sizes.

    `strict` also rejects what a single trace cannot prove to be sound: tensors kept beyond the
    call, Python state that the program changes and depends on, decisions that differ from one
    capture to the next. `training` keeps mutation, dropout and batch norm as they are written.
    `decompose` gives the program over fewer operators: "core" for core ATen, or what a table leads
    to. Modules that `preserve_module_call_signature` names by path are called as the original ones
    by `gp.unflatten`.

    >>> import torch, graphport as gp
    >>> model = torch.nn.Linear(4, 2)
    >>> batch = gp.Dim("batch", max=64)
    >>> ep = gp.export(model, (torch.randn(3, 4),), dynamic_shapes={"input": {0: batch}})
    >>> ep.module()(torch.randn(7, 4)).shape
    torch.Size([7, 2])
    """
    kept = preserve_module_call_signature
    if prefer_deferred_runtime_asserts_over_guards:
        guards = "runtime_assert"
    options = Options(guards, strict=strict, training=training, preserve_module_call_signature=kept)
    program, _ = capture(mod, args, kwargs, dynamic_shapes, options)
    if isinstance(dynamic_shapes, AdditionalInputs):
        dynamic_shapes.verify(program)
    if decompose is None:
        return program
    return program.run_decompositions(None if isinstance(decompose, str) else decompose)


@dataclass(frozen=True)
class Options:
    """How to capture."""

    guards: str = "error"
    draft: bool = False
    strict: bool = False
    training: bool = False
    is_recapture: bool = False
    """A capture only to be compared with another one: it gives no warnings."""
    preserve_module_call_signature: tuple[str, ...] = ()
    keep_views: bool = False
    """Whether results are views in the graph wherever they are, also after a write."""


@restore_on_exit
def capture(
    mod: Any, args: PyTree, kwargs: PyTree, dynamic_shapes: PyTree, options: Options
) -> tuple[ExportedProgram, list[ExportError]]:
    """The program, and the errors that a draft passed over."""
    warn_if_newer()
    mod = unwrap_compiled(mod)
    try:
        program, passed_over = _capture_program(mod, args, kwargs, dynamic_shapes, options)
        if options.strict:
            _check_recapture(program, mod, dynamic_shapes, options)
    except ExportError:
        raise
    except Exception as error:  # the user's objects are asked for much, and may do anything
        where = source.locate_error(error)
        raise (
            refusals.forward_error(error, where) if where else refusals.internal_error(error)
        ) from error
    return program, passed_over


def _check_recapture(
    program: ExportedProgram, mod: Any, dynamic_shapes: PyTree, options: Options
) -> None:
    """Capture once more, at other sizes: the graph must be the same."""
    builder = getattr(dynamic_shapes, "dynamic_shapes", None)
    spec = builder(mod, *program.example_inputs) if callable(builder) else dynamic_shapes
    again = replace(options, strict=False, is_recapture=True)
    other, _ = _capture_program(mod, *side_effects.make_other_inputs(program), spec, again)
    found = side_effects.find_graph_difference(
        list_module_graphs(program.graph_module), list_module_graphs(other.graph_module)
    )
    if found is not None:
        raise side_effects.recapture_error(found[1], found[0])


def _capture_program(
    mod: Any, args: PyTree, kwargs: PyTree, dynamic_shapes: PyTree, options: Options
) -> tuple[ExportedProgram, list[ExportError]]:
    root = _root_module(mod)
    inputs = bind_inputs(mod, args, kwargs)
    calls = NumberCalls(root, _function_of(mod))
    program = None
    # Modes around the call (torch's FakeTensorMode, gp.fake_mode) are no part of the program.
    with NO_GC, RECURSION_LIMIT, MODE_FLAGS, disable_current_modes(), unshard(root):
        while True:
            # Once more where other code than was expected needs plain numbers.
            silent = replace(options, is_recapture=options.is_recapture or program is not None)
            try:
                with calls:
                    begin = functools.partial(_Capture, mod, root, inputs, dynamic_shapes)
                    program = _capture_with(begin, silent, calls)
            except ExportError as error:
                converted = calls.convert(error)
                if not calls.extend() and not converted:
                    if program is None:
                        raise
                    break
            else:
                if not calls.extend():
                    break
    if not options.is_recapture:
        calls.warn_of_sides()
    return program, program.scope.passed_over


def _capture_with(
    begin: Callable[[Options], _Capture], options: Options, calls: NumberCalls
) -> ExportedProgram:
    """Capture, and again where a guard is irrelevant or an answer in general was wrong."""
    first = begin(options)
    first.scope.on_plain_number = calls.note_callers

    def answered(answers: Answers) -> ExportedProgram:
        other = begin(replace(options, is_recapture=True))
        other.scope.answers = answers
        return run_stages(other)

    try:
        program = run_stages(first)
        if first.refused:
            program = drop_irrelevant_guards(first.refused, answered) or program
        return program
    except ConstraintViolationError as error:
        if calls.has_noted:
            raise
        same = drop_irrelevant_guards(error.questions, answered)
        if same is None:
            raise
        return same
    except (ForwardError, ShapeError):
        if not first.scope.departed:
            raise
    # An operator refused sizes of 0 or 1 in the example, which it was answered they are not.
    second = begin(options)
    second.scope.generic = False
    return run_stages(second)


def _is_tensor(kind: type) -> bool:
    """Whether objects of a class are tensors that capture describes."""
    return issubclass(kind, torch.Tensor) and not has_own_dispatch(kind)


def _function_of(mod: Any) -> PyTree:
    """The function that holds the program's code."""
    while isinstance(mod, functools.partial):
        mod = mod.func
    if isinstance(mod, nn.Module):
        return mod.forward
    return mod if hasattr(mod, "__code__") else getattr(mod, "__call__", mod)  # noqa: B004


def _root_module(mod: Any) -> nn.Module | None:
    """The module whose state the program has."""
    if isinstance(mod, nn.Module):
        registries.require_initialised(mod)
        return mod
    if isinstance(mod, type):
        raise InputError(
            f"got the class {mod.__name__}, not an instance of it",
            where=source.locate_function(vars(mod).get("forward") or vars(mod).get("__call__")),
            fix=f"gp.export({mod.__name__}(...), ...)",
        )
    if not callable(mod):
        raise InputError(
            f"expected an nn.Module or a callable, got {type(mod).__name__}",
            fix="gp.export(model, args) with an nn.Module or a function that takes tensors",
        )
    while isinstance(mod, functools.partial):
        mod = mod.func
    owner = getattr(mod, "__self__", mod)
    return owner if isinstance(owner, nn.Module) else None


class _Capture:
    """One capture, step by step."""

    def __init__(
        self,
        mod: Any,
        root: nn.Module | None,
        inputs: Inputs,
        dynamic_shapes: PyTree,
        options: Options,
    ) -> None:
        self.mod = mod
        self.root = root
        self.inputs = inputs
        self.options = options
        self.dynamic_shapes = dynamic_shapes
        self.scope = Scope()
        self.scope.vocabulary = refusals.collect_variable_names
        self.spec = Spec(inputs, dynamic_shapes, self.scope)
        self.recorder = Recorder(self.scope)
        if root is not None:
            self.recorder.reserved = _reserved_names(root)
        self.names = Namespace()
        self.state = State(root, self.recorder, self.names)
        own = (*registries.named_parameters(root), *registries.named_buffers(root))
        given = (leaf.value for leaf in inputs.leaves)
        self.state.device = find_device((*given, *(t for _, t in own)))
        make = TrainingTracer if options.training else Tracer
        self.tracer = make(self.recorder, self.state)
        self.modules = ModuleTracker(root, self.recorder)
        self.kept = CallSignatures(root, options.preserve_module_call_signature, self.tracer)
        self.modules.signatures = self.kept
        self.modules.before_program = self.tracer.expect_facts
        self.modules.after_program = self.tracer.inherit_checks
        self.modules.call_operator = self.tracer.call
        self.input_nodes: list[Node] = []
        self.tracer.inputs = self.input_nodes
        self.input_values: list[Value | None] = []
        self.memory_of_inputs: dict[Any, list[tuple[Leaf, Value]]] = {}
        self.refused: tuple[str, ...] = ()
        """Guards that make the program refuse a size that the spec allows."""
        if not options.training:  # where graphs write to their state
            values = StateValues(self.recorder, self.state, warns=not options.is_recapture)
            self.tracer.state_values = values
            self.scope.recall = lambda s: values.read(self.recorder.number(s))
        if options.draft:
            self.tracer.example = example = ConcreteRun(self.recorder.graph, self._given)
            self.scope.reveal = lambda s: example.value(self.recorder.number(s))

    def _given(self) -> dict[Node, Any]:
        """What the graph's inputs are in the example."""
        given = {entry.node: entry.tensor for entry in self.state.entries}
        for node, leaf in zip(self.input_nodes, self.inputs.leaves, strict=True):
            given[node] = leaf.value
        for node in self.recorder.graph.find_nodes(op="get_attr"):
            given[node] = self.recorder.frame.submodules[node.target]
        return given

    def lift_state(self) -> None:
        """A graph input for each parameter and buffer of the module."""
        self.state.lift_module()
        self._find_inputs_aliasing_state()

    def trace(self, leaves: list[PyTree]) -> tuple[list[PyTree], pytree.TreeSpec]:
        """Run the program between two looks at the user's objects, which it leaves as they were."""
        snapshot = Snapshot((self.root, *list_holders(self.mod)))
        surroundings = side_effects.GlobalsSnapshot(self.mod, self.root)
        self.modules.on_initialised = snapshot.renew
        with undo_on_exit(snapshot.restore):
            snapshot.watch_seeds()
            outputs, out_spec = self._call(leaves)
            self._find_replaced_buffers(snapshot)
            self._require_unchanged_state()
            self._report_changes(snapshot, surroundings)
        return outputs, out_spec

    def _require_unchanged_state(self) -> None:
        """What Python has read of the state is no value for the next call if it is written to."""
        values = self.tracer.state_values
        error = values and values.find_changed()
        if error and not self.options.draft:
            raise error
        self.scope.passed_over += [error] if error else []

    def record_outputs(self, outputs: list[PyTree]) -> list[PyTree]:
        """The program has returned: what is recorded now has no line of the user's."""
        with self.recorder.override_metadata({"nn_module_stack": {}, "stack_trace": ""}):
            if self.options.keep_views:
                self._separate_written(outputs)
            elif not self.options.training:
                self._copy_shared_outputs(outputs)
            results = [self._output(x, i) for i, x in enumerate(outputs)]
            self.tracer.assertions.finish()
        return results

    def solve(self) -> Constraints:
        """What the guards demand of the sizes, substituted where it is a solution."""
        try:
            outcome = solve_constraints(self.spec, self.options.guards)
        except ConstraintViolationError as error:
            refusals.explain_by_state(error, self.root)
            raise
        self.refused = outcome.refused
        if outcome.forms:
            for graph in list_frame_graphs(self.recorder.frame):
                substitute_symbols(graph, outcome.forms)
        self.spec.substitute(outcome.forms, outcome.ranges)
        return outcome

    def _report_changes(self, snapshot: Snapshot, around: side_effects.GlobalsSnapshot) -> None:
        """What the program did to Python beyond its results."""
        if self.options.is_recapture:
            return
        own, outside = (
            list(side_effects.find_module_changes(snapshot, self.root)),
            list(around.changes()),
        )
        # Running the user's code again is seen outside: only strict mode goes that far.
        asked = [*own, *outside] if self.options.strict else own
        depends = any(not c.leaks or c.renews for c in asked) and self._differs_next_time()
        side_effects.report_changes([*own, *outside], depends, self.options.strict)
        # A draft draws random numbers itself, to know the data.
        seeds = not self.options.draft and snapshot.has_seeded()
        if seeds and any(map(_is_random, self.recorder.graph.nodes)):
            side_effects.raise_or_warn(side_effects.seed_error(), self.options.strict)

    def _differs_next_time(self) -> bool:
        """Whether the program, run again after what it changed, computes something else."""
        options = replace(self.options, is_recapture=True)
        again = _Capture(self.mod, self.root, self.inputs, self.dynamic_shapes, options)
        try:
            leaves = again.open_inputs()
            again.state.lift_module()
            again._call(leaves)
        except ExportError:
            return True
        ours, others = (
            list_frame_graphs(self.recorder.frame),
            list_frame_graphs(again.recorder.frame),
        )
        return side_effects.find_graph_difference(ours, others) is not None

    # Inputs

    def open_inputs(self) -> list[PyTree]:
        """A graph input and an abstract value for each flat input."""
        leaves = []
        for leaf in self.inputs.leaves:
            node = self.names.placeholder(self.recorder.graph, self.names.unique(leaf.name))
            self.input_nodes.append(node)
            if isinstance(leaf.value, torch.Tensor):
                leaves.append(self._open_tensor(node, leaf.value, leaf.path))
            else:
                value = to_torch(self.spec.numbers.get(leaf.path, leaf.value))
                set_val(node, value)
                self.input_values.append(None)
                leaves.append(value)
        self._define_numbers()
        if not self.options.keep_views:  # else the caller handles inputs that alias
            self._find_aliased_inputs()
        self.state.first_input = self.input_nodes[0] if self.input_nodes else None
        self.recorder.frame.entry = self.input_nodes[-1] if self.input_nodes else None
        return leaves

    def _open_tensor(self, node: Node, t: torch.Tensor, path: str) -> AbstractTensor:
        if not self.options.is_recapture:
            warn_of_torch_function(t, f"the input at {path}")
        given = describe_tensor(t, self.state.device)
        sizes = self.spec.sizes.get(path, given.sizes)
        strides = given._strides
        if strides is not None and sizes != given.sizes:
            strides = _symbolic_strides(given, sizes)
        abstract = Abstract(sizes, t.dtype, given.device, strides)
        value = Value(abstract, node, origin=node)
        value.storage.has_offset = has_storage_offset(t)
        value.storage.elements = storage_elements(t)
        for d, s in enumerate(sizes):
            if type(s) is Expr:
                read = functools.partial(self.recorder.size_of, node, d, s, on_entry=True)
                self.recorder.define_size(s, read)
        set_val(node, make_abstract_tensor(abstract, t.requires_grad))
        self.input_values.append(value)
        return self.tracer.wrap(value)

    def _find_aliased_inputs(self) -> None:
        """Inputs that overlap in the example must not be written to, and then read."""
        found: dict[Any, list[tuple[Leaf, Value]]] = {}
        for leaf, value in zip(self.inputs.leaves, self.input_values, strict=True):
            memory = storage_key(leaf.value) if value is not None else None
            if value is None or memory is None:
                continue
            group = found.setdefault(memory, [])
            for other, shown in group:
                what = f"the inputs at {other.path} and {leaf.path}"
                tensors = (other.value, leaf.value)
                note_overlap(shown, value, tensors, what, outlives_call=False)
            group.append((leaf, value))
        self.memory_of_inputs = found

    def _find_inputs_aliasing_state(self) -> None:
        """The same of inputs that are state of the module, too."""
        for entry in self.state.entries if self.memory_of_inputs else ():
            if not isinstance(entry.tensor, torch.Tensor):
                continue
            for leaf, value in self.memory_of_inputs.get(storage_key(entry.tensor), ()):
                what = f"the input at {leaf.path} and {entry.names[0]!r}"
                tensors = (leaf.value, entry.tensor)
                note_overlap(value, entry.value, tensors, what, outlives_call=False)

    def _define_numbers(self) -> None:
        """Where a dim is both a size and a number, the graph takes the number."""
        for node, leaf in zip(self.input_nodes, self.inputs.leaves, strict=True):
            number = self.spec.numbers.get(leaf.path)
            if number is not None:
                self.recorder.define_number(number, node)

    # The run

    def _call(self, leaves: list[PyTree]) -> tuple[list[PyTree], pytree.TreeSpec]:
        """Run the program on flat inputs; flat outputs. Containers may compute as they are made."""
        handled = sys.exc_info()[1]
        try:
            with self._enter_modes():
                self.recorder.stop = sys._getframe()
                args, kwargs = pytree.tree_unflatten(leaves, self.inputs.spec)
                cache_shapes.replace_length_methods((args, kwargs), self.scope)
                result = self.mod(*args, **kwargs)
                return self._flatten(result)
        except ExportError as error:
            raise_interrupt(error, handled)  # who asks for another capture goes on after it
            error.add_location(self._locate_error(error))
            error.__cause__ = None
            raise
        except Exception as error:
            raise_interrupt(error, handled)
            where = self._locate_error(error)
            refused = refusals.translate_torch_error(error, where)
            if (
                refused is None
                and isinstance(error, refusals.FAULTS)
                and source.is_raised_by_graphport(error)
            ):
                raise refusals.internal_error(error, where) from error
            raise refused or refusals.forward_error(error, where) from error

    def _flatten(self, result: PyTree) -> tuple[list[Any], pytree.TreeSpec]:
        try:
            caches.register_caches(result)
            return pytree.tree_flatten(split_subclasses(result))
        except RecursionError:
            raise InputError(
                "the result is nested too deeply, or a container of it holds itself",
                where=source.locate_function(_function_of(self.mod)),
                fix="return the tensors in a flat container",
            ) from None

    def _locate_error(self, error: Exception) -> source.Location | None:
        """The user's line that failed, and the module that was running it."""
        failed_here = error is self.modules.failure
        return source.locate_error(error, self.modules.failed_in if failed_here else "")

    @contextmanager
    def _enter_modes(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(enter_capture())
            stack.enter_context(autograd_functions.record_functions(self.tracer))
            if self.options.strict:
                stack.enter_context(side_effects.NO_SIZE_TEXT)
            stack.enter_context(self.modules.track_calls())
            stack.enter_context(self.tracer)
            stack.enter_context(FunctionMode(self.tracer))
            yield

    def _find_replaced_buffers(self, snapshot: Snapshot) -> None:
        """A buffer that was assigned to is a mutation of that buffer."""
        for path, module in registries.named_modules(self.root):
            before = snapshot.before(module._buffers)
            for name, old in before.items():
                new = module._buffers.get(name)
                if new is old or old is None or not isinstance(new, torch.Tensor):
                    continue
                entry = self.state.entry(old)
                fqn = registries.join_path(path, name)
                if tuple(new.shape) != sizes_of(old) or new.dtype != old.dtype:
                    raise UserError(
                        f"buffer {fqn!r} was replaced by a tensor of another size or dtype: "
                        f"{self.tracer.value(new).abstract} instead of {entry.value.abstract}",
                        where=source.locate_function(type(module).forward),
                        fix="keep buffers at one size, or return the new tensor",
                    )
                entry.replaced = self.tracer.value(new)

    # Outputs

    def _output(self, x: Any, i: int) -> PyTree:
        kind: Any = type(x)  # not isinstance, which asks an object for its `__class__`
        if _is_tensor(kind):
            value = self.tracer.value(x)
            tracer = self.tracer
            return (tracer.read_as_view if self.options.keep_views else tracer.read)(value)
        if issubclass(kind, SYMBOLIC):
            return self.recorder.size(from_torch(x))
        if issubclass(kind, CONSTANT_TYPES):
            return to_plain_constant(x)
        raise InputError(
            f"output {i} is a {kind.__module__}.{kind.__qualname__}: outputs are tensors, "
            "numbers, strings, None, and containers of them",
            where=source.locate_function(_function_of(self.mod)),
            fix="return tensors, or register the type with torch.utils._pytree",
        )

    def _separate_written(self, outputs: list[PyTree]) -> None:
        """Give each storage that is returned or written back a node of its own."""
        shown = [self.tracer.value(x).storage for x in outputs if isinstance(x, torch.Tensor)]
        inputs = [v.storage for v in self.input_values if v is not None]
        owners: dict[Node, Storage] = {}
        for storage in dict.fromkeys((*shown, *inputs)):
            node = self.tracer.read(storage.base)
            is_anothers = node.op == "placeholder" and node is not storage.origin
            if is_anothers or owners.setdefault(node, storage) is not storage:
                storage.base.node = self.recorder.emit(aten.clone.default, node)
                storage.mutated = True  # views are made of it anew

    def _copy_shared_outputs(self, outputs: list[PyTree]) -> None:
        """Clone results that alias nothing in eager, and here are the node of something else.

        `new.copy_(x)` has the value of x, a literal is made anew by each call: who writes to the
        result must write to neither.
        """
        written = [v for v in self.input_values if v is not None and v.storage.mutated]
        shown = [self.tracer.value(x) for x in outputs if _is_tensor(type(x))]
        owners: dict[Node, Storage] = {}
        for value in (*written, *shown):
            node = self.tracer.read(value)
            root, storage = find_base(node), value.storage
            if root.op == "placeholder":
                has_own = root is storage.origin
            else:
                has_own = owners.setdefault(root, storage) is storage
            if not has_own:
                value.node = self.recorder.emit(aten.clone.default, node)
                owners[value.node] = storage

    def _ranges(self) -> dict[Expr, Range]:
        """What is known of the dims as declared, and of data-dependent values."""
        scope = self.scope
        data = {
            s: scope.range(s)
            for s in scope.symbols
            if s not in self.spec.ranges and scope.is_fresh(s)
        }
        return {**self.spec.ranges, **data}

    def _close(self, results: list[PyTree]) -> tuple[list[tuple[Node, OutputSpec]], list[Any]]:
        """End a functional graph: what it writes are results, too."""
        inputs = zip(self.input_nodes, self.input_values, strict=True)
        mutations = collect_mutations(self.tracer, self.state.entries, inputs)
        apart = detach_no_grad_results(self.recorder, [*(n for n, _ in mutations), *results])
        results = [apart.get(r, r) if isinstance(r, Node) else r for r in results]
        mutations = [
            (apart.get(n, n), replace(spec, arg=TensorArgument(apart.get(n, n).name)))
            for n, spec in mutations
        ]
        graph = self.recorder.graph
        graph.output((*(n for n, _ in mutations), *results)).meta = {}
        self.kept.replace(apart)
        eliminate_dead_code(graph, self.kept.nodes)
        return mutations, results

    def _close_training_graph(self, results: list[PyTree]) -> list[object]:
        """End a graph in training form: what it writes is written, an assigned buffer included."""
        replaced = [(e, e.replaced) for e in self.state.entries if e.replaced is not None]
        values = [self.tracer.read(new) for _, new in replaced]
        memory = {entry.node for entry, _ in replaced}
        # What shows the old contents of an assigned buffer outlives them.
        old = dict.fromkeys(
            n for n in (*values, *results) if isinstance(n, Node) and find_base(n) in memory
        )
        apart = {n: self.recorder.emit(aten.clone.default, n) for n in old}
        for (entry, _), value in zip(replaced, values, strict=True):
            self.tracer.write(entry.value, apart.get(value, value))
        results = [apart.get(r, r) if isinstance(r, Node) else r for r in results]
        output = self.recorder.graph.output(tuple(results))
        output.meta = {}
        eliminate_dead_code(self.recorder.graph, self.kept.nodes)
        wrap_grad_regions(self.recorder)
        return list(output.args[0])

    def assemble(
        self, results: list[PyTree], out_spec: Any, outcome: Constraints
    ) -> ExportedProgram:
        graph = self.recorder.graph
        if self.options.training:
            mutations: list[tuple[Node, OutputSpec]] = []
            results = self._close_training_graph(results)
        else:
            mutations, results = self._close(results)
        state, constants = split_state(self.root, self.state.entries)
        signature = build_graph_signature(
            graph, self.state.entries, self.input_nodes, mutations, results
        )
        checks = InputChecks(
            [
                self._shape(node, leaf)
                for node, leaf in zip(self.input_nodes, self.inputs.leaves, strict=True)
            ],
            self.spec.ranges,
            outcome.checks,
            None if self.options.training else self._written(),
        )
        return ExportedProgram(
            graph_module=build_graph_module(self.recorder.frame),
            graph_signature=signature,
            state_dict=state,
            constants=constants,
            range_constraints=self._ranges(),
            call_spec=CallSpec(self.inputs.spec, out_spec),
            example_inputs=(self.inputs.args, self.inputs.kwargs),
            checks=checks,
            argument_names=self.inputs.argument_names,
            positional=self.inputs.positional,
            module_call_graph=self.kept.module_calls(self.modules.calls),
            notes=outcome.notes,
            dialect="TRAINING" if self.options.training else "ATEN",
            scope=self.scope,
            takes_gradients=self.tracer.takes_gradients,
        )

    def _written(self) -> dict[int, list[int]]:
        """The inputs that are written to, and the tensors among them that are read later."""
        index = {node: i for i, node in enumerate(self.input_nodes)}
        return {
            index[node]: sorted(index[n] for n in later if n in index)
            for node, later in self.tracer.read_after_write.items()
            if node in index
        }

    def _shape(self, node: Node, leaf: Leaf) -> InputShape:
        """What an input must be when the program is called."""
        path, value = leaf.path, leaf.value
        if isinstance(value, torch.Tensor):
            sizes = self.spec.sizes.get(path) or sizes_of(value)
            # The meta device stands for any: programs are captured there to be run elsewhere.
            device = None if value.is_meta else value.device
            strides = None
            if node in self.tracer.fixed_layouts:
                strides = describe(node).strides
            from_start = node in self.tracer.from_start
            return InputShape(
                path, sizes, value.dtype, device=device, strides=strides, from_start=from_start
            )
        number = self.spec.numbers.get(path)
        if isinstance(number, Expr):
            return InputShape(path, number=number)
        return InputShape(path, value=value)


source.boundaries.add(_Capture._call.__code__)


def _is_random(node: Node) -> bool:
    """Whether a node takes random numbers from torch's generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _reserved_names(root: nn.Module) -> set[str]:
    """Names under which a program may have state; graphs of a captured module have none."""
    parts = {
        name
        for name, part in root._modules.items()
        if not isinstance(part, GraphModule) or any(registries.named_parameters(part))
    }
    return {*vars(root), *root._parameters.keys(), *root._buffers.keys(), *parts}


def _symbolic_strides(given: Abstract, sizes: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Strides of a dense input with dynamic sizes, in the order of the example's strides."""
    if not is_dense(given):
        return given._strides
    order = sorted(range(len(sizes)), key=lambda d: (-given.strides[d], d))
    return permute_strides(sizes, order)
