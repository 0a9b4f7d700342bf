"""Lowers a captured program to an ONNX graph node by node, folding constants.

An operator whose operands are all constants of the program is run, unless it draws random numbers
or its result is large, and a lowering makes a smaller file. Parameters are left as they are: a file
has them under their own names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from graphport.compat.operators import aten, higher_order
from graphport.compat.torch import HigherOrderOperator, OpOverload
from graphport.errors import (
    ExportError,
    InputError,
    InternalError,
    MissingLoweringError,
    UnsupportedError,
)
from graphport.onnx.emit.builder import Builder
from graphport.onnx.emit.ir import Complex, Value
from graphport.onnx.lower.registry import (
    BY_PARTS,
    COMPLEX,
    FUSIONS,
    HIGHER_ORDER,
    LOWERINGS,
    NEEDS,
    UNFOLDED,
    Lowered,
    Lowering,
    is_known,
)
from graphport.onnx.target.targets import Target
from graphport.ops.registry import overloads
from graphport.ops.sizes import numel
from graphport.program.bounds import check_call_bounds
from graphport.program.input_checks import ASSERTION_PREFIX
from graphport.source import locate_stack_trace
from graphport.symbolic import Expr, ne
from graphport.tensors.abstract import Abstract, AbstractTensor, describe, get_val
from graphport.types import Argument, NodeTarget

_MOST_ELEMENTS = 1 << 16
"""Elements of a result that is kept in the file instead of being computed."""


def fold_constant(lowerer: Lowerer, node: Node) -> Any:
    """The constant that a node is, or None."""
    result = lowerer.b.result
    if not isinstance(result, Abstract) or not _is_fixed(result):
        return None
    target: Any = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if target.name() in UNFOLDED:
        return None
    if numel(result.sizes) > _MOST_ELEMENTS and (is_known(target) or not is_made_of_numbers(node)):
        return None
    try:
        args = _constant_argument(lowerer.values(node.args), lowerer.weights)
        kwargs = {
            k: _constant_argument(v, lowerer.weights)
            for k, v in lowerer.values(node.kwargs).items()
        }
    except _NotConstant:
        return None
    if isinstance(kwargs.get("device"), torch.device):
        kwargs["device"] = torch.device("cpu")
    check_call_bounds(target, args, kwargs)
    try:
        with torch.no_grad():
            made = target(*args, **kwargs)
    except RuntimeError as error:  # of dtypes that torch can hold, and not compute with
        raise UnsupportedError(f"torch cannot compute {target} of constants: {error}") from error
    if is_uninitialised(target):
        # Uninitialised memory would go into the file, and be other bytes each time.
        made.zero_()
    if made.is_complex():
        made = made.resolve_conj()
        return Complex(lowerer.b.constant(made.real), lowerer.b.constant(made.imag))
    return lowerer.b.constant(made)


def is_made_of_numbers(node: Node) -> bool:
    """Whether a tensor is made from fixed numbers alone: it needs no lowering."""
    op, val = node.target, get_val(node)
    return (
        isinstance(op, OpOverload)
        and op.namespace == "aten"
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not node.all_input_nodes
        and isinstance(val, AbstractTensor)
        and _is_fixed(val._abstract)
    )


def _is_fixed(result: Abstract) -> bool:
    return all(type(s) is int for s in result.sizes)


class _NotConstant(Exception):
    pass


def _constant_argument(x: object, weights: set[Value]) -> Argument:
    if isinstance(x, Value):
        if x.tensor is None or x in weights:
            raise _NotConstant
        return x.tensor
    if isinstance(x, Complex):
        return torch.complex(_constant_argument(x.re, weights), _constant_argument(x.im, weights))
    if isinstance(x, Expr):
        raise _NotConstant
    if isinstance(x, (list, tuple)):
        return [_constant_argument(y, weights) for y in x]
    return x


def is_uninitialised(target: NodeTarget) -> bool:
    schema = getattr(target, "_schema", None)
    name = schema.name.partition("::")[2] if schema is not None else ""
    return name.startswith(("empty", "new_empty"))


# Lowering: one walk over the nodes of a program.
#
# Numbers of the program stay expressions. What is constant is computed with torch on the way. A
# pattern that ONNX has an operator for is recognised at its last node, and what it made superfluous
# is removed in the end.

# A file stops where they do not hold.
_ASSERTIONS = set(overloads("_assert_async.msg,default _assert_scalar"))
# Say something that is asserted or known besides, and compute nothing.
_NO_OPS = {
    aten.sym_constrain_range_for_size.default,
    aten.sym_constrain_range.default,
    aten._assert_tensor_metadata.default,
    aten._linalg_check_errors.default,
}
# Errors that a lowering may raise on arguments that it does not expect.
_UNEXPECTED_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Lowerer:
    """The walk: which value each node of the program has become."""

    def __init__(
        self, builder: Builder, custom: Mapping[OpOverload, Lowering], fuse: bool = True
    ) -> None:
        self.b = builder
        self.custom = custom
        self.fuse = fuse
        """Whether patterns of several operators become one; otherwise each is lowered by itself."""
        self.env: dict[Node, Any] = {}
        self.module: GraphModule | None = None
        self.weights: set[Value] = set()
        """Tensors that the file has under their own names; they are not computed with at export."""

    def run(self, module: GraphModule) -> Any:
        """Lower the nodes of a graph whose inputs are known; what its output stands for."""
        outer, self.module = self.module, module
        try:
            for node in module.graph.nodes:
                if node.op == "call_function":
                    self.env[node] = self._call(node)
                elif node.op == "get_attr":
                    self.env[node] = getattr(module, str(node.target))
                elif node.op == "output":
                    return self.values(node.args[0])
        finally:
            self.module = outer
        raise AssertionError("a graph ends in an output")

    # One node

    def _call(self, node: Node) -> Lowered:
        target: Any = node.target
        result = describe(node)
        if target in _NO_OPS:
            return None
        if target is operator.getitem and not isinstance(result, _NUMBERS):
            whole: Any = node.args[0]
            try:
                return self.env[whole][node.args[1]]
            except (LookupError, TypeError) as error:  # only in a program from a file
                raise UnsupportedError(f"{whole} has no result {node.args[1]!r}") from error
        if isinstance(result, _NUMBERS) and not _reads_data(target):
            return result
        b = self.b
        b.origin, b.result = node, result
        try:
            value = self._lower(node, target)
            _require_results(target, value, result)
        except ExportError as error:
            error.add_location(locate_stack_trace(node.meta.get("stack_trace")))
            raise
        except _UNEXPECTED_ERRORS as error:
            if target in self.custom:  # the user's own
                raise
            raise InternalError(
                f"{target} cannot be written as ONNX: {type(error).__name__}: {error}",
                where=locate_stack_trace(node.meta.get("stack_trace")),
            ) from error
        if isinstance(result, _NUMBERS):
            if isinstance(value, Value):
                b.sizes.learn_number(result, value)
            truth = describe(node.args[0]).dtype is torch.bool  # capture counts it as 0 or 1
            return ne(result, 0) if truth else result
        return self._finish(node, value, result)

    def _require(self, node: Node) -> None:
        """Capture's own assumptions are named by the condition, those of the user as they say."""
        condition, *rest = self.values(node.args)
        message = str(rest[0]) if rest else ""
        if isinstance(condition, Expr) and condition.type is not bool:
            condition = ne(condition, 0)
        own = isinstance(condition, Value) or not message.startswith(ASSERTION_PREFIX)
        self.b.assertions.require(condition, message if own else "")

    def _lower(self, node: Node, target: NodeTarget) -> Lowered:
        if isinstance(target, HigherOrderOperator):
            return HIGHER_ORDER[target](self, node)
        if target in _ASSERTIONS:
            self._require(node)
            return None
        if target not in self.custom:
            constant = fold_constant(self, node)
            if constant is not None:
                return constant
            fusions = FUSIONS.get(target) if self.fuse and not is_complex(node) else ()
            for fuse in fusions or ():
                fused = fuse(self, node)
                if fused is not None:
                    return fused
        args, kwargs = self.values(node.args), self.values(node.kwargs)
        if target not in self.custom and is_complex(node):
            if target not in COMPLEX:
                return lower_by_parts(self.b, LOWERINGS[target], args, kwargs)
            lowering = COMPLEX[target]
        else:
            lowering = self.custom.get(target) or LOWERINGS[target]
        return lowering.fn(self.b, **lowering.bind(args, kwargs))

    def _finish(self, node: Node, value: Lowered, result: object) -> Any:
        """The value with the dtype and sizes that capture knows."""
        if isinstance(result, tuple):
            items = value if isinstance(value, (tuple, list)) else (value,)
            pairs = zip(items, result, strict=True)
            return tuple(self._finish(node, v, r) for v, r in pairs)
        if isinstance(value, Value) and isinstance(result, Abstract):
            if value.dtype is not result.dtype:
                value = self.b.cast(value, result.dtype)
            if value.graph is self.b.graph or value.shape is None:  # a branch may know more
                self.b.shaped(value, result.sizes)
            if not value.name and value.producer is not None and value.tensor is None:
                value.name = node.name
            self.b.sizes.learn(value)
        if isinstance(value, Complex) and isinstance(result, Abstract):
            part = result.like(dtype=result.dtype.to_real())
            return Complex(*(self._finish(node, v, part) for v in (value.re, value.im)))
        return value

    # Arguments

    def values(self, x: Argument) -> Any:
        """Arguments with nodes replaced by their values, within lists and dicts."""
        if isinstance(x, Node):
            return self.env[x]
        if isinstance(x, (list, tuple)):
            return [self.values(y) for y in x]
        if isinstance(x, dict):
            return {k: self.values(v) for k, v in x.items()}
        return x


def _require_results(target: NodeTarget, value: Lowered, result: object) -> None:
    """A lowering of the user's may have forgotten to return something."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    if isinstance(result, Abstract) and not isinstance(value, (Value, Complex)):
        wanted = "what a method of the builder returns"
    elif isinstance(result, tuple) and len(items) != len(result):
        wanted = f"a tuple of {len(result)} values"
    else:
        return
    given = f"{len(items)} values" if items is value else type(value).__name__
    raise InputError(f"the lowering for {target} returned {given}", fix=f"return {wanted}")


_NUMBERS = (Expr, int, float, bool)


def _reads_data(target: NodeTarget) -> bool:
    return target in (aten.item.default, aten._local_scalar_dense.default)


def has_assertions(module: GraphModule) -> bool:
    """Whether a program, or a subgraph of it, asserts anything."""
    graphs = (part.graph for part in module.modules() if isinstance(part, GraphModule))
    return any(node.target in _ASSERTIONS for graph in graphs for node in graph.nodes)


def find_missing(module: GraphModule, known: Callable[[object], bool]) -> dict[Any, list[Node]]:
    """Operators of a program, and of its subgraphs, that cannot be lowered."""
    found: dict[Any, list[Node]] = {}
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and not _is_known(node, known):
                    mutates = node.target is _AUTO_FUNCTIONALIZED
                    found.setdefault(node.args[0] if mutates else node.target, []).append(node)
    return found


_AUTO_FUNCTIONALIZED = higher_order.auto_functionalized


def _is_known(node: Node, known: Callable[[object], bool]) -> bool:
    target = node.target
    if target is _AUTO_FUNCTIONALIZED:
        return known(node.args[0])
    if isinstance(target, HigherOrderOperator):
        return target in HIGHER_ORDER
    if not isinstance(target, OpOverload) or target in _ASSERTIONS | _NO_OPS:
        return True  # arithmetic on numbers
    if isinstance(describe(node), _NUMBERS) or is_made_of_numbers(node):
        return True
    if is_complex(node) and target in LOWERINGS:
        return target in COMPLEX or target in BY_PARTS
    return known(target) or (target in COMPLEX and is_complex(node))


def is_complex(node: Node) -> bool:
    """Whether an operand or the result of a node is complex."""
    return any(_has_complex(describe(n)) for n in (node, *node.all_input_nodes))


def _has_complex(about: object) -> bool:
    if isinstance(about, tuple):
        return any(map(_has_complex, about))
    return isinstance(about, Abstract) and about.dtype.is_complex


def lower_by_parts(
    b: Builder, lowering: Lowering, args: Sequence[Lowered], kwargs: Mapping[str, Lowered]
) -> Lowered:
    """The lowering for real numbers of real and of imaginary parts."""
    whole = b.result
    found: list[Any] = []
    try:
        for part in ("re", "im"):
            b.result = _to_real(whole)
            found.append(lowering.fn(b, **_select_parts(b, lowering.bind(args, kwargs), part)))
    finally:
        b.result = whole
    re, im = found
    if isinstance(re, (list, tuple)):
        return tuple(map(Complex, re, im))
    return Complex(re, im)


def _to_real(about: Any) -> Any:
    if isinstance(about, tuple):
        return tuple(map(_to_real, about))
    return about.like(dtype=about.dtype.to_real()) if about.dtype.is_complex else about


def _select_parts(b: Builder, arguments: dict[str, object], part: str) -> dict[str, Any]:
    """Arguments with complex operands replaced by a part of them; of real ones that is 0."""
    return {k: _select_part(b, v, part, k in _DATA_ARGUMENTS) for k, v in arguments.items()}


_DATA_ARGUMENTS = ("self", "other", "src", "values", "value", "fill_value", "tensors")


def _select_part(b: Builder, x: object, part: str, is_data: bool) -> Lowered:
    if isinstance(x, list):
        return [_select_part(b, y, part, is_data) for y in x]
    if isinstance(x, Complex):
        return getattr(x, part)
    if isinstance(x, torch.dtype):
        return x.to_real()
    if not is_data or part == "re":
        return x.real if isinstance(x, complex) else x
    if isinstance(x, Value):
        return b.expand(b.scalar(0, x.dtype), x.shape or ())
    return x.imag if isinstance(x, complex) else 0 if isinstance(x, (int, float)) else x


def choose_opset(module: GraphModule, target: Target) -> int:
    """The default, or an older opset that the target has kernels of all operators in."""
    opset = target.default_opset()
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if node.target in NEEDS and not _is_in_eval_mode(node):
                    for op in NEEDS[node.target]:
                        opset = target.newest_opset(op, opset)
    return opset


def _is_in_eval_mode(node: Node) -> bool:
    """Whether an operator that draws in training is called for evaluation."""
    target: Any = node.target
    names = [a.name for a in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return "training" in names and not given.get("training", False)


def report_missing(found: Mapping[Any, list[Node]], opset: int) -> ExportError:
    """All that is missing, with the lines that need it."""
    lines = []
    for target, nodes in found.items():
        found_at = (locate_stack_trace(n.meta.get("stack_trace")) for n in nodes)
        places = list(dict.fromkeys(f" at {place}" for place in found_at if place is not None))
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        lines.append(f"{target}{''.join(places[:1])}{more}")
    names = [str(t) for t in found]
    return MissingLoweringError(names, lines, opset)
