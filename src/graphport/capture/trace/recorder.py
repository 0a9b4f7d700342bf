"""Appends nodes with names and metadata to a graph, and emits nodes for symbolic sizes.

The recorder knows nothing of mutation or of the user's tensors. It is handed operators with graph
nodes and (symbolic) numbers as arguments, works out the result by the operator's shape rule or meta
kernel, and appends a node.
"""

from __future__ import annotations

import cmath
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node, traceback

from graphport import source
from graphport.capture.trace.items import ItemCache
from graphport.capture.trace.values import Storage, Value
from graphport.compat.operators import aten
from graphport.compat.torch import OpOverload, sym_sqrt
from graphport.errors import MutationError, UnsupportedError
from graphport.ops import Abstract, OpInfo, get_op_info, infer_by_meta
from graphport.ops.meta import check_by_meta, check_element_by_kernel
from graphport.program import RESERVED, make_identifier
from graphport.program.codegen import Names
from graphport.symbolic import Expr, Scope
from graphport.symbolic.bridge import to_torch
from graphport.symbolic.floats import FUNCTIONS
from graphport.symbolic.integers import split_terms
from graphport.symbolic.nodes import walk_postorder
from graphport.tensors.abstract import AbstractTensor, get_val, make_abstract_tensor, set_val
from graphport.types import Args, Argument, Kwargs, NodeTarget

# How each kind of size expression is computed by a graph. Sums and products are handled apart.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "abs": operator.abs,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "round_to": round,
    "to_float": torch.sym_float,
    "truediv": operator.truediv,
    "fadd": operator.add,
    "fneg": operator.neg,
    "fmul": operator.mul,
    "fdiv": operator.truediv,
    "ffloordiv": operator.floordiv,
    "fmod": operator.mod,
    "fpow": operator.pow,
    "fmin": torch.sym_min,
    "fmax": torch.sym_max,
    "fabs": operator.abs,
    **{name: getattr(math, name) for name in FUNCTIONS},
    "sqrt": sym_sqrt,
    "feq": operator.eq,
    "flt": operator.lt,
    "fle": operator.le,
    "not": torch.sym_not,
    "ite": torch.sym_ite,
}
_PLAIN_ONLY = (torch.sym_ite, *(getattr(math, name) for name in FUNCTIONS))
_FOLDS: dict[str, Callable[..., Any]] = {
    "min": torch.sym_min,
    "max": torch.sym_max,
    "and": operator.and_,
    "or": operator.or_,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {"ge0": operator.ge, "eq0": operator.eq}


class Recorder:
    """A graph in the making."""

    def __init__(self, scope: Scope) -> None:
        self.frame = Frame()
        self.graph: Graph = self.frame.graph
        self.outermost = self.graph
        """The program's own graph, whichever is being written."""
        """The graph that is being written: that of the frame."""
        self.scope = scope
        self.grad_mode = torch.is_grad_enabled()
        self.grad_modes: dict[Node, bool] = {}
        """Nodes of regions in which the program switched gradients off or on, in order."""
        self.stack: dict[str, tuple[str, str]] = {}
        """nn_module_stack of the module that is running."""
        self.torch_fn: tuple[str, str] | None = None
        self.stop: FrameType | None = None
        """The frame below which nothing is the user's."""
        self.inherited: dict[str, Any] | None = None
        """Metadata of a node of an earlier graph, which what is recorded now comes from."""
        self.added: list[Node] = []
        """Inputs that graphs got while they were being written, in order."""
        self.reserved: set[str] = set()
        """Names that subgraphs must not have: those of the module's children."""
        self.seen: set[Any] = set()
        """Calls whose arguments torch's own kernels have been asked about."""
        self._traces: dict[tuple[int, ...], tuple[str, source.Frames]] = {}

    def emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        """Record an operator on nodes and numbers; its result must be one tensor."""
        return self.record(get_op_info(op), args, kwargs)[1]

    def record(self, info: OpInfo, args: Args, kwargs: Kwargs) -> tuple[Any, Node]:
        """Record an operator. Returns what its rule says of the result, and the node."""
        described = [describe_argument(a) for a in args]
        keywords = {k: describe_argument(v) for k, v in kwargs.items()} if kwargs else kwargs
        if info.rule is None:
            out = infer_by_meta(info.op, described, keywords)
        else:
            out = info.rule(*described, **keywords)
        if info.checked and not self.scope.closed:
            check_by_meta(info.op, described, keywords, out, self.seen)
        if info.elementwise and not self.scope.closed:
            check_element_by_kernel(info.op, described, keywords)
        return out, self.node(info.op, args, kwargs, out, info.name)

    def node(
        self, target: NodeTarget, args: Args, kwargs: Kwargs, out: Argument, name: str
    ) -> Node:
        """Append a call. `out` describes its result."""
        node = self.graph.create_node(
            "call_function",
            target,
            tuple(map(self.argument, args)),
            {k: self.argument(v) for k, v in kwargs.items()},
            name,
        )
        self._annotate(node, to_val(out))
        mode = torch.is_grad_enabled()
        if mode is not self.grad_mode:
            self.grad_modes[node] = mode
        return node

    def set_grad_mode(self, node: Node, mode: bool) -> None:
        self.grad_modes.pop(node, None)
        if mode is not self.grad_mode:
            self.grad_modes[node] = mode

    def enter_grad_mode_of(self, node: Node) -> torch.set_grad_enabled:
        """What is recorded meanwhile is differentiated if that node is."""
        return torch.set_grad_enabled(self.grad_modes.get(node, self.grad_mode))

    def _annotate(self, node: Node, val: object) -> None:
        """Note what a node holds, and where it comes from."""
        set_val(node, val)
        if self.inherited is not None:
            node.meta.update(self.inherited)
            return
        node.meta["nn_module_stack"] = self.stack
        node.meta["stack_trace"] = self.stack_trace()
        if self.torch_fn is not None:
            node.meta["torch_fn"] = self.torch_fn
        custom = traceback.current_meta.get("custom")
        if custom:  # torch.fx.traceback.annotate
            node.meta["custom"] = dict(custom)

    @contextmanager
    def inherit_metadata(self, old: Node, prefix: str = "") -> Iterator[None]:
        """What is recorded meanwhile says of itself what a node of an earlier graph did.

        `prefix` is the path of the module that has become of the earlier graph.
        """
        meta = old.meta
        stack = meta.get("nn_module_stack", {})
        if prefix:
            stack = {
                **self.stack,
                **{
                    _join_prefix(prefix, k): (_join_prefix(prefix, p), c)
                    for k, (p, c) in stack.items()
                },
            }
        origin = (*meta.get("from_node", ()), (old.name, str(old.target)))
        with self.override_metadata(
            {**_origin_metadata(old), "nn_module_stack": stack, "from_node": origin}
        ):
            yield

    @contextmanager
    def copy_metadata(self, node: Node) -> Iterator[None]:
        """What is recorded meanwhile belongs to a node of this graph."""
        with self.override_metadata(_origin_metadata(node)):
            yield

    @contextmanager
    def override_metadata(self, meta: dict[str, object]) -> Iterator[None]:
        before, self.inherited = self.inherited, meta
        try:
            yield
        finally:
            self.inherited = before

    def stack_trace(self) -> str:
        frames = source.Frames(self.stop)
        known = self._traces.get(frames.key)
        if known is None:
            known = self._traces[frames.key] = (str(frames), frames)
        line = source.running.line
        return known[0] if line is None else known[0] + line.trace

    def argument(self, x: Argument) -> Argument:
        """An argument as it stands in the graph: symbolic numbers become nodes."""
        if type(x) is Expr:
            return self.size(x)
        if type(x) in (list, tuple):
            return [self.argument(y) for y in x]
        if type(x) is complex and not cmath.isfinite(x):
            raise UnsupportedError(
                f"the complex number {x} is not finite, and code cannot write it",
                where=source.locate_user_line(),
                fix=f"a tensor: torch.tensor(complex({str(x.real)!r}, {str(x.imag)!r}))",
            )
        return x

    def item(self, node: Node, index: int) -> Node:
        """One result of a node that has several."""
        got = self.graph.create_node(
            "call_function", operator.getitem, (node, index), {}, "getitem"
        )
        set_val(got, get_val(node)[index], node.meta)
        return got

    # Subgraphs

    @contextmanager
    def enter_frame(self, frame: Frame) -> Iterator[None]:
        """Write to the graph of another frame meanwhile."""
        before = self.frame
        self.frame, self.graph = frame, frame.graph
        try:
            yield
        finally:
            self.frame, self.graph = before, before.graph

    def lift_to_input(self, node: Node) -> Node:
        """A node of a graph around this one, as an input of this one."""
        if node.graph is self.graph:
            return node
        frame = self.frame
        if frame.parent is None:
            raise UnsupportedError(
                f"{node.name} was computed inside of a branch or loop, and is used outside of it",
                where=source.locate_user_line(),
                fix="return it from the branch",
            )
        with self.enter_frame(frame.parent):
            outer = self.lift_to_input(node)
        known = frame.inputs.get(outer)
        return known if known is not None else self.open(outer)

    def open(self, outer: Node) -> Node:
        """An input of this graph for a node of the one around it; its sizes can be read from it."""
        frame = self.frame
        inner = frame.inputs[outer] = frame.open(outer.name, copy_val(get_val(outer)))
        self.added.append(inner)
        self.define_sizes(inner)
        return inner

    def define_sizes(self, node: Node, *, on_entry: bool = True) -> None:
        """Let sizes that nothing else in this graph gives be read from a node."""
        val = get_val(node)
        if isinstance(val, AbstractTensor):
            for d, s in enumerate(val._abstract.sizes):
                if type(s) is Expr and s.kind == "symbol" and s not in self.frame.sources:
                    read = functools.partial(self.size_of, node, d, s, on_entry=on_entry)
                    self.define(s, read)

    def attach(self, name: str, module: GraphModule, first: int = 0) -> Node:
        """Attach a subgraph; the get_attr node that refers to it."""
        submodules = self.frame.submodules
        taken = submodules.keys() | self.reserved
        target = next(n for i in itertools.count(first) if (n := f"{name}_{i}") not in taken)
        submodules[target] = module
        return self.graph.create_node("get_attr", target, (), {}, target)

    def _lift_number(self, symbol: Expr) -> Node:
        assert self.frame.parent is not None, f"nothing in the graph gives {symbol}"
        with self.enter_frame(self.frame.parent):
            outer = self.number(symbol)
            if symbol.type is float:  # operators for control flow take tensors and integers
                described = Abstract((), torch.float64, torch.device("cpu"))
                outer = self.node(
                    aten.scalar_tensor.default,
                    (outer,),
                    {"dtype": torch.float64},
                    described,
                    "scalar_tensor",
                )
        inner = self.lift_to_input(outer)
        if symbol.type is not float:
            return inner
        assert self.frame.entry is not None
        with self.graph.inserting_after(self.frame.entry):
            return self.node(aten.item.default, (inner,), {}, symbol, "item")

    # Sizes

    def define(self, symbol: Expr, make: Callable[[], Node]) -> None:
        """Say how a graph obtains a symbol."""
        self.frame.sources[symbol] = make

    def bind_expression(self, e: Expr, node: Node) -> None:
        """Say which node an expression is."""
        self.frame.sizes[e] = node

    def is_defined(self, symbol: Expr) -> bool:
        return symbol in self.frame.sources

    def define_size(self, size: Expr, read: Callable[[], Node]) -> None:
        """How the graph obtains the root symbol of a size: solve factor*root + offset."""
        if size.kind == "symbol":
            self.define(size, read)
            return
        terms, offset = split_terms(size)
        if len(terms) == 1 and terms[0][0].kind == "symbol" and not self.is_defined(terms[0][0]):
            self._define_by_solving(terms[0][0], read, terms[0][1], offset)

    def define_number(self, number: Expr, node: Node) -> None:
        """A number that is an input of the graph."""
        self.bind_expression(number, node)
        self.define_size(number, lambda: node)

    def _define_by_solving(
        self, root: Expr, read: Callable[[], Node], factor: int, offset: int
    ) -> None:
        """The root of a derived dim, from an input that is factor*root + offset."""

        def solve() -> Node:
            result = read()
            for function, number, neutral in (
                (operator.sub, offset, 0),
                (operator.floordiv, factor, 1),
            ):
                if number != neutral:
                    # Never between the inputs: a number is itself one of them.
                    after = self.frame.entry if result.op == "placeholder" else result
                    assert after is not None
                    with self.graph.inserting_after(after):
                        result = self.apply(function, (result, number), root)
            return result

        self.define(root, solve)

    def size_of(self, node: Node, dim: int, value: object, *, on_entry: bool = False) -> Node:
        """The node that reads one size of a tensor."""
        if on_entry:
            assert self.frame.entry is not None
            with self.graph.inserting_after(self.frame.entry):
                return self._sym_size(node, dim, value)
        return self._sym_size(node, dim, value)

    def _sym_size(self, node: Node, dim: int, value: Argument) -> Node:
        made = self.graph.create_node(
            "call_function", aten.sym_size.int, (node, dim), {}, "sym_size_int"
        )
        self._annotate(made, to_torch(value))
        return made

    def size(self, e: Any) -> Argument:
        """The node that computes a symbolic number, in the simplest form that is known."""
        return self.number(self.scope.simplify(e))

    def number(self, e: Any) -> Argument:
        """The node that computes an expression as it stands."""
        if type(e) is not Expr:
            return e
        sizes = self.frame.sizes
        known = sizes.get(e)
        if known is None:
            known = self._lift_truth(e)
            if known is None:
                for part in walk_postorder(e, sizes.__contains__):
                    if part.type is not bool:
                        self.number(part)
                known = self._compute(e)
            sizes[e] = known
        return known

    def _lift_truth(self, e: Expr) -> Node | None:
        """A bool that is a node of an outer graph."""
        frame = self.frame.parent if e.type is bool else None
        while frame is not None and e not in frame.sizes:
            frame = frame.parent
        return self.lift_to_input(frame.sizes[e]) if frame is not None else None

    def _compute(self, e: Expr) -> Node:
        kind = e.kind
        if kind == "symbol":
            make = self.frame.sources.get(e)
            return make() if make is not None else self._lift_number(e)
        if kind == "add":
            return self._sum(e)
        if kind == "mul":
            factors = [
                self.number(a) if n == 1 else self.apply(operator.pow, (self.number(a), n), e)
                for a, n in e.args
            ]
            return self._fold(operator.mul, factors, e)
        if kind in _COMPARISONS:
            return self.apply(_COMPARISONS[kind], (self.number(e.args[0]), 0), e)
        if kind in _FOLDS:
            return self._fold(_FOLDS[kind], [self.number(a) for a in e.args], e)
        return self.apply(_FUNCTIONS[kind], tuple(self.number(a) for a in e.args), e)

    def _sum(self, e: Expr) -> Node:
        """Positive terms first, so that `n - 1` is one subtraction."""
        total: Any = None
        for term, factor in sorted(e.args, key=lambda pair: pair[1] < 0):
            node = self.number(term)
            if abs(factor) != 1:
                node = self.apply(operator.mul, (node, abs(factor)), e)
            if total is None:
                total = node if factor > 0 else self.apply(operator.neg, (node,), e)
            else:
                join = operator.add if factor > 0 else operator.sub
                total = self.apply(join, (total, node), e)
        if e.const:
            join = operator.add if e.const > 0 else operator.sub
            total = self.apply(join, (total, abs(e.const)), e)
        set_val(total, to_torch(e))
        return total

    def _fold(self, function: Callable[..., Any], parts: list[Any], e: Expr) -> Node:
        total = parts[0]
        for part in parts[1:]:
            total = self.apply(function, (total, part), e)
        return total

    def apply(self, function: Callable[..., Any], args: tuple[Argument, ...], e: Expr) -> Node:
        """A call of a function on numbers, whose result is `e`."""
        values = [get_val(a) if isinstance(a, Node) else a for a in args]
        name = function.__name__.strip("_")
        node = self.graph.create_node("call_function", function, args, {}, name)
        # sym_ite wants both branches symbolic, and math would have plain numbers.
        val = to_torch(e) if function in _PLAIN_ONLY else function(*values)
        self._annotate(node, val)
        return node


def _origin_metadata(node: Node) -> dict[str, object]:
    """What a node says of where it comes from."""
    kept = ("nn_module_stack", "stack_trace", "torch_fn", "from_node", "custom")
    found = {k: node.meta[k] for k in kept if k in node.meta}
    return {"nn_module_stack": {}, "stack_trace": "", **found}


def _join_prefix(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if path and not path.startswith("@") else f"{prefix}{path}"


def copy_val(val: object) -> object:
    """Metadata for another node: a tensor in it belongs to the node that it describes."""
    if isinstance(val, AbstractTensor):
        return make_abstract_tensor(val._abstract, val.requires_grad)
    return val


def describe_argument(x: Argument) -> Any:
    """An argument as a shape rule sees it."""
    if type(x) is Node:
        val = get_val(x)
        return val._abstract if isinstance(val, AbstractTensor) else val
    if type(x) in (list, tuple):
        return [describe_argument(y) for y in x]
    return x


def to_val(out: object) -> object:
    """What a rule says of a result, as node metadata."""
    if isinstance(out, Abstract):
        return make_abstract_tensor(out)
    if isinstance(out, (list, tuple)):
        return tuple(to_val(x) for x in out)
    return to_torch(out) if type(out) is Expr else out


# Unique names of graph inputs. The user's own names win; what clashes gets `_1`, `_2`, ...


class Namespace(Names):
    """Hands out each name once, as an identifier."""

    def __init__(self) -> None:
        super().__init__(RESERVED)

    def unique(self, wanted: str) -> str:
        return super().unique(make_identifier(wanted))

    def placeholder(self, graph: Graph, name: str) -> Node:
        """An input under exactly this name, also where torch.fx would avoid a builtin's."""
        node = graph.create_node("placeholder", name, (), {}, name="gp_input")
        node.name = name
        graph._graph_namespace._used_names.add(name)
        return node


# Frames: the subgraphs that are being recorded, branches of `torch.cond` and bodies of loops.
#
# While a branch is captured its graph is the one that is written to. What it uses of the graphs
# around it becomes an input of its own, on the way through every graph between. What it writes to
# means something else in it, and again what it meant before when it is done.


class OuterWrite(NamedTuple):
    """Memory of the graphs around that a graph writes to."""

    base: Value
    node: Node
    """What it holds in the end."""
    where: source.Location | None


class Frame:
    """One graph in the making, and where in it numbers are found."""

    def __init__(self, parent: Frame | None = None, since: int = 0) -> None:
        self.graph = Graph()
        self.parent = parent
        self.since = since
        """How many symbols there were when it was begun."""
        self.entry: Node | None = None
        """The last input: sizes of inputs are read after it, where every node may use them."""
        self.sizes: dict[Any, Node] = {}
        """The node of each number that the graph computes."""
        self.sources: dict[Expr, Callable[[], Node]] = {}
        """How the graph obtains a symbol."""
        self.items = ItemCache()
        self.inputs: dict[Node, Node] = {}
        """Nodes of the graph around this one, and the inputs that stand for them here."""
        self.submodules: dict[str, GraphModule] = {}
        self.read_only: dict[Node, str] = {}
        """Inputs that must not be written to, and what they are."""
        self._before: dict[Value, tuple[Any, ...]] = {}
        self._written: dict[Storage, tuple[int, bool, source.Location | None]] = {}

    def open(self, name: str, val: object) -> Node:
        """A new input, after those that are there; under this name, if it is free."""
        used = self.graph._graph_namespace._used_names
        if name in used:
            name = self.graph._graph_namespace.create_name(name, None)
        with self.graph.inserting_after(self.entry or self.graph._root):
            node = self.graph.create_node("placeholder", name, (), {}, name="gp_input")
        node.name = name
        used.add(name)
        set_val(node, val)
        self.entry = node
        return node

    def origins(self) -> dict[Node, Node]:
        """What the inputs of this graph and of those around it stand for."""
        found = self.parent.origins() if self.parent is not None else {}
        return found | {inner: outer for outer, inner in self.inputs.items()}

    # What values mean here

    def keep(self, value: Value) -> None:
        """Called before a value gets another node, which is one of this graph."""
        if self.parent is not None and value.node.graph is not self.graph:
            now = (value.node, value.version, value.constant, value.number)
            self._before.setdefault(value, now)

    def note_write(self, value: Value) -> None:
        """Called before a value is written to."""
        storage = value.storage
        if storage.origin in self.read_only:
            raise MutationError(
                f"the program writes to {self.read_only[storage.origin]}",
                where=source.locate_user_line(),
                fix="write to a copy, x = x.clone(), and return it",
            )
        self.keep(value)
        if self.parent is not None and storage.base.node.graph is not self.graph:
            now = (storage.version, storage.mutated, source.locate_user_line())
            self._written.setdefault(storage, now)

    def leave(self) -> list[OuterWrite]:
        """Let values of the graphs around mean what they did; what this one has written to them."""
        found = [
            OuterWrite(s.base, s.base.node, where) for s, (_, _, where) in self._written.items()
        ]
        for value, (node, version, constant, number) in self._before.items():
            value.node, value.version = node, version
            value.constant, value.number = constant, number
        for storage, (version, mutated, _) in self._written.items():
            storage.version, storage.mutated = version, mutated
        return found
