"""The dispatch mode that records every ATen operator and functionalises mutation.

It is a dispatch mode that runs below autograd. There an operator arrives as the user called it,
with its arguments in the order of its schema, and composite operators (`linear`, `layer_norm`,
`einsum`, ...) arrive whole. Those with a shape rule are kept; the others are decomposed by torch's
own kernels, whose operators arrive here in turn.

Mutation becomes a new value as it happens; see `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import Node

from graphport import source
from graphport.capture.trace import values
from graphport.capture.trace.layout import (
    Layouts,
    chooses_format,
    guard_stride_order,
    is_contiguous_clone,
    layout_error,
    settle_format,
)
from graphport.capture.trace.recorder import Recorder
from graphport.capture.trace.scalars import Assertions, ConcreteRun
from graphport.capture.trace.state import State
from graphport.capture.trace.state_values import StateValues
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    get_current_dispatch_mode,
    pytree,
)
from graphport.errors import MutationError, UnsupportedError
from graphport.ops import Abstract, get_op_info
from graphport.ops.effects import CONTIGUOUS_RESULTS, INVERSES, invert_view, scatter_view
from graphport.ops.registry import OpInfo
from graphport.ops.sizes import expect_condition, numel
from graphport.program.call_checks import InputChecks
from graphport.symbolic import Expr, lt, substitute, symbols
from graphport.symbolic.bridge import from_torch, is_symbolic, to_expression, to_torch
from graphport.symbolic.integers import split_terms
from graphport.tensors.abstract import AbstractTensor, Size, describe, get_val, make_abstract_tensor
from graphport.tensors.subclasses import has_own_dispatch
from graphport.types import Args, Argument, Kwargs

Handler = Callable[["Tracer", OpInfo, Any, dict[str, Any]], Any]

PURE = "operators that read tensors and make new ones"
VIEW = "operators whose result shares memory with their first argument"
INPLACE = "operators that write to their first argument, and come in another form"
INPLACE_VIEW = "operators that make their first argument a view of what it was"
OUT = "operators that write to tensors given as out="
MUTATING = "operators that write to their arguments, and come in no other form"
DECOMPOSED = "operators of torch's own that are made of others"
COMPOSITE = "custom operators that are made of others"
CUSTOM = "custom operators that make new tensors"
# Composite operators of torch's own are decomposed unless a rule describes them whole.
_OWN_NAMESPACES = ("aten", "prims", "prim")
HANDLERS: dict[OpOverload | str, Handler] = {}
"""Operators that need more than a shape rule; filled by the modules that know them.

Those that do not exist before a part of torch is imported are keyed by name, or by namespace.
"""


def register_handler(*ops: OpOverload | str) -> Callable[[Handler], Handler]:
    def register(fn: Handler) -> Handler:
        for op in ops:
            if op in HANDLERS:
                raise ValueError(f"{op} is handled already")
            HANDLERS[op] = fn
        return fn

    return register


_OBJECT = torch.ScriptObject


class Tracer(TorchDispatchMode):
    """Records operators on abstract tensors. One per capture."""

    def __init__(self, recorder: Recorder, state: State) -> None:
        super().__init__()
        self.recorder = recorder
        self.scope = recorder.scope
        self.state = state
        self.assertions = Assertions(recorder)
        self.function_mode: Any = nullcontext()
        """The function mode that the user's code runs under."""
        self.objects: list[Any] = []
        """Custom objects among the arguments of the call under way, as the user holds them."""
        self.decomposing = 0
        """How deep in torch's own kernels for composite operators."""
        self.example: ConcreteRun | None = None
        """Where a draft takes the data from that the program asks for."""
        self.state_values: StateValues | None = None
        """What follows from the program's state alone."""
        self.counts: dict[Node, Expr] = {}
        """How many elements of a mask are set, where that has been asked."""
        self.first_elements: dict[Node, Size] = {}
        """What is known of the first element of a tensor."""
        self.sparse_constants: dict[int, tuple[torch.Tensor, Any]] = {}
        """Sparse tensors from outside, and what they are made of, by id."""
        self.inputs: list[Node] = []
        """The placeholders of the user's inputs."""
        self.fixed_layouts: set[Node] = set()
        """Those of them that must have the strides of the example."""
        self.uncopied: dict[Node, bool] = {}
        """Nodes that `contiguous()` gave back as they were, and whether others are made of them."""
        self.unsteady: set[Node] = set()
        """Values whose layout is fixed here, and in eager depends on the branch or step."""
        self.from_start: set[Node] = set()
        """Those of them that must have storage offset 0."""
        self.read_after_write: dict[Node, set[Node]] = {}
        """Inputs that are written to, and those that are read or written to after that."""
        self.gradient_cache: dict[Node, bool] = {}
        """Whether a run can have a gradient at a node, where that has been asked."""
        self.takes_gradients = False
        """Whether the program has called torch.autograd.grad."""
        self.leaves: dict[Node, Node] = {}
        """Tensors that `requires_grad_()` made leaves, and the last node before."""
        self.hooked: dict[Node, torch.Tensor] = {}
        """Those that have hooks for their gradients."""
        self.function_calls: dict[Node, Any] = {}
        """Calls of autograd.Functions, by the nodes of their results."""
        self.final_derivatives: dict[Node, Node] = {}
        """Nodes of derivatives that are not differentiated again, and of what they are ones."""
        self.untracked_writes: set[Node] = set()
        """What tensors hold after a write under `torch.no_grad()`."""
        self.has_written = False
        """Whether a tensor has been written to: its strides may differ from eager's."""
        self.default_dtype = torch.get_default_dtype()
        """What programs run under: one may change it as it runs."""
        self._handlers: dict[Any, tuple[Handler, OpInfo]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Capture never runs under Dynamo; the guard against it would import Dynamo."""
        return False

    def __exit__(self, *error: object) -> None:
        """Unless an interrupt has popped it already: to fail now would cover that up."""
        if get_current_dispatch_mode() is self:
            super().__exit__(*error)

    def __torch_dispatch__(
        self, op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Argument:
        if any(map(has_own_dispatch, types)):
            return self._dispatch_to_subclass(op, args, kwargs or {})
        entry = self._handlers.get(op)
        if entry is None:
            entry = self._handlers[op] = self._choose(op)
        scope = self.scope
        if len(scope.facts) != self.assertions.seen:
            self.assertions.flush()
        before, scope.internal = scope.internal, True
        try:
            return entry[0](self, entry[1], args, kwargs or {})
        finally:
            scope.internal = before

    def _dispatch_to_subclass(self, op: OpOverload, args: Args, kwargs: Kwargs) -> Argument:
        """Ask a tensor subclass, as torch does: of composite operators it sees the parts."""
        if isinstance(op, OpOverload) and get_op_info(op).composite:
            return trace_decomposition(self, op.decompose, args, kwargs)
        return NotImplemented

    def _choose(self, op: OpOverload) -> tuple[Handler, OpInfo]:
        if isinstance(op, HigherOrderOperator):
            raise UnsupportedError(
                f"{op.name()} cannot be captured yet", where=source.locate_user_line()
            )
        info = get_op_info(op)
        special = (HANDLERS.get(key) for key in (op, op.name(), op.namespace))
        handler = next(filter(None, special), None) or HANDLERS[_classify(info)]
        if _has_default_dtype(op):
            handler = _wrap_with_dtype(handler, self.default_dtype)
        return handler, info

    # Values

    def value(self, t: torch.Tensor) -> Value:
        """What the graph knows of a tensor; a tensor from outside becomes an input of the graph."""
        if type(t) is AbstractTensor:
            return t._value
        return self.state.value(t)

    def read(self, v: Value) -> Node:
        """The node that holds the value now, in the graph that is being written."""
        if self.read_after_write:
            self._note_read(v)
        node = v.node if v.version == v.storage.version else self._recompute_view(v)
        return node if node.graph is self.recorder.graph else self.recorder.lift_to_input(node)

    def _note_read(self, v: Value) -> None:
        """What is read after a write to an input must not share memory with that."""
        origins = {v.storage.origin}
        if v.storage.origin is None:
            # What is a copy in the layout of the example may be a view in that of the call.
            origins = {s.origin for found in v.storage.possible_aliases for s in found.storages}
        for origin in origins - {None}:
            for written, later in self.read_after_write.items():
                if origin is not written:
                    later.add(origin)

    def _note_write(self, origin: object) -> None:
        if origin not in self.inputs:
            return
        self.read_after_write.setdefault(origin, set())
        for written, later in self.read_after_write.items():
            # Within a branch or loop it is not followed what is read when.
            others = self.inputs if self.recorder.frame.parent else (origin,)
            later.update(n for n in others if n is not written)

    def expect_facts(self, checks: InputChecks, leaves: list[object]) -> None:
        """What a captured program checks of its sizes is checked here, and asked no more.

        Its own checks are branches, which would count as those of the user's code.
        """
        sizes: dict[Expr, Size] = {}
        for t, given in zip(leaves, checks.inputs, strict=False):
            if isinstance(t, torch.Tensor) and t.dim() == len(given.sizes or ()):
                for want, have in zip(given.sizes or (), self.value(t).abstract.sizes, strict=True):
                    terms, offset = split_terms(want)
                    if len(terms) == 1 and terms[0][0].kind == "symbol":
                        symbol, factor = terms[0]
                        sizes.setdefault(symbol, (have - offset) // factor)
        for fact in checks.facts:
            if all(s in sizes for s in symbols(fact)):
                self.scope.expect(substitute(fact, sizes))

    def inherit_checks(self, checks: InputChecks, leaves: list[object]) -> None:
        """What a captured program reads after a write must not share memory here, either.

        Its graph writes only at its end, and does not show what came before.
        """
        origins = {
            i: self.value(t).storage.origin
            for i, t in enumerate(leaves)
            if isinstance(t, torch.Tensor)
        }
        for i, later in (checks.written or {}).items():
            if origins.get(i) in self.inputs:
                found = self.read_after_write.setdefault(origins[i], set())
                found.update({origins[j] for j in later if j in origins} - {origins[i], None})

    def _recompute_view(self, v: Value) -> Node:
        """A value whose storage was written to, made again in the current graph."""
        if v.storage.possible_aliases:
            values.resolve_stale_aliases(v.storage)
        if v.storage.layout_dependent:
            self._resolve_layouts(v)
        if v.parent is None:
            v.version = v.storage.version
            return v.node
        assert v.op is not None
        if v.viewed is not None:
            self.require_layout(v)
        if v.op is aten.as_strided.default:
            where = source.locate_stack_trace(v.node.meta.get("stack_trace"))
            self.require_filled(v.parent, v.args, where)
        self.recorder.frame.keep(v)
        made_at = v.node.meta.get("stack_trace", "")
        with self.recorder.enter_grad_mode_of(v.node):
            v.node = self.view_node(v.op, self.read(v.parent), v.args)
        if v.node.meta.get("stack_trace") == "":  # the program has returned
            v.node.meta["stack_trace"] = made_at
        v.version = v.storage.version
        v.constant = v.number = None
        return v.node

    def require_filled(
        self, owner: Value, recipe: tuple[object, ...], where: source.Location | None
    ) -> None:
        """Refuse as_strided beyond the elements of a tensor that the graph has a copy of."""
        moved = owner.storage.mutated or not has_same_strides(owner.node, owner.abstract)
        if moved and not owner.abstract.is_contiguous:
            raise MutationError(
                "as_strided of a tensor that is not dense is read after a write, which has no "
                "functional form",
                where=where,
                fix="make the tensor contiguous first: x = x.contiguous()",
            )
        # as_strided then reads a copy, whose storage holds nothing but the tensor's elements.
        copied = moved or len(recipe) > 2
        if (
            copied
            and owner.storage.origin is not None
            and not _has_elements_for(owner.abstract, recipe)
        ):
            raise MutationError(
                "as_strided reaches beyond the elements of an input or weight, into its storage, "
                "after a write or with a storage offset",
                where=where,
                fix="pass all of the memory as one tensor, and take the part of it in the program",
            )

    def _resolve_layouts(self, v: Value) -> None:
        """A value is read after a write through a view of its memory that may be a copy."""
        for written in v.storage.layout_dependent:
            self.require_layout(written)
        v.storage.layout_dependent = ()

    def require_layout(self, v: Value) -> None:
        """Require the layout of the example of inputs, in which a value is a view and no copy."""
        if v.viewed is not None:
            self.demand_layout(v.viewed)
            v.viewed = None

    def demand_layout(self, node: Node) -> None:
        """Require the layout of the example of the inputs that the layout of a node depends on."""
        layouts = Layouts(self.state, self.unsteady)
        if node.graph is self.recorder.outermost and layouts.is_certain(node):
            return
        outer = self.recorder.frame.origins()
        waiting, seen = [node], {node}
        while waiting:
            top = waiting.pop()
            if top in self.unsteady:
                raise layout_error(top)
            around = [outer[top]] if top in outer else []
            reads = [n for n in (*top.all_input_nodes, *around) if n not in seen]
            seen.update(reads)
            waiting.extend(n for n in reads if not layouts.is_certain(n))
        for n in seen:
            guard_stride_order(n)
            if chooses_format(n):
                for read in n.all_input_nodes:
                    settle_format(read)
        within = node.graph is not self.recorder.outermost
        self.fixed_layouts.update(self.inputs if within else seen.intersection(self.inputs))

    def must_reshape(self, node: Node) -> bool:
        """Whether a view of a node may have to copy it, in another layout of the inputs.

        Eager's `contiguous()` would have copied then what a view needs to be contiguous.
        """
        if not is_contiguous(node):
            return True
        waiting = [node] if self.uncopied else []
        while waiting:
            top = waiting[-1]
            missing = [n for n in top.all_input_nodes if n not in self.uncopied]
            if top in self.uncopied or not missing:
                waiting.pop()
            else:
                waiting.extend(missing)
                continue
            if top not in self.uncopied:
                steady = top.target in CONTIGUOUS_RESULTS or is_contiguous_clone(top)
                made = not steady and any(self.uncopied[n] for n in top.all_input_nodes)
                self.uncopied[top] = made
        return self.uncopied.get(node, False)

    def note_possible_alias(
        self, base: Value, copy: Value, node: Node, shared: Callable[[], bool]
    ) -> None:
        """Remember that a copy may be a view at other sizes, or in another layout of the node."""

        def ask() -> bool:
            self.demand_layout(node)
            return shared()

        values.note_possible_alias(base, copy, ask)

    def read_as_view(self, v: Value) -> Node:
        """The value as a view of what it shares memory with, also if that was written through it.

        Where nothing was written, its node is one already; but what `detach` gives is never the
        tensor itself.
        """
        if v.parent is None or v.op is None:
            return self.read(v)
        if v.op is aten.alias.default:
            return self.recorder.emit(aten.detach.default, self.read_as_view(v.parent))
        if not v.storage.mutated:
            return self.read(v)
        return self.view_node(v.op, self.read_as_view(v.parent), v.args)

    def write(self, v: Value, node: Node, uniform: bool = False) -> None:
        """Give a tensor a new value, and with it every tensor that it is a view of.

        `uniform`: each element of it is the same number.
        """
        values.refuse_internal_overlap(v, uniform)
        news, dependent = [(v, node, False)], list[Value]()
        for views, above in values.iterate_to_base(v):
            dependent += [view for view in views if view.viewed is not None]
            node = self._propagate_write(views, above, node)
            news.append((above, node, bool(dependent)))
        storage = v.storage
        for value, _, _ in news:
            self.recorder.frame.note_write(value)
        storage.version += 1
        storage.mutated = self.has_written = True
        if storage.origin is not None:
            self._note_write(storage.origin)
        if not torch.is_grad_enabled():
            self.untracked_writes.update(new for _, new, _ in news)
        for value, new, is_dependent in news:
            value.node = new
            # One that depends on the layout is made again when it is read.
            value.version = storage.version - is_dependent
            value.constant = value.number = None
        if self.recorder.frame.parent is not None:
            for view in dependent:
                self.require_layout(view)
        elif dependent:
            storage.layout_dependent = (*storage.layout_dependent, *dependent)
        if storage.possible_aliases:
            values.mark_aliases_stale(storage)

    def _propagate_write(self, views: list[Value], above: Value, new: Node) -> Node:
        """What a tensor holds after the last of some views of views of it was given a new value."""
        base = self._current(above)
        emit, shape = self.recorder.emit, above.abstract
        if len(views) == 1 and views[0].op in INVERSES:
            return invert_view(emit, views[0].op, base, shape, new, views[0].args)
        for view, whole in zip(views, (above, *views), strict=False):
            if view.abstract.dtype is not whole.abstract.dtype:
                raise MutationError(
                    "a write through a view as another dtype, of a tensor with internal overlap, "
                    "has no functional form",
                    where=source.locate_user_line(),
                    fix="write to a copy: x = x.clone()",
                )
            if view.op is aten.as_strided.default and not _is_within_memory(view, whole.abstract):
                raise MutationError(
                    "a write through as_strided beyond the elements of a tensor has no functional "
                    "form",
                    where=source.locate_user_line(),
                    fix="make the tensor contiguous first: x = x.contiguous()",
                )

        def see(numbers: Node) -> Node:
            for view in views:
                assert view.op is not None
                if view.op is aten.view.dtype:  # as the dtype that it has: the numbers' is another
                    continue
                numbers = self.view_node(view.op, numbers, view.args)
            return numbers

        return scatter_view(emit, base, shape, new, see)

    def _current(self, v: Value) -> Node:
        """The node that holds a value which is about to be written to: nobody reads it."""
        dependent, v.storage.layout_dependent = v.storage.layout_dependent, ()
        node = self.read(v)
        v.storage.layout_dependent = dependent
        return node

    def wrap(self, value: Value, grad: bool = False) -> AbstractTensor:
        """A tensor for the user to hold: the one of the value's node, if it lies as in eager."""
        t: AbstractTensor = get_val(value.node)
        if t._value is not None or not has_same_strides(value.node, value.abstract):
            t = make_abstract_tensor(value.abstract)
        else:
            t._node = value.node
        t._value = value
        if grad and (t.dtype.is_floating_point or t.dtype.is_complex):
            t.requires_grad_()
        return t

    def hold(self, value: Value, grad: bool = False) -> AbstractTensor:
        """A tensor for whoever goes on computing with a value that the graph has already."""
        t = make_abstract_tensor(value.abstract, grad)
        t._value = value
        return t

    def fresh(self, out: object, node: Node, grad: bool = False) -> Argument:
        """Tensors for the user from the result of a recorded operator."""
        if isinstance(out, Abstract):
            return self.wrap(Value(out, node), grad)
        if isinstance(out, (list, tuple)):
            items = [
                self.fresh(x, self.recorder.item(node, i), grad) if x is not None else None
                for i, x in enumerate(out)
            ]
            return items if isinstance(out, list) else tuple(items)
        if type(out) is not Expr:
            return out
        if out.kind == "symbol" and not self.recorder.is_defined(out):
            self.recorder.define(out, lambda: node)
        return to_torch(out)

    def describe_as_in_eager(
        self, info: OpInfo, args: Args, kwargs: Kwargs, out: object
    ) -> Argument:
        """A result with the strides of eager, where a written operand has others in the graph."""
        given = [t for t in pytree.tree_leaves((args, kwargs)) if type(t) is AbstractTensor]
        if (
            all(has_same_strides(t._value.node, t._value.abstract) for t in given)
            or info.rule is None
        ):
            return out
        described, keywords = pytree.tree_map(self.describe, (list(args), kwargs))
        return info.rule(*described, **keywords)

    def describe(self, x: object) -> Argument:
        """An argument as rules take it, with tensors that have the strides of eager."""
        if isinstance(x, torch.Tensor):
            return self.value(x).abstract
        return to_expression(x)

    # Arguments

    def lower(self, x: Argument) -> Argument:
        """An argument as the recorder takes it: tensors are nodes, symbolic numbers expressions."""
        if isinstance(x, torch.Tensor):
            v = self.value(x)
            node = v.node
            if self.read_after_write:
                self._note_read(v)
            if v.version == v.storage.version and node.graph is self.recorder.graph:
                return node
            return self.read(v)
        if isinstance(x, (list, tuple)):
            return [self.lower(y) for y in x]
        if is_symbolic(x):
            return from_torch(x)
        if type(x) is torch.Generator:
            raise UnsupportedError(
                "random numbers of a generator of their own cannot be captured",
                where=source.locate_user_line(),
                fix="draw them without generator=, from torch's own",
            )
        return self._object(x) if type(x) is _OBJECT else x

    def _object(self, x: object) -> Node:
        """torch hands an object over in a new wrapper: the user's own is known by its place."""
        own = self.objects.pop(0) if self.objects else x
        return self.recorder.lift_to_input(self.state.object(own))

    def call(self, op: OpOverload, *args: Argument, **kwargs: Argument) -> Argument:
        """Call an operator as the user would."""
        return self.__torch_dispatch__(op, (), args, kwargs)

    def resolve_conj(self, node: Node) -> Node:
        """A complex value whose conjugation is carried out, if it is one: torch only notes it."""
        seen: Any = node
        while isinstance(seen.target, OpOverload) and get_op_info(seen.target).view:
            if seen.target is aten._conj.default:
                # Not resolve_conj, which decompositions take for the tensor itself.
                plain = self.recorder.emit(aten._conj.default, node)
                return self.recorder.emit(aten._conj_physical.default, plain)
            seen = seen.args[0]
        return node

    def view_node(self, op: OpOverload, base: Node, args: Args) -> Node:
        """Record a view; one whose layout is not certain is recorded so that it may copy."""
        if op in (aten.alias.default, aten.contiguous.default):
            return base
        if op is aten.view.default and self.must_reshape(base):
            op = aten.reshape.default
        if op is aten.view_as_real.default:
            base = self.resolve_conj(base)
        if op is aten.as_strided.default:
            # The strides of a new value are those that its operator chooses; here they matter. An
            # offset is one in the storage, and an input may have a storage offset of its own.
            begins = base.op != "placeholder"
            if len(args) > 2 if not begins else not is_contiguous_clone(base):
                base = self.recorder.emit(
                    aten.clone.default, base, memory_format=torch.contiguous_format
                )
        return self.recorder.emit(op, base, *args)


def _is_within_memory(view: Value, whole: Abstract) -> bool:
    """Whether all that as_strided reaches is memory of the tensor."""
    return whole.is_contiguous and _has_elements_for(whole, view.args)


def _has_elements_for(whole: Abstract, recipe: tuple[Any, ...]) -> bool:
    """Whether a contiguous tensor has as many elements as as_strided looks at."""
    size, stride, *offset = recipe
    last = sum(((n - 1) * step for n, step in zip(size, stride, strict=True)), start=0)
    last = last + (offset[0] if offset else 0)
    return 0 in size or expect_condition(lt(last, numel(whole.sizes)))


def has_same_strides(node: Node, seen: Abstract) -> bool:
    abstract: Abstract = describe(node)
    return abstract is seen or abstract.strides == seen.strides


def is_contiguous(node: Node) -> bool:
    abstract: Abstract = describe(node)
    return abstract.is_contiguous


def _classify(info: OpInfo) -> str:
    """The kind of an operator that has no handler of its own."""
    if info.outs:
        return OUT
    if info.mutated and info.functional is None:
        return DECOMPOSED if info.composite else MUTATING
    if info.mutated:
        return INPLACE_VIEW if torch.Tag.inplace_view in info.op.tags else INPLACE
    if info.rule is None and info.composite:
        return DECOMPOSED if info.op.namespace in _OWN_NAMESPACES else COMPOSITE
    if info.view:
        return VIEW
    return PURE if info.op.namespace in _OWN_NAMESPACES else CUSTOM


def _has_default_dtype(op: OpOverload) -> bool:
    """Whether it makes a tensor of the default dtype if no dtype is passed."""
    types = {a.name: str(a.type) for a in op._schema.arguments}
    return "dtype" in types and not any("Tensor" in t for t in types.values())


def _wrap_with_dtype(handler: Handler, default: torch.dtype) -> Handler:
    """Write out the dtype of what is made while the default is another than when it runs."""

    def make(tracer: Tracer, info: OpInfo, args: Args, kwargs: Kwargs) -> Argument:
        made = handler(tracer, info, args, kwargs)
        if torch.get_default_dtype() is not default and isinstance(made, torch.Tensor):
            node = tracer.value(made).node
            if node.op == "call_function" and "dtype" not in node.kwargs:
                node.kwargs = {**node.kwargs, "dtype": made.dtype}
        return made

    return make


def trace_decomposition(
    tracer: Tracer, parts: Callable[..., Any], args: Args, kwargs: Kwargs
) -> Argument:
    """Trace the decomposition of an operator.

    An override of torch's Python API is called while the tracer is active; were it so twice, it
    would record what torch's meta kernels do, too.
    """
    tracer.decomposing += 1
    try:
        with nullcontext() if get_current_dispatch_mode() is tracer else tracer:
            return parts(*args, **kwargs)
    finally:
        tracer.decomposing -= 1
