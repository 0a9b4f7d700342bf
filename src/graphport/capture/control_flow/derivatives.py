"""`torch.autograd.grad` within a program: differentiates the nodes that were recorded.

Nothing is differentiated before a program asks. Then the nodes between the inputs and the outputs
of the call are gone through backwards, and torch's own derivative of each is recorded: `torch.func`
pulls the gradients of its results back to its operands. What the program excluded stays excluded:
regions of `torch.no_grad()`, `detach()`, what a tensor was used for before `requires_grad_()`.
Where an `autograd.Function` was called its own backward runs; hooks of tensors run on their
gradients; derivatives can be differentiated again.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphport import source
from graphport.capture.control_flow.autograd_functions import FunctionCall
from graphport.capture.control_flow.transforms import DEFINITIONS, has_open_size
from graphport.capture.trace.function_mode import register_override
from graphport.capture.trace.recorder import Recorder
from graphport.capture.trace.tracer import Tracer
from graphport.capture.trace.training import TrainingTracer
from graphport.capture.trace.values import Value
from graphport.compat.operators import aten
from graphport.compat.torch import (
    BackwardHookFunction,
    HigherOrderOperator,
    OpOverload,
    get_mkldnn_enabled,
    pytree,
    set_mkldnn_enabled,
)
from graphport.errors import ExportError, MutationError, UnsupportedError
from graphport.ops.registry import overloads
from graphport.process import undo_on_exit
from graphport.tensors.abstract import AbstractTensor, describe, get_val
from graphport.types import Args, Argument, Function, Kwargs

_FORWARD = "torch.autograd.grad(energy, positions)[0] gives the gradient as a tensor"


@register_override(torch.Tensor.backward, torch.autograd.backward)
def backward(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    raise UnsupportedError(
        "backward() adds to the .grad of each parameter, which is no result of a program",
        where=source.locate_user_line(),
        fix=_FORWARD,
    )


@register_override(torch.autograd.grad)
def grad(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    call = inspect.signature(torch.autograd.grad).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    outputs, inputs = map(_to_tuple, (given["outputs"], given["inputs"]))
    if all(type(t) is torch.Tensor for t in outputs):
        return NotImplemented  # what torch.func has recorded, it differentiates itself
    tracer.takes_gradients = True
    if isinstance(tracer, TrainingTracer):
        raise UnsupportedError(
            "torch.autograd.grad within a program in training form, where writes stay writes",
            where=source.locate_user_line(),
            fix="capture without training=True",
        )
    seeds = given["grad_outputs"]
    gradients = _to_tuple((None,) * len(outputs) if seeds is None else seeds)

    def differentiate(*seeds: Any) -> tuple[Any, ...]:
        found = _Differentiation(tracer, outputs, inputs).run(seeds)
        return tuple(map(_settle, inputs, found))

    def _settle(t: torch.Tensor, found: torch.Tensor | None) -> torch.Tensor | None:
        if found is None and given["materialize_grads"]:
            return torch.zeros_like(t)
        if found is None and not given["allow_unused"]:
            raise RuntimeError(_UNUSED)
        if found is not None and torch.is_grad_enabled() and type(found) is AbstractTensor:
            found.requires_grad_()
        return found

    with torch.set_grad_enabled(bool(given["create_graph"])):
        if given["is_grads_batched"]:
            return torch.vmap(differentiate)(*gradients)
        return differentiate(*map(_seed, outputs, gradients))


_UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set "
    "allow_unused=True if this is the desired behavior."
)


def _to_tuple(x: Any) -> tuple[Any, ...]:
    return (x,) if isinstance(x, torch.Tensor) else tuple(x)


def _seed(output: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    if given is not None:
        return given
    if output.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    with torch.no_grad():
        return torch.ones_like(output)


@register_override(torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)
def requires_grad_(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    """What a tensor was used for before it is a leaf has no gradient of it."""
    t = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if wanted and not t.requires_grad:
        tracer.leaves[tracer.read(tracer.value(t))] = last_node(tracer.recorder)
    return NotImplemented


@register_override(torch.Tensor.register_hook)
def register_hook(tracer: Tracer, func: Function, args: Args, kwargs: Kwargs) -> Argument:
    tracer.hooked[tracer.read(tracer.value(args[0]))] = args[0]
    return NotImplemented


class _Differentiation:
    """One call."""

    def __init__(self, tracer: Tracer, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        self.tracer = tracer
        self.recorder = tracer.recorder
        self.tensors = outputs
        self.outputs = [tracer.read(tracer.value(t)) for t in outputs]
        self.inputs = [tracer.read(tracer.value(t)) for t in inputs]
        if not all(t.requires_grad for t in inputs):
            raise RuntimeError("One of the differentiated Tensors does not require grad")
        self.gradients: dict[Node, torch.Tensor] = {}
        self.reached: set[Node] = set()
        """What depends on the inputs."""
        self.constant: set[tuple[Any, ...]] = set()
        """Nodes with the number of a result that has no gradient: the operands of a getitem."""

    def run(self, seeds: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        path = self._find_path()
        for i, (node, seed) in enumerate(zip(self.outputs, seeds, strict=True)):
            if node in self.reached:
                self._add(node, seed)
            elif not self.tensors[i].requires_grad:
                raise RuntimeError(f"element {i} of tensors does not require grad")
        for node in reversed(path):
            self._pass(node)
        for node in self.inputs:
            self._finish(node)
        return [self.gradients.get(n) for n in self.inputs]

    # Which nodes there are between inputs and outputs

    def _find_path(self) -> list[Node]:
        """Nodes on a differentiable way from an input to an output, in their order."""
        above = self._find_ancestors()
        calls = self.tracer.function_calls
        leaves = self.tracer.leaves
        reached = self.reached = set(self.inputs)
        path = []
        for node in list(self.recorder.graph.nodes):
            if node not in above or node in reached or node.args in self.constant:
                continue
            reads = calls[node].inputs if node in calls else node.all_input_nodes
            if any(n in reached and not (n in leaves and node <= leaves[n]) for n in reads):
                if self._is_differentiable(node):
                    reached.add(node)
                    path.append(node)
                    if isinstance(get_val(node), (tuple, list)) and node not in calls:
                        self.constant.update((node, i) for i in self._list_constant_results(node))
        self._refuse_constant_results(above)
        return path

    def _refuse_constant_results(self, above: set[Node]) -> None:
        """Only the derivatives of whole backward operators know what their statistics depend on."""
        for item in above:
            if item.args in self.constant and not all(
                u.target._opname.endswith("_backward")
                for u in item.users
                if u in above and isinstance(u.target, OpOverload)
            ):
                raise _refusal(item.args[0], "torch has its second derivative at fixed sizes only")

    def _find_ancestors(self) -> set[Node]:
        """All that the outputs are computed of, through no input."""
        seen = set(self.outputs)
        waiting = [n for n in self.outputs if n not in self.inputs]
        while waiting:
            top = waiting.pop()
            call = self.tracer.function_calls.get(top)
            found = {*(call.inputs if call else ()), *top.all_input_nodes} - seen
            seen |= found
            waiting.extend(n for n in found if n not in self.inputs)
        self._refuse_ways_outside(seen)
        return seen

    def _refuse_ways_outside(self, seen: set[Node]) -> None:
        """Within a branch or loop: what it is given must not depend on what it asks about."""
        outer = self.recorder.frame.origins()
        waiting = [outer[n] for n in seen.difference(self.inputs) if n in outer]
        asked = {outer[n] for n in self.inputs if n in outer}
        known = set(waiting)
        while waiting and asked:
            top = waiting.pop()
            if top in asked:
                raise UnsupportedError(
                    "a branch or loop takes the gradient of what was computed outside of it",
                    where=source.locate_user_line(),
                    fix="compute it within the branch, or take the gradient outside",
                )
            found = {*top.all_input_nodes, *([outer[top]] if top in outer else ())} - known
            known |= found
            waiting.extend(found)

    def _is_differentiable(self, node: Node) -> bool:
        if node in self.tracer.function_calls:
            return True
        inexact = any(map(_is_inexact, pytree.tree_leaves(get_val(node))))
        if not inexact or node.target is aten.detach.default:
            return False
        if self.recorder.grad_modes.get(node, self.recorder.grad_mode):
            if node in self.tracer.final_derivatives:
                why = "its derivative is not differentiated again"
                raise _refusal(self.tracer.final_derivatives[node], why)
            return True
        if node in self.tracer.untracked_writes:
            raise MutationError(
                "a gradient is taken through a tensor that was written to under torch.no_grad()",
                where=source.locate_stack_trace(node.meta.get("stack_trace")),
                fix="write to a copy there: x = x.detach().clone()",
            )
        return False

    # Backwards

    def _add(self, node: Node, more: torch.Tensor) -> None:
        before = self.gradients.get(node)
        self.gradients[node] = more if before is None else before + more

    def _finish(self, node: Node) -> torch.Tensor | None:
        """The gradient of a node, once all that reads it has been gone through."""
        owner = self.tracer.hooked.get(node)
        for hook in list((owner._backward_hooks or {}).values()) if owner is not None else ():
            if node in self.gradients:
                with self.tracer.function_mode:
                    found = hook(self.gradients[node])
                if found is not None:
                    self.gradients[node] = found
        return self.gradients.get(node)

    def _pass(self, node: Node) -> None:
        """Hand the gradients of a node's results on to its operands."""
        self._finish(node)
        call = self.tracer.function_calls.get(node)
        if call is not None:
            if node is min(n for n in call.outputs if n in self.reached):
                self._pass_through_function(call)
        elif node.target is not operator.getitem:
            found = self._list_gradients(node)
            if found:
                self._pull_back(node, found)

    def _list_gradients(self, node: Node) -> dict[int, torch.Tensor]:
        """By the number of the result."""
        if not isinstance(get_val(node), (tuple, list)):
            return {0: self.gradients[node]} if node in self.gradients else {}
        found: dict[int, torch.Tensor] = {}
        for item in node.users:
            if item.target is operator.getitem and item in self.gradients:
                i, more = item.args[1], self.gradients[item]
                found[i] = found[i] + more if i in found else more
        return found

    def _pull_back(self, node: Node, gradients: dict[int, torch.Tensor]) -> None:
        """Record the derivative of an operator, as torch has it."""
        last = last_node(self.recorder)
        with _explain(node), _decompose_kernels():
            operands, pull = self._compute_again(node, lambda results: list(gradients))
            self._require_same_draws(node, last)
            found = pull(list(gradients.values()))
        for new in _list_nodes_after(self.recorder, last):  # whatever functorch's levels say
            self.recorder.set_grad_mode(new, torch.is_grad_enabled())
            if node.target in _ONLY_ONCE:
                self.tracer.final_derivatives[new] = node
        self._join_forward(node, last)
        for operand, t in zip(operands, found, strict=True):
            self._add(operand, t)

    def _compute_again(
        self, node: Node, choose: Callable[[list[Any]], list[int]]
    ) -> tuple[list[Node], Callable[..., Any]]:
        """The operands of a node that gradients go on to, and what pulls those of results back.

        Of which results, is chosen by looking at all of them.
        """
        op = _require_derivative(node)
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Node) and x in self.reached]
        given = list(map(self._hold, leaves))

        def compute(*primals: torch.Tensor) -> list[torch.Tensor]:
            for i, t in zip(places, primals, strict=True):
                given[i] = t
            args, kwargs = pytree.tree_unflatten(given, spec)
            out = self._choose_definition(op, given)(*args, **kwargs)
            results = list(out) if isinstance(out, (tuple, list)) else [out]
            return [results[i] for i in choose(results)]

        _, pull = torch.func.vjp(compute, *(given[i] for i in places))
        return [leaves[i] for i in places], pull

    def _choose_definition(self, op: OpOverload, operands: list[Any]) -> Callable[..., Any]:
        """What is differentiated: the operator, or what it is made of."""
        if op in DEFINITIONS and torch.is_grad_enabled() and any(map(has_open_size, operands)):
            return DEFINITIONS[op]
        return _REWRITTEN.get(op, op)

    def _list_constant_results(self, node: Node) -> set[int]:
        """Results of an operator that have no gradient, such as the statistics of a norm."""
        inexact = [i for i, val in enumerate(get_val(node)) if _is_inexact(val)]
        constant: set[int] = set()

        def choose(results: list[Any]) -> list[int]:
            constant.update(i for i in inexact if not results[i].requires_grad)
            return inexact

        if len(inexact) > 1:
            with _explain(node), _decompose_kernels():
                self._compute_again(node, choose)
        return constant

    def _hold(self, x: Any) -> Any:
        """What a node gives, to compute with it once more."""
        if not isinstance(x, Node):
            return x
        val = get_val(x)
        return self._hold_tensor(x) if isinstance(val, torch.Tensor) else val

    def _hold_tensor(self, node: Node) -> torch.Tensor:
        return self.tracer.hold(Value(describe(node), node))

    def _join_forward(self, node: Node, last: Node) -> None:
        """The derivative has computed an operator once more, which is there already."""
        for again in _list_nodes_after(self.recorder, last):
            if _is_same_call(again, node):
                again.replace_all_uses_with(node)
                self.recorder.graph.erase_node(again)
                return

    def _require_same_draws(self, node: Node, last: Node) -> None:
        """What is random was drawn by the operator: not again for its derivative."""
        for again in _list_nodes_after(self.recorder, last):
            if _is_random(again) and not _is_same_call(again, node):
                raise _refusal(node, "it draws random numbers within")

    def _pass_through_function(self, call: FunctionCall) -> None:
        """Run the backward that the user has written."""
        if call.function is BackwardHookFunction:
            raise UnsupportedError(
                "a gradient is taken through a module with backward hooks",
                where=source.locate_user_line(),
                fix="y.register_hook(...) on the tensors that the module is given, or returns",
            )
        gradients = [
            self.gradients.get(n) if n is not None else None  # None for what is no tensor
            for n in call.outputs
        ]
        if all(g is None for g in gradients):
            return
        with torch.no_grad():
            filled = [
                torch.zeros_like(self._hold_tensor(n)) if g is None and n is not None else g
                for n, g in zip(call.outputs, gradients, strict=True)
            ]
        with self.tracer.function_mode:
            found = call.function.backward(call.context, *filled)
        for n, t in zip(call.arguments, _to_tuple(found), strict=False):
            if n is not None and t is not None and n in self.reached:
                self._add(n, t)


def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return src.to(self.dtype).expand(self.shape)


_REWRITTEN: dict[OpOverload, Callable[..., Any]] = {aten.copy.default: _copy}
"""Operators that only graphs have, and that torch does not differentiate."""
_ONLY_ONCE = frozenset(
    overloads("det linalg_det _linalg_det logdet slogdet linalg_slogdet _linalg_slogdet")
)
"""Operators whose second derivative is NaN in torch.func: eager's looks at the data."""


def _require_derivative(node: Node) -> OpOverload:
    """The operator of a node, if torch has a derivative of it."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace not in _OWN:
        raise _refusal(node, "it has no derivative here")
    return op


@contextmanager
def _decompose_kernels() -> Iterator[None]:
    """Not derivatives of whole kernels of this machine, where there are ones of operators."""
    before = get_mkldnn_enabled()
    with sdpa_kernel(SDPBackend.MATH), undo_on_exit(lambda: set_mkldnn_enabled(before)):
        set_mkldnn_enabled(False)
        yield


@contextmanager
def _explain(node: Node) -> Iterator[None]:
    """What torch says where it has no derivative, or none at open sizes."""
    try:
        yield
    except ExportError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        if "with symbolic sizes" in said:
            said = "torch has its derivative at fixed sizes only"
        raise _refusal(node, said) from error


def _refusal(node: Node, why: str) -> UnsupportedError:
    op = node.target
    name = op.name() if isinstance(op, (OpOverload, HigherOrderOperator)) else str(op)
    return UnsupportedError(
        f"torch.autograd.grad through {name}: {why}",
        where=source.locate_stack_trace(node.meta.get("stack_trace")),
        fix="write it with torch functions, or in a torch.autograd.Function with a backward",
    )


_OWN = ("aten", "prims")


def last_node(recorder: Recorder) -> Node:
    return recorder.graph._root.prev


def _list_nodes_after(recorder: Recorder, last: Node) -> list[Node]:
    found, node = [], last.next
    while node.op != "root":
        found.append(node)
        node = node.next
    return found


def _is_same_call(a: Node, b: Node) -> bool:
    return a.target is b.target and a.args == b.args and a.kwargs == b.kwargs


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_inexact(val: object) -> bool:
    return isinstance(val, torch.Tensor) and (val.is_floating_point() or val.is_complex())
