"""Any other operator that takes a function and calls it on its operands.

The function becomes a graph within the graph. How the operator calls it is seen by letting the
operator's own kernel do it once: what it calls the function with must be its operands, and what it
returns must be what the function returned. An operator that does more cannot be captured.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from graphport import source
from graphport.capture.control import record
from graphport.capture.functions import HIGHER_ORDER, overrides
from graphport.capture.recorder import describe
from graphport.capture.subgraphs import Subgraph
from graphport.capture.tracer import Tracer
from graphport.errors import ExportError, UnsupportedError
from graphport.symbolic.bridge import from_torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@overrides(HIGHER_ORDER)
def higher_order(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    call = _Call(tracer, func)
    if not any(map(_is_function, args)):
        with tracer.above:  # it is only made of other operators
            return call.run(args, kwargs)
    with _disable_current_modes():
        out = call.run([call.stub(a) if _is_function(a) else a for a in args], kwargs)
    return call.finish(args, kwargs, out)


def _is_function(x: Any) -> bool:
    return callable(x) and not isinstance(
        x, (torch.Tensor, OpOverload, OpOverloadPacket, HigherOrderOperator, type)
    )


class _Call:
    """One call of an operator."""

    def __init__(self, tracer: Tracer, func: HigherOrderOperator) -> None:
        self.tracer = tracer
        self.func = func
        kernel = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if kernel is None:
            raise self.refusal("it has no implementation for any device")
        self.kernel: Callable[..., Any] = kernel
        self.graph: Subgraph | None = None
        self.running = False
        """Whether the user's function is."""
        self.operands: tuple[Any, ...] = ()
        """What it is called with."""
        self.returned: list[_Result] = []

    def refusal(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"torch.ops.higher_order.{self.func.name()} cannot be captured: {why}",
            where=source.here(),
            fix="call the function itself, or wrap the operator in a torch.library.custom_op",
        )

    def run(self, args: Any, kwargs: Any) -> Any:
        """Let the kernel do its work, which may be more than can be followed."""
        try:
            return self.kernel(*args, **kwargs)
        except ExportError:
            raise
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as e:
            if self.running:  # the user's own function
                raise
            raise self.refusal(f"its implementation fails with {type(e).__name__}: {e}") from e

    def stub(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """What the kernel calls in place of the function."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.graph is not None or kwargs:
                raise self.refusal("it calls its functions more than once, or with keywords")
            self.operands = args
            graph = self.graph = Subgraph(self.tracer, f"{self.func.name()}_graph")
            self.running = True
            with self.tracer:
                graph.take(*pytree.tree_leaves(args))
                graph.run(fn, *args)
            self.running = False
            self.returned = [_Result() for _ in graph.results]
            assert graph.spec is not None
            return pytree.tree_unflatten(self.returned, graph.spec)

        return call

    def finish(self, args: Any, kwargs: Any, out: Any) -> Any:
        """Record the call on the graph, with all that the graph uses as operands."""
        tracer, graph = self.tracer, self.graph
        leaves, spec = pytree.tree_flatten(out)
        if graph is None or leaves != self.returned:
            raise self.refusal("it computes with what its function returns")
        if sum(map(_is_function, args)) > 1:
            raise self.refusal("it takes several functions")
        place = self._place(args)
        written = [w.base for w in graph.written]
        graph.add_written(written)
        outside = graph.outside
        reference = graph.finish(outside)
        results = [from_torch(r) if isinstance(r, _SYMBOLIC) else r
                   for r in map(describe, graph.results)]  # fmt: skip
        placed = [self._lowered(a) for a in place(reference, outside)]
        options = {key: self._lowered(a) for key, a in kwargs.items()}
        self._check(placed, options, outside)
        made = record(tracer, self.func, placed, results, outside, options)
        count = len(self.returned)
        for base, new in zip(written, made[count:], strict=True):
            tracer.write(base, tracer.read(tracer.value(new)))
        graph.doubt(made[:count])
        return pytree.tree_unflatten(made[:count], spec)

    def _lowered(self, x: Any) -> Any:
        """An argument as it stands in the graph, whatever container it is in."""
        tracer = self.tracer
        return pytree.tree_map(lambda y: tracer.recorder.argument(tracer.lower(y)), x)

    def _check(self, args: Any, kwargs: Any, outside: Sequence[Node]) -> None:
        """The call as it is recorded must call the graph with its inputs, in their order."""
        called: list[Any] = []
        returned = [_Result() for _ in self.returned]

        def graph(*given: Any) -> Any:
            called.append(given)
            return tuple(returned)

        def described(x: Any) -> Any:
            if isinstance(x, Node):
                return graph if x.op == "get_attr" else x.meta["val"]
            return x

        with _disable_current_modes():
            args, kwargs = pytree.tree_map(described, (args, kwargs))
            out = self.run(args, kwargs)
        given = called[0] if len(called) == 1 else ()
        wanted = list(map(described, outside))
        same = len(given) == len(wanted) and all(map(operator.is_, given, wanted))
        if not same or pytree.tree_leaves(out) != returned:
            raise self.refusal("it does not call its function with the operands after it, as given")

    def _place(self, args: Any) -> Callable[[Any, Any], list[Any]]:
        """Where the graph and its operands go among the arguments."""
        given = {id(x) for x in self.operands}
        whole = [i for i, a in enumerate(args) if isinstance(a, (tuple, list))
                 and len(a) == len(self.operands)
                 and all(x is y for x, y in zip(a, self.operands, strict=True))]  # fmt: skip
        single = [i for i, a in enumerate(args) if id(a) in given and not _is_function(a)]
        if not whole and len(single) != len(self.operands):
            raise self.refusal("it does not call its function with its operands")

        def place(reference: Any, outside: Any) -> list[Any]:
            placed: list[Any] = []
            first = min(single, default=len(args))
            for i, a in enumerate(args):
                if _is_function(a):
                    placed.append(reference)
                elif whole and i == whole[0]:
                    placed.append(tuple(outside))
                elif not whole and i == first:
                    placed.extend(outside)
                elif whole or i not in single:
                    placed.append(a)
            return placed if whole or single else [*placed, *outside]

        return place


class _Result:
    """Stands for a result of the function while the kernel handles it."""
