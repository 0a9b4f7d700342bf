"""A compiled graph of `torch.compile`: its regions in sessions, the rest in PyTorch."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from graphport.compat.torch import DisableAutocast, is_any_autocast_enabled
from graphport.errors import ExportError, SessionError
from graphport.onnx.exporter import decompose_to_known, read_custom_lowerings
from graphport.onnx.target.session import Session, forkable_lock
from graphport.onnx.write.weights import inline_weights
from graphport.ops.sizes import invert_permutation
from graphport.program import ExportedProgram, InputChecks
from graphport.program.control import copy_subgraph, use_python_kernels
from graphport.runtime.graphs import capture_graph, find_read_layouts, layout_of
from graphport.runtime.region import (
    FrozenWeights,
    LoweredRegion,
    Region,
    SessionRecord,
    find_mutated_inputs,
    has_overlap,
    lower_regions,
    make_allocators,
)
from graphport.runtime.regions import Plan, dump_model, fallback_error, make_plan
from graphport.symbolic import Expr
from graphport.tensors.abstract import Abstract, describe
from graphport.types import PyTree

if TYPE_CHECKING:
    from graphport.runtime.backend import OrtBackend

log = logging.getLogger("graphport.ort")

_BUILD_LOCK = forkable_lock()


class CompiledGraph:
    """Runs a graph on ONNX Runtime as far as possible.

    Weights that do not change are part of the sessions, which arrange them for speed. Once one has
    changed, they are inputs from there on. Whatever goes wrong in a session, torch computes the
    result.
    """

    def __init__(
        self,
        module: GraphModule,
        inputs: Sequence[object],
        backend: OrtBackend,
        providers: Sequence[object],
        static: frozenset[int] = frozenset(),
        *,
        freeze: bool = False,
    ) -> None:
        self.module = module
        self.backend = backend
        self.static = static
        self.providers = providers
        self.records: list[SessionRecord] = []
        self.plan: Plan
        self.broken = False
        self._capture(inputs, freeze)
        self.unchecked_inputs: Sequence[Any] | None = None if freeze else inputs
        """Fake inputs, until the first call brings real ones."""

    def _capture(self, inputs: Sequence[object], freeze: bool) -> None:
        program = capture_graph(self.module, inputs)
        self.checks = _make_size_check(program)
        self.layouts = find_read_layouts(self.module, inputs)
        custom = read_custom_lowerings(self.backend.options.export)
        self.program, self.missing = decompose_to_known(program, custom)
        self.written = find_mutated_inputs(program)
        unwritten = self.static.difference(self.written) if freeze else ()
        self.frozen = FrozenWeights({i: inputs[i] for i in unwritten})
        self.run = self._build_runner({i: inputs[i] for i in self.frozen.places})

    def __call__(self, *args: object) -> PyTree:
        if self.unchecked_inputs is not None:
            self._match_dtypes(args)
        if self.broken:
            return self.module(*args)
        if self.checks is not None and not self.checks(args):
            return self._run_in_torch(args, "the graph was captured for other sizes")
        if self.layouts and any(layout_of(args[i]) != layout for i, layout in self.layouts.items()):
            return self._run_in_torch(args, "the graph was captured for other strides")
        if self.written and has_overlap(args, self.written):
            return self._run_in_torch(args, "an input aliases another one that is mutated")
        try:
            if self.frozen.has_changed(args):
                self._thaw(args)
            return self.run(*args)
        except SessionError as error:
            if self.backend.options.strict:
                raise
            failure = error
        # If torch refuses the call as well, the session is not to blame.
        result = self.module(*args)
        self._give_up(failure)
        return result

    def _match_dtypes(self, args: Sequence[object]) -> None:
        """Capture again if dtypes differ from those that AOTAutograd declared.

        Its rules and torch's kernels differ in the statistics of a batch norm under autocast.
        """
        with _BUILD_LOCK:
            if self.unchecked_inputs is None:
                return
            inputs = [_match_dtype(x, t) for x, t in zip(self.unchecked_inputs, args, strict=True)]
            try:
                if any(x is not t for x, t in zip(inputs, self.unchecked_inputs, strict=True)):
                    self._capture(inputs, freeze=False)
            except ExportError as error:
                if self.backend.options.strict:
                    raise
                self._give_up(error)
            self.unchecked_inputs = None

    def _thaw(self, args: Sequence[object]) -> None:
        """Make sessions that have weights as inputs, unless another thread just has."""
        with _BUILD_LOCK:
            if self.frozen.has_changed(args):
                log.info("frozen weights have changed: from now on they are inputs")
                self.run = self._build_runner({})
                self.frozen = FrozenWeights({})

    def _give_up(self, error: ExportError) -> None:
        with _BUILD_LOCK:
            said, self.broken = self.broken, True
        if not said:
            warnings.warn(
                f"a graph goes on in PyTorch, since its session failed: {error}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _run_in_torch(self, args: Sequence[object], why: str) -> PyTree:
        """This call only."""
        if self.backend.options.strict:
            raise SessionError(f"a call cannot run on ONNX Runtime: {why}")
        log.info("a call runs in PyTorch: %s", why)
        return self.module(*args)

    # Building

    def _build_runner(self, weights: dict[int, torch.Tensor]) -> Callable[..., PyTree]:
        self.plan = make_plan(self.program, self.missing)
        inputs = [n for n in self.plan.graph.nodes if n.op == "placeholder"]
        taken_in = {inputs[i]: t for i, t in weights.items()}
        static = {inputs[i] for i in self.static}
        while True:
            regions = lower_regions(self.plan, taken_in, self.backend.options.export)
            if self.backend.options.strict and self.plan.reasons:
                raise fallback_error(self.plan, self.missing)
            made = self._regions(regions, static)
            if made is not None:
                run = _assemble_plan(self.plan, regions, made)
                return _disable_autocast(run) if is_any_autocast_enabled() else run

    def _regions(
        self, regions: dict[tuple[Node, ...], LoweredRegion], static: set[Node]
    ) -> dict[tuple[Node, ...], Region] | None:
        """Sessions for all regions; None if one had to be given to torch."""
        self.records.clear()
        made = {}
        for nodes, part in regions.items():
            try:
                made[nodes] = self._region(part, static)
            except SessionError as error:
                if self.backend.options.strict:
                    raise
                log.warning("a region runs in PyTorch: %s", str(error))
                self.plan.refuse(nodes, error.what)
                return None
        return made

    def _region(self, part: LoweredRegion, static: set[Node]) -> Region:
        options = self.backend.options
        model, tensors = part.model(), part.tensors
        if options.pre_ort_model_transforms:
            model, tensors = inline_weights(model, part.graph.initializers), {}
            for transform in options.pre_ort_model_transforms:
                transform(model)

        def make() -> Session:
            return Session(model, tensors, options.ort_session_options, self.providers)

        record = SessionRecord(model, make)
        try:
            record.open()
        except Exception as error:  # whatever a provider raises
            raise SessionError(f"ONNX Runtime refuses a model: {error}") from error
        self.records.append(record)
        if options.dump_prefix is not None:
            written = inline_weights(model, part.graph.initializers) if tensors else model
            dump_model(options.dump_prefix, written, str(self.module.graph))
        static_inputs = [n in static for n in part.part.inputs]
        outputs, inputs = part.graph.outputs, part.part.inputs
        # A model that the user's functions have changed may give other sizes.
        are_known = options.preallocate_output or not options.pre_ort_model_transforms
        return Region(
            record,
            part.interface,
            outputs,
            static_inputs,
            _find_complex_inputs(inputs),
            self.backend.count,
            make_allocators(outputs, inputs) if are_known else [None] * len(outputs),
        )


def _match_dtype(example: PyTree, t: Any) -> Any:
    """An example of the dtype that a tensor has."""
    tensors = isinstance(example, torch.Tensor) and isinstance(t, torch.Tensor)
    return example.to(t.dtype) if tensors and example.dtype is not t.dtype else example


def _find_complex_inputs(inputs: Sequence[Node]) -> set[int]:
    """The places of complex tensors."""
    about = [describe(n) for n in inputs]
    return {i for i, a in enumerate(about) if isinstance(a, Abstract) and a.dtype.is_complex}


def _make_size_check(program: ExportedProgram) -> Callable[[Sequence[Any]], bool] | None:
    """What capture needed to know of the sizes beyond what torch checks; None if nothing."""
    checks = program.checks
    varies = [
        i
        for i, s in enumerate(checks.inputs)
        if s.number is not None or any(isinstance(e, Expr) for e in s.sizes or ())
    ]
    if not checks.facts:
        return None
    accepts = InputChecks([checks.inputs[i] for i in varies], checks.ranges, checks.facts).accepts
    return lambda args: accepts([args[i] for i in varies])


def _assemble_plan(
    plan: Plan, regions: dict[tuple[Node, ...], LoweredRegion], made: dict[tuple[Node, ...], Region]
) -> Callable[..., Any]:
    """The steps of a plan as a function."""
    root, graph = nn.Module(), Graph()
    mapping: dict[Node, Any] = {}
    for node in plan.graph.nodes:
        if node.op == "placeholder":
            mapping[node] = graph.placeholder(node.name)
        elif node.op == "get_attr":
            mapping[node] = graph.get_attr(_attach_attribute(root, str(node.target), plan.program))
    for i, step in enumerate(plan.steps):
        if step.is_region:
            part = regions[step.nodes].part
            name = f"region_{i}"
            root.add_module(name, made[step.nodes])
            call = graph.call_module(name, tuple(mapping[n] for n in part.inputs))
            for k, (node, order) in enumerate(zip(part.outputs, part.orders, strict=True)):
                found = graph.call_function(operator.getitem, (call, k))
                if order is not None:
                    found = graph.call_function(_permute_output, (found, invert_permutation(order)))
                mapping[node] = found
        else:
            for node in step.nodes:
                mapping[node] = graph.node_copy(node, lambda n: mapping[n])
    graph.output(torch.fx.node.map_arg(plan.graph.output_node().args[0], lambda n: mapping[n]))
    use_python_kernels(graph)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    # Called as a function: a module's hooks cost microseconds.
    return GraphModule(root, graph).eval().forward


def _permute_output(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """With other strides, and no view: autograd refuses writes to a result that is one."""
    return x.permute(dims).data


def _disable_autocast(run: Callable[..., object]) -> Callable[..., Any]:
    """The graph has the casts of the autocast around it: torch is not to add further ones."""

    def running(*args: object) -> PyTree:
        with DisableAutocast():
            return run(*args)

    return running


def _attach_attribute(root: nn.Module, name: str, program: ExportedProgram) -> str:
    """Under which name a module has a graph or a tensor of the program from now on."""
    inner = program.graph_module._modules.get(name)
    if inner is not None:
        root.add_module(name, copy_subgraph(inner))
        return name
    own = f"tensor_{len(root._buffers)}"
    root.register_buffer(own, program.tensor(name), persistent=False)
    return own
