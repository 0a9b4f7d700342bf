"""Captures graphs that `torch.compile` passes to a backend, symbolic sizes included."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from graphport.capture.export import Options, capture
from graphport.capture.spec.symbols import Declare
from graphport.capture.trace.state import describe_tensor, has_storage_offset
from graphport.compat.torch import HigherOrderOperator, is_traceable_wrapper_subclass
from graphport.errors import ShapeError, UnsupportedError
from graphport.program import ExportedProgram
from graphport.program.torch_interop.expressions import FromSympy, convert_bound, get_example_values
from graphport.source import keep_user_frames, locate_stack_trace
from graphport.symbolic import Expr, Range, Scope
from graphport.symbolic.bridge import SYMBOLIC
from graphport.tensors.abstract import Size, is_dense


class TorchSizes:
    """What torch knows of the inputs of a graph, in place of `dynamic_shapes`.

    torch has checked its conditions on the sizes when the graph is called: they hold.
    """

    def __init__(self, values: Sequence[object]) -> None:
        self.values = values
        self._symbols: dict[Any, Expr] = {}

    def leaves(self, declare: Declare, scope: Scope) -> list[tuple[Size, ...] | Expr | None]:
        self._symbols = {}
        env = next((e for v in self.values if (e := _shape_env(v)) is not None), None)

        def symbol(s: Any) -> Expr:
            if s not in self._symbols:
                self._symbols[s] = _declare_symbol(s, env, declare)
            return self._symbols[s]

        expr = FromSympy(symbol)

        def number(x: Any) -> Any:
            return expr(x.node.expr) if isinstance(x, SYMBOLIC) else x

        found: list[tuple[Any, ...] | Expr | None] = []
        for value in self.values:
            if isinstance(value, torch.Tensor):
                found.append(tuple(map(number, value.shape)))
            else:
                size = number(value)
                found.append(size if isinstance(size, Expr) else None)
        for guard in getattr(env, "guards", ()):
            if guard.expr.free_symbols <= self._symbols.keys():
                _assume_condition(guard.expr, expr, scope)
        return found


def _shape_env(value: object) -> object:
    """The shape environment that a value has symbols of."""
    parts = value.shape if isinstance(value, torch.Tensor) else (value,)
    return next((x.node.shape_env for x in parts if isinstance(x, SYMBOLIC)), None)


def _declare_symbol(symbol: object, env: Any, declare: Declare) -> Expr:
    hint = get_example_values(env).get(symbol)
    if hint is None:
        raise UnsupportedError(f"{symbol}, a size that depends on data, comes from outside")
    if not hint.is_number:
        raise UnsupportedError(f"{symbol}, a ragged size of a nested tensor, is no number")
    is_float = str(symbol).startswith("z")
    value = float(hint) if is_float else int(hint)
    known = env.var_to_range.get(symbol)
    limits = (
        Range(convert_bound(known.lower), convert_bound(known.upper)) if known is not None else None
    )
    if limits is None or value not in limits:
        limits = Range(float("-inf"), float("inf"))
    return declare(str(symbol), value, limits)


def _assume_condition(condition: object, expr: FromSympy, scope: Scope) -> None:
    """Add a condition of torch's to the scope, if our algebra can express it."""
    try:
        fact = expr(condition)
        if isinstance(fact, Expr):
            scope.assume(fact, reason="checked by torch.compile")
    except (UnsupportedError, ShapeError):
        return


# Random state as a value: graphs that draw the same random numbers twice.
#
# Where a checkpointed part has dropout, AOTAutograd's forward graph runs what draws by an operator
# that also gives the state of the generator before, and the backward graph by one that takes it.
# Both are written out here, as calls that read and exchange the state around what draws: these keep
# their order among all that draw.

_library = torch.library.Library("graphport", "FRAGMENT")
_RANDOM_TAGS = (torch.Tag.nondeterministic_seeded,)
_library.define("rng_state() -> Tensor", tags=_RANDOM_TAGS)
_library.define("exchange_rng_state(Tensor state) -> Tensor", tags=_RANDOM_TAGS)


def _exchange_rng_state(state: torch.Tensor) -> torch.Tensor:
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    return before


_library.impl("rng_state", torch.get_rng_state, "CompositeExplicitAutograd")
_library.impl("exchange_rng_state", _exchange_rng_state, "CompositeExplicitAutograd")
_library._register_fake("rng_state", torch.get_rng_state)
_library._register_fake("exchange_rng_state", torch.empty_like)
_read = torch.ops.graphport.rng_state.default
_exchange = torch.ops.graphport.exchange_rng_state.default


def functionalise_rng_state(module: GraphModule) -> GraphModule:
    """The graph with these operators written out; the graph itself if it has none."""
    if not any(map(_rng_operator, module.graph.nodes)):
        return module
    graph = Graph()
    values: dict[Node, Any] = {}
    for node in module.graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if _rng_operator(node) == "run_and_save_rng_state":
            op, *given = args
            state = graph.call_function(_read)
            values[node] = (state, graph.call_function(op, tuple(given), kwargs))
        elif _rng_operator(node):
            state, op, *given = args
            before = graph.call_function(_exchange, (state,))
            values[node] = graph.call_function(op, tuple(given), kwargs)
            graph.call_function(_exchange, (before,))
        elif node.target is operator.getitem and type(args[0]) is tuple:
            values[node] = args[0][args[1]]
        else:
            new = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            new.meta = dict(node.meta)
            values[node] = new
    return GraphModule(module, graph)


def _rng_operator(node: Node) -> str:
    """Which of the two a node calls; empty for anything else."""
    name = node.target.name() if isinstance(node.target, HigherOrderOperator) else ""
    return name if name in ("run_and_save_rng_state", "run_with_rng_state") else ""


# Captures the graphs of Dynamo and AOTAutograd as programs.
#
# Dynamo's graphs are in terms of torch's functions, those of AOTAutograd in ATen operators; both
# take parameters and buffers as inputs. Sizes that torch keeps symbolic stay symbolic.

# Take a number as another operand, so that one which varies is as good as a constant.
_ARITHMETIC = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.pow,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.pow,
}


def capture_graph(module: GraphModule, inputs: Sequence[object]) -> ExportedProgram:
    """The program of a graph whose sizes are symbols of torch's, or numbers."""
    if any(isinstance(t, torch.Tensor) and t.is_meta for t in inputs):
        raise UnsupportedError("an input is on the meta device, where there is nothing to compute")
    # Those of models are inputs; an optimiser's are not, and it writes to them.
    if any(True for _ in module.parameters()):
        raise UnsupportedError("the graph has parameters of its own, as that of an optimiser has")
    made_of_others = next((t for t in inputs if is_traceable_wrapper_subclass(t)), None)
    if made_of_others is not None:
        kind = type(made_of_others).__name__
        raise UnsupportedError(f"an input is a {kind}, which AOTAutograd unwraps")
    if needs_derivatives(module):
        raise UnsupportedError("the graph computes gradients, which is left to AOTAutograd")
    fixed = specialise_floats(module)
    if all(t.device.type == "cpu" for t in inputs if isinstance(t, torch.Tensor)):
        fixed = functionalise_rng_state(fixed)
    with torch.no_grad():
        program, _ = capture(
            fixed,
            tuple(inputs),
            None,
            TorchSizes(_example_values(module, inputs)),
            Options("runtime_assert", is_recapture=True, keep_views=True),
        )
    if program.graph_signature.buffers_to_mutate:
        raise UnsupportedError("the graph mutates tensors of its own")
    _restore_source_lines(program, fixed)
    return program


def _restore_source_lines(program: ExportedProgram, module: GraphModule) -> None:
    """Give nodes the user's lines, in place of those of the graph's generated code."""
    lines = dict(_map_generated_lines(module))
    for graph in (program.graph, *(m.graph for m in _inner_modules(program.graph_module))):
        for node in graph.nodes:
            where = locate_stack_trace(node.meta.get("stack_trace"))
            if where is not None and (trace := lines.get((where.file, where.line))):
                node.meta["stack_trace"] = keep_user_frames(trace)


def _map_generated_lines(module: GraphModule) -> Iterator[tuple[tuple[str, int], str]]:
    """By file and line of generated code, where its node comes from."""
    for part in (module, *_inner_modules(module)):
        rows = getattr(part, "_lineno_map", None)  # once its code has been generated
        nodes = list(part.graph.nodes)
        for line, index in (rows or {}).items():
            if index is not None:
                file = type(part).forward.__code__.co_filename
                yield (file, line + part._prologue_start), nodes[index].meta.get("stack_trace", "")


def _inner_modules(module: GraphModule) -> Iterator[GraphModule]:
    return (m for m in module.modules() if isinstance(m, GraphModule) and m is not module)


def needs_derivatives(module: GraphModule) -> bool:
    """Whether a graph computes gradients, or has results to differentiate.

    `torch.func.grad`, `torch.autograd.grad`, `torch.enable_grad`.
    """
    results = (
        n.meta.get("example_value")
        for n in module.graph.output_node().all_input_nodes
        if n.op != "placeholder"
    )
    if not torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in results):
        return True
    targets = (n.target for m in (module, *_inner_modules(module)) for n in m.graph.nodes)
    return any(
        t is torch.autograd.grad or getattr(t, "__name__", "") in _GRADIENT_CALLS for t in targets
    )


# What torch.func consists of in Dynamo's graphs, where derivatives are taken.
_GRADIENT_CALLS = {
    "_grad_increment_nesting",
    "_jvp_increment_nesting",
    "_autograd_grad",
    "_make_dual",
}


def placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def _example_values(module: GraphModule, inputs: Sequence[object]) -> list[object]:
    """What torch knows of each input: of Dynamo's, whose examples are real tensors, it is noted."""
    return [
        node.meta.get("example_value", given)
        for node, given in zip(placeholders(module), inputs, strict=True)
    ]


def specialise_floats(module: GraphModule) -> GraphModule:
    """The graph with those floats fixed that are no operands: an `eps`, a `momentum`.

    Dynamo passes floats as tensors, and reads them. Asking torch's symbol for its value makes it a
    condition for the graph to be used.
    """
    reads = [n for n in module.graph.nodes if _is_float_read(n)]
    fixed = [n for n in reads if any(u.target not in _ARITHMETIC for u in n.users)]
    if not fixed:
        return module
    values = {n.name: float(n.meta["example_value"]) for n in fixed}
    graph = torch.fx.Graph()
    mapping: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.name in values:
            mapping[node] = values[node.name]
        elif node.op == "output":
            graph.output(map_arg(node.args[0], mapping.__getitem__))
        else:
            args, kwargs = map_arg((node.args, node.kwargs), mapping.__getitem__)
            new = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            new.meta = dict(node.meta)
            mapping[node] = new
    return GraphModule(module, graph)


def _is_float_read(node: Node) -> bool:
    return (
        node.op == "call_method"
        and node.target == "item"
        and node.args[0].op == "placeholder"
        and isinstance(node.meta.get("example_value"), torch.SymFloat)
    )


Layout = tuple[tuple[Any, ...] | None, bool]
"""The strides of a tensor that is not dense, and whether its storage offset is 0."""


def layout_of(t: torch.Tensor | None) -> Layout:
    """None is what AOTAutograd passes for a token of effects, having said that it is a tensor."""
    if t is None:
        return None, True
    about = describe_tensor(t, None)
    return None if is_dense(about) else about.strides, not has_storage_offset(t)


def find_read_layouts(module: GraphModule, inputs: Sequence[object]) -> dict[int, Layout]:
    """Memory layouts of the inputs, by position, for a graph that depends on them.

    Sizes of torch's are symbols in the program, and so are strides that follow from them. The rest
    is captured as it is in the example.
    """
    targets = (n.target for m in (module, *_inner_modules(module)) for n in m.graph.nodes)
    names = (t if isinstance(t, str) else getattr(t, "__name__", "") for t in targets)
    if _STRIDE_READS.isdisjoint(name.split(".")[0] for name in names):
        return {}
    return {i: layout_of(t) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)}


_STRIDE_READS = set(
    """
        as_strided as_strided_ as_strided_copy as_strided_scatter stride sym_stride
    """.split()
)


def static_inputs(module: GraphModule, inputs: Sequence[object]) -> frozenset[int]:
    """Which inputs are parameters and buffers, the same tensors at every call."""
    return frozenset(
        i
        for i, (node, t) in enumerate(zip(placeholders(module), inputs, strict=True))
        if isinstance(t, torch.Tensor) and _is_static(node, t)
    )


def _is_static(node: Node, t: torch.Tensor) -> bool:
    kind = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return kind is not None or isinstance(t, torch.nn.Parameter)
